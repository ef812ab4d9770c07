"""Units: internally only bytes, seconds, FLOP and bytes per second; text in, text out."""

from __future__ import annotations

import re

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SCALE = {
    "": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15,
    "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40,
}  # fmt: skip
_QUANTITY = re.compile(
    r"^\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([KkMmGgTtPp]?i?)(B|b|bit|FLOP|FLOPS|W|s)?(/s)?\s*$"
)
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def parse_quantity(text: str) -> float:
    """`25GB/s`, `80GiB`, `312TFLOP/s`, `5us`, `100Gbit/s` or a bare number, in base units.

    Raises:
        ValueError: the text is not a number with a known unit.
    """
    stripped = text.strip()
    for unit, scale in sorted(_TIME.items(), key=lambda item: -len(item[0])):
        if stripped.endswith(unit) and not stripped.endswith("/s"):
            return float(stripped[: -len(unit)]) * scale
    match = _QUANTITY.match(stripped)
    if not match:
        raise ValueError(f"`{text}` is not a quantity such as 25GB/s, 80GiB or 312TFLOP/s")
    number, prefix, unit, _ = match.groups()
    value = float(number) * _SCALE[prefix.lower()]
    return value / 8 if unit in ("b", "bit") else value


def format_bytes(nbytes: float) -> str:
    """Bytes as a person reads memory: `31.2 GiB`."""
    for scale, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """Seconds with three significant digits and a fitting unit."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"
