"""How much slower is a core while all cores of its host compute, and do collectives wait for it?

The same steps are measured on all ranks at once and, right after, on one alone, in turn; whatever
else slows the machine then slows both. By the clock a busy host takes more of every core than by
the rank's own time: what the system does, it does on a core that computes. Most of that it does for
messages, so computing is measured between collectives too, and as long alone.

How long a collective waits for cores is measured after computing of several lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import NamedTuple

from autoplan.validate.measure.compute import Reading, scatter
from autoplan.validate.measure.fit import fit_line, relative

FEWEST = 3
"""Turns that have a scatter."""
LONGEST_RAMP = 0.1
"""Seconds; where waiting seems to grow with computing without end, a scheduler's slice ends it."""


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


class Pause(NamedTuple):
    """Collectives between computing, mean seconds.

    Attributes:
        computed: for which every rank computes before a collective.
        alone: that the same computing takes on one rank, which talks to nobody.
        waited: of a collective, beyond what it takes without computing in between.
    """

    computed: float
    alone: float
    waited: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """What busy cores do to each other.

    Attributes:
        stretch: factor by which the own time of ranks that were measured at once was longer.
        contention: factor by which the clock's is with every core of the host busy.
        spread: one-sigma factor of a turn's, or None where there are few.
        ramp: seconds of computing after which a collective waits half of what it ever does; 0: it
            waits as long after any; None where that was not measured.
    """

    stretch: float = 1.0
    contention: float = 1.0
    spread: float | None = None
    ramp: float | None = None


def find_crowd(
    turns: Sequence[Turn], ranks: int, cores: int, pauses: Sequence[Pause] = ()
) -> Crowd:
    """The crowd that explains some turns.

    Args:
        turns: measured.
        ranks: at once.
        cores: of the host. More ranks share them, which is no contention; fewer keep fewer busy,
            and contention grows on a line from one busy core to all (`cost.compute.core_slowdown`).
        pauses: measured, or nothing where ranks do not talk. What they say of contention counts
            before what steps say that talk to nobody: ranks that compute at once also talk.
    """
    kept_busy = min(ranks, cores)
    if not turns or kept_busy < 2:
        return Crowd()
    sharing = max(1.0, ranks / cores)
    stretch = max(1.0, geometric_mean(turn.own / turn.own_alone for turn in turns))
    ratios = [turn.clock / turn.clock_alone / sharing for turn in turns]
    usual = geometric_mean(ratios)
    if pauses:
        ratios = [pause.computed / pause.alone / sharing for pause in pauses]
        usual = median(ratios)  # a mean would count what else the host did in one of them
    contention = 1.0 + (max(stretch, usual) - 1.0) * (cores - 1) / (kept_busy - 1)
    spread = scatter(ratios) if len(ratios) >= FEWEST else None
    return Crowd(stretch, contention, spread, find_ramp(pauses) if pauses else None)


def find_ramp(pauses: Sequence[Pause]) -> float:
    """The ramp of waiting: waited = most · computed / (computed + ramp).

    In 1 / waited and 1 / computed that is a line. Pauses that waited for nothing do not count.
    """
    rows = [relative(1.0, 1.0 / p.computed, 1.0 / p.waited) for p in pauses if p.waited > 0]
    if not rows:
        return 0.0
    line = fit_line(rows)
    return line.slope / line.constant if line.constant else LONGEST_RAMP


def uncrowded(readings: Sequence[Reading], crowd: Crowd) -> tuple[Reading, ...]:
    """What readings of own time in a crowd would be on a rank alone."""
    return tuple(
        replace(one, seconds=tuple(seconds / crowd.stretch for seconds in one.seconds))
        for one in readings
    )
