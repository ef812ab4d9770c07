"""Hugging Face configs: exact shapes, transformers' defaults, and every problem at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoplan.errors import InputError
from autoplan.files.data import bundled_names
from autoplan.files.hf_config import load_model, parse_hf_config
from autoplan.ir.model import DecoderConfig, RopeScaling

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 256,
}
GEMMA = {**LLAMA, "model_type": "gemma"}

PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "gpt2": 124_439_808,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-8b": 8_190_735_360,
    "opt-6.7b": 6_658_473_984,
    "gpt-neox-20b": 20_554_567_680,
    "phi-4": 14_659_507_200,
}
"""Counts of the transformers classes on the meta device, tied tensors once."""


def read(document: object) -> DecoderConfig:
    return parse_hf_config(document, "config.json", "m")


def problems(document: object) -> dict[str, str]:
    """Field -> the whole problem, as text."""
    with pytest.raises(InputError) as caught:
        read(document)
    return {p.field: str(p) for p in caught.value.problems}


def parameters(c: DecoderConfig) -> int:
    """Closed form of the number of parameters."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    norm = c.hidden * (2 if c.norm == "layer_norm" else 1)
    attention = c.hidden * (2 * q + 2 * kv) + c.qkv_bias * (q + 2 * kv) + c.output_bias * c.hidden
    attention += c.qk_norm * 2 * c.head_dim * (2 if c.norm == "layer_norm" else 1)
    wide = 2 if c.gated else 1
    mlp = (wide + 1) * c.hidden * c.ffn + c.mlp_bias * (wide * c.ffn + c.hidden)
    ends = c.vocab * c.hidden * (1 if c.tied_embeddings else 2) + norm + c.head_bias * c.vocab
    rows = c.max_positions + c.position_offset if c.learned_positions else 0
    norms = norm if c.shared_norm else 2 * norm
    return c.layers * (attention + mlp + norms) + ends + rows * c.hidden


@pytest.mark.parametrize("name", PARAMETERS)
def test_bundled_models_have_their_published_size(name: str) -> None:
    assert parameters(load_model(name)) == PARAMETERS[name]


def test_every_family_has_a_tiny_model() -> None:
    families = {"tiny-llama", "tiny-llama-tied", "tiny-gpt2", "tiny-gemma", "tiny-mistral"}
    families |= {"tiny-qwen2", "tiny-qwen3", "tiny-opt", "tiny-neox", "tiny-phi", "tiny-phi3"}
    assert {"llama-2-34b", "gpt3-175b", *families, *PARAMETERS} <= set(bundled_names("models"))


def test_llama_takes_the_defaults_of_transformers() -> None:
    config = read(LLAMA)
    assert config.kv_heads == 4
    assert config.head_dim == 16
    assert (config.norm, config.norm_eps, config.rope_theta) == ("rms_norm", 1e-6, 10000.0)
    assert not config.tied_embeddings
    assert config.max_positions == 2048


def test_gpt2_takes_the_defaults_of_transformers() -> None:
    config = read(GPT2)
    assert config.ffn == 256
    assert config.norm_eps == 1e-5
    assert config.activation == "gelu_tanh"
    assert (config.embedding_dropout, config.attention_dropout, config.residual_dropout) == (
        0.1, 0.1, 0.1,
    )  # fmt: skip
    assert config.tied_embeddings
    assert config.learned_positions
    assert config.rope_theta is None


def test_gemma_scales_its_embedding_and_offsets_its_norms() -> None:
    config = read(GEMMA)
    assert config.embedding_scale == 8.0
    assert config.norm_offset == 1.0
    assert config.head_dim == 256
    assert config.tied_embeddings
    assert config.activation == read({**GEMMA, "hidden_act": "gelu"}).activation == "gelu_tanh"


def test_gpt2_takes_the_general_spellings_too() -> None:
    general = {k: v for k, v in GPT2.items() if k not in ("n_embd", "n_layer")}
    assert read({**general, "hidden_size": 64, "num_hidden_layers": 2}) == read(GPT2)


def test_rotary_scaling_comes_from_either_key_or_both() -> None:
    numbers = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaling = {**numbers, "rope_type": "llama3"}
    right = RopeScaling(8.0, 1.0, 4.0, 8192)
    old = read({**LLAMA, "rope_scaling": scaling, "rope_theta": 5e5})
    new = read({**LLAMA, "rope_parameters": {**scaling, "rope_theta": 5e5}})
    parameters = {"rope_type": "llama3", "rope_theta": 5e5}
    both = read({**LLAMA, "rope_scaling": scaling, "rope_parameters": parameters})
    assert old == new == both
    assert (old.rope_scaling, old.rope_theta) == (right, 5e5)
    assert read({**LLAMA, "rope_scaling": {"rope_type": "default"}}).rope_scaling is None
    assert "$.rope_scaling.rope_type" in problems(
        {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}
    )
    assert "$.rope_scaling.factor" in problems({**LLAMA, "rope_scaling": {"rope_type": "llama3"}})


def test_a_misspelt_field_is_named_with_its_correction_and_once() -> None:
    document = {**LLAMA, "hiden_size": 64}
    del document["hidden_size"]
    found = problems(document)
    assert list(found) == ["$.hiden_size"]
    assert "did you mean `hidden_size`?" in found["$.hiden_size"]


def test_a_misspelt_optional_field_is_not_replaced_by_its_default() -> None:
    assert list(problems({**LLAMA, "num_key_value_head": 2})) == ["$.num_key_value_head"]


def test_harmless_unknown_fields_are_ignored() -> None:
    assert read({**LLAMA, "torch_dtype": "bfloat16", "pad_token_id": None}) == read(LLAMA)


def test_all_problems_come_at_once() -> None:
    document = {
        **LLAMA,
        "hidden_size": 66,
        "num_key_value_heads": 3,
        "num_hidden_layers": -1,
        "vocab_size": "256",
        "rms_norm_eps": float("nan"),
        "rope_scaling": {"type": "yarn"},
    }
    del document["intermediate_size"]
    assert set(problems(document)) == {
        "$.hidden_size", "$.num_attention_heads", "$.num_hidden_layers", "$.vocab_size",
        "$.rms_norm_eps", "$.rope_scaling.rope_type", "$.intermediate_size",
    }  # fmt: skip


@pytest.mark.parametrize("model_type", ["mixtral", "gemma2", None, 3])
def test_other_families_are_refused_by_name(model_type: object) -> None:
    text = problems({**LLAMA, "model_type": model_type})["$.model_type"]
    assert "one of llama, gpt2, gemma" in text


def test_a_model_is_found_by_path_folder_name_and_hub_id(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(str(folder)) == load_model(str(folder / "config.json"))
    assert load_model(str(folder)).name == "my-model"
    assert load_model("meta-llama/Llama-2-7b-hf") == load_model("llama-2-7b")


def test_an_unknown_model_gets_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean `llama-2-7b`") as caught:
        load_model("llama2-7b")
    assert "tiny-gemma" in str(caught.value)
