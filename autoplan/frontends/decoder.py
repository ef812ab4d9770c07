"""A dense decoder's configuration -> Graph: embedding, repeated layers, head with loss.

Every projection is a weight of its own (queries, keys and values apart, gate and up apart), stored
as (out dims, in dims). A layer operator is named by its `group`; operators that only make sense
together (a projection with its bias, norm and rotation, a residual addition with its bias and
dropout) share one, so that they take the same split.

The two products of a low-rank adapter split differently, so the first ones that read a tensor are a
layer operator of their own (`attention_lora`, `o_lora`, `mlp_lora`, `down_lora`), which may split
the rank. The second joins a projection that splits its outputs; one that sums over its split inputs
leaves partial sums, so there it is part of the residual addition, where these are reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from autoplan.errors import InputError, Problem
from autoplan.ir.adapter import Lora
from autoplan.ir.graph import Attrs, Block, Graph, Instance, Op, Tensor
from autoplan.ir.model import DecoderConfig

_RESIDUAL = ("b", "s", "m")
_SUMMING = ("o", "down")
"""Projections whose inputs are split wherever heads or feed-forward width are."""
_ADAPTED_IN = {"q": "attention", "k": "attention", "v": "attention", "gate": "mlp", "up": "mlp"}
"""Projections that read one tensor: so do the adapters beside them."""


class _BlockWriter:
    """Collects the tensors and operators of one block."""

    def __init__(
        self, config: DecoderConfig, lora: Lora | None = None, visible: float | None = None
    ) -> None:
        self.config, self.lora, self.visible = config, lora, visible
        self._low: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []

    def parameter(self, name: str, *dims: str) -> str:
        self.tensors[name] = Tensor(name, dims, "parameter", "parameter")
        return name

    def feed(self, name: str, *dims: str) -> str:
        dtype = "statistic" if name == "count" else "index"
        self.tensors[name] = Tensor(name, dims, "feed", dtype)
        return name

    def positions(self) -> str:
        """Where in its document each token stands: alike in all sequences unless packed."""
        return self.feed("positions" if self.visible is None else "places", "b", "s")

    def activation(self, name: str, dims: tuple[str, ...], dtype: str = "compute") -> str:
        self.tensors[name] = Tensor(name, dims, "activation", dtype)
        return name

    def op(
        self, family: str, inputs: tuple[str, ...], outputs: tuple[str, ...], group: str,
        attrs: Attrs = (),
    ) -> str:  # fmt: skip
        """Append an operator, named after its first result; returns that result."""
        self.ops.append(Op(outputs[0], family, inputs, outputs, tuple(sorted(attrs)), group))
        return outputs[0]

    def norm(self, x: str, name: str, group: str = "") -> str:
        """A norm of the configured kind over the last dim; returns the normalised tensor.

        It is a layer operator of its own unless it belongs to a `group`.
        """
        config, group = self.config, group or name
        *rows, width = dims = self.tensors[x].dims
        y = self.activation(name + ".out", dims)
        rstd = self.activation(name + ".rstd", tuple(rows), "statistic")
        weight = self.parameter(name, width)
        eps = ("eps", config.norm_eps)
        if config.norm == "rms_norm":
            offset = ("offset", config.norm_offset)
            return self.op("rms_norm", (x, weight), (y, rstd), group, (eps, offset))
        bias = self.parameter(name + "_bias", width)
        mean = self.activation(name + ".mean", tuple(rows), "statistic")
        return self.op("layer_norm", (x, weight, bias), (y, mean, rstd), group, (eps,))

    def linear(
        self, x: str, name: str, dims: tuple[tuple[str, ...], tuple[str, ...]], group: str
    ) -> str:
        """`name = x · w(out dims, in dims)`, with its adapter if it has one."""
        y = self.product(x, "w_" + name, name, dims, group)
        return self.adapt(x, y, dims, group) if self.lora and name in self.lora.targets else y

    def product(
        self, x: str, weight: str, name: str, dims: tuple[tuple[str, ...], tuple[str, ...]],
        group: str,
    ) -> str:  # fmt: skip
        """`name = x · weight(out dims, in dims)`."""
        out, inner = dims
        self.parameter(weight, *out, *inner)
        batch = self.tensors[x].dims[: -len(inner)]
        y = self.activation(name, (*batch, *out))
        return self.op("linear", (x, weight), (y,), group, (("contract", len(inner)),))

    def adapt(
        self, x: str, y: str, dims: tuple[tuple[str, ...], tuple[str, ...]], group: str
    ) -> str:
        """`y + factor · (x · A) · B`; a projection that sums has the second half in `join`."""
        out, inner = dims
        first = _ADAPTED_IN.get(y, y) + "_lora"
        low = self.product(x, "lora_a_" + y, y + ".low", (("a",), inner), first)
        if y in _SUMMING:
            self._low[y] = low
            return y
        return self.add_change(y, self.stretch(low, first), y, (out, group))

    def stretch(self, low: str, group: str) -> str:
        """An adapter's factor, where the tensor is smallest."""
        assert self.lora is not None
        if self.lora.factor == 1.0:
            return low
        scaled = self.activation(low + ".scaled", self.tensors[low].dims)
        return self.op("scale", (low,), (scaled,), group, (("factor", self.lora.factor),))

    def add_change(self, x: str, low: str, name: str, to: tuple[tuple[str, ...], str]) -> str:
        """`x + low · B` of the adapter of a projection, with these out dims in this group."""
        out, group = to
        change = self.product(low, "lora_b_" + name, name + ".change", (out, ("a",)), group)
        adapted = self.activation(name + ".adapted", self.tensors[x].dims)
        return self.op("add", (x, change), (adapted,), group)

    def bias(self, x: str, name: str, dims: tuple[str, ...], group: str) -> str:
        """Add a bias over the trailing dims."""
        bias = self.parameter(name, *dims)
        y = self.activation(x + ".biased", self.tensors[x].dims)
        return self.op("bias_add", (x, bias), (y,), group, (("keep", len(dims)),))

    def rotate(self, x: str, group: str) -> str:
        """Rotary positions."""
        config = self.config
        scaling = config.rope_scaling
        parts = scaling and (
            scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor,
            scaling.original_max_positions,
        )  # fmt: skip
        attrs = (
            ("scaling", parts), ("sign", 1), ("theta", config.rope_theta),
            ("width", config.rotary_dim or config.head_dim),
        )  # fmt: skip
        y = self.activation(x + ".rotated", self.tensors[x].dims)
        return self.op("rotary", (x, self.positions()), (y,), group, attrs)

    def drop(self, x: str, probability: float, group: str) -> str:
        """Dropout, if there is any."""
        if not probability:
            return x
        y = self.activation(x + ".dropped", self.tensors[x].dims)
        attrs = (("key", y), ("p", probability))
        return self.op("dropout", (x,), (y,), group, attrs)

    def join(self, residual: str, branch: str, name: str, projections: Sequence[str]) -> str:
        """A branch, the sum of these projections, with their adapters and biases and its dropout;
        and its addition to the residual stream.
        """
        group = name + "_add"
        biased = {"o": self.config.output_bias, "down": self.config.mlp_bias}
        for projection in projections:
            if projection in self._low:
                low = self.stretch(self._low[projection], group)
                branch = self.add_change(branch, low, projection, (("m",), group))
        for projection in projections:
            if biased[projection]:
                branch = self.bias(branch, "b_" + projection, ("m",), group)
        branch = self.drop(branch, self.config.residual_dropout, group)
        y = self.activation(name, _RESIDUAL)
        return self.op("add", (residual, branch), (y,), group)

    def block(self, name: str, source: str, result: str) -> Block:
        return Block(name, self.tensors, tuple(self.ops), input=source, output=result)


