"""The screen of `profile`: the numbers found, and how well they explain what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoplan.report.reading import print_shown
from autoplan.report.tables import share_text, table
from autoplan.units import format_bytes, format_seconds


def print_profile(console: Console, document: Mapping[str, Any]) -> None:
    """A profile with what it rests on.

    Args:
        console: where to print.
        document: of `autoplan profile --json`.
    """
    print_shown(console, "hardware", document["hardware"])
    if document.get("parts"):
        _print_parts(console, document)
    for name, links in document["links"].items():
        _print_links(console, name, links)


def _print_parts(console: Console, document: Mapping[str, Any]) -> None:
    columns = ("precision", "part", "of step", "operators", "measured", "priced", "error")
    made = table("steps by part", "step", *columns)
    for row in document["parts"]:
        made.add_row(
            row["step"],
            row["precision"],
            row["part"],
            share_text(row["share"]),
            str(row["count"]),
            format_seconds(row["measured_s"]),
            format_seconds(row["predicted_s"]),
            _error_text(row["error"]),
        )
    console.print(made)
    _print_families(console, document["families"])
    console.print(
        f"an instruction that does nothing takes {format_seconds(document['interpreter_s'])}; "
        f"{share_text(document['outside_share'])} of a step belong to no instruction; "
        f"the least share of its core that a rank had: {share_text(document['cpu_share'])}",
        soft_wrap=True,
    )


def _print_families(console: Console, families: Sequence[Mapping[str, Any]]) -> None:
    made = table("operators, each by a line of its own", "family", "precision", "kind", "seconds",
                 "per s beyond", "error")  # fmt: skip
    for line in families:
        rate = line["rate"]
        made.add_row(
            line["family"],
            line["precision"],
            line["kind"],
            format_seconds(line["seconds"]),
            "-" if rate is None else f"{rate / 1e9:.3g} G{line['unit']}",
            share_text(line["error"]),
        )
    console.print(made)


def _print_links(console: Console, name: str, links: Mapping[str, Any]) -> None:
    columns = ("ranks", "bytes", "measured", "fitted", "error", "own line", "table")
    made = table(f"communication over level {name}", "operation", *columns)
    for row in links["rows"]:
        made.add_row(
            row["kind"],
            str(len(row["groups"][0])),
            format_bytes(row["nbytes"]),
            format_seconds(row["seconds"]),
            format_seconds(row["fitted_s"]),
            _error_text(row["error"]),
            _error_text(row["own_error"]),
            _error_text(row["table_error"]),
        )
    console.print(made)
    console.print(
        f"level {name}: {format_seconds(links['latency_s'])} a step, "
        f"{links['bandwidth'] / 1e9:.3g} GB/s; median error "
        f"{share_text(links['error_large'])} from 1 MiB on, "
        f"{share_text(links['error_small'])} below",
        soft_wrap=True,
    )


def _error_text(error: float | None) -> str:
    return "-" if error is None else f"{error:+.0%}"
