"""A Program: the one deterministic lowering of a Plan, which simulator and runtime both execute.

A Program has one `StageProgram` per stage, with all chunks of the model that the stage holds; all
ranks of a stage execute the same one. Its *segments* are functions over registers: every
instruction defines new values (an in-place or view result names the register whose buffer it takes
in `alias`). Its *actions* call segments with slots bound to the formals, and send, receive, wait
and free.

A slot is (name, instance, micro-batch), with -1 where an index does not apply. Memory is counted
in issue order: after each instruction, the bytes of the distinct buffers that any live slot or
register refers to, its outputs present and its frees not yet done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from autoplan.ir.graph import Attrs
from autoplan.ir.layout import Layout, Mesh
from autoplan.ir.workload import DTYPE_BYTES

Slot = tuple[str, int, int]

COLLECTIVES = frozenset({"all_gather", "reduce_scatter", "all_reduce", "all_to_all"})
"""Instruction names that communicate. Each takes n operands and gives n results (a bucket: one
message). Attributes: `axes`, indices of mesh axes in mesh order, or the name of a group of its own
(`world`, `tied:<parameter>`); `dims`, one storage dim index per operand (all_gather,
reduce_scatter: the dim gathered or scattered; all_to_all: pairs (from, to)); `reduction`."""

ACTION_KINDS = (
    "FEED", "RECV", "GATHER", "F", "B", "REDUCE", "SEND", "WAIT", "FREE", "NORM", "STEP",
)  # fmt: skip

LASTING = frozenset({"parameter", "master", "state", "scale", "scale_counts"})
"""Kinds of source of the resident slots that go on from step to step; others are fed anew."""


class Register(NamedTuple):
    """The type of a value.

    Attributes:
        name: tensor name, for people.
        shape: local shape.
        dtype: a key of `DTYPE_BYTES`.
        category: line of the memory account: parameters, gradients, optimizer, gathered,
            activations, logits, communication.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    category: str

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Instr:
    """One instruction.

    Attributes:
        op: operator family, a collective, or `slice` (attrs `axes`, `dim`: this rank's part,
            copied).
        ins, outs: register numbers.
        attrs: attributes as (name, value) pairs; `shard` = ((dim index, axes), ...) of the
            dims whose global offset a kernel needs.
        alias: per output the register whose buffer it takes, or -1 for a fresh buffer.
        frees: registers that nothing reads after this instruction.
    """

    op: str
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    attrs: Attrs = ()
    alias: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value, or `default`."""
        for key, value in self.attrs:
            if key == name:
                return value
        return default


class Formal(NamedTuple):
    """A parameter of a segment.

    Attributes:
        register: the register it binds.
        intent: "in" (lent), "move" (consumed), "out" (defined) or "acc" (consumed and returned:
            the segment's `returns` names the register that replaces it).
        name: slot name.
        layer: offset added to the action's instance, or None for no instance index.
        per_micro_batch: whether the slot has a micro-batch index.
        returns: for "acc", the register stored back; otherwise -1.
    """

    register: int
    intent: str
    name: str
    layer: int | None
    per_micro_batch: bool
    returns: int = -1

    def slot(self, instance: int, micro_batch: int) -> Slot:
        """The slot it binds for an action's instance and micro-batch."""
        return (
            self.name,
            -1 if self.layer is None else instance + self.layer,
            micro_batch if self.per_micro_batch else -1,
        )


@dataclass(frozen=True, eq=False)
class Segment:
    """A function that actions call.

    Attributes:
        key: unique in its Program, e.g. `layer/F`, `layer/B.first`.
        formals: its parameters.
        registers: type of every register.
        code: its instructions in issue order.
    """

    key: str
    formals: tuple[Formal, ...]
    registers: tuple[Register, ...]
    code: tuple[Instr, ...]


class Action(NamedTuple):
    """One step of a stage's list.

    Attributes:
        kind: one of `ACTION_KINDS`.
        segment: key of the segment called, or "" for FEED, RECV, SEND, WAIT, FREE.
        instance: index into the graph's instances, or -1.
        micro_batch: index, or -1.
        peer: stage sent to or received from, or -1.
        slots: names of the slots sent, received, waited for, fed or freed (their indices are the
            action's).
    """

    kind: str
    segment: str = ""
    instance: int = -1
    micro_batch: int = -1
    peer: int = -1
    slots: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [self.kind, self.segment or ",".join(self.slots)]
        parts += [f"i{self.instance}"] if self.instance >= 0 else []
        parts += [f"m{self.micro_batch}"] if self.micro_batch >= 0 else []
        parts += [f"@{self.peer}"] if self.peer >= 0 else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A slot that exists before the first action, or that FEED or RECV creates.

    Attributes:
        slot: its key; FEED and RECV fill the micro-batch in.
        register: its type.
        layout: how the global tensor is cut over the stage's mesh.
        dims: dim names of the tensor.
        source: what fills it: ("parameter", full name), ("state", full name, state), ("master",
            full name), ("feed", name), ("count",), ("channel",), ("scale", initial value) of the
            loss, ("scale_counts",): good steps in a row and steps taken.
    """

    slot: Slot
    register: Register
    layout: Layout
    dims: tuple[str, ...]
    source: tuple[str, ...]

    @property
    def kept_as(self) -> str:
        """Its tensor's name in a checkpoint, the same in every plan; "" for what is fed anew."""
        kind = self.source[0]
        # The source of a scale also says how it begins, which what was saved replaces.
        named = self.source[:1] if kind == "scale" else self.source
        return "/".join(named) if kind in LASTING else ""


@dataclass(frozen=True, eq=False)
class StageProgram:
    """What every rank of one stage executes in one step.

    Attributes:
        stage: its index.
        mesh: its devices.
        segments: by key.
        actions: in issue order.
        resident: slots that live across steps (parameters, optimizer state) or the whole run
            (positions) or step (`count`).
        feeds: slots that FEED creates, by name.
        channels: slots that RECV creates, by name.
        gradients: full parameter name -> spec of the reduced gradient that STEP consumes.
    """

    stage: int
    mesh: Mesh
    segments: Mapping[str, Segment]
    actions: tuple[Action, ...]
    resident: tuple[SlotSpec, ...]
    feeds: Mapping[str, SlotSpec]
    channels: Mapping[str, SlotSpec]
    gradients: Mapping[str, SlotSpec]


@dataclass(frozen=True, eq=False)
class Program:
    """A whole step.

    Attributes:
        stages: in pipeline order.
        micro_batches: per step.
        batch: sequences per micro-batch over a whole stage.
        seq_len: positions per sequence.
        groups: named groups of ranks beyond mesh axes: name -> tuple of rank tuples (`world`: one;
            `tied:<parameter>`: one per mesh coordinate).
        extent: size of every dim, `b` included.
    """

    stages: tuple[StageProgram, ...]
    micro_batches: int
    batch: int
    seq_len: int
    groups: Mapping[str, tuple[tuple[int, ...], ...]]
    extent: Mapping[str, int]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, sorted."""
        return tuple(sorted(d for stage in self.stages for d in stage.mesh.devices()))

    @cached_property
    def stage_of(self) -> Mapping[int, int]:
        """Rank -> index of its stage."""
        return {d: s.stage for s in self.stages for d in s.mesh.devices()}
