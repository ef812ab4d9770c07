"""How far are predictions of published runs off? The README's tables, as Markdown.

    python scripts/published_accuracy.py --runs FILE... [--rows FILE]

FILE holds recorded runs as `autoplan validate --help` describes them; `--rows` keeps what was
predicted for each. `published_accuracy_untuned.md` beside this script is what it printed before any
constant was fitted to such runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoplan.errors import InputError
from autoplan.validate.score import Judged
from autoplan.validate.statistics import errors_of
from autoplan.workflow import Judgement, judge_runs

Table = Sequence[Sequence[str]]
Scores = Mapping[str, Mapping[str, Any]]

NAMED: Mapping[str, Callable[[Judged], bool]] = {
    "Megatron, sequence-parallel and selective recompute": lambda one: (
        one.source == "korthikanti22" and one.record.id.endswith("seqsel")
    ),
    "vTrain, multi-node (Calculon: mean 11.1 %, median 7.1 %)": lambda one: (
        one.source == "vtrain-multi"
    ),
}
"""Runs that other predictors have been judged by."""


def percent(value: float | None, signed: bool = False) -> str:
    """`4.9 %`, or a dash."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def markdown(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; "" without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    head = [f"| {' | '.join(header)} |", "|---|" + "--:|" * (len(header) - 1)]
    return "\n".join([f"{title}\n", *head, *lines, ""])


def errors_table(title: str, key: str, scores: Scores) -> str:
    """Errors of step time or memory."""
    header = ("", "runs", "median", "p90", "mean", "max", "bias", "within 10 %", "within 20 %")
    rows = []
    for name, score in scores.items():
        errors = score[key]
        if errors and errors["rows"]:
            sizes = ("median_abs_error", "p90_abs_error", "mean_abs_error", "max_abs_error")
            shares = ("within_10_percent", "within_20_percent")
            rows.append(
                [
                    name,
                    str(errors["rows"]),
                    *(percent(errors[size]) for size in sizes),
                    percent(errors["bias"], signed=True),
                    *(percent(errors[share]) for share in shares),
                ]
            )
    return markdown(title, header, rows)


def order_table(scores: Scores) -> str:
    """Order of alternatives, and intervals."""
    header = (
        "", "pairs", "ordered rightly", "groups", "Spearman", "choices", "regret median", "mean",
        "max", "up to 3 %", "in the 80 % interval",
    )  # fmt: skip
    rows = []
    for name, score in scores.items():
        groups, correlation = score["groups"], score["spearman"]
        regrets = ("regret_mean", "regret_max", "regret_within_3_percent")
        if groups["pairs"] or score["interval_coverage"] is not None:
            rows.append(
                [
                    name,
                    str(groups["pairs"]),
                    percent(score["pair_order"]),
                    str(groups["ranked"]),
                    "-" if correlation is None else f"{correlation:.2f}",
                    str(groups["choices"]),
                    percent(score["regret"]),
                    *(percent(groups[key]) for key in regrets),
                    percent(score["interval_coverage"]),
                ]
            )
    title = "Order of alternatives (equal model, machine and batch; pairs more than 5 % apart)"
    return markdown(title, header, rows)


def fits_table(scores: Scores) -> str:
    """Fits or out of memory."""
    header = (
        "", "runs", "out of memory", "agreement", "false fits", "agreement without headroom",
        "false fits without headroom",
    )  # fmt: skip
    rows = []
    for name, score in scores.items():
        fits = score["fits"]
        if fits:
            shares = (percent(share) for at in ("headroom", "limit") for share in fits[at].values())
            rows.append([name, str(fits["rows"]), str(fits["out_of_memory"]), *shares])
    return markdown("Fits or out of memory", header, rows)


def named_table(judgement: Judgement) -> str:
    """Runs that other predictors have been judged by."""
    rows = []
    for name, holds in NAMED.items():
        some = [one.error for one in judgement.scores.judged if holds(one)]
        errors = errors_of([error for error in some if error is not None])
        if errors.rows:
            sizes = (errors.mean_abs_error, errors.median_abs_error, errors.max_abs_error)
            rows.append([name, f"{errors.rows} of {len(some)}", *map(percent, sizes)])
    return markdown("Runs that others were judged by", ("", "runs", "mean", "median", "max"), rows)


def report(judgement: Judgement) -> str:
    """All tables."""
    document = judgement.document
    told, overall = document["told"], document["overall"]
    named = {
        name if score["weight"] else f"{name} (no weight)": score
        for name, score in document["sources"].items()
    }
    weighed = {**named, "**all, sources weighted equally**": overall}
    beside = {**document["apart"], **document["flagged"]}
    reasons = Counter((row["source"], row["reason"]) for row in document["not_expressed"])
    missing = [[source, str(n), reason] for (source, reason), n in sorted(reasons.items())]
    return "\n".join(
        filter(
            None,
            (
                f"{document['rows']} runs: {told['scored']} count, {told['flagged']} are flagged, "
                f"{told['apart']} are scored apart, {told['not_expressed']} are not expressed.\n",
                errors_table("Step time, predicted / measured - 1", "step_time", weighed),
                errors_table("Peak memory, predicted / measured - 1", "peak_memory", weighed),
                order_table(weighed),
                fits_table(named),
                named_table(judgement),
                errors_table("Step time of what is set apart", "step_time", beside),
                markdown("Not expressed", ("source", "runs", "reason"), missing),
            ),
        )
    )


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--rows", metavar="FILE", help="write a JSON line for each run")
    given = parser.parse_args()
    began = time.monotonic()
    try:
        judgement = judge_runs(given.runs, _tell if sys.stderr.isatty() else None)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if given.rows:
        lines = (json.dumps(row, allow_nan=False) + "\n" for row in judgement.rows)
        Path(given.rows).write_text("".join(lines))
    sys.stderr.write(f"\n{time.monotonic() - began:.0f} s\n")
    print(report(judgement))
    return 0


def _tell(text: str) -> None:
    sys.stderr.write(f"\r{text}")


if __name__ == "__main__":
    sys.exit(main())
