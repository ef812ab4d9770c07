"""The unsharded optimizers, as plain formulas on whole tensors, and the loss scale's rule.

Like `reference`, on purpose they share nothing with the kernels but the declarations of `ir` and
which parameter is what: no blocks, no partial sums, and singular values where Muon iterates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod, sqrt

from torch import Tensor

from autoplan.ir.graph import Graph
from autoplan.ir.workload import LossScale, Optimizer
from autoplan.ops.updating import Form, form_of

States = Mapping[str, Mapping[str, Tensor]]
"""Full parameter name -> state name (`exp_avg`, ...) -> value."""
Hyper = Mapping[str, float]
Updated = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Values:
    """What an optimizer's step reads and leaves.

    Attributes:
        parameters: whole tensors by full name.
        states: of every parameter with a gradient.
    """

    parameters: Mapping[str, Tensor]
    states: States


def forms(graph: Graph) -> dict[str, Form]:
    """Full parameter name -> what an optimizer sees in it."""
    return {
        name: form_of(graph.blocks[block], local)
        for name, (block, local) in graph.parameters.items()
    }


def reference_update(
    optimizer: Optimizer, seen: Mapping[str, Form], values: Values,
    gradients: Mapping[str, Tensor], step: int,
) -> Values:  # fmt: skip
    """New parameters and states after the optimizer's step.

    Args:
        optimizer: with its hyper-parameters and clip.
        seen: `forms` of the graph.
        values: before the step.
        gradients: of the trainable parameters, each counted once in the norm.
        step: index of the step, from 0.
    """
    parameters, states = dict(values.parameters), {}
    factor = _clip_factor(optimizer.clip, gradients)
    for name, gradient in gradients.items():
        value, form = parameters[name], seen[name]
        update = _UPDATES[optimizer.rule.update(form.kind)]
        flat = value.view(prod(value.shape[: form.outer]), -1)
        scaled = (gradient.to(value.dtype) * factor).view(flat.shape)
        old = {k: _flat(k, state, flat) for k, state in values.states[name].items()}
        new, after = update(optimizer.settings, flat, old, scaled, step)
        parameters[name] = new.view(value.shape)
        states[name] = {k: s.view(values.states[name][k].shape) for k, s in after.items()}
    return Values(parameters, states)


def _flat(name: str, state: Tensor, value: Tensor) -> Tensor:
    """A state as the formulas take it: a column of rows, a row of columns, or like the value."""
    shape = {"rows": (-1, 1), "columns": (1, -1)}.get(name, value.shape)
    return state.view(shape)


def _clip_factor(clip: float, gradients: Mapping[str, Tensor]) -> float:
    """Source: torch.nn.utils.clip_grad_norm_."""
    if not clip or not gradients:
        return 1.0
    norm = sqrt(sum(float((g.double() ** 2).sum()) for g in gradients.values()))
    return min(1.0, clip / (norm + 1e-6))


def _adamw(h: Hyper, value: Tensor, states: Mapping[str, Tensor], g: Tensor, step: int) -> Updated:
    """Source: Loshchilov and Hutter 2019, algorithm 2."""
    m = h["beta1"] * states["exp_avg"] + (1 - h["beta1"]) * g
    v = h["beta2"] * states["exp_avg_sq"] + (1 - h["beta2"]) * g**2
    unbiased_m = m / (1 - h["beta1"] ** (step + 1))
    unbiased_v = v / (1 - h["beta2"] ** (step + 1))
    decayed = value * (1 - h["lr"] * h["weight_decay"])
    new = decayed - h["lr"] * unbiased_m / (unbiased_v**0.5 + h["eps"])
    return new, {"exp_avg": m, "exp_avg_sq": v}


def _lion(h: Hyper, value: Tensor, states: Mapping[str, Tensor], g: Tensor, _: int) -> Updated:
    """Source: Chen et al. 2023, program 1."""
    mean = states["exp_avg"]
    direction = (h["beta1"] * mean + (1 - h["beta1"]) * g).sign()
    new = value - h["lr"] * (direction + h["weight_decay"] * value)
    return new, {"exp_avg": h["beta2"] * mean + (1 - h["beta2"]) * g}


def _sgd(h: Hyper, value: Tensor, states: Mapping[str, Tensor], g: Tensor, _: int) -> Updated:
    """Source: torch.optim.SGD with momentum, coupled weight decay and no dampening."""
    velocity = h["momentum"] * states["momentum"] + g + h["weight_decay"] * value
    return value - h["lr"] * velocity, {"momentum": velocity}


def _muon(h: Hyper, value: Tensor, states: Mapping[str, Tensor], g: Tensor, _: int) -> Updated:
    """Each singular value goes through the polynomial five times.

    Source: Jordan et al. 2024, Muon; Liu et al. 2025, Muon is scalable, equation 4.
    """
    momentum = h["momentum"] * states["momentum"] + (1 - h["momentum"]) * g
    direction = (1 - h["momentum"]) * g + h["momentum"] * momentum
    u, s, vh = (direction / direction.norm().clamp(min=1e-7)).svd(some=True)
    for _iteration in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    orthogonal = u @ s.diag() @ vh.T
    rate = h["lr"] * 0.2 * max(value.shape) ** 0.5
    return value * (1 - h["lr"] * h["weight_decay"]) - rate * orthogonal, {"momentum": momentum}


def _adafactor(
    h: Hyper, value: Tensor, states: Mapping[str, Tensor], g: Tensor, step: int
) -> Updated:
    """Source: Shazeer and Stern 2018, algorithm 4."""
    decay = 1 - (step + 1) ** -h["decay"]
    square = g**2 + 1e-30
    rows = decay * states["rows"] + (1 - decay) * square.mean(1, keepdim=True)
    columns = decay * states["columns"] + (1 - decay) * square.mean(0, keepdim=True)
    new = _bounded(h, value, g / ((rows / rows.mean()).sqrt() * columns.sqrt()), step)
    return new, {"rows": rows, "columns": columns}


def _adafactor_whole(
    h: Hyper, value: Tensor, states: Mapping[str, Tensor], g: Tensor, step: int
) -> Updated:
    """Source: Shazeer and Stern 2018, algorithm 5."""
    decay = 1 - (step + 1) ** -h["decay"]
    squares = decay * states["squares"] + (1 - decay) * (g**2 + 1e-30)
    return _bounded(h, value, g / squares.sqrt(), step), {"squares": squares}


def _bounded(h: Hyper, value: Tensor, step_: Tensor, step: int) -> Tensor:
    """The step's RMS at most the threshold; the rate relative to the parameter's RMS."""

    def rms(x: Tensor) -> float:
        return float(x.pow(2).mean().sqrt())

    rate = max(h["eps"], rms(value)) * min(h["lr"], 1 / sqrt(step + 1))
    bounded = step_ / max(1.0, rms(step_) / h["threshold"])
    return value * (1 - h["lr"] * h["weight_decay"]) - rate * bounded


_UPDATES: Mapping[
    str, Callable[[Hyper, Tensor, Mapping[str, Tensor], Tensor, int], Updated]
] = {
    "adamw": _adamw,
    "lion": _lion,
    "sgd": _sgd,
    "muon": _muon,
    "adafactor": _adafactor,
    "adafactor_whole": _adafactor_whole,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """A loss scale between steps: itself, good steps in a row, steps taken."""

    value: float
    good: int = 0
    taken: int = 0


def reference_scale(rule: LossScale, before: Scale, gradients: Mapping[str, Tensor]) -> Scale:
    """The loss scale after a step; one with `taken` unchanged was skipped.

    Source: torch.amp.GradScaler.
    """
    if not all(bool(g.isfinite().all()) for g in gradients.values()):
        return Scale(before.value / 2, 0, before.taken)
    if before.good + 1 == rule.growth_interval:
        return Scale(before.value * 2, 0, before.taken + 1)
    return Scale(before.value, before.good + 1, before.taken + 1)
