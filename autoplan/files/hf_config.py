"""Hugging Face `config.json` -> `ir.model.DecoderConfig`, for Llama 1/2/3, GPT-2 and Gemma 1.

Absent optional keys take the defaults of the `transformers` configuration classes (`LlamaConfig`,
`GPT2Config`, `GemmaConfig`). Keys that say nothing about the computation are ignored, as there; but
an unknown key that nearly spells one that is absent is a problem, because its default would
silently replace what the user meant. Sizes are never defaulted.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from autoplan.errors import InputError, Problem
from autoplan.files.data import bundled_names, exists, find_file, is_file
from autoplan.files.model import LARGEST
from autoplan.files.problems import Problems, Strict, one_of, validate
from autoplan.files.text import read_json
from autoplan.ir.model import DecoderConfig, RopeScaling

FOLDER = "models"
_MISSPELT = 0.85
_LARGEST_THETA = 1e15

ROPE_THETA = 10000.0
"""Rotary base where a config names none."""

GPT2_FFN_FACTOR = 4
"""Feed-forward width over model width where `n_inner` is absent."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Names of transformers -> ours; the three tanh forms are one function."""

Activation = Annotated[str, one_of(ACTIVATIONS)]

GPT2_ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
"""Other spellings that `GPT2Config` takes."""


