"""Law: the rows of a step say what `estimate` says of every solution, and relax the best of all."""

from __future__ import annotations

import numpy as np
import pytest

from autoplan.search.relaxed import bytes_weights
from tests.search.narrow import random_narrow

SEEDS = range(24)


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_add_up_to_the_estimated_step(seed):
    case = random_narrow(seed)
    relaxed = case.relaxed()
    for solution in case.every[:40]:
        total = sum(relaxed.shares(n, solution.totals[n][None]) for n in relaxed.names)
        held = total[0, -len(relaxed.memory_limits()) :]
        fits = bool((held <= relaxed.memory_limits() * (1 + 1e-12)).all())
        found = case.step(solution)
        assert (found is not None) == fits
        if found:
            assert relaxed.steps(total)[0] == pytest.approx(found.step_time, rel=1e-9)
            assert max(found.partition.memory) == pytest.approx(held.max(), rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_not_grow_tells_better_from_worse(seed):
    """Nowhere larger in its features means no longer a step, and no more memory."""
    case = random_narrow(seed)
    relaxed, found = case.relaxed(), list(map(case.step, case.every[:60]))
    features = [
        np.concatenate([relaxed.features(n) @ s.totals[n] for n in relaxed.names])
        for s in case.every[:60]
    ]
    for i, mine in enumerate(features):
        for j, other in enumerate(features):
            first, second = found[i], found[j]
            if (mine <= other).all() and second is not None:
                assert first is not None
                assert first.step_time <= second.step_time * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_least_bytes_are_below_what_any_solution_holds(seed):
    case = random_narrow(seed)
    relaxed = case.relaxed()
    for stage in range(case.pace.stages):
        least = case.chain.minimise(bytes_weights(relaxed, stage), case.pace.stages)
        assert least is not None
        for solution in case.every:
            found = case.step(solution)
            if found:
                assert least.objective <= found.partition.memory[stage] * (1 + 1e-9)
