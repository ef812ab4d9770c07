"""Pointwise operators: every dim may be split; linear ones let partial sums pass."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import Op
from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Backward, Family, Work, streaming


def _with_temporary(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """The backward of an activation keeps one temporary (measured)."""
    work = streaming("pointwise", ins, outs)
    return Work(work.kind, 0.0, work.nbytes, float(ins[0].nbytes))


def _gated_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    gate, up = op.inputs
    backward.emit(op, "gated_grad", (d_outputs[0], gate, up), op.attrs).gradients_of(gate, up)


def _activation_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    (x,) = op.inputs
    backward.emit(op, "activation_grad", (d_outputs[0], x), op.attrs).gradients_of(x)


def _same_again(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    """Multiplication by constants is its own transpose; dropout draws its mask again."""
    backward.emit(op, op.family, (d_outputs[0],), op.attrs).gradients_of(op.inputs[0])


def _identity(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    for operand in op.inputs:
        backward.pass_on(operand, d_outputs[0])


def _bias_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    x, bias = op.inputs
    backward.pass_on(x, d_outputs[0])
    if backward.needed(bias):
        backward.emit(op, "bias_grad", (d_outputs[0],), op.attrs).gradients_of(bias)


FAMILIES = (
    Family("add", linear_in=(0, 1), gradient=_identity),
    Family("scale", linear_in=(0,), gradient=_same_again),
    Family("dropout", linear_in=(0,), gradient=_same_again),
    Family("bias_add", gradient=_bias_gradient),
    Family("bias_grad", accumulates=True),
    Family("gated", gradient=_gated_gradient),
    Family("gated_grad", work=_with_temporary),
    Family("activation", gradient=_activation_gradient),
    Family("activation_grad", work=_with_temporary),
)
