"""Muon: momentum on a shard, an orthogonal matrix of the whole, its application on a shard.

Source: Jordan et al. 2024, Muon; Liu et al. 2025, Muon is scalable (scale and weight decay), as
torch.optim.Muon with `adjust_lr_fn="match_rms_adamw"`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from autoplan.ops.update import BLOCK, ITERATIONS
from autoplan.runtime.kernels.optimizer import settled
from autoplan.runtime.kernels.place import Kernel, Site, StepContext, statistic

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of a X + b (X Xᵀ) X + c (X Xᵀ)² X."""
SMALLEST_NORM = 1e-7


def muon_momentum(site: Site) -> Kernel:
    """(momentum, direction): an exponential mean of gradients, and Nesterov's look ahead."""
    rate, dtype = site.attr("momentum"), site.dtype(1)

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        grad, factor, momentum = operands
        known = settled(context, factor)
        if known is None:
            return momentum, torch.zeros_like(grad, dtype=dtype)
        direction = torch.empty_like(grad, dtype=dtype)
        exact = statistic(momentum.dtype)
        parts = (torch.split(t.view(-1), BLOCK) for t in (grad, momentum, direction))
        for g, stored, out in zip(*parts, strict=True):
            wide = g.to(exact) * known[0].to(exact)
            mean = stored.to(exact).lerp_(wide, 1 - rate)
            stored.copy_(mean)
            out.copy_(wide.lerp_(mean, rate))
        return momentum, direction

    return kernel


def orthogonalise(site: Site) -> Kernel:
    """A matrix near U Vᵀ of the operand's U S Vᵀ, by Newton-Schulz in the operand's dtype."""
    shape = site.operand(0)
    rows = prod(shape[: site.attr("outer")])
    a, b, c = COEFFICIENTS

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x = operands[0].view(rows, -1)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / x.norm().clamp_(min=SMALLEST_NORM)
        for _iteration in range(ITERATIONS):
            square = x @ x.T
            square = torch.addmm(square, square, square, beta=b, alpha=c)
            x = torch.addmm(x, square, x, beta=a)
        x = x.T.contiguous() if tall else x
        return (x.view(shape),)

    return kernel


def muon(site: Site) -> Kernel:
    """Subtracts lr * scale * direction, after decoupled weight decay."""
    lr, decay, scale = site.attr("lr"), site.attr("weight_decay"), site.attr("scale")

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        param, direction, factor = operands[:3]
        if settled(context, factor) is None:
            return (param, *operands[3:])
        value = operands[3] if len(operands) > 3 else param
        exact = statistic(value.dtype)
        parts = (torch.split(t.view(-1), BLOCK) for t in (value, direction))
        for stored, part in zip(*parts, strict=True):
            new = stored.to(exact).mul(1 - lr * decay).sub_(part.to(exact), alpha=lr * scale)
            stored.copy_(new)
        if value is not param:
            param.copy_(value)
        return (param, *operands[3:])

    return kernel


KERNELS: dict[str, Callable[[Site], Kernel]] = {
    "muon_momentum": muon_momentum,
    "orthogonalise": orthogonalise,
    "muon": muon,
}
