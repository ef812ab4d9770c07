"""Random nouns for property tests: small decoders, meshes and legal plans, from one
`random.Random`.

A plan is drawn decision by decision, each from what is legal given those before it: a split per
layer operator and axis, homes of hubs, saved and stored layouts, stages, runs, schedule. What
lowering still refuses is counted and drawn again, so `sample` gives plans of the whole space, not
only those that have a familiar name. To make realistic plans likely, each mesh axis has a theme
that most operators follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from random import Random

from autoplan.errors import InputError, Refusal
from autoplan.frontends import build_graph, training_step
from autoplan.ir.adapter import Lora
from autoplan.ir.graph import Block, Graph
from autoplan.ir.layout import Axis, B, Layout, Mesh, P, Placement, S, local_shape
from autoplan.ir.lengths import Lengths
from autoplan.ir.machine import Device, Hardware, Host, Level, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.optimizer import OPTIMIZERS
from autoplan.ir.plan import (
    Choice,
    Home,
    Orders,
    Plan,
    Run,
    Schedule,
    StagePlan,
    Stored,
    Strategy,
)
from autoplan.ir.program import Program
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.lower import lower
from autoplan.ops import FAMILIES, BlockLayouts, gradient_source, op_signature
from autoplan.ops.storing import LEVELS, splittable_axes, stored_at

ADAMW = Optimizer(
    "adamw", {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
)
EXECUTED = tuple(name for name, rule in OPTIMIZERS.items() if rule.executed)
"""Optimizers that plans take in turn."""
DEVICE = Device(
    "toy", 1 << 34, {"fp64": 1e12, "fp32": 1e12, "bf16": 1e12}, 1e12, 1e11, 0.8, 1e6, 0.5, 0.8, 1e-5
)
WHOLE = ("gpipe", "1f1b")
"""Schedules of stages that are one chunk."""
MOST_RANKS = 12
PACKED = Lengths("packed", ((1, 1.0), (3, 2.0), (5, 1.0)))

THEMES: Mapping[str, Mapping[str, Choice]] = {
    "sequences": {},
    "positions": {},
    "heads": {"q": "g", "kv": "g", "attention": "g", "o": "g", "up": "f", "act": "f",
              "down": "f", "head": "v", "loss": "v", "embedding": "v"},
    "queries": {"q": "r", "attention": "r", "o": "r", "up": "f", "act": "f", "down": "f"},
    "inner": {"q": "m", "kv": "m", "o": "m", "up": "m", "down": "m", "head": "m"},
    "none": {},
}  # fmt: skip
"""What an axis does to the layer operators that follow it; others split `DEFAULT` of the theme."""
DEFAULT: Mapping[str, Choice] = {"sequences": "b", "positions": "s", "heads": "s"}


def machine(devices: int) -> Hardware:
    """Some machine with that many devices."""
    level = Level("gpu", devices, 1e10, 1e-5)
    return Hardware("toy", DEVICE, (level,), Host(1 << 36, 2, 1e10), {}, devices)


def random_config(rng: Random) -> DecoderConfig:
    """A tiny decoder whose dims have factors of 2 and 3."""
    family = rng.choice(("llama", "llama", "gpt2", "gemma"))
    groups, queries = rng.choice((1, 2, 3, 4, 6)), rng.choice((1, 2, 3, 4))
    if family == "gpt2":
        queries = 1
    config = DecoderConfig(
        family, "random", rng.choice((12, 16, 24)), rng.randint(1, 4), groups * queries, groups,
        rng.choice((4, 8)), rng.choice((16, 24, 36)), rng.choice((24, 32, 48)),
        rng.choice((12, 24)), tied_embeddings=rng.random() < 0.4,
    )  # fmt: skip
    if family == "gpt2":
        config = replace(
            config, norm="layer_norm", activation="gelu_tanh", gated=False, qkv_bias=True,
            output_bias=True, mlp_bias=True, rope_theta=None, learned_positions=True,
            embedding_dropout=rng.choice((0.0, 0.1)), attention_dropout=rng.choice((0.0, 0.1)),
            residual_dropout=rng.choice((0.0, 0.1)), position_offset=rng.choice((0, 0, 12)),
        )  # fmt: skip
    if family == "gemma":
        config = replace(config, norm_offset=1.0, activation="gelu_tanh", embedding_scale=3.5)
    return _with_variants(rng, config)


def _with_variants(rng: Random, config: DecoderConfig) -> DecoderConfig:
    """What later families changed, each now and then."""

    def sometimes() -> bool:
        return rng.random() < 0.2

    rotates = config.rope_theta is not None
    parallel = sometimes()
    return replace(
        config,
        qk_norm=rotates and sometimes(),
        rotary_dim=config.head_dim // 2 if rotates and sometimes() else 0,
        sliding_window=rng.choice((3, 5)) if sometimes() else 0,
        parallel_residual=parallel,
        shared_norm=parallel and rng.random() < 0.5,
        head_bias=sometimes(),
        activation="relu" if sometimes() else config.activation,
    )


def random_sizes(rng: Random) -> tuple[int, ...]:
    """Ranks along zero to three axes."""
    while True:
        sizes = tuple(
            rng.choice((2, 2, 2, 3, 4)) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 3)))
        )
        if prod(sizes) <= MOST_RANKS:
            return sizes


def random_meshes(rng: Random, sizes: Sequence[int], stages: int) -> tuple[Mesh, ...]:
    """One mesh a stage; axes and stages in any physical order."""
    strides, stride = [0] * (len(sizes) + 1), 1
    extents = [*sizes, stages]
    for index in rng.sample(range(len(extents)), len(extents)):
        strides[index], stride = stride, stride * extents[index]
    axes = tuple(Axis(f"gpu.{i}", size, strides[i]) for i, size in enumerate(sizes))
    return tuple(Mesh(axes, stage * strides[-1]) for stage in range(stages))


@dataclass(frozen=True)
class Space:
    """What layouts are drawn in: ranks per axis, and the extent of every dim."""

    rng: Random
    sizes: tuple[int, ...]
    extent: Mapping[str, int]
    themes: tuple[str, ...] = ()

    def divides(self, dims: Sequence[str], layout: Layout) -> bool:
        """Whether a tensor with these dims has pieces of one size in this layout."""
        try:
            local_shape(dims, layout, self.sizes, self.extent)
        except Refusal:
            return False
        return True

    def layout(self, dims: Sequence[str], source: Layout | None = None) -> Layout:
        """A layout that divides; partial only where `source` is."""
        while True:
            placements: list[Placement] = []
            for axis in range(len(self.sizes)):
                options = [B, B, *map(S, dims)]
                if source and source[axis].kind == "P":
                    options += [source[axis]] * 3
                placements.append(self.rng.choice(options))
            if self.divides(dims, tuple(placements)):
                return tuple(placements)


def random_splits(space: Space, block: Block, group: str) -> tuple[Choice, ...]:
    """A legal split of a layer operator: as the axes' themes say, or anything its dims allow."""
    ops = [(op, False) for op in block.forward if op.group == group]
    ops += [(op, True) for op in block.backward if op.group == group]
    options = list(
        dict.fromkeys(c for op, _ in ops for c in FAMILIES[op.family].choices(op, block.tensors))
    )
    for _ in range(20):
        splits = []
        for theme in space.themes:
            choice = THEMES[theme].get(group, DEFAULT.get(theme))
            splits.append(choice if space.rng.random() < 0.7 else space.rng.choice(options))
        if all(_fits(space, block, op, tuple(splits), backward) for op, backward in ops):
            return tuple(splits)
    return (None,) * len(space.sizes)


