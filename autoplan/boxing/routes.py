"""From one layout to another: which collectives, on whole layouts.

A step changes a set of axes that are in the same state, all to the same new state; several axes
that move together are one collective over the fused group. Where a dim is involved, the axes that
change must be the innermost ones that split it, before or after, since shards lie in mesh order:
changing one axis at a time in isolation gives wrong data for 48 of the 256 layout pairs on two
axes.

    all_gather       S(i) -> B          reduce_scatter   P -> S(i)
    all_reduce       P -> B             all_to_all       S(i) -> S(j)        slice   B -> S(i)

The default route is a fixed rule of layouts and sizes (least volume, then fewest steps): lowering
reads no price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import combinations, product
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import Refusal
from autoplan.ir.layout import B, Layout, P, Placement, S, format_layout

STEP_PENALTY = 1e-3
"""Volume, as a share of the whole tensor, that one more collective must save to be worth it."""
_EQUAL = 1e-12
"""Routes whose volumes differ by less are equally good: the first one found is taken."""
_CANDIDATES = 1 << 22
"""Numbers that one pass of relaxing may hold."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective (or a local slice) of a route.

    Attributes:
        kind: all_gather, reduce_scatter, all_reduce, all_to_all or slice.
        axes: indices of the mesh axes that take part, in mesh order.
        dim: dim gathered, scattered, split or left (all_to_all: the dim that was split).
        to_dim: for all_to_all the dim that is split afterwards, else "".
        reduction: `sum` or `softmax` where partial values are merged, else "".
        before, after: whole layouts.
    """

    kind: str
    axes: tuple[int, ...]
    dim: str
    to_dim: str
    reduction: str
    before: Layout
    after: Layout


def _innermost(layout: Layout, dim: str, axes: Sequence[int]) -> bool:
    """Whether `axes` are the innermost of those that split `dim` in `layout`."""
    splitting = [i for i, p in enumerate(layout) if p == S(dim)]
    return splitting[len(splitting) - len(axes) :] == list(axes)


def _apply(layout: Layout, axes: Sequence[int], placement: Placement) -> Layout:
    return tuple(placement if i in axes else p for i, p in enumerate(layout))


@cache
def steps_from(layout: Layout, dims: tuple[str, ...]) -> tuple[Step, ...]:
    """Every step out of a layout of a tensor with these dims, whatever the sizes.

    Whether a step is legal for given sizes is a matter of divisibility; see `divides`.
    """
    steps: list[Step] = []
    for state in dict.fromkeys(layout):
        members = [i for i, p in enumerate(layout) if p == state]
        for count in range(1, len(members) + 1):
            for axes in combinations(members, count):
                steps.extend(_steps_on(layout, axes, state, dims))
    return tuple(steps)


def _steps_on(
    layout: Layout, axes: tuple[int, ...], state: Placement, dims: tuple[str, ...]
) -> Iterator[Step]:
    """Steps that move `axes`, all in `state`, together."""
    if state.kind == "S":
        if not _innermost(layout, state.name, axes):
            return
        yield Step("all_gather", axes, state.name, "", "", layout, _apply(layout, axes, B))
    if state.kind == "P":
        after = _apply(layout, axes, B)
        yield Step("all_reduce", axes, "", "", state.name, layout, after)
        if state.name != "sum":
            return
    for dim in dims:
        after = _apply(layout, axes, S(dim))
        if after == layout or not _innermost(after, dim, axes):
            continue
        if state.kind == "B":
            yield Step("slice", axes, dim, "", "", layout, after)
        elif state.kind == "P":
            yield Step("reduce_scatter", axes, dim, "", state.name, layout, after)
        else:
            yield Step("all_to_all", axes, state.name, dim, "", layout, after)


def volume(step: Step, sizes: Sequence[int]) -> float:
    """Share of the whole tensor that each rank sends in a ring or direct exchange.

    Source: the usual counts, n ranks and a local piece of V before the step: all_gather (n-1) V,
    reduce_scatter and all_to_all (n-1)/n V, all_reduce 2 (n-1)/n V.
    """
    n = prod(sizes[i] for i in step.axes)
    local = 1.0 / prod(s for p, s in zip(step.before, sizes, strict=True) if p.kind == "S")
    return float(_sent(step.kind, np.float64(n))) * local


def _sent(kind: str, ranks: NDArray[np.float64] | np.float64) -> NDArray[np.float64] | np.float64:
    """Local pieces that a rank sends, by number of ranks."""
    if kind == "slice":
        return ranks * 0.0
    if kind == "all_gather":
        return ranks - 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1.0) / ranks


@dataclass(frozen=True)
class _StepList:
    """All steps between layouts of tensors with given dims, whatever the sizes, as arrays.

    Attributes:
        steps: in order of the row they start from.
        before, after: rows of the layouts at both ends.
        moving: (steps, axes), which axes take part.
        newly: dim index that a step newly splits, or -1.
        splits: (layouts, axes, dims), which axis splits which dim.
    """

    steps: tuple[Step, ...]
    before: NDArray[np.intp]
    after: NDArray[np.intp]
    moving: NDArray[np.bool_]
    newly: NDArray[np.intp]
    splits: NDArray[np.bool_]

    def legal(self, extent: Sequence[int], sizes: Sequence[int]) -> NDArray[np.bool_]:
        """Which steps split dims into equal parts."""
        ranks = np.array(sizes, dtype=np.int64)[None, :, None]
        parts = np.where(self.splits, ranks, 1).prod(axis=1)
        if not len(extent):
            return np.ones(len(self.steps), dtype=bool)
        whole = np.array(extent, dtype=np.int64)
        fits = whole[self.newly] % parts[self.after, self.newly] == 0
        return np.asarray(fits | (self.newly < 0))

    def weights(self, sizes: Sequence[int]) -> NDArray[np.float64]:
        """What a route pays for each step: its volume, and a penalty for being one more."""
        ranks = np.array(sizes, dtype=np.float64)
        local = 1.0 / np.where(self.splits.any(axis=2), ranks, 1.0).prod(axis=1)[self.before]
        together = np.where(self.moving, ranks, 1.0).prod(axis=1)
        kinds = np.array([step.kind for step in self.steps])
        result = np.zeros(len(self.steps))
        for kind in dict.fromkeys(kinds):
            mine = kinds == kind
            penalty = STEP_PENALTY if kind != "slice" else STEP_PENALTY * 1e-3
            result[mine] = _sent(kind, together[mine]) * local[mine] + penalty
        return result


@cache
def _step_list(dims: tuple[str, ...], axes: int) -> _StepList:
    number = layout_numbers(dims, axes)
    layouts = all_layouts(dims, axes)
    steps = tuple(step for layout in layouts for step in steps_from(layout, dims))
    newly = [
        {"slice": s.dim, "reduce_scatter": s.dim, "all_to_all": s.to_dim}.get(s.kind) for s in steps
    ]
    splits = [[[p == S(dim) for dim in dims] for p in layout] for layout in layouts]
    return _StepList(
        steps,
        np.array([number[s.before] for s in steps], dtype=np.intp),
        np.array([number[s.after] for s in steps], dtype=np.intp),
        np.array([[i in s.axes for i in range(axes)] for s in steps]).reshape(len(steps), axes),
        np.array([-1 if dim is None else dims.index(dim) for dim in newly], dtype=np.intp),
        np.array(splits, dtype=bool).reshape(len(layouts), axes, len(dims)),
    )


def route(
    source: Layout, target: Layout, dims: tuple[str, ...], extent: tuple[int, ...],
    sizes: tuple[int, ...],
) -> tuple[Step, ...]:  # fmt: skip
    """The default route between two layouts of one tensor; () when they are equal.

    Args:
        source: whole layout that the tensor has.
        target: whole layout that it is to have.
        dims: names of its dims.
        extent: their global sizes.
        sizes: ranks per mesh axis.

    Raises:
        Refusal: no route (a target that is partial where the source is not).
    """
    return route_table(dims, extent, sizes).route(source, target)


@cache
def all_layouts(dims: tuple[str, ...], axes: int) -> tuple[Layout, ...]:
    """Every layout of a tensor with these dims on a mesh with so many axes."""
    states = (*(S(dim) for dim in dims), B, P())
    if dims and dims[-1] == "c":  # statistics of the loss may wait to be merged
        states = (*states, P("softmax"))
    return tuple(product(states, repeat=axes))


@cache
def layout_numbers(dims: tuple[str, ...], axes: int) -> dict[Layout, int]:
    """Layout -> its position in `all_layouts`, which is its row in route tables."""
    return {layout: i for i, layout in enumerate(all_layouts(dims, axes))}


def route_table(
    dims: tuple[str, ...], extent: tuple[int, ...], sizes: tuple[int, ...]
) -> RouteTable:
    """Routes between all layouts of tensors with these dims.

    Only divisibility by products of axis sizes matters, so tensors of many sizes share one table.
    """
    ranks = prod(sizes)
    return _table(dims, tuple(gcd(size, ranks) for size in extent), sizes)


@lru_cache(maxsize=1 << 12)
def _table(dims: tuple[str, ...], extent: tuple[int, ...], sizes: tuple[int, ...]) -> RouteTable:
    return RouteTable(dims, extent, sizes)


class RouteTable:
    """Default routes between all pairs of layouts of one kind of tensor.

    Attributes:
        layouts: every layout; their order numbers rows and columns.
        number: layout -> its row.
        steps: (row, row) -> the step between neighbours.

    Complexity: a column of `following` takes a few passes over all steps; n layouts (25 of a 3-dim
    tensor on two axes, 125 on three, 2401 of a 5-dim one on four) have about 10 to 50 steps each.
    """

    def __init__(self, dims: tuple[str, ...], extent: tuple[int, ...], sizes: tuple[int, ...]):
        self.layouts = all_layouts(dims, len(sizes))
        self.number = layout_numbers(dims, len(sizes))
        listed = _step_list(dims, len(sizes))
        legal = np.flatnonzero(listed.legal(extent, sizes))
        before, after = listed.before[legal], listed.after[legal]
        pairs = zip(before.tolist(), after.tolist(), strict=True)
        self.steps = {pair: listed.steps[k] for pair, k in zip(pairs, legal.tolist(), strict=True)}
        # Each row's steps, then staying: where another step is as good, that one is taken.
        count = len(self.layouts)
        rows = np.concatenate([before, np.arange(count)])
        order = np.argsort(rows, kind="stable")
        self._starts = np.searchsorted(rows[order], np.arange(count))
        self._ends = np.concatenate([after, np.arange(count)])[order]
        weights = np.concatenate([listed.weights(sizes)[legal], np.zeros(count)])
        self._weights = weights[order][:, None]
        self._columns: dict[int, NDArray[np.int32]] = {}

    @cached_property
    def following(self) -> NDArray[np.int32]:
        """[from, to] -> row of the next layout on the route, -1 where there is none."""
        count = len(self.layouts)
        width = max(1, _CANDIDATES // len(self._ends))
        blocks = [
            self._toward(np.arange(first, min(first + width, count)))
            for first in range(0, count, width)
        ]
        return np.concatenate(blocks, axis=1)

    def _toward(self, targets: NDArray[np.intp]) -> NDArray[np.int32]:
        """Columns of `following`: shortest paths by relaxing all steps until nothing improves."""
        cost = np.full((len(self.layouts), len(targets)), np.inf)
        cost[targets, np.arange(len(targets))] = 0.0
        while True:
            candidates = self._weights + cost[self._ends]
            least = np.minimum.reduceat(candidates, self._starts)
            if not (least < cost - _EQUAL).any():
                break
            cost = least
        lengths = np.diff(np.append(self._starts, len(self._ends)))
        best = candidates <= np.repeat(least, lengths, axis=0) + _EQUAL
        places = np.where(best, np.arange(len(self._ends))[:, None], len(self._ends))
        first = np.minimum.reduceat(places, self._starts)
        return np.where(np.isfinite(cost), self._ends[first], -1).astype(np.int32)

    def route(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The steps from one layout to another.

        Raises:
            Refusal: there is no route.
        """
        i, j = self.number[source], self.number[target]
        if j not in self._columns:
            self._columns[j] = self._toward(np.array([j]))[:, 0]
        following = self._columns[j]
        if following[i] < 0:
            raise Refusal(f"no route from {format_layout(source)} to {format_layout(target)}")
        steps = []
        while i != j:
            k = int(following[i])
            steps.append(self.steps[i, k])
            i = k
        return tuple(steps)
