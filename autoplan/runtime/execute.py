"""Running a Program: in one process in lock-step, in a pool's processes, or under torchrun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor

from autoplan.ir.graph import Graph
from autoplan.ir.program import Program, SlotSpec, StageProgram
from autoplan.ir.timeline import Span
from autoplan.runtime.distributed import World
from autoplan.runtime.feeds import Loader
from autoplan.runtime.lockstep import run_lockstep
from autoplan.runtime.pool import Pool
from autoplan.runtime.reference_optimizer import Scale
from autoplan.runtime.session import (
    RankJob,
    RankRun,
    Settings,
    Snapshot,
    Surroundings,
    run_rank,
)
from autoplan.runtime.supervise import Watch, quiet_limit
from autoplan.runtime.verify import Difference, StepRecord, assemble, bit_difference
from autoplan.runtime.worker import Seat


@dataclass(frozen=True)
class RunResult:
    """What all ranks did.

    Attributes:
        program: what was run.
        ranks: rank -> its run.
        first_step: index of the first step.
    """

    program: Program
    ranks: Mapping[int, RankRun]
    first_step: int = 0

    @property
    def losses(self) -> tuple[float, ...]:
        """Loss of each step."""
        runs = self.ranks.values()
        steps = zip(*(run.steps for run in runs), strict=True)
        return tuple(next(s.loss for s in step if s.loss is not None) for step in steps)

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Wall seconds of each step, from the first rank's start to the last one's end."""
        times = []
        for step in range(len(next(iter(self.ranks.values())).steps)):
            spans = self.spans(step)
            times.append(max(s.end for s in spans) - min(s.start for s in spans))
        return tuple(times)

    @property
    def peaks(self) -> Mapping[int, int]:
        """Rank -> largest counted memory of any step, in bytes."""
        return {rank: max(s.peak for s in run.steps) for rank, run in self.ranks.items()}

    def spans(self, step: int) -> tuple[Span, ...]:
        """What happened in a step, on all ranks."""
        return tuple(chain.from_iterable(run.steps[step].spans for run in self.ranks.values()))


def execute(
    program: Program, graph: Graph, settings: Settings, pool: Pool | None = None
) -> RunResult:
    """Run a Program on this machine.

    Args:
        program: what to run.
        graph: names and initial values of its parameters.
        settings: steps, seed, data, what to record.
        pool: whose processes take the ranks; without one they run here, in lock-step.

    Raises:
        CheckError: the Program deadlocks, reads what is not there or leaves something behind.
        LaunchError: a process died or hung.
        InputError: a checkpoint cannot be read or written.
    """
    jobs = [RankJob(program, graph, settings, rank) for rank in program.ranks]
    if pool is not None:
        runs = pool.run(_perform, jobs, Watch(program, quiet_limit(settings.longest)))
        return _result(program, settings, runs)
    around = Surroundings(Loader(program, settings.batches))
    done = run_lockstep({job.rank: run_rank(job, around) for job in jobs})
    _save(program, settings, around, None)
    return _result(program, settings, [done[rank] for rank in program.ranks])


def execute_in_world(
    program: Program, graph: Graph, settings: Settings, world: World
) -> RunResult | None:
    """Run this process's rank of a Program in a world that something else has started.

    Returns:
        What all ranks did, on process 0; None elsewhere.

    Raises:
        LaunchError: a peer is lost, or the world has another size than the Program.
        InputError: a checkpoint cannot be read or written.
    """
    world.prepare(program)
    job = RankJob(program, graph, settings, program.ranks[world.index])
    around = Surroundings(Loader(program, settings.batches), world.device)
    done = world.drive(run_rank(job, around))
    _save(program, settings, around, world)
    runs = world.gather(done)
    return None if runs is None else _result(program, settings, runs)


def _result(program: Program, settings: Settings, runs: Sequence[RankRun]) -> RunResult:
    ranks = dict(zip(program.ranks, runs, strict=True))
    return RunResult(program, ranks, settings.numbers.start)


