"""Numbers that judge predictions, against numpy, scipy and obvious loops."""

from __future__ import annotations

from itertools import combinations
from statistics import median as plain_median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from autoplan.validate.statistics import (
    Errors,
    errors_of,
    median,
    pair_order,
    quantile,
    regret,
    spearman,
)

TIMES = st.lists(st.integers(1, 30).map(float), min_size=2, max_size=20)
PAIRS = st.lists(
    st.tuples(st.integers(1, 30).map(float), st.integers(1, 30).map(float)), min_size=2, max_size=20
)


@given(TIMES, st.floats(0, 1))
def test_equal_weights_give_the_usual_quantile(values, share):
    expected = np.quantile(values, share, method="hazen")
    assert quantile(values, [0.3] * len(values), share) == pytest.approx(expected)
    assert median(values) == pytest.approx(plain_median(values))


@given(PAIRS, st.floats(0, 1))
def test_a_weighted_quantile_lies_among_the_values_and_ignores_the_unit(pairs, share):
    values, weights = zip(*pairs, strict=True)
    found = quantile(values, weights, share)
    assert min(values) <= found <= max(values)
    assert quantile(values, [7 * weight for weight in weights], share) == pytest.approx(found)


def test_sources_of_any_size_pull_alike():
    """Three rows of a third each against one: the middle lies between them."""
    assert quantile([1.0, 1.0, 1.0, 2.0], [1 / 3, 1 / 3, 1 / 3, 1.0], 0.5) == pytest.approx(1.25)


@given(PAIRS)
def test_rank_correlation_is_that_of_scipy(pairs):
    predicted, measured = zip(*pairs, strict=True)
    found = spearman(predicted, measured)
    if len(set(predicted)) == 1 or len(set(measured)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(predicted, measured).statistic)


@given(PAIRS)
def test_pairs_are_counted_one_by_one(pairs):
    predicted, measured = zip(*pairs, strict=True)
    apart = [
        (a, b) for a, b in combinations(pairs, 2) if 20 * max(a[1], b[1]) > 21 * min(a[1], b[1])
    ]
    right = sum((p - q) * (m - n) > 0 for (p, m), (q, n) in apart)
    assert pair_order(predicted, measured) == (right, len(apart))


@given(TIMES)
def test_perfect_predictions_are_ordered_rightly_at_no_regret(measured):
    right, pairs = pair_order(measured, measured)
    assert right == pairs
    assert pair_order([1 / m for m in measured], measured) == (0, pairs)
    assert regret(measured, measured) == 0


def test_regret_is_what_the_pick_costs():
    assert regret([2.0, 1.0, 3.0], [10.0, 12.0, 20.0]) == pytest.approx(0.2)
    assert regret([1.0, 1.0, 3.0], [10.0, 12.0, 20.0]) == pytest.approx(0.2), "a tie is no luck"


def test_errors_are_summed_up():
    found = errors_of([0.05, -0.15, 0.3])
    assert (found.rows, found.max_abs_error) == (3, 0.3)
    assert (found.median_abs_error, found.bias) == pytest.approx((0.15, 0.05))
    assert found.mean_abs_error == pytest.approx(0.5 / 3)
    assert (found.within_10_percent, found.within_20_percent) == pytest.approx((1 / 3, 2 / 3))
    assert errors_of([]) == Errors(0)
