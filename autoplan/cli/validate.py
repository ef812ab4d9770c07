"""`autoplan validate PLAN...`, or --runs FILE..."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from autoplan.cli.asking import Numbers
from autoplan.cli.options import Common
from autoplan.cli.output import Progress, print_json, print_notes, screen

if TYPE_CHECKING:
    from autoplan.report import Page


class ValidateCommand(TyperCommand):
    """A command whose help ends with the format of recorded runs."""

    def format_epilog(self, _context: Any, formatter: Any) -> None:
        """Write the format; it is read only when somebody asks."""
        from autoplan.files.runs import RUN_FORMAT

        formatter.write(f"\n{RUN_FORMAT}")


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(Common):
    """What `validate` takes."""

    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="PLAN...", help="Plan files, run here; with --runs, more of those"),
    ] = None
    runs: Annotated[
        list[str] | None,
        typer.Option("--runs", metavar="FILE...", help="Recorded runs (.jsonl, .csv), or logs"),
    ] = None
    steps: Annotated[
        str, typer.Option("--steps", metavar="N", help="Of each plan that is run here")
    ] = "5"
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write a JSON line for each run"),
    ] = None
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Write an HTML page with scatter plots"),
    ] = None


def validate(given: ValidateOptions) -> None:
    """Compare predictions with measurements: of plans run here, or of recorded runs.

    Recorded runs are scored by source: errors of step time and memory, fit or out of memory, order
    of alternatives, coverage of intervals. Runs that are set apart or cannot be expressed are
    listed with the reason.
    """
    if given.runs is not None:
        _judge(given, [*given.runs, *(given.files or ())])
    else:
        _measure(given, given.files or [])


def _judge(given: ValidateOptions, paths: Sequence[str]) -> None:
    """Recorded runs."""
    from autoplan.report import Page, draw_scatter, print_scores
    from autoplan.workflow import judge_runs

    progress = Progress(given.quiet)
    try:
        done = judge_runs(paths, progress.callback)
    finally:
        progress.clear()
    document, rows = done.document, done.rows
    page = Page("predicted and measured")
    if given.report:
        print_scores(page, document)
        page.add(draw_scatter(rows))
    _write(given, rows, page)
    if given.json:
        print_json(document)
    elif not given.quiet:
        print_scores(screen(), document)


def _measure(given: ValidateOptions, paths: Sequence[str]) -> None:
    """Plans."""
    from autoplan.report import Page, print_validation
    from autoplan.workflow import validate_plans

    numbers, progress = Numbers(), Progress(given.quiet)
    steps = numbers.whole("--steps", given.steps)
    try:
        done = validate_plans(paths, steps, numbers.problems, progress.callback)
    finally:
        progress.clear()
    print_notes(done.notes, "note", given.quiet)
    document = done.document
    page = Page("plans, predicted and measured")
    if given.report:
        print_validation(page, document)
    _write(given, document["plans"], page)
    if given.json:
        print_json(document)
    elif not given.quiet:
        print_validation(screen(), document)


def _write(given: ValidateOptions, rows: Sequence[Mapping[str, Any]], page: Page) -> None:
    """The files that were asked for."""
    from autoplan.files.text import write_text

    if given.output:
        lines = (json.dumps(row, allow_nan=False, ensure_ascii=False) for row in rows)
        write_text(given.output, "".join(f"{line}\n" for line in lines))
    if given.report:
        write_text(given.report, page.html())
    written = [f"wrote {path}" for path in (given.output, given.report) if path]
    print_notes(written, "note", given.quiet)
