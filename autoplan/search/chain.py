"""The whole model on one mesh: blocks joined at one boundary layout, weighed, cut into stages.

For a price of memory (lambda, seconds per byte) and a weight of the compute stream (mu), every
block is minimised exactly; blocks meet at the boundary layout that is best for all. What a step
takes follows from the channel totals:

    forward  = max(XF, WF)
    backward = max(XB + RG, WB), or max(XB + RC, WB) where forward runs again
    step     = sum_s t_s + (M - 1) max_s t_s + transfers + optimizer

with + instead of max on machines whose collectives do not run beside computing, and OK after WB in
the last backward. mu C + (1 - mu) W is a lower bound of max(C, W) for every mu in [0, 1], so a few
mu give good plans where costs are not additive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoplan.cost import Pricer
from autoplan.ir.graph import Graph, kind_of
from autoplan.ir.layout import Layout
from autoplan.ir.plan import Stored, Strategy
from autoplan.pipeline import in_flight
from autoplan.search.eliminate import Elimination
from autoplan.search.partition import ChainCosts, Limits, Partition, partition
from autoplan.search.tables import CHANNEL, COUNT, BlockTables, StoredChoice

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
        weights: block -> the weights it was solved for.
        objective: what was minimised.
        shared: which stored layouts a tied parameter has, of its options.
    """

    totals: Mapping[str, FloatArray]
    assignments: Mapping[str, Mapping[int, int]]
    weights: Mapping[str, FloatArray]
    objective: float
    shared: int = 0


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

    def solve(self, pace: Pace) -> Solution | None:
        """The best decisions, or None where no boundary layout suits all blocks."""
        weights = {name: pace.weights(is_layer(name)) for name in self.tables}
        parts = {}
        for name, tables in self.tables.items():
            space = tables.space
            keep = [space.boundary]
            if self.tied and name in self.tied:
                keep.append(space.groups[self.tied[name]])
            parts[name] = tables.solve(weights[name], keep)
        total = sum(
            self.counts[name] * part.table
            for name, part in parts.items()
            if not (self.tied and name in self.tied)
        )
        options = self._tied_options(weights, pace.stages)
        kept, shared, objective = self._join(parts, np.asarray(total), options)
        if not np.isfinite(objective) or objective > 1e12:
            return None
        assignments = {name: part.assignment(kept[name]) for name, part in parts.items()}
        totals = {
            name: tables.totals(assignments[name], weights[name])
            + self._shared_totals(name, assignments[name], shared, pace.stages)
            for name, tables in self.tables.items()
        }
        return Solution(totals, assignments, weights, objective, shared)

    def _tied_variable(self, name: str) -> int:
        return self.tables[name].space.groups[self.tied[name]]

    def _shared_values(self, name: str, stages: int) -> FloatArray:
        """(channels, options, values) of a tied parameter in one of its users."""
        shared = self.tables[name].shared
        assert shared is not None
        values = shared.values
        if stages == 1 and name != next(iter(self.tied)):  # one stage keeps and updates it once
            values = values.copy()
            values[[CHANNEL["ON"], CHANNEL["OK"], CHANNEL["MW"]]] = 0.0
        return values

    def _shared_totals(
        self, name: str, assignment: Mapping[int, int], option: int, stages: int
    ) -> FloatArray:
        """Channel totals of a tied parameter in one of its users; none in other blocks."""
        if name not in self.tied:
            return np.zeros(COUNT)
        value = assignment[self._tied_variable(name)]
        return np.asarray(self._shared_values(name, stages)[:, option, value])

    def _tied_options(self, weights: Mapping[str, FloatArray], stages: int) -> FloatArray:
        """[option, value of the first user, of the second] of a tied parameter; infinite where the
        users do not agree.
        """
        if not self.tied:
            return np.zeros((1, 1, 1))
        first, second = (
            np.tensordot(weights[name], self._shared_values(name, stages), 1) for name in self.tied
        )
        count = min(len(first), len(second))
        both = first[:count, :, None] + second[:count, None, :]
        return np.where(self._agreement(), both, np.inf)

    def _join(
        self, parts: Mapping[str, Elimination], total: FloatArray, options: FloatArray
    ) -> tuple[dict[str, dict[int, int]], int, float]:
        """Best boundary; for a tied parameter also the best users that agree, and its option."""
        boundary = {name: t.space.boundary for name, t in self.tables.items()}
        if not self.tied:
            best = int(total.argmin())
            return {name: {boundary[name]: best} for name in parts}, 0, float(total[best])
        first, second = self.tied
        left = self._tied_table(parts[first], first)
        right = self._tied_table(parts[second], second)
        joint = total[:, None, None] + left[:, :, None] + right[:, None, :]
        joint = joint + options.min(axis=0)
        b, i, j = np.unravel_index(int(joint.argmin()), joint.shape)
        kept = {name: {boundary[name]: int(b)} for name in parts}
        kept[first][self._tied_variable(first)] = int(i)
        kept[second][self._tied_variable(second)] = int(j)
        return kept, int(options[:, i, j].argmin()), float(joint[b, i, j])

    def _tied_table(self, part: Elimination, name: str) -> FloatArray:
        """[boundary, value of the tied operator]."""
        space = self.tables[name].space
        first = part.kept[0] == space.boundary
        return part.table if first else part.table.T

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
            saved, stored = tables.decisions(assignment, solution.weights[name])
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


