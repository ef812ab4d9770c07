"""Small machines, models and chains for searches whose optimum can be known in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from autoplan.cost import Pricer
from autoplan.frontends import build_graph, training_step
from autoplan.ir.machine import Device, Hardware, Host, Level, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Plan
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.pipeline import in_flight
from autoplan.presets import parse_pins
from autoplan.search import Request
from autoplan.search.candidates import Shape, arrangements, divisors, factorisations
from autoplan.search.chain import Chain, Pace, Solution
from autoplan.search.engine import Engine, Freedom, Inputs
from autoplan.search.outer import Search
from autoplan.search.partition import Partition
from autoplan.search.step import Estimate, Room, estimate
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
    options = {name: found.options[name][: len(t.choosers)] for name, t in chain.tables.items()}
    return chain.solution(found.assignments, options, found.shared, 1, found.objective)


def one_stage(made: Engine, chain: Chain, shape: Shape, solution: Solution, again: int = 0) -> Plan:
    """The Plan of decisions on one stage, `again` layers run again in backward."""
    cut = Partition((0, len(chain.order)), (again,), (0.0,), (0.0,), (0.0,))
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


@dataclass(frozen=True)
class Case:
    """A question, and what builds the tables of its candidates, each once.

    Attributes:
        asked: the question.
        chain: (shape, freedom) -> tables, which do not depend on memory.
        overlap, limited: whether streams overlap, and memory is short.
    """

    asked: Request
    chain: Callable[[Shape, Freedom], Chain | None]
    overlap: bool
    limited: bool

    def search(self) -> Search:
        """A search that builds no tables of its own."""
        made = Search(self.asked)
        made.engine.chain = self.chain  # type: ignore[method-assign]
        return made


def random_case(
    rng: Random, devices: tuple[int, ...] = (1, 2, 2, 2, 3), overlap: bool | None = None,
    short: bool | None = None,
) -> Case:  # fmt: skip
    """Any question: streams that overlap or not, memory loose or short."""
    overlap = rng.random() < 0.6 if overlap is None else overlap
    short = rng.random() < 0.7 if short is None else short
    asked = random_request(rng, overlap, devices)
    made = engine(asked)
    build, known = made.chain, dict[tuple[Shape, object], Chain | None]()

    def chain(shape: Shape, freedom: Freedom) -> Chain | None:
        key = (shape, freedom.key)
        if key not in known:
            known[key] = build(shape, freedom)
        return known[key]

    made.chain = chain  # type: ignore[method-assign]
    return Case(limited(rng, asked, made) if short else asked, chain, overlap, short)


def free_estimate(made: Engine, shape: Shape, pace: Pace) -> Estimate | None:
    """A candidate at a pace with all the memory in the world, or None where nothing is legal."""
    chain = made.chain(shape, FREE)
    if chain is None:
        return None
    found = chain.solve(pace)
    assert found is not None
    room = Room([1e12] * shape.stages, shape.schedule, "full" if pace.recompute else "none")
    return estimate(chain, found, pace, room, made.pricer)


def limited(rng: Random, asked: Request, made: Engine) -> Request:
    """The same with memory between about the least that a plan holds on its fullest stage and what
    the fastest does; now and then with a little too little.
    """
    rows = []
    for shape in every_shape(asked):
        flight = in_flight(shape.schedule, 0, shape.stages, shape.micro_batches)
        weight = 0.5 if made.pricer.overlaps else None
        for price, recompute in ((0.0, False), (1.0, False), (1.0, True)):
            pace = Pace(shape.stages, shape.micro_batches, flight, price, weight, recompute)
            found = free_estimate(made, shape, pace)
            if found:
                rows.append((found.step_time, max(found.partition.memory)))
    least, most = min(memory for _, memory in rows), min(rows)[1]
    share = rng.choice((-0.02, *(rng.uniform(0.0, 1.0) for _ in range(9))))
    return with_memory(asked, least + share * (most - least) + 1)


def every_shape(asked: Request) -> Iterator[Shape]:
    """Every candidate: all depths, meshes, orders in the machine and micro-batches."""
    count = asked.hardware.count
    for stages in divisors(count):
        if stages > asked.config.layers:
            continue
        for sizes in factorisations(count // stages):
            for mesh, stride in arrangements(asked.hardware, sizes, stages):
                for micro_batches in divisors(asked.workload.global_batch_size):
                    yield Shape(stages, mesh, stride, micro_batches, "1f1b")
