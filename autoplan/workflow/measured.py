"""Measured against predicted: inside the interval, and if not, which part could explain the gap?

A part explains a gap alone if it would have to be off by a factor that its own evidence allows; a
gap that no part explains says that the model of the step is wrong, or the run was not the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoplan.cost import part_spreads
from autoplan.errors import InputError, Problem, nearest
from autoplan.units import parse_quantity
from autoplan.workflow.prediction import Priced, memory_interval

ALLOWED = "step_time=1.2s, mfu=45%, tokens_per_s=12000 or memory=61GiB"


def _share(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


PARSERS: Mapping[str, Callable[[str], float]] = {
    "step_time": parse_quantity, "mfu": _share, "tokens_per_s": float, "memory": parse_quantity,
}  # fmt: skip
LARGEST = 1e18


def parse_measured(text: str) -> dict[str, float]:
    """`step_time=1.2s,memory=61GiB` -> values in base units.

    Raises:
        InputError: unknown or repeated names, malformed values; every problem at once.
    """
    values: dict[str, float] = {}
    problems = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        key = name.lower().replace("-", "_")
        if key not in PARSERS:
            problems.append(Problem("--measured", "", f"`{part}`", ALLOWED, nearest(key, PARSERS)))
            continue
        try:
            number = PARSERS[key](value)
        except ValueError:
            number = -1.0
        if not 0 < number < LARGEST:
            problems.append(Problem("--measured", key, f"`{value}`", ALLOWED))
        elif key in values:
            problems.append(Problem("--measured", key, f"a second value {value}", "one value"))
        values[key] = number
    if not (values or problems):
        problems.append(Problem("--measured", "", "nothing", ALLOWED))
    if problems:
        raise InputError(problems)
    return values


def compare_measured(priced: Priced, values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Each measured value beside its prediction."""
    return [_one(priced, name, value) for name, value in values.items()]


def _one(priced: Priced, name: str, value: float) -> dict[str, Any]:
    predicted, low, high = _prediction(priced, name)
    row: dict[str, Any] = {
        "name": name,
        "measured": value,
        "predicted": predicted,
        "interval": [low, high],
        "within": low <= value <= high,
        "difference": value / predicted - 1 if predicted else None,
    }
    if name == "memory":
        return row | {"explanations": _memory_explanations(priced, value - predicted)}
    seconds = float(priced.predicted["step_time_s"])
    step = value if name == "step_time" else seconds * predicted / value
    return row | {"explanations": _time_explanations(priced, step - seconds)}


def _prediction(priced: Priced, name: str) -> tuple[float, float, float]:
    """(predicted, least, most) of a number."""
    numbers = priced.predicted
    if name == "memory":
        return (
            float(numbers["peak_memory_bytes"]),
            *memory_interval(priced.timeline, priced.plan.stack),
        )
    low, high = priced.interval
    if name == "step_time":
        return float(numbers["step_time_s"]), low, high
    value, seconds = float(numbers[name]), float(numbers["step_time_s"])
    return value, value * seconds / high, value * seconds / low


def _time_explanations(priced: Priced, gap: float) -> list[dict[str, Any]]:
    parts = {k: float(s) for k, s in priced.predicted["breakdown_s"].items() if s}
    spreads = part_spreads(parts, priced.plan.hardware, priced.plan.stack)
    rows = [_explanation(kind, taken, gap, spreads[kind]) for kind, taken in parts.items()]
    return sorted(rows, key=_unlikely)


def _memory_explanations(priced: Priced, gap: float) -> list[dict[str, Any]]:
    stages = priced.timeline.peak_memory
    fullest = max(stages, key=lambda lines: sum(lines.values()))
    rows = [_explanation(line, nbytes, gap, None) for line, nbytes in fullest.items() if nbytes]
    return sorted(rows, key=_unlikely)


def _explanation(part: str, size: float, gap: float, spread: float | None) -> dict[str, Any]:
    """What a part alone would have to be to explain a gap."""
    factor = (size + gap) / size
    plausible = spread is not None and 1 / spread <= factor <= spread
    return {
        "part": part,
        "predicted": size,
        "factor": factor,
        "spread": spread,
        "plausible": plausible,
    }


def _unlikely(row: Mapping[str, Any]) -> float:
    """How far a part would have to be off."""
    factor = float(row["factor"])
    return max(factor, 1 / factor) if factor > 0 else float("inf")
