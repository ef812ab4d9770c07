"""The levels inside a node that its topology makes.

They are the partitions that ever longer paths make of the devices. What a path joins must be units
of one size in which every pair has such a path, else the longer path is taken for all, and a note
says so. Devices under one PCIe switch share its way up, those of one socket the link between
sockets. How fast a path is, a matrix does not tell: the number of NVLinks does, and of PCIe the
profile that is extended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autoplan.errors import InputError, Problem
from autoplan.files.hardware import (
    LEVEL_KEYS,
    NEUTRAL,
    NODE,
    devices_per_node,
    levels_inside,
)
from autoplan.files.topology import NEAREST_FIRST, Topology
from autoplan.ir.machine import Evidence, Hardware, Level

NVLINK_RATE = 25e9
"""Bytes/s of one NVLink, one direction. Source: V100 6 links for 150 GB/s, A100 12 for 300, H100 18
for 450, H800 8 for 200; a GPU's fifth generation has 50."""
SAME_RATE = 0.02
UNITS: Mapping[str, str] = {
    "NV": "island", "PIX": "switch", "PXB": "switch", "PHB": "bridge", "NODE": "socket",
}  # fmt: skip
"""The longest path inside a unit -> what the unit is called; what SYS joins are sockets."""
LOCAL = ("PIX", "PXB")
HOST_PATHS = ("PHB", "NODE", "SYS")
"""Paths through the host's bridges, over which the library copies through its memory.
Source: NCCL's documentation of NCCL_P2P_LEVEL."""
GUESS = 2.0
"""Spread of a rate that a topology does not tell."""


def with_topology(hardware: Hardware, topology: Topology, notes: list[str]) -> Hardware:
    """The machine with the levels of one node replaced.

    Args:
        hardware: the machine; between nodes it stays as it is, but for who shares network cards.
        topology: of a node.
        notes: takes what a reader must know.

    Raises:
        InputError: a node of one device.
    """
    inside = levels_inside(hardware.levels)
    replaced = tuple(f"levels.{level.name}." for level in hardware.levels[:inside])
    evidence = {
        path: origin for path, origin in hardware.evidence.items() if not path.startswith(replaced)
    }
    levels = list(_levels(hardware, topology, evidence, notes))
    if not levels:
        raise InputError(Problem("--topology", "", "one device", "a node of two devices at least"))
    outer = [_with_cards(level, topology, evidence, notes) for level in hardware.levels[inside:]]
    whole = (*levels, *outer)
    return replace(
        hardware, levels=whole, evidence=evidence, devices_per_node=devices_per_node(whole)
    )


def partitions(topology: Topology, notes: list[str]) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Every level inside a node: (path, devices in order, devices of a unit that it makes).

    A unit's devices stand side by side in the order given; where that is not how they are numbered,
    a note says which order to use.
    """
    count = len(topology.devices)
    order, size = tuple(range(count)), 1
    for index, path in enumerate(NEAREST_FIRST):
        allowed = NEAREST_FIRST[: index + 1]
        units = _joined(topology, allowed)
        width = len(units[0])
        if width == size:
            continue
        if any(len(unit) != width for unit in units) or not _meets_all(topology, units, allowed):
            joined = " + ".join(str(len(unit)) for unit in units)
            notes.append(f"{path} joins the devices as {joined}: longer paths are taken for all")
            continue
        order = tuple(device for unit in units for device in _arranged(unit, order))
        size = width
        yield path, order, size
    if order != tuple(range(count)):
        names = ",".join(topology.devices[device].removeprefix("GPU") for device in order)
        notes.append(f"number the devices {names} (CUDA_VISIBLE_DEVICES): neighbours come together")


def _joined(topology: Topology, allowed: Sequence[str]) -> list[list[int]]:
    """Devices that reach each other over such paths, by their first."""
    units: list[list[int]] = []
    for number, device in enumerate(topology.devices):
        near = [
            unit for unit in units
            if any(topology.paths[device, topology.devices[other]] in allowed for other in unit)
        ]  # fmt: skip
        merged = sorted([number, *(other for unit in near for other in unit)])
        units = [unit for unit in units if unit not in near] + [merged]
    return sorted(units)


def _meets_all(
    topology: Topology, units: Sequence[Sequence[int]], allowed: Sequence[str]
) -> bool:  # fmt: skip
    """Whether inside a unit every pair has such a path, not only a chain of them."""
    return all(
        topology.paths[topology.devices[one], topology.devices[other]] in allowed
        for unit in units for one in unit for other in unit if one != other
    )  # fmt: skip


def _arranged(unit: Sequence[int], order: Sequence[int]) -> list[int]:
    """A unit's devices as the levels inside have put them."""
    return [device for device in order if device in unit]


