"""`autoplan search MODEL HARDWARE`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli.asking import Numbers, question
from autoplan.cli.options import Asking, Output
from autoplan.cli.output import Progress, print_json, print_line, print_notes, screen

if TYPE_CHECKING:
    from autoplan.report import Row
    from autoplan.workflow import Priced, SearchAnswer


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Asking):
    """What `search` takes."""

    model: Annotated[str, typer.Argument(metavar="MODEL", help="A name, config.json or folder")]
    hardware: Annotated[
        str, typer.Argument(metavar="HARDWARE", help="rtx4090, rtx4090:64, a100-80g:16x8")
    ]
    top: Annotated[str, typer.Option("--top", metavar="K", help="Plans to rank")] = "5"
    output: Output = None


def search(given: SearchOptions) -> None:
    """Find the fastest plans that fit."""
    from autoplan.files.text import write_json
    from autoplan.workflow import plan_document, plan_search

    progress, numbers = Progress(given.quiet), Numbers()
    top = numbers.whole("--top", given.top)
    asked = question(given, given.model, given.hardware, numbers.problems)
    try:
        answer = plan_search(asked, top, progress.callback)
    finally:
        progress.clear()
    if given.output:
        write_json(given.output, plan_document(answer.plans[0], answer.search))
    if given.json:
        plans = [plan_document(priced, answer.search) for priced in answer.plans]
        print_json({"plans": plans, "search": dict(answer.search)})
    elif not given.quiet:
        _print(answer)
    if given.output:
        notes = [f"wrote {given.output}", f"next: autoplan run {given.output} --rehearse --verify"]
        print_notes(notes, "note", given.quiet)


def _print(answer: SearchAnswer) -> None:
    from autoplan.report import headline, print_search

    best, console = answer.plans[0], screen()
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


def _row(name: str, priced: Priced, tied: bool = False) -> Row:
    from autoplan.report import Row

    return Row(name, priced.parallel, priced.predicted, priced.verdict, tied)
