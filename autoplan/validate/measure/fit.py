"""Which line runs through a table? Least absolute error, without a constant that needs tuning.

    minimise  sum_i weight_i · |a · constant_i + b · slope_i - target_i|     over  a, b >= 0

A linear program in two unknowns: some minimum lies where two rows are met exactly, or one row and
an axis, so trying all of those finds it. As much as half of the weight may be outliers (a call that
the scheduler interrupted) without moving the line far.

Source: Bloomfield & Steiger 1983, "Least Absolute Deviations", chapter 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """One equation: a · constant + b · slope = target.

    Attributes:
        constant, slope: coefficients of the unknowns.
        target: what was measured, > 0.
        weight: of the absolute error; 1 / target makes it relative.
    """

    constant: float
    slope: float
    target: float
    weight: float


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted line.

    Attributes:
        constant: a, in the unit of the targets.
        slope: b, in that unit per unit of the slopes.
    """

    constant: float
    slope: float

    def of(self, row: Row) -> float:
        """What the line says instead of the target."""
        return self.constant * row.constant + self.slope * row.slope

    def error(self, row: Row) -> float:
        """Predicted / measured - 1."""
        return self.of(row) / row.target - 1


def relative(constant: float, slope: float, target: float) -> Row:
    """A row whose relative error counts."""
    return Row(constant, slope, target, 1.0 / target)


def fit_line(rows: Sequence[Row]) -> Line:
    """The line of least absolute error.

    Args:
        rows: at least one; one row alone is met with a = 0 where it has a slope.

    Complexity: O(rows³).
    """
    return min(_corners(rows), key=lambda line: (_loss(line, rows), line.constant, line.slope))


def _loss(line: Line, rows: Sequence[Row]) -> float:
    return sum(row.weight * abs(line.of(row) - row.target) for row in rows)


def _corners(rows: Sequence[Row]) -> Iterator[Line]:
    """Every line that meets two rows, or one row with one unknown zero."""
    for row in rows:
        if row.slope:
            yield Line(0.0, row.target / row.slope)
        if row.constant:
            yield Line(row.target / row.constant, 0.0)
    for one, two in combinations(rows, 2):
        determinant = one.constant * two.slope - two.constant * one.slope
        if not determinant:
            continue
        constant = (one.target * two.slope - two.target * one.slope) / determinant
        slope = (one.constant * two.target - two.constant * one.target) / determinant
        if constant >= 0 and slope >= 0:
            yield Line(constant, slope)


def typical_error(line: Line, rows: Sequence[Row]) -> float:
    """Median of the absolute relative errors; 0 without rows."""
    return median(abs(line.error(row)) for row in rows) if rows else 0.0
