"""Which bytes of a device are estimated, not counted?

The Program counts buffers exactly (`ir.timeline.COUNTED_LINES`). Three lines are left: what kernels
and the stack keep beside those buffers, what the allocator rounds away, and what the framework
takes for itself.

A Program keeps no more than the backward pass reads. Other software keeps copies in another dtype,
masks, results that it could make again, whole gradients from the first micro-batch on: its
constants say how much, as factors on what is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from autoplan.ir.machine import Stack


@dataclass(frozen=True, slots=True)
class Beside:
    """What a stage has beside its counted buffers, in bytes.

    Attributes:
        workspace: largest temporary of any instruction that runs there.
        scores: one copy, in the compute dtype, of all attention scores that plain attention would
            keep for backward.
        gradients: most that the step ever holds of gradients.
        gathered: whole copies, at most, of activations that wait for backward in shards.
        exchanged: one rank's gradients that it exchanges with others at a time.
    """

    workspace: int
    scores: int = 0
    gradients: int = 0
    gathered: int = 0
    exchanged: int = 0


def estimated_lines(counted: Mapping[str, int], beside: Beside, stack: Stack) -> dict[str, int]:
    """Lines `workspace`, `allocator` and `framework` beside the counted ones.

    Args:
        counted: bytes at the peak by counted line.
        beside: what else there is.
        stack: its `saved_factor` is what it keeps of activations over what backward reads,
            `logits_kept` copies of counted logits, `scores_kept` copies of scores (none with fused
            attention), `gathered_kept` of whole activations that could be gathered again,
            `exchange_kept` of gradients in buckets. `allocator_fraction` is a share of all that,
            since it comes from the allocator; `framework_bytes` does not. With the habit
            `gradient_buffers` gradients lie in buffers that exist throughout the step.

    Source: the stack's constants; a caching allocator rounds and fragments in proportion.
    """
    constants = stack.constants
    kept = (constants["saved_factor"] - 1) * counted.get("activations", 0)
    kept += constants["logits_kept"] * counted.get("logits", 0)
    kept += constants["scores_kept"] * beside.scores
    kept += constants["gathered_kept"] * beside.gathered
    kept += constants["exchange_kept"] * beside.exchanged
    if "gradient_buffers" in stack.habits:
        kept += max(0, beside.gradients - counted.get("gradients", 0))
    workspace = beside.workspace + ceil(kept)
    allocated = sum(counted.values()) + workspace
    return {
        "workspace": workspace,
        "allocator": ceil(constants["allocator_fraction"] * allocated),
        "framework": ceil(constants["framework_bytes"]),
    }
