"""Attention with grouped queries and a mask, its explicit backward, and rotary positions.

    attention        b s g r d, b t g d, b t g d -> b s g r d, lse b s g r      d, t whole
    attention_grad   do q k v o lse              -> dq dk dv
    packed_attention, packed_attention_grad: the same, also of documents b s and b t
    rotary           b s (…) d, b s              -> b s (…) d                   d whole, linear

Keys and values are produced along `s` and read along `t`: splitting `s` therefore splits the
queries and asks for whole keys, and the gradients of keys and values come out partial.

With the attribute `causal` a query sees no later key; with `window` w only the last w of those, its
own included (0: all). Packed sequences hold several documents, one after the other: a query sees
keys of its own alone, on average the share `visible` of all. Rotary positions turn the first
`width` values of each head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from autoplan.ir.graph import Op
from autoplan.ir.program import Instr, Register
from autoplan.ir.workload import DTYPE_BYTES
from autoplan.ops.family import Backward, Family, Work, elements, exact_nbytes, narrow, streaming

_KEYS = {"s": "t"}
FORWARD_PRODUCTS = 2
"""Q·Kᵀ and P·V."""
BACKWARD_PRODUCTS = 5
"""Recomputed Q·Kᵀ, dV, dP, dQ, dK. Source: FlashAttention-2 (Dao 2023), section 3.1."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What a direction of attention does and keeps.

    Attributes:
        products: matrix products.
        plain: those without recomputed scores.
        passes: how often plain operators write or read a tensor of scores.
        fused: temporaries of the fused kernel, in copies of the queries in fp32 at least.
        scores: those of the plain products that a dropout needs, in copies of the scores b g r s t.
        widened: beside the scores where the data have 16 bits, in copies of the queries in fp32.
    """

    products: int
    plain: int
    passes: int
    fused: float
    scores: float
    widened: float


FORWARD_PASSES, BACKWARD_PASSES = 4, 7
"""How often plain operators write or read the scores. Forward: written; the softmax reads and
writes; P·V reads. Backward: the gradient of probabilities is written; the softmax reads it and the
probabilities and writes; dV reads probabilities, dQ and dK the gradient of scores."""
PLAIN_BACKWARD_PRODUCTS = 4
FORWARD = _Kernel(
    FORWARD_PRODUCTS, FORWARD_PRODUCTS, FORWARD_PASSES, fused=0.25, scores=2.25, widened=1.5
)
BACKWARD = _Kernel(
    BACKWARD_PRODUCTS, PLAIN_BACKWARD_PRODUCTS, BACKWARD_PASSES, fused=1.0, scores=4.15, widened=7.5
)
"""Temporaries measured, see `Work.workspace`; fused CPU kernels keep blocks that grow less than
their operands. Source of `fused` backward: flash-attention, `mha_bwd` sums dQ in fp32."""


def _workspace(instr: Instr, q: Register, keys: Register, kernel: _Kernel) -> float:
    """Bytes of temporaries; a shard of the queries needs its causal mask s t as well, a window its
    mask and where it hides.
    """
    queries, width = exact_nbytes(q), q.shape[-1]
    if instr.attr("dropout"):
        scores = queries / width * keys.shape[1]
        return kernel.scores * scores + (kernel.widened * queries if narrow(q) else 0.0)
    mask, row = 0, 0.0
    if instr.attr("visible") is not None:  # a document's results, on their way to the whole
        row = (queries + (2 * exact_nbytes(keys) if kernel is BACKWARD else 0.0)) / q.shape[0]
    if windowed(instr, keys.shape[1]):
        mask = q.nbytes // elements(q) + 1
    elif instr.attr("causal") and q.shape[1] != keys.shape[1]:
        mask = q.nbytes // elements(q)
    return kernel.fused * queries + q.shape[1] * keys.shape[1] * mask + row


def windowed(instr: Instr, keys: int) -> bool:
    """Whether a window hides some of so many keys."""
    window: int = instr.attr("window", 0)
    return 0 < window < keys


def visible_share(instr: Instr, queries: int, keys: int) -> float:
    """The share of the scores that the mask leaves, on the rank with the last queries.

    A query with n keys up to its own sees min(n, window) of them. Without a window that is
    1 - queries / (2 keys), one half when the queries are whole. Without the causal mask it is the
    convention of counting: the window of every query in full.
    """
    visible = instr.attr("visible")
    if visible is not None:
        return _share_of_documents(instr, keys, visible)
    window = instr.attr("window", 0) or keys
    if not instr.attr("causal"):
        return min(1.0, window / keys)
    first = keys - queries
    growing = max(0, min(window, keys) - first)
    seen = growing * (first + min(window, keys)) / 2 + (queries - growing) * window
    return seen / (queries * keys)


def _share_of_documents(instr: Instr, keys: int, visible: float) -> float:
    """The same where sequences are packed: no rank has queries that see more than others.

    In a document of n positions they see min(1, window), ... min(n, window) of its keys.
    """
    mean = visible * keys
    window = min(instr.attr("window", 0) or mean, mean)
    seen = window - window**2 / (2 * mean) if instr.attr("causal") else window
    return float(seen / keys)


def _attention_work(
    instr: Instr, q: Register, keys: Register, kernel: _Kernel, moved: float
) -> Work:
    """FLOP = 2 · products · b s g r d · t · visible share of the rank that others wait for."""
    share = visible_share(instr, q.shape[1], keys.shape[1])
    whole = 2.0 * prod(q.shape) * keys.shape[1]
    return Work(
        "attention_grad" if kernel is BACKWARD else "attention",
        kernel.products * whole * share,
        moved,
        _workspace(instr, q, keys, kernel),
        plain_flops=kernel.plain * whole,
        score_bytes=kernel.passes * q.nbytes / q.shape[-1] * keys.shape[1],
    )


def _forward_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    moved = streaming("attention", ins, outs).nbytes
    return _attention_work(instr, ins[0], ins[1], FORWARD, moved)


def _backward_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    moved = streaming("attention", ins, outs).nbytes
    return _attention_work(instr, ins[1], ins[2], BACKWARD, moved)


def _rotary_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """Half of the turned values at a time, and all of them widened, beside cosines and sines of
    every position, counted in fp64.
    """
    x, positions = ins
    turned = instr.attr("width", x.shape[-1])
    copies = turned / x.shape[-1] / 2 + (1.0 if narrow(x) else 0.0)
    turns = elements(positions) * turned / 2
    width = exact_nbytes(x) / elements(x)
    workspace = copies * exact_nbytes(x) + turns * (2 * width + DTYPE_BYTES["fp64"])
    return Work("pointwise", 0.0, streaming("pointwise", ins, outs).nbytes, workspace)


def _attention_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    q, k, v, *documents = op.inputs
    o, lse = op.outputs
    inputs = (d_outputs[0], q, k, v, o, lse, *documents)
    backward.emit(op, op.family + "_grad", inputs, op.attrs).gradients_of(q, k, v)


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
    Family(
        "packed_attention",
        whole=frozenset("dt"),
        renames={1: _KEYS, 2: _KEYS, 4: _KEYS},
        work=_forward_work,
        gradient=_attention_gradient,
    ),
    Family(
        "packed_attention_grad",
        whole=frozenset("dt"),
        renames={2: _KEYS, 3: _KEYS, 7: _KEYS, 9: _KEYS, 10: _KEYS},
        work=_backward_work,
    ),
    Family(
        "rotary",
        whole=frozenset("d"),
        linear_in=(0,),
        work=_rotary_work,
        gradient=_rotary_gradient,
    ),
)
