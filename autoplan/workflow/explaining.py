"""Explain: where time and memory of a plan go, what would help, and why not another plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoplan.errors import InputError
from autoplan.ir.machine import Hardware
from autoplan.ir.timeline import MEMORY_LINES
from autoplan.lower import lower
from autoplan.presets import DEGREES, Pin, Pins, build_plan, parse_pins
from autoplan.simulate import simulate
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
    "sp": ("tp", "tp2"), "vocab": ("tp", "tp2"),
}  # fmt: skip
"""Decisions that the other plan of `--why-not` takes over where its pins leave them open, if they
are decisions: where one of these degrees is above one."""


@dataclass(frozen=True)
class Explanation:
    """A plan, explained.

    Attributes:
        target: the plan.
        document: `operators` per stage, `gains` of a better machine, and where asked for `why_not`
            and `measured`.
        other: the plan of `--why-not`, where there is one.
    """

    target: Target
    document: Mapping[str, Any]
    other: Priced | None = None


def plan_explain(question: Question, why_not: str = "", measured: str | None = None) -> Explanation:
    """Where time and memory of a plan go.

    Args:
        question: a plan file, or model and machine with pins.
        why_not: pins of another plan to compare with, or "".
        measured: what was measured, such as `step_time=1.2s`, or None.

    Raises:
        InputError: bad question, pins or measurement; every problem at once.
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
    target = find_plan(replace(question, problems=tuple(problems)), spans=True)
    priced = target.priced
    program = lower(priced.graph, priced.plan)
    document: dict[str, Any] = {
        "operators": stage_operators(priced.graph, priced.plan, program),
        "gains": [
            {
                "better": what,
                "step_time_s": seconds,
                "faster": 1 - seconds / priced.timeline.step_time,
            }
            for what, seconds in (
                (what, simulate(program, hardware, priced.plan.stack).step_time)
                for what, hardware in _better_machines(priced.plan.hardware)
            )
        ],
    }
    other: Priced | None = None
    if pins:
        other, document["why_not"] = _why_not(priced, pins)
    if values:
        document["measured"] = compare_measured(priced, values)
    return Explanation(target, document, other)


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
