"""The screens of `validate`: how far predictions are off, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from autoplan.report.tables import share_text, table
from autoplan.report.words import pin_words
from autoplan.units import format_seconds

MOST_REASONS = 24
"""Reasons that a screen lists; `--json` has all of them, by run."""

Document = Mapping[str, Any]


def print_scores(console: Console, document: Document) -> None:
    """Scores of recorded runs.

    Args:
        console: where to print.
        document: what `--json` prints.
    """
    overall, told = document["overall"], document["told"]
    weighed = overall["sources"]
    console.print(
        f"{document['rows']} runs: {told['scored']} count, {told['flagged']} are flagged, "
        f"{told['apart']} are scored apart, {told['not_expressed']} are not expressed; "
        f"all = {weighed} sources weighted equally",
        soft_wrap=True,
    )
    parts = [(name, document["sources"][name]) for name in sorted(document["sources"])]
    parts += [("all", overall)] if weighed else []
    beside = [*document["apart"].items(), *document["flagged"].items()]
    _print_errors(console, "step time, predicted / measured - 1", "step_time", parts)
    _print_errors(console, "set apart: step time", "step_time", beside)
    _print_errors(console, "peak memory, predicted / measured - 1", "peak_memory", parts)
    _print_errors(console, "set apart: peak memory", "peak_memory", beside)
    _print_order(console, parts)
    _print_fits(console, [(name, score) for name, score in parts if name != "all"])
    _print_notes(console, document)


def _print_errors(
    console: Console, title: str, key: str, parts: Sequence[tuple[str, Document]]
) -> None:
    made = table(title, "", "rows", "median", "p90", "max", "bias", "within 10 %", "within 20 %")
    for name, score in parts:
        errors = score[key]
        if not errors or not errors["rows"]:
            continue
        made.add_row(
            _name(name, score),
            str(errors["rows"]),
            share_text(errors["median_abs_error"]),
            share_text(errors["p90_abs_error"]),
            share_text(errors["max_abs_error"]),
            f"{100 * errors['bias']:+.1f} %",
            share_text(errors["within_10_percent"]),
            share_text(errors["within_20_percent"]),
        )
    if made.row_count:
        console.print(made)


def _name(name: str, score: Document) -> str:
    return name if score.get("weight", 1) else f"{name} (no weight)"


def _print_order(console: Console, parts: Sequence[tuple[str, Document]]) -> None:
    """Alternatives, that is runs of equal model, machine and batch."""
    made = table(
        "order of alternatives: pairs over 5 % apart, rank correlation, regret of the best", "",
        "pairs", "right", "groups", "Spearman", "choices", "regret", "mean", "max", "up to 3 %",
        "covered",
    )  # fmt: skip
    for name, score in parts:
        groups = score["groups"]
        if not groups["pairs"] and score["interval_coverage"] is None:
            continue
        made.add_row(
            _name(name, score),
            str(groups["pairs"]),
            share_text(score["pair_order"]),
            str(groups["ranked"]),
            "-" if score["spearman"] is None else f"{score['spearman']:.2f}",
            str(groups["choices"]),
            share_text(score["regret"]),
            share_text(groups["regret_mean"]),
            share_text(groups["regret_max"]),
            share_text(groups["regret_within_3_percent"]),
            share_text(score["interval_coverage"]),
        )
    if made.row_count:
        console.print(made)


def _print_fits(console: Console, parts: Sequence[tuple[str, Document]]) -> None:
    made = table(
        "runs that fit or ran out of memory", "", "rows", "out of memory", "agreement",
        "false fits", "agreement at the limit", "false fits at the limit",
    )  # fmt: skip
    for name, score in parts:
        fits = score["fits"]
        if fits:
            made.add_row(
                name,
                str(fits["rows"]),
                str(fits["out_of_memory"]),
                *(share_text(n) for at in ("headroom", "limit") for n in fits[at].values()),
            )
    if made.row_count:
        console.print(made)


def _print_notes(console: Console, document: Document) -> None:
    reasons = Counter((row["source"], row["reason"]) for row in document["not_expressed"])
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    made = table("not expressed", "source and reason", "runs")
    for (source, reason), count in ordered[:MOST_REASONS]:
        made.add_row(f"{source}: {reason}", str(count))
    if len(ordered) > MOST_REASONS:
        rest = sum(count for _, count in ordered[MOST_REASONS:])
        made.add_row(f"{len(ordered) - MOST_REASONS} more, which --json lists by run", str(rest))
    if ordered:
        console.print(made)
    for line in _notes(document):
        console.print(line, soft_wrap=True)


def _notes(document: Document) -> Iterator[str]:
    for name, score in document["sources"].items():
        if score["unweighted_because"]:
            yield f"{name} has no weight: {score['unweighted_because']}"
    for name, part in (*document["apart"].items(), *document["flagged"].items()):
        if part["why"]:
            yield f"{name}: {part['why']}"


def print_validation(console: Console, document: Document) -> None:
    """Plans that were run: each measured step beside the predicted one, whole and by part.

    Args:
        console: where to print.
        document: what `--json` prints.
    """
    made = table("step time", "plan", "", "predicted", "measured", "error", "in interval")
    made.columns[1].justify = "left"
    for row in document["plans"]:
        made.add_row(
            row["file"],
            pin_words(row["parallel"]),
            format_seconds(row["predicted_step_time_s"]),
            format_seconds(row["measured_step_time_s"]),
            f"{100 * row['error']:+.1f} %",
            "yes" if row["within"] else "no",
        )
    console.print(made)
    kinds = dict.fromkeys(kind for row in document["plans"] for kind in row["parts"])
    made = table("busy time by kind of action: predicted / measured", "plan", *kinds)
    for row in document["plans"]:
        made.add_row(row["file"], *(_both(row["parts"].get(kind)) for kind in kinds))
    console.print(made)
    errors, words = document["step_time"], []
    words.append(f"median error {share_text(errors['median_abs_error'])}")
    if document["pair_order"] is not None:
        words.append(f"pairs ordered rightly {share_text(document['pair_order'])}")
    if document["regret"] is not None:
        words.append(f"regret of the predicted best {share_text(document['regret'])}")
    console.print("; ".join(words), soft_wrap=True)


def _both(part: Mapping[str, float] | None) -> str:
    if part is None:
        return "-"
    return f"{format_seconds(part['predicted'])} / {format_seconds(part['measured'])}"
