"""The unsharded run: what loss and gradients should be.

Interprets the *forward* operators of the Graph on whole tensors with torch's autograd. On purpose
it shares nothing with the kernels but the counter-based masks: other formulas, other library calls,
and backward from autograd. Precision is that of the tensors given.

Shape letters: as in `ir.graph`; b counts the sequences of one pass, h = (g r).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import pi, prod

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from autoplan.ir.graph import Graph, Op
from autoplan.runtime.random import dropout_key, keep_mask


@dataclass(frozen=True, slots=True)
class ReferenceBatch:
    """What a reference step reads beside parameters.

    Attributes:
        ids, targets: [sequences s], int64; target -100 is masked.
        count: valid targets of the whole batch.
        step: index of the step, for dropout.
        seed: of the run, for dropout.
        sequences_at_once: how many sequences one pass takes; 0 for all.
        more: further feeds by name, each [sequences s].
    """

    ids: Tensor
    targets: Tensor
    count: int
    step: int = 0
    seed: int = 0
    sequences_at_once: int = 0
    more: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Where in the step an operator runs: seed, step, instance, global index of sequence 0."""

    seed: int
    step: int
    instance: int
    first: int

    def keep(self, op: Op, shape: Sequence[int], p: float) -> Tensor:
        """The mask of a dropout over a whole tensor [b ...], as a float factor in fp64."""
        per_sequence = prod(shape[1:])
        indices = torch.arange(shape[0] * per_sequence).view(*shape) + self.first * per_sequence
        key = dropout_key(self.seed, self.step, op.attr("key", op.name), self.instance)
        return keep_mask(key, indices, p).to(torch.float64) / (1 - p)


def _linear(op: Op, x: list[Tensor], _: _Pass) -> Tensor:
    n = op.attr("contract")
    data, weight = x
    axes = (list(range(data.dim() - n, data.dim())), list(range(weight.dim() - n, weight.dim())))
    product: Tensor = torch.tensordot(data, weight, dims=axes)
    return product


def _rms_norm(op: Op, x: list[Tensor], _: _Pass) -> Tensor:
    data, weight = x
    mean_square = data.pow(2).sum(-1, keepdim=True) / data.shape[-1]
    eps, offset = float(op.attr("eps")), float(op.attr("offset"))
    return data / torch.sqrt(mean_square + eps) * (weight + offset)


def _layer_norm(op: Op, x: list[Tensor], _: _Pass) -> Tensor:
    data, weight, bias = x
    return F.layer_norm(data, weight.shape, weight, bias, op.attr("eps"))


def _activate(name: str, x: Tensor) -> Tensor:
    if name == "silu":
        return x * torch.sigmoid(x)
    if name == "relu":
        return torch.where(x > 0, x, 0)
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def _frequency(pair: int, width: int, op: Op) -> float:
    """Radians per position of one rotated pair; see Hugging Face's Llama 3 rule."""
    plain: float = op.attr("theta") ** (-2.0 * pair / width)
    if op.attr("scaling") is None:
        return plain
    factor, low, high, original = map(float, op.attr("scaling"))
    wavelength = 2 * pi / plain
    if wavelength > original / low:
        return plain / factor
    if wavelength < original / high:
        return plain
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * plain / factor + smooth * plain


