"""Blocks to stages, and layers to compute again: dynamic programming under each stage's memory.

    minimise  sum_s t_s + (M - 1) max_s t_s      t_s = sum of its blocks + recomputed forwards
    so that   memory of stage s <= its limit

The stage's cheapest number of recomputed layers follows from its blocks, so a stage is an interval
with a cost. First the least bottleneck (min-max over intervals), then the least sum under a
bottleneck; larger bottlenecks are tried while they could still pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """

    seconds: FloatArray
    again: FloatArray
    weights: FloatArray
    saved: FloatArray
    inputs: FloatArray
    transient: FloatArray
    layer: NDArray[np.bool_]
    may_recompute: NDArray[np.bool_]


@dataclass(frozen=True)
class Partition:
    """Stages of a chain.

    Attributes:
        bounds: first instance of each stage, and the number of instances.
        recompute: recomputed layers of each stage.
        seconds: of one micro-batch per stage.
        memory: estimated bytes per stage.
    """

    bounds: tuple[int, ...]
    recompute: tuple[int, ...]
    seconds: tuple[float, ...]
    memory: tuple[float, ...]


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


class _Intervals:
    """What all intervals [i, j) of a chain cost, whichever stage they become."""

    def __init__(self, costs: ChainCosts) -> None:
        n = len(costs.seconds)

        def spans(values: FloatArray) -> FloatArray:
            prefix = np.concatenate([[0.0], np.cumsum(values)])
            return np.asarray(prefix[None, :] - prefix[:, None])

        self.seconds = spans(costs.seconds)
        self.layers = spans(costs.layer.astype(float))
        self.choices = spans(costs.may_recompute.astype(float))
        self.fixed = spans(costs.weights) + _running_max(costs.transient)
        self.per_flight = spans(costs.inputs + costs.saved)
        # Layers that may be recomputed are alike; the largest stands for all.
        self.saving = float(np.max(costs.saved * costs.may_recompute, initial=0.0))
        self.again = float(np.max(costs.again * costs.may_recompute, initial=0.0))
        self.legal = (self.layers >= 1) & np.triu(np.ones((n + 1, n + 1), dtype=bool), 1)


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
        self._held, self._saving = held, saving

    def memory(self, i: int, j: int) -> float:
        """Estimated bytes of an interval."""
        return float(self._held[i, j] - self.count[i, j] * self._saving)


def _running_max(values: FloatArray) -> FloatArray:
    """[i, j) -> the largest value in it."""
    n = len(values)
    table = np.zeros((n + 1, n + 1))
    for i in range(n):
        table[i, i + 1 :] = np.maximum.accumulate(values[i:])
    return table


def partition(costs: ChainCosts, limits: Limits) -> Partition | None:
    """The best stages, or None if none fits.

    Args:
        costs: of the chain.
        limits: one entry per stage.
    """
    intervals = _Intervals(costs)
    known: dict[tuple[object, ...], _Stage] = {}
    stages = []
    for s in range(len(limits.in_flight)):
        layers = limits.layers[s] if limits.layers is not None else None
        key = (limits.in_flight[s], limits.memory[s], layers)
        if key not in known:
            known[key] = _Stage(intervals, limits, s)
        stages.append(known[key])
    bottleneck = _least_bottleneck(stages)
    if not np.isfinite(bottleneck):
        return None
    repeats = limits.micro_batches - 1
    free = _least_sum(stages, np.inf)[0]
    best: tuple[float, list[int]] | None = None
    for threshold in _thresholds(stages, bottleneck):
        if best is not None and free + repeats * threshold >= best[0]:
            break
        total, bounds = _least_sum(stages, threshold * (1 + 1e-12))
        worst = max(s.cost[i, j] for s, i, j in zip(stages, bounds, bounds[1:], strict=False))
        value = total + repeats * float(worst)
        if best is None or value < best[0]:
            best = (value, bounds)
    assert best is not None
    cuts = list(zip(stages, best[1], best[1][1:], strict=False))
    return Partition(
        tuple(best[1]),
        tuple(int(s.count[i, j]) for s, i, j in cuts),
        tuple(float(s.cost[i, j]) for s, i, j in cuts),
        tuple(s.memory(i, j) for s, i, j in cuts),
    )


def _thresholds(stages: Sequence[_Stage], bottleneck: float) -> Iterator[float]:
    """The least bottleneck, then every larger cost that a stage can have, ascending."""
    yield bottleneck
    finite = [s.cost[np.isfinite(s.cost) & (s.cost > bottleneck)] for s in dict.fromkeys(stages)]
    yield from np.unique(np.concatenate(finite)).tolist()


def _least_bottleneck(stages: Sequence[_Stage]) -> float:
    best = stages[0].cost[0]
    for stage in stages[1:]:
        best = np.min(np.maximum(best[:, None], stage.cost), axis=0)
    return float(best[-1])


def _least_sum(stages: Sequence[_Stage], most: float) -> tuple[float, list[int]]:
    """Least sum of stage costs with none above `most`, and the bounds that give it."""
    best = np.where(stages[0].cost[0] <= most, stages[0].cost[0], np.inf)
    origins = []
    for stage in stages[1:]:
        allowed = np.where(stage.cost <= most, stage.cost, np.inf)
        total = best[:, None] + allowed
        origins.append(total.argmin(axis=0))
        best = total.min(axis=0)
    end = len(best) - 1
    bounds = [end]
    for origin in reversed(origins):
        bounds.append(int(origin[bounds[-1]]))
    return float(best[end]), [0, *reversed(bounds)]
