"""Structural checks of a plan: what can be said without its graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autoplan.errors import nearest
from autoplan.files.layouts import mesh_devices
from autoplan.files.problems import Problems
from autoplan.ir.layout import Layout, format_layout
from autoplan.ir.plan import Plan, Run, Strategy

LAYER = "layer"
"""Name of the repeated block; variants are `layer~frozen` and the like."""


def layer_count(runs: Sequence[Run], strategies: Mapping[str, Strategy]) -> int:
    """Layers among the runs of a stage."""
    return sum(
        run.count for run in runs if strategies[run.strategy].block.partition("~")[0] == LAYER
    )


def check_plan(plan: Plan, problems: Problems) -> None:
    """Record what is wrong in structure.

    Stages have disjoint devices inside the machine; runs name strategies that exist, and every
    strategy is used; layouts and splits have one placement per mesh axis; micro-batches divide the
    batch.
    """
    _check_devices(plan, problems)
    _check_references(plan, problems)
    _check_axes(plan, problems)
    batch, parts = plan.workload.global_batch_size, plan.schedule.micro_batches
    if batch % parts:
        problems.add("$.schedule.micro_batches", parts, f"a divisor of global_batch_size = {batch}")


def _check_devices(plan: Plan, problems: Problems) -> None:
    taken: dict[int, int] = {}
    for index, stage in enumerate(plan.stages):
        where = f"$.stages[{index}].mesh"
        devices = mesh_devices(stage.mesh)
        if devices is None:
            problems.add(where, str(stage.mesh), "axes that reach every device of the stage once")
            continue
        if devices[-1] >= plan.hardware.count:
            allowed = f"devices below {plan.hardware.count}, the size of {plan.hardware.name}"
            problems.add(where, devices[-1], allowed)
        shared = [device for device in devices if device in taken]
        if shared:
            allowed = f"devices that stage {taken[shared[0]]} does not use"
            problems.add(where, shared[0], allowed)
        taken.update(dict.fromkeys(devices, index))


def _check_references(plan: Plan, problems: Problems) -> None:
    used = set()
    for index, stage in enumerate(plan.stages):
        for place, run in enumerate(stage.runs):
            used.add(run.strategy)
            if run.strategy not in plan.strategies:
                where = f"$.stages[{index}].runs[{place}].strategy"
                names = sorted(plan.strategies)
                allowed = f"one of {', '.join(names)}"
                problems.add(where, run.strategy, allowed, nearest(run.strategy, names))
    for key in sorted(set(plan.strategies) - used):
        problems.add(f"$.strategies.{key}", key, "a strategy that some run uses")


def _check_axes(plan: Plan, problems: Problems) -> None:
    """Every layout of a strategy has as many placements as the meshes that use it have axes."""
    wanted: dict[str, set[int]] = {key: set() for key in plan.strategies}
    for stage in plan.stages:
        for run in stage.runs:
            wanted.setdefault(run.strategy, set()).add(len(stage.mesh.axes))
    for key, strategy in plan.strategies.items():
        for axes in sorted(wanted[key]):
            for where, count, text in _lengths(key, strategy):
                if count != axes:
                    problems.add(where, text, f"{axes} entries, one per mesh axis of its stages")


def _lengths(key: str, strategy: Strategy) -> Iterator[tuple[str, int, str]]:
    """Path, number of entries and text of every choice and layout of a strategy."""

    def layout(path: str, value: Layout) -> tuple[str, int, str]:
        return path, len(value), format_layout(value)

    base = f"$.strategies.{key}"
    for name, choice in strategy.splits.items():
        yield f"{base}.splits.{name}", len(choice), str(list(choice))
    for name, home in strategy.homes.items():
        yield layout(f"{base}.homes.{name}.value", home.value)
        yield layout(f"{base}.homes.{name}.gradient", home.gradient)
    for name, value in strategy.saved.items():
        yield layout(f"{base}.saved.{name}", value)
    for name, stored in strategy.stored.items():
        for kind in ("parameter", "gradient", "optimizer"):
            yield layout(f"$.stored.{key}.{name}.{kind}", getattr(stored, kind))
