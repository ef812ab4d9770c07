"""Laws: backward computes the gradients that are wanted, and no others."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.files.hf_config import load_model
from autoplan.frontends import build_graph, training_step
from autoplan.ir.graph import GRADIENT
from autoplan.ops import FAMILIES

MODELS = ("tiny-llama", "tiny-llama-tied", "tiny-gpt2", "tiny-gemma")
PATTERNS = (
    "full",
    "norm",
    r"layers\.2\.",
    "w_(up|q)$",
    "embedding",
    "final_norm",
    r"layers\.0\.w_o",
)


def step(name: str, trainable: str = "full"):
    return training_step(build_graph(load_model(name), 16), trainable)


def backwards(graph):
    """Blocks of the instances that have a backward, by index."""
    blocks = [graph.blocks[instance.block] for instance in graph.instances]
    return {index: block for index, block in enumerate(blocks) if block.backward}


@pytest.mark.parametrize("trainable", PATTERNS)
@pytest.mark.parametrize("name", MODELS)
def test_backward_is_well_formed(name, trainable):
    for block in step(name, trainable).blocks.values():
        known = set(block.parameters) | {GRADIENT + block.output, block.input, "count"}
        known |= {n for n, t in block.tensors.items() if t.role == "feed"}
        known |= {out for op in block.forward for out in op.outputs}
        groups = set(block.groups)
        for op in block.backward:
            assert op.family in FAMILIES
            assert set(op.inputs) <= known, f"{op} reads what is not there"
            assert not known.intersection(op.outputs), f"{op} defines again"
            assert op.group in groups or op.name.startswith("sum.")
            known |= set(op.outputs)
            for output in op.outputs:
                tensor = block.tensors[output]
                assert tensor.role in ("gradient", "parameter_gradient")
        gradients = {n for n, t in block.tensors.items() if t.role == "parameter_gradient"}
        assert gradients == {GRADIENT + n for n in block.trainable}
        assert (GRADIENT + block.input in known) == block.passes_gradient


@pytest.mark.parametrize("name", MODELS)
def test_full_training_has_one_variant_of_each_block(name):
    graph = step(name)
    assert set(graph.blocks) == {"embedding", "layer", "head"}
    for block in graph.blocks.values():
        assert block.trainable == block.parameters
        assert block.passes_gradient == (block.name != "embedding")


def test_backward_stops_below_the_first_trainable_parameter():
    graph = step("tiny-llama", r"layers\.2\.w_up")
    found = backwards(graph)
    assert set(found) == {3, 4, 5}, "layer 2, layer 3 and the head"
    assert not found[3].passes_gradient
    assert found[3].trainable == ("w_up",)
    assert found[4].passes_gradient
    assert found[4].trainable == ()
    assert [op.family for op in found[3].backward if "attention" in op.family] == []


def test_frozen_parameters_have_no_weight_gradient():
    """Layers above a trainable embedding pass the gradient on and do nothing else."""
    graph = step("tiny-llama", "^embedding$")
    families = {op.family for op in graph.blocks["layer"].backward}
    assert families.isdisjoint({"linear_dw", "rms_norm_dw"})
    assert {"linear_dx", "rms_norm_dx", "attention_grad"} <= families
    assert [op.family for op in graph.blocks["embedding"].backward] == ["embedding_grad"]


def test_instances_that_differ_in_what_is_frozen_get_variants():
    graph = step("tiny-llama", r"layers\.[13]\.")
    names = [instance.block for instance in graph.instances]
    frozen_first, trainable_first, frozen_later, trainable_later = names[1:5]
    assert len({frozen_first, trainable_first, frozen_later, trainable_later}) == 4
    assert not graph.blocks[frozen_first].backward
    assert graph.blocks[frozen_later].backward


def test_a_tied_parameter_gets_a_gradient_from_every_use():
    graph = step("tiny-llama-tied", "^embedding$")
    assert graph.tied == {"embedding": (0, 5)}
    for index in (0, 5):
        assert graph.blocks[graph.instances[index].block].trainable == ("embedding",)


def test_contributions_to_a_hub_are_added_up():
    block = step("tiny-llama").blocks["layer"]
    sums = [op for op in block.backward if not op.group]
    assert {op.outputs[0] for op in sums} == {
        "d.attention_norm.out", "d.attention_norm.out+2", "d.mlp_norm.out", "d.attention", "d.x",
    }  # fmt: skip


def test_dropout_draws_the_same_mask_in_backward():
    block = step("tiny-gpt2").blocks["layer"]
    forward = {op.attr("key") for op in block.forward if op.family == "dropout"}
    backward = {op.attr("key") for op in block.backward if op.family == "dropout"}
    assert forward == backward
    assert len(forward) == 2


def test_gpt2_gradients_of_biases():
    graph = step("tiny-gpt2", "b_")
    for index in range(1, 5):
        block = graph.blocks[graph.instances[index].block]
        grads = [op.outputs[0] for op in block.backward if op.family == "bias_grad"]
        assert set(grads) == {GRADIENT + name for name in block.trainable}


def test_gemma_scales_the_gradient_of_the_embedding():
    block = step("tiny-gemma").blocks["embedding"]
    assert [op.family for op in block.backward] == ["scale", "embedding_grad"]
    assert block.backward[0].attr("factor") == block.forward[1].attr("factor")


@pytest.mark.parametrize("pattern", ["nothing_like_this", "("])
def test_a_pattern_that_is_wrong_or_matches_nothing_is_refused(pattern):
    with pytest.raises(InputError, match="trainable"):
        step("tiny-llama", pattern)