def _rotary(op: Op, x: list[Tensor], _: _Pass) -> Tensor:
    """Rotation as a product of complex numbers; what lies beyond `width` stays."""
    width = op.attr("width")
    data, beyond = torch.split(x[0], [width, x[0].shape[-1] - width], -1)
    positions = x[1]
    frequencies = torch.tensor(
        [_frequency(i, width, op) for i in range(width // 2)], dtype=torch.float64
    )
    angles = positions.to(torch.float64)[..., None] * frequencies * op.attr("sign")
    turn = torch.polar(torch.ones_like(angles), angles)
    turn = turn.view(*positions.shape, *(1,) * (data.dim() - 3), width // 2)
    wide = data if data.dtype == torch.float64 else data.float()
    pairs = torch.complex(*wide.chunk(2, -1)) * turn.to(torch.complex(wide[:0], wide[:0]).dtype)
    return torch.cat((pairs.real.to(data.dtype), pairs.imag.to(data.dtype), beyond), -1)


def _dropout(op: Op, x: list[Tensor], where: _Pass) -> Tensor:
    return x[0] * where.keep(op, x[0].shape, op.attr("p")).to(x[0].dtype)


def _attention(op: Op, x: list[Tensor], where: _Pass) -> Tensor:
    """With documents of queries and keys, a query sees only keys of its own."""
    q, k, v, *documents = x
    b, s, g, r, d = q.shape
    by_head = q.flatten(2, 3).transpose(1, 2)
    keys, values = (t.transpose(1, 2).repeat_interleave(r, 1) for t in (k, v))
    causal, scale, p = op.attr("causal"), op.attr("scale"), op.attr("dropout", 0)
    window = op.attr("window") or s
    seen = None
    if causal and (p or window < s or documents):
        seen = torch.ones(s, s, dtype=torch.bool).tril().triu(1 - window)
    if documents:
        together = (documents[0].unsqueeze(2) == documents[1].unsqueeze(1)).unsqueeze(1)
        seen = together if seen is None else together & seen
    if not p:
        o = F.scaled_dot_product_attention(
            by_head, keys, values, seen, is_causal=causal and seen is None, scale=scale
        )
    else:
        scores = by_head @ keys.transpose(2, 3) * scale
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        keep = where.keep(op, (b, g, r, s, s), p).view(b, g * r, s, s)
        o = (scores.softmax(-1) * keep.to(q.dtype)) @ values
    return o.transpose(1, 2).reshape(b, s, g, r, d)


def _loss(op: Op, x: list[Tensor], _: _Pass) -> Tensor:
    """In place of statistics, this interpreter's `xent_stats` hands on the logits themselves."""
    logits, targets, count = x
    wide = logits if logits.dtype == torch.float64 else logits.float()
    total = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / int(count)


_FORWARD: dict[str, Callable[[Op, list[Tensor], _Pass], Tensor]] = {
    "linear": _linear,
    "bias_add": lambda op, x, _: x[0] + x[1],
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add": lambda op, x, _: x[0] + x[1],
    "scale": lambda op, x, _: x[0] * op.attr("factor"),
    "rotary": _rotary,
    "gated": lambda op, x, _: _activate(op.attr("activation"), x[0]) * x[1],
    "activation": lambda op, x, _: _activate(op.attr("activation"), x[0]),
    "dropout": _dropout,
    "embedding": lambda op, x, _: F.embedding(x[0] + op.attr("offset", 0), x[1]),
    "attention": _attention,
    "packed_attention": _attention,
    "xent_stats": lambda op, x, _: x[0],
    "xent_loss": _loss,
}


def trainable_parameters(graph: Graph) -> frozenset[str]:
    """Full names of the parameters that have a gradient."""
    return frozenset(
        instance.prefix + local
        for instance in graph.instances
        for local in graph.blocks[instance.block].trainable
    )


def _forward(
    graph: Graph, parameters: Mapping[str, Tensor], batch: ReferenceBatch, first: int, end: int
) -> Tensor:
    """The loss of sequences [first, end), as their part of the whole batch's mean."""
    ids = batch.ids[first:end]
    feeds = {
        "ids": ids,
        "targets": batch.targets[first:end],
        "positions": torch.arange(ids.shape[1]).expand(ids.shape),
        "count": torch.tensor(batch.count),
        **{name: value[first:end] for name, value in batch.more.items()},
    }
    carried = torch.empty(0)
    for index, instance in enumerate(graph.instances):
        block = graph.blocks[instance.block]
        values = {**feeds, block.input: carried}
        values |= {local: parameters[instance.prefix + local] for local in block.parameters}
        for op in block.forward:
            where = _Pass(batch.seed, batch.step, index, first)
            operands = [values[name] for name in op.inputs]
            carried = values[op.outputs[0]] = _FORWARD[op.family](op, operands, where)
        carried = values[block.output] if block.output else carried
    return carried


def reference_step(
    graph: Graph, parameters: Mapping[str, Tensor], batch: ReferenceBatch
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of one step.

    Args:
        graph: only its forward operators and `trainable` are read.
        parameters: whole tensors by full name, in the dtype to compute in.
        batch: the global batch.

    Returns:
        (loss[], gradient of each trainable parameter by full name).
    """
    trainable = trainable_parameters(graph)
    leaves = {
        name: value.detach().clone().requires_grad_(name in trainable)
        for name, value in parameters.items()
    }
    sequences = len(batch.ids)
    width = batch.sequences_at_once or sequences
    total = torch.zeros(())
    for first in range(0, sequences, width):
        loss = _forward(graph, leaves, batch, first, min(first + width, sequences))
        if loss.requires_grad:
            torch.autograd.backward(loss)
        total = total.to(loss.dtype) + loss.detach()
    gradients = {}
    for name, leaf in leaves.items():
        if leaf.requires_grad:
            gradients[name] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return total, gradients
