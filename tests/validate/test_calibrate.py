"""A fit finds constants that explain runs, and says which ones the runs can tell."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log

import numpy as np
import pytest

from autoplan.ir.record import Measured
from autoplan.validate.calibrate import (
    Fitter,
    adjusted,
    fit,
    knobs_of,
    read,
    sample_of,
    unexplained,
    written,
)
from autoplan.validate.evaluate import predict
from autoplan.validate.express import express
from tests.validate.records import record

LAYOUTS = (
    {"tp": 1, "pp": 1, "dp": 8}, {"tp": 2, "pp": 1, "dp": 4}, {"tp": 4, "pp": 2, "dp": 1},
)  # fmt: skip


def runs():
    """Runs of one model in several layouts and micro-batches."""
    return [
        record(
            id=f"here-{n}-{micro}",
            parallel=layout,
            micro_batch=micro,
            global_batch=64,
            stack="megatron",
        )  # fmt: skip
        for n, layout in enumerate(LAYOUTS)
        for micro in (1, 4)
    ]


def test_two_short_programs_stand_for_a_long_step():
    """Exact without a pipeline; with one, within a per cent."""
    for given in runs():
        sample = sample_of(given, 1.0)
        seconds = sample.predict(sample.case.hardware, sample.case.stack, {})
        close = 1e-9 if given.parallel["pp"] == 1 else 1e-2
        assert seconds == pytest.approx(predict(given).step_time, rel=close)


def test_the_constants_that_made_the_times_are_found_again():
    """The fit recovers what the runs can tell, and leaves alone what they cannot."""
    truth = {"host_layer_forward_s": 3.0, "pointwise_factor": 1.5}
    samples = []
    for given in runs():
        case = express(given)
        knobs = knobs_of([case])
        factors = {knob: truth.get(knob.path, 1.0) for knob in knobs}
        sample = sample_of(given, 1.0)
        seconds = sample.predict(*adjusted(case, factors), {})
        samples.append(replace(sample, seconds=seconds))
    fitter = Fitter(samples, knobs_of([s.case for s in samples]), ["here"] * len(samples))
    found = fit(fitter, [s.case.record.id[:6] for s in samples], iterations=2)
    assert np.abs(found.after).max() < np.abs(found.before).max() / 4
    table = {knob.path: index for index, knob in enumerate(found.knobs)}
    for path, factor in truth.items():
        if found.identified(table[path]):
            assert exp(found.x[table[path]]) == pytest.approx(factor, rel=0.15)
    assert any(found.identified(table[path]) for path in truth)
    assert not all(found.identified(index) for index in table.values())
    assert np.abs(found.left_out).max() < 0.1


def test_a_knob_reads_and_writes_one_number():
    case = express(record())
    for knob in knobs_of([case]):
        profile = getattr(case, knob.owner)
        changed = written(profile, knob.path, 1.25)
        assert read(changed, knob.path) == pytest.approx(1.25 * (read(profile, knob.path) or 0))
        assert written(changed, knob.path, 0.8) != changed
        assert knob.least <= 1 <= knob.most
    assert read(case.stack, "nothing") is None


def test_few_runs_leave_at_least_what_all_runs_leave_unexplained():
    left = np.array([0.01] * 10 + [0.3] * 10 + [0.02])
    found = unexplained(["good"] * 10 + ["bad"] * 10 + ["new"], left)
    assert found["good"] == pytest.approx(exp(0.01))
    assert log(found["new"]) == pytest.approx(float(np.quantile(left, 0.8)))
    assert max(found.values()) < inf


def test_a_record_without_a_plan_is_no_sample():
    from autoplan.errors import AutoplanError

    with pytest.raises(AutoplanError):
        sample_of(record(measured=Measured(step_time_s=1.0), schedule="zb-2p"), 1.0)
