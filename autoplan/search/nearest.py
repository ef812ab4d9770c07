"""Why nothing fits, and which changes would help: each one that is named has been tried.

A change is tried on the leanest plain choices (`presets.plain.leanest_choices`), which the search
prices as well: where one of them fits, asking again with that change finds a plan. What no plain
choice reaches is not named, so that silence means little but a hint is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.errors import InfeasibleError, InputError, Refusal
from autoplan.files.machine_spec import resize
from autoplan.ir.plan import Plan
from autoplan.lower import lower
from autoplan.presets import Pin, build_plan, parse_pins
from autoplan.presets.plain import leanest_choices
from autoplan.search.result import Request
from autoplan.simulate import simulate
from autoplan.units import format_bytes

GROWTH = (2, 4, 8, 16)
"""Multiples of the devices that are tried, ascending."""


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """What a plan needs.

    Attributes:
        peak: bytes of its fullest stage.
        stage: which one.
    """

    peak: int
    stage: int


def least_need(request: Request) -> Need | None:
    """The least that a lean plan needs, or None where pins or dims allow none."""
    return min((_need(request, plan) for plan in _lean_plans(request)), default=None)


def nearest_changes(request: Request) -> list[str]:
    """Changes after which a plan fits: fewer pins, no headroom, more devices; at most one each."""
    changes = (_fewer_pins(request), _no_headroom(request), _more_devices(request))
    found = []
    for candidates in changes:
        text = next((text for text, easier in candidates if _fits(easier)), None)
        if text:
            found.append(text)
    return found


def _fewer_pins(request: Request) -> Iterator[tuple[str, Request]]:
    """Without one pin, then without any."""
    for key in request.pins:
        rest = {k: pin for k, pin in request.pins.items() if k != key}
        yield f"fits without the pin of {key}", replace(request, pins=rest)
    if len(request.pins) > 1:
        yield "fits without pins", replace(request, pins={})


def _no_headroom(request: Request) -> Iterator[tuple[str, Request]]:
    if request.workload.memory_headroom:
        workload = replace(request.workload, memory_headroom=0)
        yield "fits with --memory-headroom 0", replace(request, workload=workload)


def _more_devices(request: Request) -> Iterator[tuple[str, Request]]:
    for factor in GROWTH:
        count = factor * request.hardware.count
        try:
            larger = replace(request, hardware=resize(request.hardware, str(count)))
        except InputError:
            return
        yield f"fits on {count} devices", larger
        if request.pins:
            yield f"fits on {count} devices without pins", replace(larger, pins={})


def _fits(request: Request) -> bool:
    limit = request.hardware.device.memory - request.workload.memory_headroom
    return any(_need(request, plan).peak <= limit for plan in _lean_plans(request))


def _need(request: Request, plan: Plan) -> Need:
    timeline = simulate(lower(request.graph, plan), request.hardware, request.stack)
    totals = [sum(lines.values()) for lines in timeline.peak_memory]
    return max(Need(total, stage) for stage, total in enumerate(totals))


def _lean_plans(request: Request) -> Iterator[Plan]:
    """The leanest plain choices that the pins allow."""
    machine = (request.hardware, request.stack)
    for text in leanest_choices(request.config, request.hardware):
        pins = _merged(request, parse_pins([text]))
        try:
            yield build_plan(request.graph, request.config, machine, request.workload, pins)
        except (InputError, Refusal):
            continue


def _merged(request: Request, lean: dict[str, Pin]) -> dict[str, Pin]:
    """Single values: the lean ones where the pins allow them, else the first that they allow."""
    merged = dict(lean)
    for key, pin in request.pins.items():
        wanted = lean[key].single if key in lean else None
        if wanted is None or not pin.allows(wanted):
            merged[key] = Pin(pin.values[:1] or (max(pin.least, 1),))
    return merged


def nothing_fits(
    request: Request, shortfall: Sequence[Need], device_limit: float, refused: Mapping[str, int]
) -> InfeasibleError:
    """Why nothing fits, and what would.

    Args:
        request: the question.
        shortfall: what candidates were found to need.
        device_limit: bytes of a device that a plan may use.
        refused: candidates by reason.
    """
    least = least_need(request)
    need = min([*shortfall, *([least] if least else [])], default=None)
    limit = format_bytes(device_limit)
    detail = (
        f"the least is {format_bytes(need.peak)} on stage {need.stage}"
        if need
        else "no plan that the pins allow divides the model and its batch"
    )
    message = (
        f"nothing fits: {request.config.name} on {request.hardware.count} x"
        f" {request.hardware.device.kind} with {limit} usable; {detail}"
    )
    return InfeasibleError(message, dict(refused), nearest_changes(request))
