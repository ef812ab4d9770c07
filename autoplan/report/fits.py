"""The screen of `calibrate`: what was fitted, what the runs cannot tell, and what is gained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from autoplan.report.tables import share_text, table

ERRORS = ("median_abs_error", "p90_abs_error", "max_abs_error", "bias")


def print_calibration(console: Console, document: Mapping[str, Any]) -> None:
    """Fits.

    Args:
        console: where to print.
        document: what `--json` prints.
    """
    for key, words in (("step_time", "step time"), ("peak_memory", "peak memory")):
        if document[key] is None:
            console.print(f"{words}: too few runs tell\n")
        else:
            _print_errors(console, words, document[key])
    numbers = table("constants", "profile", "number", "before", "after", "spread", "")
    for row in document["constants"]:
        spread = f"x/ {row['spread']:.3f}" if row["spread"] else "-"
        numbers.add_row(
            row["profile"], row["number"], f"{row['before']:.4g}", f"{row['after']:.4g}", spread,
            "" if row["identified"] else "the runs cannot tell: left alone",
        )  # fmt: skip
    console.print(numbers)
    if document["refused"]:
        first = document["refused"][0]
        console.print(
            f"{len(document['refused'])} runs not fitted, such as {first['id']}: {first['reason']}",
            soft_wrap=True,
        )


def _print_errors(console: Console, words: str, part: Mapping[str, Any]) -> None:
    """Errors of one kind of number, each run left out with its model or layout as well."""
    rows = {"before": "before", "after": "after", "left_out": f"left-out {part['folds']}"}
    if part["runs"]:
        made = table(f"{words}, {part['runs']} runs", "", "median", "p90", "max", "bias")
        for key, name in rows.items():
            made.add_row(name, *(share_text(part[key][error]) for error in ERRORS))
        console.print(made)
    if "fits" in part:
        told = f"fits or out of memory, {part['outcomes']} runs"
        made = table(told, "", "predicted rightly", "false among predicted fits")
        for key, name in rows.items():
            fits = part["fits"][key]
            made.add_row(name, share_text(fits["agreement"]), share_text(fits["false_fits"]))
        console.print(made)
