"""Laws: a shard equals the same slice of the whole; values are pinned to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.runtime.random import (
    dropout_key,
    element_indices,
    hash_bits,
    hash_key,
    initial,
    keep_mask,
    normal,
    shard_keep_mask,
)


def splitmix(index: int, key: int) -> int:
    """The published function on Python's integers."""
    mask = (1 << 64) - 1
    z = (index * 0x9E3779B97F4A7C15 + key) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**62), st.text(max_size=8))
def test_bits_are_those_of_the_published_function(index, text):
    key = hash_key(text)
    got = int(hash_bits(torch.tensor([index]), key)) % 2**64
    assert got == splitmix(index, key % 2**64)


@st.composite
def shards(draw):
    shape = draw(st.lists(st.integers(1, 6), max_size=4))
    slices = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        slices.append(slice(start, draw(st.integers(start + 1, size))))
    return tuple(shape), tuple(slices)


@settings(max_examples=60, deadline=None)
@given(shards(), st.integers(1, 40))
def test_a_shard_is_the_slice_of_the_whole(case, block):
    shape, slices = case
    full = tuple(slice(0, n) for n in shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoplan.runtime.random.BLOCK", block)
        whole = normal("w", 1, shape, full, 0.02, torch.float64)
        part = normal("w", 1, shape, slices, 0.02, torch.float64)
        kept = shard_keep_mask(5, shape, full, 0.5)
        kept_part = shard_keep_mask(5, shape, slices, 0.5)
    assert torch.equal(part, whole[slices])
    assert torch.equal(kept_part, kept[slices])
    assert torch.equal(kept, keep_mask(5, element_indices(shape, full), 0.5))


def test_values_are_pinned_to_the_bit():
    values = normal("layers.0.w_q", 3, (2, 2), (slice(0, 2), slice(0, 2)), 0.02, torch.float64)
    expected = []
    for index in range(4):
        bits = splitmix(index, hash_key("3/layers.0.w_q") % 2**64)
        total = sum((bits >> (16 * k)) & 0xFFFF for k in range(4)) - 4 * 65535 / 2
        expected.append(total * (0.02 / ((2**32 - 1) / 3) ** 0.5))
    assert values.view(-1).tolist() == expected


def test_moments_are_those_of_the_docstring():
    n = 1 << 18
    values = normal("w", 0, (n,), (slice(0, n),), 1.0, torch.float64)
    assert abs(float(values.mean())) < 0.01
    assert float(values.var()) == pytest.approx(1, abs=0.01)
    assert float((values**4).mean()) == pytest.approx(2.7, abs=0.05)
    assert float(values.abs().max()) <= 3.4642


def test_streams_differ_by_name_seed_and_step():
    part = (slice(0, 64),)
    base = normal("a", 0, (64,), part, 1.0, torch.float32)
    assert not torch.equal(base, normal("b", 0, (64,), part, 1.0, torch.float32))
    assert not torch.equal(base, normal("a", 1, (64,), part, 1.0, torch.float32))
    keys = {dropout_key(s, t, k, i) for s in (0, 1) for t in (0, 1) for k in "ab" for i in (0, 1)}
    assert len(keys) == 16


def test_low_precision_is_the_rounding_of_high():
    part = (slice(0, 99),)
    exact = normal("a", 0, (99,), part, 0.02, torch.float64)
    assert torch.equal(normal("a", 0, (99,), part, 0.02, torch.bfloat16), exact.to(torch.bfloat16))


def test_keep_mask_keeps_its_share_and_is_total_at_zero():
    indices = torch.arange(1 << 16)
    assert bool(keep_mask(1, indices, 0.0).all())
    assert float(keep_mask(1, indices, 0.1).double().mean()) == pytest.approx(0.9, abs=0.01)


def test_initial_kinds():
    part = (slice(1, 3), slice(0, 4))
    ones = initial("n", ("constant", 1.0), (4, 4), part, 0, torch.bfloat16)
    assert ones.shape == (2, 4)
    assert bool((ones == 1).all())
    drawn = initial("n", ("normal", 0.5), (4, 4), part, 0, torch.float32)
    assert torch.equal(drawn, normal("n", 0, (4, 4), part, 0.5, torch.float32))
