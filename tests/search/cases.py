"""Small machines, models and chains for searches whose optimum can be known in another way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np

from autoplan.cost import Pricer
from autoplan.frontends import build_graph, training_step
from autoplan.ir.machine import Device, Hardware, Host, Level, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Plan
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.presets import parse_pins
from autoplan.search import Request
from autoplan.search.candidates import Shape
from autoplan.search.chain import Chain, Estimate, Solution
from autoplan.search.engine import Engine, Freedom, Inputs
from autoplan.search.partition import Partition
from autoplan.search.tables import COUNT, BlockTables, Chooser

HYPER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
FREE = Freedom("free", lambda *_: True, lambda *_: True)
"""Nothing is pinned."""

TINY = DecoderConfig(
    "llama", "tiny-llama", hidden=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=32, vocab=32,
    max_positions=32,
)  # fmt: skip
TIED = replace(
    TINY, family="gpt2", name="tiny-gpt", kv_heads=4, norm="layer_norm", activation="gelu_tanh",
    gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, rope_theta=None,
    learned_positions=True, tied_embeddings=True, residual_dropout=0.1, embedding_dropout=0.1,
)  # fmt: skip


def device(memory: float = 1e12, launch: float = 1e-6) -> Device:
    """A slow device on which tiny operators take times worth comparing."""
    peaks = {"bf16": 4e9, "fp32": 1e9, "fp64": 5e8}
    return Device("toy", int(memory), peaks, 1e9, 1e9, 0.9, 1e3, 0.5, 0.8, launch)


def stack(floor: float = 0.0, fixed: float = 0.0) -> Stack:
    """A stack that adds nothing but what is asked for."""
    return Stack(
        "toy",
        {"schedule": "1f1b", "zero": 1, "sp": True, "recompute": "none"},
        constants={
            "pointwise_factor": 1.5, "host_layer_forward_s": floor, "fixed_step_s": fixed,
            "framework_bytes": 0.0, "allocator_fraction": 0.0, "overlap_contention": 1.0,
        },
    )  # fmt: skip


def machine(
    *levels: Level, overlap: bool = False, memory: float = 1e12, launch: float = 1e-6
) -> Hardware:
    """A machine of these levels; without `overlap`, nothing runs beside computing."""
    host = Host(1 << 40, 1024, 1e9, ranks_share_cores=not overlap)
    node = levels[0].size
    return Hardware("toy", device(memory, launch), levels, host, devices_per_node=node)


def request(
    config: DecoderConfig, hardware: Hardware, batch: int, seq_len: int, precision: str = "fp32",
    pins: tuple[str, ...] = (),
) -> Request:  # fmt: skip
    """A question about a full training step."""
    graph = training_step(build_graph(config, seq_len))
    workload = Workload("train", batch, seq_len, PRECISIONS[precision], Optimizer("adamw", HYPER))
    return Request(graph, config, hardware, stack(), workload, parse_pins(pins))


def engine(asked: Request) -> Engine:
    """What solves candidates of a question."""
    inputs = Inputs(asked.graph, asked.config, asked.hardware, asked.stack, asked.workload)
    return Engine(inputs, Pricer(asked.hardware, asked.stack))


@dataclass(frozen=True)
class Dice:
    """Stands for a `Pace`: a weight per channel, drawn at random.

    Attributes:
        seed: of the draw.
        stages: pipeline stages.
        recompute: whether layers are run forward again.
    """

    seed: int
    stages: int = 1
    recompute: bool = False

    def weights(self, layer: bool) -> np.ndarray:
        return 0.1 + np.random.default_rng(self.seed + layer).random(COUNT)


def noisy(tables: BlockTables, seed: int, noise: float) -> BlockTables:
    """The same factors, and a random price on every value of every variable."""
    draw = np.random.default_rng(seed)
    unary = []
    for variable, domain in enumerate(tables.domains):
        values = np.zeros((COUNT, 1, len(domain)))
        values[0, 0] = noise * draw.random(len(domain))
        unary.append(Chooser((variable,), values))
    shared = [tables.shared] if tables.shared else []
    apart = shared[0].meaning.parameter if shared else ""  # type: ignore[union-attr]
    return BlockTables(tables.space, tables.domains, [*tables.choosers, *shared, *unary], apart)


def random_solution(rng: Random, chain: Chain, noise: float = 1e3) -> Solution:
    """Legal decisions: any split and home (with large noise), stored and saved layouts by random
    weights."""
    seed = rng.randrange(1 << 30)
    tables = {name: noisy(t, seed + i, noise) for i, (name, t) in enumerate(chain.tables.items())}
    found = Chain(chain.graph, tables).solve(Dice(seed))  # type: ignore[arg-type]
    assert found is not None
    totals = {
        name: t.totals(found.assignments[name], found.weights[name])
        + chain._shared_totals(name, found.assignments[name], found.shared, 1)
        for name, t in chain.tables.items()
    }
    return replace(found, totals=totals)


def one_stage(made: Engine, chain: Chain, shape: Shape, solution: Solution, again: int = 0) -> Plan:
    """The Plan of decisions on one stage, `again` layers run again in backward."""
    cut = Partition((0, len(chain.order)), (again,), (0.0,), (0.0,))
    return made.plan(chain, shape, Estimate(solution, cut, 0.0))


def random_request(rng: Random, overlap: bool = False, devices: tuple[int, ...] = (2,)) -> Request:
    """A tiny decoder on a few devices with random links, batch and sequence."""
    count = rng.choice(devices)
    fans = rng.choice(((4,), (2, 2))) if count == 4 else (count,)
    levels = [
        Level(
            f"level{i}",
            fan,
            10 ** rng.uniform(7, 9.5),
            rng.choice((0.0, 10 ** rng.uniform(-6, -4))),
        )
        for i, fan in enumerate(fans)
    ]
    hardware = machine(*levels, overlap=overlap, launch=10 ** rng.uniform(-7, -5))
    config = replace(
        TINY, layers=rng.randint(1, 3), kv_heads=rng.choice((1, 2, 4)), gated=rng.random() < 0.7,
        hidden=rng.choice((8, 12, 16, 24)), ffn=rng.choice((16, 24, 48)),
        vocab=rng.choice((24, 32, 64)),
    )  # fmt: skip
    batch, seq_len = rng.choice((1, 2, 2, 3)), rng.choice((4, 8, 12))
    return request(config, hardware, batch, seq_len, rng.choice(("fp32", "bf16_mixed")))


def with_memory(asked: Request, memory: float) -> Request:
    """The same question about devices with that many bytes."""
    kind = replace(asked.hardware.device, memory=int(memory))
    return replace(asked, hardware=replace(asked.hardware, device=kind))
