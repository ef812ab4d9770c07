"""What is predicted for runs that are left out does not know them."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from autoplan.files.stack import load_stack
from autoplan.ir.machine import NEUTRAL
from autoplan.validate.folds import WAYS, described, left_out, starts, typical_constants
from autoplan.validate.knobs import SECONDS, knobs_of, memory_knobs_of
from autoplan.validate.samples import lowered, memory_sample, time_sample
from autoplan.validate.standing import source_of
from tests.validate.records import record

STACKS = ("megatron", "nanotron", "torchtitan")


def samples():
    """Two runs of each of three sources, every one with a stack of its own; predicted rightly."""
    return [
        replace(run, measured=run.predict(run.case.hardware, run.case.stack, {}))
        for source, stack in zip("abc", STACKS, strict=True)
        for number, layout in enumerate(({"tp": 1, "pp": 1, "dp": 8}, {"tp": 2, "pp": 1, "dp": 4}))
        for run in [
            time_sample(
                lowered(
                    record(
                        id=f"{source}-{number}", name=f"m{number}", parallel=layout, stack=stack,
                        global_batch=16, micro_batch=1,
                    )
                ),
                1.0,
            )
        ]
    ]  # fmt: skip


def predictions(runs):
    sources = [source_of(run.case.record) for run in runs]
    found = left_out(runs, knobs_of([run.case for run in runs]), sources, iterations=3)
    seconds = {run.case.record.id: run.measured for run in runs}
    return {(one.way, one.id): one.ratio + log(seconds[one.id]) for one in found}


def test_every_run_is_predicted_in_every_way_and_unseen():
    runs = samples()
    plain = predictions(runs)
    assert set(plain) == {(way, run.case.record.id) for way in WAYS for run in runs}
    first = runs[0].case.record.id
    strange = predictions([replace(runs[0], measured=1.2 * runs[0].measured), *runs[1:]])
    for way in WAYS:
        assert strange[way, first] == pytest.approx(plain[way, first], abs=0.02)


def test_a_described_stack_keeps_decisions_and_loses_constants():
    runs = samples()
    sources = [source_of(run.case.record) for run in runs]
    generic = load_stack("generic")
    for name in STACKS:
        stack = load_stack(name)
        known = described(stack, typical_constants(runs, sources, "none"))
        assert (known.habits, known.defaults) == (stack.habits, stack.defaults)
        assert known.unexplained == generic.unexplained
        for path in SECONDS:
            own, general = stack.constants.get(path), generic.constants.get(path)
            if own == NEUTRAL.get(path):
                assert known.constants.get(path) == own
            elif general != NEUTRAL.get(path):
                assert known.constants[path] == general


def test_folds_start_from_software_in_general():
    runs = samples()
    knobs = knobs_of([run.case for run in runs])
    generic = load_stack("generic").constants["pointwise_factor"]
    found = dict(zip(map(str, knobs), starts(knobs, runs), strict=True))
    own = load_stack("nanotron").constants["pointwise_factor"]
    assert found["stack nanotron: pointwise_factor"] == pytest.approx(log(generic / own))
    assert all(x == 0 for name, x in found.items() if name.startswith("hardware"))


def test_what_decides_bytes_starts_from_software_in_general_where_it_was_fitted():
    """Then a fit to the same runs gives the same numbers; what is assumed came from elsewhere."""
    runs = [memory_sample(lowered(record(stack="nanotron"))) for _ in range(2)]
    knobs = memory_knobs_of([run.case for run in runs])
    own, generic = load_stack("nanotron"), load_stack("generic")
    found = dict(zip(knobs, starts(knobs, runs), strict=True))
    assert any(found.values())
    for knob, x in found.items():
        fitted = own.evidence[knob.path].kind == "fitted"
        wanted = (generic if fitted else own).constants[knob.path]
        assert knob.turned(own.constants[knob.path], x) == pytest.approx(wanted)
