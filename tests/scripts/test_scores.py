"""The figures and tables of a campaign."""

from __future__ import annotations

import pytest
from measuring.scores import render, score


def rows(*columns: tuple[str, float, float]) -> list[dict]:
    return [
        {
            "id": str(k),
            "group": group,
            "pins": "dp=1",
            "ranks": 1,
            "plan": {
                "predicted": {"step_time_s": predicted, "breakdown_s": {"compute": predicted}}
            },
            "measured": {
                "step_time_s": seconds,
                "spread": 0.0,
                "disturbed": False,
                "parts": {"F layer/F": [seconds, 2.0]},
                "visits": [{"seconds": [seconds], "elsewhere": 0.0}],
            },
        }
        for k, (group, predicted, seconds) in enumerate(columns)
    ]


def test_order_is_judged_inside_groups():
    figures = score(rows(("a", 1, 10), ("a", 2, 20), ("b", 30, 1), ("b", 40, 2), ("b", 50, 1.5)))
    assert (figures["pairs_apart"], figures["pair_order"]) == (4, pytest.approx(3 / 4))
    assert figures["regret"] == {"median": 0, "max": 0}
    assert figures["plans"] == 5


def test_errors_are_of_the_measured_time():
    figures = score(rows(("a", 1.5, 1.0), ("a", 0.5, 1.0), ("a", 1.0, 1.0)))
    assert figures["median_abs_error"] == 0.5
    assert figures["bias"] == 0


def test_two_plans_have_no_order():
    assert score(rows(("a", 1, 1), ("a", 2, 2)))["spearman"] is None


def test_tables_hold_every_plan_and_order_only_hides_errors():
    text = render(rows(("a", 1, 2), ("a", 2, 3), ("b", 1, 1)))
    assert "| all | 3 | 33.3%" in text
    assert "| 1 | compute | 4 s | 6 s | 1.50 | 1 s |" in text
    assert all(f"| {k} " in text for k in range(3))
    assert "%" not in render(rows(("a", 1, 2), ("a", 2, 3)), order_only=True).split("\n")[2][:20]
