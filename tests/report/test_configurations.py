"""Sentences about a configuration: each outcome has its own."""

from __future__ import annotations

import pytest

from autoplan.report.configurations import better_text, run_text

BETTER = {"faster": 0.2, "pins": "tp=2,dp=4", "ties": False, "expected_step_time_s": None}


@pytest.mark.parametrize(
    ("verdict", "slower", "word"),
    [
        ("as_predicted", 0.02, "as good as"), ("slower", 0.5, "50.0% more"),
        ("faster", -0.25, "25.0% less"),
    ],
)  # fmt: skip
def test_how_a_run_did(verdict, slower, word):
    text = run_text({"verdict": verdict, "slower": slower, "step_time_s": 2.0})
    assert word in text
    assert "2 s" in text


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "takes 20.0% less time: tp=2,dp=4"), ({"ties": True}, "so measure it"),
        ({"expected_step_time_s": 1.5}, "1.5 s if it does as this run did"),
        ({"faster": -0.1}, "no better plan was found"),
        ({"refused": "nothing fits"}, "no better plan: nothing fits"),
    ],
)  # fmt: skip
def test_what_would_be_better(changes, word):
    assert word in better_text({**BETTER, **changes})
