"""Plan JSON (`schema_version` 1) <-> `ir.plan.Plan`.

Decisions: `model`, `hardware`, `stack` (normalised and embedded, with digest and reference, so that
a plan runs elsewhere as one file), `workload`, `stages` (which devices), `strategies` and `stored`
(where), `schedule` and `orders` (when), `lifetimes` (how long), `routes` (exceptions; none yet).
`parallel`, `predicted` and `search` are for people and programs; whoever loads a plan derives them
again. `layers` and `devices` of a stage say what its runs and mesh say; a file where they differ is
refused. Whether dims divide and layers add up to the model is for lowering to check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from autoplan.files.hardware import dump_hardware, parse_hardware
from autoplan.files.layouts import LayoutText, MeshFile, build_mesh, dump_mesh, format_devices
from autoplan.files.model import dump_model, parse_model
from autoplan.files.plan_checks import check_plan, layer_count
from autoplan.files.problems import Problems, Strict, one_of, validate
from autoplan.files.stack import dump_stack, parse_stack
from autoplan.files.text import digest
from autoplan.files.workload import LARGEST, dump_workload, parse_workload
from autoplan.ir.layout import format_layout
from autoplan.ir.plan import (
    SCHEDULES,
    Home,
    Orders,
    Plan,
    Run,
    Schedule,
    StagePlan,
    Stored,
    Strategy,
)

SCHEMA_VERSION = 1

Noun = TypeVar("Noun")


class EmbeddedFile(Strict):
    """An input of the plan, whole."""

    reference: str
    digest: str
    embedded: Any


class RunFile(Strict):
    """One of a stage's `runs`."""

    strategy: str = Field(min_length=1)
    count: int = Field(ge=1, le=100_000)
    chunk: int = Field(default=0, ge=0, le=1000)


class StageFile(Strict):
    """One of `stages`."""

    layers: int = Field(ge=0, le=100_000)
    devices: str
    mesh: MeshFile
    runs: list[RunFile] = Field(min_length=1)


class HomeFile(Strict):
    """Layouts of a hub."""

    value: LayoutText
    gradient: LayoutText


class StoredFile(Strict):
    """Layouts of a parameter between uses."""

    parameter: LayoutText
    gradient: LayoutText
    optimizer: LayoutText


class StrategyFile(Strict):
    """One of `strategies`."""

    block: str = Field(min_length=1)
    splits: dict[str, list[str | None]]
    homes: dict[str, HomeFile]
    saved: dict[str, LayoutText] = {}


class ScheduleFile(Strict):
    """`schedule`."""

    family: Annotated[str, one_of(SCHEDULES)]
    micro_batches: int = Field(ge=1, le=LARGEST)
    slices: Literal[1] = 1


class OrdersFile(Strict):
    """`orders`."""

    prefetch: int = Field(ge=0, le=100_000)


class LifetimesFile(Strict):
    """`lifetimes`: per stage and run whether its blocks are computed again in backward."""

    recompute: list[list[bool]]


class NothingFile(Strict):
    """An object without fields."""


class PlanDocument(Strict):
    """A whole plan."""

    schema_version: Literal[1]
    version: str = ""
    model: EmbeddedFile
    hardware: EmbeddedFile
    stack: EmbeddedFile
    workload: Any
    stages: list[StageFile] = Field(min_length=1)
    strategies: dict[str, StrategyFile]
    stored: dict[str, dict[str, StoredFile]]
    schedule: ScheduleFile
    orders: OrdersFile
    lifetimes: LifetimesFile
    routes: NothingFile = NothingFile()
    parallel: dict[str, Any]
    predicted: dict[str, Any] | None = None
    search: dict[str, Any] | None = None


@dataclass(frozen=True)
class PlanFile:
    """What a plan file holds.

    Attributes:
        plan: the decisions.
        parallel: the pin keys that describe it, as written.
        predicted: the prediction, as written, or None.
        search: how it was found, as written, or None.
    """

    plan: Plan
    parallel: Mapping[str, Any]
    predicted: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None


