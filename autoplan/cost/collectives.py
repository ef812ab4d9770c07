"""How long does communication take? Latency and bandwidth of every level a group crosses.

A level's `bandwidth` is that of one link, which `shared_by` devices share when all talk at once;
and all do, since the groups along a mesh axis make the same collective at the same time. So each
device has bandwidth · efficiency / shared_by, and a group with k members in one unit (node) has k
times that: one NIC a node gives the group its share of it, a NIC a device gives k parallel rings.

Algorithms, for n ranks, a whole of W bytes (the gathered, or the unreduced tensor) and `passes`
(2 for all_reduce, which scatters and gathers, else 1):

    ring           passes · [ sum over hops of latency  +  (n-1)/n · W / slowest level ]
    hierarchical   passes · sum over levels of [ (fan-1) · latency + (fan-1)/fan · W_level / rate ]
    tree           all_reduce across nodes: ceil(log2 fan) instead of fan - 1 steps
    direct         all_to_all: each pair exchanges 1/n of the input, one after the other

Source: Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in
MPICH" (ring, pairwise exchange); Cho et al. 2019, "BlueConnect" (hierarchical); Jeaugey 2019,
"Massively scale your deep learning training with NCCL 2.4" (chains in a node, double binary trees
across: logarithmic latency at the ring's rate). Libraries order a ring by topology, so it leaves a
unit once. On a full mesh, n units have n - 1 links each and as many rings side by side (a complete
directed graph falls into Hamiltonian cycles: Tillson 1980), so what they share grows with n; so it
does on a torus (`cost.torus`).
Valid for messages over a fabric without oversubscription.

Every pass also takes `start` once, the largest of the levels crossed. A switch that adds up what
devices send it (`Level.in_switch`) takes each operand once, whatever the size of the group: an
all_reduce costs W / rate there. Exactly it is (n+1)/n · W (measured on 4 to 8 H200 within 1 %),
which falls with n; left out, so that no price falls as ranks are added.

Libraries send short messages by another protocol, of less latency and less bandwidth (NCCL's LL and
LL128). So a level may have a second set of start, latency and rate, and a price is the least of two
lines: concave in bytes, as measured rates that take long to rise demand. Source: Hu et al. 2025,
"Demystifying NCCL"; tables in `tests/data/collectives.json`, `scripts/collective_accuracy.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.cost.torus import axes_of, detour, ring_steps
from autoplan.ir.layout import Axis, Mesh
from autoplan.ir.machine import Hardware, Level

ALL_REDUCE_PASSES = 2
"""An all-reduce is a reduce-scatter and an all-gather."""
DIRECTIONS = 2
"""A link without duplex carries what a rank sends and what it receives."""
EXCHANGE_COPIES = 3
"""A core that exchanges copies what it sends and receives and puts its result together; that sends
copies once. Measured: 16 MiB each way take 3 to 4 times those one way (two cores, gloo)."""


class Line(NamedTuple):
    """`seconds` + `seconds_per_byte` · bytes of one rank's input."""

    seconds: float
    seconds_per_byte: float

    def of(self, nbytes: float) -> float:
        """Seconds for a size."""
        return self.seconds + self.seconds_per_byte * nbytes


class Terms(NamedTuple):
    """A price: the least of a line for long messages and, if there is one, a line for short ones.

    Attributes:
        seconds, seconds_per_byte: of long messages, per byte of one rank's input.
        short_seconds, short_seconds_per_byte: of short ones; infinite seconds: no such line.
    """

    seconds: float
    seconds_per_byte: float
    short_seconds: float = inf
    short_seconds_per_byte: float = 0.0

    @property
    def lines(self) -> tuple[Line, Line]:
        """The line of long messages, and that of short ones or the same again."""
        long = Line(self.seconds, self.seconds_per_byte)
        if self.short_seconds == inf:
            return long, long
        return long, Line(self.short_seconds, self.short_seconds_per_byte)

    def line(self, nbytes: float) -> Line:
        """The line that a size is priced by."""
        long, short = self.lines
        return short if short.of(nbytes) < long.of(nbytes) else long

    def of(self, nbytes: float) -> float:
        """Seconds for a size."""
        return min(
            self.seconds + self.seconds_per_byte * nbytes,
            self.short_seconds + self.short_seconds_per_byte * nbytes,
        )


