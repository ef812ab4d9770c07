"""One rank's execution of its stage's Program: a generator that a transport drives.

An interpreter performs the actions in exactly their issue order on local tensors and never
communicates itself: it yields requests (see `requests`) and is sent the answers. So the same
interpreter runs on torch.distributed and, with all ranks in one process, in lock-step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

from autoplan.errors import CheckError
from autoplan.ir.program import (
    COLLECTIVES,
    Action,
    Instr,
    Program,
    Register,
    Segment,
    Slot,
    SlotSpec,
)
from autoplan.ir.timeline import Span
from autoplan.runtime.account import Account
from autoplan.runtime.kernels.place import DTYPES, Kernel, StepContext
from autoplan.runtime.progress import OUTSIDE, ProgressPage
from autoplan.runtime.requests import (
    Collective,
    Expect,
    Identity,
    Receive,
    Request,
    Send,
    WaitSend,
    group_of,
)

Linker = Callable[[Instr, Sequence[Register]], Kernel]
"""`kernels.link` for one place."""

Feeder = Callable[[SlotSpec, int], Tensor]
"""(slot, micro-batch) -> the rank's part of what the loader delivers, in a buffer of its own."""

Recorder = Callable[[Mapping[str, Tensor]], None]
"""Takes copies of the reduced gradients, by full parameter name, that a STEP will consume."""

Steps = Generator[Request, list[Tensor], None]

STREAMS = {"SEND": "send", "WAIT": "send", "RECV": "receive", "FEED": "host"}
"""Stream on which an action's time is recorded; every other kind is `compute`."""


@dataclass(frozen=True)
class Observers:
    """Who watches a rank; each may be absent.

    Attributes:
        account: counts live memory.
        progress: page in which the rank writes where it stands.
        recorder: takes the reduced gradients.
    """

    account: Account | None = None
    progress: ProgressPage | None = None
    recorder: Recorder | None = None


class _Linked(NamedTuple):
    """An instruction with everything resolved that does not change between calls."""

    instr: Instr
    kernel: Kernel | None
    group: tuple[int, ...]
    member: int


