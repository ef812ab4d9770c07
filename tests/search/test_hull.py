"""Law: the value of the walk is never above any choice that fits, and says when none does."""

from __future__ import annotations

from math import inf

import pytest

from autoplan.search.hull import Hull, walk
from tests.search.narrow import Narrow, random_narrow

SEEDS = range(40)
EXACT = 1 + 1e-9


def walked(case: Narrow) -> Hull:
    """A walk that nothing ends early."""
    return walk(case.chain, case.relaxed(), [case.every[0]], lambda _: inf)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_bound_is_below_every_choice_that_fits(seed):
    case = random_narrow(seed)
    hull, best = walked(case), case.best()
    assert all(bound.seconds <= best * EXACT for bound in hull.bounds)
    assert hull.lower <= best * EXACT


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_are_solved_exactly(seed):
    """What a bound says is the least weighted sum, is."""
    case = random_narrow(seed)
    for bound in walked(case).bounds[:4]:
        sums = [
            sum(
                case.chain.factor(n) * float(bound.weights[n] @ s.totals[n])
                for n in case.chain.tables
            )
            for s in case.every
        ]
        assert min(sums) == pytest.approx(bound.least, rel=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mixture_is_made_of_shares_of_solutions(seed):
    case = random_narrow(seed)
    shares = [share for share, _ in walked(case).mixture]
    assert min(shares) > 0
    assert sum(shares) == pytest.approx(1.0)


def test_walks_end_tight_loose_and_without_a_fit():
    gaps = {"tight": 0, "gap": 0, "nothing fits": 0}
    for seed in SEEDS:
        case = random_narrow(seed)
        lower, best = walked(case).lower, case.best()
        if lower == inf:
            assert best == inf
            gaps["nothing fits"] += 1
        else:
            gaps["tight" if best <= lower * 1.0001 else "gap"] += 1
    assert min(gaps.values()) >= 1, gaps
