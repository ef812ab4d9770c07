"""Numbers in profile files: a value, its unit in the key, and where it comes from.

    "bandwidth_gb_per_s": 25
    "bandwidth_gb_per_s": {"value": 25, "evidence": "datasheet", "source": "HDR", "spread": 1.07}

A bare number is *assumed*. `spread` is the one-sigma factor of the number (1.07: "x/ 1.07").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, nextafter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from autoplan.files.problems import Strict
from autoplan.ir.machine import Evidence
from autoplan.units import GIB, parse_quantity

ASSUMED = Evidence("assumed")
"""Evidence of a number that says nothing about itself."""

LARGEST = 10**15
_NEIGHBOURS = 8


class Quantity(Strict):
    """A number > 0 with its evidence."""

    value: float = Field(gt=0, le=LARGEST)
    evidence: Literal["datasheet", "measured", "fitted", "user", "assumed"] = "assumed"
    source: str = ""
    spread: float | None = Field(default=None, ge=1, le=LARGEST)

    @property
    def origin(self) -> Evidence:
        """Where the number comes from."""
        return Evidence(self.evidence, self.source, self.spread)


class Amount(Quantity):
    """A number >= 0."""

    value: float = Field(ge=0, le=LARGEST)


class Share(Quantity):
    """A number in (0, 1]."""

    value: float = Field(gt=0, le=1)


class Part(Quantity):
    """A number in [0, 1]."""

    value: float = Field(ge=0, le=1)


class Factor(Quantity):
    """A number >= 1."""

    value: float = Field(ge=1, le=LARGEST)


class Count(Quantity):
    """A whole number >= 1."""

    value: int = Field(ge=1, le=LARGEST)


def _with_evidence(value: object) -> object:
    return value if isinstance(value, Mapping | Quantity) else {"value": value}


Bare = BeforeValidator(_with_evidence)
Number = Annotated[Quantity, Bare]
AmountNumber = Annotated[Amount, Bare]
ShareNumber = Annotated[Share, Bare]
PartNumber = Annotated[Part, Bare]
FactorNumber = Annotated[Factor, Bare]
CountNumber = Annotated[Count, Bare]


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a file key.

    Attributes:
        suffix: how keys in this unit end.
        scale: base units per unit, or units per base unit where `divides`.
        divides: whether the unit is smaller than the base unit.
        pattern: what a quantity with a unit looks like after its number.
        example: such a quantity.
    """

    suffix: str
    scale: int
    divides: bool
    pattern: str
    example: str

    def to_base(self, value: float) -> float:
        """A value of the file in base units."""
        return value / self.scale if self.divides else float(value) * self.scale

    def from_base(self, value: float) -> float:
        """The value of a file that reads back as `value`, whole where it can be.

        Every value that came from a file is found again exactly; another one is met to the last
        bit but one.
        """
        near = value * self.scale if self.divides else value / self.scale
        above, below, tried = near, near, [float(round(near)), near]
        for _ in range(_NEIGHBOURS):
            above, below = nextafter(above, inf), nextafter(below, 0)
            tried += [above, below]
        best = min(tried, key=lambda v: abs(self.to_base(v) - value))
        return int(best) if best.is_integer() else best

    def parse(self, text: str) -> float:
        """A quantity such as `25GB/s`, in this unit.

        Raises:
            ValueError: not a number with a unit of this kind.
        """
        if not re.fullmatch(rf"\s*[+-]?[\d.]+(?:[eE][+-]?\d+)?\s*{self.pattern}\s*", text):
            raise ValueError(f"`{text}` is not a quantity such as {self.example}")
        value = parse_quantity(text)
        if not isfinite(value):
            raise ValueError(f"`{text}` is not finite")
        return self.from_base(value)


GIBIBYTES = Unit("_gib", GIB, False, "[KMGTPkmgtp]i?B", "48GiB")
GB_PER_S = Unit("_gb_per_s", 10**9, False, "[KMGTkmgt]i?(B|b|bit)/s", "25GB/s")
TERAFLOPS = Unit("_tflops", 10**12, False, "[MGTPmgtp](FLOPS|FLOP/s)", "312TFLOP/s")
GIGAFLOP = Unit("_gflop", 10**9, False, "[kMGTPmgtp]FLOP", "2.5GFLOP")
MICROSECONDS = Unit("_us", 10**6, True, "(s|ms|us|ns)", "5us")
WATTS = Unit("_watts", 1, False, "[kM]?W", "700W")
PLAIN = Unit("", 1, False, "", "0.8")


def written(value: float, evidence: Evidence | None) -> Any:
    """A number as a file shows it: bare where nothing is said about it."""
    if evidence is None:
        return value
    entry: dict[str, Any] = {"value": value, "evidence": evidence.kind}
    if evidence.source:
        entry["source"] = evidence.source
    if evidence.spread is not None:
        entry["spread"] = evidence.spread
    return entry


def stated(quantity: Quantity) -> Evidence | None:
    """The evidence of a number that says where it comes from, else None."""
    return None if quantity.origin == ASSUMED else quantity.origin
