"""Every family under every kind of plan, in lock-step: right, and described by its own pins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.describe import describe
from autoplan.files.hf_config import load_model
from autoplan.presets import parse_pins
from tests.runtime.matrix import Case, prepare

FAMILIES = ("mistral", "qwen2", "qwen3", "opt", "neox", "phi", "phi3")
PLANS = (
    "dp=2",
    "tp=2",
    "tp=2,sp=false",
    "pp=2",
    "dp=2,zero=3",
    "dp=2,recompute=full",
)


def small(family: str):
    """Its tiny model with fewer layers."""
    return replace(load_model(f"tiny-{family}"), layers=2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pins", PLANS)
def test_plan_is_verified_and_described(family: str, pins: str) -> None:
    ready = prepare(Case(2, pins, small(family), steps=1))
    verdict = ready.verify(ready.run())
    assert verdict.verified, verdict.failures[:3]
    found = describe(ready.graph, ready.plan)
    wanted = {key: pin.single for key, pin in parse_pins([pins]).items()}
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("family", "pins"),
    [
        ("mistral", "cp=2,tp=2"), ("mistral", "tp=4"), ("qwen3", "tp=2,tp2=2"), ("qwen3", "tp=4"),
        ("neox", "tp=2,tp2=2"), ("phi", "cp=2,tp=2"), ("phi", "tp=2,tp2=2"),
    ],
)  # fmt: skip
def test_two_axes_and_more_ranks_than_key_heads(family: str, pins: str) -> None:
    """A grid of rows and columns; a window over split positions; four ranks for one key head."""
    model = replace(small(family), kv_heads=1 if pins == "tp=4" else 2)
    ready = prepare(Case(4, pins, model, steps=1))
    verdict = ready.verify(ready.run())
    assert verdict.verified, verdict.failures[:3]


def test_a_window_is_smaller_than_the_sequence() -> None:
    case = Case(2, "cp=2", small("mistral"))
    assert 0 < case.model.sliding_window < case.seq_len
