"""Laws: geometry by brute force; monotone on every machine; no algorithm beats the price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cost.collectives import (
    NOTHING,
    Geometry,
    Terms,
    collective_terms,
    crossed_level,
    direct_line,
    group_geometry,
    hierarchical_line,
    mesh_groups,
    process_line,
    ring_line,
    transfer_terms,
)
from autoplan.files.data import bundled_names
from autoplan.files.machine_spec import load_hardware
from autoplan.ir.layout import Axis, Mesh
from autoplan.ir.machine import Hardware, Level
from tests.cost.machines import FAST, OWN_NIC, SHARED_NIC, cluster, line

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
MESHES = (
    Mesh((Axis("a", 4, 32), Axis("b", 2, 8), Axis("c", 8, 1))),
    Mesh((Axis("a", 2, 8), Axis("b", 4, 2)), offset=16),
    Mesh((Axis("a", 3, 6), Axis("b", 6, 1)), offset=3),
)


def terms(kind: str, mesh: Mesh, hardware: Hardware, axes: tuple[int, ...] = (0,)) -> Terms:
    return collective_terms(kind, group_geometry(mesh_groups(mesh, axes), hardware), hardware)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_groups_are_those_of_the_mesh(mesh: Mesh, axes: tuple[int, ...]) -> None:
    expected = {mesh.group(coordinate, axes) for coordinate in mesh.coordinates()}
    assert {tuple(row) for row in mesh_groups(mesh, axes).tolist()} == expected


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_geometry_counts_what_a_person_counts(mesh: Mesh, axes: tuple[int, ...]) -> None:
    hardware = cluster()
    groups = mesh_groups(mesh, axes)
    geometry = group_geometry(groups, hardware)
    for level, reach in enumerate(geometry.levels):
        inner, outer = hardware.spans[level], hardware.spans[level + 1]
        members: list[int] = []
        fans: list[int] = []
        hops: list[int] = []
        peers: list[int] = []
        for group in groups.tolist():
            units = Counter(d // inner for d in group)
            wholes = Counter(d // outer for d in group)
            members += units.values()
            fans += Counter(u * inner // outer for u in units).values()
            hops.append(len(units) - len(wholes))
            peers += [wholes[d // outer] - units[d // inner] for d in group]
        assert reach == (min(members), max(fans), max(hops), max(peers))


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_costs_nothing(kind: str) -> None:
    assert terms(kind, Mesh(()), cluster(), ()) == NOTHING


def test_the_usual_counts_on_one_level() -> None:
    """Ring on 8 devices at 200 GB/s; bytes are those of one rank's input."""
    expected = {"all_gather": 7, "reduce_scatter": 7 / 8, "all_to_all": 7 / 8, "all_reduce": 14 / 8}
    for kind, volume in expected.items():
        steps = 14 if kind == "all_reduce" else 7
        price = terms(kind, line(8), cluster())
        assert price == pytest.approx(Terms(steps * 1e-6, volume / 200e9))


def test_the_input_of_an_all_gather_is_a_part_that_of_a_reduce_scatter_the_whole() -> None:
    gather, scatter = (terms(k, line(16), cluster()) for k in ("all_gather", "reduce_scatter"))
    assert gather.of(1e6) == pytest.approx(scatter.of(16e6))


@pytest.mark.parametrize(
    ("stride", "size", "level", "per_node"),
    [
        (8, 16, OWN_NIC, 25e9),  # one member a node: its own NIC
        (1, 128, OWN_NIC, 200e9),  # all members of a node: eight NICs
        (2, 64, OWN_NIC, 100e9),
        (1, 128, SHARED_NIC, 25e9),  # the whole node's NIC
        (8, 16, SHARED_NIC, 25e9 / 8),  # eight groups compete for it
        (4, 32, SHARED_NIC, 25e9 / 4),
    ],
)
def test_nics_are_shared_and_aggregate(
    stride: int, size: int, level: Level, per_node: float
) -> None:
    hardware = cluster(FAST, level)
    ring = ring_line(group_geometry(mesh_groups(line(size, stride), (0,)), hardware), hardware)
    assert ring.seconds_per_byte == pytest.approx((size - 1) / size / per_node)


def test_axes_inside_a_node_are_cheaper_than_across() -> None:
    mesh = Mesh((Axis("node", 8, 8), Axis("gpu", 8, 1)))
    for kind in KINDS:
        inside, across, both = (terms(kind, mesh, cluster(), axes) for axes in ((1,), (0,), (0, 1)))
        assert inside < across
        assert inside.of(1e9) < both.of(1e9)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("level", [OWN_NIC, SHARED_NIC])
