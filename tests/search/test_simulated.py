"""Law: what the search finds is a plan of its space that fits, and near the best of all simulated.

The search minimises an estimate of time and of memory and simulates the best few, so that what it
finds may be slower than the best plan that fits; never faster, and with memory enough by little.
`scripts/exhaustive_search.py --simulated` prints how much.
"""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from tests.search.simulated import PLENTY, Space, gap, random_space

NUMBERS = range(10)
ESTIMATES = 0.05
"""By how much estimates of time mislead at most on these models; see `test_objective`."""
EXACT = 1e-9


@cache
def space(number: int) -> Space:
    return random_space(Random(f"simulated/{number}"), left=1)


@pytest.mark.parametrize("number", NUMBERS)
def test_with_memory_enough_the_best_is_found_but_for_estimates(number):
    case = space(number)
    assert -EXACT <= gap(case.searched(PLENTY), case.best(PLENTY)) <= ESTIMATES


@pytest.mark.parametrize("number", NUMBERS)
def test_under_a_hard_limit_what_is_found_fits_and_is_a_plan_of_the_space(number):
    case = space(number)
    for memory in case.limits(Random(f"limits/{number}")):
        assert gap(case.searched(memory), case.best(memory)) >= -EXACT


def test_spaces_are_spaces():
    assert all(len(space(number).rows) > 1 for number in NUMBERS)
    assert sum(len(space(number).solutions) > 1 for number in NUMBERS) >= 5
