"""A step under memory limits as linear rows, for given stages and given layers that run again.

The step is convex in the channel totals c of the blocks: a few greatest values of sums. Written
with a column y for every greatest value, it is

    minimise   q y + p c + constant     so that  G y + H c + k >= 0,  y >= 0

and for any u >= 0 with G' u <= q,

    (p - H' u) c - u k + constant

never exceeds it: weights of channels whose exact minimum over all decisions is a lower bound.
Memory that exceeds a limit is a column as well, so dear that it is used only where nothing fits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.cost import Pricer
from autoplan.search.chain import Chain, Pace, Solution, is_layer
from autoplan.search.step import Room, instance_seconds, pipelined
from autoplan.search.tables import CHANNEL, COUNT

FloatArray = NDArray[np.float64]
Expression = dict[int, float]
"""Column -> factor: channel totals from 0 on, greatest values below `CONSTANT`."""

CONSTANT = -1
OVER = 1e4
"""Price of memory beyond a limit: a step per so small a share of the limit's bytes."""


@dataclass(frozen=True)
class Cut:
    """Stages and layers run again.

    Attributes:
        bounds: first instance of each stage, and the number of instances.
        again: layers of each stage that run again.
    """

    bounds: tuple[int, ...]
    again: tuple[int, ...]


def _sum(*terms: tuple[float, Expression]) -> Expression:
    total: Expression = {}
    for factor, expression in terms:
        for column, value in expression.items():
            total[column] = total.get(column, 0.0) + factor * value
    return {column: value for column, value in total.items() if value}


