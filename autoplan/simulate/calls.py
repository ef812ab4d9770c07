"""Segments as the engine needs them: how long a call takes, as what, and what it waits for.

All this is worked out once per stage and segment, so that the engine's loop only adds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost import Pricer
from autoplan.ir.program import COLLECTIVES, Program, Segment, Slot, StageProgram

KINDS = (
    "compute", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "bubble",
    "optimizer", "fixed",
)  # fmt: skip
"""What a stage's time goes to. Collectives and sends: only what computing waits for. `fixed`:
seconds of a step that belong to no action."""

Shares = tuple[tuple[str, float], ...]
"""(kind, share of the time), adding up to 1."""


@dataclass(frozen=True, slots=True)
class Place:
    """A slot but for the action's indices; see `ir.program.Formal`."""

    name: str
    layer: int | None
    per_micro_batch: bool

    def slot(self, instance: int, micro_batch: int) -> Slot:
        """The slot for an action's instance and micro-batch."""
        return (
            self.name,
            -1 if self.layer is None else instance + self.layer,
            micro_batch if self.per_micro_batch else -1,
        )


@dataclass(slots=True)
class Call:
    """A segment, called by actions of one kind.

    Attributes:
        seconds: how long it takes alone.
        shares: what they count as.
        asynchronous: whether it runs on the collective stream.
        waits: slots it reads that are filled beside computing.
        marks: slots it fills beside computing that some call waits for.
        joins: groups of several stages that it synchronises.
        spent: seconds that it has taken so far on the compute stream.
    """

    seconds: float
    shares: Shares
    asynchronous: bool
    waits: tuple[Place, ...]
    marks: tuple[Place, ...]
    joins: tuple[str, ...]
    spent: float = 0.0


class CallTable:
    """Calls of every stage.

    Args:
        program: the step.
        pricer: what instructions cost.

    Attributes:
        participants: named group of several stages -> how many.
    """

    def __init__(self, program: Program, pricer: Pricer) -> None:
        self.program, self.pricer = program, pricer
        self.participants = _participants(program)

    def stage(self, stage: StageProgram) -> dict[str, Call]:
        """Segment key -> call."""
        kinds = {action.segment: action.kind for action in stage.actions if action.segment}
        beside = {
            key for key, kind in kinds.items() if self.pricer.runs_beside(kind, stage.segments[key])
        }
        stands_for = _representatives(stage, beside)
        crossed = _crosses(stage, kinds)
        calls = {}
        for key, kind in kinds.items():
            segment = stage.segments[key]
            seconds, shares = self._priced(segment, stage, kind, crossed)
            waits, marks = _places(segment, stands_for)
            joins = tuple(group for group in _groups(segment) if group in self.participants)
            calls[key] = Call(
                seconds, shares, key in beside, waits, marks if key in beside else (), joins
            )
        return calls

    def _priced(
        self, segment: Segment, stage: StageProgram, kind: str, crossed: bool
    ) -> tuple[float, Shares]:
        """Seconds of a call, and what they count as; blocks take at least the host's time."""
        seconds: dict[str, float] = defaultdict(float)
        table = self.pricer.instruction_seconds(segment, stage.mesh, self.program.groups, kind)
        for what, taken in zip(self.pricer.kinds(segment), table.tolist(), strict=True):
            seconds[what] += taken
        if kind in ("F", "B"):
            self._hide(seconds)
        total = sum(seconds.values())
        if kind in ("F", "B"):
            floor = self.pricer.layer_floor(kind == "B")
            if crossed:
                mesh, groups = stage.mesh, self.program.groups
                floor += self.pricer.crossed_floor(segment, mesh, groups, kind == "B")
            seconds["compute"] += max(0.0, floor - total)
            total = max(total, floor)
        return total, tuple((what, taken / total) for what, taken in seconds.items() if taken)

    def _hide(self, seconds: dict[str, float]) -> None:
        """Take away what of a layer's collectives runs beside its computing."""
        shown = {what: taken for what, taken in seconds.items() if what in COLLECTIVES}
        hidden = min(self.pricer.layer_overlap * sum(shown.values()), seconds["compute"])
        for what, taken in shown.items() if hidden else ():
            seconds[what] -= hidden * taken / sum(shown.values())


def _crosses(stage: StageProgram, kinds: Mapping[str, str]) -> bool:
    """Whether a stage both exchanges with other stages and gradients among its ranks."""
    reducing = (stage.segments[key] for key, kind in kinds.items() if kind == "REDUCE")
    return bool(stage.channels) and any(
        instr.op in COLLECTIVES for segment in reducing for instr in segment.code
    )


def _participants(program: Program) -> Mapping[str, int]:
    stage_of = program.stage_of
    stages = {
        group: {stage_of[rank] for part in parts for rank in part}
        for group, parts in program.groups.items()
    }
    return {group: len(members) for group, members in stages.items() if len(members) > 1}


def _groups(segment: Segment) -> Iterable[str]:
    """Named groups over which a segment communicates."""
    axes = [instr.attr("axes") for instr in segment.code if instr.op in COLLECTIVES]
    return dict.fromkeys(group for group in axes if isinstance(group, str))


def _representatives(stage: StageProgram, beside: Iterable[str]) -> Mapping[str, str]:
    """Name of a slot that is filled beside computing -> the name that stands for it.

    Slots that the same segments fill are always ready together, so that one is enough to ask for:
    a block waits once for its gathered parameters, not for each.
    """
    fillers: dict[str, list[tuple[object, ...]]] = {
        name: [("channel", name)] for name in stage.channels
    }
    for key in beside:
        for formal in stage.segments[key].formals:
            if formal.intent in ("out", "acc"):
                filler = (key, formal.layer, formal.per_micro_batch)
                fillers.setdefault(formal.name, []).append(filler)
    first: dict[tuple[tuple[object, ...], ...], str] = {}
    return {
        name: first.setdefault(tuple(sorted(by, key=str)), name) for name, by in fillers.items()
    }


def _places(
    segment: Segment, stands_for: Mapping[str, str]
) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """(what the segment waits for, what it fills), by representatives."""
    sides: Sequence[dict[Place, None]] = ({}, {})
    for formal in segment.formals:
        if formal.name not in stands_for:
            continue
        place = Place(stands_for[formal.name], formal.layer, formal.per_micro_batch)
        if formal.intent != "out":
            sides[0][place] = None
        if formal.intent in ("out", "acc"):
            sides[1][place] = None
    return tuple(sides[0]), tuple(sides[1])
