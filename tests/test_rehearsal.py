"""The law of rehearsal: the same roles, small enough to run here, and it matches the reference."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random

import pytest

from autoplan.describe import describe
from autoplan.files.hf_config import load_model
from autoplan.files.machine_spec import load_hardware
from autoplan.files.stack import load_stack
from autoplan.frontends import step_graph
from autoplan.ir.graph import Graph
from autoplan.ir.plan import Plan, Run
from autoplan.ir.workload import PRECISIONS, Workload
from autoplan.lower import lower
from autoplan.lower.check import check
from autoplan.presets import DEGREES, build_plan, parse_pins
from autoplan.rehearsal import MOST_RANKS, rehearse
from autoplan.runtime.data import Batches, Shape, SyntheticBatches
from autoplan.runtime.documents import DocumentBatches
from autoplan.runtime.execute import execute, whole_records
from autoplan.runtime.session import Settings
from autoplan.runtime.verify import Trial, verify
from tests.generators import ADAMW, sample

FLAGS = ("sp", "zero", "vocab", "schedule", "recompute", "order", "mixed")

PLANS = {
    "small": ("llama-2-7b", "a100-80g:1", "", "full"),
    "rows": ("llama-2-13b", "rtx4090:64", "tp=2,pp=8", "full"),
    "512 devices": ("llama-3.1-70b", "h100-80g:512", "dp=8,tp=8,pp=8,zero=2", "full"),
    "1024 devices": (
        "gpt3-175b", "a100-80g:1024", "tp=8,pp=16,recompute=full,schedule=gpipe", "full",
    ),
    "one key head": ("gemma-2b", "a100-80g:8", "tp=8", "full"),
    "a grid": ("gemma-7b", "a100-80g:16", "tp=4,tp2=2,zero=3", "full"),
    "heads within groups": ("llama-3.1-405b", "h100-80g:128", "tp=16,pp=8", "full"),
    "positions": ("llama-2-7b", "a100-80g:32", "cp=2,dp=8,pp=2,zero=3,order=dp-pp-cp", "full"),
    "three axes and stages": (
        "llama-2-7b", "a100-80g:16", "cp=2,tp=2,dp=2,pp=2,zero=3,order=dp-tp-pp-cp", "full",
    ),
    "tied": ("llama-3.2-1b", "a100-80g:8", "dp=4,pp=2,zero=3,micro_batch=4", "full"),
    "dropout": ("gpt2", "rtx4090:8", "dp=4,pp=2", "full"),
    "upper layers": ("llama-2-7b", "a100-80g:8", "pp=8", r"layers\.(2[0-9]|3[01])\."),
    "norms, uneven": ("llama-2-7b", "a100-80g:16", "pp=4,layers_per_stage=9+9+8+6", "norm"),
    "a window": ("mistral-7b", "a100-80g:8", "cp=2,tp=2,dp=2,zero=3", "full"),
    "parallel branches": ("gpt-neox-20b", "a100-80g:16", "tp=4,pp=4", "full"),
    "rows before the first position": ("opt-6.7b", "a100-80g:8", "dp=8,zero=3", "full"),
    "head norms": ("qwen3-8b", "a100-80g:8", "tp=8", "full"),
    "adapters": ("llama-2-7b", "a100-80g:16", "tp=4,dp=2,pp=2,zero=3", "lora:targets=q|v|down"),
    "chunks": ("llama-2-13b", "a100-80g:64", "dp=2,tp=4,pp=8,vpp=5,zero=2", "full"),
    "chunks of two stages": ("llama-2-7b", "a100-80g:4", "tp=2,pp=2,vpp=2", "full"),
    "chunks, upper layers": (
        "llama-2-7b", "a100-80g:4", "pp=4,vpp=4", r"layers\.(2[0-9]|3[01])\.",
    ),
    "plain": ("tiny-llama", "cpu-host:2", "tp=2,sp=false,vocab=false", "full"),
}  # fmt: skip


def make(model: str, machine: str, pins: str, trainable: str) -> tuple[Graph, Plan]:
    config, seq_len = load_model(model), 64
    workload = Workload("train", 1024, seq_len, PRECISIONS["bf16_mixed"], ADAMW, trainable)
    graph = step_graph(config, workload)
    around = load_hardware(machine), load_stack("autoplan")
    return graph, build_plan(graph, config, around, workload, parse_pins([pins]))


def graph_of(plan: Plan) -> Graph:
    return step_graph(plan.model, plan.workload)


def run(plan: Plan) -> None:
    """Lower, check, run one step in lock-step and compare with the reference."""
    graph = graph_of(plan)
    program = lower(graph, plan)
    check(program)
    assert program.ranks == tuple(range(plan.hardware.count))
    workload = plan.workload
    shape = Shape(workload.global_batch_size, workload.seq_len, graph.extent["v"])
    batches: Batches = SyntheticBatches(shape, 0)
    if workload.lengths:
        batches = DocumentBatches(batches, workload.lengths, 0)
    result = execute(program, graph, Settings(1, workload.seed, batches))
    verify(Trial(graph, workload, batches), *whole_records(result)).raise_if_failed()


@pytest.mark.parametrize("name", PLANS)
def test_roles_stay_and_the_run_matches(name):
    graph, plan = make(*PLANS[name])
    small = rehearse(plan)
    before, after = describe(graph, plan), describe(graph_of(small), small)
    assert {key: after[key] for key in FLAGS} == {key: before[key] for key in FLAGS}
    for key in (*DEGREES, "vpp"):
        assert (after[key] > 1) == (before[key] > 1), key
        assert after[key] <= before[key]
    assert small.hardware.count <= MOST_RANKS
    assert small.workload.precision.name == "fp64"
    assert small.model.layers <= plan.model.layers
    assert small.model.hidden <= plan.model.hidden
    run(small)


def test_shapes_keep_their_kind():
    """One head stays one, groups of several queries stay such, a square model stays square."""
    for name in ("one key head", "heads within groups", "512 devices"):
        _, plan = make(*PLANS[name])
        old, new = plan.model, rehearse(plan).model
        assert (old.kv_heads == 1) == (new.kv_heads == 1)
        assert (old.heads > old.kv_heads) == (new.heads > new.kv_heads)
        assert (old.hidden == old.heads * old.head_dim) == (new.hidden == new.heads * new.head_dim)


def test_layers_that_alternate_do_so_once_and_chunks_stay_two():
    config = load_model("llama-2-7b")
    workload = Workload("train", 64, 64, PRECISIONS["bf16_mixed"], ADAMW)
    graph = step_graph(config, workload)
    stack = replace(load_stack("autoplan"), habits=("selective_alternate",))
    pins = parse_pins(["pp=4,vpp=4,recompute=selective"])
    small = rehearse(
        build_plan(graph, config, (load_hardware("a100-80g:4"), stack), workload, pins)
    )
    found = describe(graph_of(small), small)
    assert (found["pp"], found["vpp"], found["recompute"]) == (2, 2, "selective")
    assert found["layers_per_stage"] == [2, 2, 2, 2]
    run(small)


def test_four_axes_and_two_stages_need_more_than_the_limit():
    _, plan = make("llama-2-7b", "a100-80g:32", "dp=2,cp=2,tp=2,tp2=2,pp=2", "full")
    assert rehearse(plan).hardware.count == 32


def with_mixed_recompute(plan: Plan) -> Plan:
    """Every stage but the last computes its first layers again; stage 5 all of them."""
    stages = list(plan.stages)
    for number, stage in enumerate(stages[:-1]):
        runs = []
        for entry in stage.runs:
            if entry.strategy != "layer" or entry.count < 2:
                runs.append(replace(entry, recompute=number == 5 and entry.strategy == "layer"))
                continue
            again = entry.count if number == 5 else 1
            parts = (Run("layer", again, True), Run("layer", entry.count - again, False))
            runs += [part for part in parts if part.count]
        stages[number] = replace(stage, runs=tuple(runs))
    return replace(plan, stages=tuple(stages))


def test_the_most_varied_stages_are_kept():
    _, plan = make("llama-2-13b", "rtx4090:64", "tp=2,pp=8", "full")
    small = rehearse(with_mixed_recompute(plan))
    kept = [tuple((r.strategy, r.recompute) for r in stage.runs) for stage in small.stages]
    assert kept == [
        (("embedding", False), ("layer", True), ("layer", False)),
        (("layer", True), ("layer", False)),
        (("layer", True),),
        (("layer", False), ("head", False)),
    ]
    run(small)


@pytest.mark.parametrize("seed", range(200, 212))
def test_random_plans_are_rehearsed(seed):
    """Whatever lowering accepts, of any shape: homes that differ, mixed stages, odd axes."""
    plan = sample(Random(seed)).plan
    small = rehearse(plan)
    assert len(small.stages) >= min(2, len(plan.stages))
    assert {r.strategy for s in small.stages for r in s.runs} == set(small.strategies)
    assert prod(axis.size for axis in small.stages[0].mesh.axes) <= 8
    run(small)
