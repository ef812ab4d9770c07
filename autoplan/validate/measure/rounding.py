"""Measured and fitted numbers with the digits that they deserve."""

from __future__ import annotations

from typing import Any

from autoplan.files.hardware import dump_hardware, parse_hardware
from autoplan.ir.machine import Hardware

DIGITS, SPREAD_DIGITS = 4, 3
ROUNDED = ("measured", "fitted")
"""Evidence of numbers that have no more digits than these."""
EXACT = ("memory_gib",)
"""Counted, not measured."""


def rounded(hardware: Hardware) -> Hardware:
    """The machine with such numbers rounded, in the units of its file.

    So it is equal to what its file says: numbers that never were in one may move in their last bit.
    """
    document = dump_hardware(hardware)
    _round(document)
    return parse_hardware(document, hardware.name)


def _round(document: Any) -> None:
    """Round every such number of a document in place."""
    for key, entry in document.items() if isinstance(document, dict) else enumerate(document):
        if isinstance(entry, dict) and entry.get("evidence") in ROUNDED:
            if key not in EXACT:
                entry["value"] = _digits(entry["value"], DIGITS)
            if "spread" in entry:
                entry["spread"] = max(1.0, _digits(entry["spread"], SPREAD_DIGITS))
        elif isinstance(entry, dict | list):
            _round(entry)


def _digits(value: float, digits: int) -> float:
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")
