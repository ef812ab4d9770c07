"""Profiles made from files: logs that a machine's own prices make give the machine back."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.files.hardware import dump_hardware, parse_hardware
from autoplan.files.machine_spec import load_hardware
from autoplan.files.nccl_log import PROGRAMS
from autoplan.validate.measure import cluster_document, profile_cluster
from autoplan.validate.measure.links import Call, call_terms
from tests.files.cluster_texts import TWO_SOCKETS, log, topology


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


def priced(hardware, test, ranks):
    """A log of a machine's own prices."""
    kind, devices = PROGRAMS[test], tuple(range(ranks))
    groups = (devices,)
    if kind == "send":
        groups = tuple(zip(devices, devices[1:] + devices[:1], strict=True))

    def seconds(nbytes):
        operand = nbytes // ranks if kind == "all_gather" else nbytes
        return call_terms(Call(kind, groups, operand, (1.0,)), hardware).of(operand)

    return log(test, ranks, seconds)


@pytest.mark.parametrize("test", ["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
def test_logs_give_the_machine_back(tmp_path, test):
    true = load_hardware("h800-80g:4x8")
    logs = [written(tmp_path, f"{ranks}.log", priced(true, test, ranks)) for ranks in (8, 32)]
    found = profile_cluster("mine", "h800-80g:4x8", None, logs)
    for level, known in zip(found.hardware.levels, true.levels, strict=True):
        rate, real = level.bandwidth * level.efficiency, known.bandwidth * known.efficiency
        assert rate == pytest.approx(real, rel=0.05)
        assert level.latency == pytest.approx(known.latency, rel=0.05)
        assert found.hardware.evidence[f"levels.{level.name}.efficiency"].kind == "measured"
    assert all(fit.typical_error() < 0.01 for fit in found.fits.values())


def test_transfers_between_two_devices(tmp_path):
    path = written(tmp_path, "sendrecv.log", priced(load_hardware("h100-80g"), "sendrecv", 2))
    level = profile_cluster("mine", "h100-80g", None, [path]).hardware.levels[0]
    known = load_hardware("h100-80g").levels[0]
    assert level.bandwidth == known.bandwidth
    assert level.efficiency == pytest.approx(known.efficiency, rel=0.01)


def test_a_rate_above_the_sheet_replaces_it(tmp_path):
    """A sheet that is not this machine's."""
    faster = load_hardware("h100-80g", {"levels.gpu.bandwidth": "900GB/s"})
    path = written(tmp_path, "all_reduce.log", priced(faster, "all_reduce", 8))
    found = profile_cluster("mine", "h100-80g", None, [path]).hardware
    assert found.levels[0].efficiency == 1
    rate = faster.levels[0].bandwidth * faster.levels[0].efficiency
    assert found.levels[0].bandwidth == pytest.approx(rate, rel=0.01)
    assert found.evidence["levels.gpu.bandwidth"].kind == "measured"


def test_one_device_a_node(tmp_path):
    """Two hosts with one rank each: the level between nodes is crossed, by one device of each."""
    text = log("all_reduce", 2, lambda n: 4e-5 + n / 9e9, per_host=1)
    found = profile_cluster("mine", "a100-80g:2x8", None, [written(tmp_path, "a.log", text)])
    assert list(found.fits) == ["node"]
    node = found.hardware.levels[1]
    assert node.bandwidth * node.efficiency == pytest.approx(9e9 * node.shared_by, rel=0.01)


def test_topology_and_logs_make_a_profile_that_survives_its_file(tmp_path):
    paths = written(tmp_path, "topo.txt", topology(TWO_SOCKETS))
    text = log("all_reduce", 8, lambda n: 4e-5 + 2 * 7 / 8 * n / 10e9)
    found = profile_cluster("mine", "rtx4090", paths, [written(tmp_path, "a.log", text)])
    document = cluster_document(found)
    assert parse_hardware(document["hardware"], "mine") == found.hardware
    assert dump_hardware(found.hardware) == document["hardware"]
    assert list(document["links"]) == ["socket"]
    rows = document["links"]["socket"]["rows"]
    assert [row["kind"] for row in rows] == ["all_reduce"] * len(rows)


def test_all_problems_at_once(tmp_path):
    bad = [written(tmp_path, f"{n}.log", text) for n, text in enumerate(("", "words\n"))]
    with pytest.raises(InputError) as caught:
        profile_cluster("mine", "", written(tmp_path, "topo.txt", "nothing"), bad)
    sources = [problem.source for problem in caught.value.problems]
    assert sources == ["--extends", f"{tmp_path}/topo.txt", *bad]


def test_more_ranks_than_the_machine_has(tmp_path):
    path = written(tmp_path, "a.log", log("all_reduce", 32, lambda n: 1e-4 + n / 1e10))
    with pytest.raises(InputError, match="32 ranks, allowed: ranks of mine, which has 8 devices"):
        profile_cluster("mine", "a100-80g:8", None, [path])
