"""The whole search finds what trying everything finds.

    memory loose, nothing overlaps    equal: the search is exact
    stages of several devices         what is done once a step is weighed by its mean: close
    streams overlap                   a few weights of the compute stream for a continuum: close
    memory short                      a price of memory stands for a limit: close, and never over it

`scripts/exhaustive_search.py` tries as many cases as one likes and prints how close.
"""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from autoplan.search import Request
from autoplan.search.candidates import Shape
from autoplan.search.chain import Chain
from autoplan.search.engine import Freedom
from autoplan.search.outer import SLACK, Search
from tests.search.cases import random_request, with_memory
from tests.search.exhaustive import best_step

EXACT = 1e-9
STAGES_MARGIN = 0.05
"""Largest share of a step that the search has lost where stages of several devices won."""
OVERLAP_MARGIN = 0.25
"""Largest share of a step that the search has lost where streams overlap; 1.4 % on average."""
MEMORY_MARGIN = 0.10
"""Largest share of a step that the search has lost under a memory limit."""


def found(request: Request) -> tuple[Search, float]:
    """The search's best estimate; what its engine built for a candidate is kept for the oracle."""
    search = Search(request)
    build, known = search.engine.chain, {}

    def chain(shape: Shape, freedom: Freedom) -> Chain | None:
        if shape not in known:
            known[shape] = build(shape, freedom)
        return known[shape]

    search.engine.chain = chain  # type: ignore[method-assign]
    rows = search._explore(inf)
    return search, rows[0].estimate.step_time if rows else inf


def test_one_hundred_cases_equal_exhaustive_enumeration():
    equal = 0
    for number in range(102):
        devices = (4,) if number == 40 else (1, 2, 2, 2, 3)
        search, got = found(random_request(Random(number), devices=devices))
        best, stages = best_step(search.request, search.engine)
        if stages > 1 and search.request.hardware.count > stages:
            assert best * (1 - EXACT) <= got <= best * (1 + STAGES_MARGIN)
            continue
        assert got == pytest.approx(best, rel=EXACT), number
        equal += 1
    assert equal >= 100


def test_pruning_loses_nothing():
    for seed in range(3):
        request = random_request(Random(seed), devices=(2, 3))
        _, best = found(request)
        for incumbent in (best * 1.2, best / SLACK * 1.001, best):
            rows = Search(request)._explore(incumbent)
            assert rows[0].estimate.step_time == best


@pytest.mark.parametrize("seed", range(8))
def test_overlapped_search_is_close_to_exhaustive_enumeration(seed):
    search, got = found(random_request(Random(seed), overlap=True))
    best, _ = best_step(search.request, search.engine)
    assert best * (1 - EXACT) <= got <= best * (1 + OVERLAP_MARGIN)


@pytest.mark.parametrize("seed", range(8))
def test_search_under_a_memory_limit_fits_and_is_close(seed):
    rng = Random(100 + seed)
    loose = random_request(rng, devices=(1, 2, 3))
    rows = Search(loose)._explore(inf)
    share = rng.choice((0.7, 0.85, 0.95))
    limit = share * max(rows[0].estimate.partition.memory)
    search = Search(with_memory(loose, limit))
    rows = search._explore(inf)
    best, _ = best_step(search.request, search.engine, recompute=True)
    if not rows:
        assert best == inf
        return
    estimate = rows[0].estimate
    assert max(estimate.partition.memory) <= limit
    assert best * (1 - EXACT) <= estimate.step_time <= best * (1 + MEMORY_MARGIN)
