"""`autoplan calibrate RUNS... --hardware NAME --stack NAME -o FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from autoplan.cli.options import Common
from autoplan.cli.output import Progress, print_json, print_notes, screen


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Common):
    """What `calibrate` takes."""

    runs: Annotated[
        list[str], typer.Argument(metavar="RUNS...", help="Recorded runs (.jsonl, .csv), or logs")
    ]
    hardware: Annotated[
        str, typer.Option("--hardware", metavar="NAME", help="Hardware profile that the runs used")
    ]
    stack: Annotated[
        str, typer.Option("--stack", metavar="NAME", help="Stack profile that the runs used")
    ] = "autoplan"
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE",
            help="Write the fitted stack here, and the machine beside it (.hardware.json)",
        ),
    ] = None  # fmt: skip


def calibrate(given: CalibrateOptions) -> None:
    """Fit the constants of a machine and a stack to recorded runs.

    Says which constants the runs can tell, and leaves the others as they are. Errors are shown
    before and after, and for every model with constants fitted without it.
    """
    from autoplan.report import print_calibration
    from autoplan.workflow import calibrate_runs, write_profiles

    progress = Progress(given.quiet)
    try:
        done = calibrate_runs(given.runs, given.hardware, given.stack, progress.callback)
    finally:
        progress.clear()
    written = write_profiles(done, given.output) if given.output else ()
    if given.json:
        print_json(done.document)
    elif not given.quiet:
        print_calibration(screen(), done.document)
    print_notes([f"wrote {path}" for path in written], "note", given.quiet)
