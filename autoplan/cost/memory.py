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
        gathered: whole copies, at most, of activations that wait for backward in shards.
        unadded: all gradients of one micro-batch, in the dtype of the parameters.
        held: the counted lines when most is held, with buffers that exist throughout the step;
            None: when most is counted.
    """

    workspace: int
    scores: int = 0
    gathered: int = 0
    unadded: int = 0
    held: Mapping[str, int] | None = None


def estimated_lines(counted: Mapping[str, int], beside: Beside, stack: Stack) -> dict[str, int]:
    """Lines `workspace`, `allocator` and `framework` beside the counted ones.

    Args:
        counted: bytes at the peak by counted line.
        beside: what else there is.
        stack: its `saved_factor` is what it keeps of activations over what backward reads,
            `logits_kept` copies of counted logits, `scores_kept` copies of scores (none with fused
            attention), `gathered_kept` of whole activations that could be gathered again.
            `allocator_fraction` is a share of all that, since it comes from the allocator;
            `framework_bytes` does not. With the habit `late_accumulation` there are a
            micro-batch's gradients beside those that add up.

    Source: the stack's constants; a caching allocator rounds and fragments in proportion.
    """
    constants, held = stack.constants, beside.held or counted
    kept = (constants["saved_factor"] - 1) * held.get("activations", 0)
    kept += constants["logits_kept"] * held.get("logits", 0)
    kept += constants["scores_kept"] * beside.scores
    kept += constants["gathered_kept"] * beside.gathered
    if "late_accumulation" in stack.habits:
        kept += beside.unadded
    buffers = sum(held.values()) - sum(counted.values())
    workspace = beside.workspace + buffers + ceil(kept)
    allocated = sum(counted.values()) + workspace
    return {
        "workspace": workspace,
        "allocator": ceil(constants["allocator_fraction"] * allocated),
        "framework": ceil(constants["framework_bytes"]),
    }
