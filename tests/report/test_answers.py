"""Sentences about gaps and differences say the right thing."""

from __future__ import annotations

from autoplan.report.answers import needed_text, score_text
from autoplan.report.explanations import measured_text, why_not_text


def rung(devices: int, verdict: str) -> dict:
    return {"devices": devices, "verdict": verdict}


def test_a_ladder_ends_in_a_number():
    assert needed_text([rung(1, "no"), rung(2, "risky"), rung(4, "fits")]).endswith(
        "takes 4 devices of those sizes"
    )
    assert "may take 2" in needed_text([rung(1, "no"), rung(2, "risky")])
    assert needed_text([rung(8, "no")]) == "it takes more than 8 devices"


def test_scores_have_units():
    assert score_text(2 << 30, "bytes") == "2.0 GiB"
    assert score_text(0.05, "J/token") == "5e+04 J/M tokens"
    assert score_text(2e-6, "price/token") == "2 price/M tokens"


def difference(part: str, amount: float) -> dict:
    return {"part": part, "difference": amount}


def test_why_not_names_the_parts_that_cost():
    why_not = {
        "slower": 0.25, "verdict": "no", "predicted": {"peak_memory_bytes": 90 << 30},
        "time": [difference("all_reduce", 2.0), difference("bubble", -1.0)],
        "memory": [difference("activations", 8 << 30)],
    }  # fmt: skip
    assert why_not_text(why_not) == (
        "it takes 25.0% more time: all reduce +2 s; it does not fit, needing 90.0 GiB: "
        "activations +8.0 GiB"
    )
    faster = {**why_not, "slower": -0.1, "verdict": "fits"}
    assert why_not_text(faster) == "it takes 10.0% less time: bubble -1 s"


def test_a_gap_is_explained_or_not():
    row = {"name": "step_time", "within": True, "explanations": []}
    assert "inside" in measured_text(row)
    part = {"part": "compute", "factor": 1.1, "predicted": 2.0, "plausible": True}
    text = measured_text({**row, "within": False, "explanations": [part]})
    assert "compute 1.10 x the predicted 2 s (its spread allows that)" in text
