"""The last word on a candidate: its best decisions for every cut, or as many as effort allows.

For each cut into stages and number of layers run again: the best weights and bound (`hull`), and
where the bound leaves a gap to the best step, all decisions in between (`fronts`). On small
candidates that is exact; on large ones only the cut at hand is looked at, and only so many partial
assignments are kept. Effort is counted in table entries, never in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import comb

import numpy as np
from numpy.typing import NDArray

from autoplan.cost import Pricer
from autoplan.search.chain import Chain, Pace, Solution, is_layer
from autoplan.search.effort import Effort
from autoplan.search.fronts import Limits, search_fronts
from autoplan.search.hull import Hull, walk
from autoplan.search.relaxed import Cut, Relaxation, bytes_weights
from autoplan.search.step import Estimate, Room, estimate
from autoplan.search.tables import Decision

CUTS = 200
"""Cuts up to which every one is looked at."""
BOUNDS = 12
"""Bounds on time that decisions have to keep, where their tables are small."""
ENTRIES = 4e6
"""Entries of the tables of all bounds at most; beyond, only hulls are walked."""
GOOD = 64
"""Partial assignments kept at once for a good step."""
GROWTH = (512, 4096, 32768)
"""The same for all that is between a bound and the best step, more and more."""
NEAR = 0.005
"""Share of a step between bound and best up to which all in between is looked at."""
STUCK = 0.02
"""The same where splitting has not raised the bound."""
BETTER = 1e-10
"""Share of a step that is worth looking for."""
NEVER = 1e9
"""Seconds that no step takes, where none is known."""


@dataclass(frozen=True)
class _Node:
    """Part of the decisions of a candidate.

    Attributes:
        chain: only these.
        choices: (decision, what is allowed).
    """

    chain: Chain
    choices: tuple[tuple[Decision, NDArray[np.bool_]], ...]

    def holds(self, solution: Solution) -> bool:
        """Whether a solution is among them."""
        return all(allowed[solution.at(decision)] for decision, allowed in self.choices)

    def halves(self, mixture: Sequence[tuple[float, Solution]]) -> list[_Node]:
        """Split by the decision on which a mixture disagrees most; the half to look at first comes
        last. Nothing where it does not disagree.
        """
        most, where, value = 1.0 - 1e-9, None, -1
        for decision, count in self._decisions():
            shares = np.zeros(count)
            for share, solution in mixture:
                shares[solution.at(decision)] += share
            if shares.max() < most:
                most, where, value = float(shares.max()), (decision, count), int(shares.argmax())
        if where is None:
            return []
        mine = np.arange(where[1]) == value
        return [self._within(where[0], ~mine), self._within(where[0], mine)]

    def _decisions(self) -> Iterator[tuple[Decision, int]]:
        for name, tables in self.chain.tables.items():
            for variable, domain in enumerate(tables.domains):
                yield Decision(name, variable), len(domain)
            for number, chooser in enumerate(tables.choosers):
                if len(chooser.values[0]) > 1:
                    yield Decision(name, None, number), len(chooser.values[0])

    def _within(self, decision: Decision, allowed: NDArray[np.bool_]) -> _Node:
        chain = self.chain.within(decision, allowed)
        return _Node(chain, (*self.choices, (decision, allowed)))


class _Candidate:
    """One candidate while it is settled.

    Attributes:
        entries: of all tables of one solve.
        width: entries that a partial assignment is extended by, all in all.
    """

    def __init__(
        self, chain: Chain, pace: Pace, room: Room, pricer: Pricer, best: Estimate | None
    ) -> None:
        self.chain, self.pace, self.room, self.pricer = chain, pace, room, pricer
        self.best, self.bar = best, float("inf")
        self.pool: list[Solution] = [best.solution] if best else []
        tables = chain.tables.items()
        self.entries = float(sum(t.order(chain.kept(name)).cells for name, t in tables))
        self.width = float(sum(len(d) for _, t in tables for d in t.domains))

    @property
    def step(self) -> float:
        """Seconds to beat."""
        return min(self.bar, self.best.step_time if self.best else float("inf"))

    def met(self, solution: Solution) -> float:
        """Cut a solution into stages, keep it if it is the best; the step to beat."""
        found = estimate(self.chain, solution, self.pace, self.room, self.pricer)
        if found and found.step_time < self.step:
            self.best = found
        return self.step

    def cuts(self) -> Iterator[Cut]:
        """Every cut where they are few, else the one of the best solution."""
        order, graph = self.chain.order, self.chain.graph
        stages, room = self.pace.stages, self.room
        layer = np.array([is_layer(name) for name in order])
        may = np.array([bool(graph.blocks[n].backward) for n in order]) & layer
        most = 1 if room.recompute else (int(may.sum()) // stages + 1) ** stages
        if comb(len(order) - 1, stages - 1) * most > CUTS:
            if self.best:
                part = self.best.partition
                yield Cut(part.bounds, part.recompute)
            return
        for inner in combinations(range(1, len(order)), stages - 1):
            bounds = (0, *inner, len(order))
            layers = [int(layer[i:j].sum()) for i, j in pairwise(bounds)]
            if min(layers) < 1 or (room.layers is not None and layers != list(room.layers)):
                continue
            counts = [int(may[i:j].sum()) for i, j in pairwise(bounds)]
            table = {"none": [[0] for _ in counts], "full": [[n] for n in counts]}
            for again in product(*table.get(room.recompute, [range(n + 1) for n in counts])):
                yield Cut(bounds, tuple(again))

    def run(self, effort: Effort) -> None:
        """Every cut: what is promising first, then all by branch and bound."""
        roots: list[tuple[float, int, _Node, Relaxation, Hull]] = []
        for cut in self.cuts():
            scale = self.pool[0].objective
            relaxed = Relaxation(self.chain, cut, self.pace, self.room, self.pricer, scale)
            node = _Node(self.chain, ())
            hull = self._walk(node, relaxed, effort)
            if hull and not self._all(node, relaxed, (hull, GOOD), effort):
                roots.append((hull.lower, len(roots), node, relaxed, hull))
        for _, _, node, relaxed, hull in sorted(roots, key=lambda root: root[:2]):
            if hull.lower >= self.step * (1.0 - BETTER):
                break
            if not self._grow(node, relaxed, hull, effort):
                self._split(node, relaxed, hull, effort)

    def _grow(self, node: _Node, relaxed: Relaxation, hull: Hull, effort: Effort) -> bool:
        """Look at more and more of what is between a bound and the best step, again where a better
        one leaves less to look at; whether that was everything.
        """
        for most in GROWTH:
            better = True
            while better:
                before = self.step
                if self._all(node, relaxed, (hull, most), effort):
                    return True
                better = self.step < before
        return False

    def _split(self, root: _Node, relaxed: Relaxation, hull: Hull, effort: Effort) -> None:
        """Branch and bound, depth first."""
        nodes = [(node, hull.lower) for node in root.halves(hull.mixture)]
        while nodes:
            node, before = nodes.pop()
            found = self._walk(node, relaxed, effort)
            if found is None:
                continue
            stuck = found.lower <= before * (1.0 + NEAR)
            near = found.lower >= self.step * (1.0 - (STUCK if stuck else NEAR))
            if not near or not self._all(node, relaxed, (found, GROWTH[0]), effort):
                nodes += [(half, found.lower) for half in node.halves(found.mixture)]

    def _walk(self, node: _Node, relaxed: Relaxation, effort: Effort) -> Hull | None:
        """The bound of a node; None where it is not below the best step, or effort is spent."""
        cost = ROUND * (self.entries + OVERHEAD)
        if not effort.affords(cost):
            return None
        effort.spend(cost)
        known = [solution for solution in self.pool if node.holds(solution)]
        pool = known or self._first(node)
        if not pool:
            return None
        start = len(known)
        hull = walk(node.chain, relaxed, pool, self.met)
        self.pool += pool[start:]
        return hull if hull.lower < self.step * (1.0 - BETTER) else None

    def _first(self, node: _Node) -> list[Solution]:
        """Any decisions that a node allows."""
        found = node.chain.solve(self.pace)
        return [found] if found else []

    def _all(
        self, node: _Node, relaxed: Relaxation, look: tuple[Hull, int], effort: Effort
    ) -> bool:
        """Look at everything between a bound and the best step; whether it was everything."""
        hull, most = look
        if self.entries > ENTRIES or not effort.affords(most * self.width):
            return False
        limits = self._limits(node.chain, relaxed, hull, most, effort)
        found = search_fronts(node.chain, relaxed, limits, self.step)
        for solution in found.solutions:
            self.met(solution)
        return found.complete

    def _limits(
        self, chain: Chain, relaxed: Relaxation, hull: Hull, most: int, effort: Effort
    ) -> Limits:  # fmt: skip
        bounds = hull.bounds[: min(BOUNDS, int(ENTRIES / self.entries))]
        weights = [bound.weights for bound in bounds]
        bar = min(self.step * (1.0 - BETTER), NEVER)
        room = [bar - bound.seconds for bound in bounds]
        for stage, limit in enumerate(self.room.limits):
            mine = bytes_weights(relaxed, stage)
            least = chain.minimise(mine, self.pace.stages)
            assert least is not None
            weights.append(mine)
            room.append(limit - least.objective)
        return Limits(weights, np.array(room), most, effort)


def settle(
    chain: Chain, pace: Pace, machine: tuple[Room, Pricer], best: Estimate | None, effort: Effort,
    bar: float,
) -> Estimate | None:  # fmt: skip
    """The best decisions of a candidate, or None where none fits or none is below a bar.

    Args:
        chain: its blocks.
        pace: stages and micro-batches, no price of memory.
        machine: memory per stage; prices.
        best: what has been found so far.
        effort: what may be spent; taken from.
        bar: seconds of a step that others reach.
    """
    found = _Candidate(chain, pace, *machine, best)
    found.bar = bar
    if not found.pool:
        first = chain.solve(pace)
        if first is None:
            return None
        found.pool.append(first)
    found.run(effort)
    return found.best


ROUND = 10
"""Solves of a walk, about."""
OVERHEAD = 1e5
"""What a solve takes beside its tables, in entries."""
