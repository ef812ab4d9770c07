"""A rank's whole run: its first parameters, step after step, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from autoplan.errors import CheckError
from autoplan.ir.graph import Graph
from autoplan.ir.program import Program, SlotSpec
from autoplan.ir.timeline import Span
from autoplan.runtime import kernels
from autoplan.runtime.account import Account, RunningAccount, SweepAccount
from autoplan.runtime.data import Batches
from autoplan.runtime.distributed import World
from autoplan.runtime.feeds import Loader
from autoplan.runtime.interpreter import Interpreter, Observers
from autoplan.runtime.kernels.place import DTYPES, Place, StepContext
from autoplan.runtime.progress import OUTSIDE, ProgressPage, describe_place
from autoplan.runtime.random import initial
from autoplan.runtime.requests import Request, coordinate_of
from autoplan.runtime.shards import local_slices

ACCOUNTS: Mapping[str, type[RunningAccount] | type[SweepAccount] | None] = {
    "none": None,
    "running": RunningAccount,
    "sweep": SweepAccount,
}
"""How live memory is counted: not, as values come and go, or anew after every instruction."""

LOSS = ("loss", -1, -1)
"""The slot that one stage leaves behind after a step: the mean over the global batch."""

Source = tuple[str, ...]
"""Of a resident slot; see `SlotSpec.source`."""
Pieces = Mapping[Source, Tensor]
"""What a rank holds of parameters and optimizer state."""
Snapshot = Pieces
"""The same, copied."""


class Store(Protocol):
    """Where a run begins and what it leaves.

    Made by `runtime.checkpoint`, which is slow to load: only a run that has one does.
    """

    @property
    def first_step(self) -> int:
        """Index of the run's first step."""

    @property
    def saves(self) -> bool:
        """Whether the run leaves a checkpoint."""

    def load(self, program: Program, rank: int, alive: Callable[[], None]) -> dict[Source, Tensor]:
        """A rank's pieces; none where the run begins with the seed."""

    def store(
        self,
        program: Program,
        pieces: Mapping[int, Pieces],
        world: World | None,
        alive: Callable[[], None],
    ) -> None:
        """Leave a checkpoint."""


@dataclass(frozen=True)
class Settings:
    """How to run a Program.

    Attributes:
        steps: number of training steps.
        seed: of initialisation and dropout.
        batches: the data.
        record: keep copies of parameters, optimizer state and gradients of every step.
        memory: a key of `ACCOUNTS`.
        longest: predicted seconds of the longest instruction; 20 times as long without progress,
            and at least 20 s, is a hang.
        store: checkpoints to begin from and to leave, or None.
    """

    steps: int
    seed: int
    batches: Batches
    record: bool = True
    memory: str = "running"
    longest: float = 0.0
    store: Store | None = None

    @property
    def numbers(self) -> range:
        """Indices of the steps."""
        first = self.store.first_step if self.store else 0
        return range(first, first + self.steps)


@dataclass(frozen=True)
class RankStep:
    """What one rank did in one step.

    Attributes:
        gradients: its pieces of the reduced gradients by full parameter name, if recorded.
        loss: mean over the global batch, on the ranks that have it.
        spans: its actions and collectives.
        peak: largest counted memory, in bytes; 0 if not counted.
        peak_at: the instruction at the peak.
        history: counted bytes after every instruction.
    """

    gradients: Mapping[str, Tensor]
    loss: float | None
    spans: tuple[Span, ...]
    peak: int
    peak_at: str
    history: tuple[int, ...]


@dataclass(frozen=True)
class RankRun:
    """What one rank did.

    Attributes:
        steps: in order.
        snapshots: its pieces of parameters and optimizer state before each step and after the
            last; empty unless recorded.
    """

    steps: tuple[RankStep, ...]
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True)
class RankJob:
    """What a rank needs to run.

    Attributes:
        program, graph, settings: what to run; all ranks get the same.
        rank: whose part this is.
    """

    program: Program
    graph: Graph
    settings: Settings
    rank: int


@dataclass(frozen=True)
class Surroundings:
    """What the process around a rank provides.

    Attributes:
        loader: delivers feeds.
        device: where tensors lie.
        progress: page to write positions in.
        left: takes every rank's pieces after the last step, if the run saves.
    """

    loader: Loader
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: ProgressPage | None = None
    left: dict[int, Pieces] = field(default_factory=dict)

    def advance(self, step: int = OUTSIDE) -> None:
        """Tell the launcher that this process is alive between actions."""
        if self.progress is not None:
            self.progress.advance(step, OUTSIDE, OUTSIDE, communicating=False)


