"""One-line texts of actions, registers and slots, and their parsers."""

from __future__ import annotations

import re
from typing import Annotated, Any

from autoplan.files.layouts import from_text
from autoplan.ir.program import ACTION_KINDS, Action, Register, Slot
from autoplan.ir.workload import DTYPE_BYTES

_INDEX = r"(?: i(\d{1,9}))?(?: m(\d{1,9}))?"
_NAME = r"[^\s()\[\],]+(?:\[[^\[\]]*\])?"
"""Of a slot; that of a feed holds its layout: `ids[B, S(b)]`."""
_SLOTS = rf"{_NAME}(?:,{_NAME})*"
_ACTION = re.compile(rf"([A-Z]+)(?: ([^\s()]+))?(?: \(({_SLOTS})\))?{_INDEX}(?: @(\d{{1,9}}))?")
_REGISTER = re.compile(r"(\S+)\[((?:\d{1,12}(?: \d{1,12})*)?)\] (\w+) (\w+)")
_SLOT = re.compile(rf"({_NAME}){_INDEX}")


def _index(text: str | None) -> int:
    return -1 if text is None else int(text)


def _indices(instance: int, micro_batch: int) -> str:
    return (f" i{instance}" if instance >= 0 else "") + (
        f" m{micro_batch}" if micro_batch >= 0 else ""
    )


def format_action(action: Action) -> str:
    """`F layer/F i3 m0`, `SEND (x) i3 m0 @1`."""
    text = action.kind
    text += f" {action.segment}" if action.segment else ""
    text += f" ({','.join(action.slots)})" if action.slots else ""
    text += _indices(action.instance, action.micro_batch)
    return text + (f" @{action.peer}" if action.peer >= 0 else "")


def parse_action(text: str) -> Action:
    """The inverse of `format_action`; raises ValueError on anything else."""
    match = _ACTION.fullmatch(text)
    if not match or match[1] not in ACTION_KINDS:
        raise ValueError(f"`F segment i3 m0` or `SEND (slot) i3 m0 @1`; {', '.join(ACTION_KINDS)}")
    kind, segment, slots, instance, micro_batch, peer = match.groups()
    return Action(
        kind,
        segment or "",
        _index(instance),
        _index(micro_batch),
        _index(peer),
        tuple(re.findall(_NAME, slots or "")),
    )


def format_register(register: Register) -> str:
    """`q[2 128 4 16] bf16 activations`."""
    shape = " ".join(map(str, register.shape))
    return f"{register.name}[{shape}] {register.dtype} {register.category}"


def parse_register(text: str) -> Register:
    """The inverse of `format_register`; raises ValueError on anything else."""
    match = _REGISTER.fullmatch(text)
    if not match or match[3] not in DTYPE_BYTES:
        raise ValueError(f"`name[2 128] dtype category` with a dtype of {', '.join(DTYPE_BYTES)}")
    return Register(match[1], tuple(map(int, match[2].split())), match[3], match[4])


def format_slot(slot: Slot) -> str:
    """`x i4 m0`; an index that does not apply is left out."""
    name, instance, micro_batch = slot
    return name + _indices(instance, micro_batch)


def parse_slot(text: str) -> Slot:
    """The inverse of `format_slot`; raises ValueError on anything else."""
    match = _SLOT.fullmatch(text)
    if not match:
        raise ValueError("`name i4 m0`, an index that does not apply left out")
    return match[1], _index(match[2]), _index(match[3])


ActionText = Annotated[Any, from_text(parse_action)]
RegisterText = Annotated[Any, from_text(parse_register)]
SlotText = Annotated[Any, from_text(parse_slot)]
