"""The whole model on one mesh: blocks joined at one boundary layout and weighed.

For a price of memory (lambda, seconds per byte) and a weight of the compute stream (mu), every
block is minimised exactly; blocks meet at the boundary layout that is best for all. What a step
takes follows from the channel totals; see `step`. mu C + (1 - mu) W is a lower bound of max(C, W)
for every mu in [0, 1], so a few mu give good plans where costs are not additive; `hull` finds the
best weights, `fronts` what no weights reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoplan.ir.graph import Graph, kind_of
from autoplan.ir.layout import Layout
from autoplan.ir.plan import Stored, Strategy
from autoplan.search.tables import CHANNEL, COUNT, BlockTables, Decision, StoredChoice

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Pace:
    """How often and beside what a block runs; turns channels into one number.

    Attributes:
        stages: pipeline stages.
        micro_batches: per step.
        flight: micro-batches in flight on the fullest stage.
        memory_price: seconds per byte (lambda).
        overlap: weight of the compute stream (mu), or None where nothing overlaps.
        recompute: layers run forward again.
    """

    stages: int
    micro_batches: int
    flight: int
    memory_price: float
    overlap: float | None
    recompute: bool

    def weights(self, layer: bool) -> FloatArray:
        """Weight per channel of one instance of a block."""
        repeats = 1.0 + (self.micro_batches - 1.0) / self.stages
        compute, collective = 1.0, 1.0
        if self.overlap is not None:
            compute, collective = self.overlap, 1.0 - self.overlap
        on_compute, beside = repeats * compute, repeats * collective
        again = self.recompute and layer
        weights = np.zeros(COUNT)
        weights[[CHANNEL["XF"], CHANNEL["XB"]]] = on_compute
        weights[CHANNEL["RC" if again else "RG"]] = on_compute
        weights[[CHANNEL["WF"], CHANNEL["WB"]]] = beside
        weights[CHANNEL["ON"]] = 1.0 / self.stages
        weights[CHANNEL["OK"]] = collective / self.stages
        price = self.memory_price / self.stages
        weights[CHANNEL["MA"]] = price * (0.0 if again else self.flight)
        weights[CHANNEL["MX"]] = price * self.flight
        weights[CHANNEL["MW"]] = price
        return weights


@dataclass(frozen=True)
class Solution:
    """Best decisions for one pace.

    Attributes:
        totals: block -> channel totals of one instance.
        assignments: block -> variable -> value.
        options: block -> the option of each of its factors.
        objective: what was minimised.
        shared: which stored layouts a tied parameter has, of its options.
    """

    totals: Mapping[str, FloatArray]
    assignments: Mapping[str, Mapping[int, int]]
    options: Mapping[str, tuple[int, ...]]
    objective: float
    shared: int = 0

    def at(self, decision: Decision) -> int:
        """How something was decided."""
        if decision.variable is None:
            return self.options[decision.block][decision.factor]
        return self.assignments[decision.block][decision.variable]


class Chain:
    """Blocks of a graph on one mesh with one micro-batch size.

    Args:
        graph: training step.
        tables: block -> its factors.
    """

    def __init__(self, graph: Graph, tables: Mapping[str, BlockTables]) -> None:
        self.graph, self.tables = graph, tables
        self.order = [instance.block for instance in graph.instances]
        self.counts = {name: self.order.count(name) for name in tables}
        self.tied = _tied_pair(graph)

    def within(self, decision: Decision, allowed: NDArray[np.bool_]) -> Chain:
        """The same, with only some values of a variable or options of a factor allowed."""
        smaller = self.tables[decision.block].within(decision, allowed)
        return Chain(self.graph, {**self.tables, decision.block: smaller})

    def solve(self, pace: Pace) -> Solution | None:
        """The best decisions at a pace; see `minimise`."""
        weights = {name: pace.weights(is_layer(name)) for name in self.tables}
        return self.minimise(weights, pace.stages)

    def minimise(self, weights: Mapping[str, FloatArray], stages: int) -> Solution | None:
        """The best decisions for a weight per block and channel, or None where no boundary layout
        suits all blocks.
        """
        parts = {name: t.solve(weights[name], self.kept(name)) for name, t in self.tables.items()}
        joint, options = self.joint({n: part.table for n, part in parts.items()}, weights, stages)
        best = np.unravel_index(int(joint.argmin()), joint.shape)
        kept, objective = self.cell(best), float(joint[best])
        shared = int(options[:, best[1], best[2]].argmin()) if self.tied else 0
        if not np.isfinite(objective) or objective > 1e12:
            return None
        assignments = {name: part.assignment(kept[name]) for name, part in parts.items()}
        chosen = {
            name: tables.options(assignments[name], weights[name])
            for name, tables in self.tables.items()
        }
        return self.solution(assignments, chosen, shared, stages, objective)

    def solution(
        self, assignments: Mapping[str, Mapping[int, int]],
        options: Mapping[str, tuple[int, ...]], shared: int, stages: int, objective: float,
    ) -> Solution:  # fmt: skip
        """Decisions with what they come to."""
        totals = {
            name: tables.totals(assignments[name], options[name])
            + self.shared_totals(name, assignments[name], shared, stages)
            for name, tables in self.tables.items()
        }
        return Solution(totals, assignments, options, objective, shared)

    def kept(self, name: str) -> list[int]:
        """The variables of a block that other blocks share."""
        space = self.tables[name].space
        tied = [space.groups[self.tied[name]]] if name in self.tied else []
        return [space.boundary, *tied]

    def _tied_variable(self, name: str) -> int:
        return self.tables[name].space.groups[self.tied[name]]

    def shared_values(self, name: str, stages: int) -> FloatArray:
        """(channels, options, values) of a tied parameter in one of its users."""
        shared = self.tables[name].shared
        assert shared is not None
        values = shared.values
        if stages == 1 and name != next(iter(self.tied)):  # one stage keeps and updates it once
            values = values.copy()
            values[[CHANNEL["ON"], CHANNEL["OK"], CHANNEL["MW"]]] = 0.0
        return values

    def shared_totals(
        self, name: str, assignment: Mapping[int, int], option: int, stages: int
    ) -> FloatArray:
        """Channel totals of a tied parameter in one of its users; none in other blocks."""
        if name not in self.tied:
            return np.zeros(COUNT)
        value = assignment[self._tied_variable(name)]
        return np.asarray(self.shared_values(name, stages)[:, option, value])

    def tied_options(self, weights: Mapping[str, FloatArray], stages: int) -> FloatArray:
        """[option, value of the first user, of the second] of a tied parameter; infinite where the
        users do not agree.
        """
        if not self.tied:
            return np.zeros((1, 1, 1))
        first, second = (
            np.tensordot(weights[name], self.shared_values(name, stages), 1) for name in self.tied
        )
        count = min(len(first), len(second))
        both = first[:count, :, None] + second[:count, None, :]
        return np.where(self._agreement(), both, np.inf)

    def joint(
        self, tables: Mapping[str, FloatArray], weights: Mapping[str, FloatArray], stages: int
    ) -> tuple[FloatArray, FloatArray]:
        """The minimum over everything but the variables that blocks share: per boundary, and with
        a tied parameter per value of both its users; and the latter's options, see `tied_options`.

        Args:
            tables: per block, the least for each value of the variables it shares (`kept`).
            weights: that they were solved for.
            stages: one stage keeps and updates a tied parameter once.
        """
        options = self.tied_options(weights, stages)
        total = sum(
            self.counts[name] * table for name, table in tables.items() if name not in self.tied
        )
        if not self.tied:
            return np.asarray(total), options
        left, right = (self._tied_table(tables[name], name) for name in self.tied)
        joint = np.asarray(total)[..., None, None] + left[:, :, None] + right[:, None, :]
        return joint + options.min(axis=0), options

    def cell(self, position: Iterable[np.intp]) -> dict[str, dict[int, int]]:
        """Per block the values of the variables that it shares, at a position of `joint`."""
        boundary, *users = position
        kept = {n: {t.space.boundary: int(boundary)} for n, t in self.tables.items()}
        for name, value in zip(self.tied, users, strict=True):
            kept[name][self._tied_variable(name)] = int(value)
        return kept

    def factor(self, name: str) -> float:
        """How many instances of a block `minimise` counts."""
        return 1.0 if name in self.tied else float(self.counts[name])

    def _tied_table(self, table: FloatArray, name: str) -> FloatArray:
        """[boundary, value of the tied operator]."""
        space = self.tables[name].space
        return table if space.boundary < self._tied_variable(name) else table.T

    def _agreement(self) -> NDArray[np.bool_]:
        """Which pairs of values use a tied parameter, and leave its gradient, in one layout."""
        rows = [self._tied_layouts(name, group) for name, group in self.tied.items()]
        return np.array([[a == b for b in rows[1]] for a in rows[0]])

    def _tied_layouts(self, name: str, group: str) -> list[tuple[Layout, ...]]:
        tables = self.tables[name]
        space, block = tables.space, tables.space.block
        parameter = _tied_name(self.graph)
        sides = []
        for op in (*block.forward, *block.backward):
            gradient = "d." + parameter
            if op.group == group and parameter in op.inputs:
                sides.append(space.operand(op, op.inputs.index(parameter)))
            if op.group == group and gradient in op.outputs:
                sides.append(space.result(op, op.outputs.index(gradient)))
        domain = tables.domains[space.groups[group]]
        return [(sides[0].layouts[i], sides[-1].layouts[i]) for i in domain]

    def seconds(self, solution: Solution, pace: Pace) -> float:
        """The time in a solution's objective, memory aside."""
        free = replace(pace, memory_price=0.0)
        return sum(
            self.counts[name] * float(free.weights(is_layer(name)) @ total)
            for name, total in solution.totals.items()
        )

    def strategies(self, solution: Solution) -> dict[str, Strategy]:
        """The decisions as strategies, keyed by block."""
        result = {}
        for name, tables in self.tables.items():
            space, assignment = tables.space, solution.assignments[name]
            at = {number: int(tables.domains[number][i]) for number, i in assignment.items()}
            saved, stored = tables.decisions(assignment, solution.options[name])
            splits = {
                group: space.choices[group][at[space.groups[group]]] for group in space.block.groups
            }
            homes = {hub: space.variables[n].values[at[n]] for hub, n in space.hubs.items()}
            if name in self.tied:
                stored[_tied_name(self.graph)] = self._tied_stored(name, solution)
            result[name] = Strategy(name, splits, homes, saved, stored)  # type: ignore[arg-type]
        return result

    def _tied_stored(self, name: str, solution: Solution) -> Stored:
        """Stored layouts of a tied parameter, the same in all its users."""
        shared = self.tables[name].shared
        assert shared is not None
        assert isinstance(shared.meaning, StoredChoice)
        value = solution.assignments[name][self._tied_variable(name)]
        return shared.meaning.options[value][solution.shared]


def is_layer(block: str) -> bool:
    """Whether a block is a decoder layer (or a variant of it)."""
    return kind_of(block) == "layer"


def _tied_name(graph: Graph) -> str:
    return next(iter(graph.tied))


def _tied_pair(graph: Graph) -> dict[str, str]:
    """Block -> layer operator, of the two users of a tied parameter; {} if there is none."""
    pair: dict[str, str] = {}
    for name, users in graph.tied.items():
        for index in users:
            instance = graph.instances[index]
            block = graph.blocks[instance.block]
            local = name.removeprefix(instance.prefix)
            pair[block.name] = next(op.group for op in block.forward if local in op.inputs)
    return pair
