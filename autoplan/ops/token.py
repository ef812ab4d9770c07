"""Where tokens enter and leave: embedding and cross-entropy.

    embedding       b s, v m         -> b s m          v: summed (masked look-up)
    xent_stats      b s v, b s       -> b s c          v: softmax-merge; c = (log-sum-exp, target logit)
    xent_loss       b s c, b s, ()   -> ()             b, s: summed; divided by the valid tokens of
                                                       the *global* batch, an input of the step
    xent_grad       b s v, b s c, b s, () -> b s v     every dim; the statistics must be merged
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import Op
from autoplan.ir.program import Instr, Register
from autoplan.ops.family import Backward, Family, Work, streaming


def _lookup_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """A look-up reads the rows it delivers, not the table."""
    return Work("pointwise", 0.0, float(2 * outs[0].nbytes + ins[0].nbytes))


def _scatter_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """Rows are read, added and written; a fresh table is zeroed first."""
    zeroed = 0 if len(ins) == 3 else outs[0].nbytes
    return Work("pointwise", 0.0, float(3 * ins[1].nbytes + zeroed), float(ins[1].nbytes))


def _stats_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """The sum of exponentials keeps one temporary of the logits' size (measured)."""
    return Work("pointwise", 0.0, streaming("pointwise", ins, outs).nbytes, float(ins[0].nbytes))


def _embedding_gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    ids, table = op.inputs
    if backward.needed(table):
        backward.emit(op, "embedding_grad", (ids, d_outputs[0])).gradients_of(table)


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
        work=_stats_work,
        gradient=_stats_gradient,
    ),
    Family("xent_loss", whole=frozenset("c"), accumulates=True, gradient=_loss_gradient),
    Family("xent_grad", whole=frozenset("c")),
)
