"""What must hold of a stage's list of actions: who defines, adds to, reads and ends each slot.

A slot that lives over micro-batches is an accumulator while calls with a micro-batch index add to
it. Its version is the number of micro-batches that each instance has added; they come in order,
since sums in another order are other bits, and whatever reads it later needs all of them. So a
missing call is noticed even where every slot it would have touched exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autoplan.errors import CheckError
from autoplan.ir.program import (
    ACTION_KINDS,
    Action,
    Formal,
    Register,
    Segment,
    Slot,
    SlotSpec,
    StageProgram,
)

MOVES = frozenset({"FEED", "RECV", "SEND", "WAIT", "FREE"})
"""Kinds of action that call no segment."""
LOSS: Slot = ("loss", -1, -1)


@dataclass(slots=True)
class _Value:
    """What a slot holds.

    Attributes:
        register: its type.
        origin: index of the action that defined it, or -1 before the first.
        added: instance -> micro-batches it has added; None once it is no (open) accumulator.
        last: largest instance whose NORM has added to it.
        counted: how many NORMs have read it.
        sent: the SEND that still reads it, if any.
    """

    register: Register
    origin: int
    added: dict[int, int] | None = None
    last: int = -1
    counted: int = 0
    sent: Action | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """A SEND or RECV: index of the action, identity (slot, sender, receiver), type."""

    index: int
    identity: tuple[Slot, int, int]
    register: Register


@dataclass(slots=True)
class StageFacts:
    """What the whole-program check needs to know of a stage."""

    sends: list[Transfer] = field(default_factory=list)
    receives: list[Transfer] = field(default_factory=list)
    waits: dict[tuple[Slot, int, int], int] = field(default_factory=dict)


class StageCheck:
    """Walks the actions of one stage.

    Args:
        stage: what to check.
        micro_batches: per step.
    """

    def __init__(self, stage: StageProgram, micro_batches: int) -> None:
        self.stage, self.micro_batches = stage, micro_batches
        self.facts = StageFacts()
        self._slots: dict[Slot, _Value] = {}
        self._stepped: set[Slot] = set()
        self._gradients = {spec.slot: name for name, spec in stage.gradients.items()}
        self._index = -1

    def run(self) -> StageFacts:
        """Check every action and what is left at the end.

        Raises:
            CheckError: names the action and both sides of the first rule that is broken.
        """
        for spec in self.stage.resident:
            self._define(spec.slot, _Value(spec.register, -1))
        for index, action in enumerate(self.stage.actions):
            self._index = index
            if action.kind not in ACTION_KINDS:
                self._fail(f"{action.kind} is no kind of action")
            if action.kind in MOVES:
                for name in action.slots:
                    self._move(action, (name, action.instance, action.micro_batch))
            else:
                self._call(action)
        self._end()
        return self.facts

    # --- errors ---------------------------------------------------------------------------------

    def _fail(self, fault: str) -> None:
        raise CheckError(f"{self._where(self._index)}: {fault}")

    def _where(self, index: int) -> str:
        if index < 0:
            return f"stage {self.stage.stage}, before its first action"
        return f"stage {self.stage.stage}, action {index}, {self.stage.actions[index]}"

    # --- slots ----------------------------------------------------------------------------------

    def _define(self, slot: Slot, value: _Value) -> None:
        old = self._slots.get(slot)
        if old is not None:
            origin = self._where(old.origin)
            self._fail(f"defines {_text(slot)} again, which lives since {origin}")
        self._slots[slot] = value

    def _read(self, slot: Slot) -> _Value:
        if slot not in self._slots:
            self._fail(f"uses {_text(slot)}, which holds nothing")
        return self._slots[slot]

    def _end_of(self, slot: Slot) -> _Value:
        """The slot ends here."""
        value = self._read(slot)
        if value.sent:
            self._fail(f"ends {_text(slot)} before the WAIT for {value.sent}")
        return self._slots.pop(slot)

    def _spec(self, table: str, name: str) -> SlotSpec:
        specs = getattr(self.stage, table)
        if name not in specs:
            self._fail(f"{name} is not among the stage's {table}: {', '.join(specs) or 'none'}")
        spec: SlotSpec = specs[name]
        return spec

    # --- actions that call nothing --------------------------------------------------------------

    def _move(self, action: Action, slot: Slot) -> None:
        here, peer = self.stage.stage, action.peer
        if action.kind == "FEED":
            self._define(slot, _Value(self._spec("feeds", slot[0]).register, self._index))
        elif action.kind == "RECV":
            register = self._spec("channels", slot[0]).register
            self._define(slot, _Value(register, self._index))
            self.facts.receives.append(Transfer(self._index, (slot, peer, here), register))
        elif action.kind == "SEND":
            value = self._read(slot)
            self._complete(slot, value)
            if value.sent:
                self._fail(f"sends {_text(slot)} again before the WAIT for {value.sent}")
            value.sent = action
            self.facts.sends.append(Transfer(self._index, (slot, here, peer), value.register))
        elif action.kind == "WAIT":
            value = self._read(slot)
            if value.sent != action._replace(kind="SEND"):
                self._fail(f"waits for a SEND of {_text(slot)} to {peer}, but {value.sent} is open")
            value.sent = None
            self._end_of(slot)
            self.facts.waits[slot, here, peer] = self._index
        else:
            self._complete(slot, self._end_of(slot))

    # --- calls ----------------------------------------------------------------------------------

    def _call(self, action: Action) -> None:
        if action.segment not in self.stage.segments:
            self._fail(f"the stage has no segment `{action.segment}`")
        segment = self.stage.segments[action.segment]
        for formal in segment.formals:
            if formal.intent != "out":
                self._take(action, segment, formal)
        for formal in segment.formals:
            if formal.intent == "out":
                slot = formal.slot(action.instance, action.micro_batch)
                value = _Value(segment.registers[formal.register], self._index)
                self._define(slot, value)
                if action.micro_batch >= 0 and not formal.per_micro_batch:
                    value.added = {}
                    self._add(action, slot, value.added)
                value.last = action.instance

    def _take(self, action: Action, segment: Segment, formal: Formal) -> None:
        """Read, consume or add to the slot of a formal."""
        slot = formal.slot(action.instance, action.micro_batch)
        value = self._read(slot)
        held, wanted = value.register[1:], segment.registers[formal.register][1:]
        if held != wanted:
            origin = self._where(value.origin)
            self._fail(f"wants {_text(slot)} as {wanted}, but it is {held} since {origin}")
        if formal.intent == "acc" and action.micro_batch >= 0 and not formal.per_micro_batch:
            if value.added is None:
                self._fail(f"adds to {_text(slot)}, which is closed")
            self._add(action, slot, value.added or {})
            return
        self._complete(slot, value)
        if formal.intent == "move":
            self._consume(action, slot, value)
        elif formal.intent == "acc" and value.sent:
            self._fail(f"changes {_text(slot)} before the WAIT for {value.sent}")
        elif action.kind == "NORM":
            self._norm(action, formal, value)

    def _add(self, action: Action, slot: Slot, added: dict[int, int]) -> None:
        done = added.get(action.instance, 0)
        if action.micro_batch != done:
            self._fail(
                f"adds micro-batch {action.micro_batch} to {_text(slot)}, which has {done} of "
                f"instance {action.instance}"
            )
        added[action.instance] = done + 1

    def _complete(self, slot: Slot, value: _Value) -> None:
        """An accumulator that something reads has every micro-batch."""
        for instance, done in (value.added or {}).items():
            if done != self.micro_batches:
                self._fail(
                    f"uses {_text(slot)}, which has {done} of {self.micro_batches} micro-batches "
                    f"of instance {instance}"
                )

    def _norm(self, action: Action, formal: Formal, value: _Value) -> None:
        if formal.intent == "in":
            value.counted += 1
            return
        if action.instance <= value.last:
            self._fail(f"adds instance {action.instance} to the norm after {value.last}")
        value.last = action.instance

    def _consume(self, action: Action, slot: Slot, value: _Value) -> None:
        if action.kind == "REDUCE" and action.micro_batch < 0 and value.added is None:
            self._fail(f"reduces {_text(slot)} again, since {self._where(value.origin)}")
        self._end_of(slot)
        name = self._gradients.get(slot)
        if name is None:
            return
        if action.kind != "STEP":
            self._fail(f"takes the gradient of {name}, which belongs to its STEP")
        if value.counted != 1:
            self._fail(f"steps {name}, whose gradient {value.counted} NORMs have read, not 1")
        if value.register[1:] != self.stage.gradients[name].register[1:]:
            self._fail(f"steps {name} with a gradient {value.register}")
        self._stepped.add(slot)

    # --- the end --------------------------------------------------------------------------------

    def _end(self) -> None:
        resident = {spec.slot: spec.register for spec in self.stage.resident}
        for slot, value in self._slots.items():
            origin = self._where(value.origin)
            if value.sent:
                self._fail(f"nothing waits for {value.sent}")
            if slot == LOSS and value.added is not None:
                self._fail(f"nothing takes the sum {_text(slot)} of {origin}")
            if slot != LOSS and slot not in resident:
                self._fail(f"nothing ends {_text(slot)} of {origin}")
        for slot, register in resident.items():
            if slot not in self._slots:
                self._fail(f"{_text(slot)} does not survive the step")
            if self._slots[slot].register[1:] != register[1:]:
                self._fail(f"{_text(slot)} ends the step as {self._slots[slot].register}")
        for slot, name in self._gradients.items():
            if slot not in self._stepped:
                self._fail(f"no STEP consumes the gradient of {name}, {_text(slot)}")


def _text(slot: Slot) -> str:
    name, instance, micro_batch = slot
    parts = [name, *([f"i{instance}"] if instance >= 0 else [])]
    return " ".join([*parts, *([f"m{micro_batch}"] if micro_batch >= 0 else [])])
