"""RMS norm and layer norm over the last dim, statistics in fp32 at least.

The gradients of input and weight are instructions of their own, since a schedule may separate them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from autoplan.runtime.kernels.place import Kernel, Site, StepContext, accumulating


def _over_rows(x: Tensor) -> Tensor:
    """The sum over all dims but the last."""
    return x.view(-1, x.shape[-1]).sum(0)


def rms_norm(site: Site) -> Kernel:
    """(y, rstd): y = x * rstd * (offset + w).

    Source: Zhang and Sennrich 2019, equation 4; `offset` 1 is Gemma's.
    """
    eps, offset = site.attr("eps"), site.attr("offset")
    dtype, exact = site.dtype(0), site.dtype(1)

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, w = (t.to(exact) for t in operands)
        rstd = x.square().mean(-1).add_(eps).rsqrt_()
        y = (x * rstd.unsqueeze(-1)).mul_(offset + w)
        return y.to(dtype), rstd

    return kernel


def rms_norm_dx(site: Site) -> Kernel:
    """Input gradient: rstd * (g - n * mean(g * n)), g = dy * (offset + w), n = x * rstd."""
    offset, dtype = site.attr("offset"), site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        exact = operands[3].dtype
        dy, x, w = (t.to(exact) for t in operands[:3])
        rstd = operands[3].unsqueeze(-1)
        g = dy * (offset + w)
        along = (g * x).mean(-1, keepdim=True).mul_(rstd)
        dx = g.sub_((x * rstd).mul_(along)).mul_(rstd)
        return (dx.to(dtype),)

    return kernel


def rms_norm_dw(site: Site) -> Kernel:
    """Weight gradient: dw = sum over rows of dy * x * rstd."""

    def value(operands: Sequence[Tensor]) -> Tensor:
        dy, x, rstd = operands[:3]
        return _over_rows((x * rstd.unsqueeze(-1)).mul_(dy))

    return accumulating(site, 3, value)


def layer_norm(site: Site) -> Kernel:
    """(y, mean, rstd): y = (x - mean) * rstd * w + bias.

    Source: Ba, Kiros and Hinton 2016, equation 4, with the biased variance.
    """
    eps = site.attr("eps")
    dtype, exact = site.dtype(0), site.dtype(1)

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, w, bias = (t.to(exact) for t in operands)
        mean = x.mean(-1)
        centred = x - mean.unsqueeze(-1)
        rstd = centred.square().mean(-1).add_(eps).rsqrt_()
        y = centred.mul_(rstd.unsqueeze(-1)).mul_(w).add_(bias)
        return y.to(dtype), mean, rstd

    return kernel


def layer_norm_dx(site: Site) -> Kernel:
    """Input gradient: rstd * (g - mean(g) - n * mean(g * n)), g = dy * w, n = (x - mean) * rstd."""
    dtype = site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        exact = operands[4].dtype
        dy, x, w = (t.to(exact) for t in operands[:3])
        mean, rstd = (t.unsqueeze(-1) for t in operands[3:])
        n = (x - mean).mul_(rstd)
        # The product is formed twice, so that there is never more than one temporary beside it.
        along = (dy * w).mul_(n).mean(-1, keepdim=True)
        g = dy * w
        dx = g.sub_(g.mean(-1, keepdim=True)).sub_(n.mul_(along)).mul_(rstd)
        return (dx.to(dtype),)

    return kernel


def layer_norm_dw(site: Site) -> Kernel:
    """Weight gradient: dw = sum over rows of dy * (x - mean) * rstd."""

    def value(operands: Sequence[Tensor]) -> Tensor:
        dy, x = operands[:2]
        mean, rstd = (t.unsqueeze(-1) for t in operands[2:4])
        return _over_rows(torch.sub(x, mean).mul_(rstd).mul_(dy))

    return accumulating(site, 4, value)


KERNELS: dict[str, Callable[[Site], Kernel]] = {
    "rms_norm": rms_norm,
    "rms_norm_dx": rms_norm_dx,
    "rms_norm_dw": rms_norm_dw,
    "layer_norm": layer_norm,
    "layer_norm_dx": layer_norm_dx,
    "layer_norm_dw": layer_norm_dw,
}
