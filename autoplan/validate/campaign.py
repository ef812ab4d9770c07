"""How to measure many plans on one machine so that they can be compared.

What disturbs a measurement comes in spells: another program, a slow minute of the host. So no plan
is measured in one go: every plan is visited once a round, rounds are shuffled, and a plan's time is
the median over its visits. A visit during which other work kept cores busy is left out where an
undisturbed one exists.

Nothing here runs or prices a plan; that is for the scripts that do both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from statistics import median
from typing import TypeVar

Thing = TypeVar("Thing")

QUIET_CORES = 0.1
"""[empirical] Cores kept busy by other work above which a visit counts as disturbed: an idle Linux
machine shows up to 0.03."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A few steps of one plan, in between those of others.

    Attributes:
        seconds: of each step; the first steps, which warm up, are not among them.
        elsewhere: cores that other work kept busy meanwhile, on average.
    """

    seconds: tuple[float, ...]
    elsewhere: float

    @property
    def disturbed(self) -> bool:
        """Whether other work was in the way."""
        return self.elsewhere > QUIET_CORES


@dataclass(frozen=True, slots=True)
class Settled:
    """A plan's time over all its visits.

    Attributes:
        step_time: median seconds of a step.
        spread: by how much the medians of single visits differ, as a fraction of `step_time`.
        disturbed: whether there was no undisturbed visit.
    """

    step_time: float
    spread: float
    disturbed: bool


def settled(visits: Sequence[Visit]) -> Settled:
    """The time of a plan from its visits, at least one of which has steps.

    Over undisturbed visits where there are any, else over all.
    """
    known = [visit for visit in visits if visit.seconds]
    used = [visit for visit in known if not visit.disturbed] or known
    usual = median(chain.from_iterable(visit.seconds for visit in used))
    each = [median(visit.seconds) for visit in used]
    return Settled(usual, (max(each) - min(each)) / usual, used[0].disturbed)


def shuffled_rounds(count: int, rounds: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """For each round the order in which `count` plans are visited."""
    random = Random(seed)
    return tuple(tuple(random.sample(range(count), count)) for _ in range(rounds))


def balanced_sample(strata: Mapping[str, Sequence[Thing]], count: int, seed: int) -> list[Thing]:
    """Up to `count` things, as evenly from all strata as their sizes allow.

    Args:
        strata: kind -> its members.
        count: how many to draw.
        seed: of the draw; the same seed draws the same things.
    """
    random = Random(seed)
    drawn = [iter(random.sample(list(members), len(members))) for members in strata.values()]
    random.shuffle(drawn)
    return [thing for thing, _ in zip(_in_turn(drawn), range(count), strict=False)]


def _in_turn(sources: Sequence[Iterator[Thing]]) -> Iterator[Thing]:
    """One of each source, again and again, until all are empty."""
    empty = object()
    left = list(sources)
    while left:
        taken = [(source, next(source, empty)) for source in left]
        left = [source for source, thing in taken if thing is not empty]
        yield from (thing for _, thing in taken if thing is not empty)  # type: ignore[misc]
