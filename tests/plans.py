"""Small plans by hand: a tiny decoder on one, two and four devices.

`make_plan` takes what happens along each mesh axis of every stage:

    "batch"      every operator splits b, weights are whole, gradients partial until the step's end
    "sharded"    as "batch", but optimizer state (and reduced gradients) are split
    "gathered"   as "sharded", and weights are stored split: gathered before use, reduced each time
    "heads"      attention splits heads, feed-forward its width, embedding and head the vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autoplan.frontends import build_graph, training_step
from autoplan.ir.graph import GRADIENT, Block, Graph
from autoplan.ir.layout import Axis, B, Layout, Mesh, P, S, split_factor
from autoplan.ir.machine import Device, Hardware, Host, Level, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Home, Orders, Plan, Run, Schedule, StagePlan, Stored, Strategy
from autoplan.ir.program import Program
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.lower import lower
from autoplan.ops import BlockLayouts

TINY_LLAMA = DecoderConfig(
    "llama", "tiny-llama", hidden=32, layers=2, heads=8, kv_heads=4, head_dim=4, ffn=48, vocab=64,
    max_positions=32,
)  # fmt: skip
TINY_GPT = replace(
    TINY_LLAMA, family="gpt2", name="tiny-gpt", kv_heads=8, norm="layer_norm",
    activation="gelu_tanh", gated=False, qkv_bias=True, output_bias=True, mlp_bias=True,
    rope_theta=None, learned_positions=True, tied_embeddings=True, residual_dropout=0.1,
    embedding_dropout=0.1,
)  # fmt: skip
SEQ_LEN = 16
ADAMW = Optimizer(
    "adamw", {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
)
HEADS = {
    "q": "g", "kv": "g", "attention": "g", "o": "g", "up": "f", "act": "f", "down": "f",
    "embedding": "v", "head": "v", "loss": "v",
}  # fmt: skip
DEVICE = Device("toy", 1 << 30, {"fp64": 1e9, "fp32": 1e9}, 1e9, 1e9, 1.0, 1e3, 1.0, 1.0, 1e-6)


@dataclass(frozen=True)
class Choices:
    """What a plan is made from; see the module's docstring for `axes`."""

    axes: tuple[str, ...] = ()
    stages: int = 1
    micro_batches: int = 2
    family: str = "1f1b"
    recompute: bool = False
    batch: int = 8
    trainable: str = "full"
    precision: str = "fp32"
    prefetch: int = 1
    chunks: int = 1


def machine(devices: int) -> Hardware:
    """Some machine with that many devices."""
    return Hardware("toy", DEVICE, (Level("gpu", devices, 1e9, 1e-6),), Host(1 << 32, 2, 1e9))


def make_graph(config: DecoderConfig = TINY_LLAMA, choices: Choices | None = None) -> Graph:
    """Its training step."""
    trainable = choices.trainable if choices else "full"
    return training_step(build_graph(config, SEQ_LEN), trainable)


def make_plan(graph: Graph, config: DecoderConfig, choices: Choices) -> Plan:
    """One strategy per block, the same axes on every stage."""
    strategies = {name: _strategy(graph, block, choices) for name, block in graph.blocks.items()}
    devices = 2 ** len(choices.axes)
    return Plan(
        config,
        machine(devices * choices.stages),
        Stack("toy"),
        Workload("train", choices.batch, SEQ_LEN, PRECISIONS[choices.precision], ADAMW,
                 choices.trainable),
        strategies,
        tuple(
            StagePlan(_mesh(len(choices.axes), devices * stage), runs)
            for stage, runs in enumerate(_runs(graph, choices))
        ),
        Schedule(choices.family, choices.micro_batches),
        Orders(choices.prefetch),
    )  # fmt: skip


def make_program(config: DecoderConfig, choices: Choices) -> Program:
    """The lowered plan."""
    graph = make_graph(config, choices)
    return lower(graph, make_plan(graph, config, choices))


def _mesh(axes: int, offset: int) -> Mesh:
    return Mesh(tuple(Axis(f"gpu.{i}", 2, 2 ** (axes - i - 1)) for i in range(axes)), offset)


def _runs(graph: Graph, choices: Choices) -> list[tuple[Run, ...]]:
    """Instances in equal parts, embedding with the first and head with the last of them."""
    layers, parts = len(graph.instances) - 2, choices.stages * choices.chunks
    bounds = [round(layers * i / parts) for i in range(parts + 1)]
    bounds[0], bounds[-1] = -1, layers + 1
    stages: list[tuple[Run, ...]] = [()] * choices.stages
    for number, (first, last) in enumerate(pairwise(bounds)):
        chunk, stage = divmod(number, choices.stages)
        for instance in graph.instances[first + 1 : last + 1]:
            recompute = choices.recompute and instance.block.startswith("layer")
            stages[stage] += (Run(instance.block, 1, recompute, chunk),)
    return stages


