"""Hugging Face configs of decoders with a learned position table: GPT-2 and OPT."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from autoplan.files.hf_fields import (
    ACTIVATIONS,
    Activation,
    Deviation,
    Epsilon,
    HfConfig,
    Layers,
    Probability,
    Size,
    check_division,
    read_config,
    size_of,
)
from autoplan.files.problems import Problems
from autoplan.ir.model import DecoderConfig

GPT2_FFN_FACTOR = 4
"""Feed-forward width over model width where `n_inner` is absent."""

GPT2_ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
"""Other spellings that `GPT2Config` takes."""

OPT_POSITION_OFFSET = 2
"""Rows before position 0. Source: transformers, `OPTLearnedPositionalEmbedding`."""
OPT_NORM_EPS = 1e-5
"""OPT's config has no key for it. Source: torch, the default of `LayerNorm`."""


class GPT2Config(HfConfig):
    """Keys of `model_type: gpt2`."""

    n_embd: Size
    n_layer: Layers
    n_head: Size
    n_positions: Size
    n_inner: Size | None = None
    vocab_size: Size
    activation_function: Activation = "gelu_new"
    resid_pdrop: Probability = 0.1
    embd_pdrop: Probability = 0.1
    attn_pdrop: Probability = 0.1
    layer_norm_epsilon: Epsilon = 1e-5
    initializer_range: Deviation = 0.02
    tie_word_embeddings: bool = True
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False


class OPTConfig(HfConfig):
    """Keys of `model_type: opt`. It never drops out its embedding."""

    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    ffn_dim: Size
    vocab_size: Size
    max_position_embeddings: Size = 2048
    word_embed_proj_dim: Size | None = None
    activation_function: Activation = "relu"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    layerdrop: float = Field(default=0.0, ge=0, le=0)
    init_std: Deviation = 0.02
    enable_bias: bool = True
    tie_word_embeddings: bool = True
    do_layer_norm_before: Literal[True] = True
    layer_norm_elementwise_affine: Literal[True] = True


def read_gpt2(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """GPT-2, and GPT-3 as far as its layers are alike."""
    renamed = {GPT2_ALIASES.get(key, key): value for key, value in document.items()}
    problems = Problems(source)
    file = read_config(GPT2Config, renamed, problems)
    check_division(renamed, "n_embd", "n_head", problems)
    problems.check()
    assert file is not None, "without problems there is a config"
    return DecoderConfig(
        family="gpt2",
        name=name,
        hidden=file.n_embd,
        layers=file.n_layer,
        heads=file.n_head,
        kv_heads=file.n_head,
        head_dim=file.n_embd // file.n_head,
        ffn=file.n_inner or GPT2_FFN_FACTOR * file.n_embd,
        vocab=file.vocab_size,
        max_positions=file.n_positions,
        norm="layer_norm",
        norm_eps=file.layer_norm_epsilon,
        activation=ACTIVATIONS[file.activation_function],
        gated=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        rope_theta=None,
        learned_positions=True,
        tied_embeddings=file.tie_word_embeddings,
        embedding_dropout=file.embd_pdrop,
        attention_dropout=file.attn_pdrop,
        residual_dropout=file.resid_pdrop,
        initializer_range=file.initializer_range,
    )


def read_opt(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """OPT with norms before its branches and no projection of its embedding: all but OPT-350M."""
    problems = Problems(source)
    file = read_config(OPTConfig, document, problems)
    check_division(document, "hidden_size", "num_attention_heads", problems)
    if document.get("_remove_final_layer_norm", False) is not False:
        problems.add("$._remove_final_layer_norm", document["_remove_final_layer_norm"], "false")
    width, projected = size_of(document, "hidden_size"), size_of(document, "word_embed_proj_dim")
    if width and projected and width != projected:
        problems.add("$.word_embed_proj_dim", projected, f"hidden_size = {width}")
    problems.check()
    assert file is not None, "without problems there is a config"
    return DecoderConfig(
        family="opt",
        name=name,
        hidden=file.hidden_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        kv_heads=file.num_attention_heads,
        head_dim=file.hidden_size // file.num_attention_heads,
        ffn=file.ffn_dim,
        vocab=file.vocab_size,
        max_positions=file.max_position_embeddings,
        norm="layer_norm",
        norm_eps=OPT_NORM_EPS,
        activation=ACTIVATIONS[file.activation_function],
        gated=False,
        qkv_bias=file.enable_bias,
        output_bias=file.enable_bias,
        mlp_bias=file.enable_bias,
        rope_theta=None,
        learned_positions=True,
        position_offset=OPT_POSITION_OFFSET,
        tied_embeddings=file.tie_word_embeddings,
        attention_dropout=file.attention_dropout,
        residual_dropout=file.dropout,
        initializer_range=file.init_std,
    )
