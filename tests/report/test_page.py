"""Screens as HTML: everything that prints on a console, alone in one file."""

from __future__ import annotations

from html.parser import HTMLParser

from autoplan.ir.timeline import Span, Timeline
from autoplan.report import Page, draw_timeline
from autoplan.report.tables import table

VOID = ("meta", "rect")


class Nesting(HTMLParser):
    """Fails on tags that do not close, and collects attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names += [name for name, _ in attrs]
        if tag not in VOID or (tag == "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page() -> str:
    made = table("a <title>", "name", "value")
    made.add_row("x & y", "1 < 2")
    shown = Page("plans <of> a model")
    shown.print(made)
    shown.print("a line", soft_wrap=True)
    shown.add(draw_timeline(timeline(3)))
    return shown.html()


def timeline(stages: int, actions: int = 4) -> Timeline:
    spans = [
        Span(stage, "compute", f"{'FB'[i % 2]} <layer> i{i}", float(i), i + 1.0)
        for stage in range(stages)
        for i in range(actions)
    ]
    return Timeline(float(actions), tuple(spans))


def test_text_is_escaped_and_tags_close():
    text = page()
    assert "x &amp; y" in text
    assert "1 &lt; 2" in text
    assert "<title>plans &lt;of&gt; a model</title>" in text
    Nesting(text.replace('<meta charset="utf-8">', ""))


def test_a_page_needs_nothing_else():
    names = Nesting(page().replace('<meta charset="utf-8">', "")).names
    assert not {"src", "href", "onclick"}.intersection(names)
    assert "http" not in page()
    assert "<script" not in page()


def test_a_timeline_has_a_lane_a_stream_and_stays_small():
    drawn = draw_timeline(timeline(3))
    assert [f"stage {stage} compute" in drawn for stage in range(4)] == [True] * 3 + [False]
    assert drawn.count("<rect") == 12
    many = draw_timeline(timeline(40, 2))
    assert "24 stages in the middle are left out" in many
    fine = draw_timeline(timeline(1, 20_000))
    assert len(fine) < 4_000_000


def test_a_timeline_without_spans_is_not_drawn():
    assert draw_timeline(Timeline(1.0)) == ""
