"""Layouts of everything in a block, derived from its Strategy.

What operators read and leave follows from the splits of their layer operators; hubs have a home of their
own; gradients of hubs meet in the home's gradient layout. This is the one place where a strategy becomes
layouts: lowering, searching and describing all read it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from autoplan.errors import Refusal
from autoplan.ir.graph import GRADIENT, Block, Op
from autoplan.ir.layout import B, Layout, local_shape
from autoplan.ir.plan import Choice, Home, Strategy
from autoplan.ops.catalogue import FAMILIES
from autoplan.ops.family import block_signature

Signature = tuple[tuple[Layout, ...], tuple[Layout, ...]]


def op_signature(block: Block, op: Op, splits: tuple[Choice, ...], backward: bool) -> Signature:
    """Layouts of an operator's operands and results under the splits of its layer operator.

    The dual of partial sums passing through is a full gradient, so backward operators treat "P" as the
    same work on every rank.

    Raises:
        Refusal: the split is not legal for this operator.
    """
    if backward:
        splits = tuple(None if choice == "P" else choice for choice in splits)
    return block_signature(FAMILIES[op.family], op, block, splits)


def gradient_source(name: str) -> str:
    """The tensor whose gradient `d.x`, `d.x@op` or `d.x+2` is (a part of)."""
    return name.removeprefix(GRADIENT).split("@")[0].split("+")[0]


class BlockLayouts:
    """Layouts of a block's tensors under one strategy.

    Args:
        block: with backward operators.
        strategy: decisions for it.

    Raises:
        Refusal: a split is not legal, or a home is missing (on first use).
    """

    def __init__(self, block: Block, strategy: Strategy) -> None:
        self.block = block
        self.strategy = strategy
        self._hubs = frozenset(block.hubs)

    @cached_property
    def axes(self) -> int:
        """Number of mesh axes."""
        return len(next(iter(self.strategy.splits.values())))

    @cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """Operator name -> layouts of operands and results (sums of gradients aside)."""
        table = {}
        for ops, backward in ((self.block.forward, False), (self.block.backward, True)):
            for op in ops:
                if op.group:
                    splits = self.strategy.splits[op.group]
                    table[op.name] = op_signature(self.block, op, splits, backward)
        return table

    @cached_property
    def produced(self) -> Mapping[str, Layout]:
        """Layout in which each forward or backward result is left by its operator."""
        table: dict[str, Layout] = {}
        for op in (*self.block.forward, *self.block.backward):
            if op.group:
                table.update(zip(op.outputs, self.signatures[op.name][1], strict=True))
            else:
                home = self.gradient_home(gradient_source(op.outputs[0]))
                table[op.outputs[0]] = table[op.inputs[0]] if home is None else home
        return table

    def home(self, tensor: str) -> Home | None:
        """The home of a hub, or None for any other tensor."""
        if tensor not in self._hubs:
            return None
        try:
            return self.strategy.homes[tensor]
        except KeyError:
            raise Refusal(f"{self.block.name}: no home for {tensor}") from None

    def gradient_home(self, tensor: str) -> Layout | None:
        """Layout in which the gradient of a hub is summed; None where no home decides."""
        home = self.home(tensor)
        return home.gradient if home else None

    def operands(self, op: Op) -> tuple[Layout, ...]:
        """Layouts an operator reads its operands in."""
        if op.group:
            return self.signatures[op.name][0]
        return (self.produced[op.outputs[0]],) * len(op.inputs)

    @cached_property
    def used(self) -> Mapping[str, Layout]:
        """Parameter -> layout in which operators use it."""
        table: dict[str, Layout] = {}
        for op in self.block.forward:
            for name, layout in zip(op.inputs, self.operands(op), strict=True):
                if self.block.tensors[name].role == "parameter":
                    table.setdefault(name, layout)
        return table

    @cached_property
    def feeds(self) -> tuple[tuple[str, Layout], ...]:
        """(feed, layout) pairs that the block's operators read."""
        pairs = {}
        for op in (*self.block.forward, *self.block.backward):
            for name, layout in zip(op.inputs, self.operands(op), strict=True):
                if self.block.tensors[name].role == "feed":
                    pairs[name, layout] = None
        return tuple(pairs)

    @cached_property
    def saved(self) -> Mapping[str, Layout]:
        """Activation -> layout in which it waits for backward.

        By default a hub waits at home and any other tensor as its first backward reader uses it; the
        block's input waits as it came.
        """
        table: dict[str, Layout] = {}
        for op in self.block.backward:
            for name, layout in zip(op.inputs, self.operands(op), strict=True):
                if name in table or name not in self.block.saved:
                    continue
                home = self.home(name)
                table[name] = home.value if home else layout
        for name, layout in self.strategy.saved.items():
            if name in table and name != self.block.input:
                table[name] = layout
        return table

    def raw_gradient(self, parameter: str) -> Layout:
        """Layout in which backward leaves the gradient of a parameter."""
        return self.produced[GRADIENT + parameter]

    def check(self, sizes: tuple[int, ...], extent: Mapping[str, int]) -> None:
        """Check that every tensor divides in every layout it takes, and that homes are usable.

        Raises:
            Refusal: names the first that does not.
        """
        tensors = self.block.tensors
        for op in (*self.block.forward, *self.block.backward):
            for name, layout in zip(op.inputs, self.operands(op), strict=True):
                local_shape(tensors[name].dims, layout, sizes, extent)
            for name in op.outputs:
                local_shape(tensors[name].dims, self.produced[name], sizes, extent)
        for hub in self.block.hubs:
            home = self.home(hub)
            assert home is not None
            for layout in (home.value, home.gradient):
                local_shape(tensors[hub].dims, layout, sizes, extent)
            if any(p.kind == "P" for p in home.value):
                raise Refusal(f"{self.block.name}: {hub} would be partial at home")
        for name, stored in self.strategy.stored.items():
            for layout in (stored.parameter, stored.gradient, stored.optimizer):
                local_shape(tensors[name].dims, layout, sizes, extent)
            if any(p.kind == "P" for p in (*stored.parameter, *stored.optimizer)):
                raise Refusal(f"{self.block.name}: {name} would be stored as partial sums")


def replicated(axes: int) -> Layout:
    """A full copy on every rank."""
    return (B,) * axes
