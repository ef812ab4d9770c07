"""The screens of explain and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoplan.report.tables import share_text, step_text, table
from autoplan.report.words import pin_words
from autoplan.units import format_bytes, format_seconds

MOST_TABLES = 3
"""Stages whose operators are listed, of those that differ: the first ones and the last."""
MOST_ROWS = 14
"""Operators of a stage that a table lists; the others are one row."""
LEAST_GAIN = 1e-4
"""Gains below this share are not worth a row."""
MOST_PARTS = 3
"""Parts named in a sentence."""
MOST_DECISIONS = 40
"""Decisions that differ and are listed one by one."""
LONGEST = 48
"""Characters of a value in a table."""


def print_explanation(
    console: Console, predicted: Mapping[str, Any], document: Mapping[str, Any]
) -> None:
    """Where a plan's time goes by operator, what would help, why not another, what was measured.

    Args:
        console: where to print.
        predicted: of the plan.
        document: as in `explanation` of `--json`.
    """
    stages: dict[str, int] = {}
    for index, rows in enumerate(document["operators"]):
        stages.setdefault(repr(rows), index)
    different = list(stages.values())
    for index in dict.fromkeys((*different[: MOST_TABLES - 1], different[-1])):
        _print_operators(console, index, document["operators"][index])
    _print_gains(console, document["gains"], predicted["step_time_s"])
    if "why_not" in document:
        _print_why_not(console, document["why_not"])
    if "measured" in document:
        _print_measured(console, document["measured"])


def _print_operators(console: Console, stage: int, rows: Sequence[Mapping[str, Any]]) -> None:
    title = f"stage {stage}: seconds busy in a step, of one device"
    made = table(
        title, "operator", "pass", "computing", "communicating", "limited by", "collectives"
    )
    for column in (1, 4, 5):
        made.columns[column].justify = "left"
    for row in rows[:MOST_ROWS]:
        made.add_row(
            f"{row['block']}.{row['operator']}",
            row["pass"],
            format_seconds(row["compute_s"]),
            format_seconds(row["communication_s"]),
            row["limited_by"] or "-",
            "; ".join(map(_collective, row["collectives"])) or "-",
        )
    rest = rows[MOST_ROWS:]
    if rest:
        sums = (sum(row[key] for row in rest) for key in ("compute_s", "communication_s"))
        made.add_row(f"{len(rest)} more", "", *map(format_seconds, sums), "", "")
    console.print(made)


def _collective(entry: Mapping[str, Any]) -> str:
    kind = entry["kind"].replace("_", " ")
    return f"{entry['times']} x {kind} of {format_bytes(entry['bytes'])} over {entry['axes']}"


def _print_gains(console: Console, gains: Sequence[Mapping[str, Any]], seconds: float) -> None:
    made = table("what 10 % better would give", "better", "step time", "faster")
    for gain in sorted(gains, key=lambda gain: gain["step_time_s"]):
        if gain["faster"] > LEAST_GAIN:
            made.add_row(
                gain["better"], format_seconds(gain["step_time_s"]), f"{gain['faster']:.1%}"
            )
    made.add_row("nothing", format_seconds(seconds), "")
    console.print(made)


def _print_why_not(console: Console, why_not: Mapping[str, Any]) -> None:
    if "refused" in why_not:
        console.print("the other plan cannot be:")
        for reason in why_not["refused"]:
            console.print(f"  {reason}", soft_wrap=True)
        return
    words = pin_words(why_not["parallel"])
    console.print(f"why not {words}?", soft_wrap=True)
    console.print(why_not_text(why_not), soft_wrap=True)
    for name, write in (("time", format_seconds), ("memory", format_bytes)):
        made = table(f"{name} by part", "part", "this plan", "the other", "difference")
        for row in why_not[name]:
            numbers = (row[key] for key in ("plan", "other"))
            sign = "-" if row["difference"] < 0 else "+"
            made.add_row(
                row["part"].replace("_", " "),
                *map(write, numbers),
                f"{sign}{write(abs(row['difference']))}",
            )
        console.print(made)


def why_not_text(why_not: Mapping[str, Any]) -> str:
    """A sentence or two: slower or not, by what; fits or not, because of what."""
    slower = why_not["slower"]
    sign = 1 if slower >= 0 else -1
    text = f"it takes {abs(slower):.1%} {'more' if sign > 0 else 'less'} time: "
    text += _parts(why_not["time"], sign, format_seconds)
    peak = why_not["predicted"]["peak_memory_bytes"]
    if why_not["verdict"] != "fits":
        does = "does not fit" if why_not["verdict"] == "no" else "may not fit"
        text += f"; it {does}, needing {format_bytes(peak)}: "
        text += _parts(why_not["memory"], 1, format_bytes)
    return text


def _parts(rows: Sequence[Mapping[str, Any]], sign: int, write: Any) -> str:
    """The longest differences of one sign."""
    named = [row for row in rows if row["difference"] * sign > 0][:MOST_PARTS]
    words = (
        f"{row['part'].replace('_', ' ')} {'+' if sign > 0 else '-'}{write(abs(row['difference']))}"
        for row in named
    )
    return ", ".join(words) or "no part by itself"


def _print_measured(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    made = table("measured and predicted", "", "measured", "predicted", "between", "difference")
    for row in rows:
        write = _writer(row["name"])
        low, high = map(write, row["interval"])
        made.add_row(
            row["name"].replace("_", " "),
            write(row["measured"]),
            write(row["predicted"]),
            f"{low} and {high}",
            f"{row['difference']:+.1%}",
        )
    console.print(made)
    for row in rows:
        console.print(measured_text(row), soft_wrap=True)


def measured_text(row: Mapping[str, Any]) -> str:
    """Whether a measurement is inside its interval, and what could explain it if not."""
    name = row["name"].replace("_", " ")
    if row["within"]:
        return f"{name}: as predicted, inside the interval"
    write = format_bytes if row["name"] == "memory" else format_seconds
    possible = [part for part in row["explanations"] if part["factor"] > 0][:MOST_PARTS]
    words = (
        f"{part['part'].replace('_', ' ')} {part['factor']:.2f} x the predicted "
        f"{write(part['predicted'])}{' (its spread allows that)' if part['plausible'] else ''}"
        for part in possible
    )
    told = " or ".join(words) or "less than nothing"
    return f"{name}: outside the interval; one part alone would have to be {told}"


def _writer(name: str) -> Any:
    writers = {"memory": format_bytes, "step_time": format_seconds, "mfu": share_text}
    return writers.get(name, lambda value: f"{value:.0f}")


def print_comparison(console: Console, document: Mapping[str, Any]) -> None:
    """Plans side by side, then every decision in which they differ."""
    plans = document["plans"]
    names = [str(index) for index, _ in enumerate(plans, start=1)]
    columns = ("step time", "slower", "tokens/s", "MFU", "memory", "fits")
    made = table("plans", "", "file", "plan", *columns)
    made.columns[1].justify = made.columns[2].justify = "left"
    for name, plan in zip(names, plans, strict=True):
        predicted = plan["predicted"]
        made.add_row(
            name,
            plan["file"],
            pin_words(plan["parallel"]),
            step_text(predicted),
            f"{plan['slower']:.1%}",
            f"{predicted['tokens_per_s']:.0f}",
            share_text(predicted["mfu"]),
            format_bytes(predicted["peak_memory_bytes"]),
            plan["verdict"],
        )
    console.print(made)
    parts = table("step time by part", "part", *names)
    for part in plans[0]["predicted"]["breakdown_s"]:
        seconds = [plan["predicted"]["breakdown_s"][part] for plan in plans]
        if any(seconds):
            parts.add_row(part.replace("_", " "), *map(format_seconds, seconds))
    console.print(parts)
    for title, key in (
        ("asked differently", "inputs"),
        ("in the words of pins", "parallel"),
        ("decisions", "decisions"),
    ):
        _print_differences(console, title, names, document[key])


def _print_differences(
    console: Console, title: str, names: Sequence[str], rows: Mapping[str, Sequence[Any]]
) -> None:
    if not rows:
        console.print(f"{title}: no difference")
        return
    made = table(title, "", *names)
    for column in made.columns[1:]:
        column.justify = "left"
    for key, values in list(rows.items())[:MOST_DECISIONS]:
        made.add_row(key, *map(_short, values))
    if len(rows) > MOST_DECISIONS:
        made.add_row(f"{len(rows) - MOST_DECISIONS} more", *("" for _ in names))
    console.print(made)


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
