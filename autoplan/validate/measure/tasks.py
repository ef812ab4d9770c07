"""What a worker does: performs a Program with the runtime's own interpreter, and stops the time.

Every instruction is timed where it stands in its step: with the operands, the allocator and the
caches that a real step gives it, and with the interpreter's own time. Called alone in a loop it is
faster by a sixth to a third, and the sum over a step too small by as much.

A CPU's own time is taken for what only computes: time that other processes took from the rank is
none of the machine's. What communicates is timed by the clock, devices by events.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter, process_time, thread_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autoplan.ir.graph import Graph
from autoplan.ir.program import Instr, Program, Register, SlotSpec
from autoplan.runtime.data import Shape, open_batches
from autoplan.runtime.feeds import Loader
from autoplan.runtime.interpreter import Interpreter, Observers
from autoplan.runtime.kernels.place import DTYPES, Kernel, StepContext
from autoplan.runtime.lockstep import run_lockstep
from autoplan.runtime.progress import OUTSIDE, ProgressPage
from autoplan.runtime.requests import Request
from autoplan.runtime.session import RankJob, RankStep, Settings, Surroundings, run_rank
from autoplan.runtime.worker import Seat
from autoplan.validate.measure.programs import COMPUTE

WARM_UP = 1
"""Steps that fill caches and allocators first, and are not counted."""
COPIED = 1 << 26
"""Bytes of a copy between host and device."""
COPIES = 5
WIDTH, PRODUCTS = 256, 4
"""Of the matrices that are multiplied between collectives, and how often: 1 to 2 ms of a core."""

Place = tuple[int, int]
"""(index of the action, index of the instruction in its segment)."""


@dataclass(frozen=True, slots=True)
class StepJob:
    """A whole training step of one rank, without anybody to talk to.

    Attributes:
        program, graph: of the step.
        steps: counted.
    """

    program: Program
    graph: Graph
    steps: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one rank measured.

    Attributes:
        instructions: place -> seconds, one number a step.
        wall: seconds of each step by the clock.
        share: of a processor that the rank had meanwhile; 1 where a device computes.
    """

    instructions: dict[Place, tuple[float, ...]]
    wall: tuple[float, ...]
    share: float


@dataclass(frozen=True, slots=True)
class TalkJob:
    """Collectives or transfers of one size, over and over.

    Attributes:
        program: of one step; it is lent the slot `x`, which its feeds deliver as well.
        operand: the type of what they hold.
        steps: counted.
        marks: instructions, or slots of actions, that a call takes on the first stage.
        silent: how many of these, at its beginning, do not count: computing that comes before.
        products: of matrices, that such computing multiplies.
    """

    program: Program
    operand: Register
    steps: int
    marks: int = 1
    silent: int = 0
    products: int = PRODUCTS


class Talk(NamedTuple):
    """What one rank measured of a job: seconds of every call, and of the computing before it."""

    seconds: tuple[float, ...] = ()
    computing: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What a worker knows about its device.

    Attributes:
        name: of the device, or "" for a CPU.
        memory: bytes on it; 0 for a CPU, whose memory is the host's.
        copy_rate: bytes/s between host and device, both ways alike, all ranks at once.
    """

    name: str
    memory: int
    copy_rate: float


class _Stamps(ProgressPage):
    """A progress page that also writes down when each instruction began."""

    def __init__(self, page: ProgressPage, now: Callable[[], Any]) -> None:
        self._page, self._now = page, now
        self.marks: list[tuple[int, Place, Any]] = []

    def advance(self, step: int, action: int, instruction: int, communicating: bool) -> None:
        self._page.advance(step, action, instruction, communicating)
        self.marks.append((step, (action, instruction), self._now()))

    def seconds(self) -> Iterator[tuple[int, Place, float]]:
        """(step, place, seconds) of everything between two marks inside the same step."""
        for (step, place, begin), (_, (following, _), end) in pairwise(self.marks):
            if step >= WARM_UP and following != OUTSIDE:
                taken = end - begin if isinstance(begin, float) else begin.elapsed_time(end) * 1e-3
                yield step, place, taken


def _clock(device: torch.device, computes: bool) -> Callable[[], Any]:
    """Gives a moment: seconds, or an event of the device."""
    if device.type == "cpu":
        return thread_time if computes else perf_counter
    module = torch.get_device_module(device)

    def event() -> Any:
        mark = module.Event(enable_timing=True)
        mark.record()
        return mark

    return event


def time_step(seat: Seat, job: StepJob) -> StepTimes:
    """A worker's task: every instruction of a step, several times."""
    device = seat.world.device
    program = job.program
    vocab = program.extent["v"]
    shape = Shape(program.batch * program.micro_batches, program.seq_len, vocab)
    batches = open_batches(shape, 0, None)
    stamps = _Stamps(seat.progress, _clock(device, computes=True))
    settings = Settings(WARM_UP + job.steps, 0, batches, record=False)
    around = Surroundings(Loader(program, batches), device, stamps)
    used, begun = process_time(), perf_counter()
    rank = program.ranks[0]
    run = run_lockstep({rank: run_rank(RankJob(program, job.graph, settings, rank), around)})
    share = (process_time() - used) / (perf_counter() - begun)
    table: dict[Place, list[float]] = {}
    for _, place, seconds in stamps.seconds():
        table.setdefault(place, []).append(seconds)
    return StepTimes(
        {place: tuple(times) for place, times in table.items() if place[1] != OUTSIDE},
        tuple(_wall(step) for step in run[rank].steps[WARM_UP:]),
        min(1.0, share) if device.type == "cpu" else 1.0,
    )


