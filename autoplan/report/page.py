"""Screens as one HTML file: whatever prints on a console prints on a page.

The file stands alone: no script, no style sheet and no picture from elsewhere.
"""

from __future__ import annotations

from html import escape
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem;
       color: #1b1f24; background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #d8dee4; vertical-align: top; }
th { text-align: left; font-weight: 600; } .right { text-align: right; }
p { white-space: pre-wrap; } svg { width: 100%; height: auto; }
"""


class Page(Console):
    """A console whose tables and lines become HTML.

    Args:
        title: of the page.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._parts: list[str] = []

    def print(self, *objects: Any, **_options: Any) -> None:
        """Add tables and lines of text."""
        for item in objects:
            self._parts.append(table_html(item) if isinstance(item, Table) else _line(item))

    def add(self, html: str) -> None:
        """Add what is HTML already."""
        self._parts.append(html)

    def html(self) -> str:
        """The whole document."""
        title = escape(self._title)
        body = "\n".join(self._parts)
        return (
            f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
            f"<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
        )


def _line(item: object) -> str:
    text = str(item).strip("\n")
    return f"<p>{escape(text)}</p>" if text else ""


def table_html(table: Table) -> str:
    """A table, with its title as a heading."""
    sides = ["right" if column.justify == "right" else "" for column in table.columns]
    names = [_plain(column.header) for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = "\n".join(_row("td", [_plain(cell) for cell in row], sides) for row in rows)
    title = f"<h2>{escape(_plain(table.title))}</h2>\n" if table.title else ""
    return f"{title}<table>\n{_row('th', names, sides)}\n{body}\n</table>"


def _row(tag: str, cells: list[str], sides: list[str]) -> str:
    made = "".join(
        f'<{tag} class="{side}">{escape(cell)}</{tag}>'
        if side
        else f"<{tag}>{escape(cell)}</{tag}>"
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{made}</tr>"


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
