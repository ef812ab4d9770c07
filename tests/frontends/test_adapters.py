"""Laws: adapters are what their text says, they alone train, and the model stays as it is."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.files.hf_config import load_model
from autoplan.frontends import build_graph, training_step
from autoplan.ir.adapter import TARGETS, Lora, parse_lora

ALL = f"lora:r=4,targets={'|'.join(TARGETS)},alpha=8"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lora", Lora()),
        ("lora:", Lora(16, ("q", "v"), 32.0)),
        ("lora: alpha=1e1, r=8 ,targets=v|Q|v", Lora(8, ("q", "v"), 10.0)),
        (ALL, Lora(4, TARGETS, 8.0)),
        ("full", None),
        (r"layers\.1\.lora", None),
    ],
)
def test_text_means(text, expected):
    assert parse_lora(text) == expected
    if expected:
        assert parse_lora(str(expected)) == expected


def test_all_problems_are_told_at_once():
    with pytest.raises(InputError) as caught:
        parse_lora("lora:r=0,targets=q|gat,alpha=inf,rank=3,r=4,nothing")
    text = str(caught.value)
    assert len(caught.value.problems) == 6
    assert "did you mean `gate`?" in text
    for found in ("`r=0`", "`alpha=inf`", "`rank=3`", "`r=4`", "`nothing`"):
        assert found in text


def test_a_model_without_gate_has_no_adapter_there():
    with pytest.raises(InputError, match="has none"):
        build_graph(load_model("tiny-gpt2"), 16, Lora(4, ("gate",)))


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gpt2"])
def test_only_adapters_train(name):
    config = load_model(name)
    targets = tuple(t for t in TARGETS if config.gated or t != "gate")
    lora = Lora(4, targets)
    plain, adapted = build_graph(config, 16), build_graph(config, 16, lora)
    added = set(adapted.parameters) - set(plain.parameters)
    assert set(plain.parameters) < set(adapted.parameters)
    assert len(added) == 2 * len(targets) * config.layers
    graph = training_step(adapted, str(lora))
    trained = {
        instance.prefix + local
        for instance in graph.instances
        for local in graph.blocks[instance.block].trainable
    }
    assert trained == added
    # Backward begins in the head, which has nothing to train, and ends in the first layer.
    first, last = (graph.blocks[graph.instances[i].block] for i in (0, -1))
    assert not first.backward
    assert last.passes_gradient
    assert not graph.blocks[graph.instances[1].block].passes_gradient


def test_size_of_the_published_example():
    """GPT-3 with r = 4 on queries and values: 18.9 million. Source: Hu et al. 2021, table 4 (r = 1:
    4.7 million)."""
    config = load_model("gpt3-175b")
    before, after = (
        build_graph(config, 16, lora).parameters_total for lora in (None, Lora(4, ("q", "v")))
    )
    assert after - before == 2 * 96 * 2 * 4 * 12288
    assert round((after - before) / 1e5) == 189
