"""Pointwise operators: sums, scalings, activations, dropout; and the cut of a rank's part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from autoplan.runtime.kernels.place import Kernel, Site, StepContext
from autoplan.runtime.random import dropout_key, shard_keep_mask

aten = torch.ops.aten


def add(site: Site) -> Kernel:
    """The sum a + b."""
    dtype = site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        a, b = operands
        return ((a + b).to(dtype),)

    return kernel


def accumulate(site: Site) -> Kernel:
    """The sum acc + x, in place of acc."""

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        total, x = operands
        total.add_(x)
        return (total,)

    return kernel


def cast(site: Site) -> Kernel:
    """The same values in the result's dtype."""
    dtype = site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (operands[0].to(dtype, copy=True),)

    return kernel


def scale(site: Site) -> Kernel:
    """The product x * factor."""
    factor, dtype = site.attr("factor"), site.dtype()

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return ((operands[0] * factor).to(dtype),)

    return kernel


def _activation(name: str) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """(x -> fn(x), (dy, x) -> dx) of an activation."""
    if name == "silu":
        return F.silu, aten.silu_backward
    if name == "relu":
        return F.relu, lambda dy, x: aten.threshold_backward(dy, x, 0)
    approximate = {"gelu": "none", "gelu_tanh": "tanh"}[name]
    return (
        lambda x: F.gelu(x, approximate=approximate),
        lambda dy, x: aten.gelu_backward(dy, x, approximate=approximate),
    )


def activation(site: Site) -> Kernel:
    """The activation fn(x)."""
    forward, _backward = _activation(site.attr("activation"))

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (forward(operands[0]),)

    return kernel


def activation_grad(site: Site) -> Kernel:
    """The gradient dy * fn'(x)."""
    _forward, backward = _activation(site.attr("activation"))

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        dy, x = operands
        return (backward(dy, x),)

    return kernel


def gated(site: Site) -> Kernel:
    """The product fn(gate) * up."""
    forward, _backward = _activation(site.attr("activation"))

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        gate, up = operands
        return (forward(gate).mul_(up),)

    return kernel


def gated_grad(site: Site) -> Kernel:
    """(dgate, dup) = (d * up * fn'(gate), d * fn(gate))."""
    forward, backward = _activation(site.attr("activation"))

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        d, gate, up = operands
        return backward(d * up, gate), forward(gate).mul_(d)

    return kernel


def dropout(site: Site) -> Kernel:
    """The product x * mask / (1 - p); the same operator is its own backward, on dy.

    The mask depends on seed, step, operator, instance and the element's index in the whole tensor
    of the global batch alone: nothing is saved, and no plan changes it.
    """
    p, name = site.attr("p"), site.attr("key")
    local = site.operand(0)
    sizes, offsets = site.region(local)

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = operands
        first = context.micro_batch * context.batch + offsets[0]
        starts = (first, *offsets[1:])
        slices = [slice(a, a + n) for a, n in zip(starts, local, strict=True)]
        key = dropout_key(context.seed, context.step, name, context.instance)
        keep = shard_keep_mask(key, sizes, slices, p, x.device)
        return ((x * (1 / (1 - p))).masked_fill_(keep.logical_not_(), 0),)

    return kernel


def slice_part(site: Site) -> Kernel:
    """This rank's contiguous part along one dim, copied."""
    dim, axes = site.attr("dim"), site.attr("axes")
    length = site.operand(0)[dim] // site.place.parts(axes)
    start = length * site.place.index(axes)

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        part = operands[0].narrow(dim, start, length)
        return (part.clone(memory_format=torch.contiguous_format),)

    return kernel


KERNELS: dict[str, Callable[[Site], Kernel]] = {
    "add": add,
    "accumulate": accumulate,
    "cast": cast,
    "scale": scale,
    "activation": activation,
    "activation_grad": activation_grad,
    "gated": gated,
    "gated_grad": gated_grad,
    "dropout": dropout,
    "slice": slice_part,
}
