"""Plans in the words of pins, and the line that every screen starts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoplan.ir.plan import Plan

DEGREES = ("dp", "tp", "tp2", "cp", "pp", "vpp", "replicated")
PLAIN = {"zero": 0, "recompute": "none", "mixed": False}
"""Keys left out where they have these values."""


def pin_words(parallel: Mapping[str, Any]) -> str:
    """`dp=8 tp=4 zero=1 micro_batch=2`; what goes without saying is left out."""
    words = [_word(key, parallel[key]) for key in DEGREES if parallel.get(key, 1) != 1]
    words = words or ["one device"]
    if "tp=" in " ".join(words) and not parallel.get("sp", True):
        words.append("sp=false")
    words += [
        _word(k, parallel[k]) for k, plain in PLAIN.items() if parallel.get(k, plain) != plain
    ]
    words.append(_word("micro_batch", parallel.get("micro_batch")))
    if parallel.get("pp", 1) != 1:
        words.append(_word("schedule", parallel.get("schedule")))
        layers = parallel.get("layers_per_stage", ())
        words += [_word("layers", "+".join(map(str, layers)))] if len(set(layers)) > 1 else []
    return " ".join(words)


def _word(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = "/".join(f"{role}:{part}" for role, part in value.items())
    return f"{key}={'true' if value is True else value}"


def headline(plan: Plan, assumed: Sequence[str] = ()) -> str:
    """Model, machine, stack, precision and batch, and what of it nobody asked for."""
    workload = plan.workload
    text = (
        f"{plan.model.name} on {plan.hardware.name}:{plan.hardware.count}, "
        f"stack {plan.stack.name}, {workload.precision}, "
        f"batch {workload.global_batch_size} x {workload.seq_len}"
    )
    text += f" ({workload.lengths})" if workload.lengths else ""
    return f"{text} (assumed: {', '.join(assumed)})" if assumed else text
