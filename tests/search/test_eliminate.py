"""Elimination gives the same minima as trying everything, for every value of the variables kept."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest

from autoplan.search.eliminate import Factor, Order, eliminate


def random_factors(rng: Random, forbidden: float) -> tuple[list[int], list[Factor]]:
    """Domains and factors over up to three variables; some entries are not allowed."""
    domains = [rng.randint(1, 4) for _ in range(rng.randint(1, 6))]
    draw = np.random.default_rng(rng.randrange(1 << 30))
    factors = []
    for _ in range(rng.randint(1, 9)):
        scope = tuple(sorted(rng.sample(range(len(domains)), min(rng.randint(0, 3), len(domains)))))
        shape = [domains[v] for v in scope]
        table = draw.integers(-50, 50, shape).astype(float)
        factors.append(Factor(scope, np.where(draw.random(shape) < forbidden, np.inf, table)))
    return domains, factors


def value(factors: list[Factor], assignment: dict[int, int]) -> float:
    return sum(float(f.table[tuple(assignment[v] for v in f.scope)]) for f in factors)


def brute_force(domains: list[int], factors: list[Factor], keep: tuple[int, ...]) -> np.ndarray:
    """Least value for each assignment of the variables kept."""
    best = np.full([domains[v] for v in keep], np.inf)
    for values in product(*map(range, domains)):
        place = tuple(values[v] for v in keep)
        best[place] = min(best[place], value(factors, dict(enumerate(values))))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_elimination_equals_brute_force(seed):
    rng = Random(seed)
    domains, factors = random_factors(rng, forbidden=rng.choice((0.0, 0.2, 0.6)))
    keep = tuple(sorted(rng.sample(range(len(domains)), rng.randint(0, min(3, len(domains))))))
    found = eliminate(domains, factors, keep)
    assert found.kept == keep
    np.testing.assert_array_equal(found.table, brute_force(domains, factors, keep))
    for place in product(*(range(domains[v]) for v in keep)):
        if np.isfinite(found.table[place]):
            assignment = found.assignment(dict(zip(keep, place, strict=True)))
            assert sorted(assignment) == list(range(len(domains)))
            assert value(factors, assignment) == found.table[place]


def test_an_order_serves_any_tables_of_its_shapes():
    rng = Random(1)
    domains, factors = random_factors(rng, forbidden=0.0)
    order = Order(domains, [f.scope for f in factors])
    draw = np.random.default_rng(1)
    for _ in range(5):
        tables = [draw.integers(-9, 9, f.table.shape).astype(float) for f in factors]
        again = [Factor(f.scope, table) for f, table in zip(factors, tables, strict=True)]
        assert order.run(tables).table == brute_force(domains, again, ())


def test_a_variable_without_factors_is_free():
    found = eliminate([3, 2], [Factor((1,), np.array([2.0, 1.0]))])
    assert found.table == 1.0
    assert found.assignment({})[1] == 1
