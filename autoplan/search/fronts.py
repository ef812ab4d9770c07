"""Decisions that no weights reach: all that could still beat the best step, fewest first.

Under a hard limit, or where streams overlap, the best decisions need not lie on the convex hull.
Values are assigned one variable after another, in reverse order of elimination. A partial
assignment goes on while every bound (weights whose exact minimum is known, so that what it has cost
over that minimum is the sum of its regrets) allows it to end below the best step and within the
limits, and while no other that looks the same to the variables left is at least as good in all that
the step can see. So what remains is complete, unless more than a given number would have to be
kept at once, or effort ends; then the most promising are.

Source of bounding by exact elimination: Kask & Dechter 2001, "A general scheme for automatic
generation of search heuristics from specification dependencies".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoplan.search.chain import Chain, Solution
from autoplan.search.effort import COMPARISONS, Effort
from autoplan.search.eliminate import Regret
from autoplan.search.pareto import efficient
from autoplan.search.relaxed import Relaxation
from autoplan.search.tables import COUNT, BlockTables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True)
class Limits:
    """Bounds that decisions must keep.

    Attributes:
        weights: one per bound: per block, of its channels.
        room: per bound, how far decisions may be over its minimum.
        most: partial assignments of a block that are kept at once.
        effort: what may be spent; taken from.
    """

    weights: Sequence[Mapping[str, FloatArray]]
    room: FloatArray
    most: int
    effort: Effort

    def keep(self) -> int:
        """Partial assignments that are kept at once, as long as there is effort left."""
        return self.most if self.effort.left > 0 else 1

    def efficient(self, groups: IntArray, points: FloatArray, order: FloatArray) -> IntArray:
        """The same as `pareto.efficient`, charged."""
        rows = efficient(groups, points, order)
        pairs = np.bincount(groups) @ np.bincount(groups[rows], minlength=int(groups.max()) + 1)
        self.effort.spend(points.size + float(pairs) * points.shape[1] / COMPARISONS)
        return rows


@dataclass(frozen=True)
class Labels:
    """Assignments of a block, partial or whole; arrays with one row each.

    Attributes:
        values: (n, variables).
        options: (n, factors).
        totals: (n, channels).
        over: (n, bounds), over the minimum.
    """

    values: IntArray
    options: IntArray
    totals: FloatArray
    over: FloatArray

    def take(self, rows: IntArray | NDArray[np.bool_]) -> Labels:
        """Only some of them, or some of them repeatedly."""
        return Labels(
            self.values[rows], self.options[rows], self.totals[rows], self.over[rows]
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.values)


class _Opened:
    """One block, its values assigned one variable after another."""

    def __init__(
        self, chain: Chain, name: str, relaxed: Relaxation, limits: Limits
    ) -> None:  # fmt: skip
        self.tables: BlockTables = chain.tables[name]
        self.limits, self.features = limits, relaxed.features(name)
        self.kept, self.complete = sorted(chain.kept(name)), True
        order, factor = self.tables.order(chain.kept(name)), chain.factor(name)
        self.regrets: list[list[Regret]] = []
        self.prices: list[list[FloatArray]] = []
        for weights in limits.weights:
            optional = self.tables.optional(weights[name])
            least = [table.min(axis=0) for table in optional]
            self.regrets.append(
                [replace(r, table=factor * r.table) for r in order.regrets(least)]
            )  # fmt: skip
            self.prices.append(
                [factor * (t - np.where(np.isfinite(m), m, 0.0))
                 for t, m in zip(optional, least, strict=True)]
            )  # fmt: skip

    def front(self, cells: IntArray, over: FloatArray) -> Labels:
        """All assignments that the bounds allow, from values of the variables that are kept.

        Shapes:
            cells: (n, kept variables); over: (n, bounds).
        """
        count, choosers = len(cells), self.tables.choosers
        values = np.full((count, len(self.tables.domains)), -1, dtype=np.intp)
        values[:, self.kept] = cells
        options = np.zeros((count, len(choosers)), dtype=np.intp)
        labels = Labels(values, options, np.zeros((count, COUNT)), over)
        self._known, self._pending = set(self.kept), list(range(len(choosers)))
        labels = self._close(labels, -1)
        for step, regret in enumerate(self.regrets[0]):
            labels = self._assign(labels, step)
            self._known.add(regret.variable)
            labels = self._thin(self._close(labels, step), step)
        return labels

    def _allowed(self, over: FloatArray) -> NDArray[np.bool_]:
        return np.asarray((over <= self.limits.room).all(axis=-1))

    def _assign(self, labels: Labels, step: int) -> Labels:
        variable, scope = self.regrets[0][step].variable, self.regrets[0][step].scope
        at = tuple(labels.values[:, v] for v in scope)
        more = np.stack([regrets[step].table[at] for regrets in self.regrets], axis=-1)
        if not scope:
            more = np.broadcast_to(more, (len(labels), *more.shape))
        over = labels.over[:, None, :] + more
        self.limits.effort.spend(over.size)
        rows, values = np.nonzero(self._allowed(over))
        longer = labels.take(rows)
        longer.values[:, variable] = values
        return replace(longer, over=over[rows, values])

    def _close(self, labels: Labels, step: int) -> Labels:
        """Add the factors whose variables are all assigned, an option each."""
        for number in list(self._pending):
            chooser = self.tables.choosers[number]
            if not self._known.issuperset(chooser.scope):
                continue
            self._pending.remove(number)
            at = tuple(labels.values[:, v] for v in chooser.scope)
            more = np.stack([_at(prices[number], at) for prices in self.prices], axis=-1)
            over = labels.over[:, None, :] + np.moveaxis(more, 0, 1)
            self.limits.effort.spend(over.size)
            rows, options = np.nonzero(self._allowed(over))
            spent = _at(chooser.values, (options, *(v[rows] for v in at))).T
            wider = labels.take(rows)
            wider.options[:, number] = options
            labels = replace(wider, over=over[rows, options], totals=wider.totals + spent)
            if len(chooser.values[0]) > 1:
                labels = self._thin(labels, step)
        return labels

    def _context(self, step: int) -> list[int]:
        """Variables that are assigned and matter to what is left after a step."""
        waiting = {v for later in self.regrets[0][step + 1 :] for v in later.scope}
        waiting |= {v for number in self._pending for v in self.tables.choosers[number].scope}
        return sorted(self._known & waiting | set(self.kept))

    def _thin(self, labels: Labels, step: int) -> Labels:
        """Without those that another one, alike to what is left, is nowhere worse than."""
        if len(labels) > 1:
            groups = _groups(labels.values[:, self._context(step)])
            points = labels.totals @ self.features.T
            labels = labels.take(self.limits.efficient(groups, points, labels.over[:, 0]))
        most = self.limits.keep()
        if len(labels) > most:
            self.complete = False
            share = labels.over / np.where(np.isfinite(self.limits.room), self.limits.room, 1.0)
            labels = labels.take(np.argsort(share.max(axis=1), kind="stable")[:most])
        return labels


def _at(table: FloatArray, places: tuple[IntArray, ...]) -> FloatArray:
    """Entries of a table, along its first axis all: (all, places)."""
    return np.asarray(table[(slice(None), *places)])  # type: ignore[arg-type]


def _groups(values: IntArray) -> IntArray:
    """A number per row, equal for equal rows."""
    if not values.shape[1]:
        return np.zeros(len(values), dtype=np.intp)
    return np.asarray(np.unique(values, axis=0, return_inverse=True)[1]).reshape(-1)


@dataclass(frozen=True)
class Found:
    """What is left.

    Attributes:
        solutions: that fit and whose step is below the best, the best first; a few.
        complete: whether nothing but dominated decisions was left out.
    """

    solutions: Sequence[Solution]
    complete: bool


FEW = 4
"""Solutions that are handed back."""
PAIRS = 1 << 20
"""Pairs of two fronts' entries that are looked at."""


