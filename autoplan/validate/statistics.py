"""Numbers that judge predictions: errors, and whether better plans are predicted to be better.

Pure functions of predicted and measured values, in any unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import fsum, sqrt

APART = 0.05
"""Pairs closer than this cannot be told from noise; about what repeated runs differ by."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Of predicted/measured - 1, as fractions; None where there are no rows.

    Attributes:
        rows: how many.
        median_abs_error, p90_abs_error, mean_abs_error, max_abs_error: of the absolute error.
        bias: median of the signed error: positive where predictions are too large.
        within_10_percent, within_20_percent: share of rows.
    """

    rows: int
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    mean_abs_error: float | None = None
    max_abs_error: float | None = None
    bias: float | None = None
    within_10_percent: float | None = None
    within_20_percent: float | None = None


def errors_of(errors: Sequence[float], weights: Sequence[float] | None = None) -> Errors:
    """Summary of signed errors.

    Args:
        errors: predicted/measured - 1 of each row.
        weights: of each row, positive; None: all alike.
    """
    if not errors:
        return Errors(0)
    weighed = [1.0] * len(errors) if weights is None else list(weights)
    sizes = [abs(error) for error in errors]
    total = fsum(weighed)

    def mean_of(values: Iterable[float]) -> float:
        return fsum(v * w for v, w in zip(values, weighed, strict=True)) / total

    return Errors(
        rows=len(errors),
        median_abs_error=quantile(sizes, weighed, 0.5),
        p90_abs_error=quantile(sizes, weighed, 0.9),
        mean_abs_error=mean_of(sizes),
        max_abs_error=max(sizes),
        bias=quantile(errors, weighed, 0.5),
        within_10_percent=mean_of(size <= 0.1 for size in sizes),
        within_20_percent=mean_of(size <= 0.2 for size in sizes),
    )


def quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The value below which a share of the weight lies; with equal weights 0.5 is the median.

    Each value stands in the middle of its own weight; between two values it is linear (the fifth of
    the nine definitions in Hyndman and Fan, "Sample quantiles in statistical packages", 1996).

    Args:
        values: one or more.
        weights: of each, positive.
        share: from 0 to 1.
    """
    total = fsum(weights)
    before = 0.0
    last: tuple[float, float] | None = None
    for value, weight in sorted(zip(values, weights, strict=True)):
        place = (before + weight / 2) / total
        before += weight
        if place >= share:
            if last is None:
                return value
            left, low = last
            return low + (value - low) * (share - left) / (place - left)
        last = (place, value)
    return max(values)


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return fsum(values) / len(values) if values else None


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return quantile(values, [1.0] * len(values), 0.5) if values else None


def spearman(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values share their mean rank.

    None where one side is all equal, so that there is no order.
    """
    left, right = _ranks(predicted), _ranks(measured)
    middle = (len(left) + 1) / 2
    product = sum((a - middle) * (b - middle) for a, b in zip(left, right, strict=True))
    spread = sqrt(sum((a - middle) ** 2 for a in left) * sum((b - middle) ** 2 for b in right))
    return product / spread if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            ranks[index] = (start + 1 + end) / 2
        start = end
    return ranks


def pair_order(predicted: Sequence[float], measured: Sequence[float]) -> tuple[int, int]:
    """(pairs ordered rightly, pairs) of those more than `APART` apart as measured.

    A pair that is predicted to be equal is not ordered.
    """
    right = pairs = 0
    for (p, m), (q, n) in combinations(zip(predicted, measured, strict=True), 2):
        if max(m, n) > min(m, n) * (1 + APART):
            pairs += 1
            right += (p < q) if m < n else (q < p)
    return right, pairs


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Measured time of what is predicted to be best over the measured best, less one.

    Of several that are predicted to be equally good, the worst is taken.
    """
    best = min(predicted)
    picked = max(m for p, m in zip(predicted, measured, strict=True) if p == best)
    return picked / min(measured) - 1
