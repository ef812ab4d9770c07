"""`autoplan show`: a model, machine, stack or plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from autoplan.cli.options import Common, DownloadFlag
from autoplan.cli.output import print_json, print_notes, screen


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Common):
    """What `show` takes."""

    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A model, machine, stack or file; none: a list")
    ] = ""
    download: DownloadFlag = False


def show(given: ShowOptions) -> None:
    """Print a model, machine, stack or plan, or a list."""
    from autoplan.report import print_shown
    from autoplan.workflow import show as find

    shown = find(given.name, given.download)
    print_notes(shown.warnings, "warning", given.quiet)
    if given.json:
        print_json(dict(shown.document))
    elif not given.quiet:
        print_shown(screen(), shown.kind, shown.document)
