"""Lengths of documents: a histogram file, and the `lengths` of a workload.

A histogram is an object of weights by length, `{"128": 0.3, "512": 0.7}`, or a list of lengths, one
a document. On the command line, `FILE`, `FILE:padded` or `FILE:packed`; `fixed` for none.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from autoplan.errors import InputError, Problem, nearest
from autoplan.files.data import is_file
from autoplan.files.problems import Strict
from autoplan.files.text import read_json
from autoplan.ir.lengths import PACKINGS, Lengths

FIXED = "fixed"
MOST_LENGTHS = 1 << 16
_LENGTH = re.compile(r"[1-9][0-9]{0,12}")
_FORM = 'weights by length such as {"128": 0.3, "512": 0.7}, or a list of lengths'

Weight = Annotated[float, Field(ge=0, le=1e15)]


def _counted(value: object) -> object:
    """A list of lengths as an object of their numbers."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in value):
        raise ValueError(_FORM)
    return {str(length): float(count) for length, count in Counter(value).items()}


class LengthsFile(Strict):
    """`lengths` of a workload."""

    packing: Literal["padded", "packed"] = "padded"
    histogram: Annotated[
        dict[str, Weight], BeforeValidator(_counted), Field(min_length=1, max_length=MOST_LENGTHS)
    ]

    @field_validator("histogram")
    @classmethod
    def _lengths(cls, histogram: dict[str, float]) -> dict[str, float]:
        if not all(_LENGTH.fullmatch(key) for key in histogram) or not any(histogram.values()):
            raise ValueError(_FORM)
        return histogram

    def noun(self) -> Lengths:
        """What it describes; lengths without weight do not occur."""
        rows = ((int(length), float(w)) for length, w in self.histogram.items() if w)
        return Lengths(self.packing, tuple(sorted(rows)))


def dump_lengths(lengths: Lengths) -> dict[str, Any]:
    """The document of lengths, which `LengthsFile` reads back, equal."""
    return {
        "packing": lengths.packing,
        "histogram": {str(length): weight for length, weight in lengths.histogram},
    }


def lengths_document(text: str, found: list[Problem]) -> dict[str, Any] | None:
    """The `lengths` that `FILE[:padded|packed]` means, None for `fixed`; problems go to `found`."""
    text = text.strip()
    if text.lower() == FIXED:
        return None
    path, colon, packing = text.rpartition(":")
    if not colon or is_file(Path(text)):
        path, packing = text, PACKINGS[0]
    if packing.lower() not in PACKINGS:
        allowed = f"FILE:{' or FILE:'.join(PACKINGS)}"
        found.append(Problem("--lengths", "", f"`{text}`", allowed, nearest(packing, PACKINGS)))
        return None
    try:
        document = read_json(path)
    except InputError as error:
        found.extend(error.problems)
        return None
    return {"packing": packing.lower(), "histogram": document}