class Relaxation:
    """The rows of a chain's step.

    Args:
        chain: blocks.
        cut: stages.
        pace: stages, micro-batches.
        room: memory per stage.
        pricer: whether streams overlap, fixed costs.
        seconds: about as long as a step; times are counted in it.

    Attributes:
        names: blocks in the order of their totals.
        unit: seconds and bytes of one unit of each channel of each block.
        q, p, constant, big_g, big_h, k: see the module, in units.
        excess: the columns of y that are bytes over a stage's limit.
    """

    def __init__(
        self, chain: Chain, cut: Cut, pace: Pace, room: Room, pricer: Pricer, seconds: float
    ) -> None:
        self.chain, self.cut, self.pace, self.room, self.pricer = chain, cut, pace, room, pricer
        self.names = list(chain.tables)
        self.seconds, self.bytes = seconds, float(max(room.limits))
        kinds = [self.bytes if name.startswith("M") else seconds for name in CHANNEL]
        self.unit = np.tile(np.array(kinds), len(self.names))
        self.flight = room.flight(pace)
        self.excess: list[int] = []
        self._columns: list[float] = []
        self._rows: list[Expression] = []
        self._members = [self._stage(s) for s in range(pace.stages)]
        objective = self._objective()
        count, features = len(self._columns), len(self.unit)
        table = np.zeros((len(self._rows) + 1, features + 1 + count))
        for row, expression in enumerate((*self._rows, objective)):
            for column, value in expression.items():
                table[row, column if column >= 0 else features - 1 - column] = value
        rows, last = table[:-1], table[-1]
        self.big_h, self.k = rows[:, :features], rows[:, features]
        self.big_g = rows[:, features + 1 :]
        self.p, self.constant = last[:features], float(last[features])
        self.q = last[features + 1 :] + np.array(self._columns)

    # --- rows -----------------------------------------------------------------------------------

    def _stage(self, stage: int) -> tuple[Counter[str], Counter[str]]:
        """Instances of each block that keep what backward needs, and that run again."""
        names = self.chain.order[self.cut.bounds[stage] : self.cut.bounds[stage + 1]]
        layers = [n for n in names if is_layer(n) and self.chain.graph.blocks[n].backward]
        again = Counter(layers[: self.cut.again[stage]])
        return Counter(names) - again, again

    def _channel(self, name: str, *channels: str) -> Expression:
        start = self.names.index(name) * COUNT
        return {start + CHANNEL[channel]: 1.0 for channel in channels}

    def _column(self, price: float = 0.0) -> Expression:
        self._columns.append(price)
        return {CONSTANT - len(self._columns): 1.0}

    def _greatest(self, *expressions: Expression, floor: float = 0.0) -> Expression:
        if len(expressions) == 1 and not floor:
            return expressions[0]
        column = self._column()
        for expression in expressions:
            self._rows.append(_sum((1.0, column), (-1.0, expression)))
        if floor:
            self._rows.append({**column, CONSTANT: -floor / self.seconds})
        return column

    def _beside(self, weights: Expression, *compute: Expression, floor: float) -> Expression:
        if self.pricer.overlaps:
            return self._greatest(*compute, weights, floor=floor)
        return _sum((1.0, self._greatest(*compute, floor=floor)), (1.0, weights))

    def _instance(self, name: str) -> list[tuple[Expression, Expression]]:
        """(a micro-batch, once a step) of an instance that keeps, and of one that runs again."""
        pricer = self.pricer
        forward = self._beside(
            self._channel(name, "WF"), self._channel(name, "XF"), floor=pricer.layer_floor(False)
        )
        once = self._channel(name, "ON")
        if not self.chain.graph.blocks[name].backward:
            return [(forward, _sum((1.0, once), (1.0, self._channel(name, "OK"))))]
        compute = [self._channel(name, "XB", "RG")]
        rows, floor = [], pricer.layer_floor(True)
        for _ in range(2 if any(name in again for _, again in self._members) else 1):
            if not pricer.overlaps:
                compute, floor = [self._greatest(*compute, floor=floor)], 0.0
            back = self._beside(self._channel(name, "WB"), *compute, floor=floor)
            last = self._beside(self._channel(name, "WB", "OK"), *compute, floor=floor)
            rows.append((_sum((1.0, forward), (1.0, back)),
                         _sum((1.0, once), (1.0, last), (-1.0, back))))  # fmt: skip
            compute.append(self._channel(name, "XB", "RC"))
        return rows

    def _objective(self) -> Expression:
        each = {name: self._instance(name) for name in self.names}
        seconds, ends = [], []
        for stage, (kept, again) in enumerate(self._members):
            parts = [
                (float(count), each[name][kind])
                for kind, group in enumerate((kept, again))
                for name, count in group.items()
            ]
            seconds.append(_sum(*((count, pair[0]) for count, pair in parts)))
            ends.append(_sum(*((count, pair[1]) for count, pair in parts)))
            excess = self._column(OVER)
            self.excess.append(len(self._columns) - 1)
            for row in self.held(stage):
                limit = {CONSTANT: self.room.limits[stage] / self.bytes}
                self._rows.append(_sum((1.0, limit), (1.0, excess), (-1.0, row)))
        rest = float(self.pace.micro_batches - 1)
        nothing = [0.0] * self.pace.stages
        fixed = pipelined(nothing, nothing, self.pace, self.room) + self.pricer.fixed_step
        return _sum(
            *((1.0, row) for row in seconds), (rest, self._greatest(*seconds)),
            (1.0, self._greatest(*ends)), (1.0, {CONSTANT: fixed / self.seconds}),
        )  # fmt: skip

    def held(self, stage: int) -> list[Expression]:
        """Bytes of a stage while each of its blocks runs."""
        kept, again = self._members[stage]
        flight = float(self.flight[stage])
        every = _sum(
            *((float(count), self._channel(name, "MW")) for name, count in (kept + again).items()),
            *((flight * count, self._channel(name, "MA")) for name, count in kept.items()),
            *((flight * count, self._input(name)) for name, count in (kept + again).items()),
        )
        return [_sum((1.0, every), (1.0, self._channel(name, "MA"))) for name in kept + again]

    def _input(self, name: str) -> Expression:
        return self._channel(name, "MX") if self.chain.graph.blocks[name].backward else {}

    # --- reading --------------------------------------------------------------------------------

    def point(self, solution: Solution) -> FloatArray:
        """Channel totals of a solution, in units."""
        totals = np.concatenate([solution.totals[name] for name in self.names])
        return np.asarray(totals / self.unit)

    def per_block(self, weights: FloatArray) -> dict[str, FloatArray]:
        """Weights of the totals in units as weights per channel of each table of the chain."""
        rows = (weights / self.unit).reshape(len(self.names), COUNT)
        return {
            name: row / self.chain.factor(name) for name, row in zip(self.names, rows, strict=True)
        }

    def features(self, name: str) -> FloatArray:
        """What must not grow for the step not to grow: (features, channels) of one block."""
        start = self.names.index(name) * COUNT
        rows = np.vstack([-self.big_h, self.p])[:, start : start + COUNT]
        rows = np.unique(rows[(rows != 0).any(axis=1)], axis=0)
        return np.asarray(rows / self.unit[:COUNT])

    def shares(self, name: str, totals: FloatArray) -> FloatArray:
        """What blocks add to each stage.

        Shapes:
            totals: (n, channels); result (n, stages x 2 + rows of memory): seconds of a micro-batch
            and once a step per stage, then bytes for every row of `memory_limits`.
        """
        each = instance_seconds(totals, self.pricer, bool(self.chain.graph.blocks[name].backward))
        columns = []
        for kept, again in self._members:
            columns.append((kept[name] + again[name]) * each.kept + again[name] * each.more)
        for kept, again in self._members:
            columns.append((kept[name] + again[name]) * each.once - again[name] * each.sooner)
        start = self.names.index(name) * COUNT
        for stage in range(len(self._members)):
            for row in self.held(stage):
                mine = np.zeros(COUNT)
                for column, value in row.items():
                    if start <= column < start + COUNT:
                        mine[column - start] = value
                columns.append(totals @ mine)
        return np.stack(columns, axis=1)

    def criteria(self, shares: FloatArray) -> FloatArray:
        """What must not grow for `steps` not to grow, and bytes."""
        if self.pace.stages > 1:
            return shares
        step: FloatArray = self.pace.micro_batches * shares[:, 0] + shares[:, 1]
        return np.asarray(np.column_stack([step, shares[:, 2:]]))

    def memory_limits(self) -> FloatArray:
        """Bytes that each row of `shares` may come to."""
        limits = self.room.limits
        return np.array([limits[s] for s in range(len(limits)) for _ in self.held(s)])

    def steps(self, shares: FloatArray) -> FloatArray:
        """Seconds of steps from the sums of all blocks' shares."""
        stages = self.pace.stages
        seconds, once = shares[:, :stages], shares[:, stages : 2 * stages]
        rest = self.pace.micro_batches - 1
        fixed = self.constant * self.seconds
        return np.asarray(
            seconds.sum(axis=1) + rest * seconds.max(axis=1) + once.max(axis=1) + fixed
        )


def bytes_weights(relaxation: Relaxation, stage: int) -> dict[str, FloatArray]:
    """Weights whose minimum is the least that a stage can hold, whatever runs."""
    weights = np.zeros(len(relaxation.unit))
    for column, value in relaxation.held(stage)[0].items():
        weights[column] = value
    return relaxation.per_block(weights * relaxation.unit)
