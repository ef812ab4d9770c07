"""Tables that several screens share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from autoplan.ir.timeline import MEMORY_LINES
from autoplan.units import format_bytes, format_seconds

MOST_STAGES = 6
"""Stages that a table has columns for; those in the middle of more are left out."""


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


def beside_text(predicted: Mapping[str, Any]) -> str:
    """Memory that is not part of a step: while loading, and of the host."""
    stages: Sequence[Mapping[str, Any]] = predicted["memory"]
    loading = [stage["load_peak"] for stage in stages if stage["load_peak"] is not None]
    hosts = [stage["host"] for stage in stages if stage["host"] is not None]
    words = [f"{format_bytes(max(loading))} a device while loading"] if loading else []
    words += [f"{format_bytes(max(hosts))} of host memory a node"] if hosts else []
    return "besides: " + ", ".join(words) + "\n" if words else ""


def memory_table(predicted: Mapping[str, Any], capacity: int) -> Table:
    """Memory at the peak, a column per stage; lines that are nothing everywhere are left out."""
    memory: Sequence[Mapping[str, Any]] = predicted["memory"]
    shown = _shown_stages(len(memory))
    title = f"memory per device at the peak, of {format_bytes(capacity)}"
    made = table(title, "stage", *("..." if s is None else str(s) for s in shown))
    made.columns[0].no_wrap, made.min_width = True, len(title)

    def add(name: str, cell: Callable[[Mapping[str, Any]], str]) -> None:
        made.add_row(name, *("" if s is None else cell(memory[s]) for s in shown))

    for line in MEMORY_LINES:
        if any(stage[line] for stage in memory):
            add(line, partial(_cell, line))
    add("peak", lambda stage: format_bytes(_peak(stage)))
    add("in flight", lambda stage: "-" if stage["in_flight"] is None else str(stage["in_flight"]))
    return made


def fullest_text(predicted: Mapping[str, Any]) -> str:
    """`stage 0 is fullest, at B layer/B i9 m1: linear_dx`."""
    memory = predicted["memory"]
    stage = max(range(len(memory)), key=lambda s: _peak(memory[s]))
    place = memory[stage]["peak_at"]
    return f"stage {stage} is fullest" + (f", at {place}" if place else "")


def _cell(line: str, stage: Mapping[str, Any]) -> str:
    return format_bytes(stage[line])


def _peak(stage: Mapping[str, Any]) -> int:
    return int(sum(stage[line] for line in MEMORY_LINES))


def _shown_stages(count: int) -> list[int | None]:
    """All stages, or the first and last of them around a gap."""
    if count <= MOST_STAGES:
        return list(range(count))
    half = MOST_STAGES // 2
    return [*range(half), None, *range(count - half, count)]
