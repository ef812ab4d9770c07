"""How many bytes does a rank hold, at most, where, and of what?

The count is the definition in `ir.program`: after each instruction, the bytes of the distinct
buffers that any live slot or register refers to, its outputs present and its frees not yet done. It
is made from the Program alone; the interpreter makes its own from real tensors, and they agree.

Between actions every buffer belongs to one slot (`lower.check` sees to it), so a call changes the
count in the same way each time: its `Profile` is made once, and a stage's list of actions becomes a
sum over a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.ir.program import Action, Formal, Instr, Register, Segment, Slot, StageProgram
from autoplan.ir.timeline import COUNTED_LINES
from autoplan.ir.workload import DTYPE_BYTES

NO_MARK = -(1 << 56)
"""Stands for the highest count of a call without instructions: below any real one."""
_LINE = {name: index for index, name in enumerate(COUNTED_LINES)}


@dataclass(frozen=True, slots=True)
class Account:
    """The largest count of a stage's step.

    Attributes:
        peak: bytes.
        lines: the same by counted line of memory.
        action: index of the first action that reaches it, or -1 if nothing is ever counted.
        instruction: index of the instruction in its segment, or -1 where the action calls none.
        in_flight: largest number of micro-batches between their first and last F or B.
        others: bytes by counted line where everything but gradients is largest.
    """

    peak: int
    lines: Mapping[str, int]
    action: int
    instruction: int
    in_flight: int
    others: Mapping[str, int]


class Profile(NamedTuple):
    """How an action changes the count: bytes by counted line, relative to the count before it.

    Attributes:
        high: at the highest count after an instruction, or `NO_MARK` in the first place.
        at: the first instruction where that is reached, or -1.
        net: after the action.
    """

    high: tuple[int, ...]
    at: int
    net: tuple[int, ...]


def account(stage: StageProgram) -> Account:
    """The account of one step of a stage.

    Args:
        stage: of a Program that passes `lower.check`.

    Complexity: about a microsecond an action.
    """
    indices, profiles = _Walk(stage).run()
    in_flight = _in_flight(stage.actions)
    resident = _line_bytes(spec.register for spec in stage.resident)
    if all(profiles[index].high[0] == NO_MARK for index in set(indices)):
        return Account(int(resident.sum()), _named(resident), -1, -1, in_flight, _named(resident))
    order = np.array(indices, dtype=np.int64)
    net = np.array([profile.net for profile in profiles], dtype=np.int64)
    high = np.array([profile.high for profile in profiles], dtype=np.int64)
    before = np.cumsum(net[order], axis=0) - net[order]
    lines = resident + before + high[order]
    at = int(lines.sum(axis=1).argmax())
    others = lines[int((lines.sum(axis=1) - lines[:, _LINE["gradients"]]).argmax())]
    place = profiles[order[at]].at
    peak = int(lines[at].sum())
    return Account(peak, _named(lines[at]), at, place, in_flight, _named(others))


LOADED = ("parameter", "master")
"""Sources of what is there before optimizer states are: see `ir.program.SlotSpec`."""
SAVED = (*LOADED, "state")
"""Sources of what a checkpoint saves."""


def state_bytes(stage: StageProgram, sources: Sequence[str] = SAVED) -> int:
    """Bytes of a rank's slots that live across steps, by what fills them."""
    return sum(spec.register.nbytes for spec in stage.resident if spec.source[0] in sources)


def load_bytes(stage: StageProgram, extent: Mapping[str, int]) -> int:
    """Most bytes that a rank holds while it loads the model.

    Source: parameters and master copies are read tensor by tensor, each whole, and cut; the last
    one read is at worst the largest. Optimizer states are made after that.

    Args:
        stage: of a Program.
        extent: sizes of dims, to know the whole tensors.
    """
    whole = [
        prod(extent[dim] for dim in spec.dims) * DTYPE_BYTES[spec.register.dtype]
        for spec in stage.resident
        if spec.source[0] == "parameter"
    ]
    return state_bytes(stage, LOADED) + max(whole, default=0)


def _line_bytes(registers: Iterable[Register]) -> NDArray[np.int64]:
    lines = np.zeros(len(COUNTED_LINES), dtype=np.int64)
    for register in registers:
        lines[_LINE[register.category]] += register.nbytes
    return lines


def _named(lines: NDArray[np.int64]) -> Mapping[str, int]:
    return dict(zip(COUNTED_LINES, map(int, lines), strict=True))


def _in_flight(actions: Sequence[Action]) -> int:
    """Micro-batches alive at once; each lives from its first to its last F or B."""
    work = [a.micro_batch for a in actions if a.kind in ("F", "B") and a.micro_batch >= 0]
    last = {micro_batch: index for index, micro_batch in enumerate(work)}
    alive: set[int] = set()
    most = 0
    for index, micro_batch in enumerate(work):
        alive.add(micro_batch)
        most = max(most, len(alive))
        if last[micro_batch] == index:
            alive.discard(micro_batch)
    return most