def _levels(
    hardware: Hardware, topology: Topology, evidence: dict[str, Evidence], notes: list[str]
) -> Iterator[Level]:
    inside, below, switched = "", 1, 1
    inner = hardware.levels[0]
    for path, _, size in partitions(topology, notes):
        unit = "gpu" if not inside else "socket" if path == "SYS" else UNITS[inside]
        old = next((level for level in hardware.levels if level.name == unit), inner)
        rate, origin = _rate(path, old, hardware, topology)
        shared = 1 if path in ("NV", *LOCAL) else (below if path == "SYS" else switched)
        kept = path not in HOST_PATHS and (path == "NV" or inner.peer_to_peer)
        known = old.name == unit
        yield replace(
            old, name=unit, size=size // below, bandwidth=rate, shared_by=shared,
            peer_to_peer=kept, mesh=old.mesh if known else False,
            in_switch=old.in_switch if known and path == "NV" else 0.0,
        )  # fmt: skip
        where = f"levels.{unit}."
        told = Evidence("measured", "nvidia-smi topo -m")
        evidence |= {f"{where}size": told, f"{where}shared_by": told, f"{where}bandwidth": origin}
        stated = [key for key in LEVEL_KEYS if key in NEUTRAL and getattr(old, key)]
        for key in ("latency", "efficiency", *stated):
            was = hardware.evidence.get(f"levels.{old.name}.{key}", Evidence("assumed"))
            evidence[f"{where}{key}"] = was if known else Evidence(
                "assumed", f"as {old.name} of the profile that this one extends", GUESS
            )  # fmt: skip
        switched = size if path in LOCAL else switched
        inside, below = path, size


def _rate(
    path: str, old: Level, hardware: Hardware, topology: Topology
) -> tuple[float, Evidence]:  # fmt: skip
    """Bytes/s of a link of a level, one direction, and where that comes from."""
    kept = hardware.evidence.get(f"levels.{old.name}.bandwidth", Evidence("assumed"))
    if path == "NV":
        links = min(topology.links.values())
        rate = links * NVLINK_RATE
        if any(abs(old.bandwidth / (rate * part) - 1) < SAME_RATE for part in (1, 2)):
            return old.bandwidth, kept
        source = f"{links} NVLinks of 25 GB/s in each direction; bridges have slower ones"
        return rate, Evidence("assumed", source, GUESS)
    if not old.peer_to_peer:  # a level of PCIe, whose rate the profile knows
        return old.bandwidth, kept
    host = hardware.evidence.get("host.device_bandwidth", Evidence("assumed"))
    return hardware.host.device_bandwidth, Evidence(
        host.kind, f"a device's PCIe link, over {path}; as to the host: {host.source}", GUESS
    )


def _with_cards(
    level: Level, topology: Topology, evidence: dict[str, Evidence], notes: list[str]
) -> Level:
    """The level between nodes, its network cards shared as the topology says."""
    if level.name != NODE or not topology.cards:
        return level
    near = [
        card for card in topology.cards
        if any(topology.paths.get((device, card)) in LOCAL for device in topology.devices)
    ]  # fmt: skip
    if not near:
        return level
    shared = -(-len(topology.devices) // len(near))
    notes.append(
        f"{len(near)} network cards beside {len(topology.devices)} devices, as fitted; a log of "
        "nccl-tests over two nodes tells how fast those in use are"
    )
    evidence[f"levels.{NODE}.shared_by"] = Evidence(
        "measured", f"nvidia-smi topo -m: {len(near)} cards under a switch with devices"
    )
    return replace(level, shared_by=shared)
