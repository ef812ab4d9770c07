"""The screen of `calibrate`: what was fitted, what the runs cannot tell, and what is gained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from autoplan.report.tables import share_text, table


def print_calibration(console: Console, document: Mapping[str, Any]) -> None:
    """A fit.

    Args:
        console: where to print.
        document: what `--json` prints.
    """
    made = table(f"{document['runs']} runs", "", "median", "p90", "max", "bias")
    for key, words in (("before", "before"), ("after", "after"), ("left_out", "left-out models")):
        errors = document[key]
        names = ("median_abs_error", "p90_abs_error", "max_abs_error", "bias")
        made.add_row(words, *(share_text(errors[name]) for name in names))
    console.print(made)
    numbers = table("constants", "profile", "number", "before", "after", "spread", "")
    for row in document["constants"]:
        numbers.add_row(
            row["profile"], row["number"], f"{row['before']:.4g}", f"{row['after']:.4g}",
            f"x/ {row['spread']:.3f}", "" if row["identified"] else "not identified, left alone",
        )  # fmt: skip
    console.print(numbers)
    if document["refused"]:
        first = document["refused"][0]
        console.print(
            f"{len(document['refused'])} runs not fitted, such as {first['id']}: {first['reason']}",
            soft_wrap=True,
        )
