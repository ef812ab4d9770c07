"""The search: outer candidates in order of their bound, the best ones lowered and simulated.

    1  plain choices (baselines) are built from pins and simulated: the first incumbent
    2  depth x micro-batches, each on a few natural meshes, least ideal time first, until the ideal
       time of what is left exceeds the incumbent
    3  the best of those with every mesh and every order of axes in the machine, then with a third
       axis; all that could still win settled, as far as effort goes: exactly on small cases
    4  the best estimates lowered and simulated; what does not fit exactly goes back with what it
       lacked

On machines of at most `EXHAUSTIVE` devices step 2 takes every mesh at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from autoplan.cost import Pricer
from autoplan.ir.layout import Mesh
from autoplan.ir.plan import Plan
from autoplan.lower import lower
from autoplan.search.baselines import baselines
from autoplan.search.candidates import (
    Shape,
    distinct_arrangements,
    divisors,
    factorisations,
    refinements,
)
from autoplan.search.chain import Chain
from autoplan.search.engine import Candidate, Engine, Freedom, Inputs, Limit
from autoplan.search.freedom import Degrees, expressible, freedoms, named_plans, outer_pins
from autoplan.search.ideal import ideal_seconds
from autoplan.search.nearest import Need, nothing_fits
from autoplan.search.ranking import distinct, plan_name, stage_totals
from autoplan.search.result import Ranked, Request, SearchResult
from autoplan.search.settle import Effort
from autoplan.search.step import Estimate
from autoplan.simulate import simulate_priced

EXHAUSTIVE = 8
"""Devices up to which every mesh is tried for every depth and batch."""
WIDENED = 3
"""(depth, micro-batches) pairs whose every mesh is tried on larger machines."""
SIMULATED = 8
"""Candidates that are lowered and simulated at least."""
REFINED = 2
"""Candidates whose mesh gets a third axis, of those with the best estimates."""
FINER = 3
"""Meshes with a third axis that are tried."""
FINE_ENOUGH = 64
"""Devices up to which two axes are as fine as the levels of a machine."""
AXES = 3
"""Most axes of a stage's mesh."""
SLACK = 1.05
"""Candidates that may be this much slower than the best estimate are kept, since estimates err."""
SPACE = "depth x micro-batches x meshes of up to three axes x order in the machine x placements"
LONG = 1 << 15
"""Stages x micro-batches beyond which a plan is simulated only while no other is known to fit."""
FAR = 1.15
"""The best of a depth that is this much slower than the best of all is not shown."""
EFFORT = {True: 6e8, False: 1.5e8}
"""Table entries that settling candidates may go through, on small machines and on large ones."""
MENDING = 1e8
"""The same, for candidates that need more memory than estimated."""
CORRECTIONS = 3
"""Times that a candidate is solved again with the memory that its estimate missed."""


@dataclass(frozen=True)
class Solved:
    """A candidate with its estimate, and what no estimate of it is below."""

    shape: Shape
    freedom: Freedom
    chain: Chain
    estimate: Estimate
    bound: float

    @property
    def candidate(self) -> Candidate:
        """What was solved."""
        return self.chain, self.shape, self.freedom


