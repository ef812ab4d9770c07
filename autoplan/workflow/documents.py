"""Plans as files: what is written beside the decisions, and what is derived again on reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from autoplan import __version__
from autoplan.describe import describe
from autoplan.errors import InputError, Problem
from autoplan.files.plan import dump_plan, parse_plan
from autoplan.files.problems import shown
from autoplan.files.text import read_json
from autoplan.frontends import step_graph
from autoplan.ir.graph import Graph
from autoplan.ir.plan import Plan
from autoplan.ir.timeline import Timeline
from autoplan.lower import lower
from autoplan.simulate import simulate
from autoplan.workflow.prediction import Priced, price

SAME = 1e-6
"""Relative difference between a written and a derived number that is no difference: libraries of
other versions round differently."""
MOST_SHOWN = 3


@dataclass(frozen=True)
class Loaded:
    """A plan file, read and derived again.

    Attributes:
        priced: the plan with what it costs now.
        search: how it was found, as written.
        warnings: what the file says otherwise.
    """

    priced: Priced
    search: Mapping[str, Any] | None
    warnings: tuple[str, ...]


def plan_document(priced: Priced, search: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document of a plan file."""
    return dump_plan(priced.plan, priced.parallel, priced.predicted, search, __version__)


def kind_of(document: object) -> str:
    """What a JSON document is: `plan`, `program`, `hardware`, `stack`, `model` or `unknown`."""
    keys = document.keys() if isinstance(document, dict) else set()
    marks = (
        ("plan", {"strategies", "stored", "parallel", "lifetimes"}),
        ("program", {"groups", "micro_batches", "extent"}),
        ("hardware", {"device", "levels"}),
        ("stack", {"constants", "habits", "restricts"}),
        ("model", {"model_type", "architectures"}),
    )
    return next((kind for kind, any_of in marks if keys & any_of), "unknown")


def load_plan(path: str | Path) -> Loaded:
    """The plan in a file, described and simulated again.

    Raises:
        InputError: it is no plan, its decisions do not fit its model and machine, or `parallel` is
            not what they amount to; every problem at once.
    """
    source, document = str(path), read_json(path)
    kind = kind_of(document)
    if kind not in ("plan", "unknown"):
        hint = "name a machine after it" if kind in ("model", "program") else ""
        raise InputError(Problem(source, "", f"a {kind} file", "a plan file", hint))
    file = parse_plan(document, source)
    graph = step_graph(file.plan.model, file.plan.workload)
    priced = price_plan(graph, file.plan)
    _check_parallel(source, file.parallel, describe(graph, file.plan))
    warnings = tuple(_disagreements(source, file.predicted, priced.predicted))
    return Loaded(priced, file.search, warnings)


def price_plan(graph: Graph, plan: Plan, spans: bool = False) -> Priced:
    """A plan, lowered, simulated and priced.

    Args:
        graph: the training step of the plan's model and workload.
        plan: all decisions.
        spans: whether the timeline lists what happens when.

    Raises:
        InputError: the plan does not fit its model or machine.
    """
    timeline = simulate(lower(graph, plan), plan.hardware, plan.stack, spans=spans)
    return price(graph, plan, timeline)


def with_spans(priced: Priced) -> Timeline:
    """The timeline of a plan that lists what happens when."""
    if priced.timeline.spans:
        return priced.timeline
    return price_plan(priced.graph, priced.plan, spans=True).timeline


def _check_parallel(source: str, written: Mapping[str, Any], derived: Mapping[str, Any]) -> None:
    problems = []
    for key, left in sorted(written.items()):
        right = derived.get(key)
        if left != right:
            allowed = f"{shown(right)}, as the decisions say"
            problems.append(Problem(source, f"$.parallel.{key}", shown(left), allowed))
    if problems:
        raise InputError(problems)


def _disagreements(
    source: str, written: Mapping[str, Any] | None, derived: Mapping[str, Any]
) -> Iterator[str]:
    """Where a written prediction differs from the derived one: the first few, and how many more."""
    if written is None:
        return
    found = list(_differences("$.predicted", written, derived))
    for path, left, right in found[:MOST_SHOWN]:
        yield f"{source}: {path} is {shown(left)} in the file, {shown(right)} derived"
    if len(found) > MOST_SHOWN:
        yield f"{source}: and {len(found) - MOST_SHOWN} more predicted values differ"


def _differences(path: str, left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in dict.fromkeys((*right, *left)):
            yield from _differences(f"{path}.{key}", left.get(key), right.get(key))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, pair in enumerate(zip(left, right, strict=True)):
            yield from _differences(f"{path}[{index}]", *pair)
    elif not _same(left, right):
        yield path, left, right


def _same(left: Any, right: Any) -> bool:
    numbers = all(type(value) in (int, float) for value in (left, right))
    return isclose(left, right, rel_tol=SAME) if numbers else bool(left == right)
