"""What pins leave open, as tests that the search applies without knowing their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoplan.errors import InputError
from autoplan.ir.plan import Plan
from autoplan.presets import build_plan, restrictions
from autoplan.search.engine import Freedom
from autoplan.search.result import Request


@dataclass(frozen=True)
class Degrees:
    """The outer decisions of a candidate."""

    stages: int
    sizes: tuple[int, ...]
    micro_batches: int


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
    problems = restrictions.problems(pins, request.hardware.count)
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
    return OuterPins(
        lambda stages: restrictions.stages(request.pins, stages, request.config.layers),
        lambda count: True,
        restrictions.schedules(request.pins),
    )


def freedoms(request: Request, degrees: Degrees) -> list[Freedom]:
    """One freedom per way in which the mesh axes can play the pinned roles; [] if none can."""
    batch = request.workload.global_batch_size // degrees.micro_batches
    table = []
    for roles in restrictions.roles(request.pins, degrees.sizes, batch):
        rule = restrictions.Rule(request.pins, roles)
        table.append(
            Freedom(
                roles,
                rule.allows,
                rule.stores,
                restrictions.recompute(request.pins),
                restrictions.layers(request.pins),
                restrictions.schedules(request.pins),
            )
        )
    return table
