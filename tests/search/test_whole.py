"""The whole search finds what trying everything finds, exactly, whatever it is asked.

Hard memory limits and streams that overlap included. `scripts/exhaustive_search.py` tries as many
and as large cases as one likes.
"""

from __future__ import annotations

from functools import cache
from math import inf
from random import Random

import pytest

from autoplan.search.outer import SLACK, Search
from tests.search.cases import Case, random_case, random_request
from tests.search.exhaustive import best_step

EXACT = 1e-8
"""Within the tolerances of the oracle's solver."""
DEAR = {14, 17, 27, 38, 52, 56, 69, 75, 112, 152}
"""Cases that take seconds each, for the search or for the oracle; the script has many like them."""
NUMBERS = [number for number in range(210) if number not in DEAR]
SMALL = (1, 2, 3, 3)
"""Devices; few dims of these models divide by three, so that oracles are quick."""


@cache
def small_case(number: int) -> Case:
    return random_case(Random(f"small/{number}"), SMALL)


@pytest.mark.parametrize("number", NUMBERS)
def test_search_equals_exhaustive_search(number):
    case = small_case(number)
    search = case.search()
    rows = search._explore(inf)
    best = best_step(case)
    if not rows:
        assert best == inf
        return
    found = rows[0].estimate
    assert max(found.partition.memory) <= search.engine.capacity
    assert found.step_time == pytest.approx(best, rel=EXACT)


def test_cases_cover_what_can_happen():
    """Kinds of the cases above, most of which would be missed by a search that is less exact."""
    seen = dict.fromkeys(("overlap", "short", "both", "neither", "several devices"), 0)
    for number in NUMBERS:
        case = small_case(number)
        seen["overlap"] += case.overlap
        seen["short"] += case.limited
        seen["both"] += case.overlap and case.limited
        seen["neither"] += not (case.overlap or case.limited)
        seen["several devices"] += case.asked.hardware.count > 1
    assert min(seen.values()) >= 15, seen
    assert seen["both"] >= 60


def test_pruning_loses_nothing():
    for seed in range(3):
        request = random_request(Random(seed), devices=(2, 3))
        best = Search(request)._explore(inf)[0].estimate.step_time
        for incumbent in (best * 1.2, best / SLACK * 1.001, best):
            rows = Search(request)._explore(incumbent)
            assert rows[0].estimate.step_time == best
