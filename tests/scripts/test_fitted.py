"""Fitting a machine to plans: the one whose prices stand for measurements is found again."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from measuring.fitted import SPREADS, Fitting, turned
from measuring.predicted import predict, row_of, write_models
from measuring.workloads import MODELS, Case

from autoplan.files.hardware import dump_hardware, parse_hardware
from autoplan.files.machine_spec import load_hardware

CASES = [
    Case(model, 8, 64, ranks, pins)
    for model in ("llama-deep", "llama-slim")
    for ranks, pins in (
        (1, "micro_batch=1"), (1, "micro_batch=8"), (1, "micro_batch=2,recompute=full"),
        (2, "dp=2,zero=0"), (2, "dp=2,zero=3"), (2, "tp=2"), (2, "pp=2,micro_batch=2"), (2, "cp=2"),
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_models(folder, MODELS)
    priced = [predict(case, folder, f"cpu-host:{case.ranks}") for case in CASES]
    return [row_of(number, *pair) for number, pair in enumerate(zip(CASES, priced, strict=True))]


def measured(rows, machine):
    """Rows that took what a machine says."""
    for row in rows:
        row["measured"] = {"step_time_s": 1.0, "disturbed": False}
    seconds = np.exp(Fitting(rows, machine).errors(machine))
    return [{**row, "measured": {"step_time_s": s}} for row, s in zip(rows, seconds, strict=True)]


def test_a_turned_machine_is_found(rows):
    start = load_hardware("cpu-host")
    turns = dict.fromkeys(SPREADS, 0.0) | {
        "device.gemm_efficiency": -0.1, "device.launch": 0.3, "levels.start": -0.8,
        "host.contention": log(1.3 / start.host.contention),
    }  # fmt: skip
    true = turned(start, turns)
    fitting = Fitting(measured(rows, true), start)
    found = fitting.fit("test")
    assert abs(fitting.errors(found)).max() < 0.05
    assert found.host.contention == pytest.approx(true.host.contention, rel=0.05)
    start, right = found.levels[0], true.levels[0]  # each takes for the other, their sum does not
    assert start.start + start.latency == pytest.approx(right.start + right.latency, rel=0.1)
    assert found.evidence["levels.rank.start"].kind == "fitted"
    assert parse_hardware(dump_hardware(found), "test") == found


def test_what_plans_confirm_stays(rows):
    start = load_hardware("cpu-host")
    found = Fitting(measured(rows, start), start).fit("test")
    assert found.device.gemm_efficiency == pytest.approx(start.device.gemm_efficiency, rel=0.02)
    assert found.levels[0].bandwidth == start.levels[0].bandwidth
