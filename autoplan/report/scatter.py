"""Predicted against measured as a picture: a panel a source, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from math import ceil, log10
from typing import Any

from autoplan.units import format_bytes, format_seconds

PANEL, MARGIN, ACROSS = 250, 46, 4
"""Pixels: side of a panel, room around it for its words; and panels in a row."""
BAND = 1.2
"""The grey band: off by up to 20 % either way."""
COUNTS, SET_APART = "#4c8ed9", "#b94a48"
DOT = 1.8
"""Radius in pixels."""


def draw_scatter(rows: Sequence[Mapping[str, Any]]) -> str:
    """Two SVGs: step times, and peaks of memory where they were measured; "" without either.

    Args:
        rows: of a judgement, each with id, source, remark and its predicted and measured numbers.
    """
    times = _by_source(rows, "predicted_step_time_s", "measured_step_time_s")
    peaks = _by_source(
        [{**row, "first": (row["predicted_peak_bytes"] or [None])[0]} for row in rows],
        "first", "measured_peak_bytes",
    )  # fmt: skip
    return "\n".join(
        _grid(title, groups, words)
        for title, groups, words in (
            ("step time, measured (right) against predicted (up)", times, format_seconds),
            ("peak memory, measured (right) against predicted (up)", peaks, format_bytes),
        )
        if groups
    )


Point = tuple[float, float, str, bool]
"""(measured, predicted, id, whether it counts)."""


def _by_source(
    rows: Sequence[Mapping[str, Any]], predicted: str, measured: str
) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for row in rows:
        if row[predicted] and row[measured]:
            point = (row[measured], row[predicted], row["id"], not row["remark"])
            found.setdefault(row["source"], []).append(point)
    return dict(sorted(found.items()))


def _grid(title: str, groups: Mapping[str, Sequence[Point]], words: Callable[[float], str]) -> str:
    cell = PANEL + MARGIN
    parts: list[str] = []
    for index, (source, points) in enumerate(groups.items()):
        left, top = index % ACROSS * cell, index // ACROSS * cell
        panel = "\n".join(_panel(source, points, words))
        parts.append(f'<g transform="translate({left},{top})">\n{panel}\n</g>')
    size = f"0 0 {ACROSS * cell} {ceil(len(groups) / ACROSS) * cell}"
    return (
        f"<h2>{escape(title)}</h2>\n<p>"
        f'<span style="color:{COUNTS}">&#9679;</span> counts &nbsp; '
        f'<span style="color:{SET_APART}">&#9679;</span> set apart; grey: within 20 %</p>\n'
        f'<svg viewBox="{size}" role="img" font-size="11" font-family="system-ui, sans-serif">\n'
        + "\n".join(parts)
        + "\n</svg>"
    )


def _panel(source: str, points: Sequence[Point], words: Callable[[float], str]) -> Iterator[str]:
    """One source; both axes span the same values, so that exact predictions lie on the diagonal."""
    values = [value for point in points for value in point[:2]]
    low, high = log10(min(values)) - 0.05, log10(max(values)) + 0.05

    def at(value: float) -> float:
        return (log10(value) - low) / (high - low) * PANEL

    def height(value: float) -> float:
        return MARGIN / 2 + PANEL - at(value)

    bottom, off = MARGIN / 2 + PANEL, log10(BAND) / (high - low) * PANEL
    yield f'<text x="0" y="14" font-weight="600">{escape(source)} ({len(points)})</text>'
    yield (
        f'<rect x="0" y="{MARGIN / 2}" width="{PANEL}" height="{PANEL}" fill="none" '
        f'stroke="#d8dee4"/>'
    )
    edge = PANEL - off
    corners = [(0, 0), (0, off), (edge, PANEL), (PANEL, PANEL), (PANEL, edge), (off, 0)]
    shape = " ".join(f"{x:.1f},{bottom - y:.1f}" for x, y in corners)
    yield f'<polygon points="{shape}" fill="#eef1f4"/>'
    for x, value, anchor in ((0, 10**low, "start"), (PANEL, 10**high, "end")):
        label = escape(words(value))
        yield f'<text x="{x}" y="{bottom + 13}" text-anchor="{anchor}">{label}</text>'
    for measured, predicted, name, counts in points:
        note = f"{name}: measured {words(measured)}, predicted {words(predicted)}"
        yield (
            f'<circle cx="{at(measured):.1f}" cy="{height(predicted):.1f}" r="{DOT}" '
            f'fill="{COUNTS if counts else SET_APART}" fill-opacity="0.6">'
            f"<title>{escape(note)}</title></circle>"
        )
