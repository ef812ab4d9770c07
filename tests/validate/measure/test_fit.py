"""The line of least absolute error: exact, robust, and never beaten."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.validate.measure.fit import Line, fit_line, relative, typical_error

SIZES = [1 << shift for shift in range(10, 25, 2)]
LATENCY, PER_BYTE = 3e-5, 1 / 4e9


def table(noise=lambda n: 1.0):
    return [relative(1.0, size, (LATENCY + PER_BYTE * size) * noise(size)) for size in SIZES]


def test_an_exact_table_is_met():
    line = fit_line(table())
    assert line.constant == pytest.approx(LATENCY)
    assert line.slope == pytest.approx(PER_BYTE)
    assert typical_error(line, table()) < 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_noise_moves_the_line_little(seed):
    random = Random(seed)
    line = fit_line(table(lambda _: random.lognormvariate(0, 0.05)))
    assert line.constant == pytest.approx(LATENCY, rel=0.15)
    assert line.slope == pytest.approx(PER_BYTE, rel=0.15)


def test_outliers_do_not_move_the_line():
    """A quarter of the calls was interrupted for ten times as long."""
    disturbed = (SIZES[2], SIZES[5])
    line = fit_line(table(lambda size: 10.0 if size in disturbed else 1.0))
    assert line.constant == pytest.approx(LATENCY)
    assert line.slope == pytest.approx(PER_BYTE)


positive = st.floats(0.01, 100)


@given(
    st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=6),
    st.tuples(st.floats(0, 100), st.floats(0, 100)),
)
def test_no_line_is_better(coefficients, other):
    rows = [relative(*row) for row in coefficients]

    def loss(line):
        return sum(row.weight * abs(line.of(row) - row.target) for row in rows)

    assert loss(fit_line(rows)) <= loss(Line(*other)) * (1 + 1e-9) + 1e-12


def test_what_is_found_is_never_negative():
    """A table that falls with size has no bandwidth, but no negative one either."""
    line = fit_line([relative(1.0, size, 1.0 / size) for size in SIZES])
    assert line.constant >= 0
    assert line.slope >= 0