def _fits(space: Space, block: Block, op, splits: tuple[Choice, ...], backward: bool) -> bool:
    try:
        layouts = op_signature(block, op, splits, backward)
    except Refusal:
        return False
    names = zip((*op.inputs, *op.outputs), (*layouts[0], *layouts[1]), strict=True)
    return all(space.divides(block.tensors[name].dims, layout) for name, layout in names)


def random_strategy(space: Space, block: Block, ends: tuple[Home | None, Home | None]) -> Strategy:
    """Splits, homes and saved layouts of a block between two given homes; nothing stored yet."""
    rng = space.rng
    splits = {group: random_splits(space, block, group) for group in block.groups}
    homes = {
        hub: home
        for hub, home in zip((block.input, block.output), ends, strict=True)
        if home is not None
    }
    signatures = BlockLayouts(block, Strategy(block.name, splits, homes)).signatures
    results = {
        name: layout
        for op in (*block.forward, *block.backward)
        if op.group
        for name, layout in zip(op.outputs, signatures[op.name][1], strict=True)
    }
    for hub in reversed(block.hubs):  # a later hub's gradient is a part of an earlier one's
        if hub not in homes:
            dims = block.tensors[hub].dims
            natural = tuple(B if p.kind == "P" else p for p in results[hub])
            value = natural if rng.random() < 0.5 else space.layout(dims)
            parts = _contributions(block, hub, results, homes)
            homes[hub] = Home(value, space.layout(dims, _all_partial(parts, value)))
    layouts = BlockLayouts(block, Strategy(block.name, splits, homes))
    saved = {}
    for name, layout in layouts.saved.items():
        home = layouts.home(name)
        if name != block.input and rng.random() < 0.3:
            source = home.value if home else layouts.produced[name]
            saved[name] = space.layout(block.tensors[name].dims, source)
            if block.tensors[name].dims[-1:] == ("c",):
                saved[name] = layout  # its pieces along c are of no use to anybody
    return Strategy(block.name, splits, homes, saved)