@dataclass(frozen=True)
class Estimate:
    """A solution cut into stages.

    Attributes:
        solution: the decisions.
        partition: stages and recomputed layers.
        step_time: estimated seconds.
    """

    solution: Solution
    partition: Partition
    step_time: float


@dataclass(frozen=True)
class Room:
    """Memory of the stages and how they are filled.

    Attributes:
        limits: bytes per stage.
        schedule: family.
        recompute: "none", "full", or "" where it may be decided per layer.
        layers: layers per stage if given.
        hop: seconds of one transfer between neighbours.
    """

    limits: Sequence[float]
    schedule: str
    recompute: str = ""
    layers: Sequence[int] | None = None
    hop: float = 0.0


def estimate(
    chain: Chain, solution: Solution, pace: Pace, room: Room, pricer: Pricer
) -> Estimate | None:
    """Cut a solution into stages that fit, or None.

    Args:
        chain: what was solved.
        solution: decisions.
        pace: stages and micro-batches.
        room: memory per stage.
        pricer: whether streams overlap, fixed costs.
    """
    costs = _chain_costs(chain, solution, room, pricer)
    flight = [
        in_flight(room.schedule, s, pace.stages, pace.micro_batches) for s in range(pace.stages)
    ]
    limits = Limits(flight, room.limits, pace.micro_batches, room.recompute == "full", room.layers)
    cut = partition(costs, limits)
    if cut is None:
        return None
    bounds = cut.bounds
    ends = [solution.totals[name] for name in chain.order]
    once = max(
        sum(_once(total, pricer) for total in ends[i:j])
        for i, j in zip(bounds, bounds[1:], strict=False)
    )
    hops = 2 * room.hop * (pace.stages - 1)
    # A round trip to the next stage is hidden only as far as micro-batches are in flight.
    period = max(cut.seconds) + (hops / pace.stages if room.schedule == "1f1b" else 0.0)
    step = sum(cut.seconds) + hops + (pace.micro_batches - 1) * period
    return Estimate(solution, cut, step + once + pricer.fixed_step)


def _once(total: FloatArray, pricer: Pricer) -> float:
    """What an instance adds once a step; its last reduction follows those of the last micro-batch
    on their stream, and hides behind that backward.
    """
    get = {name: float(total[i]) for name, i in CHANNEL.items()}
    reduction = get["OK"]
    if pricer.overlaps:
        backward = get["XB"] + get["RG"]
        reduction = max(backward, get["WB"] + reduction) - max(backward, get["WB"])
    return get["ON"] + reduction


def _chain_costs(chain: Chain, solution: Solution, room: Room, pricer: Pricer) -> ChainCosts:
    blocks = chain.graph.blocks
    rows = {
        name: _block_costs(total, pricer, bool(blocks[name].backward))
        for name, total in solution.totals.items()
    }
    table = np.array([rows[name] for name in chain.order])
    layer = np.array([is_layer(name) for name in chain.order])
    backward = np.array([bool(blocks[name].backward) for name in chain.order])
    may = layer & backward if room.recompute != "none" else np.zeros_like(layer)
    inputs = table[:, 4] * backward
    return ChainCosts(
        table[:, 0], table[:, 1], table[:, 2], table[:, 3], inputs, table[:, 3], layer, may
    )


def _block_costs(total: FloatArray, pricer: Pricer, backward: bool) -> tuple[float, ...]:
    """(seconds, more with recompute, weight bytes, saved bytes, input bytes) of an instance."""
    get = {name: float(total[i]) for name, i in CHANNEL.items()}

    def beside(compute: float, weights: float, back: bool) -> float:
        compute = max(compute, pricer.layer_floor(back))
        return max(compute, weights) if pricer.overlaps else compute + weights

    kept = again = beside(get["XF"], get["WF"], back=False)
    if backward:
        kept += beside(get["XB"] + get["RG"], get["WB"], back=True)
        again += beside(get["XB"] + get["RC"], get["WB"], back=True)
    return kept, max(0.0, again - kept), get["MW"], get["MA"], get["MX"]
