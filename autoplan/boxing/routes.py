"""From one layout to another: which collectives, on whole layouts.

A step changes a set of axes that are in the same state, all to the same new state; several axes that
move together are one collective over the fused group. Where a dim is involved, the axes that change
must be the innermost ones that split it, before or after, since shards lie in mesh order: changing one
axis at a time in isolation gives wrong data for 48 of the 256 layout pairs on two axes.

    all_gather       S(i) -> B          reduce_scatter   P -> S(i)
    all_reduce       P -> B             all_to_all       S(i) -> S(j)        slice   B -> S(i)

The default route is a fixed rule of layouts and sizes (least volume, then fewest steps): lowering
reads no price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import gcd, prod

import numpy as np

from autoplan.errors import Refusal
from autoplan.ir.layout import B, Layout, P, Placement, S, format_layout

STEP_PENALTY = 1e-3
"""Volume, as a share of the whole tensor, that one more collective must save to be worth it."""


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


def _parts(layout: Layout, dim: str, sizes: Sequence[int]) -> int:
    return prod(size for p, size in zip(layout, sizes, strict=True) if p == S(dim))


def _apply(layout: Layout, axes: Sequence[int], placement: Placement) -> Layout:
    return tuple(placement if i in axes else p for i, p in enumerate(layout))


def steps_from(
    layout: Layout, dims: Sequence[str], extent: Sequence[int], sizes: Sequence[int]
) -> Iterator[Step]:
    """Every legal step out of a layout.

    Args:
        layout: where the tensor is.
        dims: its dim names.
        extent: its global sizes, in the order of `dims`.
        sizes: ranks per mesh axis.
    """
    for state in dict.fromkeys(layout):
        members = [i for i, p in enumerate(layout) if p == state]
        for count in range(1, len(members) + 1):
            for axes in combinations(members, count):
                yield from _steps_on(layout, axes, state, dict(zip(dims, extent, strict=True)), sizes)


def _steps_on(
    layout: Layout,
    axes: tuple[int, ...],
    state: Placement,
    extent: dict[str, int],
    sizes: Sequence[int],
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
    for dim, size in extent.items():
        after = _apply(layout, axes, S(dim))
        if after == layout or not _innermost(after, dim, axes):
            continue
        if size % _parts(after, dim, sizes):
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
    if step.kind == "slice":
        return 0.0
    if step.kind == "all_gather":
        return (n - 1) * local
    return (2.0 if step.kind == "all_reduce" else 1.0) * (n - 1) / n * local


def route(
    source: Layout, target: Layout, dims: tuple[str, ...], extent: tuple[int, ...],
    sizes: tuple[int, ...],
) -> tuple[Step, ...]:  # fmt: skip
    """The default route between two layouts of one tensor; () when they are equal.

    Args:
        source, target: whole layouts.
        dims, extent: names and global sizes of the tensor's dims.
        sizes: ranks per mesh axis.

    Raises:
        Refusal: no route (a target that is partial where the source is not).
    """
    return route_table(dims, extent, sizes).route(source, target)


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
        following: [from, to] -> row of the next layout on the route, -1 where there is none.
        steps: (row, row) -> the step between neighbours.

    Complexity: n layouts take n^3 operations once (25 layouts of a 3-dim tensor on two axes, 125 on
    three).
    """

    def __init__(self, dims: tuple[str, ...], extent: tuple[int, ...], sizes: tuple[int, ...]):
        states = (*(S(dim) for dim in dims), B, P())
        if dims and dims[-1] == "c":  # statistics of the loss may wait to be merged
            states = (*states, P("softmax"))
        self.layouts: tuple[Layout, ...] = tuple(product(states, repeat=len(sizes)))
        self.number = {layout: i for i, layout in enumerate(self.layouts)}
        self.steps: dict[tuple[int, int], Step] = {}
        count = len(self.layouts)
        cost = np.full((count, count), np.inf)
        self.following = np.full((count, count), -1, dtype=np.int32)
        for i, layout in enumerate(self.layouts):
            cost[i, i], self.following[i, i] = 0.0, i
            for step in steps_from(layout, dims, extent, sizes):
                j = self.number[step.after]
                penalty = STEP_PENALTY if step.kind != "slice" else STEP_PENALTY * 1e-3
                metric = volume(step, sizes) + penalty
                if metric < cost[i, j]:
                    cost[i, j], self.following[i, j] = metric, j
                    self.steps[i, j] = step
        for k in range(count):  # Floyd-Warshall; ties keep the route found first
            through = cost[:, k : k + 1] + cost[k]
            better = through < cost - 1e-12
            cost[better] = through[better]
            self.following[better] = np.broadcast_to(self.following[:, k : k + 1], better.shape)[
                better
            ]

    def route(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The steps from one layout to another.

        Raises:
            Refusal: there is no route.
        """
        i, j = self.number[source], self.number[target]
        if self.following[i, j] < 0:
            raise Refusal(f"no route from {format_layout(source)} to {format_layout(target)}")
        steps = []
        while i != j:
            k = int(self.following[i, j])
            steps.append(self.steps[i, k])
            i = k
        return tuple(steps)
