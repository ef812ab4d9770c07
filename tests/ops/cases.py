"""One small instance of every operator family that has signatures, with operands for its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor as Values

from autoplan.ir.graph import Op, Tensor
from autoplan.ops import FAMILIES
from tests.runtime.kernels.calls import rand, run

X, HEADS, KEYS, STATS = "b s m", "b s g r d", "b s g d", "b s c"
SIZES = {"c": 2, "d": 4}
EPS = {"eps": 1e-5}
ATTENTION = {"scale": 0.5, "causal": True, "dropout": 0.0, "key": "a"}
Operands = Callable[["Case"], list[Values]]


@dataclass(frozen=True)
class Case:
    """An operator; operands are random unless `values` says how they follow from each other.

    Attributes:
        family: catalogue key.
        ins, outs: dims of operands and results, as stored.
        attrs: of the instruction.
        values: makes the operands.
        size: extent of every dim but c and d.
    """

    family: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    attrs: Mapping[str, object]
    values: Operands | None = None
    size: int = 4

    def op(self) -> tuple[Op, dict[str, Tensor]]:
        """The operator in the graph's terms."""
        names = [f"t{i}" for i in range(len(self.ins) + len(self.outs))]
        dims = (*self.ins, *self.outs)
        tensors = {n: Tensor(n, tuple(d.split())) for n, d in zip(names, dims, strict=True)}
        split = len(self.ins)
        attrs = tuple(self.attrs.items())
        return Op("op", self.family, tuple(names[:split]), tuple(names[split:]), attrs), tensors

    def dims(self) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """Dims as the operator sees them."""
        return FAMILIES[self.family].operand_dims(*self.op())

    def shape(self, dims: str) -> tuple[int, ...]:
        return tuple(SIZES.get(dim, self.size) for dim in dims.split())

    def random(self, *dims: str) -> list[Values]:
        return [rand(*self.shape(d), seed=i) for i, d in enumerate(dims)]

    def operands(self) -> list[Values]:
        return self.values(self) if self.values else self.random(*self.ins)


def _ids(case: Case, dims: str = "b s") -> Values:
    count = torch.arange(case.size**2) * 7 % case.size
    return count.view(case.shape(dims))


def _forward(
    case: Case, family: str, operands: list[Values], outs: tuple[str, ...]
) -> list[Values]:
    types = [(case.shape(dims), torch.float64) for dims in outs]
    attrs = {**case.attrs, "eps": 1e-5, "offset": 1.0} if "norm" in family else dict(case.attrs)
    return list(run(family, operands, types, attrs))


def _attention_gradient(case: Case) -> list[Values]:
    q, k, v = case.random(HEADS, KEYS, KEYS)
    o, lse = _forward(case, "attention", [q, k, v], (HEADS, "b s g r"))
    return [*case.random(HEADS), q, k, v, o, lse]


