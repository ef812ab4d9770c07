"""What a search is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoplan.ir.graph import Graph
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Plan
from autoplan.ir.timeline import Timeline
from autoplan.ir.workload import Workload
from autoplan.presets.pins import Pins


@dataclass(frozen=True)
class Request:
    """A question.

    Attributes:
        graph: training step of `config` under `workload`.
        config: the model.
        hardware, stack, workload: machine, software, batch.
        pins: what is fixed.
        top: how many plans to return.
        progress: told what is going on, or None.
        most: candidates of the outer space to solve at most, for a quick answer; None: as many as
            the bounds leave.
    """

    graph: Graph
    config: DecoderConfig
    hardware: Hardware
    stack: Stack
    workload: Workload
    pins: Pins = field(default_factory=dict)
    top: int = 5
    progress: Callable[[str], None] | None = None
    most: int | None = None


@dataclass(frozen=True)
class Ranked:
    """A plan with its simulated step."""

    plan: Plan
    timeline: Timeline


@dataclass(frozen=True)
class SearchResult:
    """An answer.

    Attributes:
        plans: that fit, fastest first; never empty.
        baselines: name -> a plain choice with its simulated step, or why there is none.
        candidates: of the outer space that were solved.
        seconds: that the search took.
        lower_bound_s: no plan of the space is faster, by the ideal time of its matrix products.
        gap: step time of the first plan over the bound, minus one.
        space: what was searched, in words.
        refused: reason -> candidates.
        stopped_by: why the search ended.
    """

    plans: tuple[Ranked, ...]
    baselines: Mapping[str, Ranked | str]
    candidates: int
    seconds: float
    lower_bound_s: float
    gap: float
    space: str
    refused: Mapping[str, int]
    stopped_by: str
