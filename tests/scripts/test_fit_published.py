"""Bundled profiles can be made again from the runs that they were fitted to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fit_published import fit_bytes, shared

from autoplan.validate.knobs import adjusted, memory_knobs_of
from autoplan.validate.samples import lowered, memory_sample
from tests.validate.records import record


def peaks(stack, times=1.0):
    """Runs of one stack, whose activations are so many times what its profile says."""
    samples = []
    for micro in (1, 2, 4, 8):
        for parallel in ({"tp": 1, "pp": 1, "dp": 8}, {"tp": 4, "pp": 1, "dp": 2}):
            given = record(
                id=f"{stack}-{micro}", stack=stack, parallel=parallel, micro_batch=micro,
                global_batch=64, seq_len=8192,
            )  # fmt: skip
            sample = memory_sample(lowered(given))
            turns = {
                knob: (times - 1) * sample.case.stack.constants[knob.path] / knob.unit
                for knob in memory_knobs_of([sample.case])
                if knob.path == "saved_factor"
            }
            peak = sample.predict(*adjusted(sample.case, turns), {})
            samples.append(replace(sample, measured=peak))
    return samples


def numbers(found, samples):
    """Knob -> its number after a fit."""
    constants = {
        k: s.case.stack.constants for s in samples for k in found.knobs if k.concerns(s.case)
    }
    return {
        str(knob): found.number(index, constants[knob][knob.path])[0]
        for index, knob in enumerate(found.knobs)
    }


def test_a_fit_to_the_same_peaks_gives_the_same_numbers_wherever_it_starts():
    runs = peaks("nanotron", 1.3)
    found = fit_bytes(runs, ["nanotron"] * len(runs))
    wanted = numbers(found, runs)
    assert wanted
    moved = [
        replace(s, case=replace(s.case, stack=adjusted(s.case, dict.fromkeys(found.knobs, 0.3))[1]))
        for s in runs
    ]
    again = fit_bytes(moved, ["nanotron"] * len(runs))
    assert numbers(again, moved) == pytest.approx(wanted, rel=0.02)


def test_sources_that_share_no_constant_are_fitted_apart():
    """Whatever the others' runs, a stack's constants are the same; without knobs none is fitted."""
    mine, others = peaks("nanotron", 1.2), peaks("aleph-alpha-scaling", 1.4)
    untouched = peaks("generic")
    runs = [*mine, *others, *untouched]
    sources = ["a"] * len(mine) + ["b"] * len(others) + ["c"] * len(untouched)
    assert shared(runs, sources, memory_knobs_of([s.case for s in runs])) == [{"b"}, {"a"}]
    together = numbers(fit_bytes(runs, sources), runs)
    for part, source in ((mine, "a"), (others, "b")):
        alone = numbers(fit_bytes(part, [source] * len(part)), part)
        assert {name: together[name] for name in alone} == pytest.approx(alone, rel=1e-6)
