"""What people have named comes out by itself, on machines and workloads stated here.

Two layers of real widths; every number of the machines is in this file, so that profiles may
change. Source of where each is the optimum: Narayanan et al. 2021 (columns, then rows, inside a
node), Korthikanti et al. 2022 (norms on split positions), Rajbhandari et al. 2020 (optimizer,
gradients, parameters split), Xu et al. 2021, GSPMD (both dims of a weight over a grid of devices).
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.describe import describe
from autoplan.frontends import build_graph, training_step
from autoplan.ir.layout import B, Layout, Mesh, P, S
from autoplan.ir.machine import Device, Hardware, Host, Level, name_axes
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Plan
from autoplan.ir.program import COLLECTIVES
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.lower import lower
from autoplan.presets import parse_pins
from autoplan.search import Ranked, Request, search
from autoplan.search.candidates import Shape
from autoplan.search.engine import Limit
from autoplan.search.outer import Search
from tests.search.cases import FREE, HYPER, stack

GIB = 1 << 30
LIKE_A100 = Device(
    "like-a100",
    80 * GIB,
    {"bf16": 312e12, "fp32": 19.5e12},
    312e12,
    2e12,
    0.8,
    2.5e9,
    0.31,
    0.85,
    4.5e-6,
)
GPT3 = DecoderConfig(
    "gpt2", "gpt3-width", hidden=12288, layers=2, heads=96, kv_heads=96, head_dim=128, ffn=49152,
    vocab=51200, max_positions=2048, norm="layer_norm", activation="gelu_tanh", gated=False,
    qkv_bias=True, output_bias=True, mlp_bias=True, rope_theta=None, learned_positions=True,
)  # fmt: skip
LLAMA_13B = DecoderConfig(
    "llama", "13b-width", hidden=5120, layers=2, heads=40, kv_heads=40, head_dim=128, ffn=13824,
    vocab=32000, max_positions=4096,
)  # fmt: skip


def node(devices: int, bandwidth: float, latency: float, gib: float) -> Hardware:
    """Devices that all reach each other alike."""
    kind = replace(LIKE_A100, memory=int(gib * GIB))
    level = Level("gpu", devices, bandwidth, latency, efficiency=0.8)
    return Hardware("stated", kind, (level,), Host(1 << 40, 64, 25e9), devices_per_node=devices)


def question(
    config: DecoderConfig, hardware: Hardware, batch: int, seq_len: int, pins: tuple[str, ...] = ()
) -> Request:
    """How to train it in mixed precision with AdamW."""
    graph = training_step(build_graph(config, seq_len))
    workload = Workload(
        "train", batch, seq_len, PRECISIONS["bf16_mixed"], Optimizer("adamw", HYPER)
    )
    return Request(graph, config, hardware, stack(floor=5e-4), workload, parse_pins(pins))


def best(asked: Request) -> tuple[Plan, dict[str, object]]:
    """The fastest plan, and what people call it."""
    plan = search(asked).plans[0].plan
    return plan, describe(asked.graph, plan)


def test_columns_then_rows_with_norms_on_split_positions():
    """One sequence of 2048 on eight devices; memory has little room beside split weights."""
    asked = question(GPT3, node(8, 700e9, 2e-5, 12.4), 1, 2048)
    plan, words = best(asked)
    assert {key: words[key] for key in ("tp", "tp2", "cp", "dp", "pp", "sp")} == {
        "tp": 8, "tp2": 1, "cp": 1, "dp": 1, "pp": 1, "sp": True
    }  # fmt: skip
    layer = plan.strategies["layer"]
    assert {group: layer.splits[group] for group in ("q", "kv", "attention", "o")} == {
        "q": ("g",), "kv": ("g",), "attention": ("g",), "o": ("g",)
    }  # fmt: skip
    assert {layer.splits[group] for group in ("up", "act", "down")} == {("f",)}
    assert {layer.splits[group] for group in ("attention_norm", "mlp_norm")} == {("s",)}
    split, whole = (S("s"),), (B,)
    assert layer.homes["x"].value == layer.homes["attention"].value == split
    assert layer.homes["attention_norm.out"].value == whole
    assert layer.homes["attention_norm.out"].gradient == (P(),)
    assert collectives(asked, plan) == ["all_gather", "reduce_scatter"] * 2


def collectives(asked: Request, plan: Plan) -> list[str]:
    """What a layer's forward sends, in order."""
    code = lower(asked.graph, plan).stages[0].segments["layer/F"].code
    return [instr.op for instr in code if instr.op in COLLECTIVES]


def test_optimizer_state_alone_is_split_where_there_is_room():
    """Several micro-batches over links too slow to gather weights for each of them."""
    plan, words = best(question(LLAMA_13B, node(8, 20e9, 9e-6, 13), 64, 4096, ("pp=1",)))
    assert (words["dp"], words["zero"]) == (8, 1)
    assert words["micro_batches"] > 1
    weights = {"w_q", "w_k", "w_v", "w_o", "w_up", "w_gate", "w_down"}
    for name in weights:
        stored = plan.strategies["layer"].stored[name]
        assert _splits(stored.parameter) == 0
        assert stored.gradient == (P(),)
        assert _splits(stored.optimizer) == 1