def _embedding(config: DecoderConfig, visible: float | None) -> Block:
    w = _BlockWriter(config, visible=visible)
    table = w.parameter("embedding", "v", "m")
    ids = w.feed("ids", "b", "s")
    x = w.op("embedding", (ids, table), (w.activation("embedded", _RESIDUAL),), "embedding")
    if config.embedding_scale != 1.0:
        scaled = w.activation("scaled", _RESIDUAL)
        x = w.op("scale", (x,), (scaled,), "embedding_out", (("factor", config.embedding_scale),))
    if config.learned_positions:
        positions = w.positions()
        located = w.activation("located", _RESIDUAL)
        where = w.parameter("position_embedding", "p", "m")
        attrs = (("offset", config.position_offset),)
        location = w.op("embedding", (positions, where), (located,), "position_embedding", attrs)
        x = w.op("add", (x, location), (w.activation("placed", _RESIDUAL),), "embedding_out")
    x = w.drop(x, config.embedding_dropout, "embedding_out")
    return w.block("embedding", "", x)


def _attention(w: _BlockWriter, normed: str) -> str:
    """Projections, rotation, attention; returns the output projection (bias still to come)."""
    config = w.config
    query, key = ("g", "r", "d"), ("g", "d")
    q = w.linear(normed, "q", (query, ("m",)), "q")
    k = w.linear(normed, "k", (key, ("m",)), "kv")
    v = w.linear(normed, "v", (key, ("m",)), "kv")
    if config.qkv_bias:
        q, k, v = (
            w.bias(q, "b_q", query, "q"), w.bias(k, "b_k", key, "kv"), w.bias(v, "b_v", key, "kv")
        )  # fmt: skip
    if config.qk_norm:
        q, k = w.norm(q, "q_norm", "q"), w.norm(k, "k_norm", "kv")
    if config.rope_theta is not None:
        q, k = w.rotate(q, "q"), w.rotate(k, "kv")
    o = w.activation("attended", ("b", "s", *query))
    lse = w.activation("attended.lse", ("b", "s", "g", "r"), "statistic")
    attrs: Attrs = (
        ("causal", True), ("dropout", config.attention_dropout), ("key", "attended"),
        ("scale", 1.0 / sqrt(config.head_dim)), ("window", config.sliding_window),
    )  # fmt: skip
    if w.visible is None:
        o = w.op("attention", (q, k, v), (o, lse), "attention", attrs)
    else:
        documents = w.feed("documents", "b", "s")
        operands = (q, k, v, documents, documents)
        attrs += (("visible", w.visible),)
        o = w.op("packed_attention", operands, (o, lse), "attention", attrs)
    return w.linear(o, "o", (("m",), query), "o")


