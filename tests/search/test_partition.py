"""The cut into stages equals the best of all cuts with all numbers of recomputed layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from random import Random

import numpy as np
import pytest

from autoplan.pipeline import in_flight
from autoplan.search.partition import ChainCosts, Limits, Partition, partition


def random_chain(rng: Random) -> ChainCosts:
    """An embedding, alike layers and a head; now and then no ends."""
    layers = rng.randint(1, 6)
    ends = rng.random() < 0.8
    kinds = [*(["first"] if ends else []), *["layer"] * layers, *(["last"] if ends else [])]
    numbers = {kind: [rng.randint(0, 12) for _ in range(6)] for kind in set(kinds)}
    table = np.array([numbers[kind] for kind in kinds], dtype=float)
    layer = np.array([kind == "layer" for kind in kinds])
    transient = np.array([rng.choice((0, numbers[kind][3])) for kind in kinds], dtype=float)
    may = layer if rng.random() < 0.7 else np.zeros_like(layer)
    columns = table.T
    sooner = np.minimum(columns[1], columns[5]) * rng.choice((0.0, 0.5, 1.0))
    return ChainCosts(
        columns[0] + 1, columns[1], columns[2], columns[3], columns[4], transient, layer, may,
        rng.choice((1, 4)) * columns[5], sooner,
    )  # fmt: skip


def random_limits(rng: Random, costs: ChainCosts) -> Limits:
    """Stages whose memory is loose, tight, or below what is needed."""
    stages = rng.randint(1, min(4, int(costs.layer.sum())))
    micro_batches = rng.randint(1, 6)
    family = rng.choice(("gpipe", "1f1b"))
    flight = [in_flight(family, s, stages, micro_batches) for s in range(stages)]
    most = float((costs.weights + micro_batches * (costs.saved + costs.inputs)).sum())
    share = rng.choice((2.0, 0.6, 0.5, 0.4, 0.3))
    memory = [share * most + rng.randint(0, 5) for _ in range(stages)]
    given = None
    if rng.random() < 0.3:
        cuts = sorted(rng.sample(range(1, int(costs.layer.sum())), stages - 1))
        bounds = [0, *cuts, int(costs.layer.sum())]
        given = [b - a for a, b in zip(bounds, bounds[1:], strict=False)]
    return Limits(flight, memory, micro_batches, rng.random() < 0.2, given)


def every_cut(
    costs: ChainCosts, limits: Limits
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(bounds, recomputed layers of each stage) of every legal partition that fits."""
    n, stages = len(costs.seconds), len(limits.in_flight)
    for cuts in combinations(range(1, n), stages - 1):
        bounds = (0, *cuts, n)
        parts = [slice(i, j) for i, j in zip(bounds, bounds[1:], strict=False)]
        layers = [int(costs.layer[part].sum()) for part in parts]
        if min(layers) < 1 or (limits.layers is not None and layers != list(limits.layers)):
            continue
        most = [int(costs.may_recompute[part].sum()) for part in parts]
        counts = [[m] if limits.must_recompute else range(m + 1) for m in most]
        for again in product(*counts):
            used = [
                memory(costs, limits, s, part, k)
                for s, (part, k) in enumerate(zip(parts, again, strict=True))
            ]
            if all(u <= limit + 1e-9 for u, limit in zip(used, limits.memory, strict=True)):
                yield bounds, again


def memory(costs: ChainCosts, limits: Limits, stage: int, part: slice, again: int) -> float:
    saved = float(np.max(costs.saved * costs.may_recompute, initial=0.0))
    flight = limits.in_flight[stage]
    held = costs.weights[part].sum() + flight * (costs.inputs + costs.saved)[part].sum()
    return float(held + costs.transient[part].max() - flight * saved * again)


def step(
    costs: ChainCosts, limits: Limits, bounds: tuple[int, ...], again: tuple[int, ...]
) -> float:
    more = float(np.max(costs.again * costs.may_recompute, initial=0.0))
    sooner = float(np.min(costs.sooner[costs.may_recompute], initial=more))
    parts = list(zip(bounds, bounds[1:], again, strict=False))
    seconds = [float(costs.seconds[i:j].sum()) + k * more for i, j, k in parts]
    once = [float(costs.once[i:j].sum()) - k * sooner for i, j, k in parts]
    return sum(seconds) + (limits.micro_batches - 1) * max(seconds) + max(once)


def check(costs: ChainCosts, limits: Limits, found: Partition) -> None:
    """What a partition says of itself is so."""
    assert (found.bounds, found.recompute) in set(every_cut(costs, limits))
    for s, (i, j) in enumerate(zip(found.bounds, found.bounds[1:], strict=False)):
        held = memory(costs, limits, s, slice(i, j), found.recompute[s])
        assert found.memory[s] == pytest.approx(held)


@pytest.mark.parametrize("seed", range(400))
def test_partition_equals_enumeration(seed):
    rng = Random(seed)
    costs = random_chain(rng)
    limits = random_limits(rng, costs)
    best = min((step(costs, limits, *cut) for cut in every_cut(costs, limits)), default=None)
    found = partition(costs, limits)
    if best is None:
        assert found is None
        return
    assert found is not None
    check(costs, limits, found)
    value = sum(found.seconds) + (limits.micro_batches - 1) * max(found.seconds) + max(found.once)
    assert value == pytest.approx(step(costs, limits, found.bounds, found.recompute))
    assert value == pytest.approx(best)


def test_random_chains_cover_what_can_happen():
    seen = {"fits": 0, "does not fit": 0, "recomputes": 0, "given layers": 0}
    for seed in range(400):
        rng = Random(seed)
        costs = random_chain(rng)
        limits = random_limits(rng, costs)
        found = partition(costs, limits)
        seen["fits" if found else "does not fit"] += 1
        seen["recomputes"] += bool(found and any(found.recompute) and not limits.must_recompute)
        seen["given layers"] += limits.layers is not None
    assert min(seen.values()) >= 20, seen
