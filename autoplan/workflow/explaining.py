"""Explain: where time and memory of a plan go, what would help, and why not another plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoplan.errors import InputError
from autoplan.ir.machine import Hardware
from autoplan.ir.program import Program
from autoplan.ir.timeline import MEMORY_LINES
from autoplan.lower import lower
from autoplan.presets import DEGREES, Pin, Pins, build_plan, parse_pins
from autoplan.simulate import simulate
from autoplan.workflow.configured import (
    Configured,
    better_plan,
    config_document,
    read_configured,
)
from autoplan.workflow.documents import price_plan
from autoplan.workflow.measured import compare_measured, parse_measured
from autoplan.workflow.prediction import Priced
from autoplan.workflow.question import Question
from autoplan.workflow.verbs import Target, find_plan
from autoplan.workflow.where import stage_operators

BETTER = 1.10
"""By how much each number of the machine is bettered to see what would help."""
KEPT: Mapping[str, tuple[str, ...]] = {
    "recompute": (), "micro_batch": (), "schedule": ("pp",), "zero": ("dp", "cp"),
    "sp": ("tp", "tp2"), "vocab": ("tp", "tp2"), "vpp": ("pp",),
}  # fmt: skip
"""Decisions that the other plan of `--why-not` takes over where its pins leave them open, if they
are decisions: where one of these degrees is above one."""
SCHEDULING = frozenset({"schedule", "vpp"})
"""Decisions that only make sense together."""


@dataclass(frozen=True)
class Explanation:
    """A plan, explained.

    Attributes:
        target: the plan.
        document: `operators` per stage, `gains` of a better machine, and where asked for `why_not`,
            `measured`, `config` and `better`.
        other: the plan of `--why-not`, where there is one.
    """

    target: Target
    document: Mapping[str, Any]
    other: Priced | None = None


def plan_explain(
    question: Question,
    why_not: str = "",
    measured: str | None = None,
    config: str = "",
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Where time and memory of a plan go.

    Args:
        question: a plan file, or model and machine with pins.
        why_not: pins of another plan to compare with, or "".
        measured: what was measured, such as `step_time=1.2s`, or None.
        config: a configuration of other software that decides the plan, or ""; the question then
            needs a machine, and a model only where the configuration does not describe it. Where it
            is a log, `measured` is what this says unless given.
        progress: told now and then how far the search for a better plan than `config` is.

    Raises:
        InputError: bad question, configuration, pins or measurement; every problem at once.
    """
    problems = list(question.problems)
    pins: Pins = {}
    values: Mapping[str, float] = {}
    try:
        pins = parse_pins([why_not], "--why-not")
    except InputError as error:
        problems += error.problems
    try:
        values = parse_measured(measured) if measured is not None else {}
    except InputError as error:
        problems += error.problems
    question = replace(question, problems=tuple(problems))
    configured = read_configured(question, config) if config else None
    values = values or (configured.measured if configured else {})
    target = _find(configured.question if configured else question, configured)
    priced = target.priced
    program = lower(priced.graph, priced.plan)
    document: dict[str, Any] = {
        "operators": stage_operators(priced.graph, priced.plan, program),
        "gains": list(_gains(program, priced)),
    }
    other: Priced | None = None
    if pins:
        other, document["why_not"] = _why_not(priced, pins)
    if values:
        document["measured"] = compare_measured(priced, values)
    if configured:
        document["config"] = config_document(configured, priced, document.get("measured", ()))
        document["better"] = better_plan(configured, priced, document["config"], progress)
    return Explanation(target, document, other)


def _find(question: Question, configured: Configured | None) -> Target:
    """The plan; what a configuration makes impossible is told as its own."""
    try:
        target = find_plan(question, spans=True)
    except InputError as error:
        raise (configured.blame(error) if configured else error) from None
    return replace(target, assumed=(*configured.notes, *target.assumed)) if configured else target


