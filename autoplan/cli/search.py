"""`autoplan search MODEL HARDWARE [HARDWARE...]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoplan.cli.asking import Numbers, question
from autoplan.cli.options import Asking, Output, Report
from autoplan.cli.output import (
    Progress,
    print_json,
    print_line,
    print_notes,
    screen,
    write_report,
)

if TYPE_CHECKING:
    from rich.console import Console

    from autoplan.report import Row
    from autoplan.workflow import Priced, Question, Ranking, SearchAnswer

COUNTING = "devices"
"""The goal that is answered with a ladder of sizes."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Asking):
    """What `search` takes."""

    model: Annotated[str, typer.Argument(metavar="MODEL", help="A name, config.json or folder")]
    hardware: Annotated[
        list[str],
        typer.Argument(
            metavar="HARDWARE...", help="One or more: rtx4090, rtx4090:64, a100-80g:16x8"
        ),
    ]
    goal: Annotated[
        str,
        typer.Option(
            "--goal", metavar="GOAL", help="Least time, memory, devices (how many?), cost or energy"
        ),
    ] = "time"
    top: Annotated[str, typer.Option("--top", metavar="K", help="Plans to rank")] = "5"
    output: Output = None
    report: Report = None


def search(given: SearchOptions) -> None:
    """Find the fastest plans that fit, or how many devices that takes."""
    numbers = Numbers()
    top = numbers.whole("--top", given.top)
    asked = question(given, given.model, given.hardware[0], numbers.problems)
    if len(given.hardware) > 1 or given.goal.lower() == COUNTING:
        _several(given, asked, top)
    else:
        _one(given, asked, top)


def _one(given: SearchOptions, asked: Question, top: int) -> None:
    """One machine: its plans."""
    from autoplan.workflow import plan_document, plan_search, shortlist

    progress = Progress(given.quiet)
    try:
        answer = plan_search(asked, top, progress.callback, given.goal.lower())
    finally:
        progress.clear()
    priced = [entry for entry in answer.baselines.values() if not isinstance(entry, str)]
    worth = [
        {"parallel": dict(one.priced.parallel), "command": one.command}
        for one in shortlist(asked, answer.plans, priced)
    ]
    document = {
        "plans": [plan_document(one, answer.search) for one in answer.plans],
        "search": dict(answer.search),
        "shortlist": worth,
    }

    def show(console: Console) -> None:
        _print(console, answer, worth)

    _deliver(given, document, show, answer.plans[0])


def _several(given: SearchOptions, asked: Question, top: int) -> None:
    """Several machines, or sizes of one: a row each."""
    from autoplan.workflow import plan_document, rank_machines

    progress = Progress(given.quiet)
    try:
        ranking = rank_machines(asked, given.hardware, given.goal.lower(), top, progress.callback)
    finally:
        progress.clear()
    rows = [machine.document(ranking.goal) for machine in ranking.machines]
    plans = [plan_document(answer.plans[0], answer.search) for answer in ranking.answers]
    searches: dict[str, Any] = {
        machine.spec: dict(machine.answer.search) for machine in ranking.machines if machine.answer
    }
    document = {"plans": plans, "search": searches, "machines": rows}
    if len(ranking.machines) == 1:
        document = {"plans": plans, "search": plans[0]["search"], "ladder": rows[0]["ladder"]}

    def show(console: Console) -> None:
        _print_ranking(console, ranking, rows)

    _deliver(given, document, show, ranking.answers[0].plans[0])


def _deliver(given: SearchOptions, document: Mapping[str, Any], show: Any, best: Priced) -> None:
    """Files, the document or the screen, and what to do next."""
    from autoplan.files.text import write_json
    from autoplan.workflow import with_spans

    if given.output:
        write_json(given.output, document["plans"][0])
    if given.report:
        write_report(given.report, f"{best.plan.model.name}: plans", show, with_spans(best))
    if given.json:
        print_json(document)
    elif not given.quiet:
        show(screen())
    if given.report:
        print_notes([f"wrote {given.report}"], "note", given.quiet)
    if given.output:
        notes = [f"wrote {given.output}", f"next: autoplan run {given.output} --rehearse --verify"]
        print_notes(notes, "note", given.quiet)


def _print(console: Console, answer: SearchAnswer, worth: Sequence[Mapping[str, Any]]) -> None:
    from autoplan.report import headline, print_search, print_shortlist

    best = answer.plans[0]
    print_line(console, headline(best.plan, answer.inputs.assumed))
    rows = [
        _row(str(rank), priced, tied=rank > 1 and priced.ties(best))
        for rank, priced in enumerate(answer.plans, start=1)
    ]
    baselines = {
        name: entry if isinstance(entry, str) else _row(name, entry)
        for name, entry in answer.baselines.items()
    }
    capacity = answer.inputs.hardware.device.memory
    print_search(console, rows, baselines, answer.search, capacity)
    print_shortlist(console, worth)


def _print_ranking(console: Console, ranking: Ranking, rows: Sequence[Mapping[str, Any]]) -> None:
    from autoplan.report import (
        headline,
        print_details,
        print_ladder,
        print_machines,
    )

    first = ranking.machines[0]
    best = ranking.answers[0].plans[0]
    print_line(console, headline(best.plan, first.inputs.assumed))
    for row in rows:
        if "ladder" in row:
            print_ladder(console, row["hardware"], row["ladder"])
    print_machines(console, ranking.goal, rows)
    print_details(console, best.predicted, best.plan.hardware.device.memory)


def _row(name: str, priced: Priced, tied: bool = False) -> Row:
    from autoplan.report import Row

    return Row(name, priced.parallel, priced.predicted, priced.verdict, tied)
