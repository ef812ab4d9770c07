"""What an interpreter asks of a transport, and which ranks communicate with which.

An interpreter yields one of five requests and is sent the answer, a list that it empties: a
`Collective` the results, a `Receive` the tensor, the others nothing. A `Send` is answered at once;
its tensor must stay as it is until the `WaitSend` of that identity is answered. An `Expect` is
answered at once too: it tells of a `Receive` that comes later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoplan.errors import CheckError
from autoplan.ir.program import COLLECTIVES, Instr, Program, StageProgram

Identity = tuple[str, int, int, int, int]
"""Of a transfer: slot name, instance, micro-batch, sending rank, receiving rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """Take part in a collective.

    Attributes:
        instr: the instruction.
        group: all ranks that take part, in group order.
        index: this rank's place in the group.
        operands: its values.
        where: the action, for people.
    """

    instr: Instr
    group: tuple[int, ...]
    index: int
    operands: tuple[Tensor, ...]
    where: str

    @property
    def signature(self) -> tuple[Any, ...]:
        """What every member must agree on: operator, attributes, types of the operands."""
        types = tuple((x.dtype, tuple(x.shape)) for x in self.operands)
        return (self.instr.op, self.instr.attrs, types)

    def __str__(self) -> str:
        attrs = [f"{name}={value}" for name, value in self.instr.attrs]
        values = [f"{x.dtype}{list(x.shape)}" for x in self.operands]
        text = f"{self.instr.op}({', '.join(values + attrs)})".replace("torch.", "")
        return f"rank {self.group[self.index]}: {self.where}: {text}"


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    """Hand a tensor to a peer; goes on at once."""

    peer: int
    identity: Identity
    tensor: Tensor
    where: str


@dataclass(frozen=True, slots=True, eq=False)
class Receive:
    """Wait for a peer's tensor."""

    peer: int
    identity: Identity
    shape: tuple[int, ...]
    dtype: torch.dtype
    where: str


@dataclass(frozen=True, slots=True, eq=False)
class Expect:
    """The next that this rank will receive from a peer: it may arrive while the rank computes."""

    receive: Receive

    @property
    def where(self) -> str:
        """The action that will receive, for people."""
        return self.receive.where


@dataclass(frozen=True, slots=True, eq=False)
class WaitSend:
    """Wait until the tensor sent under this identity is no longer needed."""

    identity: Identity
    where: str


Request = Collective | Send | Receive | Expect | WaitSend


def coordinate_of(stage: StageProgram, rank: int) -> tuple[int, ...]:
    """Where a rank stands in its stage's mesh."""
    return dict(zip(stage.mesh.devices(), stage.mesh.coordinates(), strict=True))[rank]


def group_of(
    program: Program, stage: StageProgram, rank: int, axes: str | Sequence[int]
) -> tuple[int, ...]:
    """The group in which a rank performs a collective over `axes` (mesh axes or a group's name).

    Raises:
        CheckError: the named group has no member list with this rank.
    """
    if isinstance(axes, str):
        for ranks in program.groups.get(axes, ()):
            if rank in ranks:
                return ranks
        raise CheckError(f"rank {rank} communicates over group `{axes}`, of which it is no member")
    return stage.mesh.group(coordinate_of(stage, rank), axes)


def all_groups(program: Program) -> tuple[tuple[int, ...], ...]:
    """Every group of two or more ranks in which a collective of the program runs, sorted."""
    found: set[tuple[int, ...]] = set()
    for stage in program.stages:
        for axes in {instr.attr("axes") for instr in _collectives(stage)}:
            found.update(group_of(program, stage, rank, axes) for rank in stage.mesh.devices())
    return tuple(sorted(group for group in found if len(group) > 1))


def channels(program: Program) -> tuple[tuple[int, int], ...]:
    """Every (sending, receiving) pair of ranks, sorted."""
    found: set[tuple[int, int]] = set()
    for stage in program.stages:
        for peer in {action.peer for action in stage.actions if action.kind == "SEND"}:
            there = program.stages[peer].mesh.devices()
            found.update(zip(stage.mesh.devices(), there, strict=True))
    return tuple(sorted(found))


def _collectives(stage: StageProgram) -> Iterator[Instr]:
    for segment in stage.segments.values():
        yield from (instr for instr in segment.code if instr.op in COLLECTIVES)
