"""Stored layouts of a parameter: what may be split further between uses, and how.

Backward leaves a parameter's gradient partial along every axis whose ranks saw different data.
Along such axes the parameter is the same everywhere, so its optimizer state, then its accumulated
gradient, then the parameter itself may each be split: three levels, each saving more memory for
more messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoplan.ir.layout import B, Layout, S, split_factor
from autoplan.ir.plan import Stored

LEVELS = ("whole", "optimizer", "gradient", "parameter")
"""What is split: nothing; optimizer state; also the accumulated gradient; also the parameter."""


def shard_over(
    layout: Layout,
    axes: Sequence[int],
    dims: Sequence[str],
    extent: Mapping[str, int],
    sizes: Sequence[int],
) -> Layout | None:
    """`layout` with `axes` (now B) splitting the largest dim that divides, or None.

    A dim that another axis, later in mesh order, splits already is avoided, since a gather of an
    outer axis alone is not one collective.
    """
    factor = 1
    for axis in axes:
        factor *= sizes[axis]
    best: tuple[bool, int, int] | None = None
    chosen = ""
    for position, dim in enumerate(dims):
        local = extent[dim] // split_factor(dim, layout, sizes)
        if local % factor:
            continue
        clear = all(i < min(axes) for i, p in enumerate(layout) if p == S(dim))
        rank = (clear, local, -position)
        if best is None or rank > best:
            best, chosen = rank, dim
    if not chosen:
        return None
    return tuple(S(chosen) if i in axes else p for i, p in enumerate(layout))


def splittable_axes(used: Layout, raw: Layout) -> tuple[int, ...]:
    """Axes along which the parameter is whole and its gradient partial."""
    pairs = zip(used, raw, strict=True)
    return tuple(i for i, (u, r) in enumerate(pairs) if u == B and r.kind == "P")


def stored_at(
    level: str,
    used: Layout,
    raw: Layout,
    axes: Sequence[int],
    tensor: tuple[Sequence[str], Mapping[str, int], Sequence[int]],
) -> Stored:
    """Stored layouts at one level.

    Args:
        level: one of `LEVELS`.
        used: layout in which operators use the parameter.
        raw: layout in which backward leaves its gradient.
        axes: axes over which to split, of those in `splittable_axes`.
        tensor: (dims, extent, axis sizes).

    Returns:
        The layouts; at the level `whole` where no dim divides.
    """
    dims, extent, sizes = tensor
    split = shard_over(used, axes, dims, extent, sizes) if axes and level != "whole" else None
    if split is None:
        return Stored(used, raw, used)
    reduced = tuple(split[i] if i in axes else r for i, r in enumerate(raw))
    return {
        "optimizer": Stored(used, raw, split),
        "gradient": Stored(used, reduced, split),
        "parameter": Stored(split, reduced, split),
    }[level]


def level_of(stored: Stored, used: Layout, raw: Layout, axis: int) -> str:
    """Which level one axis is at; the inverse of `stored_at`, axis by axis."""
    if stored.parameter[axis] != used[axis]:
        return "parameter"
    if stored.gradient[axis] != raw[axis]:
        return "gradient"
    if stored.optimizer[axis] != used[axis]:
        return "optimizer"
    return "whole"
