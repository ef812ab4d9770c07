"""Where output goes: data to stdout, everything else to stderr, progress on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from autoplan.ir.timeline import Timeline

WIDE = 160
"""Columns of a table that is not on a terminal."""
_CLEAR_LINE = "\r\x1b[K"


def screen() -> Console:
    """The console of tables, on stdout; colours only on a terminal and without NO_COLOR."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDE
    return Console(width=width, highlight=False, markup=False, soft_wrap=False)


def print_line(console: Console, text: str) -> None:
    """A line of text, which a terminal may wrap but a file does not."""
    console.print(text, soft_wrap=True)


def print_json(document: Any) -> None:
    """The one JSON document of `--json`."""
    from autoplan.files.text import format_json

    sys.stdout.write(format_json(document))


def print_notes(notes: Iterable[str], kind: str, quiet: bool) -> None:
    """Lines for people beside the data: `warning: ...`."""
    if not quiet:
        for note in notes:
            sys.stderr.write(f"{kind}: {note}\n")


def write_report(
    path: str, title: str, show: Callable[[Console], None], *timelines: Timeline
) -> None:
    """Write a screen and pictures of simulated steps as one HTML file.

    Args:
        path: of the file, which is complete or untouched.
        title: of the page.
        show: prints the screen.
        timelines: that are drawn; those without spans are not.
    """
    from autoplan.files.text import write_text
    from autoplan.report import Page, draw_timeline

    page = Page(title)
    show(page)
    for timeline in timelines:
        page.add(draw_timeline(timeline))
    write_text(path, page.html())


class Progress:
    """One line on stderr that tells how far a search is, and vanishes."""

    def __init__(self, quiet: bool) -> None:
        self._shows = sys.stderr.isatty() and not quiet

    @property
    def callback(self) -> Callable[[str], None] | None:
        """What a verb may call, or None where nobody looks."""
        return self._write if self._shows else None

    def clear(self) -> None:
        """Remove the line."""
        if self._shows:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{_CLEAR_LINE}{text}")
        sys.stderr.flush()
