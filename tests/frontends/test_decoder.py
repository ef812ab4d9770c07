"""Laws: a graph has exactly the parameters of the model that its config describes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.errors import InputError
from autoplan.files.data import bundled_names
from autoplan.files.hf_config import load_model
from autoplan.frontends import build_graph
from autoplan.ops import FAMILIES

REAL = Path(__file__).parents[1] / "data" / "hf-configs"
PUBLISHED = {
    "llama-1-65b": 65_285_660_672,
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
    "qwen2-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "opt-6.7b": 6_658_473_984,
    "gpt-neox-20b": 20_554_567_680,
    "phi-1": 1_414_562_935,
    "phi-4": 14_659_507_200,
}
"""Exact counts of the model classes of transformers, tied tensors once."""


def total(spec: str) -> int:
    return build_graph(load_model(spec), 128).parameters_total


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) & set(bundled_names("models"))))
def test_bundled_models_have_their_published_size(name):
    assert total(name) == PUBLISHED[name]


@pytest.mark.parametrize("name", [n for n in PUBLISHED if (REAL / f"{n}.json").exists()])
def test_published_configs_have_their_published_size(name):
    assert total(str(REAL / f"{name}.json")) == PUBLISHED[name]


def test_gpt3_has_the_size_of_the_closed_form():
    """P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)) plus the final norm's 2 h.

    Source: Narayanan et al. 2021, section 5.1; Brown et al. 2020 call it 175 billion.
    """
    layers, h, vocab, positions = 96, 12288, 51200, 2048
    expected = 12 * layers * h * h + 13 * layers * h + (vocab + positions) * h + 2 * h
    assert total("gpt3-175b") == expected
    assert round(expected / 1e9) == 175


MODELS = (
    "tiny-llama", "tiny-llama-tied", "tiny-gpt2", "tiny-gemma", "tiny-mistral", "tiny-qwen2",
    "tiny-qwen3", "tiny-opt", "tiny-neox", "tiny-phi", "tiny-phi3",
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_every_operator_is_known_and_reads_what_is_there(name):
    graph = build_graph(load_model(name), 16)
    for block in graph.blocks.values():
        known = {n for n, t in block.tensors.items() if t.role in ("parameter", "feed")}
        known |= {block.input}
        for op in block.forward:
            assert op.family in FAMILIES
            assert set(op.inputs) <= known, f"{op} reads what comes later"
            assert op.group
            known |= set(op.outputs)
        assert known - {""} == set(block.tensors)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_an_initial_value(name):
    graph = build_graph(load_model(name), 16)
    for _, local in graph.parameters.values():
        assert graph.init[local][0] in ("normal", "constant")
    assert graph.init["final_norm"] == ("constant", 0.0 if name == "tiny-gemma" else 1.0)


def test_heads_are_real_dims():
    block = build_graph(load_model("llama-2-70b"), 16).blocks["layer"]
    assert block.tensors["w_q"].dims == ("g", "r", "d", "m")
    assert block.tensors["w_o"].dims == ("m", "g", "r", "d")
    assert block.hubs == ("x", "attention_norm.out", "attention", "mlp")


def test_families_differ_where_they_should():
    names = {name: build_graph(load_model(name), 16) for name in MODELS}
    families = {
        name: {op.family for block in graph.blocks.values() for op in block.forward}
        for name, graph in names.items()
    }
    assert {"rms_norm", "rotary", "gated"} <= families["tiny-llama"]
    assert {"layer_norm", "bias_add", "activation", "dropout"} <= families["tiny-gpt2"]
    assert "rotary" not in families["tiny-gpt2"]
    assert {"scale", "rotary", "gated"} <= families["tiny-gemma"]
    tied = {name for name, graph in names.items() if graph.tied}
    assert tied == {"tiny-llama-tied", "tiny-gpt2", "tiny-gemma", "tiny-qwen3", "tiny-opt"}
    assert names["tiny-gpt2"].tied == {"embedding": (0, 5)}


def layer_of(name: str):
    return build_graph(load_model(name), 16).blocks["layer"]


def test_parallel_branches_are_summed_before_they_are_reduced():
    """Both leave partial sums where weights split by rows; one group adds them as they are."""
    for name, norms in (("tiny-neox", 2), ("tiny-phi", 1)):
        block = layer_of(name)
        assert sum(op.family == "layer_norm" for op in block.forward) == norms
        both = block.producer["branches"]
        assert (both.inputs, both.group) == (("o", "down"), "branches")
        assert "attention" not in block.tensors
    readers = layer_of("tiny-phi").consumers["attention_norm.out"]
    assert {op.group for op in readers} == {"q", "kv", "up"}


def test_branches_with_a_dropout_each_join_one_after_the_other():
    config = replace(load_model("tiny-neox"), residual_dropout=0.1)
    block = build_graph(config, 16).blocks["layer"]
    assert "branches" not in block.groups
    assert {"attention_add", "mlp_add"} <= set(block.groups)


def test_head_norms_belong_to_the_projections():
    block = layer_of("tiny-qwen3")
    norms = {op.name: op for op in block.forward if op.outputs[0] in ("q_norm.out", "k_norm.out")}
    assert {op.group for op in norms.values()} == {"q", "kv"}
    assert block.tensors["q_norm"].dims == block.tensors["k_norm"].dims == ("d",)
    assert block.tensors["q_norm.rstd"].dims == ("b", "s", "g", "r")


def test_the_position_table_of_opt_starts_later():
    graph = build_graph(load_model("opt-6.7b"), 2048)
    assert graph.shape("embedding", "position_embedding") == (2050, 4096)
    assert graph.blocks["embedding"].producer["located"].attr("offset") == 2


def test_a_sequence_longer_than_the_position_table_is_refused():
    config = load_model("gpt2")
    build_graph(config, 1024)
    with pytest.raises(InputError, match="at most 1024"):
        build_graph(config, 1025)
