"""Adafactor: second moments as row and column means, a bounded step relative to the parameter.

Source: Shazeer and Stern 2018, algorithms 4 (matrices) and 5 (anything else), with decoupled weight
decay. Sums over rows, columns and elements are partial here and reduced between the operators.

Shape letters: o rows, i columns of the local shard; means are over the whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod, sqrt

import torch
from torch import Tensor

from autoplan.ops.update import BLOCK
from autoplan.runtime.kernels.optimizer import settled
from autoplan.runtime.kernels.place import Kernel, Site, StepContext, statistic

SMALLEST_SQUARE = 1e-30
"""Added to squared gradients: epsilon 1 of the paper."""


def _matrix(tensor: Tensor, outer: int) -> Tensor:
    """[o i], or one row where nothing is factored."""
    return tensor.view(prod(tensor.shape[:outer]), -1)


def _row_blocks(outer: int, *tensors: Tensor) -> Iterator[tuple[slice, slice, list[Tensor]]]:
    """(rows, columns, parts) of a few elements at a time."""
    whole = [_matrix(t, outer) for t in tensors]
    rows, columns = whole[0].shape
    wide = min(columns, BLOCK)
    height = max(1, BLOCK // max(1, wide))
    for first in range(0, rows, height):
        for left in range(0, columns, wide):
            place = slice(first, first + height), slice(left, left + wide)
            yield *place, [t[place] for t in whole]


def adafactor_means(site: Site) -> Kernel:
    """(row means [o], column means [i]) of the squared gradient, local sums over global counts."""
    outer, (rows, columns) = site.attr("outer"), site.attr("counts")
    shapes, exact = (site.result(0), site.result(1)), site.dtype(0)

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        grad, factor = operands
        by_row, by_column = (torch.zeros(s, dtype=exact, device=grad.device) for s in shapes)
        known = settled(context, factor)
        if known is None:
            return by_row, by_column
        for down, across, (g,) in _row_blocks(outer, grad):
            square = (g.to(exact) * known[0]).square_().add_(SMALLEST_SQUARE)
            by_row.view(-1)[down].add_(square.sum(1), alpha=1 / columns)
            by_column.view(-1)[across].add_(square.sum(0), alpha=1 / rows)
        return by_row, by_column

    return kernel


def _inverse_root(outer: int, states: Sequence[Tensor], exact: torch.dtype) -> list[Tensor]:
    """Factors of the step's denominator, but for the mean of the row means."""
    if outer:
        return [states[0].view(-1, 1).to(exact).rsqrt(), states[1].view(1, -1).to(exact).rsqrt()]
    return [states[0].view(1, -1)]


def _step(outer: int, roots: list[Tensor], place: tuple[slice, slice], g: Tensor) -> Tensor:
    """The gradient over its root mean square, in place of it."""
    down, across = place
    if outer:
        return g.mul_(roots[0][down]).mul_(roots[1][:, across])
    return g.mul_(roots[0][:, across].to(g.dtype).rsqrt())


def adafactor_sums(site: Site) -> Kernel:
    """(states, sum of squared values, of the denominator's scale, of squared steps).

    The scale, the mean of the row means, is summed once per element, so that it is partial along
    the same axes as the others.
    """
    outer, decay = site.attr("outer"), site.attr("decay")
    count, exact = (2, site.dtype(2)) if outer else (1, site.dtype(1))

    def average(states: Sequence[Tensor], means: Sequence[Tensor], rate: float) -> None:
        for state, mean in zip(states, means, strict=True):
            state.copy_(state.to(exact).lerp_(mean, rate))

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        grad, factor, value, *rest = operands
        states, means = rest[:count], rest[count:]
        known = settled(context, factor)
        values, scales, steps = (torch.zeros_like(factor.view(-1)[0]) for _ in range(3))
        if known is None:
            return (*states, values, scales, steps)
        rate = (known[1] + 1) ** -decay
        if outer:
            average(states, means, rate)
            scales += states[0].to(exact).sum() * (grad.numel() // states[0].numel())
        else:
            scales += grad.numel()
            for _, _, (g, squares) in _row_blocks(0, grad, states[0]):
                square = (g.to(exact) * known[0]).square_().add_(SMALLEST_SQUARE)
                squares.copy_(squares.to(exact).lerp_(square, rate))
        roots = _inverse_root(outer, states, exact)
        for down, across, (g, v) in _row_blocks(outer, grad, value):
            values += v.to(exact).square().sum()
            steps += _step(outer, roots, (down, across), g.to(exact) * known[0]).square_().sum()
        return (*states, values, scales, steps)

    return kernel


def adafactor(site: Site) -> Kernel:
    """The step, no larger than `threshold` on the whole, times rate and size of the parameter."""
    outer, lr, least = site.attr("outer"), site.attr("lr"), site.attr("eps")
    threshold, decay = site.attr("threshold"), site.attr("weight_decay")
    count, elements = 2 if outer else 1, prod(site.attr("counts"))

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        param, grad, factor, *rest = operands
        states, (values, scales, steps), master = rest[:count], rest[count:][:3], rest[count + 3 :]
        known = settled(context, factor)
        if known is None:
            return (param, *master)
        value = master[0] if master else param
        exact = statistic(value.dtype)
        scale = (scales / elements).sqrt()
        size = (values / elements).sqrt().clamp(min=least)
        rms = scale * (steps / elements).sqrt()
        rate = min(lr, 1 / sqrt(known[1] + 1)) * size / (rms / threshold).clamp(min=1) * scale
        roots = _inverse_root(outer, states, exact)
        for down, across, (stored, g) in _row_blocks(outer, value, grad):
            step = _step(outer, roots, (down, across), g.to(exact) * known[0])
            stored.copy_(stored.to(exact).mul(1 - lr * decay).sub_(step.mul_(rate)))
        if value is not param:
            param.copy_(value)
        return (param, *master)

    return kernel


KERNELS: dict[str, Callable[[Site], Kernel]] = {
    "adafactor_means": adafactor_means,
    "adafactor_sums": adafactor_sums,
    "adafactor": adafactor,
}
