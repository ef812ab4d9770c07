"""Rotary positions, in Hugging Face's rotate-half convention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

import torch
from torch import Tensor

from autoplan.runtime.kernels.place import Kernel, Site, StepContext, statistic

Scaling = tuple[float, float, float, float]


def inverse_frequencies(width: int, theta: float, scaling: Scaling | None) -> Tensor:
    """Radians per position of each of the width / 2 rotated pairs, fp64.

    Args:
        width: of a head.
        theta: base.
        scaling: None, or Llama 3's (factor, low, high, original positions): wavelengths longer than
            original / low are stretched by `factor`, those shorter than original / high are kept,
            and those between are blended.

    Source: Su et al. 2021, section 3.2.2; Hugging Face transformers, `_compute_llama3_parameters`.
    """
    pairs = torch.arange(0, width, 2, dtype=torch.float64)
    frequency = theta ** (-pairs / width)
    if scaling is None:
        return frequency
    factor, low, high, original = scaling
    turns = original * frequency / (2 * pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * frequency + (1 - kept) * frequency / factor


def rotary(site: Site) -> Kernel:
    """Pairs (x_i, x_{i + width/2}) turned by sign * position * frequency_i.

    Sign -1 is the backward. Values of a head beyond `width` stay as they are.
    """
    width, middle = site.instr.attr("width", site.operand(0)[-1]), len(site.operand(0)) - 3
    sign, half = site.attr("sign"), width // 2
    frequencies = inverse_frequencies(width, site.attr("theta"), site.attr("scaling"))
    dtype = site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, positions = operands
        # Angles in fp64: a late position times a frequency loses all digits of its cosine in fp32.
        angles = positions.to(torch.float64)[..., None] * frequencies.to(x.device)
        angles = angles.view(*positions.shape, *(1,) * middle, half)
        exact = statistic(x.dtype)
        cos, sin = angles.cos().to(exact), angles.sin().mul_(sign).to(exact)
        first, second = x[..., :half], x[..., half:width]
        y = torch.empty_like(x, dtype=exact)
        torch.mul(first, cos, out=y[..., :half]).sub_(second * sin)
        torch.mul(second, cos, out=y[..., half:width]).add_(first * sin)
        y[..., width:].copy_(x[..., width:])
        return (y.to(dtype),)

    return kernel


KERNELS: dict[str, Callable[[Site], Kernel]] = {"rotary": rotary}