class _HfConfig(BaseModel):
    """Keys of a family; other keys of the file are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class _RotaryConfig(_HfConfig):
    """Keys that Llama and Gemma share."""

    hidden_size: int = Field(ge=1, le=LARGEST)
    num_hidden_layers: int = Field(ge=1, le=100_000)
    num_attention_heads: int = Field(ge=1, le=LARGEST)
    num_key_value_heads: int | None = Field(default=None, ge=1, le=LARGEST)
    intermediate_size: int = Field(ge=1, le=LARGEST)
    vocab_size: int = Field(ge=1, le=LARGEST)
    rms_norm_eps: float = Field(default=1e-6, gt=0, le=1)
    rope_theta: float | None = Field(default=None, gt=0, lt=_LARGEST_THETA)
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    initializer_range: float = Field(default=0.02, gt=0, le=1e3)


class LlamaConfig(_RotaryConfig):
    """Keys of `model_type: llama`."""

    max_position_embeddings: int = Field(default=2048, ge=1, le=LARGEST)
    head_dim: int | None = Field(default=None, ge=1, le=LARGEST)
    hidden_act: Activation = "silu"
    mlp_bias: bool = False
    tie_word_embeddings: bool = False


class GemmaConfig(_RotaryConfig):
    """Keys of `model_type: gemma`."""

    max_position_embeddings: int = Field(default=8192, ge=1, le=LARGEST)
    head_dim: int = Field(default=256, ge=1, le=LARGEST)
    hidden_act: Activation | None = None
    hidden_activation: Activation | None = None
    tie_word_embeddings: bool = True


class GPT2Config(_HfConfig):
    """Keys of `model_type: gpt2`."""

    n_embd: int = Field(ge=1, le=LARGEST)
    n_layer: int = Field(ge=1, le=100_000)
    n_head: int = Field(ge=1, le=LARGEST)
    n_positions: int = Field(ge=1, le=LARGEST)
    n_inner: int | None = Field(default=None, ge=1, le=LARGEST)
    vocab_size: int = Field(ge=1, le=LARGEST)
    activation_function: Activation = "gelu_new"
    resid_pdrop: float = Field(default=0.1, ge=0, lt=1)
    embd_pdrop: float = Field(default=0.1, ge=0, lt=1)
    attn_pdrop: float = Field(default=0.1, ge=0, lt=1)
    layer_norm_epsilon: float = Field(default=1e-5, gt=0, le=1)
    initializer_range: float = Field(default=0.02, gt=0, le=1e3)
    tie_word_embeddings: bool = True
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False


class Llama3Scaling(Strict):
    """`rope_scaling` of type `llama3`, its type taken off."""

    factor: float = Field(gt=0, le=1e9)
    low_freq_factor: float = Field(gt=0, le=1e9)
    high_freq_factor: float = Field(gt=0, le=1e9)
    original_max_position_embeddings: int = Field(ge=1, le=LARGEST)


def load_model(spec: str) -> DecoderConfig:
    """The model that a path or a name means.

    Args:
        spec: a `config.json` or other file, a folder that holds `config.json`, a bundled name, or a
            hub id whose last part is a bundled name (`meta-llama/Llama-2-7b-hf`).

    Raises:
        InputError: unknown model, or a config with problems: all of them.
    """
    path = Path(spec)
    last = spec.rpartition("/")[2].lower().removesuffix("-hf")
    if is_file(path / "config.json"):
        path, name = path / "config.json", path.resolve().name
    elif not exists(path) and last in bundled_names(FOLDER):
        path, name = find_file(last, FOLDER, "model"), last
    else:
        path = find_file(spec, FOLDER, "model")
        name = path.resolve().parent.name if path.stem == "config" else path.stem
    return parse_hf_config(read_json(path, finite=False), str(path), name)


def parse_hf_config(document: object, source: str, name: str) -> DecoderConfig:
    """The decoder that the text of a `config.json` describes.

    Args:
        document: parsed JSON.
        source: the file, for messages.
        name: name of the model.

    Raises:
        InputError: every problem at once.
    """
    if not isinstance(document, dict):
        raise InputError(Problem(source, "$", type(document).__name__, "an object"))
    model_type = document.get("model_type")
    read = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if read is None:
        allowed = f"one of {', '.join(_FAMILIES)}"
        found = "nothing" if "model_type" not in document else f"`{model_type}`"
        hint = _misspelt_key(document)
        raise InputError(Problem(source, "$.model_type", found, allowed, hint))
    return read(document, source, name)


def _misspelt_key(document: Mapping[str, Any]) -> str:
    keys = get_close_matches("model_type", [k for k in document if k != "model_type"], n=1)
    return f"`{keys[0]}` looks like a misspelling of `model_type`" if keys else ""


def _llama(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    file, scaling, theta = _rotary(LlamaConfig, document, source)
    return DecoderConfig(
        family="llama",
        name=name,
        hidden=file.hidden_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=file.head_dim or file.hidden_size // file.num_attention_heads,
        ffn=file.intermediate_size,
        vocab=file.vocab_size,
        max_positions=file.max_position_embeddings,
        norm_eps=file.rms_norm_eps,
        activation=ACTIVATIONS[file.hidden_act],
        attention_bias=file.attention_bias,
        mlp_bias=file.mlp_bias,
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=file.tie_word_embeddings,
        attention_dropout=file.attention_dropout,
        initializer_range=file.initializer_range,
    )


def _gemma(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    """Gemma 1: norms multiply by 1 + weight, the embedding is scaled by sqrt(hidden).

    `hidden_act` of the first release says `gelu` while the model uses the tanh form: only
    `hidden_activation` counts. Source: transformers, `modeling_gemma`.
    """
    file, scaling, theta = _rotary(GemmaConfig, document, source)
    return DecoderConfig(
        family="gemma",
        name=name,
        hidden=file.hidden_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=file.head_dim,
        ffn=file.intermediate_size,
        vocab=file.vocab_size,
        max_positions=file.max_position_embeddings,
        norm_eps=file.rms_norm_eps,
        norm_offset=1.0,
        activation=ACTIVATIONS[file.hidden_activation or "gelu_pytorch_tanh"],
        attention_bias=file.attention_bias,
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=file.tie_word_embeddings,
        embedding_scale=sqrt(file.hidden_size),
        attention_dropout=file.attention_dropout,
        initializer_range=file.initializer_range,
    )


def _gpt2(document: dict[str, Any], source: str, name: str) -> DecoderConfig:
    renamed = {GPT2_ALIASES.get(key, key): value for key, value in document.items()}
    problems = Problems(source)
    file = _read(GPT2Config, renamed, problems)
    _check_division(renamed, "n_embd", "n_head", problems)
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
        attention_bias=True,
        mlp_bias=True,
        rope_theta=None,
        learned_positions=True,
        tied_embeddings=file.tie_word_embeddings,
        embedding_dropout=file.embd_pdrop,
        attention_dropout=file.attn_pdrop,
        residual_dropout=file.resid_pdrop,
        initializer_range=file.initializer_range,
    )


_FAMILIES = {"llama": _llama, "gpt2": _gpt2, "gemma": _gemma}

Config = TypeVar("Config", bound=_HfConfig)
Rotary = TypeVar("Rotary", bound=_RotaryConfig)


def _read(model: type[Config], document: dict[str, Any], problems: Problems) -> Config | None:
    """The config of a family; a key that nearly spells an absent one is a problem."""
    absent = [name for name in model.model_fields if name not in document]
    meant: dict[str, str] = {}
    for key in document:
        if key not in model.model_fields:
            for name in get_close_matches(key, absent, n=1, cutoff=_MISSPELT):
                meant[name] = key
                allowed = f"`{name}`, which is absent"
                hint = f"did you mean `{name}`?"
                found = Problem(problems.source, f"$.{key}", "an unknown field", allowed, hint)
                problems.found.append(found)
    try:
        return validate(model, document, problems.source)
    except InputError as error:
        skipped = {f"$.{name}" for name in meant}
        problems.found.extend(p for p in error.problems if p.field not in skipped)
        return None


def _rotary(
    model: type[Rotary], document: dict[str, Any], source: str
) -> tuple[Rotary, RopeScaling | None, float]:
    """Config, rotary scaling and rotary base of a Llama-like config."""
    problems = Problems(source)
    file = _read(model, document, problems)
    if model is LlamaConfig and document.get("head_dim") is None:
        _check_division(document, "hidden_size", "num_attention_heads", problems)
    _check_division(document, "num_attention_heads", "num_key_value_heads", problems)
    if (_size(document, "head_dim") or 0) % 2:
        problems.add("$.head_dim", document["head_dim"], "an even number, for rotary positions")
    scaling, theta = _rope(document, problems)
    problems.check()
    assert file is not None, "without problems there is a config"
    return file, scaling, theta or file.rope_theta or ROPE_THETA


def _size(document: Mapping[str, Any], key: str) -> int | None:
    """A positive integer field, or None where it is absent or wrong (which is reported apart)."""
    value = document.get(key)
    return value if type(value) is int and value > 0 else None


def _check_division(
    document: Mapping[str, Any], width: str, heads: str, problems: Problems
) -> None:
    """The heads share the width evenly."""
    size, count = _size(document, width), _size(document, heads)
    if size and count and size % count:
        problems.add(f"$.{width}", size, f"a multiple of {heads} = {count}")


def _rope(document: Mapping[str, Any], problems: Problems) -> tuple[RopeScaling | None, float]:
    """Rotary scaling, from the old key, `rope_parameters`, or both; base of the latter, or 0."""
    merged: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        section = document.get(key)
        merged |= section if isinstance(section, dict) else {}
    where = "$.rope_parameters" if document.get("rope_parameters") else "$.rope_scaling"
    theta = merged.pop("rope_theta", 0)
    if type(theta) not in (int, float) or not 0 <= theta < _LARGEST_THETA:
        problems.add(f"{where}.rope_theta", theta, f"a number below {_LARGEST_THETA:g}")
        theta = 0
    older = merged.pop("type", None)
    kind = merged.pop("rope_type", older)
    scaling = None
    if kind == "llama3":
        read = problems.attempt(lambda: validate(Llama3Scaling, merged, problems.source, where))
        scaling = RopeScaling(*read.model_dump().values()) if read else None
    elif kind not in (None, "default"):
        problems.add(f"{where}.rope_type", kind, "null, `default` or `llama3`")
    elif merged:
        problems.add(where, merged, "null, or an object with a `rope_type`", "add rope_type")
    return scaling, float(theta)
