"""Hand-written Programs of a few instructions, and what runs them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from autoplan.ir.layout import Axis, Mesh
from autoplan.ir.program import (
    Action,
    Formal,
    Instr,
    Program,
    Register,
    Segment,
    SlotSpec,
    StageProgram,
)
from autoplan.runtime import kernels
from autoplan.runtime.interpreter import Interpreter, Linker, Observers
from autoplan.runtime.kernels.place import DTYPES, Kernel, Place, StepContext
from autoplan.runtime.requests import coordinate_of
from autoplan.runtime.worker import Seat

GRID = Mesh((Axis("node", 2, 2), Axis("gpu", 2, 1)))
CROSSED = Mesh((Axis("gpu", 2, 1), Axis("node", 2, 2)))
"""Its mesh order, 0 2 1 3, is not that of the ranks."""
PAIR = Mesh((Axis("gpu", 2, 1),))
LATER_PAIR = Mesh((Axis("gpu", 2, 1),), 2)


def reg(*shape: int, dtype: str = "fp32") -> Register:
    return Register("t", shape, dtype, "activations")


def segment(
    key: str, formals: Sequence[Formal], registers: Sequence[Register], code: Sequence[Instr]
) -> Segment:
    """A segment whose registers end with their last reader, unless they are lent or leave."""
    kept = {f.register for f in formals if f.intent in ("in", "out")}
    kept |= {f.returns for f in formals if f.intent == "acc"}
    last: dict[int, int] = {}
    for index, instr in enumerate(code):
        last.update(dict.fromkeys((*instr.outs, *instr.ins), index))
    done = []
    for index, i in enumerate(code):
        frees = tuple(r for r, at in last.items() if at == index and r not in kept)
        done.append(Instr(i.op, i.ins, i.outs, i.attrs, i.alias, frees))
    return Segment(key, tuple(formals), tuple(registers), tuple(done))


def stage(
    mesh: Mesh,
    segments: Sequence[Segment],
    actions: Sequence[Action],
    channels: Sequence[tuple[str, Register]] = (),
    index: int = 0,
) -> StageProgram:
    received = {
        name: SlotSpec((name, -1, -1), register, (), (), ("channel",))
        for name, register in channels
    }
    table = {s.key: s for s in segments}
    return StageProgram(index, mesh, table, tuple(actions), (), {}, received, {})


def program(*stages: StageProgram, world: Sequence[int] = ()) -> Program:
    groups = {"world": (tuple(world),)} if world else {}
    return Program(stages, 1, 1, 1, groups, {})


def of(name: str, register: int, intent: str = "in", returns: int = -1) -> Formal:
    return Formal(register, intent, name, None, per_micro_batch=False, returns=returns)


def collectives(dtype: str, size: int, mesh: Mesh = GRID) -> Program:
    """Every collective, over one axis and both, single and in buckets; `size` rows of 8."""
    registers = [reg(size, 8, dtype=dtype) for _ in range(2)] + [reg(size, 3, 2, dtype=dtype)]
    code = []

    def emit(
        op: str, ins: Sequence[int], shapes: Sequence[tuple[int, ...]], **attrs: object
    ) -> None:
        outs = tuple(range(len(registers), len(registers) + len(ins)))
        registers.extend(reg(*shape, dtype=dtype) for shape in shapes)
        code.append(Instr(op, tuple(ins), outs, tuple(sorted(attrs.items()))))

    whole, rows = (size, 8), (size * 2, 8)
    emit("all_reduce", (0, 1), (whole, whole), axes=(0, 1), reduction="sum")
    emit("all_reduce", (0,), (whole,), axes=(0,), reduction="sum")
    emit("all_reduce", (2,), ((size, 3, 2),), axes=(0, 1), reduction="softmax")
    emit("all_gather", (0, 1), (rows, (size, 16)), axes=(1,), dims=(0, 1))
    emit("reduce_scatter", (0, 1), ((size // 4, 8), (size, 2)), axes=(0, 1), dims=(0, 1),
         reduction="sum")  # fmt: skip
    emit("all_to_all", (0, 1), ((size * 4, 2), (size // 4, 32)), axes=(0, 1),
         dims=((0, 1), (1, 0)))  # fmt: skip
    formals = [of(f"x{i}", i) for i in range(3)]
    formals += [of(f"y{i}", i, "out") for i in range(3, len(registers))]
    return program(stage(mesh, [segment("S", formals, registers, code)], [Action("F", "S")]))


def pipeline() -> Program:
    """Two stages of two ranks: forward, back, and a sum over all."""
    r = reg(4)
    scale = partial(Instr, "scale")
    attrs = (("axes", "world"), ("reduction", "sum"))
    total = segment(
        "N", [of("z", 0, "move"), of("w", 1, "out")], [r, r],
        [Instr("all_reduce", (0,), (1,), attrs)],
    )  # fmt: skip
    first = segment(
        "F", [of("x0", 0), of("y", 1, "out")], [r, r], [scale((0,), (1,), (("factor", 3.0),))]
    )
    second = segment(
        "F", [of("y", 0, "move"), of("back", 1, "out"), of("z", 2, "out")], [r, r, r],
        [scale((0,), (1,), (("factor", -0.5),)), scale((1,), (2,), (("factor", 2.0),))],
    )  # fmt: skip
    there = Action("SEND", peer=1, slots=("y",))
    back = Action("SEND", peer=0, slots=("back",))
    one = [
        Action("F", "F"), there, Action("RECV", peer=1, slots=("back",)),
        there._replace(kind="WAIT"), Action("F", "K"), Action("NORM", "N"),
    ]  # fmt: skip
    two = [
        Action("RECV", peer=0, slots=("y",)), Action("F", "F"), back,
        back._replace(kind="WAIT"), Action("NORM", "N"),
    ]  # fmt: skip
    keep = segment(
        "K", [of("back", 0, "move"), of("z", 1, "out")], [r, r],
        [scale((0,), (1,), (("factor", 1.0),))],
    )  # fmt: skip
    return program(
        stage(PAIR, [first, keep, total], one, [("back", r)]),
        stage(LATER_PAIR, [second, total], two, [("y", r)], 1),
        world=(0, 1, 2, 3),
    )


def values(prog: Program, rank: int) -> dict[str, Tensor]:
    """Slots x0, x1, ... of a rank: the inputs of the first segment that are lent."""
    table = {}
    here = prog.stages[prog.stage_of[rank]]
    for part in here.segments.values():
        for formal in part.formals:
            if formal.intent == "in" and formal.name.startswith("x"):
                register = part.registers[formal.register]
                generator = torch.Generator().manual_seed(100 * rank + formal.register)
                drawn = torch.randn(register.shape, generator=generator, dtype=torch.float64)
                table[formal.name] = drawn.to(DTYPES[register.dtype])
    return table


def interpreter(
    prog: Program, rank: int, observers: Observers | None = None, linker: Linker | None = None
) -> Interpreter:
    here = prog.stages[prog.stage_of[rank]]
    place = Place(here.mesh.sizes, coordinate_of(here, rank))
    made = Interpreter(prog, rank, linker or partial(link, place=place, rank=rank), observers)
    for name, tensor in values(prog, rank).items():
        made.define((name, -1, -1), tensor)
    return made


def generator(prog: Program, rank: int, observers: Observers | None = None, steps: int = 1):
    """A rank's run; it returns its slots by name."""
    made = interpreter(prog, rank, observers)
    for number in range(steps):
        yield from made.step(StepContext(step=number), feed=None)
    return {slot[0]: tensor for slot, tensor in made.environment.items()}