def run_rank(job: RankJob, surroundings: Surroundings) -> Generator[Request, list[Tensor], RankRun]:
    """Set up a rank's slots and perform its steps; a transport drives the generator.

    Raises:
        CheckError: the Program reads an empty slot, or leaves one behind after a step.
    """
    session = _Session(job, surroundings)
    steps, snapshots = [], [session.snapshot()]
    for number in job.settings.numbers:
        steps.append((yield from session.step(number)))
        snapshots.append(session.snapshot())
    if job.settings.store and job.settings.store.saves:
        surroundings.left[job.rank] = session.pieces()
    return RankRun(tuple(steps), tuple(snapshots) if job.settings.record else ())


class _Session:
    """One rank between steps."""

    def __init__(self, job: RankJob, surroundings: Surroundings) -> None:
        self._job, self._around = job, surroundings
        self._stage = job.program.stages[job.program.stage_of[job.rank]]
        self._coordinate = coordinate_of(self._stage, job.rank)
        kind = ACCOUNTS[job.settings.memory]
        self._account: Account | None = kind() if kind else None
        self._gradients: dict[str, Tensor] = {}
        recorder = self._gradients.update if job.settings.record else None
        place = Place(self._stage.mesh.sizes, self._coordinate)
        self._interpreter = Interpreter(
            job.program,
            job.rank,
            partial(kernels.link, place=place),
            Observers(self._account, surroundings.progress, recorder),
        )
        self._lasting = [s for s in self._stage.resident if s.kept_as]
        self._fed = [s for s in self._stage.resident if not s.kept_as]
        store = job.settings.store
        found = store.load(job.program, job.rank, surroundings.advance) if store else {}
        for spec in self._lasting:
            surroundings.advance()
            first = found.pop(spec.source) if found else self._initial(spec)
            self._interpreter.define(spec.slot, first.to(surroundings.device))

    def step(self, number: int) -> Generator[Request, list[Tensor], RankStep]:
        self._around.advance(number)
        for spec in self._fed:
            self._interpreter.define(spec.slot, self._feed(number, spec, -1))
        if self._account:
            self._account.restart()
        self._gradients.clear()
        self._interpreter.spans.clear()
        context = StepContext(
            step=number, seed=self._job.settings.seed, batch=self._job.program.batch
        )
        yield from self._interpreter.step(context, partial(self._feed, number))
        self._finish()
        gradients = {name: piece.cpu() for name, piece in self._gradients.items()}
        spans = tuple(self._interpreter.spans)
        return RankStep(gradients, self._loss(), spans, *self._counted())

    def _finish(self) -> None:
        """Wait for the device: what was issued takes time beyond the last action's end."""
        if self._around.device.type == "cpu":
            return
        begin = perf_counter()
        torch.get_device_module(self._around.device).synchronize()
        span = Span(self._job.rank, "compute", "synchronize", begin, perf_counter())
        self._interpreter.spans.append(span)

    def snapshot(self) -> Snapshot:
        """Copies of parameters and optimizer state."""
        if not self._job.settings.record:
            return {}
        return {source: piece.clone().cpu() for source, piece in self.pieces().items()}

    def pieces(self) -> Pieces:
        """Parameters and optimizer state as they are now."""
        return {s.source: self._interpreter.environment[s.slot] for s in self._lasting}

    def _counted(self) -> tuple[int, str, tuple[int, ...]]:
        account = self._account
        if account is None or not account.history:
            return 0, "", ()
        at = describe_place(self._job.program, self._job.rank, *account.peak_at)
        return account.peak, at, tuple(account.history)

    def _loss(self) -> float | None:
        """Take the loss, and see that nothing else is left of the step."""
        lasting = {spec.slot for spec in self._stage.resident}
        left = [slot for slot in self._interpreter.environment if slot not in lasting]
        loss = float(self._interpreter.take(LOSS)) if LOSS in left else None
        others = sorted(slot for slot in left if slot != LOSS)
        if others:
            raise CheckError(f"rank {self._job.rank} ends the step with slots alive: {others}")
        return loss

    def _feed(self, step: int, spec: SlotSpec, micro_batch: int) -> Tensor:
        loader, rank = self._around.loader, self._job.rank
        local = loader.local(self._stage, rank, spec, step, micro_batch)
        return local.to(self._around.device)

    def _initial(self, spec: SlotSpec) -> Tensor:
        """A parameter or master copy as the seed says, a loss scale as its source, else zero."""
        dtype = DTYPES[spec.register.dtype]
        if spec.source[0] in ("state", "scale_counts"):
            return torch.zeros(spec.register.shape, dtype=dtype)
        if spec.source[0] == "scale":
            return torch.full(spec.register.shape, float(spec.source[1]), dtype=dtype)
        graph, extent = self._job.graph, self._job.program.extent
        name = spec.source[1]
        law = graph.init[graph.parameters[name][1]]
        sizes = self._stage.mesh.sizes
        part = local_slices(spec.dims, spec.layout, sizes, self._coordinate, extent)
        whole = tuple(extent[dim] for dim in spec.dims)
        return initial(name, law, whole, part, self._job.settings.seed, dtype)