def _contributions(
    block: Block, hub: str, results: Mapping[str, Layout], homes: Mapping[str, Home]
) -> list[Layout]:
    """Layouts in which the parts of a hub's gradient are left."""
    names = [
        n for op in block.backward for n in op.outputs if op.group and gradient_source(n) == hub
    ]
    for op in block.backward:
        if not op.group and gradient_source(op.outputs[0]) == hub:
            names += [name for name in op.inputs if "+" not in name]
    return [
        results[name] if name in results else homes[gradient_source(name)].gradient
        for name in dict.fromkeys(names)
    ]


def _all_partial(parts: Sequence[Layout], otherwise: Layout) -> Layout:
    """Partial along the axes where every part is."""
    if not parts:
        return otherwise
    return tuple(P() if all(p == P() for p in axis) else B for axis in zip(*parts, strict=True))


def random_stored(
    space: Space, dims: Sequence[str], users: Sequence[tuple[Layout, Layout]], trainable: bool
) -> Stored:
    """Stored layouts of a parameter that operators use and whose gradient they leave as in
    `users`."""
    rng = space.rng
    used, raw = users[0][0], _all_partial([raw for _, raw in users], users[0][0])
    if len(users) == 1:
        raw = users[0][1]
    if not trainable:
        layout = used if rng.random() < 0.6 else space.layout(dims)
        return Stored(layout, layout, layout)
    if rng.random() < 0.3:
        return Stored(space.layout(dims), space.layout(dims, raw), space.layout(dims))
    axes = [axis for axis in splittable_axes(used, raw) if rng.random() < 0.8]
    stored = stored_at(rng.choice(LEVELS), used, raw, axes, (dims, space.extent, space.sizes))
    gradient = stored.gradient
    if any(r.kind != "P" and s.kind == "P" for r, s in zip(raw, gradient, strict=True)):
        gradient = space.layout(dims, raw)
    return replace(stored, gradient=gradient)


@dataclass(frozen=True)
class Sample:
    """A legal plan, its graph and Program, and how often lowering refused on the way."""

    graph: Graph
    plan: Plan
    program: Program
    refused: int


def sample(rng: Random) -> Sample:
    """Draw plans until lowering accepts one."""
    refused = 0
    while True:
        graph, plan = random_plan(rng)
        try:
            return Sample(graph, plan, lower(graph, plan), refused)
        except InputError:
            refused += 1


