"""What a plan's visits measured, as JSON that grows visit by visit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from autoplan.runtime.execute import RunResult
from autoplan.validate.campaign import Visit, settled

from .parts import Parts, mean_parts, parts


@dataclass(frozen=True)
class Seen:
    """One visit.

    Attributes:
        visit: step times, and who else was busy.
        parts: of a step, mean over steps; see `parts.parts`.
        peak: counted bytes of the fullest rank.
    """

    visit: Visit
    parts: Parts
    peak: int


def seen(result: RunResult, warm_up: int, elsewhere: float) -> Seen:
    """What a visit's run says.

    Args:
        result: of all its steps.
        warm_up: steps at its start that do not count.
        elsewhere: cores that other work kept busy meanwhile.
    """
    steps = range(warm_up, len(result.step_seconds))
    ranks = len(result.program.ranks)
    spans = list(chain.from_iterable(result.spans(step) for step in steps))
    one_each = [1] * (max(result.program.ranks) + 1)
    visit = Visit(result.step_seconds[warm_up:], elsewhere)
    return Seen(visit, parts(spans, one_each, ranks, len(steps)), max(result.peaks.values()))


def measured(visits: Sequence[Seen]) -> dict[str, Any]:
    """The `measured` object of a row; see `autoplan.validate.campaign`."""
    time = settled([each.visit for each in visits])
    used = [each for each in visits if each.visit.disturbed == time.disturbed]
    return {
        "step_time_s": time.step_time,
        "spread": time.spread,
        "disturbed": time.disturbed,
        "counted_peak_bytes": max(each.peak for each in visits),
        "parts": mean_parts([each.parts for each in used]),
        "visits": [
            {"seconds": list(each.visit.seconds), "elsewhere": each.visit.elsewhere}
            for each in visits
        ],
    }
