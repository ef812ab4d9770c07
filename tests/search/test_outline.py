"""Law: every depth and number of micro-batches is tried, in order of a bound that holds."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from autoplan.cost import Pricer
from autoplan.ir.machine import Level
from autoplan.search.candidates import divisors
from autoplan.search.outline import EXHAUSTIVE, Outline
from tests.search.cases import FREE, TINY, engine, every_shape, machine, random_request, request


def outline(asked) -> Outline:
    return Outline(asked, Pricer(asked.hardware, asked.stack))


@pytest.mark.parametrize("seed", range(8))
def test_small_machines_have_every_candidate_in_order_of_their_bounds(seed):
    asked = random_request(Random(seed), devices=(2, 4))
    made = engine(asked)
    groups = outline(asked).groups(inf, made.least_seconds)
    bounds = [bound for bound, _ in groups]
    assert bounds == sorted(bounds)
    tried = {(s.stages, s.mesh.sizes, s.micro_batches) for _, shapes in groups for s in shapes}
    for shape in every_shape(asked):
        assert (shape.stages, shape.mesh.sizes, shape.micro_batches) in tried
    for bound, shapes in groups:
        assert all(bound <= made.least_seconds(shape, FREE) for shape in shapes)


def test_what_is_hopeless_is_bounded_by_its_products_alone():
    asked = request(TINY, machine(Level("gpu", 4, 1e9, 0.0)), 8, 16)
    made = outline(asked)

    def never(*_):
        raise AssertionError("not worth pricing")

    groups = made.groups(0.0, never)
    assert [bound for bound, _ in groups] == sorted(
        made.bound(p, m) for p in (1, TINY.layers) for m in divisors(8)
    )


def test_large_machines_start_with_few_meshes_and_widen_around_the_best():
    asked = request(TINY, machine(Level("gpu", 8, 1e9, 0.0), Level("node", 16, 1e8, 0.0)), 8, 16)
    assert asked.hardware.count > EXHAUSTIVE
    made = outline(asked)
    few = made.shapes(2, 4, every=False)
    (every,) = made.wider(few)
    assert len(few) <= 4 < len(every)
    assert all(shape.mesh.size == 64 for shape in every)
    for shape in made.finer(few):
        assert len(shape.mesh.axes) <= 3
        assert shape.mesh.size == 64


def test_small_machines_are_not_widened():
    asked = request(TINY, machine(Level("gpu", 4, 1e9, 0.0)), 8, 16)
    made = outline(asked)
    shapes = made.shapes(1, 4, every=True)
    assert not list(made.wider(shapes))
    assert not made.finer(shapes)
