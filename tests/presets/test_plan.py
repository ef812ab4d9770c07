"""The law of familiar names: `describe(build_plan(pins)) == pins`; bad pins are all reported."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import prod
from random import Random

import pytest

from autoplan.describe import describe
from autoplan.errors import InputError
from autoplan.files.hf_config import load_model
from autoplan.files.stack import load_stack
from autoplan.frontends import build_graph, training_step
from autoplan.ir.machine import Hardware, Level, Stack
from autoplan.ir.plan import Plan
from autoplan.ir.workload import PRECISIONS, Workload
from autoplan.lower import lower
from autoplan.presets import DEGREES, build_plan, notes, parse_pins, spread_layers
from tests.generators import ADAMW, machine

MODELS = (
    "tiny-llama", "tiny-llama-tied", "tiny-gpt2", "tiny-gemma", "tiny-mistral", "tiny-qwen2",
    "tiny-qwen3", "tiny-opt", "tiny-neox", "tiny-phi", "tiny-phi3",
)  # fmt: skip
SEQ_LEN, BATCH = 32, 64
Pinned = dict[str, object]


@cache
def graph_of(model: str, trainable: str = "full"):
    return training_step(build_graph(load_model(model), SEQ_LEN), trainable)


def plan_of(model: str, pins: str, devices: int, stack: Stack | None = None, **more) -> Plan:
    workload = Workload("train", more.pop("batch", BATCH), SEQ_LEN, PRECISIONS["bf16_mixed"], ADAMW)
    around = machine(devices), stack or Stack("toy")
    return build_plan(graph_of(model), load_model(model), around, workload, parse_pins([pins]))


def random_pins(rng: Random) -> Pinned:
    """Pins that mean something together: what no axis could show is left out."""
    pins: Pinned = {key: rng.choice((1, 1, 1, 2, 4)) for key in DEGREES}
    above = [key for key in DEGREES if pins[key] != 1]
    pins["order"] = "-".join(rng.sample(above, len(above)))
    if pins["tp"] != 1:
        pins["vocab"] = rng.random() < 0.6
    if pins["tp"] != 1 or pins["tp2"] != 1:
        pins["sp"] = rng.random() < 0.6
    if pins["dp"] != 1 or pins["cp"] != 1:
        pins["zero"] = rng.randrange(4)
    pins["micro_batch"] = rng.choice((1, 2))
    pins["schedule"], pins["recompute"] = (
        rng.choice(("gpipe", "1f1b")),
        rng.choice(("none", "full")),
    )
    if pins["pp"] == 2:
        pins["layers_per_stage"] = rng.choice(((2, 2), (3, 1), (1, 3)))
        if rng.random() < 0.4:
            pins |= {"vpp": 2, "schedule": "interleaved"}
            pins["layers_per_stage"] = rng.choice(((1, 1, 1, 1), (0, 1, 2, 1), (1, 1, 2, 0)))
    return pins


def text_of(pins: Pinned) -> str:
    def value(v: object) -> str:
        return "+".join(map(str, v)) if isinstance(v, tuple) else str(v).lower()

    return ",".join(f"{key}={value(v)}" for key, v in pins.items() if v != "")


def test_describe_gives_the_pins_back():
    rng, refused, kept = Random(0), Counter(), 0
    for index in range(400):
        pins = random_pins(rng)
        devices = prod(pins[key] for key in DEGREES)
        if devices > 16:
            continue
        model = MODELS[index % len(MODELS)]
        try:
            plan = plan_of(model, text_of(pins), devices)
        except InputError as error:
            refused[str(error)] += 1
            continue
        found = describe(graph_of(model), plan)
        found["layers_per_stage"] = tuple(found["layers_per_stage"])
        assert {key: found[key] for key in pins} == pins, f"{model}: {text_of(pins)}"
        assert not found["mixed"]
        kept += 1
    assert kept >= 200
    assert all("heads, allowed: tp in {1, 2}" in reason for reason in refused), refused


@pytest.mark.parametrize("model", MODELS)
def test_described_plans_lower(model):
    rng, lowered = Random(model), 0
    while lowered < 6:
        pins = random_pins(rng)
        devices = prod(pins[key] for key in DEGREES)
        if devices > 8:
            continue
        try:
            plan = plan_of(model, text_of(pins), devices)
        except InputError:
            continue
        assert len(lower(graph_of(model), plan).ranks) == devices
        lowered += 1


def test_what_is_not_pinned_comes_from_the_stack():
    stack = load_stack("autoplan")
    found = describe(graph_of("tiny-llama"), plan_of("tiny-llama", "tp=2", 4, stack))
    assert (found["dp"], found["zero"], found["sp"]) == (2, 1, True)
    assert (found["schedule"], found["recompute"]) == ("1f1b", "none")


def test_heads_split_within_groups_where_groups_do_not_divide():
    """One key head for eight ranks: they split its queries, and make keys of positions."""
    config = load_model("gemma-2b")
    graph = training_step(build_graph(config, SEQ_LEN))
    workload = Workload("train", 8, SEQ_LEN, PRECISIONS["fp32"], ADAMW)
    around = machine(8), Stack("toy")
    plan = build_plan(graph, config, around, workload, parse_pins(["tp=8"]))
    assert plan.strategies["layer"].splits["q"] == ("r",)
    assert plan.strategies["layer"].splits["kv"] == ("s",)
    assert describe(graph, plan)["tp"] == 8


@pytest.mark.parametrize(("model", "gathers"), [("tiny-neox", 2), ("tiny-phi", 1)])
def test_parallel_branches_are_reduced_at_once(model, gathers):
    """Both branches' partial sums meet first; branches that share a norm share its gather too."""
    program = lower(graph_of(model), plan_of(model, "tp=2,zero=0", 2))
    kinds = Counter(instr.op for instr in program.stages[0].segments["layer/F"].code)
    assert (kinds["reduce_scatter"], kinds["all_gather"]) == (1, gathers)
    whole = lower(graph_of(model), plan_of(model, "tp=2,zero=0,sp=false", 2))
    kinds = Counter(instr.op for instr in whole.stages[0].segments["layer/F"].code)
    assert kinds["all_reduce"] == 1


