"""The interpreter: binding of slots, errors, and memory counted from real tensors."""

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import CheckError
from autoplan.ir.layout import Mesh
from autoplan.ir.program import Action, Formal, Instr, SlotSpec
from autoplan.runtime.account import RunningAccount, SweepAccount
from autoplan.runtime.interpreter import Observers
from autoplan.runtime.kernels.place import StepContext
from autoplan.runtime.lockstep import run_lockstep
from autoplan.runtime.progress import ProgressPage
from tests.runtime.tiny import (
    collectives,
    generator,
    interpreter,
    of,
    pipeline,
    program,
    reg,
    segment,
    stage,
)

ONE = Mesh(())
NBYTES = 4 * 100


def single(formals, count, code, *actions):
    part = segment("S", formals, [reg(100)] * count, code)
    return program(stage(ONE, [part], actions or [Action("F", "S")]))


def history(prog, kind, rank=0):
    accounts = {r: kind() for r in prog.ranks}
    run_lockstep({r: generator(prog, r, Observers(account=accounts[r])) for r in prog.ranks})
    return accounts[rank]


DOUBLE = (("factor", 2.0),)


def test_account_of_a_chain_by_hand():
    code = [
        Instr("scale", (0,), (1,), DOUBLE),  # x0 (lent) and t
        Instr("scale", (1,), (2,), DOUBLE),  # t ends after this
        Instr("accumulate", (2, 0), (3,), (), (2,)),  # in place: no new buffer
    ]
    prog = single([of("x0", 0), of("y", 3, "out")], 4, code)
    account = history(prog, RunningAccount)
    assert account.history == [2 * NBYTES, 3 * NBYTES, 2 * NBYTES]
    assert account.peak == 3 * NBYTES
    assert account.peak_at == (0, 1)


def test_moved_slots_end_inside_the_call_and_lent_ones_do_not():
    code = [Instr("scale", (0,), (1,), DOUBLE), Instr("scale", (1,), (2,), DOUBLE)]
    first = segment("A", [of("x0", 0), of("y", 1, "out")], [reg(100)] * 2, code[:1])
    for intent, at_end in (("move", 2), ("in", 3)):
        then = segment("B", [of("y", 0, intent), of("z", 2, "out")], [reg(100)] * 3, code)
        prog = program(stage(ONE, [first, then], [Action("F", "A"), Action("B", "B")]))
        # x0, the two values of the second instruction, and y where it is only lent.
        assert history(prog, RunningAccount).history[-1] == (at_end + 1) * NBYTES


@pytest.mark.parametrize("prog", [collectives("fp32", 8), pipeline()])
def test_running_account_equals_sweep_at_every_instruction(prog):
    for rank in prog.ranks:
        assert (
            history(prog, RunningAccount, rank).history == history(prog, SweepAccount, rank).history
        )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_running_account_equals_sweep_on_random_segments(data):
    """Random chains of fresh and in-place instructions, several calls, slots moved and kept."""
    registers, code, alive = 1, [], [0]
    for _ in range(data.draw(st.integers(1, 12))):
        source = data.draw(st.sampled_from(alive))
        if source and data.draw(st.booleans()):
            code.append(Instr("accumulate", (source, 0), (registers,), (), (source,)))
            alive.remove(source)
        else:
            code.append(Instr("scale", (source,), (registers,), DOUBLE))
        alive.append(registers)
        registers += 1
    outs = data.draw(st.lists(st.sampled_from(alive[1:]), unique=True))
    formals = [of("x0", 0), *(of(f"y{i}", i, "out") for i in outs)]
    actions = [Action("F", "S"), Action("F", "S")]  # the second call overwrites its results
    if outs:
        actions.append(Action("FREE", slots=(f"y{outs[0]}",)))
        actions.append(Action("F", "S"))
    prog = single(formals, registers, code, *actions)
    assert history(prog, RunningAccount).history == history(prog, SweepAccount).history


def test_accumulator_is_returned_to_its_slot():
    code = [Instr("accumulate", (0, 1), (2,), (), (0,))]
    prog = single([of("x0", 0, "acc", 2), of("x1", 1)], 3, code, *[Action("F", "S")] * 3)
    made = interpreter(prog, 0)
    made.define(("x0", -1, -1), torch.zeros(100))
    drained = list(made.step(StepContext(), feed=None))
    assert drained == []  # nothing to communicate
    assert torch.allclose(made.environment["x0", -1, -1], 3 * made.environment["x1", -1, -1])


