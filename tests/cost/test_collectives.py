"""Laws: geometry by brute force; monotone; no algorithm beats the price; published bandwidths."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cost.collectives import (
    Terms,
    collective_terms,
    crossed_level,
    group_geometry,
    hierarchical_terms,
    mesh_groups,
    ring_terms,
    transfer_terms,
)
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
    assert terms(kind, Mesh(()), cluster(), ()) == (0.0, 0.0)


def test_the_usual_counts_on_one_level() -> None:
    """Ring on 8 devices at 200 GB/s; bytes are those of one rank's input."""
    expected = {"all_gather": 7, "reduce_scatter": 7 / 8, "all_to_all": 7 / 8, "all_reduce": 14 / 8}
    for kind, volume in expected.items():
        steps = 14 if kind == "all_reduce" else 7
        price = terms(kind, line(8), cluster())
        assert price == pytest.approx((steps * 1e-6, volume / 200e9))


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
    ring = ring_terms(group_geometry(mesh_groups(line(size, stride), (0,)), hardware), hardware)
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
    ring = ring_terms(geometry, hardware)
    levels = hierarchical_terms(geometry, hardware)
    assert levels.seconds <= ring.seconds
    for nbytes in (0.0, 1e3, 1e6, 1e9):
        assert price.of(nbytes) <= ring.of(nbytes)
        assert not geometry.regular or price.of(nbytes) <= levels.of(nbytes)


def test_one_level_is_one_algorithm() -> None:
    geometry = group_geometry(mesh_groups(line(8), (0,)), cluster())
    levels = hierarchical_terms(geometry, cluster())
    assert ring_terms(geometry, cluster()) == pytest.approx(levels)


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
    assert transfer_terms(3, 3, hardware) == (0.0, 0.0)
    assert transfer_terms(1, 7, hardware) == pytest.approx((1e-6, 1 / 200e9))


@pytest.mark.parametrize(("concurrent", "share"), [(None, 8), (1, 1), (4, 4), (8, 8), (20, 8)])
def test_devices_that_send_together_share_the_nic(concurrent: int | None, share: int) -> None:
    price = transfer_terms(0, 8, cluster(FAST, SHARED_NIC), concurrent)
    assert price == pytest.approx((10e-6, share / 25e9))


AZURE_A100 = {64: 167.0, 256: 214.0, 1024: 228.0, 8192: 231.6}
"""MiB -> bus GB/s of an 8-device all-reduce. Source: Azure AI-benchmarking-guide, A100."""
VTRAIN_A100 = {64: 202.5, 256: 217.0, 1000: 229.0}
"""MB -> bus GB/s. Source: NCCL look-up tables of VIA-Research/vTrain, A100."""


@pytest.mark.parametrize(
    ("nbytes", "published"),
    [(mib << 20, rate) for mib, rate in AZURE_A100.items()]
    + [(mb * 10**6, rate) for mb, rate in VTRAIN_A100.items()],
)
def test_published_all_reduce_on_eight_a100(nbytes: int, published: float) -> None:
    hardware = load_hardware("a100-80g:8")
    seconds = terms("all_reduce", line(8), hardware).of(nbytes)
    bus = 2 * 7 / 8 * nbytes / seconds / 1e9
    assert bus == pytest.approx(published, rel=0.15)


def test_published_all_reduce_across_nodes() -> None:
    """4 nodes of 8 with 100 GB/s a node reach 91-98 GB/s at 32 MiB and over (stas00)."""
    slow_nics = {"levels.node.bandwidth": "12.5GB/s"}
    hardware = load_hardware("a100-80g:4x8", slow_nics)
    nbytes = 1 << 30
    seconds = terms("all_reduce", line(32), hardware).of(nbytes)
    assert 2 * 31 / 32 * nbytes / seconds / 1e9 == pytest.approx(95, rel=0.15)
