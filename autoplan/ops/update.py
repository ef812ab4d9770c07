"""Operators of the optimizer step: on one shard, so that no signature is needed.

    square_sum        g1 … gn (, acc)          -> ()          each element counted on one rank only
    clip_factor       (), (scale, counts)      -> (), (scale, counts)
    adamw adamw_8bit lion sgd                  parameter, gradient, factor, states (, master)
                                               -> all but gradient and factor, in place
    muon_momentum     gradient, factor, momentum          -> momentum, direction
    orthogonalise     direction                           -> direction    whole matrices
    muon              parameter, direction, factor (, master)          -> parameter (, master)
    adafactor_means   gradient, factor                    -> row means, column means
    adafactor_sums    gradient, factor, value, states (, means)        -> states, three sums
    adafactor         parameter, gradient, factor, states, sums (, master) -> parameter (, master)
    accumulate        acc, x                              -> acc
    cast              x                                   -> x in another dtype

The arithmetic is in fp32 at least, whatever the states are stored in. What these are put together
to is in `updating`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Family, Work, WorkRule, elements, exact_nbytes, narrow, streaming

BLOCK = 1 << 18
"""Elements that an optimizer updates at once: a block's temporaries stay in cache. [empirical]"""
ITERATIONS = 5
"""Of Newton-Schulz. Source: Jordan et al. 2024, Muon."""


def _update_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    return streaming("optimizer", ins, outs)


def _norm_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """Gradients of 16 bits are widened, one after the other, two at a time alive."""
    widest = max((exact_nbytes(r) for r in ins if narrow(r)), default=0.0)
    return Work("optimizer", 0.0, streaming("optimizer", ins, outs).nbytes, 2 * widest)


def _accumulate_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """What is added is widened to the accumulator's dtype."""
    workspace = 0.0 if ins[0].dtype == ins[1].dtype else float(ins[0].nbytes)
    return Work("optimizer_accumulate", 0.0, streaming("optimizer", ins, outs).nbytes, workspace)


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


def _by_first(wide: int, widened: int) -> WorkRule:
    """The same, where the first operand tells how wide the data are."""

    def work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
        share = min(1.0, BLOCK / max(1, elements(ins[0])))
        workspace = (widened if narrow(ins[0]) else wide) * share * exact_nbytes(ins[0])
        return Work("optimizer", 0.0, streaming("optimizer", ins, outs).nbytes, workspace)

    return work


def _orthogonal_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """Newton-Schulz on the smaller side r of r x c: X Xᵀ, its square, and their product with X.

    Each iteration is 4 r² c + 2 r³ FLOP. Temporaries: a matrix beside the result, and a square.
    """
    (matrix,) = ins
    sides = prod(matrix.shape[: instr.attr("outer")]), prod(matrix.shape[instr.attr("outer") :])
    r, c = min(sides), max(sides)
    width = matrix.nbytes / max(1, elements(matrix))
    flops = ITERATIONS * (4.0 * r * r * c + 2.0 * r**3)
    moved = ITERATIONS * (3 * r * c + 4 * r * r) * width
    return Work("optimizer_matmul", flops, moved, (r * c + r * r) * width, r)


FAMILIES = (
    Family("square_sum", work=_norm_work),
    Family("clip_factor", work=_update_work),
    Family("adamw", work=_in_blocks(2, 8)),
    Family("adamw_8bit", work=_in_blocks(2, 8)),
    Family("lion", work=_in_blocks(2, 6)),
    Family("sgd", work=_in_blocks(1, 6)),
    Family("muon_momentum", work=_by_first(2, 4)),
    Family("orthogonalise", work=_orthogonal_work),
    Family("muon", work=_by_first(2, 4)),
    Family("adafactor_means", work=_by_first(2, 3)),
    Family("adafactor_sums", work=_by_first(2, 3)),
    Family("adafactor", work=_by_first(2, 3)),
    Family("accumulate", work=_accumulate_work),
    Family("cast"),
    Family("slice", work=_update_work),
)