def _feed_forward(w: _BlockWriter, normed: str) -> str:
    """The feed-forward branch; returns the down projection (bias still to come)."""
    config = w.config
    attrs = (("activation", config.activation),)
    inner = ("b", "s", "f")
    if config.gated:
        gate = w.linear(normed, "gate", (("f",), ("m",)), "up")
        up = w.linear(normed, "up", (("f",), ("m",)), "up")
        if config.mlp_bias:
            gate, up = w.bias(gate, "b_gate", ("f",), "up"), w.bias(up, "b_up", ("f",), "up")
        act = w.op("gated", (gate, up), (w.activation("act", inner),), "act", attrs)
    else:
        up = w.linear(normed, "up", (("f",), ("m",)), "up")
        if config.mlp_bias:
            up = w.bias(up, "b_up", ("f",), "up")
        act = w.op("activation", (up,), (w.activation("act", inner),), "act", attrs)
    return w.linear(act, "down", (("m",), ("f",)), "down")


def _layer(config: DecoderConfig, lora: Lora | None, visible: float | None) -> Block:
    w = _BlockWriter(config, lora, visible)
    x = w.activation("x", _RESIDUAL)
    normed = w.norm(x, "attention_norm")
    attended = _attention(w, normed)
    if config.parallel_residual:
        inner = normed if config.shared_norm else w.norm(x, "mlp_norm")
        return w.block("layer", x, _join_both(w, x, attended, _feed_forward(w, inner)))
    middle = w.join(x, attended, "attention", ("o",))
    branch = _feed_forward(w, w.norm(middle, "mlp_norm"))
    return w.block("layer", x, w.join(middle, branch, "mlp", ("down",)))


