"""`autoplan compare PLAN PLAN...`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli.options import Common, Report
from autoplan.cli.output import print_json, print_notes, screen, write_report

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Common):
    """What `compare` takes."""

    plans: Annotated[list[str], typer.Argument(metavar="PLAN...", help="Two or more plan files")]
    report: Report = None


def compare(given: CompareOptions) -> None:
    """Show in which decisions plans differ, and what that costs."""
    from autoplan.report import print_comparison
    from autoplan.workflow import plan_compare, with_spans

    done = plan_compare(given.plans)
    print_notes(done.warnings, "warning", given.quiet)
    document = done.document

    def show(console: Console) -> None:
        print_comparison(console, document)

    if given.report:
        write_report(given.report, "plans compared", show, *map(with_spans, done.plans))
    if given.json:
        print_json(document)
    elif not given.quiet:
        show(screen())
    if given.report:
        print_notes([f"wrote {given.report}"], "note", given.quiet)
