"""HARDWARE on the command line: which profile, how many devices of it, which numbers changed.

    rtx4090            the profile at its own full size
    rtx4090:64         64 devices, whole nodes first
    rtx4090:16x8       16 nodes of 8 devices; `rtx4090-16x8` is the same
    ./mine.json:4      a profile file

Fewer devices than a node fill its innermost level first; more nodes than the profile has make its
outermost level grow. A size that does not fill whole units is refused, never rounded. A level of
one unit joins nothing and is left out, so that a profile may say how a machine would grow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from autoplan.errors import nearest
from autoplan.files.data import bundled_names, find_file
from autoplan.files.hardware import (
    DEVICE_KEYS,
    HOST_KEYS,
    LEVEL_KEYS,
    MOST_DEVICES,
    NODES,
    devices_per_node,
    levels_inside,
    parse_hardware,
)
from autoplan.files.problems import Problems
from autoplan.files.profiles import read_profile
from autoplan.files.quantities import Unit
from autoplan.ir.machine import Evidence, Hardware, Level

FOLDER = "hardware_profiles"
_SET = "--set"
_NODES = " or ".join(f"`{name}`" for name in NODES)
_SIZE = re.compile(r"[1-9]\d{0,8}(x[1-9]\d{0,8})?")
_LEVEL_FLAGS = ("duplex", "peer_to_peer", "mesh")
_HOST_FLAG = "ranks_share_cores"


def load_hardware(spec: str, overrides: Mapping[str, str] | None = None) -> Hardware:
    """The machine that a spec means.

    Args:
        spec: `NAME`, `NAME:N`, `NAME:16x8`, `path[:N]`; see the module.
        overrides: path of a number -> its new value with its unit
            (`levels.node.bandwidth` -> `25GB/s`), as in `--set`; evidence becomes "user".

    Raises:
        InputError: unknown profile, bad profile, override or size; every problem at once.
    """
    name, size = split_spec(spec)
    path = find_file(name, FOLDER, "hardware")
    document = read_profile(path, FOLDER, "hardware")
    problems = Problems(_SET)
    for where, text in (overrides or {}).items():
        _override(document, where, text, problems)
    hardware = problems.attempt(lambda: parse_hardware(document, str(path)))
    if hardware is not None:
        machine, wanted = hardware, size or str(hardware.count)
        hardware = problems.attempt(lambda: resize(machine, wanted))
    problems.check()
    assert hardware is not None, "without problems there is a machine"
    return hardware


def split_spec(spec: str) -> tuple[str, str]:
    """Profile and size of a spec; the size is "" for the whole profile."""
    name, colon, size = spec.rpartition(":")
    if colon and name:
        return name, size
    match = re.fullmatch(r"(.+)-(\d+x\d+)", spec)
    if match and match[1].lower() in bundled_names(FOLDER):
        return match[1], match[2]
    return spec, ""


def resize(hardware: Hardware, size: str) -> Hardware:
    """The machine with another number of devices.

    Args:
        hardware: the profile's machine.
        size: `N` devices or `NODESxDEVICES`.

    Raises:
        InputError: the size is no size, or leaves units half full.
    """
    problems = Problems(f"{hardware.name}:{size}")
    if not _SIZE.fullmatch(size):
        problems.add("", size, "a size: N devices or NODESxDEVICES, such as 64 or 8x8")
        problems.check()
    first, _, second = size.partition("x")
    inside = levels_inside(hardware.levels)
    inner, outer = hardware.levels[:inside], hardware.levels[inside:]
    if not second:
        sizes = _fill(hardware.levels, int(first), True, problems)
    elif outer:
        sizes = _fill(inner, int(second), False, problems)
        sizes += _fill(outer, int(first), True, problems)
    else:
        problems.add("", size, f"N devices: this profile has no level {_NODES}")
    problems.check()
    if prod(sizes) > MOST_DEVICES:
        problems.add("", size, f"at most {MOST_DEVICES} devices")
    problems.check()
    return _resized(hardware, sizes, size)


def _fill(
    levels: tuple[Level, ...], count: int, grows: bool, problems: Problems
) -> tuple[int, ...]:
    """Sizes of the levels that hold `count` units, innermost filled first."""
    left, unit, sizes = count, 1, []
    for index, level in enumerate(levels):
        last = index + 1 == len(levels)
        if left <= level.size or (last and grows):
            sizes.append(left)
            left = 1
        elif last or left % level.size:
            whole = unit * level.size
            allowed = f"at most {whole}" if last else f"at most {whole}, or a multiple of {whole}"
            hint = "" if last else f"{count // whole * whole} or {-(-count // whole) * whole}"
            problems.add("", count, f"{allowed}, to fill every {level.name} level", hint)
            break
        else:
            sizes.append(level.size)
            left //= level.size
        unit *= level.size
    return tuple(sizes)


def _resized(hardware: Hardware, sizes: tuple[int, ...], size: str) -> Hardware:
    """Levels of one unit vanish; fewer devices share what fewer devices sit below."""
    levels: list[Level] = []
    evidence, below = dict(hardware.evidence), 1
    for level, units, whole in zip(hardware.levels, sizes, hardware.spans[:-1], strict=True):
        prefix = f"levels.{level.name}."
        if units == 1 and (levels or prod(sizes) > 1):
            evidence = {k: v for k, v in evidence.items() if not k.startswith(prefix)}
            continue
        if units != level.size:
            evidence[f"{prefix}size"] = Evidence("user", f"size {size}")
        shared = min(level.shared_by, below) if below < whole else level.shared_by
        levels.append(replace(level, size=units, shared_by=shared))
        below *= units
    return replace(
        hardware,
        levels=tuple(levels),
        evidence=evidence,
        devices_per_node=devices_per_node(tuple(levels)),
    )


def _override(document: dict[str, Any], where: str, text: str, problems: Problems) -> None:
    """Set one number or switch of a profile document."""
    target = _target(document, where)
    if target is None:
        paths = sorted(_paths(document))
        problems.add(where, where, f"one of {', '.join(paths)}", nearest(where, paths))
        return
    holder, key, unit = target
    if unit is None:
        if text.lower() not in ("true", "false"):
            problems.add(where, text, "true or false")
        holder[key] = text.lower() == "true"
        return
    try:
        bare = where.endswith(unit.suffix) and unit.suffix
        value = float(text) if bare or not unit.suffix else unit.parse(text)
    except ValueError as error:
        problems.add(where, text, f"a quantity such as {unit.example}", str(error))
        return
    whole = value.is_integer() if isinstance(value, float) else True
    holder[key] = {"value": int(value) if whole else value, "evidence": "user", "source": _SET}


def _paths(document: Mapping[str, Any]) -> dict[str, tuple[Any, str, Unit | None]]:
    """Every path that may be overridden -> (object, key, unit; None for a switch)."""
    table: dict[str, tuple[Any, str, Unit | None]] = {}

    def section(holder: Any, keys: Mapping[str, tuple[str, Unit]], path: str) -> None:
        if not isinstance(holder, dict):
            return
        for attribute, (key, unit) in keys.items():
            entry = holder.get(key)
            if attribute == "peak_flops":
                for name in entry if isinstance(entry, dict) else ():
                    table[f"{path}.{attribute}.{name}"] = (entry, name, unit)
            else:
                table[f"{path}.{attribute}"] = (holder, key, unit)

    section(document.get("device"), DEVICE_KEYS, "device")
    section(document.get("host"), HOST_KEYS, "host")
    levels = document.get("levels")
    for level in levels if isinstance(levels, list) else ():
        if isinstance(level, dict) and isinstance(level.get("name"), str):
            section(level, LEVEL_KEYS, f"levels.{level['name']}")
            for flag in _LEVEL_FLAGS:
                table[f"levels.{level['name']}.{flag}"] = (level, flag, None)
    if isinstance(document.get("host"), dict):
        table[f"host.{_HOST_FLAG}"] = (document["host"], _HOST_FLAG, None)
    return table


def _target(document: Mapping[str, Any], where: str) -> tuple[Any, str, Unit | None] | None:
    """What a path means; `levels.node.bandwidth_gb_per_s` takes a bare number in that unit."""
    table = _paths(document)
    for path, target in table.items():
        holder, key, _ = target
        if where in (path, f"{path.rpartition('.')[0]}.{key}"):
            return holder, key, target[2]
    return None
