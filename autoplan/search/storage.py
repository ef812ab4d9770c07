"""Stored layouts of a parameter on one mesh: which there are, and what each costs.

Per subset of the axes along which the parameter is whole and its gradient partial, and per level (split
optimizer state; also gradients; also parameters). They touch only the operator that uses the parameter,
so they are options of its table and no outer choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from autoplan.ir.layout import Layout, split_factor
from autoplan.ir.plan import Stored
from autoplan.ir.workload import DTYPE_BYTES, Optimizer, Precision
from autoplan.ops.storing import LEVELS, splittable_axes, stored_at
from autoplan.search.prices import OperatorPrices, Transitions

FloatArray = NDArray[np.float64]
Rows = list[tuple[Stored, FloatArray]]

PER_BYTE, LATENCY = 0, 1
"""A vector has what scales with bytes and the latency of messages apart, since small parameters share
messages."""


class StorageOptions:
    """Options by (used layout, raw gradient layout).

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
        self._cache: dict[object, Rows] = {}
        self._latency: dict[int, FloatArray] = {}

    def options(
        self, name: str, dims: tuple[str, ...], used: Layout, raw: Layout, trainable: bool
    ) -> Rows:
        """(stored layouts, channel vector) pairs; never empty.

        Args:
            name: the parameter, only to tell equal dims of different sizes apart.
            dims: its dims.
            used: layout in which operators use it.
            raw: layout in which backward leaves its gradient (`used` if frozen).
            trainable: whether it has a gradient and optimizer state.
        """
        key = (dims, used, raw, trainable)
        if key not in self._cache:
            rows = [
                (stored, self._vector(dims, stored, used, raw, trainable))
                for stored in self._stored(dims, used, raw)
            ]
            allowed = [row for row in rows if self.allowed(row[0], used, raw)]
            self._cache[key] = allowed or rows[:1]
        return self._cache[key]

    def with_share(self, rows: Rows, vectors: FloatArray, share: float) -> FloatArray:
        """Vectors with the latency of shared messages scaled to this parameter's share."""
        latency = np.array([self._latency[id(vector)] for _, vector in rows])
        return vectors - latency * (1.0 - share)

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
        self, dims: tuple[str, ...], dtype: str, source: Layout, target: Layout
    ) -> tuple[float, float]:
        """(seconds that scale with bytes, latency) of a route."""
        extent = tuple(self.extent[dim] for dim in dims)
        table = self.transitions.table(dims, extent)
        seconds, per_byte = self.transitions.terms(table)
        i, j = table.number[source], table.number[target]
        nbytes = float(prod(extent)) * DTYPE_BYTES[dtype]
        return float(per_byte[i, j]) * nbytes, float(seconds[i, j])

    def _elements(self, dims: Sequence[str], layout: Layout) -> float:
        return prod(self.extent[dim] // split_factor(dim, layout, self.sizes) for dim in dims)

    def _vector(
        self, dims: tuple[str, ...], stored: Stored, used: Layout, raw: Layout, trainable: bool
    ) -> FloatArray:
        vector, latency = np.zeros(len(self.channels)), np.zeros(len(self.channels))
        precision = self.precision

        def add(channel: str, price: tuple[float, float]) -> None:
            vector[self.channels[channel]] += price[0] + price[1]
            latency[self.channels[channel]] += price[1]

        gather = self._route(dims, precision.parameter, stored.parameter, used)
        add("WF", gather)
        held = self._elements(dims, stored.parameter) * DTYPE_BYTES[precision.parameter]
        if trainable:
            add("WB", gather)
            add("WB", self._route(dims, precision.gradient, raw, stored.gradient))
            add("OK", self._route(dims, precision.gradient, stored.gradient, stored.optimizer))
            add("ON", self._route(dims, precision.parameter, stored.parameter, stored.optimizer))
            add("ON", self._route(dims, precision.parameter, stored.optimizer, stored.parameter))
            held += self._training(dims, stored, raw, vector)
        vector[self.channels["MW"]] = held
        self._latency[id(vector)] = latency
        return vector

    def _training(
        self, dims: tuple[str, ...], stored: Stored, raw: Layout, vector: FloatArray
    ) -> float:
        """Adds accumulation, norm and update; returns bytes of gradient and optimizer state."""
        precision, prices = self.precision, self.prices
        gradient = self._elements(dims, stored.gradient)
        shard = self._elements(dims, stored.optimizer)
        total = (gradient, precision.gradient)
        if stored.gradient != raw:
            vector[self.channels["WB"]] += prices.on_elements("accumulate", [total] * 2, [total])
        part, factor = (shard, precision.gradient), (1, precision.of("statistic"))
        vector[self.channels["ON"]] += prices.on_elements("square_sum", [part, factor], [factor])
        states = [precision.optimizer] * len(self.optimizer.states)
        if precision.master != precision.parameter:
            states.append(precision.master)
        updated = [(shard, dtype) for dtype in (precision.parameter, *states)]
        vector[self.channels["ON"]] += prices.on_elements(
            self.optimizer.name, [updated[0], part, factor, *updated[1:]], updated
        )
        held = gradient * DTYPE_BYTES[precision.gradient]
        return held + sum(shard * DTYPE_BYTES[dtype] for dtype in states)
