"""Stored layouts of a parameter on one mesh: which there are, and what each costs.

Per subset of the axes along which the parameter is whole and its gradient partial, and per level
(split optimizer state; also gradients; also parameters). They touch only the operator that uses the
parameter, so they are options of its table and no outer choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from autoplan.ir.graph import Block
from autoplan.ir.layout import Layout, split_factor
from autoplan.ir.plan import Stored
from autoplan.ir.workload import DTYPE_BYTES, Optimizer, Precision
from autoplan.ops.storing import LEVELS, splittable_axes, stored_at
from autoplan.ops.updating import Compute, Form, Policy, form_of, recipe
from autoplan.search.prices import IMPOSSIBLE, OperatorPrices, RoutePrices, Transitions
from autoplan.search.space import Side

FloatArray = NDArray[np.float64]
Rows = list[tuple[Stored, FloatArray, FloatArray]]


@dataclass(frozen=True)
class ParameterPrices:
    """What storing a parameter costs, for every value of the variable of its operator.

    Attributes:
        values: (channels, options, values); impossible where a value has fewer options.
        options: per value its options.
        reduced: (options, values), whether every micro-batch reduces the gradient.
        accumulate: (options, values), seconds to add a reduced gradient to those before it.
    """

    values: FloatArray
    options: tuple[tuple[Stored, ...], ...]
    reduced: NDArray[np.bool_]
    accumulate: FloatArray


class StorageOptions:
    """Options by (used layout, raw gradient layout); what scales with bytes and the latency of
    messages are kept apart, since the parameters of a block share messages.

    Args:
        prices: of operators.
        transitions: on the mesh.
        extent: global sizes.
        workload: (precision, optimizer).
        allowed: whether pins allow a `Stored`, given (used, raw).
        channels: channel name -> position in a vector.
    """

    def __init__(
        self, prices: OperatorPrices, transitions: Transitions, extent: Mapping[str, int],
        workload: tuple[Precision, Optimizer], allowed: Callable[[Stored, Layout, Layout], bool],
        channels: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.prices, self.transitions, self.extent = prices, transitions, extent
        self.precision, self.optimizer = workload
        self.allowed, self.channels = allowed, channels
        self.sizes = transitions.mesh.sizes
        self._rows: dict[object, Rows] = {}
        self._routes: dict[tuple[str, ...], tuple[dict[Layout, int], RoutePrices, float]] = {}
        self._moves: dict[object, tuple[float, float]] = {}
        self._counts: dict[tuple[tuple[str, ...], Layout], float] = {}
        self._updates: dict[object, tuple[float, float, float]] = {}
        self._parameters: dict[tuple[str, str], ParameterPrices] = {}
        self._policy = Policy(self.optimizer, self.precision, extent)

    def parameter(self, block: Block, name: str, used: Side, raw: Side) -> ParameterPrices:
        """Options and prices of one parameter.

        Args:
            block: that has it.
            name: the parameter.
            used: as the operator uses it, per value of the operator's variable.
            raw: as backward leaves its gradient (`used` if it is frozen).
        """
        key = (block.name, name)
        if key not in self._parameters:
            self._parameters[key] = self._collect(block, name, used, raw)
        return self._parameters[key]

    def _collect(self, block: Block, name: str, used: Side, raw: Side) -> ParameterPrices:
        dims = block.tensors[name].dims
        form = form_of(block, name) if name in block.trainable else None
        share = self._share(block, name)
        pairs = zip(used.layouts, raw.layouts, strict=True)
        table = [self._options(dims, (u, r), form, share) for u, r in pairs]
        most = max(len(rows) for rows in table)
        values = np.full((len(self.channels), most, len(table)), IMPOSSIBLE)
        accumulate = np.zeros((most, len(table)))
        for index, rows in enumerate(table):
            for option, (stored, vector, latency) in enumerate(rows):
                values[:, option, index] = vector + share * latency
                if stored.gradient != raw.layouts[index]:
                    accumulate[option, index] = self._accumulate(dims, stored)
        options = tuple(tuple(row[0] for row in rows) for rows in table)
        return ParameterPrices(values, options, accumulate > 0.0, accumulate)

    def _share(self, block: Block, name: str) -> float:
        """Share of a message's latency that a parameter bears: moves of a block share messages."""
        sizes = {
            other: float(prod(self.extent[dim] for dim in block.tensors[other].dims))
            for other in block.parameters
        }
        return sizes[name] / sum(sizes.values())

    def _options(
        self, dims: tuple[str, ...], layouts: tuple[Layout, Layout], form: Form | None, share: float
    ) -> Rows:
        """(stored layouts, what scales with bytes, latency) rows; one impossible row if the layout
        in use does not divide. Without a form the parameter is frozen.

        Args:
            dims: of the parameter.
            layouts: as the operator uses it, and as backward leaves its gradient.
            form: of its update.
            share: of a message that is this parameter's: how long the message is decides which
                of a price's lines holds.
        """
        key = (dims, layouts, form, share)
        if key not in self._rows:
            self._rows[key] = self._find_options(dims, layouts, form, share)
        return self._rows[key]

    def _find_options(
        self, dims: tuple[str, ...], layouts: tuple[Layout, Layout], form: Form | None, share: float
    ) -> Rows:
        used, raw = layouts
        if any(self.extent[dim] % split_factor(dim, used, self.sizes) for dim in dims):
            return []
        rows = [
            (stored, *self._vectors(dims, stored, layouts, form, share))
            for stored in self._stored(dims, used, raw)
        ]
        return [row for row in rows if self.allowed(row[0], used, raw)] or rows[:1]

    def _stored(self, dims: tuple[str, ...], used: Layout, raw: Layout) -> list[Stored]:
        tensor = (dims, self.extent, self.sizes)
        axes = splittable_axes(used, raw)
        table = {stored_at("whole", used, raw, (), tensor): None}
        for count in range(1, len(axes) + 1):
            for subset in combinations(axes, count):
                for level in LEVELS[1:]:
                    table[stored_at(level, used, raw, subset, tensor)] = None
        return list(table)

    def _route(
        self, dims: tuple[str, ...], dtype: str, ends: tuple[Layout, Layout], share: float
    ) -> tuple[float, float]:
        """(seconds that scale with bytes, latency of the message) of a route between two layouts.

        The other parameters of the message are taken to move as this one does.
        """
        key = (dims, dtype, ends, share)
        if key not in self._moves:
            self._moves[key] = self._find_route(*key)
        return self._moves[key]

    def _find_route(
        self, dims: tuple[str, ...], dtype: str, ends: tuple[Layout, Layout], share: float
    ) -> tuple[float, float]:
        if dims not in self._routes:
            extent = tuple(self.extent[dim] for dim in dims)
            table = self.transitions.table(dims, extent)
            self._routes[dims] = table.number, self.transitions.routes(table), float(prod(extent))
        number, routes, elements = self._routes[dims]
        nbytes = elements * DTYPE_BYTES[dtype]
        summed = any(placement.kind == "P" for placement in ends[0])
        part = self._elements(dims, ends[0]) * DTYPE_BYTES[dtype]
        count = self.transitions.pricer.message_count(summed, part, share)
        size = nbytes / share / count
        seconds, per_byte = routes.line(number[ends[0]], number[ends[1]], size)
        return per_byte * nbytes, seconds * count

    def _elements(self, dims: tuple[str, ...], layout: Layout) -> float:
        key = (dims, layout)
        if key not in self._counts:
            self._counts[key] = prod(
                self.extent[dim] // split_factor(dim, layout, self.sizes) for dim in dims
            )
        return self._counts[key]

    def _vectors(
        self, dims: tuple[str, ...], stored: Stored, layouts: tuple[Layout, Layout],
        form: Form | None, share: float,
    ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
        used, raw = layouts
        vector, latency = np.zeros(len(self.channels)), np.zeros(len(self.channels))
        precision = self.precision

        def add(channel: str, price: tuple[float, float]) -> None:
            vector[self.channels[channel]] += price[0]
            latency[self.channels[channel]] += price[1]

        def reduce(channel: str, source: Layout, target: Layout) -> None:
            if source != target:
                cast = self._cast(dims, source, "gradient", "reduce")
                back = self._cast(dims, target, "reduce", "gradient")
                add(channel, (cast + back, 0.0))
                add(channel, self._route(dims, precision.reduce, (source, target), share))

        read = precision.read("parameter")
        gather = self._route(dims, read, (stored.parameter, used), share)
        cast = self._cast(dims, stored.parameter, "parameter", "compute")
        channels = ("WF", "WB") if form else ("WF",)
        for channel in channels:
            add(channel, (gather[0] + cast, gather[1]))
        held = self._elements(dims, stored.parameter) * DTYPE_BYTES[precision.parameter]
        if form:
            reduce("WB", raw, stored.gradient)
            reduce("OK", stored.gradient, stored.optimizer)
            ends = stored.parameter, stored.optimizer
            add("ON", self._route(dims, precision.parameter, ends, share))
            add("ON", self._route(dims, precision.parameter, ends[::-1], share))
            held += self._training((dims, stored, form, share), (vector, latency))
        vector[self.channels["MW"]] = held
        return vector, latency

    def _cast(self, dims: tuple[str, ...], layout: Layout, source: str, target: str) -> float:
        """Seconds to cast a rank's piece between the dtypes of two roles."""
        before, after = self.precision.of(source), self.precision.of(target)
        count = self._elements(dims, layout)
        if before == after:
            return 0.0
        return self.prices.on_elements("cast", [(count, before)], [(count, after)])

    def _accumulate(self, dims: tuple[str, ...], stored: Stored) -> float:
        """Seconds to add one micro-batch's reduced gradient to those before it."""
        total = (self._elements(dims, stored.gradient), self.precision.gradient)
        return self.prices.on_elements("accumulate", [total] * 2, [total])

    def _training(
        self, what: tuple[tuple[str, ...], Stored, Form, float],
        totals: tuple[FloatArray, FloatArray],
    ) -> float:  # fmt: skip
        """Adds norm and update; returns bytes of gradient and optimizer state."""
        dims, stored, form, share = what
        key = (dims, form, stored.optimizer, share)
        if key not in self._updates:
            self._updates[key] = self._update(dims, form, stored.optimizer, share)
        scaling, latency, held = self._updates[key]
        totals[0][self.channels["ON"]] += scaling
        totals[1][self.channels["ON"]] += latency
        gradient = self._elements(dims, stored.gradient)
        return gradient * DTYPE_BYTES[self.precision.gradient] + held

    def _update(
        self, dims: tuple[str, ...], form: Form, layout: Layout, share: float
    ) -> tuple[float, float, float]:
        """(seconds that scale with bytes, latency, bytes of state) of a shard's norm and update."""
        precision, prices = self.precision, self.prices
        part = (self._elements(dims, layout), precision.gradient)
        factor = (1, precision.of("statistic"))
        # One operator adds up the squares of all parameters of a block.
        latency = prices.on_elements("square_sum", [factor], [factor])
        scaling = prices.on_elements("square_sum", [part, factor], [factor]) - latency
        made = recipe(self._policy, form, dims, layout)
        for step in made.steps:
            if isinstance(step, Compute):
                scaling += prices.updating(step, self.sizes)
            else:
                piece = step.piece
                route = self._route(piece.dims, piece.dtype, (piece.layout, step.target), share)
                scaling += route[0]
                latency += route[1]
        states = (piece.register(self.sizes, self.extent) for piece in made.states)
        return scaling, latency, float(sum(s.nbytes for s in states))
