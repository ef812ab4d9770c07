"""What pins leave open, as tests that the search applies without knowing their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoplan.describe import describe
from autoplan.errors import InputError
from autoplan.ir.plan import Plan
from autoplan.presets import build_plan, restrictions, spread_layers
from autoplan.presets.legal import Case, pin_problems, stack_allows
from autoplan.search.engine import Freedom
from autoplan.search.result import Request


@dataclass(frozen=True)
class Degrees:
    """The outer decisions of a candidate."""

    stages: int
    sizes: tuple[int, ...]
    micro_batches: int
    schedule: str = "1f1b"


@dataclass(frozen=True)
class OuterPins:
    """Tests of outer decisions."""

    stages: Callable[[int], bool]
    micro_batches: Callable[[int], bool]
    schedules: tuple[str, ...]


def named_plans(request: Request) -> list[Plan] | None:
    """The plans that complete pins name, or None where placements are to be searched.

    Raises:
        InputError: degrees that the machine cannot have, or no named plan is legal.
    """
    pins, machine = request.pins, (request.hardware, request.stack)
    problems = [
        *restrictions.problems(pins, request.hardware.count),
        *pin_problems(pins, _case(request), request.hardware.count, request.stack),
    ]
    if problems:
        raise InputError(problems)
    if not restrictions.degrees_complete(pins, request.hardware.count):
        return None
    grid = restrictions.named_grid(pins, request.workload.global_batch_size)
    plans, refused = [], None
    for row in grid:
        try:
            plans.append(build_plan(request.graph, request.config, machine, request.workload, row))
        except InputError as error:
            refused = error
    if refused and not plans:
        raise refused
    return plans or None


def outer_pins(request: Request) -> OuterPins:
    """What pins say about depth, micro-batches and schedule."""
    pins = restrictions.within(request.pins, request.stack)
    return OuterPins(
        lambda stages: restrictions.stages(pins, stages, request.config.layers),
        lambda count: True,
        restrictions.schedules(pins),
    )


def freedoms(request: Request, degrees: Degrees) -> list[Freedom]:
    """One freedom per way in which the mesh axes can play the pinned roles; [] if none can."""
    pins = restrictions.within(request.pins, request.stack)
    batch = request.workload.global_batch_size // degrees.micro_batches
    named = restrictions.rules_name_axes(request.stack)
    table = []
    for roles in restrictions.roles(pins, degrees.sizes, batch, named):
        if not _stack_allows(request, degrees, roles):
            continue
        rule = restrictions.Rule(pins, roles)
        table.append(
            Freedom(
                roles,
                rule.allows,
                rule.stores,
                restrictions.recompute(pins),
                restrictions.layers(pins) or _even_layers(request, degrees.stages),
            )
        )
    return table


def expressible(request: Request, plan: Plan) -> bool:
    """Whether the stack could run a plan that was built without its restrictions."""
    words = dict(describe(request.graph, plan))
    del words["layers_per_stage"]  # a default, not a pin that lifts rules
    stack = request.stack
    case = Case(request.config, request.workload, words)
    plain = all(words[key] in allowed for key, allowed in stack.restricts.items() if key in words)
    return plain and stack_allows(case, stack)


def _case(request: Request, **values: object) -> Case:
    """What rules are asked about: single pins, and the values of a candidate."""
    single = {k: v for k, pin in request.pins.items() if (v := pin.single) is not None}
    return Case(request.config, request.workload, {"schedule": "1f1b", **single, **values})


def _stack_allows(request: Request, degrees: Degrees, roles: restrictions.Roles) -> bool:
    """Whether a candidate obeys the rules of the stack."""
    batch = request.workload.global_batch_size // degrees.micro_batches
    outer = {"pp": degrees.stages, "schedule": degrees.schedule, "dp": 1, "micro_batch": batch}
    if roles is not None:
        played = restrictions.role_degrees(roles, degrees.sizes)
        outer |= {**played, "micro_batch": batch // played["dp"]}
    return stack_allows(_case(request, **outer), request.stack)


def _even_layers(request: Request, stages: int) -> tuple[int, ...] | None:
    """Layers of each stage, where the stack has no uneven stages."""
    even = any((rule.key, rule.quantity) == ("pp", "layers") for rule in request.stack.rules)
    return spread_layers(request.config.layers, stages) if even else None
