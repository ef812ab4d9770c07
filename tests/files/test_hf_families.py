"""Each family's own keys: transformers' defaults, and every problem at once."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from autoplan.errors import InputError
from autoplan.files.data import data_folder
from autoplan.files.hf_config import parse_hf_config
from autoplan.ir.model import DecoderConfig

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 256,
}
OPT = {k: v for k, v in SIZES.items() if k != "intermediate_size"} | {"ffn_dim": 128}


def read(model_type: str, **keys: Any) -> DecoderConfig:
    sizes = OPT if model_type == "opt" else SIZES
    return parse_hf_config({"model_type": model_type, **sizes, **keys}, "config.json", "m")


def problems(model_type: str, **keys: Any) -> dict[str, str]:
    """Field -> the whole problem, as text."""
    with pytest.raises(InputError) as caught:
        read(model_type, **keys)
    return {p.field: str(p) for p in caught.value.problems}


def test_mistral() -> None:
    config = read("mistral")
    assert (config.kv_heads, config.max_positions) == (8, 131072)
    assert config.sliding_window == 4096
    assert read("mistral", sliding_window=None).sliding_window == 0
    assert not any((config.qkv_bias, config.output_bias, config.tied_embeddings))
    assert read("mistral", num_key_value_heads=None).kv_heads == 8


def test_qwen2_has_biases_but_for_the_output() -> None:
    config = read("qwen2", num_key_value_heads=2)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, False)
    assert (config.sliding_window, config.max_positions) == (0, 32768)
    assert "num_key_value_heads = 32" in problems("qwen2")["$.num_attention_heads"]


def test_qwen_slides_in_every_layer_or_in_none() -> None:
    keys = {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 16}
    assert read("qwen2", **keys).sliding_window == 0  # from layer 28 on, and there are two
    assert read("qwen2", **keys, max_window_layers=0).sliding_window == 16
    assert list(problems("qwen3", **keys, max_window_layers=1)) == ["$.max_window_layers"]
    kinds = ["full_attention", "sliding_attention"]
    assert list(problems("qwen2", **keys, layer_types=kinds)) == ["$.layer_types"]
    assert read("qwen2", **keys, layer_types=kinds[1:] * 2).sliding_window == 16


def test_qwen3_normalises_heads() -> None:
    config = read("qwen3", num_key_value_heads=4)
    assert config.qk_norm
    assert (config.head_dim, config.qkv_bias) == (128, False)
    assert read("qwen3", num_key_value_heads=4, attention_bias=True).output_bias


def test_opt() -> None:
    config = read("opt")
    assert (config.activation, config.norm, config.norm_eps) == ("relu", "layer_norm", 1e-5)
    assert (config.max_positions, config.position_offset) == (2048, 2)
    assert (config.residual_dropout, config.embedding_dropout) == (0.1, 0.0)
    assert config.tied_embeddings
    assert config.qkv_bias
    assert config.output_bias
    assert config.mlp_bias
    assert not read("opt", enable_bias=False).mlp_bias
    assert read("opt", word_embed_proj_dim=64) == config


def test_what_no_opt_here_has_is_refused_at_once() -> None:
    found = problems(
        "opt", word_embed_proj_dim=32, do_layer_norm_before=False, layerdrop=0.1,
        _remove_final_layer_norm=True, num_attention_heads=7,
    )  # fmt: skip
    assert set(found) == {
        "$.word_embed_proj_dim", "$.do_layer_norm_before", "$.layerdrop",
        "$._remove_final_layer_norm", "$.hidden_size",
    }  # fmt: skip
    assert "hidden_size = 64" in found["$.word_embed_proj_dim"]


def test_neox() -> None:
    config = read("gpt_neox")
    assert (config.parallel_residual, config.shared_norm) == (True, False)
    assert (config.rotary_dim, config.rope_theta, config.activation) == (2, 10000.0, "gelu")
    assert config.qkv_bias
    assert not config.head_bias
    assert not config.gated
    assert read("gpt_neox", rotary_pct=1.0).rotary_dim == 0
    assert not read("gpt_neox", use_parallel_residual=False).parallel_residual
    newer = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    config = read("gpt_neox", rope_parameters=newer)
    assert (config.rotary_dim, config.rope_theta) == (4, 500.0)


def test_phi() -> None:
    config = read("phi")
    assert config.parallel_residual
    assert config.shared_norm
    assert config.head_bias
    assert (config.rotary_dim, config.kv_heads, config.activation) == (4, 8, "gelu_tanh")
    assert read("phi", qk_layernorm=True).qk_norm


def test_phi3() -> None:
    config = read("phi3")
    assert (config.rotary_dim, config.sliding_window, config.norm_eps) == (0, 0, 1e-5)
    assert config.gated
    assert not config.qkv_bias
    assert read("phi3", partial_rotary_factor=0.75).rotary_dim == 6
    assert read("phi3", sliding_window=7, resid_pdrop=0.2).sliding_window == 7
    assert "$.rope_scaling.rope_type" in problems("phi3", rope_scaling={"type": "longrope"})


@pytest.mark.parametrize(("model_type", "key"), [
    ("gpt_neox", "rotary_pct"), ("phi", "partial_rotary_factor"), ("phi3", "partial_rotary_factor"),
])  # fmt: skip
def test_an_odd_part_of_a_head_cannot_be_rotated(model_type: str, key: str) -> None:
    assert list(problems(model_type, **{key: 0.4})) == [f"$.{key}"]
    assert list(problems(model_type, **{key: 0.01})) == [f"$.{key}"]
    assert list(problems(model_type, **{key: 2.0})) == [f"$.{key}"]


def test_heads_of_odd_width_cannot_be_rotated() -> None:
    assert "not 9" in problems("phi3", hidden_size=72)["$.hidden_size"]
    assert list(problems("llama", head_dim=5)) == ["$.head_dim"]
    share = {"rope_type": "default", "partial_rotary_factor": 0.5}
    found = problems("llama", rope_parameters=share)
    assert "whole heads" in found["$.rope_parameters.partial_rotary_factor"]


NEW = ("mistral", "qwen2", "qwen3", "opt", "neox", "phi", "phi3")


@pytest.mark.parametrize("name", NEW)
def test_any_key_may_be_absent_or_nonsense(name: str) -> None:
    document = json.loads((data_folder("models") / f"tiny-{name}.json").read_text())
    for key in document:
        for value in (None, -1, 10**400, "x", [], {}, 0.3, 3):
            with suppress(InputError):
                parse_hf_config({**document, key: value}, "config.json", "m")
        with suppress(InputError):
            without = {k: v for k, v in document.items() if k != key}
            parse_hf_config(without, "config.json", "m")
