"""Which bytes of a device are estimated, not counted?

The Program counts buffers exactly (`ir.timeline.COUNTED_LINES`). Three lines are left: hidden
temporaries of kernels, what the allocator rounds away, and what the framework takes for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from autoplan.ir.machine import Stack


def estimated_lines(counted: Mapping[str, int], workspace: int, stack: Stack) -> dict[str, int]:
    """Lines `workspace`, `allocator` and `framework` beside the counted ones.

    Args:
        counted: bytes at the peak by counted line.
        workspace: largest temporary of any instruction that runs there, bytes.
        stack: its `allocator_fraction` is a share of counted bytes and workspace, both of which
            come from the allocator; `framework_bytes` does not.

    Source: the stack's constants; a caching allocator rounds and fragments in proportion.
    """
    allocated = sum(counted.values()) + workspace
    return {
        "workspace": workspace,
        "allocator": ceil(stack.constants["allocator_fraction"] * allocated),
        "framework": ceil(stack.constants["framework_bytes"]),
    }
