"""A Timeline: what happened when, predicted by the simulator or measured by the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """One action on one stream of one stage (predicted) or rank (measured). Times in seconds."""

    stage: int
    stream: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A step.

    Attributes:
        step_time: seconds from the first action to the last.
        spans: the actions, or empty when only totals were asked for.
        breakdown: seconds, mean over devices, by kind: compute, collective kinds (exposed),
            bubble, optimizer; they sum to `step_time`.
        stage_breakdown: the same per stage.
        peak_memory: per stage, bytes by memory line at the peak (see `MEMORY_LINES`).
        peak_at: per stage the action at the peak.
        in_flight: per stage the largest number of micro-batches whose activations are alive.
        load_peak: per stage the bytes of a device while parameters are loaded, before the first
            step.
        state: per stage the bytes of a device that a checkpoint saves: parameters, master copies,
            optimizer states.
    """

    step_time: float
    spans: tuple[Span, ...] = ()
    breakdown: Mapping[str, float] = field(default_factory=dict)
    stage_breakdown: tuple[Mapping[str, float], ...] = ()
    peak_memory: tuple[Mapping[str, int], ...] = ()
    peak_at: tuple[str, ...] = ()
    in_flight: tuple[int, ...] = ()
    load_peak: tuple[int, ...] = ()
    state: tuple[int, ...] = ()


MEMORY_LINES = (
    "parameters", "gradients", "optimizer", "gathered", "activations", "logits", "communication",
    "workspace", "allocator", "framework",
)  # fmt: skip
COUNTED_LINES = MEMORY_LINES[:7]
"""Lines that Program and interpreter count exactly; the rest is estimated."""
