"""A Timeline adds up, whatever the machine."""

from __future__ import annotations

from dataclasses import replace

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
    """They are what of the account does not depend on the stack."""
    program = make_program(*SAMPLE[name])
    hardware = load_hardware("a100-80g:8")
    parts = memory_parts(program, Pricer(hardware, STACK))
    other = load_stack("nanotron")
    for stack in (STACK, other):
        peaks = simulate(program, hardware, stack).peak_memory
        for (counted, beside), lines in zip(parts, peaks, strict=True):
            assert {**counted, **estimated_lines(counted, beside, stack)} == lines


def test_what_is_exchanged_and_gathered_is_counted():
    """Replicas exchange their gradients whole; without other ranks there is nothing to gather."""
    replicas = memory_parts(
        make_program(*SAMPLE["batch"]), Pricer(load_hardware("a100-80g:8"), STACK)
    )
    alone = memory_parts(
        make_program(*SAMPLE["one device"]), Pricer(load_hardware("a100-80g:1"), STACK)
    )
    ((counted, beside),) = replicas
    assert beside.exchanged == pytest.approx(counted["gradients"], rel=0.01)
    assert beside.gathered == 0
    assert alone[0][1].exchanged == alone[0][1].gathered == 0


@pytest.mark.parametrize("name", ["batch", "sharded", "gathered"])
def test_what_is_exchanged_at_a_time_does_not_grow_with_micro_batches(name):
    """Also where every micro-batch exchanges its gradients."""
    config, choices = SAMPLE[name]
    pricer = Pricer(load_hardware("a100-80g:8"), STACK)
    few, many = (
        memory_parts(make_program(config, replace(choices, micro_batches=count)), pricer)
        for count in (2, 4)
    )
    assert few[0][1].exchanged == many[0][1].exchanged > 0
