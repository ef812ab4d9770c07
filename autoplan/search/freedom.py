"""What pins leave open, as tests that the search applies without knowing their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoplan.presets import restrictions
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
