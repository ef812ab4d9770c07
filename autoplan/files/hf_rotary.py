"""Hugging Face configs of decoders with rotary positions: Llama, Gemma, Mistral, Qwen, NeoX, Phi.

They share most keys; a family is its schema, whose defaults are those of its class in
`transformers`, and a reader that says what its layers have. Fused projections (NeoX, Phi-3) are a
matter of checkpoints: the layers have a weight for each.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from autoplan.files.hf_fields import (
    ACTIVATIONS,
    ROPE_THETA,
    Activation,
    Deviation,
    Epsilon,
    HfConfig,
    Layers,
    Probability,
    Share,
    Size,
    Theta,
    check_division,
    read_config,
    read_rope,
    size_of,
)
from autoplan.files.problems import Problems
from autoplan.ir.model import DecoderConfig

FULL, SLIDING = "full_attention", "sliding_attention"
"""What `layer_types` may say of a layer."""


class RotaryConfig(HfConfig):
    """Keys that all these families have."""

    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Size = 2048
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_dropout: Probability = 0.0
    initializer_range: Deviation = 0.02
    tie_word_embeddings: bool = False


class LlamaConfig(RotaryConfig):
    """Keys of `model_type: llama`."""

    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: Activation = "silu"
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Theta | None = None
    attention_bias: bool = False
    mlp_bias: bool = False


class GemmaConfig(RotaryConfig):
    """Keys of `model_type: gemma`."""

    num_key_value_heads: Size | None = None
    head_dim: Size = 256
    hidden_act: Activation | None = None
    hidden_activation: Activation | None = None
    max_position_embeddings: Size = 8192
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Theta | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = True


class MistralConfig(RotaryConfig):
    """Keys of `model_type: mistral`."""

    num_key_value_heads: Size | None = 8
    head_dim: Size | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Size = 4096 * 32
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Theta | None = None
    sliding_window: Size | None = 4096


class Qwen2Config(RotaryConfig):
    """Keys of `model_type: qwen2`, which Qwen 2.5 has as well."""

    num_key_value_heads: Size | None = 32
    hidden_act: Activation = "silu"
    max_position_embeddings: Size = 32768
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Theta | None = None
    use_sliding_window: bool = False
    sliding_window: Size | None = 4096
    max_window_layers: int = Field(default=28, ge=0)
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None


class Qwen3Config(Qwen2Config):
    """Keys of `model_type: qwen3`."""

    head_dim: Size = 128
    attention_bias: bool = False


class Phi3Config(RotaryConfig):
    """Keys of `model_type: phi3`, which Phi-4 has as well. It never drops out its embedding."""

    num_key_value_heads: Size | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Size = 4096
    rms_norm_eps: Epsilon = 1e-5
    rope_theta: Theta | None = None
    partial_rotary_factor: Share = 1.0
    sliding_window: Size | None = None
    resid_pdrop: Probability = 0.0


class NeoXConfig(RotaryConfig):
    """Keys of `model_type: gpt_neox`."""

    hidden_act: Activation = "gelu"
    layer_norm_eps: Epsilon = 1e-5
    rotary_emb_base: Theta | None = None
    rotary_pct: Share = 0.25
    attention_bias: bool = True
    hidden_dropout: Probability = 0.0
    use_parallel_residual: bool = True


class PhiConfig(RotaryConfig):
    """Keys of `model_type: phi`."""

    num_key_value_heads: Size | None = None
    hidden_act: Activation = "gelu_new"
    layer_norm_eps: Epsilon = 1e-5
    rope_theta: Theta | None = None
    partial_rotary_factor: Share = 0.5
    qk_layernorm: bool = False
    resid_pdrop: Probability = 0.0
    embd_pdrop: Probability = 0.0


Schema = TypeVar("Schema", bound=RotaryConfig)


class _Reading(Generic[Schema]):
    """A config being read: its problems, and what all families make of it.

    Args:
        schema: of the family.
        document: parsed JSON.
        source: the file, for messages.
        theta: key of the rotary base.
        share: key of the share of a head that is rotated, "" where whole heads are.
    """

    def __init__(
        self, schema: type[Schema], document: dict[str, Any], source: str,
        theta: str = "rope_theta", share: str = "",
    ) -> None:  # fmt: skip
        self.problems = Problems(source)
        self.file = read_config(schema, document, self.problems)
        known = schema.model_fields
        optional = {k: f.default for k, f in known.items() if not f.is_required()}
        # What counts, even where some key is wrong: what the file says, else the default.
        self._said = optional | {k: v for k, v in document.items() if k in known}
        self._head = self._head_width()
        check_division(self._said, "num_attention_heads", "num_key_value_heads", self.problems)
        self._rope = read_rope(document, self.problems)
        self._theta = self._rope.theta or self._said[theta] or ROPE_THETA
        self._rotary_dim = self._rotated(share)

    def _head_width(self) -> int | None:
        """`head_dim`, or an even share of the width; None where that is wrong."""
        given = size_of(self._said, "head_dim")
        if given:
            return given
        check_division(self._said, "hidden_size", "num_attention_heads", self.problems)
        hidden = size_of(self._said, "hidden_size")
        heads = size_of(self._said, "num_attention_heads")
        return hidden // heads if hidden and heads else None

    def _rotated(self, key: str) -> int:
        """How many values of a head are rotated, 0 for all; an odd number is a problem.

        Source: transformers, `modeling_rope_utils`: the integer part of width x share.
        """
        share = self._said.get(key, 1.0) if self._rope.share is None else self._rope.share
        if self._head is None or type(share) not in (int, float) or not 0 < share <= 1:
            return 0
        if share != 1 and not key:
            where = "$.rope_parameters.partial_rotary_factor"
            self.problems.add(where, share, "1: this family rotates whole heads")
        turned = int(self._head * share)
        if turned % 2 or not turned:
            given = "head_dim" if size_of(self._said, "head_dim") else "hidden_size"
            where = f"$.{given if share == 1 else key}"
            allowed = "a size that rotates an even number of the values of a head"
            self.problems.add(where, self._said.get(where[2:], share), f"{allowed}, not {turned}")
        return turned if share != 1 else 0

    def checked(self) -> Schema:
        """The config, if nothing is wrong with it.

        Raises:
            InputError: every problem at once.
        """
        self.problems.check()
        assert self.file is not None, "without problems there is a config"
        return self.file

    def decoder(self, family: str, name: str, **own: Any) -> DecoderConfig:
        """The decoder, with what is the family's `own`."""
        file = self.checked()
        assert self._head is not None, "without problems there is a head width"
        return DecoderConfig(
            family=family,
            name=name,
            hidden=file.hidden_size,
            layers=file.num_hidden_layers,
            heads=file.num_attention_heads,
            kv_heads=size_of(self._said, "num_key_value_heads") or file.num_attention_heads,
            head_dim=self._head,
            ffn=file.intermediate_size,
            vocab=file.vocab_size,
            max_positions=file.max_position_embeddings,
            rope_theta=float(self._theta),
            rope_scaling=self._rope.scaling,
            rotary_dim=self._rotary_dim,
            tied_embeddings=file.tie_word_embeddings,
            attention_dropout=file.attention_dropout,
            initializer_range=file.initializer_range,
            **own,
        )


