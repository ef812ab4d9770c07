"""The screens of search, simulate and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from autoplan.report.tables import (
    beside_text,
    breakdown_table,
    fullest_text,
    memory_table,
    share_text,
    step_text,
    table,
)
from autoplan.report.words import pin_words
from autoplan.units import format_bytes, format_seconds

NARROWEST_PLAN = 18
"""Columns of a plan in words, on a narrow terminal."""


@dataclass(frozen=True, slots=True)
class Row:
    """A plan as a row of a table.

    Attributes:
        name: its rank, or the name of a baseline.
        parallel, predicted: as in a plan file.
        verdict: `fits`, `risky` or `no`.
        tied: whether it cannot be told from the best.
    """

    name: str
    parallel: Mapping[str, Any]
    predicted: Mapping[str, Any]
    verdict: str
    tied: bool = False


def print_search(
    console: Console,
    rows: Sequence[Row],
    baselines: Mapping[str, Row | str],
    search: Mapping[str, Any],
    capacity: int,
) -> None:
    """The ranked plans, plain choices beside them, the winner in detail, how the search went.

    Args:
        console: where to print.
        rows: best first.
        baselines: name -> row, or why there is none.
        search: the `search` object of a plan file.
        capacity: bytes of a device.
    """
    _print_rows(console, "plans", rows, capacity)
    if any(row.tied for row in rows[1:]):
        console.print("= marks a tie with the best: the intervals overlap, so measure to decide\n")
    priced = [row for row in baselines.values() if isinstance(row, Row)]
    if priced:
        _print_rows(console, "plain choices", priced, capacity)
    for name, why in baselines.items():
        if isinstance(why, str):
            console.print(f"{name}: {why}", soft_wrap=True)
    print_details(console, rows[0].predicted, capacity)
    refused = ", ".join(f"{count} x {reason}" for reason, count in search["refused"].items())
    gap, bound = search["gap"], search["lower_bound_s"]
    console.print(
        f"searched {search['candidates']} candidates in {search['seconds']:.2f} s "
        f"({search['space']}; {search['stopped_by']}); "
        f"lower bound {format_seconds(bound)}, gap {share_text(gap)}"
        + (f"; refused: {refused}" if refused else ""),
        soft_wrap=True,
    )


def _print_rows(console: Console, title: str, rows: Sequence[Row], capacity: int) -> None:
    columns = ("step time", "tokens/s/device", "MFU", "memory", "of", "fits")
    made = table(title, "", "plan", *columns)
    made.columns[1].justify, made.columns[1].min_width = "left", NARROWEST_PLAN
    for row in rows:
        predicted, peak = row.predicted, row.predicted["peak_memory_bytes"]
        made.add_row(
            f"{row.name} =" if row.tied else row.name,
            pin_words(row.parallel),
            step_text(predicted),
            f"{predicted['tokens_per_s_per_device']:.0f}",
            share_text(predicted["mfu"]),
            format_bytes(peak),
            f"{peak / capacity:.0%}",
            row.verdict,
        )
    console.print(made)


def print_details(console: Console, predicted: Mapping[str, Any], capacity: int) -> None:
    """Where time and memory of one plan go."""
    console.print(breakdown_table(predicted))
    console.print(memory_table(predicted, capacity))
    console.print(fullest_text(predicted), soft_wrap=True)
    console.print(beside_text(predicted), soft_wrap=True)


def print_simulation(console: Console, row: Row, capacity: int) -> None:
    """One plan, or a Program without a plan (an empty `parallel`)."""
    predicted = row.predicted
    if row.parallel:
        _print_rows(console, "plan", [row], capacity)
    else:
        rate = f"{predicted['tokens_per_s']:.0f} tokens/s"
        peak = format_bytes(predicted["peak_memory_bytes"])
        console.print(f"step {step_text(predicted)}, {rate}, peak {peak}")
    print_details(console, predicted, capacity)


def print_run(console: Console, report: Mapping[str, Any]) -> None:
    """What a run computed, whether it is right, and measured beside predicted."""
    losses = report["loss"]
    made = table("run", "step", "loss", "time")
    times = report["measured"]["step_times_s"]
    for step, (loss, seconds) in enumerate(zip(losses, times, strict=True), report["first_step"]):
        made.add_row(str(step), f"{loss:.9f}", format_seconds(seconds))
    console.print(made)
    measured, predicted = report["measured"], report["predicted"]
    made = table("measured and predicted", "", "measured", "predicted")
    made.add_row("step time", format_seconds(measured["step_time_s"]), step_text(predicted))
    rates = (f"{numbers['tokens_per_s']:.0f}" for numbers in (measured, predicted))
    made.add_row("tokens/s", *rates)
    peaks = (format_bytes(report["counted_peak_bytes"][k]) for k in ("measured", "predicted"))
    made.add_row("counted memory per device", *peaks)
    console.print(made)
    if report["verified"] is None:
        console.print("not verified (--no-verify)")
        return
    word = "verified" if report["verified"] else "NOT verified"
    replicas = "bit-equal" if report["replicas_equal"] else "different"
    console.print(
        f"{word}: largest error of a gradient {report['max_gradient_error']:.2g}, of a parameter "
        f"{report['max_parameter_error']:.2g}, of the loss {report['max_loss_error']:.2g}, "
        f"limit {report['limit']:.2g}; replicas {replicas}"
    )
