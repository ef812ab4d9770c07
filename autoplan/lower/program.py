"""Plan -> Program, with every problem of the plan reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from autoplan.errors import InputError, Problem, Refusal
from autoplan.ir.graph import Graph
from autoplan.ir.plan import Home, Plan, StagePlan, Strategy
from autoplan.ir.program import Program
from autoplan.lower.member import Member, SegmentStore
from autoplan.lower.segments import BlockContext
from autoplan.lower.stage import StageLowering
from autoplan.ops.layouts import BlockLayouts
from autoplan.pipeline import rounds

Runs = list[tuple[int, str, bool]]


def lower(graph: Graph, plan: Plan) -> Program:
    """The Program of a Plan.

    Args:
        graph: the training step of the plan's model and workload.
        plan: all decisions.

    Raises:
        InputError: the plan does not fit the model or its machine; all problems at once.
    """
    problems = _structure_problems(graph, plan)
    if problems:
        raise InputError(problems)
    layouts, problems = _derive_layouts(graph, plan)
    problems += _boundary_problems(graph, plan, layouts)
    problems += _tied_problems(graph, plan)
    if problems:
        raise InputError(problems)
    extent = {**graph.extent, "b": plan.batch}
    contexts = {
        key: _context(graph, plan, layouts[key], extent, stage)
        for stage in plan.stages
        for key in (run.strategy for run in stage.runs)
    }
    store = SegmentStore()
    stages = []
    for index, chunks in enumerate(_chunk_instances(plan)):
        members = _members(graph, chunks, contexts)
        stages.append(StageLowering(plan, graph, index, members, store).lower())
    return Program(
        tuple(stages), plan.schedule.micro_batches, plan.batch, plan.workload.seq_len,
        _groups(graph, plan), extent,
    )  # fmt: skip


def stage_instances(plan: Plan) -> list[Runs]:
    """Per stage its instances: (index into the graph's instances, strategy key, recompute)."""
    return [list(chain(*chunks)) for chunks in _chunk_instances(plan)]


def _chunk_instances(plan: Plan) -> list[list[Runs]]:
    """The instances of every chunk of every stage."""
    table: list[list[Runs]] = [[] for _ in plan.stages]
    index = 0
    for stage, runs in plan.virtual_stages:
        rows = []
        for run in runs:
            rows += [(index + i, run.strategy, run.recompute) for i in range(run.count)]
            index += run.count
        table[stage].append(rows)
    return table


def _in_order(plan: Plan) -> list[tuple[int, str]]:
    """(stage, strategy key) of every instance of the model."""
    return [
        (stage, run.strategy)
        for stage, runs in plan.virtual_stages
        for run in runs
        for _ in range(run.count)
    ]


def _structure_problems(graph: Graph, plan: Plan) -> list[Problem]:
    """Do stages cover the model, and does the batch divide?"""
    problems = []
    total = sum(run.count for stage in plan.stages for run in stage.runs)
    if total != len(graph.instances):
        allowed = f"{len(graph.instances)} (embedding, layers and head of {graph.name})"
        problems.append(Problem("plan", "$.stages", f"{total} blocks", allowed))
        return problems
    for number, (stage, chunks) in enumerate(zip(plan.stages, _chunk_instances(plan), strict=True)):
        empty = [chunk for chunk, rows in enumerate(chunks) if not rows]
        if empty:
            found = f"no block in chunk {empty[0]}" if plan.chunks > 1 else "no block"
            problems.append(Problem("plan", f"$.stages[{number}]", found, "one at least"))
        rows = list(chain(*chunks))
        for index, key, _ in rows:
            strategy, expected = plan.strategies[key], graph.instances[index].block
            if strategy.block != expected:
                found = f"strategy `{key}` of block {strategy.block} at block {index}"
                problems.append(Problem("plan", "$.stages", found, f"block {expected}"))
                break
        axes = len(stage.mesh.axes)
        problems += _strategy_problems(graph, plan, rows, axes)
    batch, micro = plan.workload.global_batch_size, plan.schedule.micro_batches
    if batch % micro:
        allowed = f"a divisor of global_batch_size {batch}"
        problems.append(Problem("plan", "$.schedule.micro_batches", str(micro), allowed))
    return list(dict.fromkeys([*problems, *_chunk_problems(plan)]))


def _chunk_problems(plan: Plan) -> Iterator[Problem]:
    """Does the schedule take the stages' chunks?"""
    family, micro, stages = plan.schedule.family, plan.schedule.micro_batches, len(plan.stages)
    found = f"{plan.chunks} chunks on a stage"
    if (family == "interleaved") != (plan.chunks > 1):
        allowed = "several chunks" if family == "interleaved" else "one chunk, or interleaved"
        yield Problem("plan", "$.schedule.family", f"{family}, with {found}", allowed)
    if plan.chunks > 1 and stages == 1:
        yield Problem("plan", "$.stages", f"one stage, with {found}", "several stages")
    if plan.chunks > 1 and micro % rounds(stages, micro):
        allowed = f"{rounds(stages, micro)} equal turns over {stages} stages, with {found}"
        yield Problem("plan", "$.schedule.micro_batches", str(micro), allowed)


def _strategy_problems(graph: Graph, plan: Plan, rows: Runs, axes: int) -> list[Problem]:
    """Does each strategy decide everything its block asks, for every axis of its stage's mesh?"""
    problems = []
    for key in dict.fromkeys(key for _, key, _ in rows):
        strategy = plan.strategies[key]
        block = graph.blocks.get(strategy.block)
        if block is None:
            continue
        where = f"$.strategies.{key}"
        tables = (
            ("splits", block.groups, strategy.splits),
            ("homes", block.hubs, strategy.homes),
            ("stored", block.parameters, strategy.stored),
            ("saved", block.saved, strategy.saved),
        )
        for field, expected, given in tables:
            missing = [name for name in expected if name not in given]
            unknown = [name for name in given if name not in expected]
            if missing and field != "saved":  # what waits has a default layout
                problems.append(
                    Problem("plan", f"{where}.{field}", f"no {', '.join(missing)}", "one for each")
                )
            if unknown:
                allowed = ", ".join(expected) or "nothing"
                problems.append(Problem("plan", f"{where}.{field}", ", ".join(unknown), allowed))
        for name, choices in strategy.splits.items():
            if len(choices) != axes:
                found = f"{len(choices)} choices"
                problems.append(Problem("plan", f"{where}.splits.{name}", found, f"{axes}"))
    return problems


def _derive_layouts(graph: Graph, plan: Plan) -> tuple[dict[str, BlockLayouts], list[Problem]]:
    extent = {**graph.extent, "b": plan.batch}
    layouts: dict[str, BlockLayouts] = {}
    problems = []
    for stage in plan.stages:
        for run in stage.runs:
            if run.strategy in layouts:
                continue
            strategy = plan.strategies[run.strategy]
            derived = BlockLayouts(graph.blocks[strategy.block], strategy)
            layouts[run.strategy] = derived
            try:
                derived.check(stage.mesh.sizes, extent)
            except Refusal as refusal:
                where = f"$.strategies.{run.strategy}"
                problems.append(Problem("plan", where, str(refusal), "a legal layout"))
    return layouts, problems


def _boundary_problems(graph: Graph, plan: Plan, layouts: dict[str, BlockLayouts]) -> list[Problem]:
    """Neighbouring blocks must agree on what they hand over; between stages nothing is partial.

    A stage with several chunks receives in one layout, whichever chunk it is for.
    """
    problems = []
    received: dict[int, Home] = {}
    for (stage, key), (next_stage, next_key) in pairwise(_in_order(plan)):
        out, into = layouts[key], layouts[next_key]
        left, right = _home(out, out.block.output), _home(into, into.block.input)
        where = f"$.strategies.{next_key}.homes.{into.block.input}"
        if left is None or right is None:
            continue
        if left != right:
            problems.append(
                Problem(
                    "plan", where, _home_text(right), f"{_home_text(left)}, as `{key}` leaves it"
                )
            )
        if stage != next_stage:
            for receiver, home in ((stage, left), (next_stage, right)):
                expected = received.setdefault(receiver, home)
                if home != expected and plan.chunks > 1:
                    allowed = f"{_home_text(expected)}, as elsewhere on stage {receiver}"
                    problems.append(Problem("plan", where, _home_text(home), allowed))
            if any(p.kind == "P" for p in left.gradient):
                problems.append(
                    Problem("plan", where, _home_text(left), "a gradient that is not partial")
                )
            sizes = plan.stages[stage].mesh.sizes, plan.stages[next_stage].mesh.sizes
            if sizes[0] != sizes[1]:
                found = f"meshes {sizes[0]} and {sizes[1]} beside each other"
                problems.append(Problem("plan", "$.stages", found, "meshes of one shape"))
    return list(dict.fromkeys(problems))


def _home(layouts: BlockLayouts, hub: str) -> Home | None:
    try:
        return layouts.home(hub)
    except Refusal:
        return None


def _home_text(home: Home) -> str:
    return f"value {list(home.value)} gradient {list(home.gradient)}"


def _tied_problems(graph: Graph, plan: Plan) -> list[Problem]:
    """All uses of a tied parameter store it alike."""
    problems = []
    keys = [key for _, key in _in_order(plan)]
    for name, users in graph.tied.items():
        stored = {}
        for index in users:
            strategy: Strategy = plan.strategies[keys[index]]
            local = name.removeprefix(graph.instances[index].prefix)
            if local in strategy.stored:
                stored[keys[index]] = strategy.stored[local]
        if len(set(stored.values())) > 1:
            where = f"$.stored of {', '.join(stored)}"
            problems.append(
                Problem("plan", where, f"different layouts of {name}", "one: it is one tensor")
            )
    return problems


def _context(
    graph: Graph, plan: Plan, layouts: BlockLayouts, extent: dict[str, int], stage: StagePlan
) -> BlockContext:
    prefixes = {i.prefix for i in graph.instances if i.block == layouts.block.name}
    tied = frozenset(
        name for name in layouts.block.parameters
        if any(prefix + name in graph.tied for prefix in prefixes)
    )  # fmt: skip
    return BlockContext(layouts, stage.mesh.sizes, extent, plan.workload.precision, tied)


def _members(
    graph: Graph, chunks: Sequence[Runs], contexts: dict[str, BlockContext]
) -> list[Sequence[Member]]:
    """A stage's instances by chunk, and which owns, shares, counts and opens each gradient."""
    rows = list(chain(*chunks))
    own = {index for index, _, _ in rows}
    first_user: dict[str, int] = {}
    last_user: dict[str, int] = {}
    for index, key, _ in rows:
        for name in contexts[key].block.trainable:
            full = graph.instances[index].prefix + name
            first_user.setdefault(full, index)
            last_user[full] = index

    def member(index: int, key: str, recompute: bool) -> Member:
        block = contexts[key].block
        prefix = graph.instances[index].prefix
        owned = tuple(n for n in block.trainable if first_user[prefix + n] == index)
        users = graph.tied
        shared = tuple(n for n in owned if not own.issuperset(users.get(prefix + n, ())))
        counted = all(users[prefix + n][0] in own for n in shared)
        opens = frozenset(n for n in block.trainable if last_user[prefix + n] == index)
        return Member(index, key, contexts[key], recompute, owned, shared, counted, opens)

    return [[member(*row) for row in chunk] for chunk in chunks]


def _groups(graph: Graph, plan: Plan) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Groups beyond mesh axes: all ranks, and the stages that share a tied parameter."""
    devices = [stage.mesh.devices() for stage in plan.stages]
    groups: dict[str, tuple[tuple[int, ...], ...]] = {
        "world": (tuple(sorted(d for stage in devices for d in stage)),)
    }
    stage_of = [stage for stage, _ in _in_order(plan)]
    for name, users in graph.tied.items():
        stages = sorted({stage_of[index] for index in users})
        if len(stages) > 1:
            groups["tied:" + name] = tuple(zip(*(devices[s] for s in stages), strict=True))
    return groups
