"""Rehearsal (floor 3): a plan made for a bigger machine -> the same plan, small enough to run here.

What is rehearsed is what can be wrong: layouts, transitions, segments, schedule, who sends what to
whom. Layouts are symbolic, so strategies carry over unchanged; every mesh axis keeps its place and
becomes as short as its rules allow, and dims shrink to what the strategies must divide. Of the
stages the first, the last and the most varied others are kept, of each run of layers one or two;
where stages have chunks, two stages with two chunks.

The law is that `describe` reads the same roles off both plans, with degrees above one still above
one. The result runs in fp64, where a wrong sum cannot hide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import lcm, prod

from autoplan.files.machine_spec import load_hardware
from autoplan.frontends import build_graph, step_graph, training_step
from autoplan.ir.adapter import parse_lora
from autoplan.ir.graph import Graph
from autoplan.ir.layout import Mesh, split_factor
from autoplan.ir.machine import Hardware, name_axes
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Plan, Run, Schedule, StagePlan
from autoplan.ir.workload import PRECISIONS
from autoplan.ops import BlockLayouts

HERE = "cpu-host"
"""Bundled profile of the machine that rehearses."""
AXIS = 2
"""Ranks along every axis: layouts name no size, and two already differ from one."""
MOST_STAGES = 4
"""First, last and two neighbours between them."""
MOST_RANKS = 16
"""Limit where two stages stay below it; four axes and two stages have 32 ranks."""
CHUNKED = (2, 2)
"""Stages, and chunks of each, where a plan has chunks."""
MOST_EXTRA = 1
"""Stages beyond the wanted number that are tried before all distinct ones are kept."""
SMALL = {"g": 2, "r": 2, "d": 8, "m": 32, "f": 48, "v": 256, "s": 16, "a": 4}
"""Dim -> a size that is quick to compute with; a multiple of it where strategies divide more."""


@dataclass(frozen=True)
class _Part:
    """A run of the plan and the index of its first instance."""

    run: Run
    start: int


Parts = Sequence[Sequence[_Part]]
"""Per virtual stage its runs."""


def rehearse(plan: Plan) -> Plan:
    """The same plan for few ranks, few layers and small dims, on a CPU host.

    Args:
        plan: any that lowering accepts.

    Returns:
        A plan with the same strategies, schedule family and recompute; two ranks along every axis,
        at most `MOST_STAGES` stages where neighbours fit together, in fp64.
    """
    model, workload = plan.model, plan.workload
    graph = step_graph(model, workload)
    parts = _kept_parts(plan, graph)
    extent = _shrunk_extent(plan, graph)
    config = _shrunk_model(model, extent, parts)
    lora = parse_lora(workload.trainable)
    lora = replace(lora, rank=extent["a"]) if lora else None
    lengths = workload.lengths and workload.lengths.scaled(workload.seq_len, extent["s"])
    visible = lengths.visible(extent["s"]) if lengths and lengths.packed else None
    forward = build_graph(config, extent["s"], lora, visible)
    trainable = str(lora) if lora else _trainable(plan, graph, forward, parts)
    blocks = [i.block for i in training_step(forward, trainable).instances]
    strategies, index = {}, 0
    for part in (part for rows in parts for part in rows):
        strategy = plan.strategies[part.run.strategy]
        strategies[part.run.strategy] = replace(strategy, block=blocks[index])
        index += part.run.count
    count = _stage_count(plan, parts)
    micro_batches = min(plan.schedule.micro_batches, 2 * len(parts) + 1)
    micro_batches -= micro_batches % count if plan.chunks > 1 else 0
    hardware = load_hardware(f"{HERE}:{AXIS ** len(plan.stages[0].mesh.axes) * count}")
    workload = replace(
        workload, global_batch_size=extent["b"] * micro_batches, seq_len=extent["s"],
        precision=PRECISIONS["fp64"], trainable=trainable, memory_headroom=0, lengths=lengths,
    )  # fmt: skip
    runs: list[list[Run]] = [[] for _ in range(count)]
    for number, rows in enumerate(parts):
        runs[number % count] += [replace(part.run, chunk=number // count) for part in rows]
    stages = tuple(
        StagePlan(mesh, tuple(own))
        for mesh, own in zip(_meshes(plan, hardware, count), runs, strict=True)
    )
    return replace(
        plan, model=config, hardware=hardware, workload=workload, strategies=strategies,
        stages=stages, schedule=Schedule(plan.schedule.family, micro_batches),
    )  # fmt: skip


# --- stages and layers --------------------------------------------------------------------------


def _kept_parts(plan: Plan, graph: Graph) -> Parts:
    """The runs of the kept virtual stages, shortened."""
    table: list[list[_Part]] = []
    index = 0
    for _, runs in plan.virtual_stages:
        rows = []
        for run in runs:
            rows.append(_Part(run, index))
            index += run.count
        table.append(rows)
    return [_shortened(table[stage]) for stage in _kept_stages(plan, graph, table)]


def _stage_count(plan: Plan, parts: Parts) -> int:
    """Stages on which the kept virtual stages lie."""
    if len(parts) == len(plan.virtual_stages):
        return len(plan.stages)
    return len(parts) if plan.chunks == 1 else CHUNKED[0]


def _shortened(rows: Sequence[_Part]) -> list[_Part]:
    """One instance of each run; two where the stage has a single long one.

    Runs that alternate do so once.
    """
    kept: list[_Part] = []
    for part in rows:
        kept.append(part)
        if len(kept) >= 4 and _structure(kept[-4:-2]) == _structure(kept[-2:]):
            del kept[-2:]
    rows = kept
    long = [part for part in rows if part.run.count > 1]
    most = 2 if len(long) == 1 else 1
    return [replace(p, run=replace(p.run, count=min(p.run.count, most))) for p in rows]


def _structure(rows: Sequence[_Part]) -> tuple[tuple[str, bool], ...]:
    return tuple((part.run.strategy, part.run.recompute) for part in rows)


def _kept_stages(plan: Plan, graph: Graph, table: Parts) -> tuple[int, ...]:
    """First and last stage, and those between that show most of the plan and fit together."""
    ranks = AXIS ** len(plan.stages[0].mesh.axes)
    most = MOST_STAGES if ranks * MOST_STAGES <= MOST_RANKS else 2
    extra = MOST_EXTRA
    if plan.chunks > 1:
        most, extra = prod(CHUNKED), 0
    last = len(table) - 1
    shapes = [_structure(rows) for rows in table]
    # Of equal stages in a row two stand for all.
    distinct = tuple(
        i for i in range(1, last) if not (i > 2 and shapes[i] == shapes[i - 1] == shapes[i - 2])
    )
    everything = (0, *distinct, last) if last else (0,)
    if len(everything) <= most:
        return everything

    def variety(stages: tuple[int, ...]) -> tuple[int, int]:
        kept = [shapes[stage] for stage in stages]
        return len({run for shape in kept for run in shape}), len(set(kept))

    for count in range(most, most + extra + 1):
        options = (
            (0, *between, last) for between in combinations(distinct, min(count, last + 1) - 2)
        )
        fitting = [o for o in options if _fits(plan, graph, [table[i] for i in o])]
        if fitting:
            return max(fitting, key=variety)
    return everything if plan.chunks == 1 else tuple(range(len(table)))


def _fits(plan: Plan, graph: Graph, parts: Parts) -> bool:
    """Whether neighbours agree on what they hand over, and backward reaches as far as before."""
    for left, right in pairwise(parts):
        before, after = (plan.strategies[p.run.strategy] for p in (left[-1], right[0]))
        output = graph.blocks[before.block].output
        if before.homes[output] != after.homes[graph.blocks[after.block].input]:
            return False
    trained = [bool(graph.blocks[instance.block].trainable) for instance in graph.instances]
    seen = False
    for part in (part for rows in parts for part in rows):
        if seen != any(trained[: part.start]):
            return False
        seen = seen or trained[part.start]
    return seen


def _trainable(plan: Plan, graph: Graph, forward: Graph, parts: Parts) -> str:
    """An expression for the parameters that train in the original, under their new names."""
    if plan.workload.trainable == "full":
        return "full"
    names: dict[str, None] = {}
    index = 0
    for part in (part for rows in parts for part in rows):
        block = graph.blocks[graph.instances[part.start].block]
        for instance in forward.instances[index : index + part.run.count]:
            names.update(dict.fromkeys(instance.prefix + local for local in block.trainable))
        index += part.run.count
    return f"^(?:{'|'.join(map(re.escape, names))})$"


# --- dims ---------------------------------------------------------------------------------------


def _divisors(plan: Plan, graph: Graph, sizes: Sequence[int]) -> dict[str, int]:
    """Dim -> what every layout of the plan asks it to divide by, with these axis sizes."""
    table: dict[str, int] = {}
    for strategy in plan.strategies.values():
        block = graph.blocks[strategy.block]
        for name, layout in BlockLayouts(block, strategy).all_layouts():
            for dim in block.tensors[name].dims:
                table[dim] = lcm(table.get(dim, 1), split_factor(dim, layout, sizes))
    return table


def _shrunk_extent(plan: Plan, graph: Graph) -> dict[str, int]:
    """The smallest comfortable size of every dim; what was one or equal stays so."""
    sizes = plan.stages[0].mesh.sizes
    before, needs = _divisors(plan, graph, sizes), _divisors(plan, graph, (AXIS,) * len(sizes))
    extent = {}
    for dim in SMALL.keys() & graph.extent.keys():
        size, need, old = SMALL[dim], needs.get(dim, 1), graph.extent[dim]
        wanted = lcm(size, need)
        extent[dim] = old if old < wanted and old % need == 0 else wanted
    extent["b"] = needs["b"] * min(2, plan.batch // before["b"])
    need = needs.get("p", 1)
    extent["p"] = -(-(extent["s"] + plan.model.position_offset) // need) * need
    model = plan.model
    if model.hidden == model.heads * model.head_dim:
        heads = extent["g"] * extent["r"]
        width = lcm(heads * extent["d"], needs["m"])
        extent["m"], extent["d"] = width, width // heads
    return extent


def _shrunk_model(model: DecoderConfig, extent: Mapping[str, int], parts: Parts) -> DecoderConfig:
    instances = sum(part.run.count for rows in parts for part in rows)
    turned = round(extent["d"] * model.rotary_dim / model.head_dim / 2) * 2
    window = model.sliding_window
    return replace(
        model, hidden=extent["m"], layers=instances - 2, heads=extent["g"] * extent["r"],
        kv_heads=extent["g"], head_dim=extent["d"], ffn=extent["f"], vocab=extent["v"],
        max_positions=extent["p"] - model.position_offset,
        rotary_dim=max(2, turned) if model.rotary_dim else 0,
        sliding_window=min(window, extent["s"] // 2 + 1),
    )  # fmt: skip


# --- devices ------------------------------------------------------------------------------------


def _meshes(plan: Plan, hardware: Hardware, stages: int) -> list[Mesh]:
    """Axes and stages in the same physical order, without gaps."""
    first = plan.stages[0].mesh
    strides = [axis.stride for axis in first.axes]
    if len(plan.stages) > 1:
        strides.append(abs(plan.stages[1].mesh.offset - first.offset))
    order = sorted(range(len(strides)), key=strides.__getitem__)
    lengths = [*(AXIS for _ in first.axes), stages]
    placed = {i: prod(lengths[j] for j in order[:rank]) for rank, i in enumerate(order)}
    axes = name_axes(hardware, [(AXIS, placed[i]) for i in range(len(first.axes))])
    step = placed.get(len(first.axes), 0)
    return [Mesh(axes, stage * step) for stage in range(stages)]
