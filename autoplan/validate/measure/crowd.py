"""How much slower is a core while all cores of its host compute?

The same steps are measured on all ranks at once and, right after, on one alone, in turn; whatever
else slows the machine then slows both. By the clock a busy host takes more of every core than by
the rank's own time: what the system does, it does on a core that computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import NamedTuple

from autoplan.validate.measure.compute import Reading, scatter

FEWEST = 3
"""Turns that have a scatter."""


class Turn(NamedTuple):
    """A step measured both ways, in seconds.

    Attributes:
        own, clock: by the ranks' own time and by the clock, of all ranks at once.
        own_alone, clock_alone: of one.
    """

    own: float
    clock: float
    own_alone: float
    clock_alone: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """What busy cores do to each other.

    Attributes:
        stretch: factor by which the own time of ranks that were measured at once was longer.
        contention: factor by which the clock's is with every core of the host busy.
        spread: one-sigma factor of a turn's, or None where there are few.
    """

    stretch: float = 1.0
    contention: float = 1.0
    spread: float | None = None


def find_crowd(turns: Sequence[Turn], ranks: int, cores: int) -> Crowd:
    """The crowd that explains some turns.

    Args:
        turns: measured.
        ranks: at once.
        cores: of the host. More ranks share them, which is no contention; fewer keep fewer busy,
            and contention grows on a line from one busy core to all (`cost.compute.core_slowdown`).
    """
    kept_busy = min(ranks, cores)
    if not turns or kept_busy < 2:
        return Crowd()
    sharing = max(1.0, ranks / cores)
    ratios = [turn.clock / turn.clock_alone / sharing for turn in turns]
    stretch = max(1.0, geometric_mean(turn.own / turn.own_alone for turn in turns))
    slower = max(stretch, geometric_mean(ratios))
    contention = 1.0 + (slower - 1.0) * (cores - 1) / (kept_busy - 1)
    return Crowd(stretch, contention, scatter(ratios) if len(ratios) >= FEWEST else None)


def uncrowded(readings: Sequence[Reading], crowd: Crowd) -> tuple[Reading, ...]:
    """What readings of own time in a crowd would be on a rank alone."""
    return tuple(
        replace(one, seconds=tuple(seconds / crowd.stretch for seconds in one.seconds))
        for one in readings
    )