class _Walk:
    """Turns a stage's actions into indices of profiles.

    Only slots that actions other than calls touch are followed, to know what they hold.
    """

    def __init__(self, stage: StageProgram) -> None:
        self.stage = stage
        self.profiles: list[Profile] = []
        followed = {name for action in stage.actions for name in action.slots}
        self._slots: dict[Slot, Register] = {
            spec.slot: spec.register for spec in stage.resident if spec.slot[0] in followed
        }
        self._moves: dict[object, int] = {}
        self._calls: dict[str, tuple[int, list[tuple[Formal, Register]]]] = {}
        for key, segment in stage.segments.items():
            left = [
                (formal, segment.registers[formal.register])
                for formal in segment.formals
                if formal.intent == "out" and formal.name in followed
            ]
            self._calls[key] = self._add(call_profile(segment)), left

    def _add(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def run(self) -> tuple[list[int], list[Profile]]:
        """(index of the profile of every action, profiles)."""
        slots, calls = self._slots, self._calls
        indices = []
        for action in self.stage.actions:
            if not action.segment:
                indices.append(self._moved(action))
                continue
            index, left = calls[action.segment]
            for formal, register in left:
                slots[formal.slot(action.instance, action.micro_batch)] = register
            indices.append(index)
        return indices, self.profiles

    def _moved(self, action: Action) -> int:
        """The profile of an action that feeds, receives, sends, waits or frees."""
        changes: list[tuple[int, int]] = []
        for name in action.slots:
            slot = (name, action.instance, action.micro_batch)
            if action.kind in ("FEED", "RECV"):
                specs = self.stage.feeds if action.kind == "FEED" else self.stage.channels
                register = self._slots[slot] = specs[name].register
                changes.append((_LINE[register.category], register.nbytes))
            elif action.kind in ("FREE", "WAIT"):
                register = self._slots.pop(slot)
                changes.append((_LINE[register.category], -register.nbytes))
            else:
                changes.append((0, 0))
        key = tuple(changes)
        if key not in self._moves:
            self._moves[key] = self._add(_move_profile(changes))
        return self._moves[key]


def _move_profile(changes: Sequence[tuple[int, int]]) -> Profile:
    """The count is looked at after each slot."""
    lines = [0] * len(COUNTED_LINES)
    high = (NO_MARK, *lines[1:])
    for line, nbytes in changes:
        lines[line] += nbytes
        if sum(lines) > sum(high):
            high = tuple(lines)
    return Profile(high, -1, tuple(lines))


def call_profile(segment: Segment) -> Profile:
    """The profile of a call."""
    count = _Count(segment)
    high, at = (NO_MARK, *(0,) * (len(COUNTED_LINES) - 1)), -1
    for index, instr in enumerate(segment.code):
        count.perform(instr)
        if sum(count.lines) > sum(high):
            high, at = tuple(count.lines), index
        for register in instr.frees:
            count.drop(count.registers.pop(register))
    count.leave()
    return Profile(high, at, tuple(count.lines))


class _Count:
    """Buffers of a call, each named by the register that first had it.

    Attributes:
        lines: bytes by counted line, relative to the count before the call.
        registers: live register -> its buffer.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.lines = [0] * len(COUNTED_LINES)
        self.registers: dict[int, int] = {}
        self._references: Counter[int] = Counter()
        self._accumulators: list[int] = []
        for formal in segment.formals:
            if formal.intent == "out":
                continue
            self._refer(formal.register, formal.register)
            # A moved value has only its register left; of any other the slot stays, too.
            if formal.intent != "move":
                self._references[formal.register] += 1
            if formal.intent == "acc":
                self._accumulators.append(formal.register)

    def perform(self, instr: Instr) -> None:
        for register, source in zip(instr.outs, instr.alias, strict=True):
            if source >= 0:
                self._refer(register, self.registers[source])
            else:
                self._refer(register, register)
                self._count(register, +1)

    def drop(self, buffer: int) -> None:
        self._references[buffer] -= 1
        if not self._references[buffer]:
            self._count(buffer, -1)

    def leave(self) -> None:
        """Bind what leaves; only then let go of what accumulators held, and of all registers."""
        for formal in self.segment.formals:
            if formal.intent in ("out", "acc"):
                register = formal.returns if formal.intent == "acc" else formal.register
                self._references[self.registers[register]] += 1
        for buffer in (*self._accumulators, *self.registers.values()):
            self.drop(buffer)

    def _refer(self, register: int, buffer: int) -> None:
        self.registers[register] = buffer
        self._references[buffer] += 1

    def _count(self, buffer: int, sign: int) -> None:
        register = self.segment.registers[buffer]
        self.lines[_LINE[register.category]] += sign * register.nbytes
