"""Norms over the model width, which stays whole: `b s m, m -> b s m, rstd b s`."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import Op
from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Backward, Family, Work, streaming


def _with_temporary(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """Backward norms keep one temporary of the size of their first operand (measured)."""
    work = streaming("pointwise", ins, outs)
    return Work(work.kind, 0.0, work.nbytes, float(ins[0].nbytes))


def _rms_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    x, w = op.inputs
    rstd = op.outputs[1]
    dy = d_outputs[0]
    if backward.needed(x):
        backward.emit(op, "rms_norm_dx", (dy, x, w, rstd), op.attrs).gradients_of(x)
    if backward.needed(w):
        backward.emit(op, "rms_norm_dw", (dy, x, rstd)).gradients_of(w)


def _layer_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    x, w, bias = op.inputs
    mean, rstd = op.outputs[1:]
    dy = d_outputs[0]
    if backward.needed(x):
        backward.emit(op, "layer_norm_dx", (dy, x, w, mean, rstd)).gradients_of(x)
    if backward.needed(w):
        backward.emit(op, "layer_norm_dw", (dy, x, mean, rstd)).gradients_of(w)
    if backward.needed(bias):
        backward.emit(op, "bias_grad", (dy,), (("keep", 1),)).gradients_of(bias)


FAMILIES = (
    Family("rms_norm", whole_of=(1,), gradient=_rms_gradient),
    Family("rms_norm_dx", whole_of=(2,), work=_with_temporary),
    Family("rms_norm_dw", whole=frozenset("m"), accumulates=True, work=_with_temporary),
    Family("layer_norm", whole_of=(1,), gradient=_layer_gradient),
    Family("layer_norm_dx", whole_of=(2,), work=_with_temporary),
    Family("layer_norm_dw", whole=frozenset("m"), accumulates=True, work=_with_temporary),
)