def _perform(seat: Seat, job: RankJob) -> RankRun:
    """A worker's task: one rank of a run."""
    seat.world.prepare(job.program)
    loader = Loader(job.program, job.settings.batches)
    around = Surroundings(loader, seat.world.device, seat.progress)
    run: RankRun = seat.world.drive(run_rank(job, around))
    _save(job.program, job.settings, around, seat.world)
    return run


def _save(program: Program, settings: Settings, around: Surroundings, world: World | None) -> None:
    """Leave a checkpoint of what this process's ranks have, if the run is to leave one."""
    if settings.store and settings.store.saves:
        settings.store.store(program, around.left, world, around.advance)


def whole_records(result: RunResult) -> tuple[tuple[StepRecord, ...], tuple[Difference, ...]]:
    """Put the ranks' pieces together, for `verify`.

    Returns:
        (one record per step, copies that are not bit-equal: within a stage, and over stages that
        share a parameter).
    """
    unequal: list[Difference] = []
    steps = len(result.losses)
    wholes = [
        _assembled(result, (run.snapshots[index] for run in result.ranks.values()), unequal)
        for index in range(steps + 1)
    ]
    return tuple(
        StepRecord(
            parameters=_of_kind(wholes[index], "parameter"),
            states=_states(wholes[index]),
            gradients=_gradients(result, index, unequal),
            parameters_after=_of_kind(wholes[index + 1], "parameter"),
            loss=result.losses[index],
            scales=(*_scales(wholes[index]), *_scales(wholes[index + 1])),
        )
        for index in range(steps)
    ), tuple(unequal)


Wholes = dict[tuple[str, ...], Tensor]


def _assembled(
    result: RunResult, snapshots: Iterator[Snapshot], unequal: list[Difference]
) -> Wholes:
    """Whole tensors by source."""
    pieces = dict(zip(result.ranks, snapshots, strict=True))
    wholes: Wholes = {}
    for stage in result.program.stages:
        first = pieces[stage.mesh.devices()[0]]
        specs = [spec for spec in stage.resident if spec.source in first]
        _join(result.program, stage, specs, pieces, (wholes, unequal))
    return wholes


def _gradients(result: RunResult, step: int, unequal: list[Difference]) -> Mapping[str, Tensor]:
    pieces: dict[int, Snapshot] = {
        rank: {("gradient", name): piece for name, piece in run.steps[step].gradients.items()}
        for rank, run in result.ranks.items()
    }
    wholes: Wholes = {}
    for stage in result.program.stages:
        specs = list(stage.gradients.values())
        _join(result.program, stage, specs, pieces, (wholes, unequal))
    return _of_kind(wholes, "gradient")


def _join(
    program: Program,
    stage: StageProgram,
    specs: Sequence[SlotSpec],
    pieces: Mapping[int, Snapshot],
    into: tuple[Wholes, list[Difference]],
) -> None:
    """Assemble a stage's tensors; where another stage has the same one, compare the two."""
    wholes, unequal = into
    for spec in specs:
        parts = {rank: pieces[rank][spec.source] for rank in stage.mesh.devices()}
        whole = assemble(spec, stage.mesh, parts, program.extent, unequal)
        known = wholes.setdefault(spec.source, whole)
        what = f"{'/'.join(spec.source)}: copy of stage {stage.stage}"
        difference = None if known is whole else bit_difference(what, whole, known)
        if difference is not None:
            unequal.append(difference)


def _of_kind(wholes: Wholes, kind: str) -> dict[str, Tensor]:
    return {source[1]: whole for source, whole in wholes.items() if source[0] == kind}


def _scales(wholes: Wholes) -> Iterator[Scale]:
    """The loss scale, if there is one."""
    for source, value in wholes.items():
        if source[0] == "scale":
            good, taken = wholes[("scale_counts",)].tolist()
            yield Scale(float(value), int(good), int(taken))


def _states(wholes: Wholes) -> dict[str, dict[str, Tensor]]:
    table: dict[str, dict[str, Any]] = {}
    for source, whole in wholes.items():
        if source[0] == "state":
            table.setdefault(source[1], {})[source[2]] = whole
    return table