def test_slot_templates_and_feeds():
    formals = [
        Formal(0, "move", "ids", None, per_micro_batch=True),
        Formal(1, "out", "x", 1, per_micro_batch=True),
    ]
    part = segment("S", formals, [reg(2)] * 2, [Instr("scale", (0,), (1,), DOUBLE)])
    here = stage(
        ONE, [part], [Action("FEED", micro_batch=5, slots=("ids",)), Action("F", "S", 3, 5)]
    )
    spec = SlotSpec(("ids", -1, -1), reg(2), (), ("s",), ("feed", "ids"))
    here = type(here)(0, here.mesh, here.segments, here.actions, (), {"ids": spec}, {}, {})
    made = interpreter(program(here), 0)
    list(
        made.step(StepContext(), lambda fed, m: torch.full((2,), float(m)) if fed is spec else None)
    )
    assert list(made.environment) == [("x", 4, 5)]
    assert made.environment["x", 4, 5].tolist() == [10.0, 10.0]


def test_kernels_learn_instance_and_micro_batch():
    seen = []
    prog = single([of("x0", 0), of("y", 1, "out")], 2, [Instr("scale", (0,), (1,), DOUBLE)],
                  Action("F", "S", 7, 3))  # fmt: skip

    def linker(instr, registers):
        return lambda context, x: (seen.append((context.instance, context.micro_batch)), x)[1]

    list(interpreter(prog, 0, linker=linker).step(StepContext(), feed=None))
    assert seen == [(7, 3)]


@pytest.mark.parametrize(
    "action",
    [Action("F", "S"), Action("FREE", slots=("x1",)), Action("SEND", peer=0, slots=("x1",))],
)
def test_empty_slot_is_named(action):
    prog = single([of("x1", 0, "move"), of("y", 1, "out")], 2,
                  [Instr("scale", (0,), (1,), DOUBLE)], action)  # fmt: skip
    made = interpreter(prog, 0)
    made.environment.clear()
    with pytest.raises(CheckError, match=r"rank 0: .* reads slot x1 .* holds nothing"):
        list(made.step(StepContext(), feed=None))


def test_reduced_gradients_are_recorded_before_step_consumes_them():
    code = [Instr("accumulate", (1, 0), (2,), (), (1,))]
    part = segment("S", [of("g", 0, "move"), of("p", 1, "acc", 2)], [reg(2)] * 3, code)
    here = stage(ONE, [part], [Action("STEP", "S")])
    spec = SlotSpec(("g", -1, -1), reg(2), (), ("m",), ("gradient", "layer.p"))
    here = type(here)(0, here.mesh, here.segments, here.actions, (), {}, {}, {"layer.p": spec})
    taken = {}
    made = interpreter(program(here), 0, Observers(recorder=taken.update))
    made.define(("g", -1, -1), torch.ones(2))
    made.define(("p", -1, -1), torch.ones(2))
    list(made.step(StepContext(), feed=None))
    assert taken["layer.p"].tolist() == [1.0, 1.0]
    assert list(made.environment) == [("p", -1, -1)]


def test_progress_and_spans():
    prog = pipeline()
    pages = {rank: ProgressPage() for rank in prog.ranks}
    made = {rank: interpreter(prog, rank, Observers(progress=page)) for rank, page in pages.items()}
    run_lockstep({rank: m.step(StepContext(step=2), feed=None) for rank, m in made.items()})
    position = pages[0].read()
    assert position.describe(prog, 0) == "step 2: NORM N: all_reduce"
    assert position.communicating
    assert position.started == 6  # scale, send, receive, wait, scale, all_reduce
    names = [(span.stream, span.name) for span in made[2].spans]
    assert ("receive", "RECV y @0") in names
    assert ("collective", "NORM N: all_reduce") in names
    ordered = [span.start for span in made[2].spans if span.stream != "collective"]
    assert ordered == sorted(ordered)
    assert all(span.stage == 2 and span.start <= span.end for span in made[2].spans)


def test_nothing_outlives_its_last_reader():
    """Neither interpreter nor transport keeps a freed tensor alive."""
    import weakref

    refs, alive = [], []

    def watch(context, operands):
        alive.append([ref() is not None for ref in refs])
        result = (operands[0] * 2,)
        refs.append(weakref.ref(result[0]))
        return result

    both = (("axes", "world"), ("reduction", "sum"))
    code = [Instr("scale", (0,), (1,), DOUBLE), Instr("all_reduce", (1,), (2,), both)]
    code += [Instr("scale", (i,), (i + 1,), DOUBLE) for i in range(2, 5)]
    formals = [of("x0", 0), of("y", 5, "out")]
    part = segment("S", formals, [reg(2)] * 6, code)
    prog = program(stage(ONE, [part], [Action("F", "S")]), world=(0,))
    made = interpreter(prog, 0, linker=lambda instr, registers: watch)
    run_lockstep({0: made.step(StepContext(), feed=None)})
    # Before each kernel runs, only its operand and nothing older is alive.
    assert alive == [[], [False], [False, True], [False, False, True]]
    assert len(list(chain(*alive))) == 6