def random_plan(rng: Random) -> tuple[Graph, Plan]:
    """A plan that is legal but for rare clashes."""
    config = random_config(rng)
    aside = Random(hash(rng.getstate()[1]))  # leaves all other draws as they were
    targets = tuple(aside.sample(("q", "k", "v", "o", "up", "down"), 3))
    lora = Lora(4, targets, 12.0) if aside.random() < 0.25 else None
    lengths = PACKED if aside.random() < 0.25 else None
    config = replace(config, layers=config.layers + aside.choice((0, 4)))
    seq_len = rng.choice((8, 12))
    forward = build_graph(config, seq_len, lora, lengths.visible(seq_len) if lengths else None)
    graph, trainable = _random_training(rng, forward, lora)
    sizes = random_sizes(rng)
    most = min(4, len(graph.instances), max(1, 16 // prod(sizes)))
    stages = rng.randint(1, most)
    batch, micro_batches = rng.choice((4, 6, 8, 12)), rng.randint(1, 4)
    chunks = min(len(graph.instances) // stages, aside.choice((1, 2, 2, 2)))
    chunks = chunks if stages > 1 else 1
    if chunks > 1:
        micro_batches = stages * aside.choice((1, 2))
    themes = tuple(rng.choice(list(THEMES)) for _ in sizes)
    space = Space(rng, sizes, {**graph.extent, "b": batch}, themes)
    rows, strategies = _assign(space, graph)
    strategies = _with_stored(space, graph, rows, strategies)
    cuts = sorted((rng if chunks == 1 else aside).sample(range(1, len(rows)), stages * chunks - 1))
    meshes = random_meshes(rng, sizes, stages)
    runs: list[tuple[Run, ...]] = [()] * stages
    for number, (start, end) in enumerate(pairwise((0, *cuts, len(rows)))):
        chunk, stage = divmod(number, stages)
        runs[stage] += tuple(replace(run, chunk=chunk) for run in _runs(rng, rows[start:end]))
    stage_plans = tuple(map(StagePlan, meshes, runs))
    clip, seed = rng.choice((0.0, 1.0, 0.01)), rng.randrange(1000)
    optimizer = Optimizer(EXECUTED[seed % len(EXECUTED)], {}, clip)
    workload = Workload(
        "train", batch * micro_batches, graph.extent["s"], PRECISIONS["fp64"], optimizer,
        trainable, seed=seed, lengths=lengths,
    )  # fmt: skip
    family = rng.choice(WHOLE) if chunks == 1 else "interleaved"
    schedule = Schedule(family, micro_batches)
    hardware = machine(prod(sizes) * stages)
    return graph, Plan(
        config, hardware, Stack("toy"), workload, strategies, stage_plans, schedule,
        Orders(rng.randint(0, 2)),
    )  # fmt: skip


def _random_training(rng: Random, forward: Graph, lora: Lora | None) -> tuple[Graph, str]:
    """The training step of all, of some parameters, or of adapters."""
    # Without rotation attention ignores a key bias: its gradient alone would be all rounding.
    names = [name for name in forward.parameters if not name.endswith("b_k")]
    some = "|".join(name.replace(".", r"\.") for name in rng.sample(names, rng.randint(1, 3)))
    trainable = rng.choice(("full",) * 6 + (f"^(?:{some})$", "w_", "norm", r"layers\.0\."))
    trainable = str(lora) if lora else trainable
    return training_step(forward, trainable), trainable


def _assign(space: Space, graph: Graph) -> tuple[list[str], dict[str, Strategy]]:
    """A strategy for every instance; neighbours agree on what they hand over."""
    rng = space.rng
    dims = ("b", "s", "m")
    usual = Home(space.layout(dims), space.layout(dims))
    usual = replace(usual, gradient=usual.value) if rng.random() < 0.6 else usual
    homes: list[Home | None] = [None]
    for _ in graph.instances[1:]:
        other = Home(space.layout(dims), space.layout(dims))
        homes.append(usual if rng.random() < 0.8 else other)
    homes.append(None)
    rows: list[str] = []
    known: dict[tuple[str, Home | None, Home | None], list[str]] = {}
    strategies: dict[str, Strategy] = {}
    for index, instance in enumerate(graph.instances):
        ends = homes[index], homes[index + 1]
        keys = known.setdefault((instance.block, *ends), [])
        if not keys or rng.random() < 0.2:
            same = sum(1 for s in strategies.values() if s.block == instance.block)
            key = instance.block + (f"#{same + 1}" if same else "")
            strategies[key] = random_strategy(space, graph.blocks[instance.block], ends)
            keys.append(key)
        rows.append(rng.choice(keys))
    return rows, {key: strategies[key] for key in dict.fromkeys(rows)}


def _with_stored(
    space: Space, graph: Graph, rows: Sequence[str], strategies: Mapping[str, Strategy]
) -> dict[str, Strategy]:
    """Stored layouts of every parameter; those of a tied one are the same wherever it is used."""
    layouts = {key: BlockLayouts(graph.blocks[s.block], s) for key, s in strategies.items()}
    table: dict[str, dict[str, Stored]] = {key: {} for key in strategies}

    def draw(local: str, keys: Iterable[str]) -> None:
        keys = list(dict.fromkeys(keys))
        block = layouts[keys[0]].block
        trainable = local in block.trainable
        users = []
        for key in keys:
            own = layouts[key]
            raw = own.raw_gradient(local) if trainable else own.used[local]
            users.append((own.used[local], raw))
        stored = random_stored(space, block.tensors[local].dims, users, trainable)
        for key in keys:
            table[key][local] = stored

    for name, uses in graph.tied.items():
        draw(graph.parameters[name][1], (rows[index] for index in uses))
    for key, own in layouts.items():
        for local in own.block.parameters:
            if local not in table[key]:
                draw(local, (key,))
    return {key: replace(s, stored=table[key]) for key, s in strategies.items()}


def _runs(rng: Random, rows: Sequence[str]) -> tuple[Run, ...]:
    runs: list[Run] = []
    often = rng.choice((0.0, 0.3, 1.0))
    for key in rows:
        run = Run(key, 1, rng.random() < often)
        last = runs[-1] if runs else None
        if last and (last.strategy, last.recompute) == (run.strategy, run.recompute):
            runs[-1] = replace(last, count=last.count + 1)
        else:
            runs.append(run)
    return tuple(runs)
