"""Law: seconds of instances are those of two streams, and of a step those of the closed form."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from autoplan.cost import Pricer
from autoplan.ir.machine import Level
from autoplan.pipeline import closed_form, in_flight
from autoplan.search.chain import Pace
from autoplan.search.step import Room, instance_seconds, pipelined
from autoplan.search.tables import CHANNEL, COUNT
from tests.search.cases import machine, stack

SEEDS = range(30)


def pricer(overlap: bool, floor: float = 0.0) -> Pricer:
    return Pricer(machine(Level("gpu", 2, 1e9, 0.0), overlap=overlap), stack(floor=floor))


def pace(stages: int, micro_batches: int) -> Pace:
    return Pace(stages, micro_batches, 1, 0.0, None, False)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_instance_takes_the_longer_stream_or_both(seed, overlap):
    totals = np.random.default_rng(seed).random((7, COUNT))
    get = {name: totals[:, i] for name, i in CHANNEL.items()}
    each = instance_seconds(totals, pricer(overlap), backward=True)

    def beside(compute, weights):
        return np.maximum(compute, weights) if overlap else compute + weights

    compute = get["XB"] + get["RG"]
    again = np.maximum(compute, get["XB"] + get["RC"])
    forward, back = beside(get["XF"], get["WF"]), beside(compute, get["WB"])
    last = beside(compute, get["WB"] + get["OK"])
    np.testing.assert_allclose(each.kept, forward + back)
    np.testing.assert_allclose(each.once, get["ON"] + last - back)
    np.testing.assert_allclose(each.kept + each.more, forward + beside(again, get["WB"]))
    # Once a step, where forward runs again: the last backward hides more of the last reduction.
    np.testing.assert_allclose(
        each.kept + each.more + each.once - each.sooner,
        forward + get["ON"] + beside(again, get["WB"] + get["OK"]),
    )
    assert (each.more >= 0).all()
    assert (each.sooner >= -1e-12).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_overlap_is_never_slower_and_a_floor_never_faster(seed):
    totals = np.random.default_rng(seed).random((7, COUNT))
    alone = instance_seconds(totals, pricer(False), backward=True)
    beside = instance_seconds(totals, pricer(True), backward=True)
    floored = instance_seconds(totals, pricer(True, floor=0.7), backward=True)
    assert (beside.kept <= alone.kept).all()
    assert (beside.kept <= floored.kept).all()


def test_without_a_backward_nothing_runs_again():
    each = instance_seconds(np.ones((3, COUNT)), pricer(False), backward=False)
    assert not each.more.any()
    assert not each.sooner.any()
    np.testing.assert_allclose(each.kept, 2.0)
    np.testing.assert_allclose(each.once, 2.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_stages_take_the_closed_form(seed):
    rng = Random(seed)
    stages, micro_batches, seconds = rng.randint(1, 8), rng.randint(1, 16), rng.random()
    room, each = Room([1.0] * stages, "1f1b"), [seconds] * stages
    step = pipelined(each, [0.0] * stages, pace(stages, micro_batches), room)
    assert step == pytest.approx(closed_form(each, micro_batches))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_grows_with_everything(seed):
    rng = Random(seed)
    stages, micro_batches = rng.randint(2, 8), rng.randint(1, 16)
    seconds = [rng.random() for _ in range(stages)]
    once = [rng.random() for _ in range(stages)]
    room = Room([1.0] * stages, rng.choice(("1f1b", "gpipe")))
    step = pipelined(seconds, once, pace(stages, micro_batches), room)
    slower = list(seconds)
    slower[rng.randrange(stages)] += 0.5
    assert pipelined(slower, once, pace(stages, micro_batches), room) > step
    assert pipelined(seconds, once, pace(stages, micro_batches + 1), room) > step
    hops = pipelined(seconds, once, pace(stages, micro_batches), replace(room, hop=0.01))
    assert hops >= step + 2 * (stages - 1) * 0.01 * (1 - 1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_what_waits_for_backward_is_the_schedules(schedule):
    room = Room([1.0] * 4, schedule)
    assert room.flight(pace(4, 6)) == tuple(in_flight(schedule, s, 4, 6) for s in range(4))
