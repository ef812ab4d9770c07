"""A timeline as a picture: one lane a stream of a stage, time to the right."""

from __future__ import annotations

from html import escape

from autoplan.ir.timeline import Span, Timeline
from autoplan.units import format_seconds

WIDTH, LANE, LABEL, AXIS = 1100, 14, 170, 22
"""Pixels: of the lanes, of a lane's height, of the labels at the left, of the axis below."""
MOST_STAGES = 16
"""Stages that are drawn; of more, the first and last."""
NARROWEST = 0.15
"""Pixels below which neighbouring spans of one colour are drawn as one."""
TICKS = 8
COLOURS = {
    "F": "#4c8ed9", "B": "#e39a3b", "GATHER": "#58a55c", "REDUCE": "#2f7d6b", "SEND": "#9a6fc4",
    "RECV": "#c4a6de", "NORM": "#b94a48", "STEP": "#b94a48",
}  # fmt: skip
"""Kind of action -> colour; others are grey."""
WORDS = {
    "F": "forward", "B": "backward", "GATHER": "gather parameters", "REDUCE": "reduce gradients",
    "SEND": "send", "RECV": "receive", "STEP": "norm and optimizer",
}  # fmt: skip
OTHER = "#9aa3ad"


def draw_timeline(timeline: Timeline) -> str:
    """An SVG of a simulated step, or "" where the timeline has no spans."""
    lanes: dict[tuple[int, str], list[Span]] = {}
    stages = sorted({span.stage for span in timeline.spans})
    shown = _shown(stages)
    for span in timeline.spans:
        if span.stage in shown:
            lanes.setdefault((span.stage, span.stream), []).append(span)
    if not lanes:
        return ""
    scale = WIDTH / max(timeline.step_time, max(span.end for span in timeline.spans))
    parts = []
    for index, (stage, stream) in enumerate(sorted(lanes)):
        top = index * LANE
        label = escape(f"stage {stage} {stream}")
        parts.append(f'<text x="0" y="{top + LANE - 4}">{label}</text>')
        parts += _lane(lanes[stage, stream], top, scale)
    height = len(lanes) * LANE
    parts += _axis(timeline.step_time, scale, height)
    left_out = len(stages) - len(shown)
    note = f"<p>{left_out} stages in the middle are left out</p>" if left_out else ""
    size = f"0 0 {LABEL + WIDTH} {height + AXIS}"
    return (
        f'<h2>simulated step</h2>\n{_legend()}\n<svg viewBox="{size}" role="img" '
        f'font-size="10" font-family="system-ui, sans-serif">\n'
        + "\n".join(parts)
        + f"\n</svg>{note}"
    )


def _shown(stages: list[int]) -> set[int]:
    half = MOST_STAGES // 2
    return set(stages if len(stages) <= MOST_STAGES else [*stages[:half], *stages[-half:]])


def _lane(spans: list[Span], top: int, scale: float) -> list[str]:
    """Rectangles; spans that touch and look alike are one."""
    merged: list[tuple[str, float, float, str]] = []
    for span in sorted(spans, key=lambda span: span.start):
        colour = COLOURS.get(span.name.partition(" ")[0], OTHER)
        if merged:
            last, start, end, name = merged[-1]
            narrow = (span.end - start) * scale < NARROWEST * 10
            touches = (span.start - end) * scale < NARROWEST and narrow
            if last == colour and touches:
                merged[-1] = (last, start, max(end, span.end), name)
                continue
        merged.append((colour, span.start, span.end, span.name))
    return [
        f'<rect x="{LABEL + start * scale:.2f}" y="{top + 1}" height="{LANE - 2}" '
        f'width="{max((end - start) * scale, 0.1):.2f}" fill="{colour}">'
        f"<title>{escape(name)}: {format_seconds(end - start)}</title></rect>"
        for colour, start, end, name in merged
    ]


def _axis(seconds: float, scale: float, top: int) -> list[str]:
    made = []
    for tick in range(TICKS + 1):
        at, anchor = seconds * tick / TICKS, "end" if tick == TICKS else "middle"
        place = f'x="{LABEL + at * scale:.1f}" y="{top + 14}" text-anchor="{anchor}"'
        made.append(f"<text {place}>{format_seconds(at)}</text>")
    return made


def _legend() -> str:
    marks = (
        f'<span style="color:{COLOURS[kind]}">&#9632;</span> {word}' for kind, word in WORDS.items()
    )
    return f"<p>{' &nbsp; '.join(marks)}</p>"