def test_head_norms_follow_their_projections():
    splits = plan_of("tiny-qwen3", "tp=2", 2).strategies["layer"].splits
    assert (splits["q"], splits["kv"]) == (("g",), ("g",))
    assert not {"q_norm", "k_norm"} & set(splits)


def test_axes_are_named_after_the_levels_they_run_over():
    hardware = machine(2)
    levels = (Level("gpu", 4, 1e10, 1e-5), Level("node", 2, 1e9, 1e-5))
    around = type(hardware)("toy", hardware.device, levels, hardware.host), Stack("toy")
    workload = Workload("train", BATCH, SEQ_LEN, PRECISIONS["fp32"], ADAMW)
    pins = parse_pins(["tp=2,dp=4"])
    plan = build_plan(graph_of("tiny-llama"), load_model("tiny-llama"), around, workload, pins)
    named = [(axis.name, axis.size, axis.stride) for axis in plan.stages[0].mesh.axes]
    assert named == [("gpu", 2, 1), ("node+gpu", 4, 2)]


def test_state_splits_over_as_many_replicas_as_divide():
    """Six replicas of a width of 64: pairs hold the state, three of them."""
    plan = plan_of("tiny-llama", "dp=6,zero=3", 6, batch=6)
    assert plan.stages[0].mesh.sizes == (3, 2)
    found = describe(graph_of("tiny-llama"), plan)
    assert (found["dp"], found["zero"]) == (6, 3)
    assert list(found["zero_axes"].values()) == [3]
    assert len(lower(graph_of("tiny-llama"), plan).ranks) == 6
    assert plan_of("tiny-llama", "dp=6,zero=0", 6, batch=6).stages[0].mesh.sizes == (6,)


@pytest.mark.parametrize(
    ("pins", "inside"),
    [("dp=8,zero=3", 4), ("tp=2,dp=4,zero=3", 2), ("dp=8,zero=1", 4), ("tp=4,dp=2,zero=3", 2)],
)
def test_a_stack_may_split_state_inside_nodes_only(pins, inside):
    """Two nodes of four devices; where a replica fills a node, state is split over all of them."""
    toy, levels = machine(4), (Level("gpu", 4, 1e10, 1e-5), Level("node", 2, 1e9, 1e-5))
    around = Hardware("toy", toy.device, levels, toy.host, {}, 4)
    workload = Workload("train", BATCH, SEQ_LEN, PRECISIONS["bf16_mixed"], ADAMW)
    graph, config = graph_of("tiny-gpt2"), load_model("tiny-gpt2")
    found = []
    for habits in ((), ("split_in_node",)):
        stack = Stack("toy", habits=habits)
        plan = build_plan(graph, config, (around, stack), workload, parse_pins([pins]))
        names = {axis.name: axis for axis in plan.stages[0].mesh.axes}
        told = describe(graph, plan)
        wanted = parse_pins([pins])
        assert {key: told[key] for key in wanted} == {k: pin.single for k, pin in wanted.items()}
        assert len(lower(graph, plan).ranks) == 8
        found.append([names[name] for name in told["zero_axes"]])
    (everywhere,), (here,) = found
    assert everywhere.size == int(pins[pins.index("dp=") + 3])
    assert here.size == inside
    assert here.size * here.stride <= 4 or everywhere == here


def test_the_stages_of_an_uneven_model_differ_by_one_layer():
    assert spread_layers(10, 4) == (3, 3, 2, 2)
    assert spread_layers(4, 4) == (1, 1, 1, 1)
    assert spread_layers(10, 4, last=True) == (2, 2, 3, 3)


