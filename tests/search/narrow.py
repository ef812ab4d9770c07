"""Chains with a handful of decisions left, so that all of them can be listed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random

import numpy as np

from autoplan.cost import Pricer
from autoplan.search.candidates import Shape, arrangements
from autoplan.search.chain import Chain, Pace, Solution, is_layer
from autoplan.search.relaxed import Cut, Relaxation
from autoplan.search.step import Estimate, Room, estimate
from autoplan.search.tables import ILLEGAL, Decision
from tests.search.cases import FREE, Case, random_case, random_solution

MOST = 3
"""Values of a decision that is left."""
PLENTY = 1e12
"""Bytes that no plan takes."""


@dataclass(frozen=True)
class Narrow:
    """A candidate with few decisions, one cut, and all its solutions.

    Attributes:
        chain: only these decisions.
        pace, room, pricer: of its step.
        every: all legal solutions.
    """

    chain: Chain
    pace: Pace
    room: Room
    pricer: Pricer
    every: tuple[Solution, ...]

    def step(self, solution: Solution) -> Estimate | None:
        """What a solution comes to, or None where it does not fit."""
        return estimate(self.chain, solution, self.pace, self.room, self.pricer)

    def best(self) -> float:
        """By brute force; infinite where nothing fits."""
        found = filter(None, map(self.step, self.every))
        return min((one.step_time for one in found), default=float("inf"))

    @property
    def cut(self) -> Cut:
        """The only one that the room allows."""
        order = self.chain.order
        middle = (0, 1 + self.room.layers[0]) if self.room.layers else (0,)
        bounds = (*middle, len(order))
        layers = [sum(map(is_layer, order[i:j])) for i, j in zip(bounds, bounds[1:], strict=False)]
        again = layers if self.room.recompute == "full" else [0] * len(layers)
        return Cut(bounds, tuple(again))

    def relaxed(self) -> Relaxation:
        """Its step as rows, counted in a typical one."""
        scale = sum(one.objective for one in self.every) / len(self.every)
        return Relaxation(self.chain, self.cut, self.pace, self.room, self.pricer, scale)


def decisions(chain: Chain) -> list[tuple[Decision, int]]:
    """What may be decided on its own, with the number of its values."""
    table = []
    for name, tables in chain.tables.items():
        shared = chain.kept(name)
        for variable, domain in enumerate(tables.domains):
            if variable not in shared and len(domain) > 1:
                table.append((Decision(name, variable), len(domain)))
        for number, chooser in enumerate(tables.choosers):
            if len(chooser.values[0]) > 1:
                table.append((Decision(name, None, number), len(chooser.values[0])))
    return table


def narrowed(rng: Random, chain: Chain, left: int) -> tuple[Chain, list[Solution]]:
    """A chain with so many decisions left, two or three values each, and all its solutions."""
    start = random_solution(rng, chain, noise=rng.choice((0.0, 1e-3)))
    every = decisions(chain)
    loose = {decision for decision, _ in rng.sample(every, min(left, len(every)))}
    choices: dict[Decision, list[int]] = {}
    for name, tables in chain.tables.items():
        for variable in chain.kept(name):
            decision = Decision(name, variable)
            chain = chain.within(
                decision, np.arange(len(tables.domains[variable])) == start.at(decision)
            )
    for decision, count in every:
        values = {start.at(decision)}
        if decision in loose:
            values |= set(rng.sample(range(count), min(MOST - 1, count)))
        choices[decision] = sorted(values)
        chain = chain.within(decision, np.isin(np.arange(count), choices[decision]))
    found = []
    for combination in product(*choices.values()):
        solution = changed(chain, start, dict(zip(choices, combination, strict=True)))
        if all(np.abs(total).max() < ILLEGAL for total in solution.totals.values()):
            found.append(solution)
    return chain, found


def changed(chain: Chain, start: Solution, values: dict[Decision, int]) -> Solution:
    """A solution with some decisions made otherwise."""
    assignments = {name: dict(values) for name, values in start.assignments.items()}
    options = {name: list(values) for name, values in start.options.items()}
    for decision, value in values.items():
        if decision.variable is None:
            options[decision.block][decision.factor] = value
        else:
            assignments[decision.block][decision.variable] = value
    fixed = {name: tuple(values) for name, values in options.items()}
    return chain.solution(assignments, fixed, start.shared, 1, start.objective)


@cache
def full_chain(seed: int, stages: int) -> tuple[Case, Shape, Chain]:
    """All decisions of a random small model on one or two devices a stage."""
    rng = Random(f"narrow/{seed}")
    while True:
        case = random_case(rng, devices=(2,), overlap=seed % 3 > 0, short=False)
        if case.asked.config.layers == 2:
            break
    sizes = (2,) if stages == 1 else ()
    mesh, stride = next(arrangements(case.asked.hardware, sizes, stages))
    shape = Shape(stages, mesh, stride, case.asked.workload.global_batch_size, "1f1b")
    chain = case.chain(shape, FREE)
    assert chain is not None
    return case, shape, chain


def random_narrow(seed: int, left: int = 6) -> Narrow:
    """Any candidate with few decisions; memory between what the leanest and the fattest need."""
    rng = Random(f"small chain/{seed}")
    stages = rng.choice((1, 1, 2))
    case, shape, chain = full_chain(seed % 6, stages)
    chain, every = narrowed(rng, chain, left)
    pace = Pace(stages, shape.micro_batches, 1, 0.0, None, False)
    pricer = case.search().pricer
    layers = (1, 1) if stages == 2 else None
    room = Room([PLENTY] * stages, "1f1b", rng.choice(("none", "full")), layers, hop=1e-5)
    made = Narrow(chain, pace, room, pricer, tuple(every))
    needs = sorted(
        max(found.partition.memory) for found in map(made.step, every) if found is not None
    )
    if rng.random() < 0.7:
        limit = needs[0] + rng.choice((-0.01, rng.random())) * (needs[-1] - needs[0]) + 1e-6
        room = Room([limit] * stages, room.schedule, room.recompute, layers, room.hop)
    return Narrow(chain, pace, room, pricer, made.every)
