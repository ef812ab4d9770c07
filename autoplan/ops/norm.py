"""Norms over the last dim, which is that of their weight and stays whole.

    rms_norm    … m, m        -> … m, rstd …
    layer_norm  … m, m, m     -> … m, mean …, rstd …

`m` is the model's width, or a head's where queries and keys are normalised: `b s g r d, d`.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import Op
from autoplan.ops.family import Backward, Family, streaming_with


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
    Family("rms_norm", whole_of=(1,), work=streaming_with(0, 2), gradient=_rms_gradient),
    Family("rms_norm_dx", whole_of=(2,), work=streaming_with(1, 3.5)),
    Family("rms_norm_dw", whole_of=(3,), accumulates=True, work=streaming_with(1, 2)),
    Family("layer_norm", whole_of=(1,), work=streaming_with(1, 2.5), gradient=_layer_gradient),
    Family("layer_norm_dx", whole_of=(2,), work=streaming_with(1, 4)),
    Family("layer_norm_dw", whole_of=(4,), accumulates=True, work=streaming_with(1, 2)),
)
