"""A fit finds constants that explain runs, and says which ones the runs can tell."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log

import numpy as np
import pytest

from autoplan.errors import AutoplanError
from autoplan.ir.machine import Evidence
from autoplan.ir.record import Measured
from autoplan.units import GIB
from autoplan.validate.calibrate import HINGE, Fitter, asking, fit, refit, solve, unexplained
from autoplan.validate.evaluate import predict
from autoplan.validate.express import express
from autoplan.validate.knobs import adjusted, knobs_of, memory_knobs_of, read, written
from autoplan.validate.samples import FAILED, RAN, lowered, memory_sample, time_sample
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


def predicted(sample, turns):
    """Of a sample with knobs turned."""
    return sample.predict(*adjusted(sample.case, turns), {})


def layout_of(sample):
    return sample.case.record.id[:6]


def test_two_short_programs_stand_for_a_long_step():
    """Exact without a pipeline; with one, within a per cent. Memory is exact."""
    for given in runs():
        sample = time_sample(lowered(given), 1.0)
        seconds = predicted(sample, {})
        close = 1e-9 if given.parallel["pp"] == 1 else 1e-2
        whole = predict(given)
        assert seconds == pytest.approx(whole.step_time, rel=close)
        assert predicted(memory_sample(lowered(given)), {}) == max(whole.peaks)


def test_the_constants_that_made_the_times_are_found_again():
    """The fit recovers what the runs can tell, and leaves alone what they cannot."""
    truth = {"host_layer_forward_s": log(3.0), "pointwise_factor": log(1.5)}
    samples = []
    for given in runs():
        sample = time_sample(lowered(given), 1.0)
        turns = {knob: truth.get(knob.path, 0.0) for knob in knobs_of([sample.case])}
        samples.append(replace(sample, measured=predicted(sample, turns)))
    fitter = Fitter(samples, knobs_of([s.case for s in samples]), ["here"] * len(samples))
    found = fit(fitter, list(map(layout_of, samples)), iterations=2)
    assert np.abs(found.after).max() < np.abs(found.before).max() / 4
    table = {knob.path: index for index, knob in enumerate(found.knobs)}
    for path, x in truth.items():
        if found.identified(table[path]):
            assert found.x[table[path]] == pytest.approx(x, abs=0.15)
    assert any(found.identified(table[path]) for path in truth)
    assert not all(found.identified(index) for index in table.values())
    assert np.abs(found.left_out).max() < 0.1


def test_the_constants_that_made_the_peaks_are_found_again():
    """Bytes are nearly affine in their constants: what is identified is found within its spread."""
    truth = {"saved_factor": 1.0, "framework_bytes": -0.9}
    samples = []
    for given in runs():
        sample = memory_sample(lowered(given))
        knobs = memory_knobs_of([sample.case], ())
        turns = {knob: truth.get(knob.path, 0.0) for knob in knobs}
        samples.append(replace(sample, measured=predicted(sample, turns)))
    fitter = Fitter(samples, knobs, ["here"] * len(samples))
    found = fit(fitter, list(map(layout_of, samples)))
    assert np.abs(found.after).max() < 0.02 < np.abs(found.before).max()
    for index, knob in enumerate(found.knobs):
        if found.identified(index):
            off = found.x[index] - truth.get(knob.path, 0.0)
            assert abs(off) < max(2 * found.sigmas[index], 0.1), knob.path


def test_runs_that_failed_and_runs_that_did_not_bound_what_is_kept():
    """With a limit between two layouts, the fit puts one on either side of it."""
    samples = [memory_sample(lowered(given)) for given in runs()]
    peaks = [predicted(sample, {}) for sample in samples]
    limit = 1.2 * sorted(peaks)[len(peaks) // 2]
    order = np.argsort(peaks)
    half = len(peaks) // 2
    samples = [
        replace(sample, measured=limit, known=RAN if index in order[:half] else FAILED)
        for index, sample in enumerate(samples)
    ]
    knobs = memory_knobs_of([sample.case for sample in samples], ())
    found = fit(Fitter(samples, knobs, ["here"] * len(samples)), list(map(layout_of, samples)))

    known = np.array([sample.known for sample in samples])
    assert (known * found.before).max() > 0.1
    assert (known * found.after).max() < HINGE


def test_a_fold_does_not_know_what_it_leaves_out():
    """Changing the measurements of a group does not change what is predicted for it."""
    samples = [memory_sample(lowered(given)) for given in runs()]
    samples = [replace(s, measured=1.1 * predicted(s, {})) for s in samples]
    knobs = memory_knobs_of([sample.case for sample in samples], ())
    groups = list(map(layout_of, samples))
    strange = [
        replace(s, measured=s.measured * (1 + (g == groups[0])))
        for s, g in zip(samples, groups, strict=True)
    ]
    predictions = []
    for some in (samples, strange):
        fitter = Fitter(some, knobs, ["here"] * len(some))
        with asking(fitter, 1) as asked:
            done = solve(fitter, asked[1], 3, lambda text: None)
            ratios, turned = refit(fitter, done, groups, asked, lambda text: None)
        predictions.append(ratios[0] + log(some[0].measured))
        assert set(turned) == set(groups)
    assert predictions[0] == pytest.approx(predictions[1], abs=0.02)


def test_a_knob_reads_and_writes_one_number():
    case = express(record())
    for knob in (*knobs_of([case]), *memory_knobs_of([case], ())):
        profile = getattr(case, knob.owner)
        value = read(profile, knob.path) or 0.0
        changed = written(profile, knob.path, 1.25 * value + 1)
        assert read(changed, knob.path) == pytest.approx(1.25 * value + 1)
        assert written(changed, knob.path, 0.8) != changed
        assert knob.turned(value, 0.0) == value
        low, high = knob.bounds(value)
        assert low <= 0 <= high
        assert knob.turned(value, 0.1) >= value
    assert read(case.stack, "nothing") is None


def test_an_assumed_number_is_believed_no_closer_than_it_says():
    """Not so one that was fitted, nor where nobody asks for it."""
    case = express(record(stack="megatron"))
    path = "device.gemm_efficiency"

    def spread(kind: str, stated: bool) -> float:
        origin = Evidence(kind, "somewhere", 3.0)
        hardware = replace(case.hardware, evidence={**case.hardware.evidence, path: origin})
        knobs = knobs_of([replace(case, hardware=hardware)], stated=stated)
        return next(knob.spread for knob in knobs if knob.path == path)

    usual = spread("fitted", stated=True)
    assert spread("assumed", stated=True) == 3.0 > usual
    assert spread("assumed", stated=False) == usual


def test_few_runs_leave_at_least_what_all_runs_leave_unexplained():
    left = np.array([0.01] * 10 + [0.3] * 10 + [0.02])
    found = unexplained(["good"] * 10 + ["bad"] * 10 + ["new"], left)
    assert found["good"] == pytest.approx(exp(0.01))
    assert log(found["new"]) == pytest.approx(float(np.quantile(left, 0.8)))
    assert max(found.values()) < inf


def test_a_record_without_a_plan_is_no_sample():
    with pytest.raises(AutoplanError):
        lowered(record(measured=Measured(step_time_s=1.0), schedule="zb-2p"))


def test_a_peak_is_compared_as_its_source_counts_it():
    """PyTorch's counters know neither of the context nor, when allocated, of what is rounded."""
    peaks = {
        source: predicted(memory_sample(lowered(record(id=f"{source}-1", stack="megatron"))), {})
        for source in ("alpa", "torchtitan", "here")
    }
    framework = express(record(stack="megatron")).stack.constants["framework_bytes"]
    assert peaks["here"] - peaks["torchtitan"] == framework
    assert 0 < peaks["alpa"] < peaks["torchtitan"]
    assert framework <= 2 * GIB
