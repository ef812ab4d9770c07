"""Scatter plots: every measured run is a dot, exact predictions lie on the diagonal."""

from __future__ import annotations

import re

import pytest

from autoplan.report import draw_scatter


def row(source: str, predicted: float | None, measured: float | None, **more) -> dict:
    return {
        "id": f"{source}-1", "source": source, "remark": "", "predicted_step_time_s": predicted,
        "measured_step_time_s": measured, "predicted_peak_bytes": [], "measured_peak_bytes": None,
        **more,
    }  # fmt: skip


def dots(svg: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', svg)
    return [(float(x), float(y)) for x, y in found]


def test_exact_predictions_lie_on_the_diagonal():
    places = dots(draw_scatter([row("a", t, t) for t in (0.1, 1.0, 7.0)]))
    assert len({round(x + y) for x, y in places}) == 1
    (x, y), *_ = dots(draw_scatter([row("a", 2.0, 1.0), row("a", 1.0, 1.0)]))
    assert x + y < places[0][0] + places[0][1], "too large a prediction lies above"


def test_each_source_has_a_panel_and_each_run_a_dot_that_says_what_it_is():
    rows = [row("a<b", 1.0, 2.0), row("c", 1.0, 1.0, remark="stalled"), row("c", None, 1.0)]
    svg = draw_scatter(rows)
    assert svg.count("<polygon") == 2
    assert len(dots(svg)) == 2
    assert "a&lt;b (1)" in svg
    assert "a&lt;b-1: measured 2 s, predicted 1 s" in svg
    assert "#b94a48" in svg.partition("<svg")[2]


def test_memory_has_a_picture_where_it_was_measured():
    assert draw_scatter([row("a", None, None)]) == ""
    with_memory = row("a", 1.0, 1.0, predicted_peak_bytes=[3 << 30, 9 << 30])
    assert draw_scatter([with_memory]).count("<svg") == 1
    svg = draw_scatter([with_memory | {"measured_peak_bytes": 2 << 30}])
    assert svg.count("<svg") == 2
    assert "measured 2.0 GiB, predicted 3.0 GiB" in svg


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_dots_stay_in_their_panel(scale):
    rows = [row("a", scale * p, scale * m) for p, m in ((1, 900), (40, 2), (5, 5))]
    assert all(0 <= x <= 250 and 23 <= y <= 273 for x, y in dots(draw_scatter(rows)))
