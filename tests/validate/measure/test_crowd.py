"""Busy cores: the contention that made the turns is found, and prices of all give it back."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from autoplan.cost.compute import core_slowdown
from autoplan.cost.pricer import start_share
from autoplan.validate.measure.crowd import (
    LONGEST_RAMP,
    Crowd,
    Pause,
    Turn,
    find_crowd,
    find_ramp,
    uncrowded,
)
from tests.validate.measure.readings import machine, readings

ALONE = (0.01, 0.05, 0.2, 0.8)


def turns(own, clock, noise=lambda: 1.0):
    """Steps that take so much longer in a crowd."""
    return [Turn(own * t * noise(), clock * t * noise(), t * noise(), t * noise()) for t in ALONE]


@pytest.mark.parametrize(("ranks", "cores"), [(2, 2), (4, 8), (16, 4)])
def test_a_machine_with_the_contention_is_as_slow_as_was_measured(ranks, cores):
    sharing = max(1, ranks / cores)
    crowd = find_crowd(turns(1.1, 1.3 * sharing), ranks, cores)
    assert (crowd.stretch, crowd.spread) == pytest.approx((1.1, 1))
    host = replace(machine().host, cores=cores, ranks_share_cores=True)
    host = replace(host, contention=crowd.contention)
    level = replace(machine().levels[0], size=ranks)
    many = replace(machine(), host=host, levels=(level,), devices_per_node=ranks)
    assert core_slowdown(many) == pytest.approx(1.3 * sharing)


def test_what_the_crowd_took_of_their_own_time_is_given_back():
    known = readings(machine())
    crowded = [replace(r, seconds=tuple(1.1 * t for t in r.seconds)) for r in known]
    for one, other in zip(uncrowded(crowded, Crowd(stretch=1.1)), known, strict=True):
        assert one.seconds == pytest.approx(other.seconds)


def test_noise_is_averaged():
    random = Random(0)
    noisy = [t for _ in range(25) for t in turns(1.1, 1.3, lambda: random.lognormvariate(0, 0.1))]
    assert find_crowd(noisy, 2, 2).contention == pytest.approx(1.3, abs=0.05)


def test_nobody_is_slowed_by_himself_or_faster_in_a_crowd():
    assert find_crowd(turns(1.3, 1.3), 1, 2) == Crowd()
    assert find_crowd([], 2, 2) == Crowd()
    assert find_crowd(turns(0.9, 0.9), 2, 2).contention == 1
    assert find_crowd(turns(1.2, 0.9), 2, 2).contention == pytest.approx(1.2)


def pauses(ramp, most, slower, noise=lambda: 1.0):
    """Collectives after computing of several lengths."""
    times = (5e-4, 2e-3, 7e-3) * 6
    return [
        Pause(slower * t * noise(), t, most * start_share(slower * t, ramp) * noise())
        for t in times
    ]


@pytest.mark.parametrize("ramp", [5e-4, 1e-3, 4e-3])
def test_the_ramp_that_made_the_waits_is_found(ramp):
    assert find_ramp(pauses(ramp, 3e-3, 1.2)) == pytest.approx(ramp)
    random = Random(1)
    noisy = pauses(ramp, 3e-3, 1.2, lambda: random.lognormvariate(0, 0.1))
    disturbed = [*noisy[:15], *(p._replace(waited=-1e-4) for p in noisy[15:])]
    assert find_ramp(disturbed) == pytest.approx(ramp, rel=0.6)


def test_waits_that_tell_no_ramp():
    assert find_ramp([]) == 0
    assert find_ramp([Pause(1e-3, 1e-3, -1e-4)]) == 0
    assert find_ramp([Pause(t, t, 2e-3) for t in (1e-3, 1e-2)]) == pytest.approx(0)
    assert find_ramp([Pause(t, t, t) for t in (1e-3, 1e-2)]) == LONGEST_RAMP


def test_ranks_that_talk_say_how_much_computing_slows():
    """Steps that talk to nobody do not: what messages take of a core, they do not feel."""
    crowd = find_crowd(turns(1.0, 1.0), 2, 2, pauses(1e-3, 3e-3, 1.25))
    assert (crowd.stretch, crowd.contention) == pytest.approx((1, 1.25))
    assert crowd.ramp == pytest.approx(1e-3)
    outlier = [*pauses(1e-3, 3e-3, 1.25), Pause(1.0, 1e-3, 1e-3)]
    assert find_crowd(turns(1.0, 1.0), 2, 2, outlier).contention == pytest.approx(1.25)
    assert find_crowd(turns(1.0, 1.0), 2, 2).ramp is None
