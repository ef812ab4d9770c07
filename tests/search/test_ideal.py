"""Law: no plan is faster than its matrix products, however its stages are cut."""

from __future__ import annotations

from random import Random

import pytest

from autoplan.cost import Pricer
from autoplan.ir.machine import Level
from autoplan.lower import lower
from autoplan.search.candidates import Shape, arrangements
from autoplan.search.chain import Pace
from autoplan.search.ideal import ideal_seconds
from autoplan.search.outline import Outline
from autoplan.search.step import Room, estimate, pipelined
from autoplan.simulate import simulate_priced
from tests.search.cases import FREE, TINY, engine, machine, one_stage, random_solution, request


@pytest.mark.parametrize("precision", ["fp32", "bf16_mixed"])
@pytest.mark.parametrize("seed", range(8))
def test_no_simulated_step_is_below_the_ideal(seed, precision):
    rng = Random(f"ideal/{seed}")
    asked = request(TINY, machine(Level("gpu", 2, 1e12, 0.0)), 8, 16, precision)
    made = engine(asked)
    mesh, _ = next(arrangements(asked.hardware, (2,), 1))
    shape = Shape(1, mesh, 0, rng.choice((1, 2, 4)), "1f1b")
    chain = made.chain(shape, FREE)
    assert chain is not None
    plan = one_stage(made, chain, shape, random_solution(rng, chain))
    step = simulate_priced(lower(asked.graph, plan), made.pricer).step_time
    assert step >= ideal_seconds(asked)


@pytest.mark.parametrize("seed", range(300))
def test_the_slowest_stage_takes_at_least_the_mean(seed):
    """The bound of a depth and a number of micro-batches holds for stages as unequal as can be."""
    rng = Random(seed)
    stages, micro_batches = rng.randint(1, 8), rng.randint(1, 32)
    seconds = [rng.choice((0.0, rng.random(), 10 ** rng.uniform(-3, 3))) for _ in range(stages)]
    once = [rng.choice((0.0, rng.random())) for _ in range(stages)]
    room = Room([1.0] * stages, rng.choice(("1f1b", "gpipe")), hop=rng.choice((0.0, rng.random())))
    pace = Pace(stages, micro_batches, 1, 0.0, None, False)
    # What `Outline.bound` makes of the work of a whole step on all devices.
    alone = micro_batches * sum(seconds) / stages
    bound = alone * (micro_batches + stages - 1) / micro_batches
    assert bound <= pipelined(seconds, once, pace, room) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_no_estimate_of_unequal_stages_is_below_the_bound(seed):
    rng = Random(f"stages/{seed}")
    asked = request(TINY, machine(Level("gpu", 2, 1e12, 0.0), overlap=rng.random() < 0.5), 8, 16)
    made = engine(asked)
    mesh, stride = next(arrangements(asked.hardware, (), 2))
    shape = Shape(2, mesh, stride, rng.choice((1, 2, 4, 8)), "1f1b")
    chain = made.chain(shape, FREE)
    assert chain is not None
    pace = Pace(2, shape.micro_batches, 1, 0.0, None, False)
    for layers in (None, (1, 1)):
        room = Room([1e12] * 2, "1f1b", rng.choice(("", "full")), layers)
        found = estimate(chain, random_solution(rng, chain), pace, room, made.pricer)
        assert found is not None
        least = made.least_seconds(shape, FREE)
        assert Outline(asked, Pricer(asked.hardware, asked.stack)).bound(
            2, shape.micro_batches
        ) <= least * (1 + 1e-12)
        assert least <= found.step_time * (1 + 1e-12)
