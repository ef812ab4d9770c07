"""Matrix products: `b s m, o m -> b s o`, contracting the dims that operand and weight share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autoplan.ir.graph import Op
from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Backward, Family, Work


def _product(left: Register, right: Register, out: Register) -> Work:
    """M N K from element counts: |left|·|right|·|out| = (M N K)²; FLOP = 2 M N K.

    Source: the count of multiply-adds of a dense matrix product.
    """
    a, b, c = prod(left.shape), prod(right.shape), prod(out.shape)
    mnk = (a * b * c) ** 0.5
    rows = int(round(min(mnk / a, mnk / b, mnk / c))) if mnk else 0
    return Work("matmul", 2.0 * mnk, float(left.nbytes + right.nbytes + out.nbytes), rows=rows)


def _work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    work = _product(ins[0], ins[1], outs[0])
    if len(ins) == 3:  # an accumulator is read as well
        return Work(work.kind, work.flops, work.nbytes + ins[2].nbytes, rows=work.rows)
    return work


def _gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    x, w = op.inputs
    (dy,) = d_outputs
    if backward.needed(x):
        backward.emit(op, "linear_dx", (dy, w), op.attrs).gradients_of(x)
    if backward.needed(w):
        backward.emit(op, "linear_dw", (x, dy), op.attrs).gradients_of(w)


FAMILIES = (
    Family("linear", work=_work, gradient=_gradient),
    Family("linear_dx", work=_work),
    Family("linear_dw", work=_work, accumulates=True),
)
