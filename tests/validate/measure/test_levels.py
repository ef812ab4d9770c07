"""Levels of a node by its topology: those of the profiles that people wrote by hand."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.files.machine_spec import load_hardware
from autoplan.files.topology import parse_topology
from autoplan.validate.measure.levels import with_topology
from tests.files.cluster_texts import (
    BEHIND_SWITCHES,
    BRIDGED,
    SWITCHED,
    TWO_SOCKETS,
    Paths,
    topology,
)


def made(name, paths, *cards):
    """(machine, notes) of a profile with another topology."""
    notes = []
    found = parse_topology(topology(paths, *cards), "topo.txt")
    return with_topology(load_hardware(name), found, notes), notes


def shape(hardware):
    return [
        (v.name, v.size, v.shared_by, v.peer_to_peer) for v in hardware.levels if v.name != "node"
    ]


@pytest.mark.parametrize(
    ("name", "paths"), [("rtx4090", TWO_SOCKETS), ("a100-80g", SWITCHED),
                        ("h100-80g", Paths(8, [(8, "NV18")])), ("h800-80g", Paths(8, [(8, "NV8")])),
                        ("b200", Paths(8, [(8, "NV18")]))],
)  # fmt: skip
def test_the_topology_of_a_bundled_machine_gives_its_levels(name, paths):
    hardware, notes = made(name, paths)
    bundled = load_hardware(name)
    assert hardware.levels == bundled.levels
    assert hardware.devices_per_node == bundled.devices_per_node
    assert notes == []


def test_bridged_pairs_two_sockets():
    hardware, _ = made("a100-80g", BRIDGED)
    assert shape(hardware) == [
        ("gpu", 2, 1, True), ("island", 2, 1, False), ("socket", 2, 4, False),
    ]  # fmt: skip
    gpu, island, socket = hardware.levels[:3]
    assert gpu.bandwidth == 4 * 25e9
    assert island.bandwidth == socket.bandwidth == hardware.host.device_bandwidth
    assert hardware.evidence["levels.gpu.bandwidth"].spread == 2


def test_devices_behind_a_switch_share_its_way_up():
    hardware, _ = made("a100-80g", BEHIND_SWITCHES)
    assert shape(hardware) == [
        ("gpu", 2, 1, True), ("switch", 2, 2, False), ("socket", 2, 4, False),
    ]  # fmt: skip


def test_cards_in_the_way_that_they_are_fitted():
    """Four cards, each under a switch with one of eight devices."""
    cards = tuple(f"NIC{k}" for k in range(4))
    hardware, notes = made(
        "h100-80g",
        Paths(8, [(8, "NV18")]),
        cards,
        lambda device, card: "PIX" if device == 2 * card else "SYS",
    )
    assert hardware.levels[1].shared_by == 2
    assert "4 network cards beside 8 devices" in notes[0]


def test_units_of_several_sizes_take_the_longer_path():
    paths = Paths(3, [(2, "PIX"), (3, "SYS")])
    hardware, notes = made("rtx4090", paths)
    assert [level[:2] for level in shape(hardware)] == [("gpu", 3)]
    assert notes[0].startswith("PIX joins the devices as 2 + 1")


def test_pairs_that_are_not_numbered_side_by_side():
    class Across(Paths):
        def __call__(self, i, j):
            return "NV4" if i % 4 == j % 4 else "SYS"

    hardware, notes = made("a100-80g", Across(8, []))
    assert [level[:2] for level in shape(hardware)] == [("gpu", 2), ("socket", 4)]
    assert "number the devices 0,4,1,5,2,6,3,7" in notes[-1]


def test_a_chain_of_links_is_no_full_unit():
    """A ring of four NVLinks: neighbours only, so that the pairs across go over the bridges."""

    class Ring(Paths):
        def __call__(self, i, j):
            return "NV2" if (i - j) % 4 in (1, 3) else "PHB"

    hardware, notes = made("a100-80g", Ring(4, []))
    assert [level[:2] for level in shape(hardware)] == [("gpu", 4)]
    assert not hardware.levels[0].peer_to_peer
    assert notes


def test_one_device_has_no_levels():
    with pytest.raises(InputError, match="a node of two devices"):
        made("a100-80g", Paths(1, []))
