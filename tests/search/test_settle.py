"""Law: with effort enough, a candidate is settled at the best of all its decisions and cuts."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from autoplan.search.effort import Effort
from autoplan.search.settle import settle
from tests.search.narrow import Narrow, random_narrow

SEEDS = range(60)
PLENTY = 1e9


def settled(case: Narrow, effort: float = PLENTY, bar: float = inf) -> float:
    """The best step; infinite where nothing fits."""
    machine = (case.room, case.pricer)
    found = settle(case.chain, case.pace, machine, None, Effort(effort), bar)
    if found is None:
        return inf
    assert all(
        held <= limit for held, limit in zip(found.partition.memory, case.room.limits, strict=True)
    )
    return found.step_time


def free(seed: int) -> Narrow:
    """A narrow candidate whose stages and layers run again are open as well."""
    case = random_narrow(seed)
    return replace(case, room=replace(case.room, layers=None, recompute=""))


@pytest.mark.parametrize("seed", SEEDS)
def test_settled_is_the_best_by_brute_force(seed):
    case = free(seed)
    assert settled(case) == pytest.approx(case.best(), rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_given_cuts_are_kept(seed):
    case = random_narrow(seed)
    assert settled(case) == pytest.approx(case.best(), rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_nothing_is_below_a_bar_that_is_the_best(seed):
    case = free(seed)
    assert settled(case, bar=case.best()) == inf


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_more_effort_is_never_worse(seed):
    case = free(seed)
    steps = [settled(case, effort) for effort in (0.0, 1e6, 1e7, PLENTY)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == pytest.approx(case.best(), rel=1e-9)
