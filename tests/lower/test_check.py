"""Check accepts what lowering makes, and rejects every Program with one thing wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from autoplan.errors import CheckError
from autoplan.ir.program import Action, Instr, Program, Register, Segment, Slot, StageProgram
from autoplan.lower.check import check
from autoplan.lower.check_segment import check_segment
from tests.plans import SAMPLE, TINY_LLAMA, Choices, make_program

PROGRAMS = {name: make_program(*case) for name, case in SAMPLE.items()}


@pytest.mark.parametrize("name", SAMPLE)
def test_accepts_what_lowering_makes(name):
    check(PROGRAMS[name])


def survivors(
    mutants: Iterator[tuple[str, object]], examine: Callable[[object], None]
) -> tuple[int, list[str]]:
    """How many mutants there are, and which of them pass."""
    count, passed = 0, []
    for what, mutant in mutants:
        count += 1
        try:
            examine(mutant)
        except CheckError:
            continue
        passed.append(what)
    return count, passed


# --- segments -----------------------------------------------------------------------------------


def with_code(segment: Segment, code: Sequence[Instr]) -> Segment:
    """Other code, its frees computed anew, so that only values can tell what is wrong."""
    kept = {f.register for f in segment.formals if f.intent in ("in", "out")}
    kept |= {f.returns for f in segment.formals if f.intent == "acc"}
    last: dict[int, int] = {}
    for index, instr in enumerate(code):
        last.update(dict.fromkeys((*instr.outs, *instr.ins), index))
    return replace(
        segment,
        code=tuple(
            replace(instr, frees=tuple(r for r, at in last.items() if at == i and r not in kept))
            for i, instr in enumerate(code)
        ),
    )


def dropped_instructions(segment: Segment) -> Iterator[tuple[str, Segment]]:
    for index, instr in enumerate(segment.code):
        code = segment.code[:index] + segment.code[index + 1 :]
        yield f"{segment.key} without {index} {instr.op}", with_code(segment, code)


def swapped_instructions(segment: Segment) -> Iterator[tuple[str, Segment]]:
    """Neighbours of which one reads, or takes the buffer of, what the other defines or reads."""
    for index, (one, two) in enumerate(zip(segment.code, segment.code[1:], strict=False)):
        takes = {*one.ins, *one.outs}.intersection(two.alias) - {-1}
        if takes or set(one.outs).intersection(two.ins):
            code = [*segment.code]
            code[index : index + 2] = [two, one]
            yield f"{segment.key} {index} {two.op} before {one.op}", with_code(segment, code)


def segments(program: Program) -> Iterator[tuple[StageProgram, Segment]]:
    for stage in program.stages:
        for segment in stage.segments.values():
            yield stage, segment


@pytest.mark.parametrize("mutate", [dropped_instructions, swapped_instructions])
def test_rejects_segments_with_an_instruction_dropped_or_two_swapped(mutate, capsys):
    total = 0
    for name, program in PROGRAMS.items():
        groups = {group: len(parts[0]) for group, parts in program.groups.items()}
        for stage, segment in segments(program):
            examine = partial(check_segment, sizes=stage.mesh.sizes, groups=groups)
            count, passed = survivors(mutate(segment), examine)
            assert passed == [], name
            total += count
    with capsys.disabled():
        print(f"\n{mutate.__name__}: {total} of {total} rejected")
    assert total > 1000


def test_rejects_wrong_frees():
    """Too late, too early, twice."""
    program = PROGRAMS["heads"]
    for stage, segment in segments(program):
        for index, instr in enumerate(segment.code):
            for register in instr.frees:
                for move in (None, -1, 1, 0):
                    code = [*segment.code]
                    fewer = tuple(r for r in instr.frees if r != register)
                    code[index] = replace(instr, frees=fewer)
                    if move is not None:
                        other = index + move
                        if not 0 <= other < len(code):
                            continue
                        extra = (register, register) if move == 0 else (register,)
                        code[other] = replace(code[other], frees=code[other].frees + extra)
                    with pytest.raises(CheckError, match="frees"):
                        check_segment(
                            replace(segment, code=tuple(code)), stage.mesh.sizes, {"world": 2}
                        )


def test_rejects_collectives_whose_types_do_not_fit():
    programs = (PROGRAMS["gathered heads"], PROGRAMS["sharded"])
    tried: Counter[str] = Counter()
    for stage, segment in (pair for program in programs for pair in segments(program)):
        groups = {"world": stage.mesh.size}
        for instr in segment.code:
            if instr.op not in ("all_gather", "reduce_scatter", "all_reduce", "slice"):
                continue
            tried[instr.op] += 1
            register = instr.outs[-1]
            typed = segment.registers[register]
            for wrong in (
                typed._replace(dtype="fp64"),
                typed._replace(
                    shape=(*typed.shape[:-1], 3 * typed.shape[-1]) if typed.shape else (3,)
                ),
            ):
                registers = (
                    *segment.registers[:register],
                    wrong,
                    *segment.registers[register + 1 :],
                )
                with pytest.raises(CheckError, match=f"{instr.op}|in the buffer of"):
                    check_segment(replace(segment, registers=registers), stage.mesh.sizes, groups)
    assert len(tried) == 4


# --- actions ------------------------------------------------------------------------------------


def with_actions(program: Program, stage: StageProgram, actions: Sequence[Action]) -> Program:
    stages = [*program.stages]
    stages[stage.stage] = replace(stage, actions=tuple(actions))
    return replace(program, stages=tuple(stages))


def touched(stage: StageProgram, action: Action) -> tuple[set[Slot], set[Slot]]:
    """(slots it only reads, slots it defines, adds to or ends)."""
    if not action.segment:
        slots = {(name, action.instance, action.micro_batch) for name in action.slots}
        return (slots, set()) if action.kind == "SEND" else (set(), slots)
    sides: tuple[set[Slot], set[Slot]] = (set(), set())
    for formal in stage.segments[action.segment].formals:
        sides[formal.intent != "in"].add(formal.slot(action.instance, action.micro_batch))
    return sides


def dropped_actions(program: Program) -> Iterator[tuple[str, Program]]:
    for stage in program.stages:
        for index, action in enumerate(stage.actions):
            actions = stage.actions[:index] + stage.actions[index + 1 :]
            yield f"{stage.stage} without {action}", with_actions(program, stage, actions)


def swapped_actions(program: Program) -> Iterator[tuple[str, Program]]:
    """Neighbours that touch one slot, at least one of them not only reading it."""
    for stage in program.stages:
        for index, (one, two) in enumerate(zip(stage.actions, stage.actions[1:], strict=False)):
            (reads, writes), (reads_too, writes_too) = touched(stage, one), touched(stage, two)
            if writes & (reads_too | writes_too) or reads & writes_too:
                actions = [*stage.actions]
                actions[index : index + 2] = [two, one]
                yield f"{stage.stage} {two} before {one}", with_actions(program, stage, actions)


def repeated_actions(program: Program) -> Iterator[tuple[str, Program]]:
    for stage in program.stages:
        for index, action in enumerate(stage.actions):
            actions = [*stage.actions[:index], action, *stage.actions[index:]]
            yield f"{stage.stage} twice {action}", with_actions(program, stage, actions)


def unmatched_transfers(program: Program) -> Iterator[tuple[str, Program]]:
    """SEND and its WAIT, or RECV, under another identity."""
    for stage in program.stages:
        for action in stage.actions:
            if action.kind not in ("SEND", "RECV"):
                continue
            for change in (
                {"micro_batch": action.micro_batch + 1}, {"instance": action.instance + 1},
                {"peer": action.peer + 1}, {"slots": ("y",)},
            ):  # fmt: skip
                wait = action._replace(kind="WAIT")
                actions = [
                    other._replace(**change) if other in (action, wait) else other
                    for other in stage.actions
                ]
                yield f"{stage.stage} {action} {change}", with_actions(program, stage, actions)


ALL = tuple(SAMPLE)
FEW = ("gathered heads", "two stages", "four stages", "gpt, two stages")


@pytest.mark.parametrize(
    ("mutate", "names"),
    [
        (dropped_actions, ALL), (swapped_actions, ALL),
        (repeated_actions, FEW), (unmatched_transfers, FEW),
    ],
)  # fmt: skip
def test_rejects_action_lists_with_one_action_wrong(mutate, names, capsys):
    total = 0
    for name in names:
        count, passed = survivors(mutate(PROGRAMS[name]), check)
        assert passed == [], name
        total += count
    with capsys.disabled():
        print(f"\n{mutate.__name__}: {total} of {total} rejected")
    assert total > 100


def test_names_the_action_and_both_sides():
    program = PROGRAMS["two stages"]
    stage = program.stages[1]
    actions = [a for a in stage.actions if a.kind != "WAIT"]
    with pytest.raises(CheckError, match=r"stage 1, action \d+, .* waits for SEND d\.x i2 m0"):
        check(with_actions(program, stage, actions))
    receive = next(a for a in stage.actions if a.kind == "RECV")
    rest = [a for a in stage.actions if a != receive]
    at = rest.index(next(a for a in rest if a.kind == "F" and a.micro_batch == receive.micro_batch))
    with pytest.raises(CheckError, match="action .* uses x i2 m0, which holds nothing"):
        check(with_actions(program, stage, [*rest[: at + 2], receive, *rest[at + 2 :]]))


# --- all stages together ------------------------------------------------------------------------


def test_rejects_stages_that_wait_for_each_other():
    """A stage that takes a gradient before it has sent the activation that leads to it."""
    program = PROGRAMS["two stages"]
    stage = program.stages[0]
    actions = [*stage.actions]
    send = next(a for a in actions if a.kind == "SEND")
    receive = next(a for a in actions if a.kind == "RECV")
    actions.remove(receive)
    actions.insert(actions.index(send), receive)
    with pytest.raises(CheckError, match="wait for each other") as error:
        check(with_actions(program, stage, actions))
    assert "stage 0, action" in str(error.value)
    assert "stage 1, action" in str(error.value)


def test_rejects_groups_that_stages_use_differently():
    program = PROGRAMS["gpt, two stages"]
    stage = program.stages[1]
    tied = next(key for key in stage.segments if "FINAL.tied" in key)
    segment = stage.segments[tied]
    first = segment.code[0]
    code = (replace(first, attrs=(("axes", "world"), ("reduction", "sum"))), *segment.code[1:])
    changed = replace(stage, segments={**stage.segments, tied: replace(segment, code=code)})
    with pytest.raises(CheckError, match="group"):
        check(replace(program, stages=(program.stages[0], changed)))


def test_rejects_transfers_of_another_type():
    program = PROGRAMS["two stages"]
    stage = program.stages[0]
    spec = stage.channels["d.x"]
    wider = replace(spec, register=Register("x", (9,), "fp32", "activations"))
    changed = replace(stage, channels={"d.x": wider})
    with pytest.raises(CheckError, match="wants d.x"):
        check(replace(program, stages=(changed, program.stages[1])))


def test_accepts_many_micro_batches():
    check(make_program(TINY_LLAMA, Choices((), 2, 256, batch=256)))
