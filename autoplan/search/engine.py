"""One candidate of the outer space: solve, cut into stages, make a Plan.

The price of memory is raised only as far as the stages need: first none, then the highest (if even
that does not fit, the candidate is refused), then bisection on its logarithm. Memory is estimated
here, and exactly accounted for once a plan is lowered; what the estimate missed comes back as
`reserve`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.cost import Pricer
from autoplan.ir.graph import Graph
from autoplan.ir.layout import Layout, Mesh
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Plan, Run, Schedule, StagePlan, Stored
from autoplan.ir.workload import DTYPE_BYTES, Workload
from autoplan.pipeline import in_flight
from autoplan.search.build import TableBuilder
from autoplan.search.candidates import Shape
from autoplan.search.chain import Chain, Pace, Solution, is_layer
from autoplan.search.effort import Effort
from autoplan.search.prices import OperatorPrices, Transitions
from autoplan.search.setting import Setting
from autoplan.search.settle import settle
from autoplan.search.space import BlockSpace
from autoplan.search.step import Estimate, Room, estimate
from autoplan.search.storage import StorageOptions
from autoplan.search.tables import CHANNEL, BlockTables

OVERLAPS = (0.6, 1.0, 0.3)
"""Weights of the compute stream that are tried where streams overlap; see `chain`."""
HIGHEST_PRICE = 1e-6
LOWEST_PRICE = 1e-14
"""Seconds per byte; beyond, more memory buys nothing (a gigabyte for an hour) or costs nothing."""
BISECTIONS = 4
PROMISING = 1.1
"""A candidate this much slower than the incumbent is not tried with further weights."""


@dataclass(frozen=True)
class Freedom:
    """What pins leave open inside a block.

    Attributes:
        key: for caching: equal keys mean equal freedom.
        value: (block, variable, value) -> allowed.
        stored: (stored, used, raw) -> allowed.
        recompute: "none", "full" or "".
        layers: layers per stage or None.
    """

    key: object
    value: Callable[[str, str, object], bool]
    stored: Callable[[Stored, Layout, Layout], bool]
    recompute: str = ""
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Inputs:
    """What is planned for what.

    Attributes:
        graph: training step.
        config: the model.
        hardware, stack, workload: the inputs.
    """

    graph: Graph
    config: DecoderConfig
    hardware: Hardware
    stack: Stack
    workload: Workload


@dataclass(frozen=True)
class Limit:
    """What a candidate has to beat.

    Attributes:
        reserve: bytes per stage that estimates are known to miss.
        best: step time that it must beat.
        incumbent: best step time so far of all candidates; one far from it is not refined.
    """

    reserve: tuple[float, ...]
    best: float
    incumbent: float = float("inf")


@dataclass(frozen=True)
class Free:
    """A candidate with memory for nothing.

    Attributes:
        rows: (pace, its best decisions), one per weight of the compute stream.
    """

    rows: Sequence[tuple[Pace, Solution]]

    @property
    def bound(self) -> float:
        """No estimate of the candidate is faster."""
        return max(found.objective for _, found in self.rows)


Candidate = tuple[Chain, Shape, Freedom]
"""What is solved."""


class Engine:
    """Solves candidates; keeps what they share.

    Args:
        inputs: model, machine, workload.
        pricer: prices.
    """

    def __init__(self, inputs: Inputs, pricer: Pricer) -> None:
        self.inputs, self.pricer = inputs, pricer
        workload = inputs.workload
        extent = dict(inputs.graph.extent)
        self.prices = OperatorPrices(pricer, workload.precision, extent)
        self._spaces: dict[tuple[str, int], BlockSpace] = {}
        self._transitions: dict[tuple[object, ...], Transitions] = {}
        self._hops: dict[object, float] = {}
        self._storage: dict[tuple[object, ...], StorageOptions] = {}
        self._least: dict[object, float] = {}
        self._building: tuple[object, Mapping[str, TableBuilder]] = (None, {})

    @property
    def capacity(self) -> float:
        """Bytes that counted memory may take: what headroom, framework and allocator leave."""
        constants = self.inputs.stack.constants
        left = self.inputs.hardware.device.memory - self.inputs.workload.memory_headroom
        left -= int(constants["framework_bytes"])
        return left / (1.0 + constants["allocator_fraction"])

    def _space(self, block: str, axes: int) -> BlockSpace:
        key = (block, axes)
        if key not in self._spaces:
            self._spaces[key] = BlockSpace(self.inputs.graph.blocks[block], axes)
        return self._spaces[key]

    def _setting(self, shape: Shape, freedom: Freedom, block: str) -> Setting:
        workload, graph = self.inputs.workload, self.inputs.graph
        mesh = Mesh(shape.mesh.axes)
        if mesh.axes not in self._transitions:
            self._transitions[mesh.axes] = Transitions(self.pricer, mesh)
        transitions = self._transitions[mesh.axes]
        kinds = (workload.precision, workload.optimizer)
        storage_key = (mesh.axes, freedom.key)
        if storage_key not in self._storage:
            self._storage[storage_key] = StorageOptions(
                self.prices, transitions, graph.extent, kinds, freedom.stored, CHANNEL
            )
        batch = workload.global_batch_size // shape.micro_batches
        tied, users = next(iter(graph.tied.items()), ("", (-1,)))
        first = bool(tied) and graph.instances[users[0]].block == block
        return Setting(
            {**graph.extent, "b": batch},
            shape.micro_batches,
            self.prices,
            transitions,
            self._storage[storage_key],
            *kinds,
            lambda name, value: freedom.value(block, name, value),
            tied,
            first and shape.stages == 1,
        )

    def _builders(self, shape: Shape, freedom: Freedom) -> Mapping[str, TableBuilder]:
        """What makes the factors of each block; kept for the last candidate."""
        key = (shape, freedom.key)
        if self._building[0] != key:
            axes = len(shape.mesh.axes)
            made = {
                name: TableBuilder(self._space(name, axes), self._setting(shape, freedom, name))
                for name in self.inputs.graph.blocks
            }
            self._building = key, made
        return self._building[1]

    def chain(self, shape: Shape, freedom: Freedom) -> Chain | None:
        """The factors of all blocks, or None where nothing is legal."""
        tables: dict[str, BlockTables] = {}
        for name, builder in self._builders(shape, freedom).items():
            built = builder.build()
            if built is None:
                return None
            tables[name] = built
        return Chain(self.inputs.graph, tables) if _boundaries_agree(tables) else None

    def least_seconds(self, shape: Shape, freedom: Freedom) -> float:
        """A bound of a candidate's estimate: computing alone; infinite where nothing is legal."""
        key = (shape, freedom.key)
        if key not in self._least:
            made = self._builders(shape, freedom)
            least = {name: builder.least_seconds() for name, builder in made.items()}
            total = sum(least[instance.block] for instance in self.inputs.graph.instances)
            self._least[key] = total * (1.0 + (shape.micro_batches - 1.0) / shape.stages)
        return self._least[key]

    def room(self, shape: Shape, freedom: Freedom, reserve: tuple[float, ...]) -> Room:
        """Memory and transfers of a candidate's stages."""
        limits = [self.capacity - extra for extra in reserve]
        hop = 0.0
        if shape.stages > 1:
            hop = self._hop(shape)
        return Room(limits, shape.schedule, freedom.recompute, freedom.layers, hop)

    def _hop(self, shape: Shape) -> float:
        """Seconds of the slowest transfer between neighbouring stages."""
        nbytes = self._boundary_bytes(shape)
        places = [mesh.devices() for mesh in shape.meshes()]
        key = (shape.mesh.axes, shape.stage_stride, shape.stages, nbytes)
        if key not in self._hops:
            self._hops[key] = max(
                self.pricer.exchange_seconds(nbytes, *pair)
                for pair in zip(places, places[1:], strict=False)
            )
        return self._hops[key]

    def _boundary_bytes(self, shape: Shape) -> float:
        """Bytes a rank hands to the next stage if the residual stream is split over all ranks."""
        extent, workload = self.inputs.graph.extent, self.inputs.workload
        batch = workload.global_batch_size // shape.micro_batches
        width = DTYPE_BYTES[workload.precision.of("compute")]
        return batch * extent["s"] * extent["m"] * width / shape.mesh.size

    def free(self, chain: Chain, shape: Shape, freedom: Freedom, bar: float) -> Free | None:
        """The best decisions with memory for nothing, once per weight of the compute stream: each
        minimum is a lower bound of the candidate's estimate. None if one is not below a bar.
        """
        flight = in_flight(shape.schedule, 0, shape.stages, shape.micro_batches)
        overlaps = OVERLAPS if self.pricer.overlaps else (None,)
        again = freedom.recompute == "full"
        rows = []
        for overlap in overlaps:
            pace = Pace(shape.stages, shape.micro_batches, flight, 0.0, overlap, again)
            found = chain.solve(pace)
            if found is None or found.objective >= bar:
                return None
            rows.append((pace, found))
        return Free(rows)

    def solve(
        self, chain: Chain, shape: Shape, freedom: Freedom, limit: Limit, free: Free | None = None
    ) -> Estimate | None:
        """Good decisions that fit by estimate; None if none was met, or none beats `limit.best`.

        Only where the best of the free ones does not fit as it is are prices of memory and
        recomputing tried.
        """
        room = self.room(shape, freedom, limit.reserve)
        free = free or self.free(chain, shape, freedom, limit.best)
        if free is None:
            return None
        paces = [pace for pace, _ in free.rows]
        again = paces[0].recompute
        best: Estimate | None = None
        for pace, found in free.rows:
            best = _better(best, estimate(chain, found, pace, room, self.pricer))
        if best and (again or not any(best.partition.recompute)):
            return best
        for recompute in {"none": (False,), "full": (True,)}.get(freedom.recompute, (False, True)):
            for pace in paces:
                if best and best.step_time > PROMISING * limit.incumbent:
                    continue
                bar = min(limit.best, best.step_time if best else limit.best)
                start = replace(pace, recompute=recompute)
                best = _better(best, self._walk(chain, start, room, bar))
        return best

    def _walk(self, chain: Chain, pace: Pace, room: Room, bar: float) -> Estimate | None:
        """Raise the price of memory until the stages fit; the best of what was met.

        Time only grows with the price, so the walk ends where what does not fit is slower than
        `bar`.
        """
        best: Estimate | None = None
        low, high = LOWEST_PRICE, HIGHEST_PRICE
        for _ in range(BISECTIONS + 1):
            price = high if best is None and low == LOWEST_PRICE else (low * high) ** 0.5
            at = replace(pace, memory_price=price)
            solution = chain.solve(at)
            found = estimate(chain, solution, at, room, self.pricer) if solution else None
            if price == HIGHEST_PRICE and found is None:
                return None
            best = _better(best, found)
            if found is None and solution and chain.seconds(solution, at) > bar:
                return best
            if price < HIGHEST_PRICE:
                if found and (pace.recompute or not any(found.partition.recompute)):
                    high = price
                else:
                    low = price
        return best

    def settle(
        self, candidate: Candidate, found: Estimate | None, effort: Effort, limit: Limit
    ) -> Estimate | None:
        """The best decisions of a candidate below `limit.best`, if effort allows; see `settle`."""
        chain, shape, freedom = candidate
        pace = Pace(shape.stages, shape.micro_batches, 1, 0.0, None, freedom.recompute == "full")
        room = self.room(shape, freedom, limit.reserve)
        return settle(chain, pace, (room, self.pricer), found, effort, limit.best)

    def plan(self, chain: Chain, shape: Shape, found: Estimate) -> Plan:
        """The Plan of an estimate."""
        inputs = self.inputs
        return Plan(
            inputs.config, inputs.hardware, inputs.stack, inputs.workload,
            chain.strategies(found.solution),
            tuple(
                StagePlan(mesh, runs)
                for mesh, runs in zip(shape.meshes(), _runs(chain, found), strict=True)
            ),
            Schedule(shape.schedule, shape.micro_batches),
        )  # fmt: skip


def _better(a: Estimate | None, b: Estimate | None) -> Estimate | None:
    if a is None or (b is not None and b.step_time < a.step_time):
        return b
    return a


def _boundaries_agree(tables: Mapping[str, BlockTables]) -> bool:
    """Whether all blocks have the same boundary layouts to choose from."""
    values: list[set[object]] = []
    for table in tables.values():
        number = table.space.boundary
        every = table.space.variables[number].values
        values.append({every[i] for i in table.domains[number]})
    return all(v == values[0] for v in values[1:])


def _runs(chain: Chain, found: Estimate) -> list[tuple[Run, ...]]:
    """Runs of each stage; the first layers of a stage are the ones run again."""
    bounds = found.partition.bounds
    table = []
    for start, end, again in zip(bounds, bounds[1:], found.partition.recompute, strict=False):
        runs: list[Run] = []
        for name in chain.order[start:end]:
            recompute = again > 0 and is_layer(name) and bool(chain.graph.blocks[name].backward)
            again -= recompute
            if runs and (runs[-1].strategy, runs[-1].recompute) == (name, recompute):
                runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
            else:
                runs.append(Run(name, 1, recompute))
        table.append(tuple(runs))
    return table
