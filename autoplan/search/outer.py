"""The search: outer candidates in order of their bound, the best ones lowered and simulated.

1  plain choices (baselines) are built from pins and simulated: the first incumbent
2  depth x micro-batches, each on a few natural meshes, least computing first, until that of
   what is left exceeds the incumbent; all meshes on small machines
3  the best of those with every mesh and every order of axes in the machine, then with a third
   axis; all that could still win settled, as far as effort goes: exactly on small cases
4  the best estimates lowered and simulated; what does not fit exactly goes back with what it
   lacked
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from autoplan.cost import Pricer
from autoplan.ir.plan import Plan
from autoplan.lower import lower
from autoplan.search.baselines import baselines
from autoplan.search.candidates import Shape
from autoplan.search.chain import Chain
from autoplan.search.effort import Effort
from autoplan.search.engine import Candidate, Engine, Freedom, Inputs, Limit
from autoplan.search.freedom import expressible, named_plans
from autoplan.search.nearest import Need, nothing_fits
from autoplan.search.outline import Outline
from autoplan.search.ranking import distinct, plan_name, stage_totals
from autoplan.search.result import Ranked, Request, SearchResult
from autoplan.search.step import Estimate
from autoplan.simulate import simulate_priced

SIMULATED = 8
"""Candidates that are lowered and simulated at least."""
SLACK = 1.05
"""Decisions whose estimate is this much slower than the best are kept, since estimates err."""
SPACE = "depth x micro-batches x meshes of up to three axes x order in the machine x placements"
LONG = 1 << 15
"""Stages x micro-batches beyond which a plan is simulated only while no other is known to fit."""
ENOUGH = 3 * LONG
"""Stages x micro-batches of all that is simulated, beyond which only what may win still is."""
FAR = 1.15
"""The best of a depth that is this much slower than the best of all is not looked for."""
EFFORT = 6e9
"""Table entries that settling candidates may go through, divided by the number of devices: the
smaller a problem, the surer its proof."""
LEAST_EFFORT = 1.5e8
"""The same on machines of any size."""
MENDING = 1e8
"""The same, for candidates that need more memory than estimated."""
RELIEF = (0.2,)
"""Shares of a device's memory that estimates may overstate: on small machines so much more is
allowed once all else is done, for plans that would be faster, and simulation tells what fits.
[empirical] On toy models they err by so much; on real ones they understate, by 4 to 12 %."""
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
        self.solved = self.simulated = 0
        self.best_of_depth: dict[int, float] = {}
        self.mending = Effort(MENDING)
        self.far, self.relief = FAR, 0.0
        self.outline = Outline(request, self.pricer)
        self.tried: set[tuple[Shape, object]] = set()
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
        matching = [
            row for row in found if not self.request.pins and expressible(self.request, row.plan)
        ]
        ranked = self.ranked(incumbent, bool(matching))
        plans = distinct(self.request.graph, [*ranked, *matching])
        if not plans:
            raise nothing_fits(self.request, self.shortfall, self.device_limit, self.refused)
        return self._result(plans, plain, start, SPACE)

    def ranked(self, incumbent: float = float("inf"), known: bool = False) -> list[Ranked]:
        """Plans that fit, the fastest first.

        Args:
            incumbent: seconds of a step to beat.
            known: whether some plan is known to fit; else nothing is left untried.
        """
        rows = self._explore(incumbent)
        found = self._exact(rows)
        if rows and not (found or known):  # what seemed to fit does not: what is slower may
            self.far = float("inf")
            found = self._exact(self._explore(incumbent))
        for share in RELIEF if self.outline.every else ():
            best = min([incumbent, *(row.timeline.step_time for row in found)])
            self.far, self.relief = (
                FAR if found or known else float("inf"),
                share * self.device_limit,
            )
            found += self._exact(self._explore(best))
        return sorted(found, key=lambda row: row.timeline.step_time)

    def _reserve(self, stages: int) -> tuple[float, ...]:
        """Bytes of every stage that estimates are taken to miss, before any plan is simulated."""
        return (-self.relief,) * stages

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
            self.outline.ideal, best / self.outline.ideal - 1.0, space, dict(self.refused),
            "candidates allowed" if self._enough else "space explored",
        )  # fmt: skip

    def _note_shortfall(self, totals: Sequence[int]) -> None:
        self.shortfall.append(max(Need(total, stage) for stage, total in enumerate(totals)))

    # --- exact evaluation -----------------------------------------------------------------------

    def evaluate(self, plan: Plan) -> Ranked:
        """Lower and simulate a plan."""
        self.simulated += len(plan.stages) * plan.schedule.micro_batches
        program = lower(self.request.graph, plan)
        return Ranked(plan, simulate_priced(program, self.pricer))

    def fits(self, row: Ranked) -> bool:
        """Whether every stage stays below the device's memory less headroom."""
        return all(total <= self.device_limit for total in stage_totals(row.timeline))

    # --- outer space ----------------------------------------------------------------------------

    def _explore(self, incumbent: float) -> list[Solved]:
        self.tried.clear()
        self.unsettled.clear()
        results: list[Solved] = []
        best = incumbent
        for bound, shapes in self.outline.groups(incumbent, self.engine.least_seconds):
            if bound >= best:
                self.refused["slower than the best even without communication"] += 1
                continue
            if self._enough:
                break
            results += self._solve_all(shapes, best)
            best = min([best, *(row.estimate.step_time for row in results)])
        if not self._enough:
            for shapes in self.outline.wider(_ahead(results)):
                results += self._solve_all(shapes, best)
            best = min([best, *(row.estimate.step_time for row in results)])
            results += self._solve_all(self.outline.finer(_ahead(results)), best)
        results += self._settle(results, incumbent)
        return sorted(results, key=lambda row: row.estimate.step_time)

    @property
    def _enough(self) -> bool:
        """Whether something fits and as many candidates are solved as the request allows."""
        most = self.request.most
        return most is not None and self.solved >= most and bool(self.best_of_depth)

    def _solve_all(self, shapes: Iterable[Shape], best: float) -> list[Solved]:
        rows: list[Solved] = []
        for shape, freedom in self.outline.candidates(shapes):
            if (shape, freedom.key) in self.tried:
                continue
            self.tried.add((shape, freedom.key))
            # The best of each depth is kept, so that people see what else there is.
            deep = self.best_of_depth.get(shape.stages, float("inf"))
            bar = max(SLACK * best, min(deep, self.far * best))
            row = self._solve(shape, freedom, Limit(self._reserve(shape.stages), bar, best))
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
        effort = Effort(max(EFFORT / self.request.hardware.count, LEAST_EFFORT))
        best = min([incumbent, *(row.estimate.step_time for row in results)])
        settled = []
        for row in sorted(results, key=lambda row: row.estimate.step_time):
            if row.bound < best and effort.left > 0:
                limit = Limit(self._reserve(row.shape.stages), best)
                found = self.engine.settle(row.candidate, row.estimate, effort, limit)
                if found and found.step_time < row.estimate.step_time:
                    settled.append(replace(row, estimate=found))
                    best = min(best, found.step_time)
        for bound, shape, freedom in sorted(self.unsettled, key=lambda row: row[0]):
            chain, fitting = None, None
            if bound < best and effort.left > 0:
                chain = self.engine.chain(shape, freedom)
                assert chain is not None
                limit = Limit(self._reserve(shape.stages), best)
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
            far = row.estimate.step_time > self.far * rows[0].estimate.step_time
            worse = far or row.shape.stages in depths or row.estimate.step_time >= best
            if worse and (len(ranked) >= SIMULATED or self.simulated >= ENOUGH):
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
        reserve = self._reserve(row.shape.stages)
        current: Solved | None = row
        for _ in range(CORRECTIONS + 1):
            if current is None:
                return None
            plan = self.engine.plan(current.chain, current.shape, current.estimate)
            final = self.evaluate(plan)
            if self.fits(final):
                return final
            if final.timeline.step_time > self.far * best:  # mending makes it no faster
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
            if self.mending.left > 0 and final.timeline.step_time < best:
                limit = Limit(reserve, best)
                estimate = self.engine.settle(row.candidate, estimate, self.mending, limit)
            current = replace(row, estimate=estimate) if estimate else None
        return None


def _ahead(rows: Iterable[Solved]) -> list[Shape]:
    """What was solved, the best estimate first."""
    return [row.shape for row in sorted(rows, key=lambda row: row.estimate.step_time)]


def search(request: Request) -> SearchResult:
    """The fastest plans that fit.

    Raises:
        InfeasibleError: none does.
        InputError: pins contradict the machine or the stack.
    """
    return Search(request).run()
