"""Familiar names -> a Plan: what dp, tp, tp2, cp, pp, sp, zero mean as placements.

With `describe`, the only place where parallelisms have names. Each degree becomes one mesh axis;
its role says what the axis does to every layer operator of a block and where hubs are at home:

    dp    every operator splits sequences; parameters' state may be split (zero)
    tp    projections split heads or feed-forward width: columns, then rows;
          with sp norms split positions
    tp2   the other dim of the same weights: a grid of rows and columns
    cp    every operator splits positions; attention gathers keys and values
    pp    stages; not an axis
    vpp   chunks of layers a stage; not an axis either

The law is `describe(build_plan(pins)) == pins`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from autoplan.errors import InputError, Problem, Refusal
from autoplan.ir.graph import Block, Graph
from autoplan.ir.layout import B, Layout, Mesh, P, Placement, S
from autoplan.ir.machine import Hardware, Stack, name_axes
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Choice, Home, Plan, Schedule, StagePlan, Stored, Strategy
from autoplan.ir.workload import Workload
from autoplan.ops import BlockLayouts, gradient_source
from autoplan.ops.layouts import Signature
from autoplan.ops.storing import LEVELS, splittable_axes, stored_at
from autoplan.presets.legal import Case, batch_problem, degree_problems, restricted
from autoplan.presets.pins import DEGREES, Pins, Value
from autoplan.presets.stages import (
    chunk_problems,
    settled_layers,
    settled_recompute,
    settled_schedule,
    stage_runs,
)

AXIS_ROLES = ("cp", "tp", "tp2", "dp")
"""Logical mesh order, outermost split first: positions, then heads, and the axis over which state
may be split last, so that it is the innermost split of whatever dim it takes."""
DEFAULT_ORDER = ("tp", "tp2", "cp", "dp", "pp")
"""Physical order, innermost first."""
SPLIT_INSIDE = "split_in_node"
"""The habit of `ir.machine.HABITS` that keeps the splits of state inside nodes."""

TENSOR_SPLITS: Mapping[str, tuple[Choice, Choice]] = {
    "q": ("g", "m"), "kv": ("g", "m"), "attention": ("g", "g"), "o": ("g", "m"),
    "up": ("f", "m"), "act": ("f", "f"), "down": ("f", "m"), "branches": ("P", "m"),
    "head": ("v", "m"), "loss": ("v", "v"), "embedding": ("v", "m"),
    "attention_lora": ("a", "m"), "mlp_lora": ("a", "m"),
    "o_lora": ("g", None), "down_lora": ("f", None),
}  # fmt: skip
"""Layer operator -> what (tp, tp2) split; every other operator splits positions or nothing."""


@dataclass(frozen=True)
class Settings:
    """All pins filled in.

    Attributes:
        degrees: by key of `DEGREES`.
        chunks: a stage's parts of the model.
        order: degrees innermost first.
        sp, vocab: flags.
        zero: 0 to 3.
        micro_batch: sequences per micro-batch and replica.
        schedule, recompute: families.
        layers: decoder layers per virtual stage.
        gathered_logits: whether the loss is computed on whole logits.
        together: replicas of a node, where state is split over these and no others; else 0.
    """

    degrees: Mapping[str, int]
    chunks: int
    order: tuple[str, ...]
    sp: bool
    vocab: bool
    zero: int
    micro_batch: int
    schedule: str
    recompute: str
    layers: tuple[int, ...]
    gathered_logits: bool = False
    together: int = 0


def settle(
    pins: Pins, config: DecoderConfig, hardware: Hardware, stack: Stack, workload: Workload
) -> Settings:
    """Pins with everything that they leave open taken from the stack's defaults.

    Raises:
        InputError: degrees do not multiply to the devices, a batch or layer count does not divide,
            heads, widths or positions do not, a pin has several values, or the stack cannot express
            it; all problems at once, with the legal values.
    """
    problems = [
        Problem("--pin", key, "several values", "one value here (search takes sets and ranges)")
        for key, pin in pins.items()
        if pin.single is None
    ]
    if problems:
        raise InputError(problems)
    given: dict[str, Value] = {k: v for k, pin in pins.items() if (v := pin.single) is not None}
    values: dict[str, object] = {**_defaults(stack), **given}
    problems = restricted(pins, stack)
    degrees = _degrees(values, hardware.count, problems)
    order = _order(str(values.get("order", "")), problems)
    chunks = values.get("vpp", 1)
    assert isinstance(chunks, int)
    layers, found = settled_layers(values, config, (degrees["pp"], chunks), stack)
    problems += found
    micro = values.get("micro_batch", 1)
    assert isinstance(micro, int)
    batch = batch_problem(workload.global_batch_size, degrees["dp"], micro)
    problems += [batch] if batch else []
    values["schedule"] = settled_schedule(values)
    case = Case(config, workload, {**values, **degrees})
    problems += degree_problems(case, hardware.count, stack)
    problems += chunk_problems(case, pins, stack)
    if problems:
        raise InputError(problems)
    zero = values.get("zero", 0)
    assert isinstance(zero, int)
    return Settings(
        degrees, chunks, order, bool(values.get("sp", True)), bool(values.get("vocab", True)),
        zero, micro, str(values["schedule"]), settled_recompute(values, stack), layers,
        "gathered_logits" in stack.habits,
        _together(degrees, order, hardware.devices_per_node) if SPLIT_INSIDE in stack.habits else 0,
    )  # fmt: skip


def _defaults(stack: Stack) -> dict[str, object]:
    return {"tp": 1, "tp2": 1, "cp": 1, "pp": 1, "dp": -1, **stack.defaults}


def _degrees(values: Mapping[str, object], devices: int, problems: list[Problem]) -> dict[str, int]:
    degrees = {key: value for key in DEGREES if isinstance(value := values.get(key, 1), int)}
    others = 1
    for key, value in degrees.items():
        others *= value if key != "dp" else 1
    if degrees["dp"] == -1 and devices % others == 0:
        degrees["dp"] = devices // others
    if degrees["dp"] == -1 or others * degrees["dp"] != devices:
        text = " x ".join(f"{k}={v}" for k, v in degrees.items() if v not in (1, -1)) or "1"
        found = f"{text} = {others * max(degrees['dp'], 1)}"
        whole, rest = divmod(devices, others)
        hint = f"dp={whole} uses all {devices}" if not rest else ""
        allowed = f"a product of {devices} devices"
        problems.append(Problem("--pin", "degrees", found, allowed, hint))
        degrees["dp"] = max(degrees["dp"], 1)
    return degrees


def _order(text: str, problems: list[Problem]) -> tuple[str, ...]:
    """The physical order, completed by the default order of what it leaves out."""
    given = tuple(filter(None, text.split("-")))
    unknown = [key for key in given if key not in DEGREES]
    if unknown:
        problems.append(Problem("--pin", "order", text, "keys among " + ", ".join(DEGREES)))
    return (*given, *(key for key in DEFAULT_ORDER if key not in given))


def _together(degrees: Mapping[str, int], order: Sequence[str], node: int) -> int:
    """Replicas that a node of so many devices holds; 0 where it holds no two."""
    inner = prod(degrees[key] for key in order[: order.index("dp")])
    dp = degrees["dp"]
    held = (n for n in range(2, dp + 1) if dp % n == node % (n * inner) == 0)
    return max(held, default=0)


def build_plan(
    graph: Graph,
    config: DecoderConfig,
    machine: tuple[Hardware, Stack],
    workload: Workload,
    pins: Pins,
) -> Plan:
    """The Plan that pins and stack defaults describe.

    Args:
        graph: training step of `config` under `workload`.
        config: the model.
        machine: hardware and stack.
        workload: what is trained.
        pins: single values.

    Raises:
        InputError: as `settle`, or a split that the model's dims refuse.
    """
    hardware, stack = machine
    settings = settle(pins, config, hardware, stack, workload)
    meshes, roles = _meshes(hardware, settings, _state_parts(settings, config.hidden))
    batch = settings.degrees["dp"] * settings.micro_batch
    extent = {**graph.extent, "b": batch}
    strategies, problems = {}, []
    for block in graph.blocks.values():
        try:
            strategy = _strategy(block, roles, meshes[0].sizes, extent, settings)
            BlockLayouts(block, strategy).check(meshes[0].sizes, extent)
            strategies[block.name] = strategy
        except Refusal as refusal:
            problems.append(Problem("--pin", block.name, str(refusal), "degrees that divide"))
    if problems:
        raise InputError(problems)
    strategies = _same_when_tied(graph, strategies)
    stages = tuple(
        StagePlan(mesh, runs)
        for mesh, runs in zip(
            meshes,
            stage_runs(graph, settings.layers, len(meshes), settings.recompute),
            strict=True,
        )
    )
    schedule = Schedule(settings.schedule, workload.global_batch_size // batch)
    return Plan(config, hardware, stack, workload, strategies, stages, schedule)


def _state_parts(settings: Settings, hidden: int) -> int:
    """Replicas over which state splits: the largest divisor of dp by which weights divide.

    Every weight has the model width, which tp2 and cp split as well. A stack may split state among
    the replicas of a node only, a divisor of theirs then.
    """
    dp = settings.degrees["dp"]
    if not settings.zero:
        return dp
    most, others = settings.together or dp, settings.degrees["tp2"] * settings.degrees["cp"]
    return max((n for n in range(1, most + 1) if most % n == hidden % (n * others) == 0), default=1)


def _meshes(
    hardware: Hardware, settings: Settings, parts: int
) -> tuple[list[Mesh], tuple[str, ...]]:
    """One mesh per stage, and the role of each axis.

    Where state splits over fewer `parts` than there are replicas, these are two axes: the inner
    one, over the faster links, splits it.
    """
    stride, strides = 1, {}
    for key in settings.order:
        strides[key] = stride
        stride *= settings.degrees[key]
    table: list[tuple[str, int, int]] = []
    for key in AXIS_ROLES:
        size = settings.degrees[key]
        if key == "dp" and 1 < parts < size:
            table.append((key, size // parts, strides[key] * parts))
            size = parts
        if size > 1:
            table.append((key, size, strides[key]))
    roles = tuple(key for key, _, _ in table)
    grid = [(size, stride) for _, size, stride in table]
    axes = name_axes(hardware, grid)
    return [Mesh(axes, stage * strides["pp"]) for stage in range(settings.degrees["pp"])], roles


def _strategy(
    block: Block, roles: Sequence[str], sizes: tuple[int, ...], extent: Mapping[str, int],
    settings: Settings,
) -> Strategy:  # fmt: skip
    """What each role does to a block."""
    splits = _splits(block, roles, sizes, extent, settings)
    signatures = BlockLayouts(block, Strategy(block.name, splits, {})).signatures
    homes = {hub: _home(block, hub, roles, settings, signatures) for hub in block.hubs}
    bare = Strategy(block.name, splits, homes)
    layouts = BlockLayouts(block, bare)
    # A norm's result waits for backward as the norm leaves it, and is gathered again.
    norms = [op.outputs[0] for op in block.forward if op.family.endswith("_norm")]
    saved = {name: layouts.produced[name] for name in norms if name in layouts.saved}
    stored = {
        name: _stored(block, layouts, name, (roles, sizes, extent), settings)
        for name in block.parameters
    }
    return replace(bare, saved=saved, stored=stored)


def _splits(
    block: Block, roles: Sequence[str], sizes: Sequence[int], extent: Mapping[str, int],
    settings: Settings,
) -> dict[str, tuple[Choice, ...]]:  # fmt: skip
    degree = dict(zip(roles, sizes, strict=True))
    groups, queries = extent["g"], extent["r"]
    # Heads split by key/value head where these divide, else by query head within each group.
    by_query = bool(groups % degree.get("tp", 1)) and queries % degree["tp"] == 0
    grid = groups % (degree.get("tp", 1) * degree.get("tp2", 1)) == 0
    positions = "s" if settings.sp else None

    def choice(group: str, role: str) -> Choice:
        if role == "dp":
            return "b"
        if role == "cp" or (role == "tp2" and group == "attention" and not grid):
            return "s"
        if group in ("embedding", "head", "loss") and not settings.vocab and role == "tp":
            return positions
        if group == "loss" and settings.gathered_logits and role == "tp":
            return None
        dim = TENSOR_SPLITS[group][role == "tp2"] if group in TENSOR_SPLITS else positions
        if dim == "a" and extent["a"] % degree[role]:
            return positions
        if dim == "g" and by_query:
            return positions if group == "kv" else "r"
        return dim

    return {group: tuple(choice(group, role) for role in roles) for group in block.groups}


def _home(
    block: Block, hub: str, roles: Sequence[str], settings: Settings,
    signatures: Mapping[str, Signature],
) -> Home:  # fmt: skip
    """The residual stream splits sequences and positions; a norm's result meets its readers; what
    else has several readers stays as its operator leaves it.

    The gradient of a norm's result stays partial where every reader leaves it so. Where queries
    split within each group of heads, keys and values come from split positions, and it cannot.
    """
    if block.tensors[hub].dims != block.tensors[block.input or block.output].dims:
        producer = block.producer[hub]
        left = signatures[producer.name][1][producer.outputs.index(hub)]
        return Home(left, left)
    residual = S("s") if settings.sp else B
    left_by = [
        signatures[op.name][1][position]
        for op in block.backward if op.group
        for position, name in enumerate(op.outputs)
        if block.tensors[name].role == "gradient" and gradient_source(name) == hub
    ]  # fmt: skip
    pairs: list[tuple[Placement, Placement]] = []
    for axis, role in enumerate(roles):
        if role == "dp":
            pairs.append((S("b"), S("b")))
        elif role == "cp":
            pairs.append((S("s"), S("s")))
        elif not hub.endswith("_norm.out"):
            pairs.append((residual, residual))
        elif role == "tp":
            partial = all(layout[axis] == P() for layout in left_by)
            pairs.append((B, P() if partial else residual))
        else:
            pairs.append((S("m"), S("m")))
    return Home(tuple(value for value, _ in pairs), tuple(gradient for _, gradient in pairs))


def _stored(
    block: Block, layouts: BlockLayouts, name: str,
    mesh: tuple[Sequence[str], Sequence[int], Mapping[str, int]], settings: Settings,
) -> Stored:  # fmt: skip
    """Stored layouts of a parameter at the zero level, split over dp and cp."""
    roles, sizes, extent = mesh
    used = layouts.used[name]
    if name not in block.trainable:
        raw: Layout = tuple(P() if p == B and r in ("dp", "cp") else p
                            for p, r in zip(used, roles, strict=True))  # fmt: skip
    else:
        raw = layouts.raw_gradient(name)
    axes = tuple(i for i in splittable_axes(used, raw) if roles[i] in ("dp", "cp"))
    tensor = (block.tensors[name].dims, extent, sizes)
    inner = axes
    if roles.count("dp") > 1:
        inner = tuple(axis for axis in axes if axis != roles.index("dp"))
    axes = inner if settings.together else axes
    stored = stored_at(LEVELS[settings.zero], used, raw, axes, tensor)
    if stored.optimizer == used and inner != axes:
        stored = stored_at(LEVELS[settings.zero], used, raw, inner, tensor)
    if name not in block.trainable:
        return Stored(stored.parameter, stored.parameter, stored.parameter)
    return stored


def _same_when_tied(graph: Graph, strategies: dict[str, Strategy]) -> dict[str, Strategy]:
    """A tied parameter is one tensor: its first user's stored layouts hold for all."""
    table = dict(strategies)
    for name, users in graph.tied.items():
        first = graph.instances[users[0]]
        stored = table[first.block].stored[name.removeprefix(first.prefix)]
        for index in users[1:]:
            instance = graph.instances[index]
            strategy = table[instance.block]
            local = name.removeprefix(instance.prefix)
            table[instance.block] = replace(strategy, stored={**strategy.stored, local: stored})
    return table