def search_fronts(chain: Chain, relaxed: Relaxation, limits: Limits, best: float) -> Found:
    """Decisions with a step below `best` that keep all bounds.

    Args:
        chain: what is decided.
        relaxed: its step.
        limits: bounds.
        best: seconds.
    """
    opened = {name: _Opened(chain, name, relaxed, limits) for name in chain.tables}
    cells, over, options = _cells(chain, relaxed, limits)
    join = _Join(chain, relaxed, limits)
    for name, block in opened.items():
        mine = np.array(
            [[chain.cell(cell)[name][v] for v in block.kept] for cell in cells], dtype=np.intp
        ).reshape(len(cells), len(block.kept))
        unique, group = np.unique(mine, axis=0, return_inverse=True)
        least = np.full((len(unique), over.shape[1]), np.inf)
        np.minimum.at(least, group.reshape(-1), over)
        start = dict(zip(map(tuple, unique.tolist()), least, strict=True))
        join.add(name, block.kept, block.front(unique, least), start)
    rows: list[tuple[float, Solution]] = []
    for cell, spent, extra in zip(cells, over, options, strict=True):
        for option, more in enumerate(extra):
            below = min([best, *(step for step, _ in rows)])
            rows += join.best(cell, option, limits.room - spent - more, below)
    rows.sort(key=lambda row: row[0])
    complete = join.complete and all(block.complete for block in opened.values())
    return Found([solution for _, solution in rows[:FEW]], complete)


