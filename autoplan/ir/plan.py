"""A Plan: the smallest set of decisions; everything else is derived from it.

*Where*: `Strategy` (a split per layer operator, a home layout per hub, the stored layouts of each
parameter). *Which devices*: `StagePlan` (its runs of blocks and its mesh). *When*: `Schedule`,
`Orders`. *How long*: `Strategy.saved` (in which layout a tensor waits for its backward)
and `Run.recompute`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autoplan.ir.layout import Layout, Mesh
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.workload import Workload

Choice = str | None
"""What one mesh axis does to a layer operator: the dim it splits, "P" (partial operands pass
through a linear operator), or None (all ranks along the axis do the same work)."""


@dataclass(frozen=True, slots=True)
class Home:
    """Layouts of a hub: of its value and of its gradient (which may stay partial)."""

    value: Layout
    gradient: Layout


@dataclass(frozen=True, slots=True)
class Stored:
    """Layouts of a parameter between uses.

    Attributes:
        parameter: between steps; where it differs from the layout that operators use, it is
            gathered before each use.
        gradient: of the accumulated gradient; where it is not partial as produced, each
            micro-batch reduces.
        optimizer: of optimizer state, master copy and reduced gradient.
    """

    parameter: Layout
    gradient: Layout
    optimizer: Layout


@dataclass(frozen=True)
class Strategy:
    """How one block lies on the mesh of its stage.

    Attributes:
        block: name of the block.
        splits: layer operator -> one choice per mesh axis.
        homes: hub -> its layouts.
        saved: activation -> layout in which it waits for backward; absent: as its first backward
            reader uses it.
        stored: parameter -> its stored layouts.
    """

    block: str
    splits: Mapping[str, tuple[Choice, ...]]
    homes: Mapping[str, Home]
    saved: Mapping[str, Layout] = field(default_factory=dict)
    stored: Mapping[str, Stored] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """`count` consecutive instances of one block with one strategy (a key of `Plan.strategies`).

    With `recompute` only the block's input is kept and the rest is computed again in backward.
    `chunk` counts the parts of the model that one stage holds, each a virtual stage.
    """

    strategy: str
    count: int
    recompute: bool = False
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A pipeline stage: a mesh and what lies on it.

    Attributes:
        mesh: its devices.
        runs: in the order of the model; those of one chunk are consecutive in it.
    """

    mesh: Mesh
    runs: tuple[Run, ...]


SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Schedule families that a plan may name."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Order of work over micro-batches.

    Attributes:
        family: one of `SCHEDULES`.
        micro_batches: micro-batches per step; each has global_batch_size / micro_batches
            sequences over the whole stage.
    """

    family: str
    micro_batches: int


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders inside the step.

    Attributes:
        prefetch: how many blocks ahead a parameter gather is issued.
    """

    prefetch: int = 1


@dataclass(frozen=True)
class Plan:
    """All decisions, with the inputs they were made for.

    Attributes:
        model: the normalised model (what `frontends` builds the Graph from).
        hardware, stack, workload: the inputs.
        strategies: key -> strategy; keys are block names, with a suffix where a block has several.
        stages: in pipeline order.
        schedule, orders: see there.
    """

    model: DecoderConfig
    hardware: Hardware
    stack: Stack
    workload: Workload
    strategies: Mapping[str, Strategy]
    stages: tuple[StagePlan, ...]
    schedule: Schedule
    orders: Orders = field(default_factory=Orders)

    @property
    def batch(self) -> int:
        """Sequences of one micro-batch over the whole stage."""
        return self.workload.global_batch_size // self.schedule.micro_batches

    @cached_property
    def chunks(self) -> int:
        """Parts of the model that a stage holds; 1 where a stage is one piece of it."""
        return 1 + max((run.chunk for stage in self.stages for run in stage.runs), default=0)

    @cached_property
    def virtual_stages(self) -> tuple[tuple[int, tuple[Run, ...]], ...]:
        """(stage, its runs of one chunk) in the order of the model.

        A micro-batch passes chunk 0 of every stage, then chunk 1 of every stage, and so on.
        """
        return tuple(
            (index, tuple(run for run in stage.runs if run.chunk == chunk))
            for chunk in range(self.chunks)
            for index, stage in enumerate(self.stages)
        )
