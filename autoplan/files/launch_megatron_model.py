"""The model that Megatron-LM's arguments describe.

Defaults and the width of a gated feed-forward are Megatron's. Source: Megatron-LM,
megatron/training/arguments.py (`validate_args` and `_add_network_size_args`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autoplan.files.launch_settings import Settings
from autoplan.files.model import parse_model
from autoplan.ir.model import DecoderConfig, RopeScaling
from autoplan.ir.record import Shape

GPT2_VOCAB = 50257
"""Of the tokenizer `GPT2BPETokenizer`, whose size no argument says."""
SIZES = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab")
LLAMA3_BAND = (1.0, 4.0, 8192)
"""Low and high frequency factor and trained positions of `--use-rope-scaling`."""


def read_shape(settings: Settings) -> Shape:
    """Sizes, as far as they are said."""
    layers = settings.whole("num_layers", "encoder_num_layers")
    hidden = settings.whole("hidden_size")
    heads = settings.whole("num_attention_heads")
    grouped = settings.flag("group_query_attention")
    groups = settings.count("num_query_groups", "num_key_value_heads", default=1)
    width = settings.whole("kv_channels")
    gated = settings.flag("swiglu", "geglu")
    ffn = settings.whole("ffn_hidden_size")
    if hidden and not ffn:
        ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    # Megatron-DeepSpeed has no switch for groups, only their number.
    grouped = grouped or "num_key_value_heads" in settings.values
    experts = settings.whole("num_experts")
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=groups if grouped else heads,
        head_dim=width or (hidden // heads if hidden and heads else None),
        ffn=ffn,
        gated=gated if hidden else None,
        vocab=_vocabulary(settings),
        tied=not settings.flag("untie_embeddings_and_output_weights") if hidden else None,
        experts=experts,
        top_k=settings.count("moe_router_topk", default=2) if experts else None,
        shared_experts=None,
        moe_ffn=(settings.whole("moe_ffn_hidden_size") or ffn) if experts else None,
        dense_layers=None,
    )


def _vocabulary(settings: Settings) -> int | None:
    given = settings.whole("vocab_size", "padded_vocab_size")
    settings.take("padded_vocab_size")
    kind = settings.text("tokenizer_type")
    return given or (GPT2_VOCAB if kind == "GPT2BPETokenizer" else None)


def read_model(settings: Settings, shape: Shape) -> DecoderConfig | None:
    """The model, or None where arguments leave its sizes open or describe what is no dense decoder.

    Its vocabulary is not padded here: that is the software's habit, and the stack profile has it.
    """
    positions = _positions(settings, shape.head_dim or 0)
    norm = settings.text("normalization", default="LayerNorm", allowed=("LayerNorm", "RMSNorm"))
    biased = settings.flag("add_bias_linear", default=not settings.flag("disable_bias_linear"))
    dropout = settings.number("hidden_dropout", default=0.1)
    rest: dict[str, Any] = {
        "norm": "rms_norm" if norm == "RMSNorm" else "layer_norm",
        "norm_eps": settings.number("norm_epsilon", "layernorm_epsilon", default=1e-5),
        "activation": "silu" if shape.gated else "gelu_tanh",
        "qkv_bias": settings.flag("add_qkv_bias") or biased,
        "output_bias": biased,
        "mlp_bias": biased,
        "qk_norm": settings.flag("qk_layernorm"),
        "embedding_dropout": dropout,
        "attention_dropout": settings.number("attention_dropout", default=0.1),
        "residual_dropout": dropout,
    }
    squared = settings.flag("squared_relu")
    settings.take("apply_layernorm_1p", "openai_gelu", "rotary_seq_len_interpolation_factor")
    sizes = {name: getattr(shape, name) for name in SIZES}
    if not (all(sizes.values()) and positions["max_positions"]) or shape.experts or squared:
        return None
    config = DecoderConfig(
        family="gpt2" if positions["learned_positions"] else "llama",
        name=f"{shape.layers} layers of {shape.hidden}",
        gated=bool(shape.gated),
        tied_embeddings=bool(shape.tied),
        **sizes,
        **positions,
        **rest,
    )
    return settings.problems.attempt(lambda: parse_model(asdict(config), settings.problems.source))


def _positions(settings: Settings, head_dim: int) -> dict[str, Any]:
    """Fields of a decoder about positions."""
    kind = settings.text(
        "position_embedding_type", default="learned_absolute",
        allowed=("learned_absolute", "rope", "none"),
    )  # fmt: skip
    rotary = settings.flag("use_rotary_position_embeddings") or kind == "rope"
    absent = settings.flag("no_position_embedding") or kind == "none"
    theta = settings.number("rotary_base", default=10000.0)
    share = settings.number("rotary_percent", default=1.0)
    stretched = settings.flag("use_rope_scaling")
    factor = settings.number("rope_scaling_factor", default=8.0)
    return {
        "max_positions": settings.whole("max_position_embeddings", "seq_length"),
        "rope_theta": theta if rotary else None,
        "rope_scaling": RopeScaling(factor, *LLAMA3_BAND) if rotary and stretched else None,
        "rotary_dim": round(share * head_dim) if rotary and share < 1 else 0,
        "learned_positions": not (rotary or absent),
    }
