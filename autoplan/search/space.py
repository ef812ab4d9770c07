"""The variables of a block: what may be decided, whatever the mesh sizes.

One variable per layer operator (its choice per axis: forward, input gradient and weight gradient
are tied) and one per hub (a state per axis: split, full with a full gradient, full with a partial
gradient, so that partial gradients add up before they are reduced once). An addition that makes a
hub is done at the hub's home and has no variable, which keeps the width at 2. The block's input and
output share one variable: a chain of blocks uses one boundary layout. Symmetry of equal axes is not
broken per operator, since a grid of rows and columns needs (f, m) in one operator and (m, f) in the
next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from autoplan.boxing import layout_numbers
from autoplan.errors import Refusal
from autoplan.ir.graph import Block, Op
from autoplan.ir.layout import B, Layout, P, S
from autoplan.ir.plan import Choice, Home
from autoplan.ops import FAMILIES, op_signature

IndexArray = NDArray[np.intp]


@dataclass(frozen=True)
class Variable:
    """A decision of a block.

    Attributes:
        name: layer operator or hub.
        values: choices per axis of a layer operator, or homes of a hub.
    """

    name: str
    values: tuple[tuple[Choice, ...], ...] | tuple[Home, ...]


@dataclass(frozen=True)
class Side:
    """One end of a transition: a tensor as a variable decides it.

    Attributes:
        variable: its number.
        layouts: per value of the variable.
        numbers: their rows in route tables.
        split: (values, axes), whether the axis splits the tensor.
        partial: per value, whether some axis leaves partial sums.
    """

    variable: int
    layouts: tuple[Layout, ...]
    numbers: IndexArray
    split: NDArray[np.bool_]
    partial: NDArray[np.bool_]

    def at(self, domain: IndexArray) -> Side:
        """Only the values of a domain."""
        return Side(
            self.variable,
            tuple(self.layouts[i] for i in domain),
            self.numbers[domain],
            self.split[domain],
            self.partial[domain],
        )

    def parts(self, sizes: Sequence[int]) -> NDArray[np.float64]:
        """Into how many pieces each value cuts the tensor."""
        return np.asarray(np.where(self.split, np.array(sizes, dtype=np.float64), 1.0).prod(axis=1))


class BlockSpace:
    """Variables of one block on a mesh with `axes` axes, and the layouts that each value implies.

    Args:
        block: with backward operators.
        axes: number of mesh axes.

    Attributes:
        groups: layer operator -> variable number.
        followed: layer operator without a decision of its own -> the hub at whose home it works.
        hubs: hub -> variable number; input and output share one.
        boundary: the variable that neighbours share.
    """

    def __init__(self, block: Block, axes: int) -> None:
        self.block, self.axes = block, axes
        self._sides: dict[tuple[str, str, int], Side] = {}
        self.followed = {group: hub for group in block.groups if (hub := self._joins(group))}
        own = [group for group in block.groups if group not in self.followed]
        self.groups = {group: i for i, group in enumerate(own)}
        self.hubs: dict[str, int] = {}
        number = len(own)
        for hub in block.hubs:
            if hub in (block.input, block.output):
                continue
            self.hubs[hub] = number
            number += 1
        self.boundary = number
        for hub in filter(None, (block.input, block.output)):
            self.hubs[hub] = number
        self.groups.update({group: self.hubs[hub] for group, hub in self.followed.items()})

    def _joins(self, group: str) -> str:
        """The hub that a layer operator adds up, with nothing but pointwise work; "" for any other.

        Such an addition is done where its result is at home: it has no decision of its own.
        """
        members = [op for op, _ in self._members(group)]
        hub = next((op.outputs[0] for op in members if op.family == "add"), "")
        if hub not in self.block.hubs:
            return ""
        dims = self.block.tensors[hub].dims
        return hub if all(self._legal(self._members(group), dim) for dim in dims) else ""

    @cached_property
    def choices(self) -> Mapping[str, tuple[tuple[Choice, ...], ...]]:
        """Layer operator -> its choices for every value of its variable."""
        table: dict[str, tuple[tuple[Choice, ...], ...]] = {}
        for group, number in self.groups.items():
            values = self.variables[number].values
            table[group] = tuple(
                tuple(p.name if p.kind == "S" else None for p in value.value)
                if isinstance(value, Home)
                else value
                for value in values
            )
        return table

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """All variables in order of their numbers."""
        table: dict[int, Variable] = {}
        for group, number in self.groups.items():
            if group not in self.followed:
                table[number] = Variable(group, self._group_values(group))
        for hub, number in self.hubs.items():
            table.setdefault(number, Variable(hub, self._hub_values(hub, number == self.boundary)))
        return tuple(table[number] for number in range(len(table)))

    def _members(self, group: str) -> list[tuple[Op, bool]]:
        forward = [(op, False) for op in self.block.forward if op.group == group]
        return forward + [(op, True) for op in self.block.backward if op.group == group]

    def _group_values(self, group: str) -> tuple[tuple[Choice, ...], ...]:
        members = self._members(group)
        options: dict[Choice, None] = {}
        for op, _ in members:
            for choice in FAMILIES[op.family].choices(op, self.block.tensors):
                options[choice] = None
        legal = [choice for choice in options if self._legal(members, choice)]
        if self._adapts(group):
            legal = [choice for choice in legal if not self._splits_parameter(members, choice)]
        return tuple(product(legal, repeat=self.axes))

    def _adapts(self, group: str) -> bool:
        """Whether a layer operator is the inner half of an adapter, too small to split its weights.

        Every further choice would multiply the tables of the operators beside it.
        """
        outputs = (name for op in self.block.forward if op.group == group for name in op.outputs)
        return any("a" in self.block.tensors[name].dims for name in outputs)

    def _splits_parameter(self, members: Sequence[tuple[Op, bool]], choice: Choice) -> bool:
        tensors = (self.block.tensors[name] for op, _ in members for name in op.inputs)
        return any(choice in t.dims for t in tensors if t.role == "parameter")

    def _legal(self, members: Sequence[tuple[Op, bool]], choice: Choice) -> bool:
        """Whether every operator of the group can take the choice along one axis."""
        try:
            for op, backward in members:
                op_signature(self.block, op, (choice,), backward)
        except Refusal:
            return False
        return True

    def _hub_values(self, hub: str, boundary: bool) -> tuple[Home, ...]:
        states = [(S(dim), S(dim)) for dim in self.block.tensors[hub].dims]
        states += [(B, B)] if boundary else [(B, B), (B, P())]
        return tuple(
            Home(tuple(v for v, _ in axes), tuple(g for _, g in axes))
            for axes in product(states, repeat=self.axes)
        )

    @cached_property
    def layouts(self) -> Mapping[str, tuple[tuple[tuple[Layout, ...], tuple[Layout, ...]], ...]]:
        """Operator -> per value of its layer operator the layouts of operands and results."""
        return {
            op.name: self._rows(op, backward, rows)
            for group, rows in self.choices.items()
            for op, backward in self._members(group)
        }

    def _rows(
        self, op: Op, backward: bool, rows: Sequence[tuple[Choice, ...]]
    ) -> tuple[tuple[tuple[Layout, ...], tuple[Layout, ...]], ...]:
        """Layouts of operands and results for each row of choices; each axis is on its own."""
        alone = {
            choice: op_signature(self.block, op, (choice,), backward)
            for choice in {choice for row in rows for choice in row}
        }

        def joined(row: tuple[Choice, ...], end: int) -> tuple[Layout, ...]:
            return tuple(
                tuple(placement for (placement,) in axes)
                for axes in zip(*(alone[choice][end] for choice in row), strict=True)
            )

        if not self.axes:
            return (op_signature(self.block, op, (), backward),)
        return tuple((joined(row, 0), joined(row, 1)) for row in rows)

    def operand(self, op: Op, position: int) -> Side:
        """An operand, as every value of the operator's variable wants it."""
        return self._side(("in", op.name, position), op.inputs[position], self.groups[op.group])

    def result(self, op: Op, position: int) -> Side:
        """A result, as every value of the operator's variable leaves it."""
        return self._side(("out", op.name, position), op.outputs[position], self.groups[op.group])

    def home(self, hub: str, gradient: bool) -> Side:
        """A hub, or its gradient, for every value of its variable."""
        return self._side(("home", hub, int(gradient)), hub, self.hubs[hub])

    def _side(self, key: tuple[str, str, int], tensor: str, variable: int) -> Side:
        if key not in self._sides:
            layouts = self._side_layouts(key, variable)
            number = layout_numbers(self.block.tensors[tensor].dims, self.axes)
            grid = [[p.kind for p in layout] for layout in layouts]
            kinds = np.array(grid, dtype="U1").reshape(len(layouts), self.axes)
            self._sides[key] = Side(
                variable,
                layouts,
                np.array([number[layout] for layout in layouts], dtype=np.intp),
                kinds == "S",
                (kinds == "P").any(axis=1),
            )
        return self._sides[key]

    def _side_layouts(self, key: tuple[str, str, int], variable: int) -> tuple[Layout, ...]:
        kind, name, position = key
        if kind == "home":
            homes = self.variables[variable].values
            return tuple(h.gradient if position else h.value for h in homes)  # type: ignore[union-attr]
        return tuple(row[kind == "out"][position] for row in self.layouts[name])
