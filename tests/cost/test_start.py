"""Waiting for cores: the less, the less a rank has computed since it last waited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import pytest

from autoplan.cost import Pricer
from autoplan.cost.pricer import start_share
from autoplan.files.machine_spec import load_hardware
from autoplan.files.stack import load_stack
from autoplan.ir.program import COLLECTIVES, Program
from tests.plans import TINY_LLAMA, Choices, make_program

STACK = load_stack("autoplan")
START = 2e-3
RAMP = 1e-3


def pricer(ramp: float, start: float = START) -> Pricer:
    """Prices on cores of a host whose levels have such a start."""
    hardware = load_hardware("cpu-host:4")
    levels = tuple(replace(level, start=start) for level in hardware.levels)
    host = replace(hardware.host, start_ramp=ramp)
    return Pricer(replace(hardware, levels=levels, host=host), STACK)


@pytest.fixture(scope="module")
def program() -> Program:
    return make_program(TINY_LLAMA, Choices(axes=("gathered", "heads"), micro_batches=2))


def calls(program: Program, prices: Pricer) -> Iterator[tuple[float, float, bool]]:
    """(seconds computed since the last collective, seconds, first of its segment) of each."""
    for stage in program.stages:
        for segment in stage.segments.values():
            table = prices.instruction_seconds(segment, stage.mesh, program.groups).tolist()
            computed, first = 0.0, True
            for instr, seconds in zip(segment.code, table, strict=True):
                if instr.op in COLLECTIVES:
                    yield computed, seconds, first
                    computed, first = 0.0, False
                else:
                    computed += seconds


def test_the_share_grows_with_what_was_computed() -> None:
    shares = [start_share(seconds, RAMP) for seconds in (0.0, 1e-6, 1e-4, RAMP, 1e-2, 1.0, inf)]
    assert shares == sorted(set(shares))
    assert (shares[0], shares[3], shares[-1]) == (0, 0.5, 1)


def test_a_collective_waits_as_long_as_what_was_computed_says(program: Program) -> None:
    """An all-reduce among more than two ranks passes twice, and starts as often."""
    with_start, without = (list(calls(program, pricer(RAMP, start))) for start in (START, 0.0))
    waited = set()
    for (computed, seconds, first), (_, bare, _) in zip(with_start, without, strict=True):
        share = 1.0 if first else start_share(computed, RAMP)
        passes = (seconds - bare) / START
        if share:
            passes /= share
            assert min(abs(passes - 1), abs(passes - 2)) < 1e-9
        else:
            assert passes == pytest.approx(0, abs=1e-12)
        waited.add(share)
    assert {0.0, 1.0} < waited
    assert len(waited) > 3


def test_without_a_ramp_every_collective_starts_as_the_first(program: Program) -> None:
    always, ramped = (list(calls(program, pricer(ramp))) for ramp in (0.0, RAMP))
    for (_, most, first), (_, seconds, _) in zip(always, ramped, strict=True):
        assert seconds <= most * (1 + 1e-12)
        assert not first or seconds == pytest.approx(most)
