"""Layouts of everything in a block, derived from its Strategy.

What operators read and leave follows from the splits of their layer operators; hubs have a home
of their own; gradients of hubs meet in the home's gradient layout. This is the one place where a
strategy becomes layouts: lowering, searching and describing all read it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from autoplan.errors import Refusal
from autoplan.ir.graph import GRADIENT, Block, Op
from autoplan.ir.layout import B, Layout, format_layout, local_shape, reachable
from autoplan.ir.plan import Choice, Home, Strategy
from autoplan.ops.catalogue import FAMILIES
from autoplan.ops.family import block_signature

Signature = tuple[tuple[Layout, ...], tuple[Layout, ...]]
Move = tuple[str, Layout, Layout]
"""A tensor's change of layout: (name, from, to)."""


def op_signature(block: Block, op: Op, splits: tuple[Choice, ...], backward: bool) -> Signature:
    """Layouts of an operator's operands and results under the splits of its layer operator.

    The dual of partial sums passing through is a full gradient, so backward operators treat "P"
    as the same work on every rank.

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
        pairs: dict[tuple[str, Layout], None] = {}
        for op in (*self.block.forward, *self.block.backward):
            for name, layout in zip(op.inputs, self.operands(op), strict=True):
                if self.block.tensors[name].role == "feed":
                    pairs[name, layout] = None
        return tuple(pairs)

    @cached_property
    def saved(self) -> Mapping[str, Layout]:
        """Activation -> layout in which it waits for backward.

        By default a hub waits at home and any other tensor as its first backward reader uses it;
        the block's input waits as it came.
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

    def moves(self) -> Iterator[Move]:
        """Every change of layout that the strategy asks for; some are from a layout to itself."""
        block = self.block
        yield from self._reads(block.forward, {})
        for name, layout in self.saved.items():
            home = self.home(name)
            yield name, home.value if home else self.produced[name], layout
        yield from self._reads(block.backward, self.saved)
        if block.output:
            yield from self._through_home(block.output, self.produced[block.output])
        if block.passes_gradient:
            name = GRADIENT + block.input
            yield from self._through_home(name, self.produced[name])
        for name, stored in self.strategy.stored.items():
            yield name, stored.parameter, self.used[name]
            if name in block.trainable:
                yield GRADIENT + name, self.raw_gradient(name), stored.gradient
                yield GRADIENT + name, stored.gradient, stored.optimizer
                yield name, stored.optimizer, stored.parameter

    def _reads(self, ops: Sequence[Op], waiting: Mapping[str, Layout]) -> Iterator[Move]:
        for op in ops:
            for name, layout in zip(op.inputs, self.operands(op), strict=True):
                if self.block.tensors[name].role in ("activation", "gradient"):
                    source = waiting.get(name, self.produced.get(name))
                    yield from self._through_home(name, source, layout)

    def _through_home(
        self, name: str, source: Layout | None, target: Layout | None = None
    ) -> Iterator[Move]:
        """A hub moves home first.

        Without a source it is there already, without a target it stays.
        """
        gradient = self.block.tensors[name].role == "gradient"
        home = self.home(gradient_source(name) if gradient else name)
        if home is not None:
            at_home = home.gradient if gradient else home.value
            if source is not None:
                yield name, source, at_home
            source = at_home
        if source is not None and target is not None:
            yield name, source, target

    def check(self, sizes: tuple[int, ...], extent: Mapping[str, int]) -> None:
        """Check that every tensor divides in every layout it takes and can get from one to the
        next.

        Raises:
            Refusal: names the first that does not.
        """
        for name, layout in self.all_layouts():
            local_shape(self.block.tensors[name].dims, layout, sizes, extent)
        for name, source, target in self.moves():
            if not reachable(source, target):
                ways = f"{format_layout(source)} and cannot become {format_layout(target)}"
                raise Refusal(f"{self.block.name}: {name} is {ways}")

    def all_layouts(self) -> Iterator[tuple[str, Layout]]:
        """(tensor, layout) wherever one occurs.

        Raises:
            Refusal: a home's value or what is stored between steps would be partial.
        """
        for op in (*self.block.forward, *self.block.backward):
            yield from zip(op.inputs, self.operands(op), strict=True)
            yield from ((name, self.produced[name]) for name in op.outputs)
        for hub in self.block.hubs:
            home = self.home(hub)
            assert home is not None
            yield from ((hub, home.value), (hub, home.gradient))
            if any(p.kind == "P" for p in home.value):
                raise Refusal(f"{self.block.name}: {hub} would be partial at home")
        for name, stored in self.strategy.stored.items():
            layouts = (stored.parameter, stored.gradient, stored.optimizer)
            yield from ((name, layout) for layout in layouts)
            if any(p.kind == "P" for p in (*stored.parameter, *stored.optimizer)):
                raise Refusal(f"{self.block.name}: {name} would be stored as partial sums")
        yield from self.saved.items()


def replicated(axes: int) -> Layout:
    """A full copy on every rank."""
    return (B,) * axes
