"""Which points are not dominated by another of their group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

SAME = 1e-12
"""Share of the largest value by which numbers may differ and count as equal: sums in another order
do."""
CHUNK = 64
"""Points that are compared with all others at a time."""


def efficient(groups: IntArray, points: FloatArray, order: FloatArray) -> IntArray:
    """Rows that no other row of their group is nowhere larger than; of equal ones, one.

    Shapes:
        groups, order: (n,); points: (n, features). Rows come by group, then by `order`.
    """
    slack = SAME * np.abs(points).max(axis=0, initial=0.0)
    rows = np.lexsort((order, points.sum(axis=1), groups))
    starts = np.flatnonzero(np.diff(groups[rows], prepend=-1))
    columns = np.ascontiguousarray(points[rows].T)
    keep = []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        mine = rows[start:end]
        keep.append(mine if len(mine) == 1 else mine[_front(columns[:, start:end], slack)])
    return np.concatenate(keep)


def _front(columns: FloatArray, slack: FloatArray) -> IntArray:
    """The same within one group, whose points come in ascending order of their sum."""
    left = np.arange(columns.shape[1])
    found: list[IntArray] = []
    while len(left):
        head, left = left[:CHUNK], left[CHUNK:]
        alone = ~np.triu(_below(columns[:, head], columns[:, head], slack), 1).any(axis=0)
        head = head[alone]
        found.append(head)
        if len(left):
            left = left[~_below(columns[:, head], columns[:, left], slack).any(axis=0)]
    return np.concatenate(found)


def _below(some: FloatArray, others: FloatArray, slack: FloatArray) -> NDArray[np.bool_]:
    """Whether each of some points is nowhere above each of the others."""
    below: NDArray[np.bool_] = some[0][:, None] <= others[0] + slack[0]
    for mine, theirs, extra in zip(some[1:], others[1:], slack[1:], strict=True):
        below &= mine[:, None] <= theirs + extra
    return below
