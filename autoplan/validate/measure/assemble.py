"""What was measured, put in the place of what a profile said."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autoplan.files.hardware import levels_inside
from autoplan.ir.machine import Evidence, Hardware
from autoplan.units import MIB
from autoplan.validate.measure.compute import DeviceFit
from autoplan.validate.measure.crowd import Crowd
from autoplan.validate.measure.links import LevelFit

LARGE = MIB
"""Bytes from which a message is large: bandwidth is judged by those, latency by the others."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that was measured.

    Attributes:
        ranks: that were measured, at once.
        device_memory: bytes of each.
        memory: bytes of the host.
        cores: of the host, that the ranks may use.
        copy_rate: bytes/s between host and each device.
        copy_spread: one-sigma factor of that.
        how: source of that.
        crowd: what its busy cores do to each other, where ranks are cores.
    """

    ranks: int
    device_memory: int
    memory: int
    cores: int
    copy_rate: float
    copy_spread: float
    how: str
    crowd: Crowd = field(default_factory=Crowd)


def as_node(parent: Hardware, name: str, node: Node, fitted: DeviceFit) -> Hardware:
    """The parent as one node of this kind: one level for all its ranks.

    What joins nodes stays as the parent says, of size one, to be grown by who asks for more; levels
    of the parent inside a node go, since nobody measured them.
    """
    inside = levels_inside(parent.levels)
    outer = parent.levels[inside:] if inside else ()
    inner = replace(parent.levels[0], size=node.ranks, shared_by=1, mesh=False)
    kept = [inner.name, *(level.name for level in outer)]
    seen = Evidence("measured", "this machine")
    evidence = {
        path: origin
        for path, origin in parent.evidence.items()
        if not path.startswith("levels.") or path.split(".")[1] in kept
    }
    evidence |= fitted.evidence
    evidence |= dict.fromkeys(
        ("device.memory", "host.memory", "host.cores", *(f"levels.{n}.size" for n in kept)), seen
    )
    evidence["host.device_bandwidth"] = Evidence("measured", node.how, node.copy_spread)
    if parent.host.ranks_share_cores:
        how = f"steps of {node.ranks} ranks at once against those of one alone"
        evidence["host.contention"] = Evidence("measured", how, node.crowd.spread)
    ramp = parent.host.start_ramp
    if node.crowd.ramp is not None:
        ramp = node.crowd.ramp
        how = f"collectives of {node.ranks} ranks after computing of several lengths"
        evidence["host.start_ramp"] = Evidence("measured", how)
    return Hardware(
        name=name,
        device=replace(fitted.device, memory=node.device_memory),
        levels=(inner, *(replace(level, size=1) for level in outer)),
        host=replace(
            parent.host,
            memory=node.memory,
            cores=node.cores,
            device_bandwidth=node.copy_rate,
            contention=node.crowd.contention,
            start_ramp=ramp,
        ),
        evidence=evidence,
        devices_per_node=node.ranks,
    )


def with_rate(hardware: Hardware, index: int, fitted: LevelFit, source: str) -> Hardware:
    """A level with its measured latency and rate.

    Where a data sheet knows the bandwidth, the rate is a share of it; elsewhere the bandwidth is
    what was measured, and needs no efficiency.
    """
    old = hardware.levels[index]
    path = f"levels.{old.name}."
    sheet = hardware.evidence.get(f"{path}bandwidth", Evidence("assumed")).kind == "datasheet"
    kept = sheet and fitted.rate <= old.bandwidth
    bandwidth = old.bandwidth if kept else fitted.rate
    level = replace(
        old.timed(fitted.latency), bandwidth=bandwidth, efficiency=fitted.rate / bandwidth
    )
    found: dict[str, Evidence] = {"latency": _evidence(source, fitted.typical_error(most=LARGE))}
    if fitted.start is not None:
        level = replace(level, start=fitted.start)
        found["start"] = found["latency"]
    rate = _evidence(source, fitted.typical_error(least=LARGE))
    if kept:
        found["efficiency"] = rate
    else:
        reached = Evidence("measured", "the bandwidth is what collectives reach")
        found |= {"bandwidth": rate, "efficiency": reached}
    levels = list(hardware.levels)
    levels[index] = level
    evidence = {**hardware.evidence, **{f"{path}{key}": origin for key, origin in found.items()}}
    return replace(hardware, levels=tuple(levels), evidence=evidence)


def _evidence(source: str, error: float | None) -> Evidence:
    return Evidence("measured", source, None if error is None else 1 + error)
