"""Tables that several screens share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from autoplan.ir.timeline import MEMORY_LINES
from autoplan.units import format_bytes, format_seconds

MOST_STAGES = 16
"""Stages that a table lists; those in the middle of more are left out."""


def table(title: str, *columns: str) -> Table:
    """An empty table; the first column is text, the others are numbers."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        made.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    return made


def step_text(predicted: Mapping[str, Any]) -> str:
    """`1.23 s ± 8 %`, the larger half of the interval."""
    seconds = predicted["step_time_s"]
    low, high = predicted["step_time_interval_s"]
    half = max(high - seconds, seconds - low) / seconds
    return f"{format_seconds(seconds)} ± {half:.0%}"


def share_text(value: float | None) -> str:
    """`41.2 %`, or a dash for what is not known."""
    return "-" if value is None else f"{100 * value:.1f} %"


def breakdown_table(predicted: Mapping[str, Any]) -> Table:
    """Where the step's time goes, mean over devices; parts that take no time are left out."""
    made = table("step time", "part", "time", "share")
    total = predicted["step_time_s"]
    for kind, seconds in predicted["breakdown_s"].items():
        if seconds:
            made.add_row(kind.replace("_", " "), format_seconds(seconds), f"{seconds / total:.1%}")
    made.add_row("sum", format_seconds(total), "")
    return made


def memory_table(predicted: Mapping[str, Any], capacity: int) -> Table:
    """Memory at the peak, per stage; lines that are nothing everywhere are left out."""
    stages: Sequence[Mapping[str, Any]] = predicted["memory"]
    lines = [line for line in MEMORY_LINES if any(stage[line] for stage in stages)]
    title = f"memory per device at the peak, of {format_bytes(capacity)}"
    made = table(title, "stage", *lines, "peak", "in flight", "at")
    half = MOST_STAGES // 2
    for index, stage in enumerate(stages):
        if half <= index < len(stages) - half:
            if index == half:
                made.add_row("...")
            continue
        peak = sum(stage[line] for line in MEMORY_LINES)
        cells = [format_bytes(stage[line]) for line in lines]
        in_flight = "-" if stage["in_flight"] is None else str(stage["in_flight"])
        made.add_row(str(index), *cells, format_bytes(peak), in_flight, stage["peak_at"] or "-")
    return made
