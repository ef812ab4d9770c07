"""Attention and its explicit backward, two back ends behind one signature.

On a CPU without dropout: torch's flash kernel, which takes fewer key/value heads than query heads
and returns the log-sum-exp. Otherwise plain products in fp32 at least, where the mask of a dropout
is counted from global element indices. Storage is b s (heads) d everywhere: no layout is copied.
Where sequences hold several documents, the flash kernel takes one after the other.

Shape letters: b sequences, s queries, t keys, g key/value heads, r query heads per key/value head,
h = (g r), d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from autoplan.runtime.kernels.place import Kernel, Site, StepContext, owned, statistic
from autoplan.runtime.random import dropout_key, shard_keep_mask

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Attention:
    """The attributes of one attention instruction.

    Attributes:
        scale: of the scores.
        causal: whether a query sees only keys at its own and earlier positions.
        window: how many of those it sees, its own the last; 0 for all.
        dropout: probability, 0 for none.
        key: name of the operator, for the mask.
        sizes: global sizes of q's dims b s g r d.
        offsets: of this rank's queries in them; keys always start at position 0.
    """

    scale: float
    causal: bool
    window: int
    dropout: float
    key: str
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, site: Site, q: int) -> Attention:
        """Read off an instruction whose operand `q` is the queries."""
        dropout = site.attr("dropout")
        return cls(
            site.attr("scale"),
            site.attr("causal"),
            site.instr.attr("window", 0),
            dropout,
            site.attr("key") if dropout else "",
            *site.region(site.operand(q)),
        )

    def hidden(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """True where query i of this rank must not see key j."""
        first = self.offsets[1]
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(first + 1)
        if 0 < self.window < keys:
            hidden.logical_or_(torch.ones_like(hidden).tril_(first - self.window))
        return hidden

    def flash_mask(self, q: Tensor, k: Tensor) -> dict[str, bool | Tensor | None]:
        """The mask as the flash kernel takes it.

        Its `is_causal` aligns the first query with the first key, wrong for any other prefix, so a
        shard of the queries, like a window, gets an additive mask, which must have their dtype.
        """
        queries, keys = q.shape[1], k.shape[1]
        aligned = queries == keys and self.offsets[1] == 0
        windowed = 0 < self.window < keys
        if not self.causal or (aligned and not windowed):
            return {"is_causal": self.causal, "attn_mask": None}
        if windowed:
            hidden = self.hidden(queries, keys, q.device)
            mask = torch.zeros(queries, keys, dtype=q.dtype, device=q.device)
            return {"is_causal": False, "attn_mask": mask.masked_fill_(hidden, -torch.inf)}
        mask = torch.full((queries, keys), -torch.inf, dtype=q.dtype, device=q.device)
        return {"is_causal": False, "attn_mask": mask.triu_(self.offsets[1] + 1)}

    def keep(self, context: StepContext, scores: Tensor) -> Tensor:
        """Dropout's factor (0 or 1 / (1 - p)) for scores[b g r s t]."""
        _, s_size, g_size, r_size, _ = self.sizes
        b, s, g, r, _ = self.offsets
        starts = (context.micro_batch * context.batch + b, g, r, s, 0)
        slices = [slice(a, a + n) for a, n in zip(starts, scores.shape, strict=True)]
        whole = (0, g_size, r_size, s_size, scores.shape[-1])
        key = dropout_key(context.seed, context.step, self.key, context.instance)
        keep = shard_keep_mask(key, whole, slices, self.dropout, scores.device)
        return keep.to(scores.dtype).mul_(1 / (1 - self.dropout))

    def pieces(self, of_queries: Tensor, of_keys: Tensor) -> Iterator[_Piece]:
        """The documents of this rank's queries, each in one piece, with the keys they may see.

        Args:
            of_queries: document of each query [b s], in ascending order.
            of_keys: of each key [b t], likewise.
        """
        for row, (mine, every) in enumerate(zip(of_queries, of_keys, strict=True)):
            low = 0
            documents, counts = torch.unique_consecutive(mine, return_counts=True)
            for document, count in zip(documents, counts.tolist(), strict=True):
                inside = (every == document).nonzero()
                start, end = int(inside[0]), int(inside[-1]) + 1
                first = self.offsets[1] + low
                if self.causal:
                    end = first + count
                offsets = (*self.offsets[:1], first - start, *self.offsets[2:])
                there = slice(row, row + 1)
                yield _Piece(
                    replace(self, offsets=offsets),
                    (there, slice(low, low + count)),
                    (there, slice(start, end)),
                )
                low += count

    def flash(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(o[b s h d], lse[b s h])."""
        heads = (_by_head(x) for x in (q, k, v))
        o, lse = _flash(*heads, 0.0, **self.flash_mask(q, k), scale=self.scale)
        return o.transpose(1, 2), lse.transpose(1, 2)

    def flash_grad(self, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """(dq[b s h d], dk[b t g d], dv[b t g d]) of (do, q, k, v, o, lse)."""
        do, q, k, v, o = (_by_head(x) for x in operands[:5])
        lse = operands[5].view(*operands[1].shape[:2], -1).transpose(1, 2)
        mask = self.flash_mask(operands[1], operands[2])
        causal, additive = mask["is_causal"], mask["attn_mask"]
        gradients = _flash_backward(
            do, q, k, v, o, lse, 0.0, causal, attn_mask=additive, scale=self.scale
        )
        return tuple(x.transpose(1, 2) for x in gradients)

    def uses_flash(self, q: Tensor) -> bool:
        """Whether the flash kernel does this."""
        return not self.dropout and q.device.type == "cpu"

    def scores(self, q: Tensor, k: Tensor, documents: Sequence[Tensor]) -> Tensor:
        """Scaled, masked scores[b g r s t]; with documents of queries and keys, within them."""
        scores = torch.einsum("bsgrd,btgd->bgrst", q, k).mul_(self.scale)
        if self.causal:
            scores.masked_fill_(self.hidden(q.shape[1], k.shape[1], q.device), -torch.inf)
        if documents:
            apart = documents[0].unsqueeze(2) != documents[1].unsqueeze(1)
            scores.masked_fill_(apart[:, None, None], -torch.inf)
        return scores


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries of one document and the keys they may see.

    Attributes:
        spec: the attention of these alone.
        queries: index of [b s ...].
        keys: index of [b t ...].
    """

    spec: Attention
    queries: tuple[slice, slice]
    keys: tuple[slice, slice]


def _by_head(x: Tensor) -> Tensor:
    """A view b h s d of b s g r d or b t g d."""
    return x.view(x.shape[0], x.shape[1], -1, x.shape[-1]).transpose(1, 2)


def attention(site: Site) -> Kernel:
    """(o[b s g r d], lse[b s g r]) of q[b s g r d], k[b t g d], v[b t g d].

    Of packed sequences also the documents[b s] of queries and documents[b t] of keys.
    """
    spec = Attention.of(site, 0)
    o_shape, lse_shape = site.result(0), site.result(1)
    dtype = site.dtype()

    def plain(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        q, k, v, *documents = operands
        exact = statistic(q.dtype)
        scores = spec.scores(q.to(exact), k.to(exact), documents)
        lse = scores.logsumexp(-1)
        p = scores.sub_(lse.unsqueeze(-1)).exp_()
        if spec.dropout:
            p.mul_(spec.keep(context, p))
        o = torch.einsum("bgrst,btgd->bsgrd", p, v.to(exact))
        return owned(o.to(dtype)), owned(lse.permute(0, 3, 1, 2))

    def packed(q: Tensor, k: Tensor, v: Tensor, *documents: Tensor) -> tuple[Tensor, Tensor]:
        o = q.new_empty(q.shape).flatten(2, 3)
        lse = o.new_empty(o.shape[:3], dtype=site.dtype(1))
        for piece in spec.pieces(*documents):
            o[piece.queries], lse[piece.queries] = piece.spec.flash(
                q[piece.queries], k[piece.keys], v[piece.keys]
            )
        return o, lse

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not spec.uses_flash(operands[0]):
            return plain(context, operands)
        o, lse = (packed if operands[3:] else spec.flash)(*operands)
        return owned(o).view(o_shape), owned(lse).view(lse_shape)

    return kernel


def attention_grad(site: Site) -> Kernel:
    """(dq, dk, dv) of (do, q, k, v, o, lse), probabilities recomputed from lse.

    Of packed sequences also the documents of queries and keys.

    Source: Dao et al. 2022 (FlashAttention), appendix B.2: ds = p * (dp - sum(do * o)).
    """
    spec = Attention.of(site, 1)
    shapes = tuple(site.result(k) for k in range(3))
    dtypes = tuple(site.dtype(k) for k in range(3))

    def plain(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        lse = operands[5]
        do, q, k, v, o = (x.to(lse.dtype) for x in operands[:5])
        p = spec.scores(q, k, operands[6:]).sub_(lse.permute(0, 2, 3, 1).unsqueeze(-1)).exp_()
        dp = torch.einsum("bsgrd,btgd->bgrst", do, v)
        dropped = p
        if spec.dropout:
            keep = spec.keep(context, p)
            dropped = p * keep
            dp.mul_(keep)
        dv = torch.einsum("bgrst,bsgrd->btgd", dropped, do)
        along = (do * o).sum(-1).permute(0, 2, 3, 1).unsqueeze(-1)
        ds = dp.sub_(along).mul_(p).mul_(spec.scale)
        dq = torch.einsum("bgrst,btgd->bsgrd", ds, k)
        dk = torch.einsum("bgrst,bsgrd->btgd", ds, q)
        return dq, dk, dv

    def packed(operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        do, q, k, v, o, lse, *documents = operands
        dq, dk, dv = torch.zeros_like(q).flatten(2, 3), torch.zeros_like(k), torch.zeros_like(v)
        for piece in spec.pieces(*documents):
            mine, seen = piece.queries, piece.keys
            parts = (do[mine], q[mine], k[seen], v[seen], o[mine], lse[mine])
            dq[mine], dk[seen], dv[seen] = piece.spec.flash_grad(parts)
        return dq, dk, dv

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not spec.uses_flash(operands[1]):
            gradients = plain(context, operands)
        else:
            gradients = packed(operands) if operands[6:] else spec.flash_grad(operands)
        return tuple(
            owned(x.to(dtype)).view(shape)
            for x, dtype, shape in zip(gradients, dtypes, shapes, strict=True)
        )

    return kernel


KERNELS: dict[str, Callable[[Site], Kernel]] = {
    "attention": attention,
    "attention_grad": attention_grad,
    "packed_attention": attention,
    "packed_attention_grad": attention_grad,
}