def dump_plan(
    plan: Plan,
    parallel: Mapping[str, Any],
    predicted: Mapping[str, Any] | None,
    search: Mapping[str, Any] | None,
    version: str,
) -> dict[str, Any]:
    """The document of a plan; `parse_plan` gives everything back, equal.

    Args:
        plan: the decisions.
        parallel: the pin keys that describe it.
        predicted: the prediction, or None.
        search: how it was found, or None.
        version: of the program that writes.
    """
    hardware = f"{plan.hardware.name}:{plan.hardware.count}"
    return {
        "schema_version": SCHEMA_VERSION,
        "version": version,
        "model": _embedded(plan.model.name, dump_model(plan.model)),
        "hardware": _embedded(hardware, dump_hardware(plan.hardware)),
        "stack": _embedded(plan.stack.name, dump_stack(plan.stack)),
        "workload": dump_workload(plan.workload),
        "stages": [_stage(stage, plan.strategies) for stage in plan.stages],
        "strategies": {key: _strategy(s) for key, s in sorted(plan.strategies.items())},
        "stored": {key: _stored(s) for key, s in sorted(plan.strategies.items())},
        "schedule": {
            "family": plan.schedule.family,
            "micro_batches": plan.schedule.micro_batches,
            "slices": 1,
        },
        "orders": {"prefetch": plan.orders.prefetch},
        "lifetimes": {
            "recompute": [[run.recompute for run in stage.runs] for stage in plan.stages],
        },
        "routes": {},
        "parallel": dict(parallel),
        "predicted": None if predicted is None else dict(predicted),
        "search": None if search is None else dict(search),
    }


def _embedded(reference: str, document: dict[str, Any]) -> dict[str, Any]:
    return {"reference": reference, "digest": digest(document), "embedded": document}


