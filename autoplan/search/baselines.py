"""Plain choices, priced beside the winner: what people take when they do not search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from autoplan.errors import InputError
from autoplan.ir.plan import Plan
from autoplan.presets import build_plan, parse_pins
from autoplan.presets.plain import plain_choices
from autoplan.search.result import Ranked, Request
from autoplan.units import format_bytes


def baselines(request: Request, evaluate: Callable[[Plan], Ranked]) -> dict[str, Ranked | str]:
    """Each plain choice, simulated, or why it is not one."""
    choices = plain_choices(request.config, request.hardware)
    return {name: _first_fit(request, tries, evaluate) for name, tries in choices.items()}


def _first_fit(
    request: Request, tries: Iterator[str], evaluate: Callable[[Plan], Ranked]
) -> Ranked | str:
    """The first try that fits, or why the last one does not.

    A plain choice does not depend on what the stack can express.
    """
    reason = "does not apply"
    machine = (request.hardware, replace(request.stack, restricts={}))
    limit = request.hardware.device.memory - request.workload.memory_headroom
    for text in tries:
        pins = parse_pins([text])
        try:
            plan = build_plan(request.graph, request.config, machine, request.workload, pins)
        except InputError as error:
            reason = f"does not apply: {error.problems[0]}"
            continue
        row = evaluate(replace(plan, stack=request.stack))
        peak = max(sum(lines.values()) for lines in row.timeline.peak_memory)
        if peak <= limit:
            return row
        reason = f"needs {format_bytes(peak)} of {format_bytes(limit)}"
    return reason
