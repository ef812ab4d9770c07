"""Hardware profile JSON <-> `ir.machine.Hardware`.

Units stand in the keys of the file (`memory_gib`, `bandwidth_gb_per_s`, `latency_us`) and vanish
in the noun, which has bytes, seconds, FLOP/s and bytes per second. Levels stand innermost first and
are named after the unit they count: a level `node` of size 8 joins 8 nodes. Devices below the level
named `node` share a host; without such a level all of them do. Where links join the devices of many
hosts as one, as those of a torus do, that level is named `slice`, and `host` is all hosts of one.
What is not known is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal

from pydantic import Field

from autoplan.files.problems import Problems, Strict, validate
from autoplan.files.quantities import (
    GB_PER_S,
    GIBIBYTES,
    GIGAFLOP,
    MICROSECONDS,
    PLAIN,
    TERAFLOPS,
    WATTS,
    AmountNumber,
    CountNumber,
    FactorNumber,
    Number,
    PartNumber,
    Quantity,
    ShareNumber,
    Unit,
    stated,
    written,
)
from autoplan.files.text import digest
from autoplan.ir.machine import Device, Evidence, Hardware, Host, Level

NODE = "node"
"""Name of the level that counts hosts."""
NODES = (NODE, "slice")
"""Names of the level beyond which devices are joined by a network alone."""

MOST_DEVICES = 1 << 20

DEVICE_KEYS: Mapping[str, tuple[str, Unit]] = {
    "memory": ("memory_gib", GIBIBYTES),
    "peak_flops": ("peak_tflops", TERAFLOPS),
    "peak_flops_for_mfu": ("peak_tflops_for_mfu", TERAFLOPS),
    "memory_bandwidth": ("memory_bandwidth_gb_per_s", GB_PER_S),
    "gemm_efficiency": ("gemm_efficiency", PLAIN),
    "gemm_half_flops": ("gemm_half_gflop", GIGAFLOP),
    "attention_efficiency": ("attention_efficiency", PLAIN),
    "memory_efficiency": ("memory_efficiency", PLAIN),
    "launch": ("launch_us", MICROSECONDS),
    "power": ("power_watts", WATTS),
    "price_per_hour": ("price_per_hour", PLAIN),
}
"""Attribute of `Device` -> key of the file and its unit; likewise below."""

LEVEL_KEYS: Mapping[str, tuple[str, Unit]] = {
    "size": ("size", PLAIN),
    "bandwidth": ("bandwidth_gb_per_s", GB_PER_S),
    "latency": ("latency_us", MICROSECONDS),
    "shared_by": ("shared_by", PLAIN),
    "efficiency": ("efficiency", PLAIN),
    "torus": ("torus", PLAIN),
    "start": ("start_us", MICROSECONDS),
    "in_switch": ("in_switch", PLAIN),
    "short_share": ("short_share", PLAIN),
    "short_start": ("short_start_us", MICROSECONDS),
    "short_latency": ("short_latency_us", MICROSECONDS),
}
NEUTRAL: Mapping[str, float] = {
    "torus": 0, "start": 0.0, "in_switch": 0.0, "short_share": 0.0, "short_start": 0.0,
    "short_latency": 0.0, "contention": 1.0, "start_ramp": 0.0,
}  # fmt: skip
"""Values of attributes that are absent from a file where nothing else is said of them."""
HOST_KEYS: Mapping[str, tuple[str, Unit]] = {
    "memory": ("memory_gib", GIBIBYTES),
    "cores": ("cores", PLAIN),
    "device_bandwidth": ("device_bandwidth_gb_per_s", GB_PER_S),
    "contention": ("contention", PLAIN),
    "start_ramp": ("start_ramp_us", MICROSECONDS),
}

_WHOLE = ("memory", "size", "shared_by", "torus", "cores")
"""Attributes that are whole numbers in base units."""

PeakDtype = Literal["fp64", "fp32", "bf16", "fp16", "fp8"]


class DeviceFile(Strict):
    """`device` of a profile."""

    kind: str = Field(min_length=1)
    memory_gib: Number
    peak_tflops: dict[PeakDtype, Number] = Field(min_length=1)
    peak_tflops_for_mfu: Number
    memory_bandwidth_gb_per_s: Number
    gemm_efficiency: ShareNumber
    gemm_half_gflop: AmountNumber
    attention_efficiency: ShareNumber
    memory_efficiency: ShareNumber
    launch_us: AmountNumber
    power_watts: Number | None = None
    price_per_hour: Number | None = None


class LevelFile(Strict):
    """One of `levels`."""

    name: str = Field(pattern=r"^[A-Za-z]\w*$")
    size: CountNumber
    bandwidth_gb_per_s: Number
    latency_us: AmountNumber
    shared_by: CountNumber = Field(default={"value": 1}, validate_default=True)
    duplex: bool = True
    peer_to_peer: bool = True
    efficiency: ShareNumber = Field(default={"value": 1.0}, validate_default=True)
    mesh: bool = False
    torus: CountNumber | None = None
    start_us: AmountNumber | None = None
    in_switch: AmountNumber | None = None
    short_share: PartNumber | None = None
    short_start_us: AmountNumber | None = None
    short_latency_us: AmountNumber | None = None


class HostFile(Strict):
    """`host` of a profile: one node's."""

    memory_gib: Number
    cores: CountNumber
    device_bandwidth_gb_per_s: Number
    ranks_share_cores: bool = False
    contention: FactorNumber | None = None
    start_ramp_us: AmountNumber | None = None