class Interpreter:
    """Executes one rank's part of a Program, step after step.

    Attributes:
        environment: the live slots.
        spans: what each action and collective took, in seconds of `perf_counter`; `Span.stage` is
            the rank.
    """

    def __init__(
        self, program: Program, rank: int, link: Linker, observers: Observers | None = None
    ) -> None:
        """Link the segments of the rank's stage.

        Args:
            program: the whole step.
            rank: whose part this is.
            link: resolves an instruction that computes.
            observers: who watches.
        """
        self.environment: dict[Slot, Tensor] = {}
        self.spans: list[Span] = []
        self._program = program
        self._rank = rank
        self._stage = program.stages[program.stage_of[rank]]
        self._place = self._stage.mesh.devices().index(rank)
        self._observers = observers or Observers()
        self._code = {
            key: tuple(self._link(instr, segment, link) for instr in segment.code)
            for key, segment in self._stage.segments.items()
        }
        self._names = tuple(map(str, self._stage.actions))
        self._gradient_of = {spec.slot: name for name, spec in self._stage.gradients.items()}
        receives = self._receives()
        self._first = tuple(queue[0] for queue in receives)
        self._after = {one.identity: other for queue in receives for one, other in pairwise(queue)}

    def _receives(self) -> list[list[Receive]]:
        """What comes from each peer in a step, in order."""
        from_peer: dict[int, list[Receive]] = {}
        for place, action in enumerate(self._stage.actions):
            for name in action.slots if action.kind == "RECV" else ():
                receive = self._receive(place, action, name)
                from_peer.setdefault(receive.peer, []).append(receive)
        return list(from_peer.values())

    def _receive(self, place: int, action: Action, name: str) -> Receive:
        peer, register = self._peer(action), self._stage.channels[name].register
        identity = (name, action.instance, action.micro_batch, peer, self._rank)
        where = self._names[place]
        return Receive(peer, identity, register.shape, DTYPES[register.dtype], where)

    def _link(self, instr: Instr, segment: Segment, link: Linker) -> _Linked:
        if instr.op not in COLLECTIVES:
            return _Linked(instr, link(instr, segment.registers), (), 0)
        group = group_of(self._program, self._stage, self._rank, instr.attr("axes"))
        return _Linked(instr, None, group, group.index(self._rank))

    def define(self, slot: Slot, tensor: Tensor) -> None:
        """Put a tensor, in a buffer of its own, in a slot; whatever was there is dropped."""
        self._hold(tensor)
        self._bind(slot, tensor)

    def take(self, slot: Slot) -> Tensor:
        """Remove a slot and give its tensor."""
        tensor = self.environment.pop(slot)
        self._drop(tensor)
        return tensor

    def step(self, context: StepContext, feed: Feeder) -> Steps:
        """Perform every action once.

        Args:
            context: what kernels are told; its step is set, the rest follows the actions.
            feed: gives what FEED asks for.

        Raises:
            CheckError: an action reads a slot that is not there.
        """
        for receive in self._first:
            yield Expect(receive)
        for place, action in enumerate(self._stage.actions):
            begin = perf_counter()
            context.instance, context.micro_batch = action.instance, action.micro_batch
            if action.segment:
                yield from self._call(place, action, context)
            else:
                yield from self._move(place, action, context, feed)
            stream = STREAMS.get(action.kind, "compute")
            self._stamp(stream, self._names[place], begin)

    def _call(self, place: int, action: Action, context: StepContext) -> Steps:
        """Call a segment: bind its formals, execute its code, store its results."""
        segment = self._stage.segments[action.segment]
        self._record(segment, action)
        registers = self._arguments(segment, action, place)
        for number, (instr, kernel, group, member) in enumerate(self._code[segment.key]):
            self._advance(context.step, place, number, bool(group))
            operands = tuple(registers[i] for i in instr.ins)
            if kernel is not None:
                results = kernel(context, operands)
            else:
                begin = perf_counter()
                reply = yield Collective(instr, group, member, operands, self._names[place])
                results = tuple(reply)
                # The transport's call still refers to the list, and must not keep tensors alive.
                reply.clear()
                self._stamp("collective", f"{self._names[place]}: {instr.op}", begin)
            for register, value in zip(instr.outs, results, strict=True):
                registers[register] = value
                self._hold(value)
            self._mark(place, number, registers)
            for register in instr.frees:
                self._drop(registers[register])
                registers[register] = None
        self._results(segment, action, registers)

    def _arguments(self, segment: Segment, action: Action, place: int) -> list[Any]:
        """The registers as the code finds them: None but for what the formals bind."""
        registers: list[Any] = [None] * len(segment.registers)
        for formal in segment.formals:
            if formal.intent == "out":
                continue
            slot = formal.slot(action.instance, action.micro_batch)
            tensor = registers[formal.register] = self._read(slot, place)
            if formal.intent == "move":
                del self.environment[slot]
            else:
                self._hold(tensor)
        return registers

    def _results(self, segment: Segment, action: Action, registers: list[Any]) -> None:
        """Store what the segment defines or returns, and let go of every register."""
        for formal in segment.formals:
            source = formal.returns if formal.intent == "acc" else formal.register
            if formal.intent in ("out", "acc"):
                tensor = registers[source]
                self._hold(tensor)
                self._bind(formal.slot(action.instance, action.micro_batch), tensor)
        for left in registers:
            if left is not None:
                self._drop(left)

    def _move(self, place: int, action: Action, context: StepContext, feed: Feeder) -> Steps:
        """Perform an action that computes nothing: it feeds, receives, sends, waits or frees."""
        communicates = action.kind in ("SEND", "RECV", "WAIT")
        for name in action.slots:
            self._advance(context.step, place, OUTSIDE, communicates)
            slot = (name, action.instance, action.micro_batch)
            if action.kind == "FEED":
                self.define(slot, feed(self._stage.feeds[name], action.micro_batch))
            elif action.kind == "FREE":
                self._read(slot, place)
                self.take(slot)
            else:
                yield from self._transfer(place, action, slot)
            self._mark(place, OUTSIDE, ())

    def _transfer(self, place: int, action: Action, slot: Slot) -> Steps:
        """Send, receive, or wait for what was sent: only then does its slot end."""
        peer, where = self._peer(action), self._names[place]
        if action.kind == "RECV":
            receive = self._receive(place, action, slot[0])
            reply = yield receive
            self.define(slot, reply.pop())
            if receive.identity in self._after:
                yield Expect(self._after[receive.identity])
            return
        identity: Identity = (*slot, self._rank, peer)
        if action.kind == "SEND":
            yield Send(peer, identity, self._read(slot, place), where)
            return
        self._read(slot, place)
        yield WaitSend(identity, where)
        self.take(slot)

    def _peer(self, action: Action) -> int:
        """The rank of the other stage that stands where this one stands in its own."""
        return self._program.stages[action.peer].mesh.devices()[self._place]

    def _read(self, slot: Slot, place: int) -> Tensor:
        try:
            return self.environment[slot]
        except KeyError:
            name, instance, micro_batch = slot
            raise CheckError(
                f"rank {self._rank}: {self._names[place]} reads slot {name} (instance {instance}, "
                f"micro-batch {micro_batch}), which holds nothing"
            ) from None

    def _bind(self, slot: Slot, tensor: Tensor) -> None:
        former = self.environment.get(slot)
        self.environment[slot] = tensor
        if former is not None:
            self._drop(former)

    def _record(self, segment: Segment, action: Action) -> None:
        recorder = self._observers.recorder
        if action.kind != "STEP" or recorder is None:
            return
        slots = [f.slot(action.instance, action.micro_batch) for f in segment.formals]
        recorder(
            {
                self._gradient_of[slot]: self.environment[slot].clone()
                for slot in slots
                if slot in self._gradient_of and slot in self.environment
            }
        )

    def _advance(self, step: int, place: int, number: int, communicating: bool) -> None:
        if self._observers.progress is not None:
            self._observers.progress.advance(step, place, number, communicating)

    def _stamp(self, stream: str, name: str, begin: float) -> None:
        self.spans.append(Span(self._rank, stream, name, begin, perf_counter()))

    def _hold(self, tensor: Tensor | None) -> None:
        if self._observers.account is not None and tensor is not None:
            self._observers.account.hold(tensor)

    def _drop(self, tensor: Tensor | None) -> None:
        if self._observers.account is not None and tensor is not None:
            self._observers.account.drop(tensor)

    def _mark(self, place: int, number: int, registers: Sequence[Tensor | None]) -> None:
        if self._observers.account is not None:
            live: Iterator[Tensor | None] = chain(self.environment.values(), registers)
            self._observers.account.mark((place, number), live)