def drive(seat: Seat, payload: tuple[Program, int, int]) -> dict[str, Tensor]:
    """A worker's task: one rank's run."""
    prog, rank, steps = payload
    seat.world.prepare(prog)
    return seat.world.drive(generator(prog, rank, Observers(progress=seat.progress), steps))


def native(seat: Seat, payload: tuple[Program, int]) -> list[Tensor]:
    """A worker's task: the collectives of `collectives` by the library's own operations."""
    from autoplan.runtime.distributed import native_result
    from autoplan.runtime.requests import Collective

    prog, rank = payload
    seat.world.prepare(prog)
    results, made, reply = [], generator(prog, rank), None
    while True:
        try:
            request = made.send(reply)
        except StopIteration:
            return results
        assert isinstance(request, Collective)
        reply = list(native_result(request, seat.world.group(request.group)))
        results.extend(reply)


def link(instr: Instr, registers: Sequence[Register], place: Place, rank: int) -> Kernel:
    """The real kernels, and `fault`: an accident of rank `victim` in step 1."""
    if instr.op != "fault":
        return kernels.link(instr, registers, place)
    how, victim = instr.attr("how"), instr.attr("victim")

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if context.step == 1 and rank == victim:
            ACCIDENTS[how]()
        return tuple(operands)

    return kernel


def _raise() -> None:
    raise ZeroDivisionError("an accident")


def _report() -> None:
    from autoplan.errors import InputError, Problem

    raise InputError(Problem("plan.json", "$.a", "1", "2"))


def _die_talking() -> None:
    os.write(2, b"last words\n")
    os._exit(3)


ACCIDENTS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": _die_talking,
    "raise": _raise,
    "report": _report,
    "hang": lambda: time.sleep(60),
}


def accident(how: str, victim: int) -> Program:
    """Four ranks that add up, with a fault between two sums."""
    r = reg(4)
    total = (("axes", (0, 1)), ("reduction", "sum"))
    code = [
        Instr("all_reduce", (0,), (1,), total),
        Instr("fault", (1,), (2,), (("how", how), ("victim", victim)), (1,)),
        Instr("all_reduce", (2,), (3,), total),
    ]
    part = segment("layer/F", [of("x0", 0), of("y", 3, "out")], [r] * 4, code)
    return program(stage(GRID, [part], [Action("F", "layer/F"), Action("FREE", slots=("y",))]))