def _wall(step: RankStep) -> float:
    return max(span.end for span in step.spans) - min(span.start for span in step.spans)


def time_talk(seat: Seat, jobs: Sequence[TalkJob]) -> list[Talk]:
    """A worker's task: seconds of every call of each job, in order.

    Returns:
        By job; nothing on ranks behind the first stage, which only answer.
    """
    return [_talk(seat, job) for job in jobs]


def _talk(seat: Seat, job: TalkJob) -> Talk:
    world, program = seat.world, job.program
    world.prepare(program)
    stamps = _Stamps(seat.progress, _clock(world.device, computes=False))
    rank = program.ranks[world.index]
    link = partial(_link, job.products)
    interpreter = Interpreter(program, rank, link, Observers(progress=stamps))
    dtype = DTYPES[job.operand.dtype]
    operand = torch.ones(job.operand.shape, dtype=dtype, device=world.device)

    def feed(spec: SlotSpec, micro_batch: int) -> Tensor:
        return operand

    def steps() -> Generator[Request, list[Tensor], None]:
        interpreter.define(("x", -1, -1), operand)
        for number in range(WARM_UP + job.steps):
            yield from interpreter.step(StepContext(step=number), feed)
            stamps.advance(number, len(program.stages[0].actions), OUTSIDE, communicating=False)

    world.drive(steps())
    if world.device.type != "cpu":
        torch.get_device_module(world.device).synchronize()
    if program.stage_of[rank]:
        return Talk()
    actions = len(program.stages[0].actions)
    single = [seconds for _, (action, _), seconds in stamps.seconds() if action < actions]
    starts = range(0, len(single), job.marks)
    return Talk(
        tuple(sum(single[at + job.silent : at + job.marks]) for at in starts),
        tuple(sum(single[at : at + job.silent]) for at in starts),
    )


def _link(products: int, instr: Instr, registers: Sequence[Register]) -> Kernel:
    """A kernel that returns its operands: what is left is the interpreter's own time.

    Before it does, `COMPUTE` multiplies matrices, for as long as some operators of a layer take.
    """
    if instr.op != COMPUTE:
        return lambda _, operands: tuple(operands)
    factor = torch.ones(WIDTH, WIDTH)

    def kernel(context: StepContext, operands: Sequence[Any]) -> tuple[Any, ...]:
        for _ in range(products):
            factor @ factor
        return tuple(operands)

    return kernel


def tell_facts(seat: Seat, _: object) -> Facts:
    """A worker's task: what its device is, and how fast the host reaches it."""
    device = seat.world.device
    pinned = device.type != "cpu"
    there = torch.empty(COPIED, dtype=torch.uint8, device=device)
    here = torch.ones(COPIED, dtype=torch.uint8, pin_memory=pinned)
    rate = max(_copy_rate(here, there) for _ in range(COPIES))
    if device.type == "cpu":
        return Facts("", 0, rate)
    properties = torch.get_device_module(device).get_device_properties(device)
    return Facts(properties.name, properties.total_memory, rate)


def _copy_rate(here: Tensor, there: Tensor) -> float:
    """Bytes/s of one copy to the device and one back."""
    now = thread_time if there.device.type == "cpu" else perf_counter
    begin = now()
    there.copy_(here)
    here.copy_(there)
    return 2 * COPIED / (now() - begin)
