"""Operator families (floor 1): one rule per operator, from which everything else is derived.

A family declares its dims (those that must stay whole, those that reduce in a special way), how its
backward operators are built, and the work of an instruction. From that follow the one-axis
signatures (`Family.signature`), the layouts of a whole block under a strategy (`BlockLayouts`), the
training step (`frontends.training`), the price (`cost`) and the memory of temporaries.

To add an operator: declare a `Family` in the file it belongs to, add it to that file's `FAMILIES`,
and write its kernel in `runtime.kernels`; the rule tests then compare it with brute force.
"""

from autoplan.ops.catalogue import FAMILIES
from autoplan.ops.family import Family, Work, block_signature
from autoplan.ops.layouts import BlockLayouts, gradient_source, op_signature, replicated

__all__ = [
    "FAMILIES",
    "BlockLayouts",
    "Family",
    "Work",
    "block_signature",
    "gradient_source",
    "op_signature",
    "replicated",
]
