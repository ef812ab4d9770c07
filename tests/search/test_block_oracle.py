"""Block search finds the optimum: as brute force and as an integer programme do."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import pytest

from autoplan.ir.machine import Level
from autoplan.search.candidates import Shape, arrangements
from autoplan.search.chain import Pace
from autoplan.search.tables import BlockTables
from tests.search.blocks import block_tables, by_brute_force, by_milp, factors, random_block
from tests.search.cases import FREE, TINY, engine, machine, request

MOST_ASSIGNMENTS = 2_000_000


def random_pace(rng: Random) -> Pace:
    """Any way in which a step can weigh the channels."""
    return Pace(
        stages=rng.choice((1, 2, 4)),
        micro_batches=rng.choice((1, 4, 16)),
        flight=rng.choice((1, 4)),
        memory_price=rng.choice((0.0, 1e-10, 1e-9, 1e-8, 1e-7)),
        overlap=rng.choice((None, 0.3, 0.6, 1.0)),
        recompute=rng.random() < 0.4,
    )


def solved(tables: BlockTables, weights: np.ndarray) -> float:
    """The minimum, checked against what its decisions cost."""
    found = tables.solve(weights, ())
    assignment = found.assignment({})
    least = float(found.table)
    assert float(
        weights @ tables.totals(assignment, tables.options(assignment, weights))
    ) == pytest.approx(least, rel=1e-9)
    return least


@pytest.mark.parametrize("seed", range(30))
def test_random_blocks_on_one_axis_equal_brute_force_and_milp(seed):
    rng = Random(seed)
    tables = block_tables(rng, random_block(rng, rng.randint(2, 4)), (2,))
    sizes = [len(domain) for domain in tables.domains]
    for _ in range(3):
        weights = random_pace(rng).weights(layer=True)
        parts = factors(tables, weights)
        least = solved(tables, weights)
        assert by_milp(sizes, parts) == pytest.approx(least, rel=1e-7)
        if prod(sizes) <= MOST_ASSIGNMENTS:
            assert by_brute_force(sizes, parts) == pytest.approx(least, rel=1e-12)


def test_most_random_blocks_are_small_enough_for_brute_force():
    small = 0
    for seed in range(30):
        rng = Random(seed)
        tables = block_tables(rng, random_block(rng, rng.randint(2, 4)), (2,))
        small += prod(len(domain) for domain in tables.domains) <= MOST_ASSIGNMENTS
    assert small >= 25


@pytest.mark.parametrize("seed", range(10))
def test_random_blocks_on_two_axes_equal_milp(seed):
    rng = Random(seed)
    tables = block_tables(rng, random_block(rng, rng.randint(2, 5)), (2, 2))
    weights = random_pace(rng).weights(layer=True)
    least = solved(tables, weights)
    sizes = [len(domain) for domain in tables.domains]
    assert by_milp(sizes, factors(tables, weights)) == pytest.approx(least, rel=1e-7)


def layer_tables(seed: int, sizes: tuple[int, ...]) -> BlockTables:
    """The tables of a tiny decoder layer."""
    rng = Random(seed)
    hardware = machine(Level("gpu", prod(sizes), 10 ** rng.uniform(7.5, 9.5), 1e-6))
    made = engine(request(TINY, hardware, 8, 16, "bf16_mixed"))
    mesh, _ = next(arrangements(hardware, sizes, 1))
    chain = made.chain(Shape(1, mesh, 0, 2, "1f1b"), FREE)
    assert chain is not None
    return chain.tables["layer"]


@pytest.mark.parametrize(("seed", "sizes"), [(0, (2,)), (1, (4,)), (2, (2,)), (3, (2, 2))])
def test_a_decoder_layer_equals_milp(seed, sizes):
    rng = Random(seed)
    tables = layer_tables(seed, sizes)
    for _ in range(2 if len(sizes) == 1 else 1):
        weights = random_pace(rng).weights(layer=True)
        least = solved(tables, weights)
        domains = [len(domain) for domain in tables.domains]
        assert by_milp(domains, factors(tables, weights)) == pytest.approx(least, rel=1e-7)
