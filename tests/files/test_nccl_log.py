"""Reading logs of nccl-tests: what they measured, and where a bad one is bad."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.files.nccl_log import PROGRAMS, parse_nccl_log
from tests.files.cluster_texts import FACTORS, SIZES, log


def seconds(nbytes):
    return 2e-5 + nbytes / 150e9


@pytest.mark.parametrize("test", FACTORS)
@pytest.mark.parametrize("tag", ["", "[1,0]<stdout>:", "[1,0]<stdout>: "])
def test_rows_ranks_and_hosts_are_read(test, tag):
    found = parse_nccl_log(log(test, 16, seconds, tag=tag), "run.log")
    assert (found.kind, found.ranks, found.guessed) == (PROGRAMS[test], 16, False)
    assert found.hosts == (0,) * 8 + (1,) * 8
    assert [row.nbytes for row in found.rows] == SIZES
    for row in found.rows:
        assert row.seconds == pytest.approx(seconds(row.nbytes), abs=1e-8)


@pytest.mark.parametrize("ranks", [2, 4, 8, 24])
@pytest.mark.parametrize("test", ["all_reduce", "all_gather", "reduce_scatter"])
def test_columns_alone_tell_collective_and_ranks(test, ranks):
    found = parse_nccl_log(log(test, ranks, seconds, banner=False), "pasted.txt")
    assert (found.kind, found.ranks, found.guessed) == (test, ranks, True)


def test_a_file_may_be_named_after_the_test():
    found = parse_nccl_log(log("alltoall", 8, seconds, banner=False), "logs/alltoall_8.log")
    assert (found.kind, found.guessed) == ("all_to_all", False)


def test_rows_of_older_versions():
    """Without root, with an empty redop, and between lines of the library."""
    rows = (
        "host:1:1 [0] NCCL INFO Channel 00/02 :    0   1\n"
        "           0             0   float     sum    14.27    0.00    0.00  0e+00    14.3 0 0 0\n"
        "     8388608       2097152   float     sum   1234.5    6.80   10.20  2e-07   1200 1 1 0\n"
    )
    found = parse_nccl_log("# all_reduce_perf\n" + rows, "old.log")
    assert found.ranks == 4  # 1.5 = 2 (n - 1) / n, as of 12.7 over 8.5 GB/s on four devices
    assert [(row.nbytes, row.seconds) for row in found.rows] == [(8388608, 1234.5e-6)]
    gathered = "  65536  2048  float  33.50  1.96  1.71  2e-07  33.67  1.95  1.70  N/A\n"
    found = parse_nccl_log(gathered, "old.log")
    assert (found.kind, found.ranks) == ("all_gather", 8)


def problems(text, source="run.log"):
    with pytest.raises(InputError) as caught:
        parse_nccl_log(text, source)
    return [str(problem) for problem in caught.value.problems]


def test_every_bad_row_is_named_with_its_line():
    lines = log("all_reduce", 8, seconds).splitlines()
    at = [number for number, line in enumerate(lines) if " float " in line]
    lines[at[0]] = lines[at[0]].replace("float", "flaot")
    lines[at[1]] = lines[at[1]].rsplit(None, 3)[0]
    words = lines[at[2]].split()
    lines[at[2]] = " ".join([*words[:5], "fast", *words[6:]])
    found = problems("\n".join(lines))
    assert [problem.split(": ")[1] for problem in found] == [
        f"line {at[0] + 1}, type", f"line {at[1] + 1}", f"line {at[2] + 1}, time"
    ]  # fmt: skip
    assert 'found "flaot", allowed: one of int8' in found[0]
    assert "10 columns" in found[1]
    assert "a number > 0" in found[2]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no row of a table"),
        ("NCCL INFO nothing was measured\n", "no row of a table"),
        (log("sendrecv", 1, seconds), "1 ranks"),
        ("  1024  256  float  sum -1  9.0  0.11  0.11 0  9.0  0.11  0.11 0\n", "neither ranks"),
    ],
)
def test_other_texts_are_refused(text, word):
    assert any(word in problem for problem in problems(text))


def test_a_broadcast_is_not_one_of_ours():
    text = log("sendrecv", 8, seconds, banner=False).replace("none -1", "none  0")
    assert "another collective" in " ".join(problems(text))
