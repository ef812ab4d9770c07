"""The gradient norm and elementwise optimizer steps, in place and in blocks of few temporaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import torch
from torch import Tensor

from autoplan.ops.update import BLOCK
from autoplan.runtime.kernels.place import Kernel, Site, StepContext, statistic

NORM_EPS = 1e-6
"""Source: torch.nn.utils.clip_grad_norm_."""
GROWTH, BACKOFF = 2.0, 0.5
"""Of the loss scale. Source: torch.amp.GradScaler."""


def square_sum(site: Site) -> Kernel:
    """Sum of squares of the gradients that this rank owns, each element once over all ranks.

    `owner` names per operand the mesh axes along which it is replicated: it counts where the
    coordinate is 0 on all of them; None never counts.
    """
    owners, has_total, exact = site.attr("owner"), site.attr("accumulates"), site.dtype()
    coordinate = site.place.coordinate
    counted = [
        k
        for k, axes in enumerate(owners)
        if axes is not None and not any(coordinate[axis] for axis in axes)
    ]

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        # A stage without trainable parameters has no operand, but joins the sum over all ranks.
        total = operands[-1] if has_total else torch.zeros((), dtype=exact)
        if operands and not has_total:
            total = total.to(operands[0].device)
        for k in counted:
            flat = operands[k].view(-1).to(exact)
            total.add_(torch.dot(flat, flat))
        return (total,)

    return kernel


def clip_factor(site: Site) -> Kernel:
    """min(1, clip / (norm + 1e-6)), or 1 without a clip.

    With a loss scale the norm is that of scaled gradients. The factor takes the scale off; it is 0
    where the norm is not finite, and stands beside the number of steps taken before.
    """
    clip = site.attr("clip")

    def clipped(norm: Tensor) -> Tensor:
        if not clip:
            return torch.ones_like(norm)
        return norm.add_(NORM_EPS).reciprocal_().mul_(clip).clamp_(max=1.0)

    def kernel(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (clipped(operands[0].sqrt()),)

    def scaled(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        squares, scale, counts = operands
        finite = squares.isfinite()
        value = clipped(squares.sqrt() / scale) / scale
        factor = torch.stack((value.masked_fill_(~finite, 0), counts[1]))
        good = counts[0].add(1).masked_fill_(~finite, 0)
        grows = good >= site.attr("growth_interval")
        scale.mul_(torch.where(finite, torch.where(grows, GROWTH, 1.0), BACKOFF))
        counts.copy_(torch.stack((good.masked_fill_(grows, 0), counts[1] + finite)))
        return (factor, scale, counts)

    return scaled if len(site.instr.ins) > 1 else kernel


def settled(context: StepContext, factor: Tensor) -> tuple[Tensor, int] | None:
    """(factor on gradients, optimizer steps taken before), or None for a step to be skipped."""
    if factor.dim() == 0:
        return factor, context.step
    value, steps = factor.tolist()
    return (factor[0], int(steps)) if value else None


Update = Callable[[int, Tensor, Tensor, list[Tensor]], None]


def _in_blocks(states: int, update: Update) -> Kernel:
    """A kernel over (param, grad, factor, states...[, master]) that updates block by block.

    Arithmetic is in fp32 at least; with a master copy the parameter is its rounding.
    """

    def kernel(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        param, grad = operands[:2]
        known = settled(context, operands[2])
        if known is None:
            return (param, *operands[3:])
        factor, step = known
        value = operands[3 + states] if len(operands) > 3 + states else param
        exact = statistic(value.dtype)
        tensors = (value, grad, *operands[3 : 3 + states])
        for block in zip(*(torch.split(t.view(-1), BLOCK) for t in tensors), strict=True):
            p, g, *rest = (t.to(exact) for t in block)
            update(step, p, g * factor.to(exact), rest)
            for stored, new in zip((block[0], *block[2:]), (p, *rest), strict=True):
                if stored is not new:
                    stored.copy_(new)
        if value is not param:
            param.copy_(value)
        return (param, *operands[3:])

    return kernel


def adamw(site: Site) -> Kernel:
    """AdamW with decoupled weight decay and bias correction.

    Source: Loshchilov and Hutter 2019, algorithm 2, as torch.optim.AdamW orders it.
    """
    lr, beta1, beta2 = site.attr("lr"), site.attr("beta1"), site.attr("beta2")
    eps, decay = site.attr("eps"), site.attr("weight_decay")

    def update(step: int, p: Tensor, g: Tensor, states: list[Tensor]) -> None:
        mean, square = states
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = square.sqrt().div_(sqrt(1 - beta2 ** (step + 1))).add_(eps)
        p.mul_(1 - lr * decay).addcdiv_(mean, root, value=-lr / (1 - beta1 ** (step + 1)))

    return _in_blocks(2, update)


def lion(site: Site) -> Kernel:
    """The sign of a short mean of gradients, with decoupled weight decay.

    Source: Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, program 1.
    """
    lr, beta1, beta2 = site.attr("lr"), site.attr("beta1"), site.attr("beta2")
    decay = site.attr("weight_decay")

    def update(_: int, p: Tensor, g: Tensor, states: list[Tensor]) -> None:
        (mean,) = states
        p.mul_(1 - lr * decay).sub_(mean.lerp(g, 1 - beta1).sign_(), alpha=lr)
        mean.lerp_(g, 1 - beta2)

    return _in_blocks(1, update)


def sgd(site: Site) -> Kernel:
    """SGD with momentum and coupled weight decay; the buffer starts at 0.

    Source: torch.optim.SGD without dampening.
    """
    lr, momentum, decay = site.attr("lr"), site.attr("momentum"), site.attr("weight_decay")

    def update(_: int, p: Tensor, g: Tensor, states: list[Tensor]) -> None:
        (velocity,) = states
        velocity.mul_(momentum).add_(g.add_(p, alpha=decay))
        p.sub_(velocity, alpha=lr)

    return _in_blocks(1, update)


KERNELS: dict[str, Callable[[Site], Kernel]] = {
    "square_sum": square_sum,
    "clip_factor": clip_factor,
    "adamw": adamw,
    "lion": lion,
    "sgd": sgd,
}
