"""Which plans people would call the same."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.describe import describe
from autoplan.ir.graph import Graph
from autoplan.ir.plan import Plan
from autoplan.ir.timeline import Timeline
from autoplan.search.result import Ranked


def stage_totals(timeline: Timeline) -> list[int]:
    """Peak bytes of each stage, all lines together."""
    return [sum(lines.values()) for lines in timeline.peak_memory]


def distinct(graph: Graph, rows: Sequence[Ranked]) -> list[Ranked]:
    """Fastest first, one of those that people would call the same plan."""
    table: dict[str, Ranked] = {}
    for row in sorted(rows, key=lambda r: r.timeline.step_time):
        words = describe(graph, row.plan)
        plain = {key: value for key, value in words.items() if key not in ("order", "zero_axes")}
        same_time = f"{row.timeline.step_time:.9e}"  # the machine does not care about the order
        table.setdefault(repr((plain, same_time)), row)
    return list(table.values())


def plan_name(graph: Graph, plan: Plan) -> str:
    """What people would call a plan: equal for plans that differ in details only."""
    words = describe(graph, plan)
    return repr({key: value for key, value in words.items() if key != "zero_axes"})
