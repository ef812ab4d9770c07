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

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import gcd, prod

from autoplan.errors import Refusal
from autoplan.ir.layout import B, Layout, Placement, S, format_layout

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
    if source == target:
        return ()
    ranks = prod(sizes)
    # Only divisibility by products of axis sizes matters, so tensors of many sizes share routes.
    divisors = tuple(gcd(size, ranks) for size in extent)
    path = _routes_from(source, dims, divisors, sizes).get(target)
    if path is None:
        raise Refusal(f"no route from {format_layout(source)} to {format_layout(target)}")
    return path


@lru_cache(maxsize=1 << 14)
def _routes_from(
    source: Layout, dims: tuple[str, ...], extent: tuple[int, ...], sizes: tuple[int, ...]
) -> dict[Layout, tuple[Step, ...]]:
    """Default routes from one layout to all that it reaches (Dijkstra by volume, then steps)."""
    best: dict[Layout, float] = {source: 0.0}
    paths: dict[Layout, tuple[Step, ...]] = {source: ()}
    queue: list[tuple[float, int, Layout]] = [(0.0, 0, source)]
    serial = 0
    while queue:
        cost, _, layout = heapq.heappop(queue)
        if cost > best[layout]:
            continue
        for step in steps_from(layout, dims, extent, sizes):
            penalty = STEP_PENALTY if step.kind != "slice" else STEP_PENALTY * 1e-3
            reached = cost + volume(step, sizes) + penalty
            if reached < best.get(step.after, float("inf")) - 1e-12:
                best[step.after] = reached
                paths[step.after] = (*paths[layout], step)
                serial += 1
                heapq.heappush(queue, (reached, serial, step.after))
    return paths


def reachable(source: Layout, target: Layout) -> bool:
    """Whether a route can exist: nothing becomes partial that was not."""
    return all(t.kind != "P" or s == t for s, t in zip(source, target, strict=True))


__all__ = ["Step", "reachable", "route", "steps_from", "volume"]
