"""`autoplan explain PLAN`, or MODEL HARDWARE --pin, or --config FILE [MODEL] HARDWARE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli.asking import question
from autoplan.cli.options import Asking, Machine, Report, Subject
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

    from autoplan.workflow import Explanation


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(Asking):
    """What `explain` takes."""

    subject: Subject
    hardware: Machine = None
    why_not: Annotated[
        str | None,
        typer.Option("--why-not", metavar="K=V,...", help="Pins of a plan to compare with"),
    ] = None
    measured: Annotated[
        str | None,
        typer.Option(
            "--measured", metavar="NAME=VALUE,...",
            help="step_time=1.2s, mfu=45%, tokens_per_s=12000, memory=61GiB",
        ),
    ] = None  # fmt: skip
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE",
            help="Explain [MODEL] HARDWARE as a launch script of Megatron-LM, a TOML of "
            "torchtitan, a JSON of DeepSpeed or a training log runs it; search for a better plan",
        ),
    ] = None  # fmt: skip
    report: Report = None


def explain(given: ExplainOptions) -> None:
    """Say where time and memory of a plan go, and what would help."""
    from autoplan.workflow import plan_document, plan_explain

    asked = question(given, given.subject, given.hardware)
    progress = Progress(given.quiet)
    try:
        done = plan_explain(
            asked, given.why_not or "", given.measured, given.config or "", progress.callback
        )
    finally:
        progress.clear()
    target = done.target
    print_notes(target.warnings, "warning", given.quiet)

    def show(console: Console) -> None:
        _print(console, done)

    if given.report:
        title = f"{target.priced.plan.model.name}: a plan explained"
        write_report(given.report, title, show, target.priced.timeline)
    if given.json:
        document = plan_document(target.priced, target.search)
        print_json({**document, "explanation": dict(done.document)})
    elif not given.quiet:
        show(screen())
    if given.report:
        print_notes([f"wrote {given.report}"], "note", given.quiet)


def _print(console: Console, done: Explanation) -> None:
    from autoplan.report import (
        Row,
        headline,
        print_better,
        print_config,
        print_explanation,
        print_simulation,
    )

    priced = done.target.priced
    print_line(console, headline(priced.plan, done.target.assumed))
    if "config" in done.document:
        print_config(console, done.document["config"])
    row = Row("", priced.parallel, priced.predicted, priced.verdict)
    print_simulation(console, row, priced.plan.hardware.device.memory)
    print_explanation(console, priced.predicted, done.document)
    if "better" in done.document:
        print_better(console, row, done.document["config"], done.document["better"])
