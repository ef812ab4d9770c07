"""Random numbers as a function of (what, where): the same for every plan, device and rank.

A value depends on a text key and on the index of its element in the *whole* tensor, never on a
generator's state, so that any shard equals the same slice of the whole. All arithmetic up to the
last multiplication is on integers, hence exact everywhere; logarithms and cosines are not (their
last bits differ between libraries), so no Box-Muller here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from math import prod, sqrt
from operator import mul

import torch
from torch import Tensor

SHORTS = 4
SHORT_MEAN = (2**16 - 1) / 2
SHORT_VARIANCE = (2**32 - 1) / 12
"""Moments of a uniform 16-bit integer. Source: discrete uniform distribution, (n^2 - 1) / 12."""

BLOCK = 1 << 15
"""Elements hashed at once; whole arrays are 3-4 times slower (cache). [empirical]"""

Slices = Sequence[slice]


def _signed(value: int) -> int:
    """The 64-bit pattern as the int64 that torch takes."""
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)


def hash_key(text: str) -> int:
    """The first eight bytes of the text's blake2b digest, as an int64."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def dropout_key(seed: int, step: int, key: str, instance: int) -> int:
    """Key of the masks of one dropout operator in one instance of its block and one step."""
    return hash_key(f"{seed}/{step}/{key}/{instance}")


def hash_bits(indices: Tensor, key: int) -> Tensor:
    """64 random bits per element.

    Args:
        indices: int64 counters of any shape.
        key: which stream, from `hash_key`.

    Returns:
        int64 of the same shape; `(bits >> n) & mask` takes unsigned fields out of it.

    Source: splitmix64 finaliser, Steele, Lea and Flood, OOPSLA 2014, figure 17 (shifts and
    multipliers of Stafford's variant 13).
    """
    z = indices * GOLDEN
    z += key
    for shift, multiplier in ((30, MIX_1), (27, MIX_2), (31, 1)):
        # torch's >> keeps the sign; the mask makes it the logical shift of the published function.
        z ^= (z >> shift) & ((1 << (64 - shift)) - 1)
        z *= multiplier
    return z


def element_indices(
    global_shape: Sequence[int], slices: Slices, device: torch.device | str = "cpu"
) -> Tensor:
    """Row-major index, in the whole tensor, of every element of a shard.

    Args:
        global_shape: of the whole tensor; its first entry is not used.
        slices: the shard: one contiguous slice per dim.
        device: where the result lies.

    Returns:
        int64 of the shard's shape.
    """
    strides = (*accumulate(reversed(global_shape[1:]), mul, initial=1),)[::-1]
    total = torch.zeros((), dtype=torch.int64, device=device)
    for part, stride in zip(slices, strides, strict=False):
        along = torch.arange(part.start, part.stop, device=device)
        total = total.unsqueeze(-1) + along * stride
    return total


def _blocks(
    global_shape: Sequence[int], slices: Slices, device: torch.device | str
) -> Iterator[tuple[int, int, Tensor]]:
    """`element_indices` of the flattened shard in blocks: (first element, end, indices)."""
    if not slices:
        yield 0, 1, torch.zeros(1, dtype=torch.int64, device=device)
        return
    row_starts = element_indices(global_shape[:-1], slices[:-1], device).reshape(-1, 1)
    columns = torch.arange(slices[-1].start, slices[-1].stop, device=device)
    rows = max(1, BLOCK // max(1, len(columns)))
    for first in range(0, len(row_starts), rows):
        starts = row_starts[first : first + rows]
        indices = (starts * global_shape[-1] + columns).reshape(-1)
        yield first * len(columns), first * len(columns) + len(indices), indices


def _shape(slices: Slices) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in slices)


def normal(
    name: str,
    seed: int,
    global_shape: Sequence[int],
    slices: Slices,
    std: float,
    dtype: torch.dtype,
) -> Tensor:
    """A shard of a tensor of nearly normal values with mean 0 and the given standard deviation.

    Each value is the scaled sum of four 16-bit integers: exact mean and variance, kurtosis 2.7
    instead of 3 and no value beyond 3.46 standard deviations, which an initialisation never needs.

    Args:
        name: of the tensor; with `seed` it selects the stream.
        seed: of the run.
        global_shape: of the whole tensor.
        slices: the shard, one contiguous slice per dim.
        std: standard deviation.
        dtype: of the result.

    Source: Irwin-Hall distribution with n = 4.
    """
    key = hash_key(f"{seed}/{name}")
    factor = std / sqrt(SHORTS * SHORT_VARIANCE)
    result = torch.empty(prod(_shape(slices)), dtype=dtype)
    for first, end, indices in _blocks(global_shape, slices, "cpu"):
        bits = hash_bits(indices, key)
        total = torch.zeros_like(bits)
        for k in range(SHORTS):
            total += (bits >> (16 * k)) & 0xFFFF
        result[first:end] = (total.to(torch.float64) - SHORTS * SHORT_MEAN) * factor
    return result.view(_shape(slices))


def initial(
    name: str,
    kind: tuple[str, float],
    global_shape: Sequence[int],
    slices: Slices,
    seed: int,
    dtype: torch.dtype,
) -> Tensor:
    """The initial value of a parameter's shard.

    Args:
        name: the parameter's full name.
        kind: ("normal", standard deviation) or ("constant", value).
        global_shape: of the whole parameter.
        slices: the shard, one contiguous slice per dim.
        seed: of the run.
        dtype: of the result.
    """
    law, value = kind
    if law == "constant":
        return torch.full(_shape(slices), value, dtype=dtype)
    return normal(name, seed, global_shape, slices, value, dtype)


def keep_mask(key: int, indices: Tensor, p: float) -> Tensor:
    """Which elements a dropout with probability `p` keeps: an integer comparison, exact everywhere.

    Args:
        key: from `dropout_key`.
        indices: global element indices.
        p: probability of being dropped; realised in steps of 2^-32.
    """
    return ((hash_bits(indices, key) >> 32) & 0xFFFFFFFF) >= int(p * 2**32)


def shard_keep_mask(
    key: int,
    global_shape: Sequence[int],
    slices: Slices,
    p: float,
    device: torch.device | str = "cpu",
) -> Tensor:
    """`keep_mask` of a shard, computed in blocks so that no large index tensor exists."""
    result = torch.empty(prod(_shape(slices)), dtype=torch.bool, device=device)
    for first, end, indices in _blocks(global_shape, slices, device):
        result[first:end] = keep_mask(key, indices, p)
    return result.view(_shape(slices))
