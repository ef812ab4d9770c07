"""Where a step's time goes: by action and segment, and by kind.

A span of a call contains the spans of the collectives inside it. A predicted step lists calls only;
of a measured one, `B layer/B.first: all_reduce` names a collective in a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from autoplan.ir.timeline import Span
from autoplan.units import format_seconds
from autoplan.validate.campaign import Visit

PLACE = re.compile(r" [im]\d+")
"""Of an action's text: which block and micro-batch it is for."""
KINDS = {
    "F": "compute", "B": "compute", "NORM": "compute", "GATHER": "compute", "REDUCE": "compute",
    "STEP": "optimizer", "SEND": "send and bubble", "WAIT": "send and bubble",
    "RECV": "send and bubble",
}  # fmt: skip
"""Kind of action -> what its own time counts as; whatever else there is belongs to `fixed`."""
PREDICTED_KINDS = {"send": "send and bubble", "bubble": "send and bubble"}
"""Kind of a predicted breakdown -> ours, where they differ: a measured wait is either."""


class Part(NamedTuple):
    """Seconds and calls of a step, mean over ranks."""

    seconds: float
    calls: float


Parts = Mapping[str, Part]


def parts(spans: Iterable[Span], copies: Sequence[int], ranks: int, steps: int = 1) -> Parts:
    """What a step consists of.

    Args:
        spans: of all its ranks or stages.
        copies: by `Span.stage`, how many ranks each span stands for.
        ranks: of the plan.
        steps: that the spans are of.
    """
    table: dict[str, Part] = {}
    for span in spans:
        name = PLACE.sub("", span.name)
        share = copies[span.stage] / ranks / steps
        old = table.get(name, Part(0.0, 0.0))
        seconds = old.seconds + (span.end - span.start) * share
        table[name] = Part(seconds, old.calls + share)
    return dict(sorted(table.items()))


def mean_parts(several: Sequence[Parts]) -> Parts:
    """The mean of several steps of one plan."""
    return {
        name: Part(*(mean(each[name][k] for each in several) for k in range(2)))
        for name in several[0]
    }


def by_kind(measured: Parts, step_time: float) -> Parts:
    """Seconds and calls of a measured step by kind; seconds add up to the step time."""
    table: dict[str, Part] = {}

    def add(kind: str, seconds: float, calls: float) -> None:
        old = table.get(kind, Part(0.0, 0.0))
        table[kind] = Part(old.seconds + seconds, old.calls + calls)

    for name, part in measured.items():
        action, inside, collective = name.partition(": ")
        kind = KINDS.get(action.split()[0], "fixed")
        if inside:
            add(collective, part.seconds, part.calls)
            add(kind, -part.seconds, 0.0)
        elif kind != "fixed":
            add(kind, part.seconds, part.calls)
    rest = step_time - sum(part.seconds for part in table.values())
    return {**table, "fixed": Part(rest, 1.0)}


def kinds_table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Cells: for each number of ranks and kind, what all plans were predicted to take and took.

    Over undisturbed plans where there are any.
    """
    quiet = [row for row in rows if not row["measured"]["disturbed"]] or rows
    table = [("ranks", "kind", "predicted", "measured", "measured / predicted", "per call")]
    for ranks in sorted({row["ranks"] for row in quiet}):
        chosen = [row for row in quiet if row["ranks"] == ranks]
        predicted = _predicted(chosen)
        found = [_kinds_of(row) for row in chosen]
        for kind in dict.fromkeys([*predicted, *(name for kinds in found for name in kinds)]):
            each = [kinds[kind] for kinds in found if kind in kinds]
            seconds, calls = (sum(part[k] for part in each) for k in range(2))
            foretold = predicted.get(kind, 0.0)
            if seconds or foretold:
                ratio = f"{seconds / foretold:.2f}" if foretold else "-"
                one = format_seconds(seconds / calls) if calls else "-"
                words = format_seconds(foretold), format_seconds(seconds)
                table.append((str(ranks), kind, *words, ratio, one))
    return table


def _predicted(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    table: dict[str, float] = {}
    for row in rows:
        for name, seconds in row["plan"]["predicted"]["breakdown_s"].items():
            kind = PREDICTED_KINDS.get(name, name)
            table[kind] = table.get(kind, 0.0) + seconds
    return table


def _kinds_of(row: Mapping[str, Any]) -> Parts:
    measured = row["measured"]
    found = {name: Part(*pair) for name, pair in measured["parts"].items()}
    # Parts are means over steps, so their sum is compared with the mean step, not the median.
    visits = [Visit(tuple(one["seconds"]), one["elsewhere"]) for one in measured["visits"]]
    used = [visit.seconds for visit in visits if visit.disturbed == measured["disturbed"]]
    return by_kind(found, mean(map(mean, used)))
