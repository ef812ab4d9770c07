"""Operators of the optimizer step: elementwise on one shard, so that no signature is needed.

    square_sum      g1 … gn (, acc)          -> ()          each element counted on one rank only
    clip_factor     ()                        -> ()
    adamw, sgd      parameter, gradient, factor, states (, master) -> the same, in place
    accumulate      acc, x                    -> acc
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Family, Work, streaming


def _update_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    return streaming("optimizer", ins, outs)


FAMILIES = (
    Family("square_sum", work=_update_work),
    Family("clip_factor", work=_update_work),
    Family("adamw", work=_update_work),
    Family("sgd", work=_update_work),
    Family("accumulate", work=_update_work),
    Family("slice", work=_update_work),
)