def test_parameters_are_split_where_there_is_none():
    """One micro-batch: each weight is gathered where it is used and nowhere else."""
    asked = question(LLAMA_13B, node(8, 300e9, 9e-6, 8), 8, 4096, ("pp=1",))
    plan, words = best(asked)
    assert (words["dp"], words["zero"], words["micro_batches"]) == (8, 3, 1)
    for name in ("w_q", "w_o", "w_up", "w_down"):
        stored = plan.strategies["layer"].stored[name]
        assert _splits(stored.parameter) == _splits(stored.gradient) == 1
    slower = search(
        replace(asked, pins=parse_pins(["dp=8,zero=1,recompute=none|full,micro_batch=1"]))
    )
    assert slower.plans[0].timeline.step_time > search(asked).plans[0].timeline.step_time


def nodes(count: int, nic: float, gib: float) -> Hardware:
    """Nodes of eight, fast links inside, one NIC of `nic` bytes/s a device between them."""
    kind = replace(LIKE_A100, memory=int(gib * GIB))
    levels = (Level("gpu", 8, 300e9, 9e-6, efficiency=0.8), Level("node", count, nic, 2e-5))
    return Hardware("stated", kind, levels, Host(1 << 40, 64, 25e9), devices_per_node=8)


def test_parameters_are_split_inside_nodes_and_whole_across_slow_links():
    """Hybrid sharding: weights gathered over fast links, gradients alone cross the slow ones."""
    model = replace(LLAMA_13B, layers=8)
    asked = question(model, nodes(4, 2e9, 23), 512, 4096, ("pp=1", "micro_batch=2"))
    _, words = best(asked)
    assert (words["dp"], words["tp"], words["zero"]) == (32, 1, 3)
    assert words["zero_axes"] == {"gpu": 3}, "nothing is split over the nodes"


def test_under_pressure_gathered_weights_beat_split_ones_where_streams_overlap():
    """Fast nodes, little memory: gathers hide behind computing, split weights' traffic does not."""
    asked = question(LLAMA_13B, nodes(4, 25e9, 9), 64, 4096)
    answer = search(asked)
    words = describe(asked.graph, answer.plans[0].plan)
    assert (words["dp"], words["tp"], words["pp"], words["zero"]) == (32, 1, 1, 3)
    rule_of_thumb = answer.baselines["megatron"]
    if isinstance(rule_of_thumb, Ranked):
        assert answer.plans[0].timeline.step_time < rule_of_thumb.timeline.step_time


def test_head_and_loss_split_the_vocabulary():
    """One sequence on eight devices with little memory: logits are never whole."""
    asked = question(GPT3, node(8, 700e9, 2e-5, 12.4), 1, 2048)
    plan, words = best(asked)
    assert words["vocab"]
    head = plan.strategies["head"]
    assert head.splits["head"] == head.splits["loss"] == ("v",)


def _splits(layout: Layout) -> int:
    return sum(p.kind == "S" for p in layout)


def test_both_dims_of_weights_are_split_with_less_traffic_than_one():
    """One sequence on sixteen devices with slow links: a grid of rows and columns."""
    asked = question(GPT3, node(16, 50e9, 2e-6, 8), 1, 2048, ("pp=1",))
    made = Search(asked)
    winner = search(asked).plans[0]
    words = describe(asked.graph, winner.plan)
    tp, tp2 = (
        words[key]["mlp"] if isinstance(words[key], dict) else words[key] for key in ("tp", "tp2")
    )
    assert (tp, tp2, words["dp"], words["cp"]) == (8, 2, 1, 1)
    alike = on_one_axis(made)
    assert sent(made, winner.plan) < 0.9 * sent(made, alike.plan)
    assert winner.timeline.step_time < alike.timeline.step_time


def on_one_axis(made: Search) -> Ranked:
    """The best plan where all devices are one axis: what splits a dim splits it over all."""
    hardware = made.request.hardware
    mesh = Mesh(name_axes(hardware, [(hardware.count, 1)]))
    shape = Shape(1, mesh, 0, 1, "1f1b")
    chain = made.engine.chain(shape, FREE)
    assert chain is not None
    found = made.engine.solve(chain, shape, FREE, Limit((0.0,), float("inf")))
    assert found is not None
    ranked = made.evaluate(made.engine.plan(chain, shape, found))
    assert made.fits(ranked)
    return ranked


def sent(made: Search, plan: Plan) -> float:
    """Bytes that a rank sends in forward and backward of a layer.

    Source: ring and pairwise exchange of n ranks with an input of V bytes: all_gather (n-1) V,
    reduce_scatter and all_to_all (n-1)/n V, all_reduce 2 (n-1)/n V.
    """
    stage = lower(made.request.graph, plan).stages[0]
    total = 0.0
    for key in ("layer/F", "layer/B.first"):
        segment = stage.segments[key]
        for instr in segment.code:
            if instr.op in COLLECTIVES:
                nbytes = sum(segment.registers[r].nbytes for r in instr.ins)
                n = 1
                for axis in instr.attr("axes"):
                    n *= stage.mesh.sizes[axis]
                share = {"all_gather": n - 1.0, "all_reduce": 2.0 * (n - 1) / n}
                total += share.get(instr.op, (n - 1) / n) * nbytes
    return total