def _cells(
    chain: Chain, relaxed: Relaxation, limits: Limits
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Values of what blocks share that the bounds allow, the cheapest by the first bound first.

    Shapes:
        result: (n, shared variables), (n, bounds) over the minimum, and (n, options, bounds) of a
            tied parameter over its best option.
    """
    stages, over, extra = relaxed.pace.stages, [], []
    for weights in limits.weights:
        parts = {n: t.solve(weights[n], chain.kept(n)).table for n, t in chain.tables.items()}
        joint, options = chain.joint(parts, weights, stages)
        over.append(joint - joint.min())
        least = options.min(axis=0)
        extra.append(options - np.where(np.isfinite(least), least, 0.0))
    together = np.stack(over, axis=-1)
    allowed = (together <= limits.room).all(axis=-1)
    cells = np.argwhere(allowed)
    spent = together[allowed]
    order = np.argsort(spent[:, 0], kind="stable")
    cells, spent = cells[order], spent[order]
    every = np.stack(extra, axis=-1)  # [option, first, second, bound]
    users = tuple(cells[:, 1:].T) if chain.tied else (np.zeros(len(cells), dtype=np.intp),) * 2
    return cells, spent, np.moveaxis(every[(slice(None), *users)], 0, 1)


class _Join:
    """Fronts of blocks put together where they agree on what they share."""

    def __init__(self, chain: Chain, relaxed: Relaxation, limits: Limits) -> None:
        self.chain, self.relaxed, self.limits = chain, relaxed, limits
        self.bytes = relaxed.memory_limits()
        self.complete = True
        self._blocks: dict[str, tuple[Sequence[int], Labels, Mapping[tuple[int, ...], FloatArray]]]
        self._blocks = {}

    def add(
        self, name: str, kept: Sequence[int], front: Labels,
        start: Mapping[tuple[int, ...], FloatArray],
    ) -> None:  # fmt: skip
        """The front of a block; `start` is what its labels were over before it."""
        self._blocks[name] = (kept, front, start)

    def best(
        self, cell: IntArray, option: int, room: FloatArray, below: float
    ) -> list[tuple[float, Solution]]:
        """The shortest step below a bar at one cell, if there is one."""
        relaxed, chain = self.relaxed, self.chain
        shares = np.zeros((1, 2 * relaxed.pace.stages + len(self.bytes)))
        over, picks = np.zeros((1, len(room))), np.zeros((1, 0), dtype=np.intp)
        fronts = {name: self._front(name, cell, option) for name in self._blocks}
        names = sorted(fronts, key=lambda name: len(fronts[name][0]))
        for name in names:
            labels, mine = fronts[name]
            left, right = self._pairs(len(over), len(labels))
            self.limits.effort.spend(left.size * (mine.shape[1] + over.shape[1]))
            over = over[left] + labels.over[right]
            shares = shares[left] + mine[right]
            picks = np.column_stack([picks[left], right])
            fits = (shares[:, -len(self.bytes) :] <= self.bytes).all(axis=1)
            fits &= (over <= room).all(axis=1) & (relaxed.steps(shares) < below)
            rows = np.flatnonzero(fits)
            if not len(rows):
                return []
            rows = rows[self._efficient(shares[rows], over[rows])]
            over, shares, picks = over[rows], shares[rows], picks[rows]
        steps = relaxed.steps(shares)
        first = int(steps.argmin())
        assignments, options = {}, {}
        for name, row in zip(names, picks[first], strict=True):
            labels = fronts[name][0]
            assignments[name] = dict(enumerate(map(int, labels.values[row])))
            options[name] = tuple(map(int, labels.options[row]))
        step, stages = float(steps[first]), relaxed.pace.stages
        return [(step, chain.solution(assignments, options, option, stages, step))]

    def _efficient(self, shares: FloatArray, over: FloatArray) -> IntArray:
        together = np.zeros(len(shares), dtype=np.intp)
        return self.limits.efficient(together, self.relaxed.criteria(shares), over[:, 0])

    def _front(self, name: str, cell: IntArray, option: int) -> tuple[Labels, FloatArray]:
        """Labels of a block at a cell, over only by themselves, and their shares of the step."""
        kept, front, start = self._blocks[name]
        values = self.chain.cell(cell)[name]
        at = tuple(values[v] for v in kept)
        labels = front.take((front.values[:, kept] == at).all(axis=1))
        if not len(labels):
            return labels, np.zeros((0, 2 * self.relaxed.pace.stages + len(self.bytes)))
        stages = self.relaxed.pace.stages
        totals = labels.totals + self.chain.shared_totals(name, values, option, stages)
        shares = self.relaxed.shares(name, totals)
        rows = self._efficient(shares, labels.over)
        labels = labels.take(rows)
        return replace(labels, over=labels.over - start[at]), shares[rows]

    def _pairs(self, left: int, right: int) -> tuple[IntArray, IntArray]:
        """Every pair, or as many as may be kept."""
        if left * right > PAIRS:
            self.complete = False
            left = max(1, min(left, PAIRS // max(right, 1)))
            right = min(right, PAIRS // left)
        every = np.arange(left * right)
        return every // max(right, 1), every % max(right, 1)
