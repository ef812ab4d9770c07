"""Attention with grouped queries and a causal mask, its explicit backward, and rotary positions.

    attention        b s g r d, b t g d, b t g d -> b s g r d, lse b s g r      d, t whole
    attention_grad   do q k v o lse              -> dq dk dv
    rotary           b s (…) d, b s              -> b s (…) d                   d whole, linear

Keys and values are produced along `s` and read along `t`: splitting `s` therefore splits the queries
and asks for whole keys, and the gradients of keys and values come out partial.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autoplan.ir.graph import Op
from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Backward, Family, Work, streaming

_KEYS = {"s": "t"}
FORWARD_PRODUCTS = 2
"""Q·Kᵀ and P·V."""
BACKWARD_PRODUCTS = 5
"""Recomputed Q·Kᵀ, dV, dP, dQ, dK. Source: FlashAttention-2 (Dao 2023), section 3.1."""


def _attention_work(
    instr: Instr, q: Register, keys: Register, products: int, moved: float
) -> Work:
    """FLOP = 2 · products · b s g r d · t · causal share.

    The causal share of the rank with the last queries, which the others wait for, is
    1 - s_local / (2 t): one half when s is whole.
    """
    share = 1.0 - q.shape[1] / (2.0 * keys.shape[1]) if instr.attr("causal") else 1.0
    flops = 2.0 * products * prod(q.shape) * keys.shape[1] * share
    # Source: measured, fused CPU and GPU kernels keep 1 to 1.5 times the queries as temporaries.
    workspace = float(q.nbytes) * (1.5 if products == BACKWARD_PRODUCTS else 1.0)
    return Work("attention", flops, moved, workspace)


def _forward_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    moved = streaming("attention", ins, outs).nbytes
    return _attention_work(instr, ins[0], ins[1], FORWARD_PRODUCTS, moved)


def _backward_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    moved = streaming("attention", ins, outs).nbytes
    return _attention_work(instr, ins[1], ins[2], BACKWARD_PRODUCTS, moved)


def _attention_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    q, k, v = op.inputs
    o, lse = op.outputs
    inputs = (d_outputs[0], q, k, v, o, lse)
    backward.emit(op, "attention_grad", inputs, op.attrs).gradients_of(q, k, v)


def _rotary_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    """A rotation's transpose is the rotation by the opposite angle."""
    attrs = tuple((k, -v if k == "sign" else v) for k, v in op.attrs)
    backward.emit(op, "rotary", (d_outputs[0], op.inputs[1]), attrs).gradients_of(op.inputs[0])


FAMILIES = (
    Family(
        "attention",
        whole=frozenset("dt"),
        renames={1: _KEYS, 2: _KEYS},
        work=_forward_work,
        gradient=_attention_gradient,
    ),
    Family(
        "attention_grad",
        whole=frozenset("dt"),
        renames={2: _KEYS, 3: _KEYS, 7: _KEYS, 8: _KEYS},
        work=_backward_work,
    ),
    Family("rotary", whole=frozenset("d"), linear_in=(0,), gradient=_rotary_gradient),
)
