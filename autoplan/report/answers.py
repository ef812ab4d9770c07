"""The screens of a question about several machines or sizes, and what to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoplan.report.tables import table
from autoplan.report.words import pin_words
from autoplan.units import format_bytes, format_seconds


def print_machines(console: Console, goal: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """One row a machine, best first; of one machine there is nothing to compare.

    Args:
        console: where to print.
        goal: what they are ranked by.
        rows: as in `machines` of `--json`.
    """
    if len(rows) == 1:
        return
    made = table(
        f"machines by {goal}", "", "plan", "devices", "step time", "tokens/s", goal, "fits"
    )
    made.columns[1].justify = "left"
    for row in rows:
        if row["parallel"] is None:
            made.add_row(row["hardware"], "nothing fits", "-", "-", "-", "-", "no")
            continue
        made.add_row(
            row["hardware"],
            pin_words(row["parallel"]),
            str(row["devices"]),
            format_seconds(row["step_time_s"]),
            f"{row['tokens_per_s']:.0f}",
            score_text(row["score"], row["unit"]),
            row["verdict"],
        )
    console.print(made)
    for row in rows:
        if row["refused"]:
            console.print(f"{row['hardware']}: {row['refused']}", soft_wrap=True)


def score_text(value: float, unit: str) -> str:
    """What a goal counts, as a person reads it."""
    if unit == "bytes":
        return format_bytes(value)
    if unit == "devices":
        return f"{value:.0f}"
    if unit == "s/token":
        return f"{format_seconds(value)}/token"
    per_million = 1e6 * value
    return f"{per_million:.3g} {unit.partition('/')[0]}/M tokens"


def print_ladder(console: Console, hardware: str, rungs: Sequence[Mapping[str, Any]]) -> None:
    """Which sizes of a machine a model fits on.

    Args:
        console: where to print.
        hardware: as typed.
        rungs: as in `ladder` of `--json`.
    """
    columns = (
        "devices",
        "fits",
        "step time",
        "memory",
        "host memory a node",
        "plan",
        "what limits",
    )
    made = table(f"sizes of {hardware}", *columns)
    made.columns[0].justify = "right"
    for index in (1, 5, 6):
        made.columns[index].justify = "left"
    for rung in rungs:
        step, peak, host = (
            rung[key] for key in ("step_time_s", "peak_memory_bytes", "host_bytes_per_node")
        )
        knob = f" ({rung['knob']})" if rung["knob"] else ""
        made.add_row(
            str(rung["devices"]),
            rung["verdict"],
            "-" if step is None else format_seconds(step),
            "-" if peak is None else format_bytes(peak),
            "-" if host is None else format_bytes(host),
            pin_words(rung["parallel"]) if rung["parallel"] else "-",
            rung["limits"] + knob,
        )
    console.print(made)
    console.print(needed_text(rungs))


def needed_text(rungs: Sequence[Mapping[str, Any]]) -> str:
    """How many devices it takes."""
    for verdict, words in (("fits", "it takes"), ("risky", "nothing fits for sure; it may take")):
        for rung in rungs:
            if rung["verdict"] == verdict:
                return f"{words} {rung['devices']} devices of those sizes"
    return f"it takes more than {rungs[-1]['devices']} devices"


def print_shortlist(console: Console, shortlist: Sequence[Mapping[str, Any]]) -> None:
    """Plans worth measuring, with the commands that do it.

    Args:
        console: where to print.
        shortlist: as in `--json`.
    """
    if len(shortlist) < 2:
        return
    console.print("worth measuring, since the prediction cannot tell them apart:")
    for entry in shortlist:
        console.print(f"  {pin_words(entry['parallel'])}", soft_wrap=True)
        console.print(f"    {entry['command']}", soft_wrap=True)
