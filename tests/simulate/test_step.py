"""A Timeline adds up, whatever the machine."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from autoplan.cost import Pricer, estimated_lines
from autoplan.files.machine_spec import load_hardware
from autoplan.files.stack import load_stack
from autoplan.ir.timeline import COUNTED_LINES, MEMORY_LINES
from autoplan.simulate import account, memory_parts, simulate, simulate_priced
from tests.plans import SAMPLE, make_program

STACK = load_stack("autoplan")


@pytest.mark.parametrize("machine", ["a100-80g:8", "cpu-host:4"])
@pytest.mark.parametrize("name", ["gathered heads", "four stages", "gpt, two stages"])
def test_breakdowns_add_up_to_the_step_and_lines_to_the_account(name, machine):
    program = make_program(*SAMPLE[name])
    hardware = load_hardware(machine)
    timeline = simulate(program, hardware, STACK, spans=True)
    for kinds in (timeline.breakdown, *timeline.stage_breakdown):
        assert sum(kinds.values()) == pytest.approx(timeline.step_time, rel=1e-9)
        assert all(seconds >= 0 for seconds in kinds.values())
    for stage, lines in zip(program.stages, timeline.peak_memory, strict=True):
        assert tuple(lines) == MEMORY_LINES
        assert sum(lines[line] for line in COUNTED_LINES) == account(stage).peak
    assert timeline.spans
    assert all(timeline.peak_at)
    assert simulate_priced(program, Pricer(hardware, STACK)).step_time == timeline.step_time


@pytest.mark.parametrize("name", SAMPLE)
def test_parts_give_the_account_under_any_constants(name):
    """They are what of the account does not depend on the stack but for its habits."""
    program = make_program(*SAMPLE[name])
    hardware = load_hardware("a100-80g:8")
    for stack in (STACK, load_stack("nanotron")):
        parts = memory_parts(program, Pricer(hardware, replace(STACK, habits=stack.habits)))
        peaks = simulate(program, hardware, stack).peak_memory
        for (counted, beside), lines in zip(parts, peaks, strict=True):
            assert {**counted, **estimated_lines(counted, beside, stack)} == lines


def test_nothing_is_gathered_without_other_ranks():
    for name, machine in (("batch", "a100-80g:8"), ("one device", "a100-80g:1")):
        program = make_program(*SAMPLE[name])
        ((_, beside),) = memory_parts(program, Pricer(load_hardware(machine), STACK))
        assert beside.gathered == 0


@pytest.mark.parametrize("name", ["one device", "batch", "sharded", "two stages"])
def test_gradients_in_buffers_are_there_whole_and_throughout(name):
    """Whatever the number of micro-batches: also of one, which adds nothing up."""
    config, choices = SAMPLE[name]
    pricer = Pricer(load_hardware("a100-80g:8"), replace(STACK, habits=("gradient_buffers",)))
    for micro_batches in (1, 2, 4):
        program = make_program(config, replace(choices, micro_batches=micro_batches, batch=8))
        for stage, (counted, beside) in zip(
            program.stages, memory_parts(program, pricer), strict=True
        ):
            stored = [s for s in stage.resident if s.source[0] == "parameter"]
            whole = sum(prod(spec.register.shape) for spec in stored)  # in fp32, every one
            assert beside.unadded == sum(spec.register.nbytes for spec in stored)
            assert beside.held["gradients"] >= 4 * whole
            assert sum(beside.held.values()) >= sum(counted.values()) == account(stage).peak
            others = {line: n for line, n in beside.held.items() if line != "gradients"}
            assert sum(others.values()) >= sum(counted.values()) - counted["gradients"]


def test_frozen_parameters_have_no_gradients_that_wait():
    """Of two plans that differ in what is trained, one adds up less."""
    config, choices = SAMPLE["batch"]
    pricer = Pricer(load_hardware("a100-80g:8"), STACK)
    some, every = (
        memory_parts(make_program(config, replace(choices, trainable=trainable)), pricer)
        for trainable in (r"layers\.1\.w_", "full")
    )
    assert 0 < some[0][1].unadded < every[0][1].unadded
