"""Normalised model JSON <-> `ir.model.DecoderConfig`: how a plan embeds its model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from autoplan.files.problems import Problems, Strict, one_of, validate
from autoplan.files.text import digest
from autoplan.ir.model import ACTIVATIONS, FAMILIES, NORMS, DecoderConfig, RopeScaling

LARGEST = 1 << 31
"""No dim of a model is longer."""


class RopeScalingFile(Strict):
    """`rope_scaling` of a normalised model."""

    factor: float = Field(gt=0, le=1e9)
    low_freq_factor: float = Field(gt=0, le=1e9)
    high_freq_factor: float = Field(gt=0, le=1e9)
    original_max_positions: int = Field(ge=1, le=LARGEST)


class DecoderFile(Strict):
    """A normalised decoder; every field of `DecoderConfig`."""

    family: Annotated[str, one_of(FAMILIES)]
    name: str = Field(min_length=1)
    hidden: int = Field(ge=1, le=LARGEST)
    layers: int = Field(ge=1, le=100_000)
    heads: int = Field(ge=1, le=LARGEST)
    kv_heads: int = Field(ge=1, le=LARGEST)
    head_dim: int = Field(ge=1, le=LARGEST)
    ffn: int = Field(ge=1, le=LARGEST)
    vocab: int = Field(ge=1, le=LARGEST)
    max_positions: int = Field(ge=1, le=LARGEST)
    norm: Annotated[str, one_of(NORMS)]
    norm_eps: float = Field(gt=0, le=1)
    norm_offset: float = Field(ge=0, le=1)
    activation: Annotated[str, one_of(ACTIVATIONS)]
    gated: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope_theta: float | None = Field(gt=0, le=1e15)
    rope_scaling: RopeScalingFile | None
    rotary_dim: int = Field(ge=0, le=LARGEST)
    learned_positions: bool
    position_offset: int = Field(ge=0, le=LARGEST)
    sliding_window: int = Field(ge=0, le=LARGEST)
    parallel_residual: bool
    shared_norm: bool
    tied_embeddings: bool
    head_bias: bool
    embedding_scale: float = Field(gt=0, le=1e9)
    embedding_dropout: float = Field(ge=0, lt=1)
    attention_dropout: float = Field(ge=0, lt=1)
    residual_dropout: float = Field(ge=0, lt=1)
    initializer_range: float = Field(gt=0, le=1e3)


def parse_model(document: object, source: str, path: str = "$") -> DecoderConfig:
    """The decoder that a normalised document describes.

    Args:
        document: parsed JSON with every field of `DecoderConfig`.
        source: the file, for messages.
        path: path of the document inside the source.

    Raises:
        InputError: every problem at once.
    """
    file = validate(DecoderFile, document, source, path)
    problems = Problems(source)
    if file.heads % file.kv_heads:
        problems.add(f"{path}.kv_heads", file.kv_heads, f"a divisor of heads = {file.heads}")
    if file.rope_theta is not None and not file.rotary_dim and file.head_dim % 2:
        problems.add(f"{path}.head_dim", file.head_dim, "an even number with rotary positions")
    if file.rotary_dim % 2 or file.rotary_dim > file.head_dim:
        allowed = f"an even number up to head_dim = {file.head_dim}"
        problems.add(f"{path}.rotary_dim", file.rotary_dim, allowed)
    if file.shared_norm and not file.parallel_residual:
        problems.add(f"{path}.shared_norm", True, "false without parallel_residual")
    problems.check()
    values = file.model_dump()
    scaling = values.pop("rope_scaling")
    return DecoderConfig(rope_scaling=RopeScaling(**scaling) if scaling else None, **values)


def dump_model(config: DecoderConfig) -> dict[str, Any]:
    """The document of a decoder; `parse_model` gives it back, equal."""
    return asdict(config)


def model_digest(config: DecoderConfig) -> str:
    """A name for the content of a model."""
    return digest(dump_model(config))