def test_never_dearer_than_an_algorithm(mesh: Mesh, axes: tuple[int, ...], level: Level) -> None:
    hardware = cluster(FAST, level)
    geometry = group_geometry(mesh_groups(mesh, axes), hardware)
    price = collective_terms("reduce_scatter", geometry, hardware)
    ring = ring_line(geometry, hardware)
    levels = hierarchical_line(geometry, hardware)
    assert levels.seconds <= ring.seconds
    for nbytes in (0.0, 1e3, 1e6, 1e9):
        assert price.of(nbytes) <= ring.of(nbytes)
        assert not geometry.regular or price.of(nbytes) <= levels.of(nbytes)


def test_one_level_is_one_algorithm() -> None:
    geometry = group_geometry(mesh_groups(line(8), (0,)), cluster())
    levels = hierarchical_line(geometry, cluster())
    assert ring_line(geometry, cluster()) == pytest.approx(levels)


def test_trees_make_latency_across_nodes_logarithmic() -> None:
    price = terms("all_reduce", line(16, 8), cluster())
    assert price.seconds == pytest.approx(2 * 4 * 10e-6)
    assert terms("all_gather", line(16, 8), cluster()).seconds == pytest.approx(15 * 10e-6)


@given(
    kind=st.sampled_from(KINDS),
    size=st.sampled_from([2, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2, 4]),
    shared_by=st.sampled_from([1, 2, 8]),
    nbytes=st.floats(0, 1e10),
    factor=st.floats(1.0, 8.0),
)
@settings(max_examples=60, deadline=None)
def test_monotone_in_bytes_ranks_and_links(
    kind: str, size: int, stride: int, shared_by: int, nbytes: float, factor: float
) -> None:
    hardware = cluster(FAST, replace(OWN_NIC, size=32, shared_by=shared_by))
    seconds = terms(kind, line(size, stride), hardware).of(nbytes)
    assert seconds >= 0.0
    assert terms(kind, line(size, stride), hardware).of(nbytes * factor) >= seconds
    assert terms(kind, line(2 * size, stride), hardware).of(nbytes) >= seconds
    for index in range(2):
        for change in ("bandwidth", "latency"):
            levels = list(hardware.levels)
            value = getattr(levels[index], change)
            better = value * factor if change == "bandwidth" else value / factor
            levels[index] = replace(levels[index], **{change: better})
            faster = replace(hardware, levels=tuple(levels))
            assert terms(kind, line(size, stride), faster).of(nbytes) <= seconds


def test_through_the_host_and_without_duplex() -> None:
    base = Level("gpu", 4, 50e9, 1e-6)

    def rate(duplex: bool = True, peer_to_peer: bool = True) -> float:
        level = replace(base, duplex=duplex, peer_to_peer=peer_to_peer)
        price = terms("reduce_scatter", line(4), cluster(level))
        return 0.75 / price.seconds_per_byte

    assert rate() == pytest.approx(50e9)
    assert rate(duplex=False) == pytest.approx(25e9)
    assert rate(peer_to_peer=False) == pytest.approx(25e9), "the host's link to a device"
    assert rate(peer_to_peer=False, duplex=False) == pytest.approx(12.5e9)


def test_the_worst_group_counts() -> None:
    """One of two named groups crosses nodes."""
    hardware = cluster()
    near, far = np.array([[0, 1]]), np.array([[7, 8]])
    both = group_geometry(np.concatenate([near, far]), hardware)
    alone = group_geometry(far, hardware)
    price = collective_terms("all_reduce", both, hardware)
    assert price >= collective_terms("all_reduce", alone, hardware)


def test_transfers_cross_the_lowest_level_that_joins_both() -> None:
    hardware = cluster(FAST, SHARED_NIC)
    assert crossed_level(1, 7, hardware) == 0
    assert crossed_level(7, 8, hardware) == 1
    assert transfer_terms(3, 3, hardware) == NOTHING
    assert transfer_terms(1, 7, hardware) == pytest.approx(Terms(1e-6, 1 / 200e9))


@pytest.mark.parametrize(("concurrent", "share"), [(None, 8), (1, 1), (4, 4), (8, 8), (20, 8)])
def test_devices_that_send_together_share_the_nic(concurrent: int | None, share: int) -> None:
    price = transfer_terms(0, 8, cluster(FAST, SHARED_NIC), concurrent)
    assert price == pytest.approx(Terms(10e-6, share / 25e9))


PROTOCOLS = replace(
    FAST, latency=3e-6, start=50e-6, short_share=0.5, short_start=15e-6, short_latency=1e-6
)


def test_a_price_is_the_least_of_two_lines_and_concave() -> None:
    price = terms("all_reduce", line(8), cluster(PROTOCOLS))
    assert price.seconds == pytest.approx(2 * (50e-6 + 7 * 3e-6))
    assert price.short_seconds == pytest.approx(2 * (15e-6 + 7 * 1e-6))
    assert price.short_seconds_per_byte == pytest.approx(2 * price.seconds_per_byte)
    sizes = np.array([1 << shift for shift in range(31)], dtype=float)
    seconds = np.array([price.of(size) for size in sizes])
    long, short = (np.array([one.of(size) for size in sizes]) for one in price.lines)
    assert (seconds == np.minimum(long, short)).all()
    assert (np.diff(np.diff(seconds) / np.diff(sizes)) <= 1e-20).all()
    assert price.line(1.0) == price.lines[1]
    assert price.line(1e9) == price.lines[0]