def read_llama(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """Llama 1, 2 and 3. One key gives all four projections of attention a bias."""
    reading = _Reading(LlamaConfig, document, source)
    file = reading.checked()
    return reading.decoder(
        "llama",
        name,
        norm_eps=file.rms_norm_eps,
        activation=ACTIVATIONS[file.hidden_act],
        qkv_bias=file.attention_bias,
        output_bias=file.attention_bias,
        mlp_bias=file.mlp_bias,
    )


def read_gemma(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """Gemma 1: norms multiply by 1 + weight, the embedding is scaled by sqrt(hidden).

    `hidden_act` of the first release says `gelu` while the model uses the tanh form: only
    `hidden_activation` counts. Source: transformers, `modeling_gemma`.
    """
    reading = _Reading(GemmaConfig, document, source)
    file = reading.checked()
    return reading.decoder(
        "gemma",
        name,
        norm_eps=file.rms_norm_eps,
        norm_offset=1.0,
        activation=ACTIVATIONS[file.hidden_activation or "gelu_pytorch_tanh"],
        qkv_bias=file.attention_bias,
        output_bias=file.attention_bias,
        embedding_scale=sqrt(file.hidden_size),
    )


def read_mistral(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """Mistral: a Llama with a sliding window, which is off only where the file says null."""
    reading = _Reading(MistralConfig, document, source)
    file = reading.checked()
    return reading.decoder(
        "mistral",
        name,
        norm_eps=file.rms_norm_eps,
        activation=ACTIVATIONS[file.hidden_act],
        sliding_window=file.sliding_window or 0,
    )


def read_qwen2(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """Qwen 2 and 2.5: queries, keys and values have a bias, attention's output has none."""
    reading = _Reading(Qwen2Config, document, source)
    window = _window(reading)
    file = reading.checked()
    return reading.decoder(
        "qwen2",
        name,
        norm_eps=file.rms_norm_eps,
        activation=ACTIVATIONS[file.hidden_act],
        qkv_bias=True,
        sliding_window=window,
    )


def read_qwen3(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """Qwen 3: each head's queries and keys are normalised before they are rotated."""
    reading = _Reading(Qwen3Config, document, source)
    window = _window(reading)
    file = reading.checked()
    return reading.decoder(
        "qwen3",
        name,
        norm_eps=file.rms_norm_eps,
        activation=ACTIVATIONS[file.hidden_act],
        qkv_bias=file.attention_bias,
        output_bias=file.attention_bias,
        qk_norm=True,
        sliding_window=window,
    )


def _window(reading: _Reading[Qwen2Config] | _Reading[Qwen3Config]) -> int:
    """Qwen's sliding window, 0 for none; a problem where layers differ."""
    file = reading.file
    if file is None:
        return 0
    window = file.sliding_window if file.use_sliding_window else None
    layers = range(file.num_hidden_layers)
    derived = [SLIDING if window and i >= file.max_window_layers else FULL for i in layers]
    kinds = set(file.layer_types or derived)
    if len(kinds) > 1:
        key = "layer_types" if file.layer_types else "max_window_layers"
        found = file.layer_types or file.max_window_layers
        reading.problems.add(f"$.{key}", found, "a sliding window in every layer or in none")
    return window or 0 if SLIDING in kinds else 0


def read_phi3(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """Phi-3 and Phi-4: a Llama that may rotate a part of each head."""
    reading = _Reading(Phi3Config, document, source, share="partial_rotary_factor")
    file = reading.checked()
    return reading.decoder(
        "phi3",
        name,
        norm_eps=file.rms_norm_eps,
        activation=ACTIVATIONS[file.hidden_act],
        sliding_window=file.sliding_window or 0,
        residual_dropout=file.resid_pdrop,
    )


def read_neox(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """GPT-NeoX and Pythia: parallel branches with a norm each, a part of each head rotated."""
    reading = _Reading(NeoXConfig, document, source, "rotary_emb_base", "rotary_pct")
    file = reading.checked()
    return reading.decoder(
        "gpt_neox",
        name,
        norm="layer_norm",
        norm_eps=file.layer_norm_eps,
        activation=ACTIVATIONS[file.hidden_act],
        gated=False,
        qkv_bias=file.attention_bias,
        output_bias=file.attention_bias,
        mlp_bias=True,
        parallel_residual=file.use_parallel_residual,
        embedding_dropout=file.hidden_dropout,
        residual_dropout=file.hidden_dropout,
    )


def read_phi(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """Phi-1, 1.5 and 2: parallel branches that share a norm, biases everywhere, the head's too."""
    reading = _Reading(PhiConfig, document, source, share="partial_rotary_factor")
    file = reading.checked()
    return reading.decoder(
        "phi",
        name,
        norm="layer_norm",
        norm_eps=file.layer_norm_eps,
        activation=ACTIVATIONS[file.hidden_act],
        gated=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=file.qk_layernorm,
        parallel_residual=True,
        shared_norm=True,
        head_bias=True,
        embedding_dropout=file.embd_pdrop,
        residual_dropout=file.resid_pdrop,
    )
