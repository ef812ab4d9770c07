"""Law: what is kept of a group is what no other of it is nowhere larger than."""

from __future__ import annotations

import numpy as np
import pytest

from autoplan.search.pareto import efficient


@pytest.mark.parametrize("seed", range(30))
def test_efficient_points_equal_pairwise_comparison(seed):
    draw = np.random.default_rng(seed)
    count, features = int(draw.integers(1, 300)), int(draw.integers(1, 5))
    points = draw.integers(0, 6, (count, features)).astype(float)
    groups = draw.integers(0, 4, count)
    kept = efficient(groups, points, np.arange(count, dtype=float))
    assert len(set(kept.tolist())) == len(kept)
    for i in range(count):
        mine = points[kept[groups[kept] == groups[i]]]
        assert (mine <= points[i]).all(axis=1).any(), "covered"
    for i in kept:
        rivals = kept[(groups[kept] == groups[i]) & (kept != i)]
        assert not (points[rivals] <= points[i]).all(axis=1).any(), "not dominated"