def _join_both(w: _BlockWriter, x: str, attended: str, branch: str) -> str:
    """Parallel branches, both added to the layer's input.

    They are summed before anything else, so that partial sums of both are reduced at once; where
    each draws a dropout of its own, they join one after the other.
    """
    if w.config.residual_dropout:
        return w.join(w.join(x, attended, "attention", ("o",)), branch, "mlp", ("down",))
    both = w.op("add", (attended, branch), (w.activation("branches", _RESIDUAL),), "branches")
    return w.join(x, both, "mlp", ("o", "down"))


def _head(config: DecoderConfig) -> Block:
    w = _BlockWriter(config)
    x = w.activation("x", _RESIDUAL)
    normed = w.norm(x, "final_norm")
    if config.tied_embeddings:
        weight = w.parameter("embedding", "v", "m")
    else:
        weight = w.parameter("head", "v", "m")
    logits = w.activation("logits", ("b", "s", "v"))
    w.op("linear", (normed, weight), (logits,), "head", (("contract", 1),))
    if config.head_bias:
        logits = w.bias(logits, "b_head", ("v",), "head")
    targets = w.feed("targets", "b", "s")
    stats = w.activation("stats", ("b", "s", "c"), "statistic")
    w.op("xent_stats", (logits, targets), (stats,), "loss")
    loss = w.activation("loss", (), "statistic")
    w.op("xent_loss", (stats, targets, w.feed("count")), (loss,), "loss")
    return w.block("head", x, "")


def build_graph(
    config: DecoderConfig, seq_len: int, lora: Lora | None = None, visible: float | None = None
) -> Graph:
    """The forward graph of a decoder for sequences of `seq_len` positions.

    Args:
        config: the model.
        seq_len: positions per sequence.
        lora: adapters beside projections of every layer.
        visible: where documents are packed, the mean share of a sequence that a position's own
            document takes; None where each sequence is one document.

    Raises:
        InputError: `seq_len` exceeds a learned position table, or there is nothing to adapt.
    """
    if lora and "gate" in lora.targets and not config.gated:
        allowed = f"targets without gate: the feed-forward of {config.name} has none"
        raise InputError(Problem("workload", "trainable", f"`{lora}`", allowed))
    if config.learned_positions and seq_len > config.max_positions:
        allowed = f"at most {config.max_positions}, the size of the position table of {config.name}"
        raise InputError(Problem("workload", "seq_len", str(seq_len), allowed))
    blocks = [_embedding(config, visible), _layer(config, lora, visible), _head(config)]
    layers = tuple(Instance("layer", f"layers.{i}.") for i in range(config.layers))
    extent = {
        "s": seq_len, "m": config.hidden, "g": config.kv_heads,
        "r": config.heads // config.kv_heads, "d": config.head_dim, "f": config.ffn,
        "v": config.vocab, "p": config.max_positions + config.position_offset, "c": 2,
        **({"a": lora.rank} if lora else {}),
    }  # fmt: skip
    return Graph(
        config.name,
        {block.name: block for block in blocks},
        (Instance("embedding"), *layers, Instance("head")),
        extent,
        _initialisation(config, blocks),
    )


def _initialisation(config: DecoderConfig, blocks: list[Block]) -> dict[str, tuple[str, float]]:
    """Weights normal, biases 0, norms 1 (or 0, where they add 1 themselves), adapters in vain."""
    table: dict[str, tuple[str, float]] = {}
    for block in blocks:
        for name in block.parameters:
            if name.endswith("_norm"):
                table[name] = ("constant", 1.0 - config.norm_offset)
            elif name.startswith(("b_", "lora_b_")) or name.endswith("_bias"):
                table[name] = ("constant", 0.0)
            else:
                table[name] = ("normal", config.initializer_range)
    return table
