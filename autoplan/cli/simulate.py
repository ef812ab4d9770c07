"""`autoplan simulate PLAN`, or PROGRAM HARDWARE, or MODEL HARDWARE --pin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli.asking import question
from autoplan.cli.options import Asking, Machine, Output, Report, Subject
from autoplan.cli.output import print_json, print_line, print_notes, screen, write_report

if TYPE_CHECKING:
    from rich.console import Console

    from autoplan.workflow import Simulation


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(Asking):
    """What `simulate` takes."""

    subject: Subject
    hardware: Machine = None
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="Write the timeline for chrome://tracing"),
    ] = None
    output: Output = None
    report: Report = None


def simulate(given: SimulateOptions) -> None:
    """Predict time and memory of one plan."""
    from autoplan.errors import InputError, Problem
    from autoplan.export import chrome_trace
    from autoplan.files.text import write_json
    from autoplan.workflow import plan_document, plan_simulate

    done = plan_simulate(question(given, given.subject, given.hardware))
    target = done.target
    document = {"predicted": dict(done.predicted)}
    if target is not None:
        document = plan_document(target.priced, target.search)
        print_notes(target.warnings, "warning", given.quiet)
    elif given.output:
        raise InputError(Problem("--output", "", "a program", "a plan: a program is none"))
    if given.output:
        write_json(given.output, document)
    if given.trace:
        write_json(given.trace, chrome_trace(done.timeline))
    if given.report:
        _write_report(given.report, done)
    if given.json:
        print_json(document)
    elif not given.quiet:
        _print(screen(), done)
    written = [f"wrote {path}" for path in (given.output, given.trace, given.report) if path]
    print_notes(written, "note", given.quiet)


def _write_report(path: str, done: Simulation) -> None:
    def show(console: Console) -> None:
        _print(console, done)

    write_report(path, f"{done.title}: a simulated step", show, done.timeline)


def _print(console: Console, done: Simulation) -> None:
    from autoplan.report import Row, headline, print_simulation

    target = done.target
    if target is None:
        print_line(console, done.title)
        print_simulation(console, Row("", {}, done.predicted, ""), done.capacity)
        return
    priced = target.priced
    print_line(console, headline(priced.plan, target.assumed))
    row = Row("", priced.parallel, priced.predicted, priced.verdict)
    print_simulation(console, row, done.capacity)