BAD = {
    "degrees that do not multiply": ("dp=3", 4, 1),
    "degrees beyond the machine": ("tp=4,pp=2", 4, 1),
    "a head count that does not divide": ("tp=8", 8, 1),
    "more stages than layers": ("pp=8", 8, 1),
    "layers that do not add up": ("pp=2,layers_per_stage=3+2", 2, 1),
    "a count of stages that differs": ("pp=2,layers_per_stage=2+1+1", 2, 1),
    "a stage without layers or ends": ("pp=3,dp=1,layers_per_stage=2+0+2", 3, 1),
    "a batch that does not divide": ("dp=2,micro_batch=5", 2, 1),
    "several values": ("tp=1|2,zero=0|1", 2, 2),
    "three at once": ("dp=3,pp=8,layers_per_stage=1+1", 4, 2),
    "chunks on one stage": ("vpp=2", 1, 1),
    "more chunks than layers": ("pp=2,vpp=4", 2, 1),
    "layers of stages, not of chunks": ("pp=2,vpp=2,layers_per_stage=2+2", 2, 1),
    "a chunk without blocks": ("pp=2,vpp=2,layers_per_stage=2+0+1+1", 2, 1),
    "chunks in another schedule": ("pp=2,vpp=2,schedule=1f1b", 2, 1),
    "micro-batches that are no whole turns": ("pp=3,vpp=2,micro_batch=4", 3, 1),
    "turns, a schedule and layers": ("pp=3,vpp=3,micro_batch=4,schedule=gpipe", 3, 3),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_pins_are_reported(what):
    pins, devices, least = BAD[what]
    with pytest.raises(InputError) as caught:
        lower(graph_of("tiny-llama"), plan_of("tiny-llama", pins, devices))
    assert len(caught.value.problems) >= least
    assert all(problem.found and problem.allowed for problem in caught.value.problems)


def test_chunks_alone_imply_their_schedule():
    found = describe(graph_of("tiny-llama"), plan_of("tiny-llama", "pp=2,vpp=2", 2))
    assert (found["vpp"], found["schedule"]) == (2, "interleaved")
    assert found["layers_per_stage"] == [1, 1, 1, 1]
    one = describe(graph_of("tiny-llama"), plan_of("tiny-llama", "pp=2,schedule=interleaved", 2))
    assert (one["vpp"], one["schedule"]) == (1, "1f1b")


def test_chunk_c_of_stage_s_is_virtual_stage_c_p_plus_s():
    plan = plan_of("tiny-llama", "pp=2,vpp=2,layers_per_stage=0+1+2+1", 2)
    runs = [[(run.strategy, run.count, run.chunk) for run in stage.runs] for stage in plan.stages]
    assert runs == [
        [("embedding", 1, 0), ("layer", 2, 1)],
        [("layer", 1, 0), ("layer", 1, 1), ("head", 1, 1)],
    ]


def test_turns_that_do_not_divide_name_the_micro_batches_that_do():
    with pytest.raises(InputError) as caught:
        plan_of("tiny-llama", "pp=2,vpp=2,micro_batch=2", 2, batch=10)
    (problem,) = caught.value.problems
    assert (problem.field, problem.found) == ("micro_batch", "2, so 5 micro-batches")
    assert "micro_batch in {1, 5, 10}" in problem.allowed


def test_a_stack_without_interleaving_refuses_chunks():
    stack = Stack("plain", restricts={"schedule": ("gpipe", "1f1b")})
    with pytest.raises(InputError, match="1 on stack plain, whose schedules are gpipe, 1f1b"):
        plan_of("tiny-llama", "pp=2,vpp=2", 2, stack)


ALTERNATING = Stack("other", habits=("selective_alternate",))


@pytest.mark.parametrize(
    ("pins", "devices", "again"),
    [
        ("recompute=selective", 1, [[0, 1, 0, 1]]),
        ("pp=2,layers_per_stage=3+1,recompute=selective", 2, [[0, 1, 0], [0]]),
        ("pp=2,vpp=2,layers_per_stage=1+1+1+1,recompute=selective", 2, [[0, 1], [0, 1]]),
    ],
)
def test_selective_is_every_second_layer_of_a_stage_where_the_stack_says_so(pins, devices, again):
    plan = plan_of("tiny-llama", pins, devices, ALTERNATING)
    found = [
        [run.recompute for run in stage.runs if run.strategy == "layer" for _ in range(run.count)]
        for stage in plan.stages
    ]
    assert found == again
    assert describe(graph_of("tiny-llama"), plan)["recompute"] == "selective"
    assert not notes(parse_pins([pins]), ALTERNATING)


def test_selective_is_none_where_it_would_recompute_scores():
    plan = plan_of("tiny-llama", "recompute=selective", 1)
    assert plan == plan_of("tiny-llama", "recompute=none", 1)
    assert describe(graph_of("tiny-llama"), plan)["recompute"] == "none"
    assert notes(parse_pins(["recompute=selective"]), Stack("toy")) == (
        "recompute=selective is none: attention keeps no scores",
    )


def test_a_stack_restricts_pins():
    with pytest.raises(InputError, match="on stack megatron") as caught:
        plan_of("tiny-llama", "zero=3,tp2=2,dp=1", 2, load_stack("megatron"))
    assert len(caught.value.problems) == 2