def _gains(program: Program, priced: Priced) -> Iterator[dict[str, Any]]:
    """What each better machine would give."""
    for what, hardware in _better_machines(priced.plan.hardware):
        seconds = simulate(program, hardware, priced.plan.stack).step_time
        faster = 1 - seconds / priced.timeline.step_time
        yield {"better": what, "step_time_s": seconds, "faster": faster}


def _better_machines(hardware: Hardware) -> Iterator[tuple[str, Hardware]]:
    """The machine with one number `BETTER` at a time."""
    device = hardware.device
    peaks = {dtype: BETTER * peak for dtype, peak in device.peak_flops.items()}
    yield "arithmetic", replace(hardware, device=replace(device, peak_flops=peaks))
    faster = replace(device, memory_bandwidth=BETTER * device.memory_bandwidth)
    yield "memory bandwidth", replace(hardware, device=faster)
    for index, level in enumerate(hardware.levels):
        for what, better in (
            ("bandwidth", replace(level, bandwidth=BETTER * level.bandwidth)),
            ("latency", replace(level, latency=level.latency / BETTER)),
        ):
            levels = (*hardware.levels[:index], better, *hardware.levels[index + 1 :])
            yield f"{what} of {level.name}", replace(hardware, levels=levels)


def _why_not(priced: Priced, pins: Pins) -> tuple[Priced | None, dict[str, Any]]:
    """The plan that pins describe, and how it differs in time and memory, by part.

    What the pins leave open is as in the plan where that is possible, degrees first given up.
    """
    plan = priced.plan
    machine = (plan.hardware, plan.stack)
    kept: dict[str, Pin] = {
        key: Pin((value,))
        for key, value in priced.parallel.items()
        if key in KEPT and key not in pins and _is_pin(priced.parallel, key, value)
    }
    if pins.keys() & SCHEDULING:
        kept = {key: pin for key, pin in kept.items() if key not in SCHEDULING}
    degrees = {
        key: Pin((value,))
        for key, value in priced.parallel.items()
        if key in DEGREES and key not in pins and isinstance(value, int)
    }
    if "dp" in degrees:
        degrees["dp"] = Pin((-1,))
    refused: list[str] = []
    for rest in ({**kept, **degrees}, kept, {}):
        try:
            other = build_plan(priced.graph, plan.model, machine, plan.workload, {**rest, **pins})
        except InputError as error:
            refused = [str(problem) for problem in error.problems]
            continue
        alternative = price_plan(priced.graph, other)
        return alternative, _differences(priced, alternative)
    return None, {"refused": refused}


def _is_pin(parallel: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a value was decided, and can be pinned: not per role, nor of some layers only."""
    decided = not KEPT[key] or any(parallel.get(degree, 1) != 1 for degree in KEPT[key])
    return decided and not (isinstance(value, Mapping) or ":" in str(value))


def _differences(plan: Priced, other: Priced) -> dict[str, Any]:
    """By part, the longest difference first: of the step, and of the fullest stages' memory."""
    times = [dict(one.predicted["breakdown_s"]) for one in (plan, other)]
    fullest = [
        max(one.predicted["memory"], key=lambda stage: sum(stage[line] for line in MEMORY_LINES))
        for one in (plan, other)
    ]
    memory = [{line: stage[line] for line in MEMORY_LINES} for stage in fullest]
    return {
        "parallel": dict(other.parallel),
        "predicted": dict(other.predicted),
        "verdict": other.verdict,
        "slower": other.timeline.step_time / plan.timeline.step_time - 1,
        "time": _parts(*times),
        "memory": _parts(*memory),
    }


def _parts(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[dict[str, Any]]:
    rows = [
        {"part": k, "plan": ours[k], "other": theirs[k], "difference": theirs[k] - ours[k]}
        for k in ours
        if ours[k] or theirs[k]
    ]
    return sorted(rows, key=lambda row: -abs(float(str(row["difference"]))))