def _documents(case: Case) -> list[Values]:
    """Of queries and keys: sequences of one, two or more documents."""
    rows, places = torch.arange(case.size)[:, None], torch.arange(case.size)
    return [rows * places // case.size] * 2


def _packed(case: Case) -> list[Values]:
    return [*case.random(HEADS, KEYS, KEYS), *_documents(case)]


def _packed_gradient(case: Case) -> list[Values]:
    q, k, v, *documents = _packed(case)
    operands = [q, k, v, *documents]
    o, lse = _forward(case, "packed_attention", operands, (HEADS, "b s g r"))
    return [*case.random(HEADS), q, k, v, o, lse, *documents]


def _norm_dims(case: Case) -> tuple[str, str, str]:
    """Dims of what is normalised, of its weight and of the statistics."""
    rows, _, width = case.ins[0].rpartition(" ")
    return case.ins[0], width, rows


def _rms_gradient(case: Case) -> list[Values]:
    dims, width, rows = _norm_dims(case)
    dy, x, w = case.random(dims, dims, width)
    _, rstd = _forward(case, "rms_norm", [x, w], (dims, rows))
    return [dy, x, w, rstd] if case.family == "rms_norm_dx" else [dy, x, rstd]


def _layer_gradient(case: Case) -> list[Values]:
    dims, width, rows = _norm_dims(case)
    dy, x, w, bias = case.random(dims, dims, width, width)
    _, mean, rstd = _forward(case, "layer_norm", [x, w, bias], (dims, rows, rows))
    return [dy, x, w, mean, rstd] if case.family == "layer_norm_dx" else [dy, x, mean, rstd]


def _stats(case: Case) -> list[Values]:
    return [*case.random("b s v"), _ids(case)]


def _loss(case: Case) -> list[Values]:
    return [*case.random(STATS), _ids(case), torch.tensor(5.0, dtype=torch.float64)]


def _stats_gradient(case: Case) -> list[Values]:
    logits, targets = _stats(case)
    (stats,) = _forward(case, "xent_stats", [logits, targets], (STATS,))
    return [logits, stats, targets, torch.tensor(5.0, dtype=torch.float64)]


def _rotary(case: Case) -> list[Values]:
    return [*case.random(case.ins[0]), _ids(case)]


def cases(size: int = 4) -> dict[str, Case]:
    """The cases by name, with that extent of most dims."""
    rotary = {"theta": 100.0, "sign": 1, "scaling": None}
    drop = {"p": 0.5, "key": "k"}
    rows = [
        ("linear", (X, "f m"), ("b s f",), {"contract": 1}, None),
        ("linear into heads", (X, "g d m"), (KEYS,), {"contract": 1}, None),
        ("linear from heads", (KEYS, "m g d"), (X,), {"contract": 2}, None),
        ("linear_dx", ("b s f", "f m"), (X,), {"contract": 1}, None),
        ("linear_dw", (X, "b s f"), ("f m",), {"contract": 1}, None),
        ("bias_add", (KEYS, "g d"), (KEYS,), {"keep": 2}, None),
        ("bias_grad", (KEYS,), ("g d",), {"keep": 2}, None),
        ("rms_norm", (X, "m"), (X, "b s"), {**EPS, "offset": 1.0}, None),
        ("rms_norm_dx", (X, X, "m", "b s"), (X,), {"offset": 1.0}, _rms_gradient),
        ("rms_norm_dw", (X, X, "b s"), ("m",), {}, _rms_gradient),
        ("rms_norm of heads", (KEYS, "d"), (KEYS, "b s g"), {**EPS, "offset": 1.0}, None),
        ("rms_norm_dx of heads", (KEYS, KEYS, "d", "b s g"), (KEYS,), {"offset": 1.0},
         _rms_gradient),
        ("rms_norm_dw of heads", (KEYS, KEYS, "b s g"), ("d",), {}, _rms_gradient),
        ("layer_norm", (X, "m", "m"), (X, "b s", "b s"), EPS, None),
        ("layer_norm_dx", (X, X, "m", "b s", "b s"), (X,), {}, _layer_gradient),
        ("layer_norm_dw", (X, X, "b s", "b s"), ("m",), {}, _layer_gradient),
        ("layer_norm_dw of heads", (KEYS, KEYS, "b s g", "b s g"), ("d",), {}, _layer_gradient),
        ("add", (X, X), (X,), {}, None),
        ("scale", (X,), (X,), {"factor": 3.0}, None),
        ("dropout", (X,), (X,), drop, None),
        ("rotary", (HEADS, "b s"), (HEADS,), rotary, _rotary),
        ("rotary of a part", (HEADS, "b s"), (HEADS,), {**rotary, "width": 2}, _rotary),
        ("gated", ("b s f", "b s f"), ("b s f",), {"activation": "silu"}, None),
        ("gated_grad", ("b s f",) * 3, ("b s f",) * 2, {"activation": "silu"}, None),
        ("activation", ("b s f",), ("b s f",), {"activation": "gelu"}, None),
        ("activation_grad", ("b s f",) * 2, ("b s f",), {"activation": "gelu"}, None),
        ("attention", (HEADS, KEYS, KEYS), (HEADS, "b s g r"), ATTENTION, None),
        ("attention with dropout", (HEADS, KEYS, KEYS), (HEADS, "b s g r"),
         {**ATTENTION, "dropout": 0.3}, None),
        ("attention in a window", (HEADS, KEYS, KEYS), (HEADS, "b s g r"),
         {**ATTENTION, "window": 2}, None),
        ("attention_grad in a window", (HEADS, HEADS, KEYS, KEYS, HEADS, "b s g r"),
         (HEADS, KEYS, KEYS), {**ATTENTION, "window": 2}, _attention_gradient),
        ("attention_grad", (HEADS, HEADS, KEYS, KEYS, HEADS, "b s g r"), (HEADS, KEYS, KEYS),
         ATTENTION, _attention_gradient),
        ("packed_attention", (HEADS, KEYS, KEYS, "b s", "b s"), (HEADS, "b s g r"), ATTENTION,
         _packed),
        ("packed_attention with dropout", (HEADS, KEYS, KEYS, "b s", "b s"), (HEADS, "b s g r"),
         {**ATTENTION, "dropout": 0.3}, _packed),
        ("packed_attention_grad", (HEADS, HEADS, KEYS, KEYS, HEADS, "b s g r", "b s", "b s"),
         (HEADS, KEYS, KEYS), ATTENTION, _packed_gradient),
        ("embedding", ("b s", "v m"), (X,), {}, lambda c: [_ids(c), *c.random("v m")]),
        ("embedding with an offset", ("b s", "v m"), (X,), {"offset": 2},
         lambda c: [_ids(c) % 2, *c.random("v m")]),
        ("embedding_grad with an offset", ("b s", X), ("v m",), {"offset": 2},
         lambda c: [_ids(c) % 2, *c.random(X)]),
        ("embedding_grad", ("b s", X), ("v m",), {}, lambda c: [_ids(c), *c.random(X)]),
        ("xent_stats", ("b s v", "b s"), (STATS,), {}, _stats),
        ("xent_loss", (STATS, "b s", ""), ("",), {}, _loss),
        ("xent_grad", ("b s v", STATS, "b s", ""), ("b s v",), {}, _stats_gradient),
    ]  # fmt: skip
    return {
        name: Case(name.split()[0], ins, outs, attrs, values, size)
        for name, ins, outs, attrs, values in rows
    }