class Search:
    """One search; see the module."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.inputs = Inputs(
            request.graph, request.config, request.hardware, request.stack, request.workload
        )
        self.pricer = Pricer(request.hardware, request.stack)
        self.engine = Engine(self.inputs, self.pricer)
        self.refused: Counter[str] = Counter()
        self.shortfall: list[Need] = []
        self.unsettled: list[tuple[float, Shape, Freedom]] = []
        self.solved = 0
        self.orders: dict[tuple[tuple[int, ...], int], list[tuple[Mesh, int]]] = {}
        self.best_of_depth: dict[int, float] = {}
        self.mending = Effort(MENDING)
        self.ideal = ideal_seconds(request)
        self.device_limit = request.hardware.device.memory - request.workload.memory_headroom

    def run(self) -> SearchResult:
        """The answer.

        Raises:
            InfeasibleError: no plan fits.
        """
        start = perf_counter()
        grid = named_plans(self.request)
        if grid is not None:
            return self._only(grid, start)
        plain = baselines(self.request, self.evaluate)
        found = [row for row in plain.values() if isinstance(row, Ranked) and self.fits(row)]
        incumbent = min((row.timeline.step_time for row in found), default=float("inf"))
        estimates = self._explore(incumbent)
        ranked = self._exact(estimates)
        matching = [
            row for row in found if not self.request.pins and expressible(self.request, row.plan)
        ]
        plans = distinct(self.request.graph, [*ranked, *matching])
        if not plans:
            raise nothing_fits(self.request, self.shortfall, self.device_limit, self.refused)
        return self._result(plans, plain, start, SPACE)

    def _only(self, plans: Iterable[Plan], start: float) -> SearchResult:
        """The answer where pins leave no placement open: each plan on its own."""
        rows = []
        for plan in plans:
            self.solved += 1
            row = self.evaluate(plan)
            if self.fits(row):
                rows.append(row)
                continue
            self.refused["does not fit in memory"] += 1
            self._note_shortfall(stage_totals(row.timeline))
        if not rows:
            raise nothing_fits(self.request, self.shortfall, self.device_limit, self.refused)
        ranked = sorted(rows, key=lambda row: row.timeline.step_time)
        return self._result(ranked, {}, start, "the pinned configuration")

    def _result(
        self, plans: Sequence[Ranked], plain: Mapping[str, Ranked | str], start: float, space: str
    ) -> SearchResult:
        best = plans[0].timeline.step_time
        return SearchResult(
            tuple(plans[: max(1, self.request.top)]), plain, self.solved, perf_counter() - start,
            self.ideal, best / self.ideal - 1.0, space, dict(self.refused),
            "candidates allowed" if self._enough else "space explored",
        )  # fmt: skip

    def _note_shortfall(self, totals: Sequence[int]) -> None:
        self.shortfall.append(max(Need(total, stage) for stage, total in enumerate(totals)))

    # --- exact evaluation -----------------------------------------------------------------------

    def evaluate(self, plan: Plan) -> Ranked:
        """Lower and simulate a plan."""
        program = lower(self.request.graph, plan)
        return Ranked(plan, simulate_priced(program, self.pricer))

    def fits(self, row: Ranked) -> bool:
        """Whether every stage stays below the device's memory less headroom."""
        return all(total <= self.device_limit for total in stage_totals(row.timeline))

    # --- outer space ----------------------------------------------------------------------------

    def bound(self, stages: int, micro_batches: int) -> float:
        """No candidate of this depth and so many micro-batches is estimated faster."""
        return self.ideal * (micro_batches + stages - 1) / micro_batches

    def _explore(self, incumbent: float) -> list[Solved]:
        pins = outer_pins(self.request)
        count, batch = self.request.hardware.count, self.request.workload.global_batch_size
        pairs = [
            (self.bound(p, m), p, m)
            for p in divisors(count)
            for m in divisors(batch)
            if pins.stages(p) and pins.micro_batches(m)
        ]
        exhaustive = count <= EXHAUSTIVE
        results: list[Solved] = []
        best = incumbent
        for bound, p, m in sorted(pairs):
            if bound > SLACK * best:
                self.refused["slower than the best even without communication"] += 1
                continue
            if self._enough:
                break
            shapes = self._shapes(p, m, every=exhaustive)
            results += self._solve_all(shapes, best)
            best = min([best, *(row.estimate.step_time for row in results)])
        if not (exhaustive or self._enough):
            results += self._widen(results, best)
            best = min([best, *(row.estimate.step_time for row in results)])
            if count > FINE_ENOUGH:
                results += self._refine(results, best)
        results += self._settle(results, incumbent)
        return sorted(results, key=lambda row: row.estimate.step_time)

    @property
    def _enough(self) -> bool:
        """Whether something fits and as many candidates are solved as the request allows."""
        most = self.request.most
        return most is not None and self.solved >= most and bool(self.best_of_depth)

    def _shapes(self, stages: int, micro_batches: int, every: bool) -> list[Shape]:
        """Meshes for a depth: every one, or the few that follow the machine's levels."""
        hardware = self.request.hardware
        devices = hardware.count // stages
        inner = min(devices, hardware.devices_per_node)
        natural = {(devices,), (devices // inner, inner), (2, devices // 2), (devices // 2, 2)}
        shapes = []
        for sizes in factorisations(devices):
            if not every and sizes not in natural and sizes != ():
                continue
            orders = self._arrangements(sizes, stages)
            for mesh, stride in orders if every else orders[:1]:
                for schedule in outer_pins(self.request).schedules:
                    shapes.append(Shape(stages, mesh, stride, micro_batches, schedule))
        return shapes

    def _arrangements(self, sizes: tuple[int, ...], stages: int) -> list[tuple[Mesh, int]]:
        key = (sizes, stages)
        if key not in self.orders:
            self.orders[key] = distinct_arrangements(self.pricer, sizes, stages)
        return self.orders[key]

    def _widen(self, results: Sequence[Solved], best: float) -> list[Solved]:
        """Every mesh and order for the best few pairs of depth and micro-batches."""
        pairs: dict[tuple[int, int], None] = {}
        for row in sorted(results, key=lambda row: row.estimate.step_time):
            pairs[row.shape.stages, row.shape.micro_batches] = None
        done = {str(row.shape) for row in results}
        wider = []
        for stages, micro_batches in list(pairs)[:WIDENED]:
            shapes = [
                shape for shape in self._shapes(stages, micro_batches, every=True)
                if str(shape) not in done
            ]  # fmt: skip
            wider += self._solve_all(shapes, best)
        return wider

    def _refine(self, results: Sequence[Solved], best: float) -> list[Solved]:
        """The best meshes with one axis more."""
        ahead = sorted(results, key=lambda row: row.estimate.step_time)
        shapes: dict[str, Shape] = {}
        for row in ahead[:REFINED]:
            for mesh in refinements(self.request.hardware, row.shape.mesh):
                if len(mesh.axes) <= AXES:
                    finer = replace(row.shape, mesh=mesh)
                    shapes.setdefault(str(finer), finer)
        return self._solve_all(list(shapes.values())[:FINER], best)

    def _solve_all(self, shapes: Iterable[Shape], best: float) -> list[Solved]:
        rows: list[Solved] = []
        for shape in shapes:
            degrees = Degrees(shape.stages, shape.mesh.sizes, shape.micro_batches, shape.schedule)
            for freedom in freedoms(self.request, degrees):
                # The best of each depth is kept, so that people see what else there is.
                deep = self.best_of_depth.get(shape.stages, float("inf"))
                limit = Limit((0.0,) * shape.stages, max(SLACK * best, deep), best)
                row = self._solve(shape, freedom, limit)
                if row is not None:
                    rows.append(row)
                    best = min(best, row.estimate.step_time)
                    self.best_of_depth[shape.stages] = min(deep, row.estimate.step_time)
        return rows

    def _solve(self, shape: Shape, freedom: Freedom, limit: Limit) -> Solved | None:
        self.solved += 1
        if self.request.progress:
            self.request.progress(str(shape))
        least = self.engine.least_seconds(shape, freedom)
        if limit.best <= least < float("inf"):
            self.refused["slower than the best by its computing alone"] += 1
            return None
        chain = self.engine.chain(shape, freedom)
        if chain is None:
            self.refused["a batch, head or width does not divide"] += 1
            return None
        free = self.engine.free(chain, shape, freedom, limit.best)
        if free is None:
            self.refused["slower than the best"] += 1
            return None
        found = self.engine.solve(chain, shape, freedom, limit, free)
        if found is None:
            self.unsettled.append((free.bound, shape, freedom))
            return None
        return Solved(shape, freedom, chain, found, free.bound)

    def _settle(self, results: Sequence[Solved], incumbent: float) -> list[Solved]:
        """The best decisions of candidates whose bound is below the best: first of those that fit,
        the fastest first, then of those of which nothing has fitted so far.
        """
        effort = Effort(EFFORT[self.request.hardware.count <= EXHAUSTIVE])
        best = min([incumbent, *(row.estimate.step_time for row in results)])
        settled = []
        for row in sorted(results, key=lambda row: row.estimate.step_time):
            if row.bound < best and effort.left > 0:
                limit = Limit((0.0,) * row.shape.stages, best)
                found = self.engine.settle(row.candidate, row.estimate, effort, limit)
                if found and found.step_time < row.estimate.step_time:
                    settled.append(replace(row, estimate=found))
                    best = min(best, found.step_time)
        for bound, shape, freedom in sorted(self.unsettled, key=lambda row: row[0]):
            chain, fitting = None, None
            if bound < best and effort.left > 0:
                chain = self.engine.chain(shape, freedom)
                assert chain is not None
                limit = Limit((0.0,) * shape.stages, best)
                fitting = self.engine.settle((chain, shape, freedom), None, effort, limit)
            if fitting and chain:
                settled.append(Solved(shape, freedom, chain, fitting, bound))
                best = min(best, fitting.step_time)
            else:
                self.refused["slower than the best, or does not fit in memory"] += 1
        return settled

    # --- last -----------------------------------------------------------------------------------

    def _exact(self, rows: Sequence[Solved]) -> list[Ranked]:
        """Lower and simulate the best estimates, mending those that do not fit after all."""
        ranked: dict[str, Ranked | None] = {}
        depths: set[int] = set()
        best = float("inf")
        for row in rows:
            far = row.estimate.step_time > FAR * rows[0].estimate.step_time
            worse = far or row.shape.stages in depths or row.estimate.step_time >= best
            if len(ranked) >= SIMULATED and worse:
                continue
            plan = self.engine.plan(row.chain, row.shape, row.estimate)
            if len(plan.stages) * plan.schedule.micro_batches > LONG and best < float("inf"):
                continue
            name = plan_name(self.request.graph, plan)
            if name in ranked:
                continue
            final = ranked[name] = self._mend(row, best)
            if final is None:
                self.refused["does not fit in memory"] += 1
            else:
                depths.add(row.shape.stages)
                best = min(best, final.timeline.step_time)
        return sorted(filter(None, ranked.values()), key=lambda r: r.timeline.step_time)

    def _mend(self, row: Solved, best: float) -> Ranked | None:
        """The candidate as a plan that fits exactly; the step to beat is the best so far."""
        reserve = (0.0,) * row.shape.stages
        current: Solved | None = row
        for _ in range(CORRECTIONS + 1):
            if current is None:
                return None
            plan = self.engine.plan(current.chain, current.shape, current.estimate)
            final = self.evaluate(plan)
            if self.fits(final):
                return final
            if final.timeline.step_time > FAR * best:  # mending makes it no faster
                return None
            totals = stage_totals(final.timeline)
            missed = [
                total - estimated * (1.0 + self.request.stack.constants["allocator_fraction"])
                for total, estimated in zip(totals, current.estimate.partition.memory, strict=True)
            ]
            framework = self.request.stack.constants["framework_bytes"]
            reserve = tuple(max(r, m - framework) for r, m in zip(reserve, missed, strict=True))
            self._note_shortfall(totals)
            estimate = self.engine.solve(*row.candidate, Limit(reserve, float("inf")))
            if self.mending.left > 0:
                limit = Limit(reserve, best)
                estimate = self.engine.settle(row.candidate, estimate, self.mending, limit)
            current = replace(row, estimate=estimate) if estimate else None
        return None


def search(request: Request) -> SearchResult:
    """The fastest plans that fit.

    Raises:
        InfeasibleError: none does.
        InputError: pins contradict the machine or the stack.
    """
    return Search(request).run()