class HardwareFile(Strict):
    """A whole profile, `extends` resolved."""

    name: str = Field(min_length=1)
    device: DeviceFile
    levels: list[LevelFile] = Field(min_length=1)
    host: HostFile


def parse_hardware(document: object, source: str, path: str = "$") -> Hardware:
    """The machine that a profile document describes.

    Args:
        document: parsed JSON, without `extends`.
        source: the file, for messages.
        path: path of the document inside the source.

    Raises:
        InputError: every problem at once.
    """
    file = validate(HardwareFile, document, source, path)
    problems = Problems(source)
    names = [level.name for level in file.levels]
    for index, name in enumerate(names):
        if name in names[:index]:
            problems.add(f"{path}.levels[{index}].name", name, "each level name once")
        if file.levels[index].mesh and file.levels[index].torus:
            problems.add(f"{path}.levels[{index}].torus", "a mesh and a torus", "one of them")
    count = prod(int(level.size.value) for level in file.levels)
    if count > MOST_DEVICES:
        problems.add(f"{path}.levels", f"{count} devices", f"at most {MOST_DEVICES} devices")
    problems.check()
    return _build(file)


def _build(file: HardwareFile) -> Hardware:
    evidence: dict[str, Evidence] = {}
    device = _numbers(file.device, DEVICE_KEYS, "device", evidence)
    host = _numbers(file.host, HOST_KEYS, "host", evidence)
    levels = tuple(
        Level(
            name=level.name,
            duplex=level.duplex,
            peer_to_peer=level.peer_to_peer,
            mesh=level.mesh,
            **_numbers(level, LEVEL_KEYS, f"levels.{level.name}", evidence),
        )
        for level in file.levels
    )
    return Hardware(
        name=file.name,
        device=Device(kind=file.device.kind, **device),
        levels=levels,
        host=Host(ranks_share_cores=file.host.ranks_share_cores, **host),
        evidence=evidence,
        devices_per_node=devices_per_node(levels),
    )


def _numbers(
    file: Strict, keys: Mapping[str, tuple[str, Unit]], path: str, evidence: dict[str, Evidence]
) -> dict[str, Any]:
    """Attributes in base units; what the file says about a number goes into `evidence`."""

    def number(where: str, attribute: str, quantity: Quantity, unit: Unit) -> float:
        origin = stated(quantity)
        if origin is not None:
            evidence[where] = origin
        value = unit.to_base(quantity.value)
        return round(value) if attribute in _WHOLE else float(value)

    values: dict[str, Any] = {}
    for attribute, (key, unit) in keys.items():
        entry = getattr(file, key)
        if entry is None:
            continue
        where = f"{path}.{attribute}"
        if isinstance(entry, Mapping):
            values[attribute] = {
                name: number(f"{where}.{name}", attribute, quantity, unit)
                for name, quantity in sorted(entry.items())
            }
        else:
            values[attribute] = number(where, attribute, entry, unit)
    return values


def levels_inside(levels: Sequence[Level]) -> int:
    """How many levels lie below the one that counts nodes; all where there is none."""
    return next((i for i, level in enumerate(levels) if level.name in NODES), len(levels))


def devices_per_node(levels: Sequence[Level]) -> int:
    """Devices below the level that counts nodes, or all where there is none."""
    return prod(level.size for level in levels[: levels_inside(levels)])


def dump_hardware(hardware: Hardware) -> dict[str, Any]:
    """The profile document of a machine; `parse_hardware` gives the machine back, equal.

    Numbers that never were in a file (fitted ones) may move by one unit in the last place once.
    """
    device = {"kind": hardware.device.kind}
    device |= _written(hardware.device, DEVICE_KEYS, "device", hardware.evidence)
    levels = [
        {"name": level.name}
        | _written(level, LEVEL_KEYS, f"levels.{level.name}", hardware.evidence)
        | {"duplex": level.duplex, "peer_to_peer": level.peer_to_peer}
        | ({"mesh": True} if level.mesh else {})
        for level in hardware.levels
    ]
    host = _written(hardware.host, HOST_KEYS, "host", hardware.evidence)
    host["ranks_share_cores"] = hardware.host.ranks_share_cores
    return {"name": hardware.name, "device": device, "levels": levels, "host": host}


def _written(
    noun: Device | Level | Host,
    keys: Mapping[str, tuple[str, Unit]],
    path: str,
    evidence: Mapping[str, Evidence],
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for attribute, (key, unit) in keys.items():
        value = getattr(noun, attribute)
        where = f"{path}.{attribute}"
        if value is None or (value == NEUTRAL.get(attribute) and where not in evidence):
            continue
        if isinstance(value, Mapping):
            document[key] = {
                name: written(unit.from_base(item), evidence.get(f"{where}.{name}"))
                for name, item in sorted(value.items())
            }
        else:
            document[key] = written(unit.from_base(value), evidence.get(where))
    return document


def hardware_digest(hardware: Hardware) -> str:
    """A name for the content of a machine."""
    return digest(dump_hardware(hardware))
