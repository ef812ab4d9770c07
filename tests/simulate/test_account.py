"""The account made from a Program equals the one that the interpreter makes from real tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.ir.layout import Mesh
from autoplan.ir.program import Action, Instr, Program, SlotSpec, StageProgram
from autoplan.lower import lower
from autoplan.pipeline import in_flight
from autoplan.runtime.data import Shape, SyntheticBatches
from autoplan.runtime.execute import execute
from autoplan.runtime.progress import describe_place
from autoplan.runtime.session import Settings
from autoplan.simulate import account
from tests.plans import SAMPLE, SEQ_LEN, TINY_LLAMA, Choices, make_graph, make_plan, make_program
from tests.runtime.tiny import of, reg, segment

NBYTES = 4 * 100


@pytest.mark.parametrize("name", SAMPLE)
def test_peak_and_place_equal_those_of_every_rank(name):
    config, choices = SAMPLE[name]
    graph = make_graph(config, choices)
    program = lower(graph, make_plan(graph, config, choices))
    batches = SyntheticBatches(Shape(choices.batch, SEQ_LEN, config.vocab), 0)
    result = execute(program, graph, Settings(1, 0, batches, record=False))
    for stage in program.stages:
        counted = account(stage)
        assert sum(counted.lines.values()) == counted.peak
        for rank in stage.mesh.devices():
            step = result.ranks[rank].steps[0]
            place = describe_place(program, rank, counted.action, counted.instruction)
            assert (counted.peak, place) == (step.peak, step.peak_at)


def stage(parts, actions, resident=()):
    table = {part.key: part for part in parts}
    fed = {"f": SlotSpec(("f", -1, -1), reg(100), (), (), ("feed", "f"))}
    specs = tuple(SlotSpec((name, -1, -1), reg(100), (), (), ("count",)) for name in resident)
    return StageProgram(0, Mesh(()), table, tuple(actions), specs, fed, {}, {})


def test_a_chain_by_hand():
    code = [
        Instr("scale", (0,), (1,), (), (-1,)),
        Instr("scale", (1,), (2,), (), (-1,)),  # x0, t and u
        Instr("accumulate", (2, 0), (3,), (), (2,)),  # in place
    ]
    part = segment("S", [of("x0", 0), of("y", 3, "out")], [reg(100)] * 4, code)
    counted = account(stage([part], [Action("F", "S")], ["x0"]))
    assert (counted.peak, counted.action, counted.instruction) == (3 * NBYTES, 0, 1)
    assert counted.lines["activations"] == 3 * NBYTES


def test_a_moved_slot_ends_with_its_last_reader_and_a_lent_one_does_not():
    code = [Instr("scale", (0,), (1,), (), (-1,)), Instr("scale", (1,), (2,), (), (-1,))]
    for intent, peak in (("move", 2), ("in", 3)):
        part = segment("B", [of("f", 0, intent), of("y", 2, "out")], [reg(100)] * 3, code)
        counted = account(stage([part], [Action("FEED", slots=("f",)), Action("B", "B")]))
        assert counted.peak == peak * NBYTES


def test_an_accumulator_that_is_not_updated_in_place_counts_twice():
    for alias, peak in ((0, 1), (-1, 2)):
        code = [Instr("scale", (0,), (1,), (), (alias,))]
        part = segment("B", [of("a", 0, "acc", 1)], [reg(100)] * 2, code)
        assert account(stage([part], [Action("B", "B")] * 3, ["a"])).peak == peak * NBYTES


def test_feeds_live_until_they_are_freed():
    feed, free = Action("FEED", slots=("f",)), Action("FREE", slots=("f",))
    counted = account(stage([], [feed, free, feed], ["x"]))
    assert (counted.peak, counted.action, counted.instruction) == (2 * NBYTES, 0, -1)


def test_a_stage_without_actions_holds_what_is_resident():
    counted = account(stage([], [], ["x"]))
    assert (counted.peak, counted.action) == (NBYTES, -1)


def pipeline(family: str, stages: int, micro_batches: int) -> Program:
    choices = Choices((), stages, micro_batches, family, batch=2 * micro_batches)
    return make_program(TINY_LLAMA, choices)


def test_one_forward_one_backward_holds_as_many_micro_batches_as_stages_follow():
    few = [account(s) for s in pipeline("1f1b", 2, 2).stages]
    for micro_batches in (3, 8):
        many = [account(s) for s in pipeline("1f1b", 2, micro_batches).stages]
        assert [a.lines["activations"] for a in many] == [a.lines["activations"] for a in few]
        assert [a.in_flight for a in many] == [2, 1]


def test_chunks_hold_as_many_more_activations_as_published():
    """Narayanan et al. 2021, section 2.2.2: 1 + (p - 1) / (p v) times those of 1F1B."""
    config, kept = replace(TINY_LLAMA, layers=12), {}
    for chunks, family in ((1, "1f1b"), (2, "interleaved"), (3, "interleaved")):
        choices = Choices((), 2, 8, family, batch=8, chunks=chunks)
        stage = make_program(config, choices).stages[0]
        kept[chunks] = account(stage).lines["activations"]
    for chunks in (2, 3):
        assert kept[chunks] / kept[1] == pytest.approx(1 + 1 / (2 * chunks), abs=0.03)


@pytest.mark.parametrize("family", ["gpipe", "1f1b"])
def test_in_flight_is_what_the_schedule_says(family):
    found = [account(s).in_flight for s in pipeline(family, 2, 5).stages]
    assert found == [in_flight(family, stage, 2, 5) for stage in range(2)]
