"""Pointwise operators: every dim may be split; linear ones let partial sums pass."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import Op
from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Backward, Family, Work, elements, exact_nbytes, streaming

MASK_BLOCK_BYTES = 1 << 20
"""A dropout mask is drawn in blocks, whose element indices and hashes take this much. [measured]"""


def _dropout_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """One byte an element for the mask; a block is gone before the result is allocated."""
    workspace = elements(ins[0]) + max(0, MASK_BLOCK_BYTES - outs[0].nbytes)
    return Work("pointwise", 0.0, streaming("pointwise", ins, outs).nbytes, float(workspace))


def _bias_grad_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """A sum in another dtype widens a copy of what it adds up."""
    workspace = 0.0 if ins[0].dtype == outs[0].dtype else exact_nbytes(ins[0])
    return Work("pointwise", 0.0, streaming("pointwise", ins, outs).nbytes, workspace)


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
    Family("dropout", linear_in=(0,), work=_dropout_work, gradient=_same_again),
    Family("bias_add", gradient=_bias_gradient),
    Family("bias_grad", accumulates=True, work=_bias_grad_work),
    Family("gated", gradient=_gated_gradient),
    Family("gated_grad"),
    Family("activation", gradient=_activation_gradient),
    Family("activation_grad"),
)