def test_without_a_protocol_of_short_messages_a_price_is_one_line() -> None:
    price = terms("all_reduce", line(8), cluster(replace(PROTOCOLS, short_share=0.0)))
    assert price.lines[0] == price.lines[1]


def test_a_level_without_such_a_protocol_slows_one_that_has_it() -> None:
    """A group over both pays the start of the slower level once a pass, and steps of either."""
    slow = replace(OWN_NIC, start=80e-6)
    price = terms("all_gather", line(16), cluster(PROTOCOLS, slow))
    assert price.short_seconds == pytest.approx(80e-6 + 7 * 1e-6 + 10e-6)
    assert price.seconds == pytest.approx(80e-6 + 7 * 3e-6 + 10e-6)


def test_a_switch_that_reduces_takes_every_operand_once() -> None:
    """Whatever the group; a ring that moves less is still taken, and gathers have no help."""
    helped = cluster(replace(FAST, in_switch=0.8))
    for ranks in (4, 8):
        price = terms("all_reduce", line(ranks), helped)
        assert price.seconds_per_byte == pytest.approx(1 / (0.8 * 200e9))
    for kind, ranks in (("all_reduce", 2), ("all_gather", 8), ("reduce_scatter", 8)):
        assert terms(kind, line(ranks), helped) == terms(kind, line(ranks), cluster())


# --- shipped machines -----------------------------------------------------------------------------

MACHINES = tuple(name for name in bundled_names("hardware_profiles") if name != "cpu-host")
ALGORITHMS: dict[str, Callable[[Geometry, Hardware], Terms]] = {
    "ring": lambda g, h: Terms(*ring_line(g, h), *ring_line(g, h, True)),
    "levels": lambda g, h: Terms(*hierarchical_line(g, h), *hierarchical_line(g, h, short=True)),
    "tree": lambda g, h: Terms(
        *hierarchical_line(g, h, True), *hierarchical_line(g, h, True, True)
    ),
    "direct": lambda g, h: Terms(*direct_line(g, h), *direct_line(g, h, True)),
    "processes": lambda g, h: Terms(
        *process_line("all_reduce", g, h), *process_line("all_reduce", g, h, True)
    ),
    **{kind: lambda g, h, kind=kind: collective_terms(kind, g, h) for kind in KINDS},
}
BYTES = (0.0, 1.0, 1e3, 1e5, 1e6, 1e7, 1e8, 1e9, 1e11)


def nested(hardware: Hardware) -> list[list[Geometry]]:
    """Chains of groups, each of which holds the one before."""
    chains = []
    for stride in hardware.spans[:-1]:
        count, chain = 2, []
        while count * stride <= hardware.count:
            chain.append(group_geometry(mesh_groups(line(count, stride), (0,)), hardware))
            count *= 2
        chains.append(chain)
    return chains


@pytest.mark.parametrize("name", [*MACHINES, "cpu-host:8"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shipped_machines_are_monotone_in_bytes_ranks_and_links(name: str, algorithm: str) -> None:
    """But for ranks on a full mesh or torus: with more links of their own a whole moves sooner."""
    hardware, price = load_hardware(name), ALGORITHMS[algorithm]
    meshed = [index for index, level in enumerate(hardware.levels) if level.mesh or level.torus]
    for chain in nested(hardware):
        before: list[float] = []
        for geometry in chain:
            if algorithm in ("levels", "tree") and not geometry.regular:
                continue  # no such algorithm
            here = price(geometry, hardware)
            seconds = [here.of(size) for size in BYTES]
            assert all(one <= two for one, two in pairwise(seconds))
            if not any(geometry.levels[index].fan > 1 for index in meshed):
                assert all(one <= two * EVEN for one, two in zip(before, seconds, strict=False))
                before = seconds
            for index in range(len(hardware.levels)):
                for key in ("bandwidth", "latency", "start", "short_latency", "short_start"):
                    better = price(geometry, quicker(hardware, index, key))
                    assert all(better.of(b) <= s for b, s in zip(BYTES, seconds, strict=True))


EVEN = 1.0 + 1e-12
"""Two sums of the same terms in another order."""


def quicker(hardware: Hardware, index: int, key: str) -> Hardware:
    """The machine with one number of a level twice as good."""
    levels = list(hardware.levels)
    value = getattr(levels[index], key)
    levels[index] = replace(levels[index], **{key: 2 * value if key == "bandwidth" else value / 2})
    return replace(hardware, levels=tuple(levels))