NOTHING = Terms(0.0, 0.0)


class Reach(NamedTuple):
    """How groups lie on one level; where units differ, the worst one counts.

    Attributes:
        members: fewest ranks of a group in one unit below the level.
        fan: most units below the level that a group has in one unit of it.
        hops: steps of a ring, in topological order, that cross exactly this level.
        peers: most ranks of its group that a rank reaches across exactly this level.
    """

    members: int
    fan: int
    hops: int
    peers: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Groups of one collective on a machine.

    Attributes:
        ranks: in each group.
        levels: innermost first, one per level of the machine.
    """

    ranks: int
    levels: tuple[Reach, ...]

    @property
    def regular(self) -> bool:
        """Whether every unit holds as many ranks as every other of its level."""
        return prod(reach.fan for reach in self.levels) == self.ranks


def mesh_groups(mesh: Mesh, axes: Sequence[int]) -> NDArray[np.int64]:
    """Devices of every group along `axes` (indices) of a mesh.

    Shapes:
        result: (groups, ranks).
    """
    moving = _grid([mesh.axes[i] for i in axes])
    fixed = _grid([axis for i, axis in enumerate(mesh.axes) if i not in axes])
    return mesh.offset + fixed[:, None] + moving[None, :]


def _grid(axes: Sequence[Axis]) -> NDArray[np.int64]:
    """Offsets of all coordinates over some axes."""
    offsets = np.zeros(1, dtype=np.int64)
    for axis in axes:
        steps = np.arange(axis.size, dtype=np.int64) * axis.stride
        offsets = (offsets[:, None] + steps[None, :]).ravel()
    return offsets


def group_geometry(groups: NDArray[np.int64], hardware: Hardware) -> Geometry:
    """How groups lie on the levels of a machine.

    Args:
        groups: devices, shape (groups, ranks).
        hardware: the machine.
    """
    count, ranks = groups.shape
    owner = np.repeat(np.arange(count), ranks)
    devices = groups.ravel()
    heights = [_units(owner, devices, span, hardware) for span in hardware.spans]
    levels = tuple(_reach(below, above, count) for below, above in pairwise(heights))
    return Geometry(ranks, levels)


class _Units(NamedTuple):
    """Units of one height that groups touch.

    Attributes:
        owner: group of each unit, shape (units,).
        size: ranks of that group in each unit, shape (units,).
        of_rank: unit of each rank of each group, shape (groups · ranks,).
    """

    owner: NDArray[np.int64]
    size: NDArray[np.int64]
    of_rank: NDArray[np.int64]


def _units(
    owner: NDArray[np.int64], devices: NDArray[np.int64], span: int, hardware: Hardware
) -> _Units:
    keys = owner * hardware.count + devices // span
    units, of_rank, size = np.unique(keys, return_inverse=True, return_counts=True)
    return _Units(units // hardware.count, size, of_rank.reshape(-1))


def _reach(below: _Units, above: _Units, groups: int) -> Reach:
    parent = np.zeros(len(below.size), dtype=np.int64)
    parent[below.of_rank] = above.of_rank
    hops = np.bincount(below.owner, minlength=groups) - np.bincount(above.owner, minlength=groups)
    return Reach(
        members=int(below.size.min()),
        fan=int(np.bincount(parent).max()),
        hops=int(hops.max()),
        peers=int((above.size[parent] - below.size).max()),
    )


def device_rate(level: Level, hardware: Hardware, sharing: int = 0) -> float:
    """Bytes/s that one device sends across a level.

    Args:
        level: the level crossed.
        hardware: the machine.
        sharing: devices that use the link at the same time; 0: all that share it.

    Without peer-to-peer a message is copied up to host memory and down again: with duplex links
    the two copies use opposite directions, so only the host's link to a device limits it further;
    without duplex, sending and receiving share the link.
    """
    rate = level.bandwidth * level.efficiency / (sharing or level.shared_by)
    if not level.peer_to_peer:
        rate = min(rate, hardware.host.device_bandwidth)
    return rate if level.duplex else rate / DIRECTIONS


def lanes(reach: Reach, level: Level) -> float:
    """Links that a device uses at once: one, one to each unit of its group on a full mesh, or those
    of each axis that its group spans of a torus.
    """
    return max(1, reach.fan - 1) if level.mesh else axes_of(reach.fan, level)


class Protocol(NamedTuple):
    """How a library drives a level with messages of one kind.

    Attributes:
        start: seconds of a pass.
        latency: seconds of a step.
        share: of the rate that devices have.
        in_switch: share of that rate at which the switch reduces, or 0.
    """

    start: float
    latency: float
    share: float
    in_switch: float = 0.0


def protocol(level: Level, short: bool) -> Protocol:
    """The protocol of long messages, or of short ones where the level has one."""
    if short and level.short_share:
        return Protocol(level.short_start, level.short_latency, level.short_share)
    return Protocol(level.start, level.latency, 1.0, level.in_switch)


def start_of(geometry: Geometry, hardware: Hardware, short: bool = False) -> float:
    """Seconds that a pass takes once: those of the slowest level crossed."""
    pairs = zip(geometry.levels, hardware.levels, strict=True)
    return max(protocol(level, short).start for reach, level in pairs if reach.fan > 1)


def ring_line(geometry: Geometry, hardware: Hardware, short: bool = False) -> Line:
    """One pass of a flat ring, per byte of the whole; `start` aside.

    A step waits for its neighbour only, so latency adds up along the path of one chunk (n-1 hops).
    """
    seconds, slowest = 0.0, 0.0
    for reach, level in zip(geometry.levels, hardware.levels, strict=True):
        if reach.hops:
            way = protocol(level, short)
            seconds += reach.hops * way.latency
            rate = reach.members * lanes(reach, level) * device_rate(level, hardware) * way.share
            slowest = max(slowest, 1.0 / rate)
    return Line(seconds, (geometry.ranks - 1) / geometry.ranks * slowest)


def hierarchical_line(
    geometry: Geometry, hardware: Hardware, reduces: bool = False, short: bool = False
) -> Line:
    """One pass level by level, per byte of the whole; exact where the geometry is regular.

    Each level moves what is left of the whole after the levels below it: W / members per rank.

    Args:
        geometry: of the groups.
        hardware: the machine.
        reduces: for an all_reduce, with logarithmic steps above the node and the help of switches.
        short: by the protocol of short messages.
    """
    seconds, per_byte = 0.0, 0.0
    for index, reach in enumerate(geometry.levels):
        level = hardware.levels[index]
        way = protocol(level, short)
        across_nodes = hardware.spans[index] >= hardware.devices_per_node
        steps = ring_steps(reach.fan, level)
        steps = (reach.fan - 1).bit_length() if reduces and across_nodes else steps
        seconds += steps * way.latency
        part = (reach.fan - 1) / reach.fan / lanes(reach, level)
        if reduces and way.in_switch:
            part = min(part, 1.0 / ALL_REDUCE_PASSES / way.in_switch)
        per_byte += part / reach.members / (device_rate(level, hardware) * way.share)
    return Line(seconds, per_byte)


def direct_line(geometry: Geometry, hardware: Hardware, short: bool = False) -> Line:
    """A pairwise exchange, per byte of one rank's input: peer after peer, near and far.

    Where the links of two levels are two ports they can work side by side, which hides the faster
    one's part; counted, since links of one port cannot (dies on a CloudMatrix), and since a farther
    rank would else make an exchange cheaper. A core of a host does its copies one by one.
    """
    seconds, per_byte = start_of(geometry, hardware, short), 0.0
    for index, (reach, level) in enumerate(zip(geometry.levels, hardware.levels, strict=True)):
        way = protocol(level, short)
        seconds += reach.peers * way.latency
        share = reach.peers / geometry.ranks / lanes(reach, level) * detour(reach.fan, level)
        inside = hardware.spans[index] < hardware.devices_per_node
        copies = EXCHANGE_COPIES if hardware.host.ranks_share_cores and inside else 1
        per_byte += copies * share / (device_rate(level, hardware) * way.share)
    return Line(seconds, per_byte)


def process_line(kind: str, geometry: Geometry, hardware: Hardware, short: bool = False) -> Line:
    """The price among processes of hosts, per byte of one rank's input: pairs exchange directly.

    A gather sends the whole input to each peer, a scatter a part. Two processes reduce by
    exchanging their inputs; more scatter and gather. Source: `runtime.distributed`.
    """
    line, ranks = direct_line(geometry, hardware, short), geometry.ranks
    if kind == "reduce_scatter":
        return line
    if kind == "all_gather" or ranks == ALL_REDUCE_PASSES:
        return Line(line.seconds, ranks * line.seconds_per_byte)
    return Line(ALL_REDUCE_PASSES * line.seconds, ALL_REDUCE_PASSES * line.seconds_per_byte)


def collective_terms(kind: str, geometry: Geometry, hardware: Hardware) -> Terms:
    """The price of a collective per byte of one rank's input operand.

    Args:
        kind: all_gather, reduce_scatter, all_reduce or all_to_all.
        geometry: of its groups.
        hardware: the machine.

    Returns:
        The least latency and the least time per byte of the algorithms above: a library chooses by
        size, and pipelines chunks through the levels in between.
    """
    if geometry.ranks == 1:
        return NOTHING
    long = collective_line(kind, geometry, hardware)
    crossed = zip(geometry.levels, hardware.levels, strict=True)
    if not any(level.short_share for reach, level in crossed if reach.fan > 1):
        return Terms(*long)
    return Terms(*long, *collective_line(kind, geometry, hardware, short=True))


def collective_line(kind: str, geometry: Geometry, hardware: Hardware, short: bool = False) -> Line:
    """One line of `collective_terms`, of more than one rank."""
    if kind == "all_to_all":
        return direct_line(geometry, hardware, short)
    if hardware.host.ranks_share_cores:
        return process_line(kind, geometry, hardware, short)
    reduces = kind == "all_reduce"
    passes = ALL_REDUCE_PASSES if reduces else 1
    whole = geometry.ranks if kind == "all_gather" else 1
    choices = [ring_line(geometry, hardware, short)]
    if geometry.regular:
        choices.append(hierarchical_line(geometry, hardware, reduces, short))
    seconds = min(choice.seconds for choice in choices) + start_of(geometry, hardware, short)
    per_byte = min(choice.seconds_per_byte for choice in choices)
    return Line(passes * seconds, passes * whole * per_byte)


def transfer_terms(
    source: int, target: int, hardware: Hardware, concurrent: int | None = None
) -> Terms:
    """The price of sending from one device to another, per byte sent.

    Args:
        source: the device that sends.
        target: the device that receives.
        hardware: the machine.
        concurrent: devices that send over the same link at the same time, itself
            included; None: all that share it.
    """
    if source == target:
        return NOTHING
    level = hardware.levels[crossed_level(source, target, hardware)]
    sharing = level.shared_by if concurrent is None else min(max(concurrent, 1), level.shared_by)
    return Terms(level.latency, 1.0 / device_rate(level, hardware, sharing))


def crossed_level(source: int, target: int, hardware: Hardware) -> int:
    """Index of the level that joins two different devices."""
    spans = hardware.spans[1:]
    return next(i for i, span in enumerate(spans) if source // span == target // span)
