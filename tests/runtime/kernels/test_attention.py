"""Laws: attention and its backward equal autograd, for every prefix, head group and shard."""

from __future__ import annotations

import math

import pytest
import torch

from autoplan.runtime.kernels import Place
from tests.runtime.kernels.calls import close, gradients, like, rand, run


def plain_attention(q, k, v, first, causal, scale, window=0):
    b, s, g, r, d = q.shape
    scores = torch.einsum("bsgrd,btgd->bgrst", q, k) * scale
    if causal:
        t, i = torch.arange(k.shape[1])[None], torch.arange(first, first + s)[:, None]
        scores = scores.masked_fill(t > i, -math.inf)
        scores = scores.masked_fill(t <= i - (window or k.shape[1]), -math.inf)
    lse = scores.logsumexp(-1).permute(0, 3, 1, 2)
    return torch.einsum("bgrst,btgd->bsgrd", scores.softmax(-1), v), lse


def attention_attrs(**more):
    return {"scale": 0.3, "causal": True, "dropout": 0.0, "key": "attended", **more}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("g", "r"), [(1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize(("s", "parts", "c"), [(6, 1, 0), (3, 2, 0), (3, 2, 1), (5, 3, 2)])
def test_attention_family(causal, g, r, s, parts, c):
    q, k, v = rand(2, s, g, r, 4), rand(2, s * parts, g, 4), rand(2, s * parts, g, 4, seed=1)
    do = rand(2, s, g, r, 4, seed=2)
    attrs = attention_attrs(causal=causal, shard=((1, (0,)),))
    place = Place((parts,), (c,))

    def forward(q, k, v):
        return plain_attention(q, k, v, s * c, causal, 0.3)[0]

    o, lse = plain_attention(q, k, v, s * c, causal, 0.3)
    kinds = [*like(q), ((2, s, g, r), q.dtype)]
    got = run("attention", (q, k, v), kinds, attrs, place=place)
    close(got, [o, lse])
    operands = (do, q, k, v, *got)
    found = run("attention_grad", operands, like(q, k, v), attrs, place=place)
    close(found, gradients(forward, (q, k, v), do))


@pytest.mark.parametrize("window", [1, 3, 9, 99])
@pytest.mark.parametrize("dropout", [0.0, 1e-12])
@pytest.mark.parametrize(("s", "parts", "c"), [(6, 1, 0), (3, 2, 1), (5, 3, 1)])
def test_attention_in_a_window(window, dropout, s, parts, c):
    """On both back ends, for every shard of the queries, and for windows wider than the keys."""
    q, k, v = rand(2, s, 2, 2, 4), rand(2, s * parts, 2, 4), rand(2, s * parts, 2, 4, seed=1)
    do = rand(2, s, 2, 2, 4, seed=2)
    attrs = attention_attrs(window=window, dropout=dropout, shard=((1, (0,)),))
    place = Place((parts,), (c,))

    def forward(q, k, v):
        return plain_attention(q, k, v, s * c, True, 0.3, window)[0]

    kinds = [*like(q), ((2, s, 2, 2), q.dtype)]
    got = run("attention", (q, k, v), kinds, attrs, place=place)
    close(got, plain_attention(q, k, v, s * c, True, 0.3, window), 1e-9)
    found = run("attention_grad", (do, q, k, v, *got), like(q, k, v), attrs, place=place)
    close(found, gradients(forward, (q, k, v), do), 1e-9)


def test_whole_blocks_of_keys_may_lie_outside_the_window():
    """The fused kernel takes keys in blocks; one that a query sees nothing of adds nothing."""
    q, k, v = rand(1, 1100, 1, 1, 4), rand(1, 1100, 1, 4), rand(1, 1100, 1, 4, seed=1)
    attrs = attention_attrs(window=50)
    kinds = [*like(q), ((1, 1100, 1, 1), q.dtype)]
    got = run("attention", (q, k, v), kinds, attrs)
    close(got, plain_attention(q, k, v, 0, True, 0.3, 50))
    found = run("attention_grad", (q, q, k, v, *got), like(q, k, v), attrs)
    assert all(t.isfinite().all() for t in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 1e-9])
def test_attention_in_lower_precision(dtype, dropout):
    """A vanishing dropout takes the plain back end, which must agree with the flash kernel."""
    q, k, v = (
        rand(1, 16, 2, 2, 8, dtype=dtype),
        *(rand(1, 16, 2, 8, seed=i, dtype=dtype) for i in (1, 2)),
    )
    do = rand(1, 16, 2, 2, 8, seed=3, dtype=dtype)
    wide = [t.double() for t in (q, k, v)]
    limit = 1e-5 if dtype == torch.float32 else 3e-2
    attrs = attention_attrs(dropout=dropout)
    got = run("attention", (q, k, v), [*like(q), ((1, 16, 2, 2), torch.float32)], attrs)
    expected = plain_attention(*wide, 0, True, 0.3)
    close([t.double() for t in got], expected, limit)
    found = run("attention_grad", (do, q, k, v, *got), like(q, k, v), attrs)
    wanted = gradients(lambda *x: plain_attention(*x, 0, True, 0.3)[0], wide, do.double())
    close([t.double() for t in found], wanted, limit)


def test_attention_dropout_is_counted_globally():
    """Shards of sequences, heads and queries are those of the whole; the backward is the derivative
    of the forward with its mask."""
    q, k, v = rand(2, 4, 2, 2, 3), rand(2, 4, 2, 3), rand(2, 4, 2, 3, seed=1)
    do = rand(2, 4, 2, 2, 3, seed=2)
    attrs = attention_attrs(dropout=0.25)
    kinds = [*like(q), ((2, 4, 2, 2), q.dtype)]
    o, lse = run("attention", (q, k, v), kinds, attrs)
    assert not torch.allclose(o, plain_attention(q, k, v, 0, True, 0.3)[0])
    whole = run("attention_grad", (do, q, k, v, o, lse), like(q, k, v), attrs)
    step = 1e-6
    for index, operand in enumerate((q, k, v)):
        direction = rand(*operand.shape, seed=5)
        ends = []
        for sign in (1, -1):
            moved = [q, k, v]
            moved[index] = operand + sign * step * direction
            ends.append((run("attention", moved, kinds, attrs)[0] * do).sum())
        slope = (ends[0] - ends[1]) / (2 * step)
        close([(whole[index] * direction).sum()], [slope], 1e-8)
    shard = {"shard": ((0, (0,)), (1, (1,)), (2, (2,)))}
    sums = [torch.zeros_like(t) for t in (q, k, v)]
    for c in ((i, j, n) for i in (0, 1) for j in (0, 1) for n in (0, 1)):
        b, s, g = slice(c[0], c[0] + 1), slice(2 * c[1], 2 * c[1] + 2), slice(c[2], c[2] + 1)
        part = [q[b, s, g].clone(), k[b, :, g].clone(), v[b, :, g].clone()]
        place = Place((2, 2, 2), c)
        small = [*like(part[0]), (part[0].shape[:-1], q.dtype)]
        found = run("attention", part, small, attrs | shard, place=place)
        close(found, [o[b, s, g], lse[b, s, g]])
        operands = (do[b, s, g].clone(), *part, *found)
        got = run("attention_grad", operands, like(*part), attrs | shard, place=place)
        sums[0][b, s, g] += got[0]
        sums[1][b, :, g] += got[1]
        sums[2][b, :, g] += got[2]
    close(sums, whole)
