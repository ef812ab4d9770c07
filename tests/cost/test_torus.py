"""A torus: groups share its axes, and its middle bounds an exchange of all with all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from autoplan.cost.collectives import Terms, collective_terms, group_geometry, mesh_groups
from autoplan.cost.torus import axes_of, detour, ring_steps
from autoplan.ir.machine import Hardware, Level
from tests.cost.machines import cluster, line

AXIS = 100e9
CHIPS = Level("chip", 256, AXIS, 1e-6, torus=2)


def terms(kind: str, size: int, hardware: Hardware, stride: int = 1) -> Terms:
    groups = mesh_groups(line(size, stride), (0,))
    return collective_terms(kind, group_geometry(groups, hardware), hardware)


def test_a_gather_over_all_chips_uses_the_links_of_every_axis() -> None:
    price = terms("reduce_scatter", 256, cluster(CHIPS))
    assert price.seconds_per_byte == pytest.approx(255 / 256 / (2 * AXIS))
    assert price.seconds == pytest.approx(2 * 15 * 1e-6), "along one axis, then along the other"


@pytest.mark.parametrize("stride", [1, 16])
def test_a_group_along_one_axis_has_its_links(stride: int) -> None:
    price = terms("reduce_scatter", 16, cluster(CHIPS), stride)
    assert price == pytest.approx(Terms(15 * 1e-6, 15 / 16 / AXIS))


@pytest.mark.parametrize(("axes", "one", "other"), [(2, 16, 16), (3, 32, 8), (3, 16, 16)])
def test_groups_that_fill_a_torus_together_share_its_axes(axes: int, one: int, other: int) -> None:
    level = replace(CHIPS, torus=axes)
    assert one * other == level.size
    assert axes_of(one, level) + axes_of(other, level) == pytest.approx(axes)


def test_a_torus_of_one_axis_is_a_ring() -> None:
    ring, torus = (cluster(replace(CHIPS, torus=axes)) for axes in (0, 1))
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert terms(kind, 64, torus) == terms(kind, 64, ring)


@pytest.mark.parametrize(("axes", "chips"), [(1, 64), (2, 256), (3, 512)])
def test_what_crosses_the_middle_bounds_an_exchange(axes: int, chips: int) -> None:
    """Half of all chips send half of their bytes over the cut of one axis: two links a ring."""
    level = replace(CHIPS, torus=axes, size=chips)
    side = round(chips ** (1 / axes))
    cut = 2 * (chips // side) * AXIS / 2
    bound = chips / 2 / 2 / cut
    price = terms("all_to_all", chips, cluster(level)).seconds_per_byte
    assert bound * (1 - 1 / chips) == pytest.approx(price)


def test_no_torus_changes_nothing() -> None:
    flat = replace(CHIPS, torus=0)
    for fan in (1, 2, 8, 100):
        assert (axes_of(fan, flat), ring_steps(fan, flat), detour(fan, flat)) == (1, fan - 1, 1)


def test_wider_groups_have_no_fewer_axes_nor_shorter_ways() -> None:
    sizes = (2, 4, 8, 16, 32, 64, 128, 256)
    for one, two in pairwise(sizes):
        assert axes_of(one, CHIPS) <= axes_of(two, CHIPS) <= CHIPS.torus
        assert ring_steps(one, CHIPS) <= ring_steps(two, CHIPS)
        assert detour(one, CHIPS) <= detour(two, CHIPS)
