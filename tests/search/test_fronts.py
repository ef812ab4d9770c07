"""Law: what is left between bounds and a step holds the best of it, unless it says otherwise."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from autoplan.search.effort import Effort
from autoplan.search.fronts import Found, Limits, search_fronts
from autoplan.search.hull import walk
from tests.search.narrow import Narrow, random_narrow

SEEDS = range(40)
NEVER = 1e9
"""Seconds that no step takes."""


def looked(case: Narrow, bar: float, most: int = 1 << 15, effort: float = 1e9) -> Found:
    """All below a bar, by the bounds of a walk."""
    relaxed = case.relaxed()
    hull = walk(case.chain, relaxed, [case.every[0]], lambda _: inf)
    weights = [bound.weights for bound in hull.bounds[:4]]
    room = np.array([bar - bound.seconds for bound in hull.bounds[:4]])
    limits = Limits(weights, room, most, Effort(effort))
    return search_fronts(case.chain, relaxed, limits, bar)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_is_found_by_looking_at_everything(seed):
    case = random_narrow(seed)
    best, found = case.best(), looked(case, NEVER)
    assert found.complete
    if best == inf:
        assert not found.solutions
        return
    first = case.step(found.solutions[0])
    assert first is not None
    assert first.step_time == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_below_the_best(seed):
    case = random_narrow(seed)
    best = case.best()
    if best < inf:
        found = looked(case, best * (1 - 1e-9))
        assert found.complete
        assert not found.solutions


@pytest.mark.parametrize("seed", SEEDS)
def test_few_kept_or_little_effort_still_gives_what_fits(seed):
    """And a look that was complete is the whole answer, however few were kept."""
    case = random_narrow(seed)
    best = case.best()
    for most, effort in ((1, 1e9), (4, 1e9), (1 << 15, 1.0)):
        found = looked(case, NEVER, most, effort)
        steps = [case.step(solution) for solution in found.solutions]
        assert all(step is not None and step.step_time >= best * (1 - 1e-9) for step in steps)
        if found.complete and best < inf:
            assert steps[0] is not None
            assert steps[0].step_time == pytest.approx(best, rel=1e-9)
