"""Builds the factors of a block: operators, transitions, what waits for backward, parameters."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from autoplan.ir.graph import GRADIENT, Op
from autoplan.ir.plan import Home
from autoplan.ir.workload import DTYPE_BYTES
from autoplan.lower.segments import recomputed
from autoplan.ops import FAMILIES, gradient_source
from autoplan.search.prices import IMPOSSIBLE, Local
from autoplan.search.setting import Setting
from autoplan.search.space import BlockSpace, IndexArray, Side
from autoplan.search.tables import (
    CHANNEL,
    COUNT,
    BlockTables,
    Chooser,
    FloatArray,
    SavedChoice,
    StoredChoice,
)


class TableBuilder:
    """Collects the factors of one block; adds up those with one option per scope.

    Args:
        space: the block's variables.
        setting: what the factors are built for.
    """

    def __init__(self, space: BlockSpace, setting: Setting) -> None:
        self.space, self.setting = space, setting
        self.block = space.block
        self.sizes = setting.mesh.sizes
        self.again = recomputed(space.block)
        self.domains = [self._domain(i) for i in range(len(space.variables))]
        self._plain: dict[tuple[int, ...], FloatArray] = {}
        self._choosers: list[Chooser] = []

    @property
    def possible(self) -> bool:
        """Whether every variable has a value left."""
        return all(len(domain) for domain in self.domains)

    def least_seconds(self) -> float:
        """Computing alone, forward and backward, each layer operator as its best choice has it.

        A bound of what the factors can give, at a fraction of their price; infinite where a
        variable has no value.
        """
        if not self.possible:
            return float("inf")
        totals: dict[str, FloatArray] = {}
        for op in (*self.block.forward, *self.block.backward):
            if op.group:
                totals[op.group] = totals.get(op.group, 0.0) + self._seconds(op)
        return sum(float(total.min()) for total in totals.values())

    def build(self) -> BlockTables | None:
        """All factors; None where pins or divisibility leave a variable without a value."""
        if not self.possible:
            return None
        self._operators()
        self._forward_transitions()
        self._backward_transitions()
        self._saved()
        self._read_again()
        for op in self.block.forward:
            for position, name in enumerate(op.inputs):
                if self.block.tensors[name].role == "parameter":
                    self._parameter(op, position, name)
        plain = [Chooser(scope, values) for scope, values in self._plain.items()]
        return BlockTables(self.space, self.domains, [*plain, *self._choosers], self.setting.tied)

    # --- domains --------------------------------------------------------------------------------

    def _domain(self, number: int) -> IndexArray:
        variable, allowed = self.space.variables[number], self.setting.allowed
        followers = [
            (group, self.space.choices[group])
            for group in self.space.followed
            if self.space.groups[group] == number
        ]
        keep = [
            i
            for i, value in enumerate(variable.values)
            if self._divides(value)
            and allowed(variable.name, value)
            and all(allowed(group, choices[i]) for group, choices in followers)
        ]
        return np.array(keep, dtype=np.intp)

    def _divides(self, value: object) -> bool:
        """Whether every dim that the value splits divides by the axes that split it."""
        if isinstance(value, Home):
            return all(
                self._parts_divide([p.name if p.kind == "S" else None for p in layout])
                for layout in (value.value, value.gradient)
            )
        assert isinstance(value, tuple)
        return self._parts_divide([None if dim == "P" else dim for dim in value])

    def _parts_divide(self, dims: Sequence[str | None]) -> bool:
        left = dict(self.setting.extent)
        for dim, size in zip(dims, self.sizes, strict=True):
            if dim is not None:
                if left[dim] % size:
                    return False
                left[dim] //= size
        return True

    # --- adding ---------------------------------------------------------------------------------

    def add(self, scope: tuple[int, ...], channel: str, values: FloatArray) -> None:
        """Add to the one-option factor of a scope; the scope may be in any order."""
        if len(scope) == 2 and scope[0] > scope[1]:
            scope, values = (scope[1], scope[0]), values.T
        if len(scope) == 2 and scope[0] == scope[1]:
            scope, values = scope[:1], np.diagonal(values)
        if scope not in self._plain:
            shape = [len(self.domains[v]) for v in scope]
            self._plain[scope] = np.zeros((COUNT, 1, *shape))
        self._plain[scope][CHANNEL[channel], 0] += values

    # --- operators ------------------------------------------------------------------------------

    def _operators(self) -> None:
        for op in self.block.forward:
            accumulates = FAMILIES[op.family].accumulates
            seconds = self._per_micro_batch(op) if accumulates else self._seconds(op)
            self.add((self.space.groups[op.group],), "XF", seconds)
            if op.name in self.again:
                self.add((self.space.groups[op.group],), "RC", seconds)
        for op in self.block.backward:
            if not op.group:
                self._sum(op)
            elif self.block.tensors[op.outputs[0]].role != "parameter_gradient":
                self.add((self.space.groups[op.group],), "XB", self._seconds(op))

    def _seconds(self, op: Op, accumulate: bool = False) -> FloatArray:
        domain = self.domains[self.space.groups[op.group]]
        known = self.setting.prices.columns
        key = (self.block.name, op.name, accumulate, self.setting.extent["b"], self.sizes)
        at = (*key, domain.tobytes())
        if at not in known:
            choices = self.space.choices[op.group]
            dims = self.setting.prices.dims(self.block, op)
            rows = [self._local(dims, choices[i]) for i in domain]
            known[at] = self.setting.prices.seconds(self.block, op, rows, accumulate)
        return known[at]

    def _adding(self, parameter: str = "") -> float:
        """Share of micro-batches that add to what is there already: all but the first."""
        if parameter and parameter == self.setting.tied and self.setting.opened:
            return 1.0
        return 1.0 - 1.0 / self.setting.micro_batches

    def _per_micro_batch(self, op: Op, parameter: str = "") -> FloatArray:
        """Mean seconds of an operator that adds to what earlier micro-batches left."""
        first, later = self._seconds(op), self._seconds(op, accumulate=True)
        return first + self._adding(parameter) * (later - first)

    def _local(self, dims: Sequence[str], choices: Sequence[str | None]) -> Local:
        """Local sizes of dims under choices (or splits) per axis."""
        sizes = [self.setting.extent[dim] for dim in dims]
        for choice, size in zip(choices, self.sizes, strict=True):
            if choice in dims:
                sizes[dims.index(choice)] //= size
        return tuple(sizes)

    def _sum(self, op: Op) -> None:
        """Adding up gradients, at home or, for a tensor without one, as its readers leave them."""
        source = gradient_source(op.outputs[0])
        if source in self.space.hubs:
            side = self._at(self.space.home(source, gradient=True))
        else:
            side = self._produced(op.inputs[0])
        dims = self.setting.prices.dims(self.block, op)
        rows = [
            self._local(dims, [p.name if p.kind == "S" else None for p in layout])
            for layout in side.layouts
        ]
        self.add((side.variable,), "XB", self.setting.prices.seconds(self.block, op, rows))

    # --- transitions ----------------------------------------------------------------------------

    def _at(self, side: Side) -> Side:
        return side.at(self.domains[side.variable])

    def _produced(self, tensor: str) -> Side:
        """A tensor as its operator leaves it."""
        op = self.block.producer[tensor]
        while not op.group:  # a sum of gradients lies as its operands do
            tensor = op.inputs[0]
            op = self.block.producer[tensor]
        return self._at(self.space.result(op, op.outputs.index(tensor)))

    def _home(self, hub: str, gradient: bool) -> Side:
        return self._at(self.space.home(hub, gradient))

    def _read(self, op: Op, position: int) -> Side:
        return self._at(self.space.operand(op, position))

    def _width(self, tensor: str) -> int:
        return DTYPE_BYTES[self.setting.precision.of(self.block.tensors[tensor].dtype)]

    def _price(self, tensor: str, source: Side, target: Side) -> FloatArray:
        dims = self.block.tensors[tensor].dims
        extent = tuple(self.setting.extent[dim] for dim in dims)
        return self.setting.transitions.price((dims, extent, self._width(tensor)), source, target)

    def _edge(self, tensor: str, source: Side, target: Side, *channels: str) -> None:
        seconds = self._price(tensor, source, target)
        for channel in channels:
            self.add((source.variable, target.variable), channel, seconds)

    def _forward_transitions(self) -> None:
        seen: set[tuple[str, int]] = set()
        for op in self.block.forward:
            channels = ("XF", "RC") if op.name in self.again else ("XF",)
            number = self.space.groups[op.group]
            for position, name in enumerate(op.inputs):
                if self.block.tensors[name].role != "activation" or (name, number) in seen:
                    continue
                seen.add((name, number))
                hub = name in self.space.hubs
                source = self._home(name, gradient=False) if hub else self._produced(name)
                self._edge(name, source, self._read(op, position), *channels)
            for name in op.outputs:
                if name in self.space.hubs:
                    home = self._home(name, gradient=False)
                    self._edge(name, self._produced(name), home, *channels)

    def _backward_transitions(self) -> None:
        """Gradients travel from the operators that leave them, through homes, to their readers."""
        seen: set[tuple[str, int]] = set()
        for op in self.block.backward:
            for name in op.outputs:
                self._to_gradient_home(op, name)
            for position, name in enumerate(op.inputs):
                if self.block.tensors[name].role == "gradient":
                    target = self._gradient_target(op, position)
                    if target is not None and (name, target.variable) not in seen:
                        seen.add((name, target.variable))
                        self._edge(name, self._gradient(name), target, "XB")

    def _gradient(self, name: str) -> Side:
        """Where readers fetch a gradient: at home, or as its operator left it."""
        source = gradient_source(name)
        hub = source in self.space.hubs
        return self._home(source, gradient=True) if hub else self._produced(name)

    def _to_gradient_home(self, op: Op, name: str) -> None:
        """A gradient of a hub goes home before anything reads it."""
        source = gradient_source(name)
        if op.group and self.block.tensors[name].role == "gradient" and source in self.space.hubs:
            self._edge(name, self._produced(name), self._home(source, gradient=True), "XB")

    def _gradient_target(self, op: Op, position: int) -> Side | None:
        """Where a backward operator wants a gradient; None if it is there by construction.

        A sum wants its operands at home; contributions are there already, but for another hub's
        gradient that comes through a residual addition.
        """
        if op.group:
            return self._read(op, position)
        into, of = gradient_source(op.outputs[0]), gradient_source(op.inputs[position])
        if into == of or into not in self.space.hubs:
            return None
        return self._home(into, gradient=True)

    # --- what waits for backward ----------------------------------------------------------------

    def _nbytes(self, tensor: str, side: Side) -> FloatArray:
        dims = self.block.tensors[tensor].dims
        whole = prod(self.setting.extent[dim] for dim in dims) * self._width(tensor)
        return whole / side.parts(self.sizes)

    def _readers(self, tensor: str) -> list[Side]:
        """Distinct ways in which backward reads a saved tensor."""
        readers: dict[tuple[int, bytes], Side] = {}
        for op in self.block.backward:
            for position, name in enumerate(op.inputs):
                if name == tensor:
                    side = self._read(op, position)
                    readers[side.variable, side.numbers.tobytes()] = side
        return list(readers.values())

    def _read_again(self) -> None:
        """Where forward is run again, backward reads what that leaves, or fetches it from there."""
        for tensor in self.block.saved:
            hub = tensor in self.space.hubs
            source = self._home(tensor, gradient=False) if hub else self._produced(tensor)
            there = [
                self._read(op, position)
                for op in self.block.forward if op.name in self.again
                for position, name in enumerate(op.inputs) if name == tensor
            ]  # fmt: skip
            for reader in self._readers(tensor):
                seconds = self._price(tensor, source, reader)
                for side in there:
                    if side.variable == reader.variable:
                        seconds = np.where(side.numbers == reader.numbers, 0.0, seconds)
                self.add((source.variable, reader.variable), "RC", seconds)

    def _saved(self) -> None:
        block = self.block
        if block.input and block.backward:
            home = self._home(block.input, gradient=False)
            self.add((home.variable,), "MX", self._nbytes(block.input, home))
        for tensor in block.saved:
            if tensor in self.space.hubs:
                self._saved_hub(tensor)
            else:
                self._saved_between(tensor)

    def _saved_hub(self, tensor: str) -> None:
        """A hub waits at home or as its operator left it; readers fetch it from home."""
        home = self._home(tensor, gradient=False)
        for reader in self._readers(tensor):
            self._edge(tensor, home, reader, "RG")
        if tensor == self.block.input:
            return
        produced = self._produced(tensor)
        values = np.zeros((COUNT, 2, len(produced.layouts), len(home.layouts)))
        values[CHANNEL["MA"], 0] = self._nbytes(tensor, home)[None, :]
        values[CHANNEL["MA"], 1] = self._nbytes(tensor, produced)[:, None]
        values[CHANNEL["RG"], 1] = self._price(tensor, produced, home)
        self._never_partial(values, 1, produced)
        self._choose((produced, home), values, SavedChoice(tensor, (home, produced)))

    def _saved_between(self, tensor: str) -> None:
        """Any other tensor waits as its operator left it, or as the reader needs it."""
        produced = self._produced(tensor)
        readers = self._readers(tensor)
        own = [side for side in readers if side.variable == produced.variable]
        others = [side for side in readers if side.variable != produced.variable]
        if not others:  # it waits as its own operator's backward reads it
            self.add((produced.variable,), "MA", self._nbytes(tensor, own[0]))
            return
        (other,) = others
        values = np.zeros((COUNT, 2, len(produced.layouts), len(other.layouts)))
        values[CHANNEL["MA"], 0] = self._nbytes(tensor, produced)[:, None]
        values[CHANNEL["RG"], 0] = self._price(tensor, produced, other)
        values[CHANNEL["MA"], 1] = self._nbytes(tensor, other)[None, :]
        for side in own:
            values[CHANNEL["RG"], 0] += np.diagonal(self._price(tensor, produced, side))[:, None]
            values[CHANNEL["RG"], 1] += self._price(tensor, other, side).T
        self._never_partial(values, 0, produced)
        self._choose((produced, other), values, SavedChoice(tensor, (produced, other)))

    def _never_partial(self, values: FloatArray, option: int, side: Side) -> None:
        """Partial sums do not wait for backward."""
        for channel in ("MA", "RG"):
            values[CHANNEL[channel], option, side.partial] = IMPOSSIBLE

    def _choose(self, sides: tuple[Side, Side], values: FloatArray, meaning: SavedChoice) -> None:
        """Add a factor with options over the variables of two sides."""
        first, second = sides[0].variable, sides[1].variable
        scope: tuple[int, ...] = (first, second)
        if first == second:  # an addition at its hub's home
            scope, values = (first,), np.diagonal(values, axis1=2, axis2=3)
        elif first > second:
            scope, values = (second, first), values.transpose(0, 1, 3, 2)
        self._choosers.append(Chooser(scope, values, meaning))

    # --- parameters -----------------------------------------------------------------------------

    def _parameter(self, op: Op, position: int, name: str) -> None:
        used = self.space.operand(op, position)
        trainable = name in self.block.trainable
        writer = self.block.producer[GRADIENT + name] if trainable else None
        raw = self.space.result(writer, writer.outputs.index(GRADIENT + name)) if writer else used
        price = self.setting.storage.parameter(self.block, name, used, raw)
        domain = self.domains[used.variable]
        values = price.values[:, :, domain].copy()
        if writer:
            fresh, mean = self._seconds(writer), self._per_micro_batch(writer, name)
            values[CHANNEL["XB"]] += np.where(price.reduced[:, domain], fresh, mean)
            values[CHANNEL["WB"]] += self._adding(name) * price.accumulate[:, domain]
        options = [price.options[i] for i in domain]
        self._choosers.append(Chooser((used.variable,), values, StoredChoice(name, options)))
