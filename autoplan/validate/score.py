"""How good are predictions of recorded runs? Records and predictions -> scores, by source.

Every record is told once: it counts for its source, or is set apart with a remark, or could not be
expressed for a reason. Sources weigh alike among all, however many runs they recorded.

    step time     predicted/measured - 1
    memory        the same, of the peak as the source counts it (`standing.printed_peak`)
    fit           of the runs that ran or ended out of memory: was that predicted?
    order         within a group of alternatives: rank correlation, pairs, regret of the best
    intervals     the share of measurements inside
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autoplan.ir.record import Record
from autoplan.units import GIB
from autoplan.validate.evaluate import Prediction
from autoplan.validate.standing import (
    IN_FULL,
    UNWEIGHTED,
    group_of,
    remark_on,
    rule_for,
    source_of,
)
from autoplan.validate.statistics import (
    Errors,
    errors_of,
    mean,
    pair_order,
    regret,
    spearman,
)

LEAST_RANKED, LEAST_CHOICE = 10, 3
"""Members of a group from which its rank correlation, and the regret of its best, say anything."""
SMALL_REGRET = 0.03

Group = TypeVar("Group", bound=Hashable)
Value = TypeVar("Value")

Headroom = Callable[[int], int]
"""Bytes of a device's memory -> bytes of it that a plan should leave free."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A record beside its prediction.

    Attributes:
        record, prediction: of one run.
        source: that it is judged under.
        remark: why it is set apart, or "" where it counts.
    """

    record: Record
    prediction: Prediction
    source: str
    remark: str

    @property
    def error(self) -> float | None:
        """Of the step time, or None where none was measured or predicted."""
        return self.times[0] / self.times[1] - 1 if self.times else None

    @property
    def memory_error(self) -> float | None:
        """Of the peak that the source prints, or None where none was measured or predicted."""
        measured = self.record.measured.peak_mem_gib
        if measured is None or not self.prediction.printed:
            return None
        return self.prediction.printed / (measured * GIB) - 1

    @property
    def times(self) -> tuple[float, float] | None:
        """(predicted, measured) seconds of a step, or None without both."""
        measured = self.prediction.measured
        if measured is None or self.prediction.refusal:
            return None
        return self.prediction.step_time, measured

    @property
    def covered(self) -> bool | None:
        """Whether the predicted interval contains the measured step time; None without both."""
        interval, times = self.prediction.interval, self.times
        if interval is None or times is None:
            return None
        return interval[0] <= times[1] <= interval[1]

    def fits(self, headroom: int) -> bool:
        """Whether every stage is predicted to leave some bytes of its device free."""
        return max(self.prediction.peaks) <= self.prediction.capacity - headroom


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether runs were predicted to fit, where some did not.

    Attributes:
        rows, out_of_memory: runs, and those of them that ended out of memory.
        agreement: share of runs whose outcome was predicted.
        false_fits: share of those predicted to fit that did not; 0 where none was.
    """

    rows: int
    out_of_memory: int
    agreement: float
    false_fits: float


@dataclass(frozen=True, slots=True)
class Order:
    """Whether the better of alternatives were predicted to be better.

    Attributes:
        spearman: rank correlation of each group of `LEAST_RANKED` or more.
        right_pairs, pairs: of those more than 5 % apart within a group.
        regrets: of each group of `LEAST_CHOICE` or more.
    """

    spearman: tuple[float, ...]
    right_pairs: int
    pairs: int
    regrets: tuple[float, ...]

    @property
    def pair_order(self) -> float | None:
        """Share of pairs ordered rightly."""
        return self.right_pairs / self.pairs if self.pairs else None

    @property
    def small_regrets(self) -> float | None:
        """Share of groups whose regret is at most 3 %."""
        return mean([float(lost <= SMALL_REGRET) for lost in self.regrets])


@dataclass(frozen=True, slots=True)
class Score:
    """Of some runs.

    Attributes:
        rows: how many have a prediction.
        step_time, peak_memory: errors.
        order: within groups.
        fit, fit_bare: with the default headroom and without; None where no run ended out of memory.
        interval_coverage: share of measured step times inside their interval, or None.
    """

    rows: int
    step_time: Errors
    peak_memory: Errors
    order: Order
    fit: Fit | None
    fit_bare: Fit | None
    interval_coverage: float | None


@dataclass(frozen=True, slots=True)
class Scores:
    """Of all runs.

    Attributes:
        judged: every run, in the order of the records.
        sources: source -> score of the runs that count.
        flagged: remark -> score of the runs that bear it; none of them counts.
        apart: name -> score of what is scored apart in full: runs that `standing.RULES` set apart,
            and the runs of such a source all together.
        overall: of all sources with weight, which weigh alike.
    """

    judged: tuple[Judged, ...]
    sources: Mapping[str, Score]
    flagged: Mapping[str, Score]
    apart: Mapping[str, Score]
    overall: Score

    @property
    def not_expressed(self) -> tuple[Judged, ...]:
        """Runs without a prediction."""
        return tuple(one for one in self.judged if one.prediction.refusal)

    @property
    def weighed(self) -> dict[str, Score]:
        """Sources with weight and a measured step time."""
        return {
            name: score
            for name, score in self.sources.items()
            if name not in UNWEIGHTED and score.step_time.rows
        }


