"""Laws: familiar names are read off placements alone, whoever made the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.describe import axis_roles, describe
from autoplan.ir.plan import Run, StagePlan
from tests.plans import TINY_GPT, TINY_LLAMA, Choices, make_graph, make_plan

LLAMA = make_graph()


def described(axes=(), **more):
    return describe(LLAMA, make_plan(LLAMA, TINY_LLAMA, Choices(axes, **more)))


def test_one_device_has_no_roles():
    found = described()
    assert [found[key] for key in ("dp", "tp", "tp2", "cp", "pp")] == [1] * 5
    assert (found["zero"], found["order"], found["vocab"]) == (0, "", False)
    assert "replicated" not in found


@pytest.mark.parametrize(("kind", "zero"), [("batch", 0), ("sharded", 1), ("gathered", 3)])
def test_splitting_sequences_is_data_parallel(kind, zero):
    found = described((kind, kind))
    assert (found["dp"], found["tp"], found["zero"]) == (4, 1, zero)
    assert found["zero_axes"] == ({"gpu.0": zero, "gpu.1": zero} if zero else {})
    assert found["micro_batch"] == 1


def test_splitting_heads_is_tensor_parallel():
    found = described(("batch", "heads"))
    assert (found["dp"], found["tp"]) == (2, 2)
    assert found["vocab"]
    assert not found["sp"], "norms of this plan do the same work on every rank"
    assert found["order"] == "tp-dp"


def test_stages_and_schedule():
    found = described(stages=2, micro_batches=4, family="gpipe", recompute=True)
    assert (found["pp"], found["schedule"], found["recompute"]) == (2, "gpipe", "full")
    assert (found["layers_per_stage"], found["micro_batches"]) == ([1, 1], 4)


def test_parts_that_differ_are_named_by_role():
    """Attention splits heads where the feed-forward splits sequences."""
    plan = make_plan(LLAMA, TINY_LLAMA, Choices(("heads",)))
    layer = plan.strategies["layer"]
    splits = {**layer.splits, "up": ("b",), "act": ("b",), "down": ("b",)}
    plan = replace(plan, strategies={**plan.strategies, "layer": replace(layer, splits=splits)})
    found = describe(LLAMA, plan)
    assert found["tp"] == {"attention": 2, "mlp": 1}
    assert found["dp"] == {"attention": 1, "mlp": 2}


def test_an_axis_that_does_nothing_is_said_so():
    plan = make_plan(LLAMA, TINY_LLAMA, Choices(("heads",)))
    layer = plan.strategies["layer"]
    splits = dict.fromkeys(layer.splits, (None,))
    plan = replace(plan, strategies={**plan.strategies, "layer": replace(layer, splits=splits)})
    assert describe(LLAMA, plan)["replicated"] == 2


def test_the_dims_decide_the_role():
    layer = make_plan(LLAMA, TINY_LLAMA, Choices(("heads",))).strategies["layer"]
    rows = {"b": "dp", "s": "cp", "g": "tp", "r": "tp", "m": "tp2", None: "replicated"}
    for choice, role in rows.items():
        strategy = replace(layer, splits={**layer.splits, "q": (choice,), "o": (choice,)})
        assert axis_roles(strategy, ("q", "attention", "o")) == (role,)


def test_recompute_of_some_layers_is_counted():
    plan = make_plan(LLAMA, TINY_LLAMA, Choices())
    runs = Run("embedding", 1), Run("layer", 1, True), Run("layer", 1), Run("head", 1)
    plan = replace(plan, stages=(StagePlan(plan.stages[0].mesh, runs),))
    assert describe(LLAMA, plan)["recompute"] == "full:1/2"


def test_strategies_that_differ_are_mixed():
    plan = make_plan(LLAMA, TINY_LLAMA, Choices())
    runs = Run("embedding", 1), Run("layer", 1), Run("layer#2", 1), Run("head", 1)
    strategies = {**plan.strategies, "layer#2": plan.strategies["layer"]}
    stages = (StagePlan(plan.stages[0].mesh, runs),)
    assert describe(LLAMA, replace(plan, strategies=strategies, stages=stages))["mixed"]


def test_a_frozen_layer_has_no_sharded_state():
    choices = Choices(("batch",), trainable="^head$")
    graph = make_graph(TINY_LLAMA, choices)
    assert describe(graph, make_plan(graph, TINY_LLAMA, choices))["zero"] == 0


def test_gpt_reads_alike():
    graph = make_graph(TINY_GPT)
    found = describe(graph, make_plan(graph, TINY_GPT, Choices(("sharded", "heads"), 2)))
    assert {key: found[key] for key in ("dp", "tp", "pp", "zero")} == {
        "dp": 2, "tp": 2, "pp": 2, "zero": 1,
    }  # fmt: skip
