"""Law: more of anything never hurts, under hard memory limits and with streams that overlap.

Faster links, faster devices, more memory and a larger space never give a worse best step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from random import Random

import pytest

from autoplan.presets import parse_pins
from autoplan.search import Request
from autoplan.search.outer import Search
from tests.search.cases import Case, random_case, with_memory

EXACT = 1e-9
SEEDS = range(6)


@cache
def case(seed: int) -> Case:
    """Half of them overlap, all but every third are short of memory."""
    rng = Random(f"monotone/{seed}")
    return random_case(rng, devices=(3,), overlap=seed % 2 == 0, short=seed % 3 > 0)


@cache
def least(seed: int) -> float:
    """The best step of a case."""
    return best(case(seed).search())


def best(search: Search) -> float:
    rows = search._explore(inf)
    return rows[0].estimate.step_time if rows else inf


def test_cases_differ():
    assert all(least(seed) < inf for seed in SEEDS)
    assert {(case(seed).overlap, case(seed).limited) for seed in SEEDS} == {
        (True, True), (True, False), (False, True), (False, False),
    }  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("better", [{"bandwidth": 1.7}, {"latency": 0.5}])
def test_a_faster_link_is_never_worse(seed, better):
    asked = case(seed).asked
    levels = [
        replace(level, **{name: factor * getattr(level, name) for name, factor in better.items()})
        for level in asked.hardware.levels
    ]
    faster = replace(asked, hardware=replace(asked.hardware, levels=tuple(levels)))
    assert best(Search(faster)) <= least(seed) * (1 + EXACT)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", ["peak_flops", "memory_bandwidth", "launch"])
def test_a_faster_device_is_never_worse(seed, what):
    kind = case(seed).asked.hardware.device
    better = {
        "peak_flops": {dtype: 1.5 * peak for dtype, peak in kind.peak_flops.items()},
        "memory_bandwidth": 1.5 * kind.memory_bandwidth, "launch": 0.5 * kind.launch,
    }  # fmt: skip
    faster = replace(kind, **{what: better[what]})
    assert best(Search(on(case(seed).asked, faster))) <= least(seed) * (1 + EXACT)


def on(asked: Request, kind) -> Request:
    return replace(asked, hardware=replace(asked.hardware, device=kind))


@pytest.mark.parametrize("seed", SEEDS)
def test_more_memory_is_never_worse(seed):
    asked, steps = case(seed).asked, [least(seed)]
    for factor in (1.02, 1.1, 1.5, 100.0):
        more = replace(case(seed), asked=with_memory(asked, factor * asked.hardware.device.memory))
        steps.append(best(more.search()))
    assert all(after <= before * (1 + EXACT) for before, after in zip(steps, steps[1:]))  # noqa: B905


@pytest.mark.parametrize("pins", ["pp=1", "recompute=full", "zero=0", "micro_batch=1"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_larger_space_is_never_worse(seed, pins):
    asked = replace(case(seed).asked, pins=parse_pins([pins]))
    assert best(Search(asked)) >= least(seed) * (1 - EXACT)
