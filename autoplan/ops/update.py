"""Operators of the optimizer step: elementwise on one shard, so that no signature is needed.

    square_sum      g1 … gn (, acc)          -> ()          each element counted on one rank only
    clip_factor     ()                        -> ()
    adamw, sgd      parameter, gradient, factor, states (, master) -> the same, in place
    accumulate      acc, x                    -> acc

The arithmetic is in fp32 at least, whatever the states are stored in.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Family, Work, WorkRule, elements, exact_nbytes, narrow, streaming

BLOCK = 1 << 18
"""Elements that an optimizer updates at once: a block's temporaries stay in cache. [empirical]"""


def _update_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    return streaming("optimizer", ins, outs)


def _norm_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """Gradients of 16 bits are widened, one after the other, two at a time alive."""
    widest = max((exact_nbytes(r) for r in ins if narrow(r)), default=0.0)
    return Work("optimizer", 0.0, streaming("optimizer", ins, outs).nbytes, 2 * widest)


def _accumulate_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """What is added is widened to the accumulator's dtype."""
    workspace = 0.0 if ins[0].dtype == ins[1].dtype else float(ins[0].nbytes)
    return Work("optimizer", 0.0, streaming("optimizer", ins, outs).nbytes, workspace)


def _in_blocks(wide: int, widened: int) -> WorkRule:
    """Work of an optimizer that keeps so many blocks as temporaries: where its states are as wide
    as its arithmetic, and where they have 16 bits.
    """

    def work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
        state = ins[3]
        share = min(1.0, BLOCK / max(1, elements(state)))
        workspace = (widened if narrow(state) else wide) * share * exact_nbytes(state)
        return Work("optimizer", 0.0, streaming("optimizer", ins, outs).nbytes, workspace)

    return work


FAMILIES = (
    Family("square_sum", work=_norm_work),
    Family("clip_factor", work=_update_work),
    Family("adamw", work=_in_blocks(2, 8)),
    Family("sgd", work=_in_blocks(1, 6)),
    Family("accumulate", work=_accumulate_work),
    Family("slice", work=_update_work),
)
