"""Matrix products and biases.

Weights are stored (out dims..., in dims...); the attribute `contract` counts the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from autoplan.runtime.kernels.place import Kernel, Site, StepContext, accumulating


def linear(site: Site) -> Kernel:
    """y[B.. O..] = x[B.. K..] w[O.. K..]^T."""
    inner = prod(site.operand(0)[-site.attr("contract") :])
    shape, dtype = site.result(), site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, w = operands
        return (torch.mm(x.view(-1, inner), w.view(-1, inner).T).to(dtype).view(shape),)

    return kernel


def linear_dx(site: Site) -> Kernel:
    """dx[B.. K..] = dy[B.. O..] w[O.. K..]."""
    inner = prod(site.operand(1)[-site.attr("contract") :])
    outer = prod(site.operand(1)) // inner
    shape, dtype = site.result(), site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        dy, w = operands
        return (torch.mm(dy.view(-1, outer), w.view(outer, inner)).to(dtype).view(shape),)

    return kernel


def linear_dw(site: Site) -> Kernel:
    """dw[O.. K..] = dy[B.. O..]^T x[B.. K..], added to an accumulator if there is one."""
    inner = prod(site.operand(0)[-site.attr("contract") :])
    rows = prod(site.operand(0)) // inner
    shape, dtype = site.result(), site.dtype()

    def product(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy.view(rows, -1).T, x.view(rows, inner)

    def define(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (torch.mm(*product(*operands)).to(dtype).view(shape),)

    def add(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, dy, total = operands
        if total.dtype == x.dtype:
            total.view(-1, inner).addmm_(*product(x, dy))
        else:
            total.view(-1, inner).add_(torch.mm(*product(x, dy)))
        return (total,)

    return define if len(site.instr.ins) == 2 else add


def bias_add(site: Site) -> Kernel:
    """Adds a bias: x + b, b's dims being the trailing ones of x."""
    dtype = site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, b = operands
        return ((x + b).to(dtype),)

    return kernel


def bias_grad(site: Site) -> Kernel:
    """Sum of dy over all but its last `keep` dims."""
    shape, dtype = site.result(), site.dtype()
    kept = prod(shape)

    def value(operands: Sequence[Tensor]) -> Tensor:
        return operands[0].view(-1, kept).sum(0, dtype=dtype).view(shape)

    return accumulating(site, 1, value)


KERNELS: dict[str, Callable[[Site], Kernel]] = {
    "linear": linear,
    "linear_dx": linear_dx,
    "linear_dw": linear_dw,
    "bias_add": bias_add,
    "bias_grad": bias_grad,
}
