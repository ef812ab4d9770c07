"""Law 10 on the planner's whole space: a random legal plan runs and matches the reference.

`scripts/verify_random_plans.py` runs hundreds. Both print which pairs of decisions were met.
"""

from __future__ import annotations

import pytest

from autoplan.ir.graph import Graph
from autoplan.ir.plan import SCHEDULES
from autoplan.ops import FAMILIES, update
from tests.runtime.trials import Coverage, attempt

PLANS, BATCHES = 72, 6
UPDATES = {family.name for family in update.FAMILIES}


@pytest.fixture(scope="module")
def coverage():
    return Coverage()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_plans_match_the_reference(coverage, batch):
    for seed in range(batch, PLANS, BATCHES):
        outcome = attempt(seed)
        coverage.add(outcome.sample.plan, outcome.sample.graph)
        assert outcome.verdict.verified, f"seed {seed}: {outcome}"
        assert not outcome.peaks, f"seed {seed}: {outcome}"


def test_the_sample_covers_the_space(coverage):
    if coverage.plans < PLANS:
        pytest.skip("plans were deselected")
    print(coverage.table())
    seen = set(coverage.seen)
    families = {family for family, _ in seen}
    assert set(FAMILIES) - UPDATES <= families
    assert {("linear", choice) for choice in ("b", "s", "m", "f", "g", "r", "None")} <= seen
    lifetimes = ("gathers", "saved moves", "mixed recompute", "prefetch 2")
    for schedule in SCHEDULES:
        assert {(f"{count} axes", schedule) for count in range(4)} <= seen
        assert {(f"{count} stages", schedule) for count in range(2, 5)} <= seen
        assert {(schedule, lifetime) for lifetime in lifetimes} <= seen


def test_the_same_seed_gives_the_same_plan():
    one, other = attempt(3).sample, attempt(3).sample
    assert isinstance(one.graph, Graph)
    assert one.plan == other.plan
