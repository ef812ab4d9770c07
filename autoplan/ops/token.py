"""Where tokens enter and leave: embedding and cross-entropy.

    embedding       b s, v m         -> b s m          v: summed (masked look-up); row id + offset
    xent_stats      b s v, b s       -> b s c          v: softmax-merge; c = (lse, target logit)
    xent_loss       b s c, b s, ()   -> ()             b, s: summed
    xent_grad       b s v, b s c, b s, () -> b s v     every dim; the statistics must be merged

The loss is divided by the valid tokens of the *global* batch, an input of the step.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import Op
from autoplan.ir.program import Instr, Register
from autoplan.ir.workload import DTYPE_BYTES
from autoplan.ops.family import Backward, Family, Work, elements, streaming_with

ROWS = 1.25
"""Temporaries of a look-up in copies of its ids: each one's row, and whether the shard has it."""


def _lookup_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """A look-up reads the rows it delivers, not the table."""
    moved = float(2 * outs[0].nbytes + ins[0].nbytes)
    return Work("pointwise", 0.0, moved, ROWS * ins[0].nbytes)


def _scatter_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """Rows are read, added and written; a fresh table is zeroed first. The masked rows are a copy
    in the gradient's dtype, as is what it is made of if the activations have another one.
    """
    ids, rows = ins[:2]
    zeroed = 0 if len(ins) == 3 else outs[0].nbytes
    copies = 1 if rows.dtype == outs[0].dtype else 2
    workspace = copies * elements(rows) * DTYPE_BYTES[outs[0].dtype] + ROWS * ids.nbytes
    return Work("pointwise", 0.0, float(3 * rows.nbytes + zeroed), workspace)


def _embedding_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    ids, table = op.inputs
    if backward.needed(table):
        backward.emit(op, "embedding_grad", (ids, d_outputs[0]), op.attrs).gradients_of(table)


def _loss_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    """Emits nothing: `xent_grad`, the gradient through the statistics, is that of the loss."""
    backward.pass_on(op.inputs[0], "")


def _stats_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    logits, targets = op.inputs
    inputs = (logits, op.outputs[0], targets, "count")
    backward.emit(op, "xent_grad", inputs).gradients_of(logits)


FAMILIES = (
    Family("embedding", work=_lookup_work, gradient=_embedding_gradient),
    Family("embedding_grad", work=_scatter_work, accumulates=True),
    Family(
        "xent_stats",
        whole=frozenset("c"),
        reductions={"v": "softmax"},
        work=streaming_with(1, 2, "loss"),
        gradient=_stats_gradient,
    ),
    Family(
        "xent_loss",
        whole=frozenset("c"),
        accumulates=True,
        work=streaming_with(0.75, 0.75),
        gradient=_loss_gradient,
    ),
    Family("xent_grad", whole=frozenset("c"), work=streaming_with(0, 1.5, "loss")),
)
