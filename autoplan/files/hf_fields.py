"""What readers of Hugging Face configs share: types of fields, activations, rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from autoplan.errors import InputError, Problem
from autoplan.files.model import LARGEST
from autoplan.files.problems import Problems, Strict, one_of, validate
from autoplan.ir.model import RopeScaling

_MISSPELT = 0.85
LARGEST_THETA = 1e15

ROPE_THETA = 10000.0
"""Rotary base where a config names none."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Names of transformers -> ours; the three tanh forms are one function."""

Activation = Annotated[str, one_of(ACTIVATIONS)]
Size = Annotated[int, Field(ge=1, le=LARGEST)]
Layers = Annotated[int, Field(ge=1, le=100_000)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(gt=0, le=1)]
Deviation = Annotated[float, Field(gt=0, le=1e3)]
Theta = Annotated[float, Field(gt=0, lt=LARGEST_THETA)]
Share = Annotated[float, Field(gt=0, le=1)]


class HfConfig(BaseModel):
    """Keys of a family; other keys of the file are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class Llama3Scaling(Strict):
    """`rope_scaling` of type `llama3`, its type taken off."""

    factor: float = Field(gt=0, le=1e9)
    low_freq_factor: float = Field(gt=0, le=1e9)
    high_freq_factor: float = Field(gt=0, le=1e9)
    original_max_position_embeddings: int = Field(ge=1, le=LARGEST)


@dataclass(frozen=True, slots=True)
class Rope:
    """What a config says about rotary positions, however it spells it.

    Attributes:
        theta: base, or 0 where nothing is said.
        scaling: of the frequencies.
        share: of each head that is rotated, or None where nothing is said.
    """

    theta: float
    scaling: RopeScaling | None
    share: float | None


Config = TypeVar("Config", bound=HfConfig)


def read_config(
    model: type[Config], document: Mapping[str, Any], problems: Problems
) -> Config | None:
    """The config of a family; a key that nearly spells an absent one is a problem."""
    absent = [name for name in model.model_fields if name not in document]
    meant: dict[str, str] = {}
    for key in document:
        if key not in model.model_fields:
            for name in get_close_matches(key, absent, n=1, cutoff=_MISSPELT):
                meant[name] = key
                allowed = f"`{name}`, which is absent"
                hint = f"did you mean `{name}`?"
                found = Problem(problems.source, f"$.{key}", "an unknown field", allowed, hint)
                problems.found.append(found)
    try:
        return validate(model, document, problems.source)
    except InputError as error:
        skipped = {f"$.{name}" for name in meant}
        problems.found.extend(p for p in error.problems if p.field not in skipped)
        return None


def size_of(document: Mapping[str, Any], key: str) -> int | None:
    """A size, or None where it is absent or wrong (which is reported apart)."""
    value = document.get(key)
    return value if type(value) is int and 0 < value <= LARGEST else None


def check_division(document: Mapping[str, Any], width: str, heads: str, problems: Problems) -> None:
    """The heads share the width evenly."""
    size, count = size_of(document, width), size_of(document, heads)
    if size and count and size % count:
        problems.add(f"$.{width}", size, f"a multiple of {heads} = {count}")


def read_rope(document: Mapping[str, Any], problems: Problems) -> Rope:
    """Rotary positions, from `rope_scaling`, `rope_parameters`, or both."""
    merged: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        section = document.get(key)
        merged |= section if isinstance(section, dict) else {}
    where = "$.rope_parameters" if document.get("rope_parameters") else "$.rope_scaling"
    theta = merged.pop("rope_theta", 0)
    if type(theta) not in (int, float) or not 0 <= theta < LARGEST_THETA:
        problems.add(f"{where}.rope_theta", theta, f"a number below {LARGEST_THETA:g}")
        theta = 0
    share = merged.pop("partial_rotary_factor", None)
    if share is not None and (type(share) not in (int, float) or not 0 < share <= 1):
        problems.add(f"{where}.partial_rotary_factor", share, "a share of each head, up to 1")
        share = None
    older = merged.pop("type", None)
    kind = merged.pop("rope_type", older)
    scaling = None
    if kind == "llama3":
        read = problems.attempt(lambda: validate(Llama3Scaling, merged, problems.source, where))
        scaling = RopeScaling(*read.model_dump().values()) if read else None
    elif kind not in (None, "default"):
        problems.add(f"{where}.rope_type", kind, "null, `default` or `llama3`")
    elif merged:
        problems.add(where, merged, "null, or an object with a `rope_type`", "add rope_type")
    return Rope(float(theta), scaling, share)
