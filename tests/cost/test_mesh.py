"""A full mesh: what a group shares grows with the group, a pair has one link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.cost.collectives import collective_terms, group_geometry, transfer_terms
from autoplan.files.machine_spec import load_hardware

MESH = load_hardware("ascend-910b:8")
LEVEL = MESH.levels[0]
LINK = LEVEL.bandwidth * LEVEL.efficiency
SWITCHED = replace(MESH, levels=(replace(LEVEL, mesh=False, bandwidth=7 * LEVEL.bandwidth),))


def per_byte(kind: str, ranks: int, machine=MESH) -> float:
    geometry = group_geometry(np.arange(ranks, dtype=np.int64)[None, :], machine)
    return collective_terms(kind, geometry, machine).seconds_per_byte


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_all_devices_reach_what_a_switch_of_all_links_gives(kind):
    assert per_byte(kind, 8) == pytest.approx(per_byte(kind, 8, SWITCHED))
    assert per_byte(kind, 2) == pytest.approx(7 * per_byte(kind, 2, SWITCHED))


def test_a_pair_has_one_link():
    assert per_byte("all_gather", 2) == pytest.approx(1 / LINK)
    assert transfer_terms(0, 5, MESH).seconds_per_byte == pytest.approx(1 / LINK)


def test_gathering_rates_grow_with_the_group():
    """Bus bandwidth of all-gather, the reverse of a switch."""
    rates = [(n - 1) / per_byte("all_gather", n) for n in (2, 4, 8)]
    assert rates == pytest.approx([LINK * (n - 1) for n in (2, 4, 8)])
