"""Spaces of a few hundred plans, all of which are lowered and simulated.

What the search minimises is an estimate, of which it simulates the best few. Here nothing is
estimated: the best plan that fits is found by the ordinary path alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from random import Random

from autoplan.search import Ranked
from autoplan.search.candidates import Shape
from autoplan.search.chain import Chain, Solution
from autoplan.search.engine import Freedom
from autoplan.search.outer import Search
from autoplan.search.partition import Partition
from autoplan.search.ranking import stage_totals
from autoplan.search.step import Estimate
from tests.search.cases import FREE, Case, every_shape, random_case, with_memory
from tests.search.exhaustive import cuts
from tests.search.narrow import narrowed


@dataclass(frozen=True)
class Space:
    """A question with few plans.

    Attributes:
        case: the question; its chains have few decisions left.
        solutions: candidate -> all its legal decisions.
    """

    case: Case
    solutions: dict[Shape, tuple[Chain, list[Solution]]]

    def plans(self, search: Search) -> Iterator[Ranked]:
        """Every plan, simulated."""
        for shape, (chain, solutions) in self.solutions.items():
            for cut in cuts(chain, shape.stages, recompute=True):
                zeros = (0.0,) * shape.stages
                part = Partition(cut.bounds, cut.again, zeros, zeros, zeros)
                for solution in solutions:
                    plan = search.engine.plan(chain, shape, Estimate(solution, part, 0.0))
                    yield search.evaluate(plan)

    @cached_property
    def rows(self) -> list[tuple[float, int]]:
        """(seconds, bytes of the fullest stage) of every plan."""
        every = self.plans(self.case.search())
        return [(row.timeline.step_time, max(stage_totals(row.timeline))) for row in every]

    def best(self, memory: float) -> float:
        """The best step that fits; infinite where none does."""
        return min((step for step, held in self.rows if held <= memory), default=inf)

    def searched(self, memory: float) -> float:
        """The best step that the search finds, by simulation; infinite where it finds none."""
        search = replace(self.case, asked=with_memory(self.case.asked, memory)).search()
        rows = search.ranked()
        assert all(search.fits(row) for row in rows)
        return min((row.timeline.step_time for row in rows), default=inf)

    def limits(self, rng: Random, count: int = 2) -> list[float]:
        """So many limits between about what the leanest plan needs and what the fastest does."""
        least, fastest = min(held for _, held in self.rows), min(self.rows)[1]
        return [int(least + rng.uniform(-0.05, 1.3) * (fastest - least)) for _ in range(count)]


PLENTY = 1e12
"""Bytes that no plan takes."""


def gap(found: float, best: float) -> float:
    """How much slower than the best; infinite where nothing is found though something fits."""
    return 0.0 if found == best else found / best - 1.0


def random_space(rng: Random, left: int = 2) -> Space:
    """A random small model and machine with so many open decisions a candidate."""
    case = random_case(rng, devices=(2, 2, 3), short=False)
    solutions = {}
    for shape in every_shape(case.asked):
        chain = case.chain(shape, FREE)
        if chain is not None and shape not in solutions:
            solutions[shape] = narrowed(rng, chain, left)

    def few(shape: Shape, freedom: Freedom) -> Chain | None:
        return solutions[shape][0] if shape in solutions else None

    return Space(replace(case, chain=few), solutions)
