"""Published collectives are priced within what is promised; held-out sizes are found again."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median

import collective_accuracy
import pytest
from collective_accuracy import DATA, LARGE, SIZES, Row, held_out, published, seconds_of, summary

from autoplan.files.machine_spec import load_hardware
from autoplan.validate.measure.links import Call, call_terms, fit_cores

DOCUMENT = json.loads(DATA.read_text())
ROWS = list(published(DOCUMENT))
MACHINES = sorted({row.machine.partition(":")[0] for row in ROWS})


def typical(rows: list[Row]) -> float:
    return median(abs(row.error) for row in rows)


def test_half_of_the_long_messages_are_within_a_tenth_and_of_the_short_ones_within_a_quarter():
    assert typical([row for row in ROWS if row.nbytes >= LARGE]) <= 0.10
    assert typical([row for row in ROWS if row.nbytes < LARGE]) <= 0.25


@pytest.mark.parametrize("machine", MACHINES)
def test_no_machine_is_far_off(machine):
    """Of every machine the same, so that none hides behind those with many rows."""
    rows = [row for row in ROWS if row.machine.partition(":")[0] == machine]
    for limit, some in (
        (0.10, [row for row in rows if row.nbytes >= LARGE]),
        (0.25, [row for row in rows if row.nbytes < LARGE]),
    ):
        assert not some or typical(some) <= limit


def test_every_table_says_where_it_comes_from():
    assert all(table["source"] for table in DOCUMENT["tables"])
    assert all(one["reason"] for one in DOCUMENT["not_expressed"])


def test_a_rate_means_what_nccl_tests_mean():
    """1 GB over 8 ranks at 200 GB/s of bus bandwidth: 2 · 7/8 GB move in an all_reduce."""
    table = {"collective": "all_reduce", "ranks": 8, "rate": "bus"}
    assert seconds_of(table, 10**9, 200) == pytest.approx(1.75 / 200)
    assert seconds_of({**table, "rate": "algorithm"}, 10**9, 200) == pytest.approx(1 / 200)
    assert seconds_of({**table, "rate": "seconds"}, 10**9, 3e-3) == 3e-3


def test_held_out_sizes_of_a_machine_that_prices_itself_are_exact():
    profile = load_hardware("cpu-host:2")
    level = replace(profile.levels[0], latency=1e-4, bandwidth=3e9, efficiency=1.0)
    truth = replace(profile, levels=(level,))
    calls = []
    for kind in ("all_gather", "all_reduce", "send"):
        for size in SIZES:
            call = Call(kind, ((0, 1),), size, (1.0,))
            calls.append(replace(call, seconds=(call_terms(call, truth).of(size),)))
    rows = held_out(fit_cores(calls, profile, 0).rows, profile)
    assert {row.nbytes for row in rows} == set(SIZES[1:-1:2])
    fitted = [row.error for row in rows if row.machine in ("one line for all", "a line for each")]
    assert fitted == pytest.approx([0.0] * len(fitted), abs=1e-6)
    assert "a table, all" in summary(rows)


def test_prints_a_table_of_every_machine(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["collective_accuracy.py", "--rows"])
    assert collective_accuracy.main() == 0
    printed = capsys.readouterr().out
    assert all(machine in printed for machine in MACHINES)
