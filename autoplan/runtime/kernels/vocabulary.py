"""The operators whose tensors have a vocabulary dim, which may be split: embedding, cross-entropy.

A rank that holds rows [offset, offset + n) of the vocabulary answers 0 for every other id; the sum
(or, for log-sum-exps, the softmax merge) over ranks is the result of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from autoplan.runtime.data import MASKED
from autoplan.runtime.kernels.place import Kernel, Site, StepContext, accumulating


def _local_rows(ids: Tensor, offset: int, count: int) -> tuple[Tensor, Tensor]:
    """(row of each id in this shard, clamped into it; whether the id lies in it)."""
    rows = ids - offset
    return rows.clamp(0, count - 1), (rows >= 0) & (rows < count)


def embedding(site: Site) -> Kernel:
    """x[b s m] = table[ids + offset], 0 for the rows of other shards."""
    count = site.operand(1)[0]
    sizes, offsets = site.region(site.operand(1))
    start = offsets[0] - site.instr.attr("offset", 0)
    shape, dtype = site.result(), site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        ids, table = operands
        rows, inside = _local_rows(ids, start, count)
        x = table.index_select(0, rows.view(-1)).view(shape)
        if sizes[0] != count:
            x.masked_fill_(~inside.unsqueeze(-1), 0)
        return (x.to(dtype),)

    return kernel


def embedding_grad(site: Site) -> Kernel:
    """dtable[v m]: each row the sum of dy over the positions of its id."""
    count, width = site.result()
    _, offsets = site.region(site.result())
    start = offsets[0] - site.instr.attr("offset", 0)
    dtype = site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        ids, dy = operands[:2]
        if len(operands) == 3:
            total = operands[2]
        else:
            total = torch.zeros((count, width), dtype=dtype, device=dy.device)
        rows, inside = _local_rows(ids, start, count)
        values = dy.to(dtype).masked_fill(~inside.unsqueeze(-1), 0)
        total.index_add_(0, rows.view(-1), values.view(-1, width))
        return (total,)

    return kernel


def xent_stats(site: Site) -> Kernel:
    """stats[b s 2] = (log-sum-exp of this shard's logits, target's logit if it lies in it or 0)."""
    count = site.operand(0)[2]
    _, offsets = site.region(site.operand(0))
    exact = site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        logits, targets = operands
        rows, inside = _local_rows(targets, offsets[2], count)
        lse = torch.logsumexp(logits.to(exact), -1)
        target = logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1).to(exact)
        return (torch.stack((lse, target * inside), -1),)

    return kernel


def xent_loss(site: Site) -> Kernel:
    """Sum over valid positions of (lse - target logit) / number of valid tokens of the batch."""

    def value(operands: Sequence[Tensor]) -> Tensor:
        stats, targets, count = operands[:3]
        losses = (stats[..., 0] - stats[..., 1]).masked_fill_(targets == MASKED, 0)
        return losses.sum() / count.to(stats.dtype)

    return accumulating(site, 3, value)


def xent_grad(site: Site) -> Kernel:
    """Gradient of the logits: (exp(logits - lse) - onehot) * valid / count, times a loss scale."""
    size = site.operand(0)[2]
    _, offsets = site.region(site.operand(0))
    dtype = site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        logits, stats, targets, count = operands[:4]
        exact = stats.dtype
        rows, inside = _local_rows(targets, offsets[2], size)
        gradient = torch.sub(logits, stats[..., :1]).exp_()
        gradient.scatter_add_(-1, rows.unsqueeze(-1), -inside.to(exact).unsqueeze(-1))
        # A bool divided by an int would be fp32 even here, hence the explicit dtypes.
        weight = (targets != MASKED).to(exact) / count.to(exact)
        if len(operands) > 4:
            weight.mul_(operands[4])
        return (gradient.mul_(weight.unsqueeze(-1)).to(dtype),)

    return kernel


KERNELS: dict[str, Callable[[Site], Kernel]] = {
    "embedding": embedding,
    "embedding_grad": embedding_grad,
    "xent_stats": xent_stats,
    "xent_loss": xent_loss,
    "xent_grad": xent_grad,
}
