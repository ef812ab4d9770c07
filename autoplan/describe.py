"""A finished Plan -> familiar names: the inverse of `presets`.

Reads placements, never how the plan came about. Each mesh axis is named by what it does to the
operators of a layer; where attention, feed-forward, embedding and head use the axes differently, a
key is an object by role.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from autoplan.ir.graph import Block, Graph, kind_of
from autoplan.ir.plan import Choice, Plan, Run, Strategy
from autoplan.ops import BlockLayouts
from autoplan.ops.storing import LEVELS, level_of, splittable_axes
from autoplan.presets import DEFAULT_ORDER, alternates

ROLES = {"attention": ("q", "attention", "o"), "mlp": ("up", "act", "down")}
"""Part of a layer -> its layer operators."""

Parallel = dict[str, Any]


def describe(graph: Graph, plan: Plan) -> Parallel:
    """The pin keys of a plan, with their values.

    A degree is an int, or {part: degree} where parts of the layer differ. Keys: the degrees, `sp`,
    `zero`, `zero_axes` (axes over which state is split), `vocab`, `order`, `micro_batch`,
    `micro_batches`, `vpp`, `schedule`, `recompute`, `layers_per_stage` (of every virtual stage),
    and `mixed` (True where equal layers have different strategies).
    """
    strategy = _main_layer(plan)
    block = graph.blocks[strategy.block]
    sizes = plan.stages[0].mesh.sizes
    roles = {part: axis_roles(strategy, groups) for part, groups in ROLES.items()}
    degrees: Parallel = {}
    for key in ("tp", "tp2", "cp", "dp", "replicated"):
        values = {part: _degree(named, sizes, key) for part, named in roles.items()}
        same = len(set(values.values())) == 1
        degrees[key] = next(iter(values.values())) if same else values
    if degrees["replicated"] == 1:
        del degrees["replicated"]
    axes = _sharding(block, strategy)
    boundary = _boundary(block, strategy)
    batch_parts = prod(s for s, dim in zip(sizes, boundary, strict=True) if dim == "b")
    return {
        **degrees,
        "pp": len(plan.stages),
        "vpp": plan.chunks,
        "sp": _norms_split_positions(strategy, roles["attention"]),
        "zero": max((LEVELS.index(level) for level in axes.values()), default=0),
        "zero_axes": {plan.stages[0].mesh.axes[i].name: LEVELS.index(v) for i, v in axes.items()},
        "vocab": _vocabulary(plan),
        "order": _order(plan, roles["attention"]),
        "micro_batch": max(1, plan.batch // batch_parts),
        "micro_batches": plan.schedule.micro_batches,
        "schedule": plan.schedule.family,
        "recompute": _recompute(plan),
        "layers_per_stage": _layers(plan),
        "mixed": _mixed(plan),
    }


def axis_roles(strategy: Strategy, groups: Sequence[str]) -> tuple[str, ...]:
    """What each axis does to a part of a layer: dp, cp, tp, tp2, or replicated.

    The first and last operators of a part hold weights (q and o, up and down). Splitting sequences
    is dp; positions everywhere cp; heads or feed-forward width tp; the model width tp2.
    """
    first, last = strategy.splits[groups[0]], strategy.splits[groups[-1]]
    return tuple(_role(a, b) for a, b in zip(first, last, strict=True))


def _role(first: Choice, last: Choice) -> str:
    names = {"b": "dp", "s": "cp", "g": "tp", "r": "tp", "d": "tp", "f": "tp", "m": "tp2"}
    pair = (names.get(first or "", "replicated"), names.get(last or "", "replicated"))
    if pair[0] == pair[1]:
        return pair[0]
    for name in ("tp", "tp2", "cp", "dp"):  # halves differ: name the one that splits a weight
        if name in pair:
            return name
    return "replicated"


def _degree(roles: Sequence[str], sizes: Sequence[int], key: str) -> int:
    return prod(size for role, size in zip(roles, sizes, strict=True) if role == key)


def _main_layer(plan: Plan) -> Strategy:
    """The strategy of most layers."""
    counts: Counter[str] = Counter()
    for stage in plan.stages:
        for run in stage.runs:
            if kind_of(plan.strategies[run.strategy].block) == "layer":
                counts[run.strategy] += run.count
    return plan.strategies[counts.most_common(1)[0][0]]


def _layer_runs(plan: Plan) -> list[Run]:
    return [
        run
        for stage in plan.stages
        for run in stage.runs
        if kind_of(plan.strategies[run.strategy].block) == "layer"
    ]


def _mixed(plan: Plan) -> bool:
    """Whether a block has several strategies; variants in what is frozen are other blocks."""
    strategies = {run.strategy for run in _layer_runs(plan)}
    return len(strategies) > len({plan.strategies[key].block for key in strategies})


def _boundary(block: Block, strategy: Strategy) -> tuple[str, ...]:
    """The dim each axis splits of the residual stream."""
    return tuple(p.name if p.kind == "S" else "" for p in strategy.homes[block.input].value)


def _norms_split_positions(strategy: Strategy, roles: Sequence[str]) -> bool:
    """Whether norms split positions along the axes that split weights; true without such axes."""
    choices = strategy.splits["attention_norm"]
    return all(
        choice == "s" for choice, role in zip(choices, roles, strict=True) if role in ("tp", "tp2")
    )


def _sharding(block: Block, strategy: Strategy) -> Mapping[int, str]:
    """Mesh axis -> level at which the state of most weights is split over it."""
    if not block.trainable:
        return {}
    layouts = BlockLayouts(block, strategy)
    votes: dict[int, Counter[str]] = {}
    for name in block.trainable:
        used, raw = layouts.used[name], layouts.raw_gradient(name)
        dims = len(block.tensors[name].dims)
        for axis in splittable_axes(used, raw):
            if dims > 1:  # vectors follow norms, whose axes differ from those of the weights
                level = level_of(strategy.stored[name], used, raw, axis)
                votes.setdefault(axis, Counter())[level] += 1
    levels = {axis: count.most_common(1)[0][0] for axis, count in votes.items()}
    return {axis: level for axis, level in levels.items() if level != "whole"}


def _vocabulary(plan: Plan) -> bool:
    """Whether some axis splits the vocabulary of the head."""
    head = next((s for s in plan.strategies.values() if kind_of(s.block) == "head"), None)
    return head is not None and "v" in head.splits["head"]


def _order(plan: Plan, roles: Sequence[str]) -> str:
    """Degrees above one, innermost first in the machine, joined by `-`; "" for one device."""
    strides: dict[str, int] = {}
    for axis, role in zip(plan.stages[0].mesh.axes, roles, strict=True):
        strides[role] = min(strides.get(role, axis.stride), axis.stride)
    if len(plan.stages) > 1:
        strides["pp"] = plan.stages[1].mesh.offset - plan.stages[0].mesh.offset
    names = sorted(strides, key=lambda role: (strides[role], _default_rank(role)))
    return "-".join(names)


def _default_rank(role: str) -> int:
    return DEFAULT_ORDER.index(role) if role in DEFAULT_ORDER else len(DEFAULT_ORDER)


def _recompute(plan: Plan) -> str:
    """none, full, full:k/n for k of n layers, or what the stack calls selective."""
    runs = _layer_runs(plan)
    if alternates(plan.stack) and _every_second(plan):
        return "selective"
    total = sum(run.count for run in runs)
    again = sum(run.count for run in runs if run.recompute)
    return {0: "none", total: "full"}.get(again, f"full:{again}/{total}")


def _every_second(plan: Plan) -> bool:
    """Whether of each stage's layers the second, fourth, ... are computed again, and one at all."""
    stages = [_flags(plan, stage.runs) for stage in plan.stages]
    right = all(again == bool(i % 2) for flags in stages for i, again in enumerate(flags))
    return right and any(any(flags) for flags in stages)


def _flags(plan: Plan, runs: Sequence[Run]) -> list[bool]:
    """Of each layer whether it is computed again."""
    return [
        run.recompute
        for run in runs
        if kind_of(plan.strategies[run.strategy].block) == "layer"
        for _ in range(run.count)
    ]


def _layers(plan: Plan) -> list[int]:
    """Decoder layers of each virtual stage."""
    return [len(_flags(plan, runs)) for _, runs in plan.virtual_stages]
