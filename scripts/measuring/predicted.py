"""Cases -> predictions, before anything runs, and the rows that hold them.

A row is a JSON object: `id`, `group`, `model`, `ranks`, `pins`, `precision`, `plan` (a whole plan
file, with what was predicted), `predicted_parts` and, once measured, `measured`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoplan.errors import InputError
from autoplan.files.machine_spec import load_hardware
from autoplan.files.plan import parse_plan
from autoplan.files.stack import dump_stack, load_stack, stack_digest
from autoplan.files.text import write_json
from autoplan.ir.plan import Plan
from autoplan.presets.pins import LATER, PARSERS
from autoplan.workflow import (
    Options,
    Priced,
    Question,
    plan_document,
    plan_search,
    step_graph,
)
from autoplan.workflow.documents import price_plan
from autoplan.workflow.verbs import find_plan

from .parts import parts
from .workloads import Case

Row = dict[str, Any]


def write_models(folder: Path, models: Mapping[str, Any]) -> None:
    """Write configs by name, so that plans can be asked for by it and made again."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in models.items():
        write_json(folder / f"{name}.json", document)


def predict(case: Case, models: Path, machine: str) -> Priced:
    """The plan of a case, priced.

    Raises:
        InputError: the model or the machine does not allow it.
    """
    options = Options(global_batch_size=case.batch, seq_len=case.seq_len, precision=case.precision)
    subject = str(models / f"{case.model}.json")
    if not case.pins:
        best = plan_search(Question(subject, machine, options=options), top=1).plans[0]
        return price_plan(best.graph, best.plan, spans=True)
    return find_plan(Question(subject, machine, pins=(case.pins,), options=options), True).priced


def predict_all(
    cases: Iterable[Case], models: Path, machines: Mapping[int, str]
) -> list[tuple[Case, Priced]]:
    """The cases that are legal, priced.

    Args:
        cases: what to price.
        models: folder of their configs.
        machines: ranks -> machine.
    """
    found = []
    for case in cases:
        try:
            found.append((case, predict(case, models, machines[case.ranks])))
        except InputError:
            continue  # a sample of all combinations has some that the planner refuses
    return found


def row_of(number: int, case: Case, priced: Priced) -> Row:
    """A row without measurements."""
    sizes = [stage.mesh.size for stage in priced.plan.stages]
    return {
        "id": f"{number:03}",
        "group": case.group,
        "model": case.model,
        "ranks": case.ranks,
        "pins": case.pins or "the pick",
        "precision": case.precision,
        "predicted_parts": parts(priced.timeline.spans, sizes, case.ranks),
        "plan": plan_document(priced),
    }


def plan_of(row: Row) -> Plan:
    """The plan of a row, with its stack as it is today: what a stack may say grows."""
    stack = load_stack(row["plan"]["stack"]["reference"], (*PARSERS, *sorted(LATER)))
    today = {"embedded": dump_stack(stack), "digest": stack_digest(stack)}
    document = {**row["plan"], "stack": {**row["plan"]["stack"], **today}}
    return parse_plan(document, row["id"]).plan


def repriced(row: Row, profile: str | None) -> Row:
    """A row with its plan priced by the costs of today.

    Args:
        row: as `row_of` made it.
        profile: of the machine, or None for the one in the plan.
    """
    plan = plan_of(row)
    if profile is not None:
        plan = replace(plan, hardware=load_hardware(f"{profile}:{row['ranks']}"))
    priced = price_plan(step_graph(plan.model, plan.workload), plan, spans=True)
    sizes = [stage.mesh.size for stage in plan.stages]
    return {
        **row,
        "predicted_parts": parts(priced.timeline.spans, sizes, row["ranks"]),
        "plan": plan_document(priced),
    }
