"""Blocks to stages, and layers to compute again: dynamic programming under each stage's memory.

    minimise  sum_s t_s + (M - 1) max_s t_s + max_s o_s
    t_s       sum of its blocks + recomputed forwards, each micro-batch;   o_s  once a step
    so that   memory of stage s <= its limit

The stage's cheapest number of recomputed layers follows from its blocks, so a stage is an interval
with a cost. First the least bottleneck (min-max over intervals), then the least sum under a
bottleneck; larger bottlenecks are tried while they could still pay. All that again below smaller
and smaller o_s on short chains, where what happens once a step weighs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ChainCosts:
    """What every block instance costs, in order of the chain.

    Attributes:
        seconds: forward and backward of one micro-batch.
        again: more seconds when its forward is run again in backward.
        weights: bytes that lie there the whole step.
        saved: bytes per micro-batch that wait for backward, the input aside.
        inputs: bytes per micro-batch of its input, kept where there is a backward.
        transient: bytes needed while it runs.
        layer: whether it counts as a decoder layer (each stage has at least one).
        may_recompute: whether its forward may be run again.
        once: seconds once a step.
        sooner: how much less that is when its forward is run again.
    """

    seconds: FloatArray
    again: FloatArray
    weights: FloatArray
    saved: FloatArray
    inputs: FloatArray
    transient: FloatArray
    layer: NDArray[np.bool_]
    may_recompute: NDArray[np.bool_]
    once: FloatArray
    sooner: FloatArray


@dataclass(frozen=True)
class Partition:
    """Stages of a chain.

    Attributes:
        bounds: first instance of each stage, and the number of instances.
        recompute: recomputed layers of each stage.
        seconds: of one micro-batch per stage.
        memory: estimated bytes per stage.
        once: seconds once a step per stage.
    """

    bounds: tuple[int, ...]
    recompute: tuple[int, ...]
    seconds: tuple[float, ...]
    memory: tuple[float, ...]
    once: tuple[float, ...]


@dataclass(frozen=True)
class Limits:
    """What holds for the stages.

    Attributes:
        in_flight: per stage, micro-batches that wait for backward.
        memory: per stage, bytes.
        micro_batches: per step.
        must_recompute: every layer that may be recomputed is.
        layers: layers of each stage if they are given, else None.
    """

    in_flight: Sequence[int]
    memory: Sequence[float]
    micro_batches: int
    must_recompute: bool = False
    layers: Sequence[int] | None = None


ALL_LENGTHS = 48
"""Instances up to which a stage may be as long as the chain."""
LONGEST = 4
"""On longer chains a stage has at most so many times the mean number of instances."""
SHORT = 12
"""Instances up to which what happens once a step helps to decide the cut."""


class _Intervals:
    """What all intervals of a chain cost, whichever stage they become.

    Tables are [end, length - 1]: an interval of some length before each end.
    """

    def __init__(self, costs: ChainCosts, stages: int) -> None:
        n = len(costs.seconds)
        longest = n if n <= ALL_LENGTHS else min(n, LONGEST * -(-n // stages))
        self.start = np.arange(n + 1)[:, None] - np.arange(1, longest + 1)[None, :]
        inside = self.start >= 0
        self.start = np.maximum(self.start, 0)

        def spans(values: FloatArray) -> FloatArray:
            prefix = np.concatenate([[0.0], np.cumsum(values)])
            return np.asarray(prefix[:, None] - prefix[self.start])

        self.seconds = spans(costs.seconds)
        self.layers = spans(costs.layer.astype(float))
        self.choices = spans(costs.may_recompute.astype(float))
        self.fixed = spans(costs.weights) + self._running_max(costs.transient)
        self.per_flight = spans(costs.inputs + costs.saved)
        self.once = spans(costs.once)
        # Layers that may be recomputed are alike; the largest stands for all.
        self.saving = float(np.max(costs.saved * costs.may_recompute, initial=0.0))
        self.again = float(np.max(costs.again * costs.may_recompute, initial=0.0))
        self.sooner = float(np.min(costs.sooner, where=costs.may_recompute, initial=self.again))
        self.legal = inside & (self.layers >= 1)

    def _running_max(self, values: FloatArray) -> FloatArray:
        """The largest value in each interval."""
        table = np.zeros(self.start.shape)
        table[1:] = np.append(values, 0.0)[self.start[1:]]
        return np.asarray(np.maximum.accumulate(table, axis=1))


class _Stage:
    """Costs of all intervals as one stage."""

    def __init__(self, intervals: _Intervals, limits: Limits, stage: int) -> None:
        flight = limits.in_flight[stage]
        held = intervals.fixed + flight * intervals.per_flight
        saving = flight * intervals.saving
        excess = held - limits.memory[stage]
        if saving:
            needed = np.ceil(np.maximum(excess, 0.0) / saving - 1e-9)
        else:
            needed = np.where(excess > 0, np.inf, 0.0)
        legal = intervals.legal & (needed <= intervals.choices)
        if limits.layers is not None:
            legal &= intervals.layers == limits.layers[stage]
        count = intervals.choices if limits.must_recompute else needed
        self.count = np.where(legal, count, 0.0)
        cost = intervals.seconds + self.count * intervals.again
        self.cost = np.where(legal, cost, np.inf)
        self.memory = held - self.count * saving
        self.once = np.where(legal, intervals.once - self.count * intervals.sooner, np.inf)

    def below(self, ceiling: float) -> _Stage:
        """Without the intervals that take longer once a step."""
        fewer = copy(self)
        fewer.cost = np.where(self.once <= ceiling, self.cost, np.inf)
        return fewer


def partition(costs: ChainCosts, limits: Limits) -> Partition | None:
    """The best stages, or None if none fits.

    Args:
        costs: of the chain.
        limits: one entry per stage.
    """
    intervals = _Intervals(costs, len(limits.in_flight))
    known: dict[tuple[object, ...], _Stage] = {}
    stages = []
    for s in range(len(limits.in_flight)):
        layers = limits.layers[s] if limits.layers is not None else None
        key = (limits.in_flight[s], limits.memory[s], layers)
        if key not in known:
            known[key] = _Stage(intervals, limits, s)
        stages.append(known[key])
    repeats = limits.micro_batches - 1
    best = _cheapest(stages, intervals.start, repeats)
    if best is None:
        return None
    if len(costs.seconds) <= SHORT:
        best = _with_ends(stages, intervals.start, repeats, best)
    cuts = list(zip(stages, _places(best[1]), strict=True))
    return Partition(
        tuple(best[1]),
        tuple(int(s.count[at]) for s, at in cuts),
        tuple(float(s.cost[at]) for s, at in cuts),
        tuple(float(s.memory[at]) for s, at in cuts),
        tuple(float(s.once[at]) for s, at in cuts),
    )


Cut = tuple[float, list[int]]
"""(seconds, bounds)."""


def _cheapest(
    stages: Sequence[_Stage], start: NDArray[np.intp], repeats: int
) -> Cut | None:  # fmt: skip
    """The best cut, what happens once a step aside, or None if none fits."""
    bottleneck = _least_bottleneck([s.cost for s in stages], start)
    if not np.isfinite(bottleneck):
        return None
    free = _least_sum(stages, start, np.inf)[0]
    best: Cut | None = None
    for threshold in _thresholds([s.cost for s in dict.fromkeys(stages)], bottleneck):
        if best is not None and free + repeats * threshold >= best[0]:
            break
        total, bounds = _least_sum(stages, start, threshold * (1 + 1e-12))
        worst = max(s.cost[at] for s, at in zip(stages, _places(bounds), strict=True))
        value = total + repeats * float(worst)
        if best is None or value < best[0]:
            best = (value, bounds)
        if total <= free * (1 + 1e-12):
            break  # a larger bottleneck cannot lower the sum
    return best


def _with_ends(
    stages: Sequence[_Stage], start: NDArray[np.intp], repeats: int, free: Cut
) -> Cut:  # fmt: skip
    """The best cut with what happens once a step; `free` is the best without."""

    def end(bounds: Sequence[int]) -> float:
        return max(float(s.once[at]) for s, at in zip(stages, _places(bounds), strict=True))

    best = (free[0] + end(free[1]), free[1])
    least = _least_bottleneck([s.once for s in stages], start)
    for ceiling in _thresholds([s.once for s in dict.fromkeys(stages)], least):
        if free[0] + ceiling >= best[0]:
            break
        lower = {s: s.below(ceiling * (1 + 1e-12)) for s in dict.fromkeys(stages)}
        found = _cheapest([lower[s] for s in stages], start, repeats)
        if found and found[0] + end(found[1]) < best[0]:
            best = (found[0] + end(found[1]), found[1])
    return best


def _places(bounds: Sequence[int]) -> list[tuple[int, int]]:
    """Where the intervals between bounds stand in the tables."""
    return [(j, j - i - 1) for i, j in pairwise(bounds)]


def _thresholds(tables: Sequence[FloatArray], bottleneck: float) -> Iterator[float]:
    """The least bottleneck, then every larger value of a stage, ascending."""
    yield bottleneck
    finite = [table[np.isfinite(table) & (table > bottleneck)] for table in tables]
    yield from np.unique(np.concatenate(finite)).tolist()


def _origin(ends: int) -> FloatArray:
    """Cost before the first stage: nothing, at the start of the chain."""
    best = np.full(ends, np.inf)
    best[0] = 0.0
    return best


def _least_bottleneck(tables: Sequence[FloatArray], start: NDArray[np.intp]) -> float:
    best = _origin(len(start))
    for table in tables:
        best = np.maximum(best[start], table).min(axis=1)
    return float(best[-1])


def _least_sum(
    stages: Sequence[_Stage], start: NDArray[np.intp], most: float
) -> tuple[float, list[int]]:
    """Least sum of stage costs with none above `most`, and the bounds that give it."""
    best = _origin(len(start))
    rows = np.arange(len(start))
    origins = []
    for stage in stages:
        total = best[start] + np.where(stage.cost <= most, stage.cost, np.inf)
        choice = total.argmin(axis=1)
        origins.append(start[rows, choice])
        best = total[rows, choice]
    bounds = [len(best) - 1]
    for origin in reversed(origins):
        bounds.append(int(origin[bounds[-1]]))
    return float(best[-1]), bounds[::-1]