def judged(records: Sequence[Record], predictions: Sequence[Prediction]) -> tuple[Judged, ...]:
    """Records beside their predictions, which are in the same order."""
    return tuple(
        Judged(record, prediction, source_of(record), remark_on(record))
        for record, prediction in zip(records, predictions, strict=True)
    )


def score(rows: Sequence[Judged], headroom: Headroom) -> Scores:
    """All scores.

    Args:
        rows: every run.
        headroom: that a plan leaves free by default.
    """
    priced = [one for one in rows if not one.prediction.refusal]
    counting = _by((one for one in priced if not one.remark), lambda one: one.source)
    remarked = _by((one for one in priced if one.remark), lambda one: one.remark)
    weighed = {name: some for name, some in counting.items() if name not in UNWEIGHTED}
    return Scores(
        judged=tuple(rows),
        sources={name: score_of(some, headroom) for name, some in counting.items()},
        flagged={
            name: score_of(some, headroom) for name, some in remarked.items() if name not in IN_FULL
        },
        apart={name: score_of(some, headroom) for name, some in _apart(priced).items()},
        overall=_overall(weighed, headroom),
    )


def _apart(priced: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Name -> runs that a rule sets apart, and all runs of its source but the flagged."""
    ruled = [(one, rule_for(one.record)) for one in priced]
    found: dict[str, list[Judged]] = {}
    for one, rule in ruled:
        if rule and rule.scored and one.remark == rule.remark:
            found.setdefault(f"{one.source}, {rule.remark}", []).append(one)
    for source in sorted({rule.source for _, rule in ruled if rule and rule.source}):
        found[f"{source}, all rows"] = [
            one
            for one, rule in ruled
            if one.source == source and one.remark in ("", rule.remark if rule else "")
        ]
    return dict(sorted(found.items()))


def score_of(rows: Sequence[Judged], headroom: Headroom) -> Score:
    """The score of runs that have predictions."""
    return Score(
        rows=len(rows),
        step_time=errors_of(_known(one.error for one in rows)),
        peak_memory=errors_of(_known(one.memory_error for one in rows)),
        order=order_of(rows),
        fit=fit_of(rows, headroom),
        fit_bare=fit_of(rows, lambda memory: 0),
        interval_coverage=mean([float(hit) for hit in _known(one.covered for one in rows)]),
    )


def _overall(sources: Mapping[str, Sequence[Judged]], headroom: Headroom) -> Score:
    """Of several sources, each with the same weight."""
    each = {name: score_of(rows, headroom) for name, rows in sources.items()}
    together = [one for rows in sources.values() for one in rows]
    covered = _known(score.interval_coverage for score in each.values())

    def errors(read: Callable[[Judged], float | None]) -> Errors:
        known = {name: _known(map(read, rows)) for name, rows in sources.items()}
        pairs = [(error, 1 / len(some)) for some in known.values() for error in some]
        return errors_of([error for error, _ in pairs], [weight for _, weight in pairs])

    return Score(
        rows=len(together),
        step_time=errors(lambda one: one.error),
        peak_memory=errors(lambda one: one.memory_error),
        order=order_of(together),
        fit=fit_of(together, headroom),
        fit_bare=fit_of(together, lambda memory: 0),
        interval_coverage=mean(covered),
    )


def order_of(rows: Iterable[Judged]) -> Order:
    """Order within groups of alternatives."""
    groups = _by((one for one in rows if one.times), lambda one: group_of(one.record))
    right = pairs = 0
    correlations: list[float | None] = []
    regrets: list[float] = []
    for members in groups.values():
        times = _known(one.times for one in members)
        predicted, measured = [p for p, _ in times], [m for _, m in times]
        some_right, some_pairs = pair_order(predicted, measured)
        right, pairs = right + some_right, pairs + some_pairs
        if len(members) >= LEAST_RANKED:
            correlations.append(spearman(predicted, measured))
        if len(members) >= LEAST_CHOICE:
            regrets.append(regret(predicted, measured))
    return Order(tuple(_known(correlations)), right, pairs, tuple(regrets))


def fit_of(rows: Sequence[Judged], headroom: Headroom) -> Fit | None:
    """Predicted and actual outcome of the sources that recorded runs out of memory."""
    telling = {one.source for one in rows if one.record.oom}
    some = [one for one in rows if one.source in telling]
    if not some:
        return None
    fits = [one.fits(headroom(one.prediction.capacity)) for one in some]
    agreed = sum(fit != one.record.oom for fit, one in zip(fits, some, strict=True))
    false = sum(fit and one.record.oom for fit, one in zip(fits, some, strict=True))
    failed = sum(one.record.oom for one in some)
    return Fit(len(some), failed, agreed / len(some), false / sum(fits) if any(fits) else 0.0)


def _by(rows: Iterable[Judged], key: Callable[[Judged], Group]) -> dict[Group, list[Judged]]:
    """Rows by what they have in common, in the order of its text."""
    found: dict[Group, list[Judged]] = {}
    for one in rows:
        found.setdefault(key(one), []).append(one)
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def _known(values: Iterable[Value | None]) -> list[Value]:
    return [value for value in values if value is not None]
