"""Predictions against measurements: how far off, and in the right order?

Order is judged inside a group: plans of one workload on one number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoplan.units import format_seconds
from autoplan.validate.statistics import errors_of, median, pair_order, regret, spearman

from .parts import kinds_table

Row = Mapping[str, Any]
Pair = tuple[float, float]
"""(predicted, measured) seconds."""

FEWEST = 3
"""Plans that can be said to have an order."""


def pair(row: Row) -> Pair:
    """Predicted and measured seconds of a row."""
    predicted = row["plan"]["predicted"]["step_time_s"]
    return float(predicted), float(row["measured"]["step_time_s"])


def score(rows: Sequence[Row]) -> dict[str, Any]:
    """All figures of measured rows; fractions."""
    groups: dict[str, list[Pair]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(pair(row))
    columns = [tuple(zip(*pairs, strict=True)) for pairs in groups.values()]
    off = errors_of([predicted / seconds - 1 for predicted, seconds in map(pair, rows)])
    right, apart = (
        sum(column) for column in zip(*(pair_order(*sides) for sides in columns), strict=True)
    )
    orders = [spearman(*sides) for sides in columns if len(sides[0]) >= FEWEST]
    regrets = [regret(*sides) for sides in columns]
    return {
        "plans": len(rows),
        "disturbed": sum(row["measured"]["disturbed"] for row in rows),
        "median_abs_error": off.median_abs_error,
        "p90_abs_error": off.p90_abs_error,
        "bias": off.bias,
        "spearman": median([order for order in orders if order is not None]),
        "pair_order": right / apart if apart else None,
        "pairs_apart": apart,
        "regret": {"median": median(regrets), "max": max(regrets)},
    }


def render(rows: Sequence[Row], order_only: bool = False) -> str:
    """Markdown: tables of groups, of what plans consist of, and of plans.

    Args:
        rows: measured.
        order_only: leave the errors out: with more ranks than cores a step time measures the
            operating system's scheduler.
    """
    names = sorted({row["group"] for row in rows})
    heads = ("group", "plans", "median error", "p90", "bias", "Spearman", "pair order", "regret")
    table = [heads]
    for name in (*names, "all"):
        figures = score([row for row in rows if name in ("all", row["group"])])
        table.append((name, *_cells(figures, order_only)))
    plans = [("plan", "pins", "predicted", "measured", "ratio", "spread", "disturbed")]
    for row in sorted(rows, key=lambda row: (row["group"], pair(row)[1])):
        predicted, seconds = pair(row)
        more = row["measured"]
        plans.append(
            (
                f"{row['id']} {row['group']}", f"`{row['pins']}`", format_seconds(predicted),
                format_seconds(seconds), f"{predicted / seconds:.2f}", f"{more['spread']:.0%}",
                "yes" if more["disturbed"] else "",
            )
        )  # fmt: skip
    tables = [table, plans] if order_only else [table, kinds_table(rows), plans]
    return "\n\n".join(map(markdown, tables))


def _cells(figures: Mapping[str, Any], order_only: bool) -> tuple[str, ...]:
    wrong = [f"{figures[key]:.1%}" for key in ("median_abs_error", "p90_abs_error")]
    wrong.append(f"{figures['bias']:+.1%}")
    right, apart = figures["pair_order"], figures["pairs_apart"]
    most = figures["regret"]
    return (
        str(figures["plans"]),
        *(["-"] * 3 if order_only else wrong),
        "-" if figures["spearman"] is None else f"{figures['spearman']:.2f}",
        "-" if right is None else f"{right:.1%} of {apart}",
        f"{most['median']:.1%}, at most {most['max']:.1%}",
    )


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A table of cells, its head first."""
    head, *rows = (f"| {' | '.join(cells)} |" for cells in table)
    return "\n".join([head, "|" + "---|" * len(table[0]), *rows])