def _strategy(graph: Graph, block: Block, choices: Choices) -> Strategy:
    splits = {
        group: tuple("b" if axis != "heads" else HEADS.get(group) for axis in choices.axes)
        for group in block.groups
    }
    homes = {hub: _home(block, hub, choices.axes) for hub in block.hubs}
    strategy = Strategy(block.name, splits, homes)
    layouts = BlockLayouts(block, strategy)
    stored = {name: _stored(graph, layouts, name, choices) for name in block.parameters}
    return replace(strategy, stored=stored)


def _home(block: Block, hub: str, axes: Sequence[str]) -> Home:
    """Heads leave the gradient of what several projections read as partial sums."""
    inner = hub not in (block.input, block.output) and hub.endswith(".out")
    value = tuple(B if axis == "heads" else S("b") for axis in axes)
    gradient = tuple(
        P() if axis == "heads" and inner else v for axis, v in zip(axes, value, strict=True)
    )
    return Home(value, gradient)


def _stored(graph: Graph, layouts: BlockLayouts, name: str, choices: Choices) -> Stored:
    used = layouts.used[name]
    trained = GRADIENT + name in layouts.produced
    raw = layouts.raw_gradient(name) if trained else used
    partial = [P() if left == P() else kept for left, kept in zip(raw, used, strict=True)]
    parameter, gradient, optimizer = list(used), partial, list(used)
    for axis, what in enumerate(choices.axes):
        if what not in ("sharded", "gathered"):
            continue
        split = _free_split(graph, layouts.block, name, tuple(optimizer))
        optimizer[axis] = split
        if what == "gathered":
            parameter[axis] = gradient[axis] = split
    return Stored(tuple(parameter), tuple(gradient), tuple(optimizer))


def _free_split(graph: Graph, block: Block, name: str, layout: Layout) -> S:
    """A split in two of a dim that `layout` leaves divisible."""
    sizes = (2,) * len(layout)
    for dim in block.tensors[name].dims:
        if graph.extent[dim] // split_factor(dim, layout, sizes) % 2 == 0:
            return S(dim)
    raise AssertionError(f"{name} has no even dim")


SAMPLE: dict[str, tuple[DecoderConfig, Choices]] = {
    "one device": (TINY_LLAMA, Choices()),
    "one device, one micro-batch": (TINY_LLAMA, Choices(micro_batches=1)),
    "recompute": (TINY_LLAMA, Choices(recompute=True)),
    "batch": (TINY_LLAMA, Choices(("batch",))),
    "sharded": (TINY_LLAMA, Choices(("sharded",), precision="bf16_mixed")),
    "gathered": (TINY_LLAMA, Choices(("gathered",))),
    "gathered, three ahead": (TINY_LLAMA, Choices(("gathered",), prefetch=3, recompute=True)),
    "heads": (TINY_LLAMA, Choices(("heads",))),
    "gathered heads": (TINY_LLAMA, Choices(("gathered", "heads"))),
    "two stages": (TINY_LLAMA, Choices((), 2, 3, batch=6)),
    "two stages, gpipe, heads": (TINY_LLAMA, Choices(("heads",), 2, 3, "gpipe", batch=6)),
    "two stages, gathered": (TINY_LLAMA, Choices(("gathered",), 2, 4)),
    "four stages": (replace(TINY_LLAMA, layers=4), Choices((), 4, 6, batch=6)),
    "chunks": (replace(TINY_LLAMA, layers=4), Choices((), 2, 4, "interleaved", chunks=2)),
    "chunks, gathered, tied": (
        replace(TINY_LLAMA, layers=4, tied_embeddings=True),
        Choices(("gathered",), 2, 2, "interleaved", recompute=True, chunks=2),
    ),
    "gpt, one device": (TINY_GPT, Choices()),
    "gpt, heads": (TINY_GPT, Choices(("batch", "heads"))),
    "gpt, two stages": (TINY_GPT, Choices(("sharded",), 2, 4)),
    "gpt, recompute, gathered": (TINY_GPT, Choices(("gathered",), 2, 2, recompute=True)),
    "frozen": (TINY_LLAMA, Choices(("batch",), 2, 2, trainable=r"layers\.1\.w_")),
    "only norms": (TINY_LLAMA, Choices(("heads",), 1, 2, trainable=r"norm")),
}  # fmt: skip
"""Plans that differ in what they can break."""