def _stage(stage: StagePlan, strategies: Mapping[str, Strategy]) -> dict[str, Any]:
    return {
        "layers": layer_count(stage.runs, strategies),
        "devices": format_devices(stage.mesh.devices()),
        "mesh": dump_mesh(stage.mesh),
        "runs": [_run(run) for run in stage.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    """Without `chunk` where a stage is one."""
    entry: dict[str, Any] = {"strategy": run.strategy, "count": run.count}
    return {**entry, "chunk": run.chunk} if run.chunk else entry


def _strategy(strategy: Strategy) -> dict[str, Any]:
    return {
        "block": strategy.block,
        "splits": {name: list(choice) for name, choice in sorted(strategy.splits.items())},
        "homes": {
            name: {"value": format_layout(h.value), "gradient": format_layout(h.gradient)}
            for name, h in sorted(strategy.homes.items())
        },
        "saved": {name: format_layout(at) for name, at in sorted(strategy.saved.items())},
    }


def _stored(strategy: Strategy) -> dict[str, Any]:
    return {
        name: {
            "parameter": format_layout(at.parameter),
            "gradient": format_layout(at.gradient),
            "optimizer": format_layout(at.optimizer),
        }
        for name, at in sorted(strategy.stored.items())
    }


def parse_plan(document: object, source: str) -> PlanFile:
    """The plan that a document describes.

    Args:
        document: parsed JSON.
        source: the file, for messages.

    Raises:
        InputError: every problem at once.
    """
    problems = Problems(source)
    raw = document if isinstance(document, dict) else {}
    file = problems.attempt(lambda: validate(PlanDocument, document, source))
    model = _read_embedded(raw, "model", parse_model, dump_model, problems)
    hardware = _read_embedded(raw, "hardware", parse_hardware, dump_hardware, problems)
    stack = _read_embedded(raw, "stack", parse_stack, dump_stack, problems)
    workload = None
    if "workload" in raw:
        workload = problems.attempt(lambda: parse_workload(raw["workload"], source, "$.workload"))
    if file is None or model is None or hardware is None or stack is None or workload is None:
        problems.check()
        raise AssertionError("a part that cannot be read has a problem")
    stages, strategies = _build_stages(file), _build_strategies(file)
    plan = Plan(
        model=model,
        hardware=hardware,
        stack=stack,
        workload=workload,
        strategies=strategies,
        stages=stages,
        schedule=Schedule(file.schedule.family, file.schedule.micro_batches),
        orders=Orders(file.orders.prefetch),
    )
    _check_written(file, problems)
    check_plan(plan, problems)
    if not problems.found:
        _check_derived(file, plan, problems)
    problems.check()
    return PlanFile(_with_recompute(plan, file), file.parallel, file.predicted, file.search)


def _read_embedded(
    raw: Mapping[str, Any],
    name: str,
    parse: Callable[[object, str, str], Noun],
    dump: Callable[[Noun], dict[str, Any]],
    problems: Problems,
) -> Noun | None:
    """An embedded input; its digest must be that of its content."""
    section = raw.get(name)
    if not isinstance(section, dict) or "embedded" not in section:
        return None
    path = f"$.{name}.embedded"
    noun = problems.attempt(lambda: parse(section["embedded"], problems.source, path))
    if noun is not None:
        right = digest(dump(noun))
        if section.get("digest") != right and isinstance(section.get("digest"), str):
            hint = f"{path} was changed: put the allowed digest here if that was meant"
            problems.add(f"$.{name}.digest", section["digest"], right, hint)
    return noun


def _build_stages(file: PlanDocument) -> tuple[StagePlan, ...]:
    return tuple(
        StagePlan(
            build_mesh(s.mesh),
            tuple(Run(run.strategy, run.count, chunk=run.chunk) for run in s.runs),
        )
        for s in file.stages
    )


def _build_strategies(file: PlanDocument) -> dict[str, Strategy]:
    return {
        key: Strategy(
            block=entry.block,
            splits={name: tuple(choice) for name, choice in entry.splits.items()},
            homes={name: Home(h.value, h.gradient) for name, h in entry.homes.items()},
            saved=dict(entry.saved),
            stored={
                name: Stored(at.parameter, at.gradient, at.optimizer)
                for name, at in file.stored.get(key, {}).items()
            },
        )
        for key, entry in file.strategies.items()
    }


def _check_written(file: PlanDocument, problems: Problems) -> None:
    """`stored` and `lifetimes` have an entry for exactly what there is."""
    for key in sorted(set(file.stored) ^ set(file.strategies)):
        section = "stored" if key in file.stored else "strategies"
        other = "strategies" if section == "stored" else "stored"
        problems.add(f"$.{section}.{key}", key, f"a key of $.{other} as well")
    runs = [len(stage.runs) for stage in file.stages]
    if [len(entry) for entry in file.lifetimes.recompute] != runs:
        found = [len(entry) for entry in file.lifetimes.recompute]
        problems.add("$.lifetimes.recompute", found, f"{runs} entries, one per stage and run")


def _check_derived(file: PlanDocument, plan: Plan, problems: Problems) -> None:
    """`layers` and `devices` agree with runs and mesh."""
    for index, (entry, stage) in enumerate(zip(file.stages, plan.stages, strict=True)):
        layers = layer_count(stage.runs, plan.strategies)
        devices = format_devices(stage.mesh.devices())
        if entry.layers != layers:
            problems.add(f"$.stages[{index}].layers", entry.layers, f"{layers}, as its runs say")
        if entry.devices != devices:
            allowed = f"`{devices}`, as its mesh says"
            problems.add(f"$.stages[{index}].devices", entry.devices, allowed)


def _with_recompute(plan: Plan, file: PlanDocument) -> Plan:
    stages = tuple(
        replace(
            stage,
            runs=tuple(
                replace(run, recompute=again) for run, again in zip(stage.runs, flags, strict=True)
            ),
        )
        for stage, flags in zip(plan.stages, file.lifetimes.recompute, strict=True)
    )
    return replace(plan, stages=stages)
