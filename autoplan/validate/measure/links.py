"""Which latency and bandwidth explain measured communication?

The pricer's formulas are linear in the latency of a level and in the inverse of its bandwidth, but
where another algorithm or another level takes over. So pricing a call, and pricing it anew with a
little more of each, gives the row of a table through which `fit` lays a line; a few rounds of that
end at the line whose own prices it fits. No formula of a collective stands here.

How good that is, is said by row: the error of the level's line, that of a line of the row's own
(one operation over one shape of groups), and that of a table without the row, interpolated between
its neighbours on logarithmic scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from autoplan.cost import Terms, collective_terms, transfer_terms
from autoplan.cost.collectives import group_geometry
from autoplan.ir.machine import Hardware, Level
from autoplan.validate.measure.fit import Line, Row, fit_line, relative

TRANSFER = "send"
LEAST_LATENCY, LEAST_INVERSE = 1e-12, 1e-18
"""Seconds, and seconds per byte, that no machine reaches."""
UNIT = Line(1.0, 1.0)
ROUNDS = 4
"""Of fitting and pricing anew; more change nothing once the same algorithms are the best."""
STRETCH = 1.0 + 2.0**-20
"""Factor of a numerical derivative."""
LOSS_DIGITS = 3
LEAST_SLOPE = 1e-9
"""Of a price, as a part of it: less is the noise of a numerical derivative."""
CUT = 0.1
"""Share of repetitions left out at either end."""
LEAST_LEFT = 0.1
"""Of a time, what the levels inside leave at least to the level that is fitted."""


@dataclass(frozen=True, slots=True)
class Call:
    """Measured communication of one size.

    Attributes:
        kind: a collective, or `send`.
        groups: devices of every group; of a transfer, pairs (from, to).
        nbytes: of one rank's operand.
        seconds: by repetition, mean over ranks.
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    nbytes: int
    seconds: tuple[float, ...]

    @property
    def typical(self) -> float:
        """Mean seconds of all but the quickest and the slowest tenth.

        Waiting for a core takes next to nothing or a slice of the scheduler, and a step pays the
        mean; the tenth is what else a machine does.
        """
        cut = int(CUT * len(self.seconds))
        return fmean(sorted(self.seconds)[cut : len(self.seconds) - cut])

    @property
    def shape(self) -> str:
        """`all_reduce over 0 1, 2 3`."""
        return f"{self.kind} over {', '.join(' '.join(map(str, group)) for group in self.groups)}"


@dataclass(frozen=True, slots=True)
class CallFit:
    """A call beside what is said of it.

    Attributes:
        call: what was measured.
        seconds: that the level's line says.
        error: of that, predicted / measured - 1.
        own_error: of seconds + bytes / rate through the calls of its operation and groups alone.
        table_error: of the table without this row; None at its ends.
    """

    call: Call
    seconds: float
    error: float
    own_error: float
    table_error: float | None


@dataclass(frozen=True, slots=True)
class LevelFit:
    """A fitted level.

    Attributes:
        latency: seconds a step.
        rate: bytes/s of a link that the pricer's collectives would run at.
        rows: every call.
        lines: shape of calls -> their own seconds, and seconds per byte of an operand.
        start: seconds of a collective beside its steps, where those were told apart; or None.
    """

    latency: float
    rate: float
    rows: tuple[CallFit, ...]
    lines: Mapping[str, Line]
    start: float | None = None

    def typical_error(self, least: int = 0, most: float = float("inf")) -> float | None:
        """Median absolute error of calls of `least` up to below `most` bytes; None without any."""
        errors = [abs(row.error) for row in self.rows if least <= row.call.nbytes < most]
        return median(errors) if errors else None


def crossed(call: Call, hardware: Hardware) -> int:
    """Index of the outermost level that a call crosses."""
    geometry = group_geometry(np.array(call.groups, dtype=np.int64), hardware)
    return max(index for index, reach in enumerate(geometry.levels) if reach.fan > 1)


def fit_level(calls: Sequence[Call], hardware: Hardware, index: int) -> LevelFit:
    """Latency and rate of one level.

    Args:
        calls: whose outermost crossed level it is.
        hardware: the machine; what its other levels take stays as it is.
        index: of the level.
    """
    old = hardware.levels[index]
    known = Line(old.latency, 1.0 / (old.bandwidth * old.efficiency))
    fresh = fit_line([_steepness(call, _alone(hardware, index), index, UNIT).row(call)
                      for call in calls])  # fmt: skip
    # Of lines that price alike (the level may be no bottleneck), what is known comes first.
    line = min(
        (_settled(calls, hardware, index, start) for start in (known, fresh)),
        key=lambda line: _loss(calls, _with_line(hardware, index, line)),
    )
    machine = _with_line(hardware, index, line)
    level = machine.levels[index]
    own = _own_lines(calls)
    return LevelFit(level.latency, level.bandwidth, _fits(calls, machine, own), own)


def fit_cores(calls: Sequence[Call], hardware: Hardware, index: int) -> LevelFit:
    """The same where ranks are cores: a collective takes a `start` that a transfer does not.

    Its ranks have computed until then, so that messages and peers wait for cores; who receives a
    transfer waits already. Latency is that of transfers, the rate that of collectives.
    """
    joint = [call for call in calls if call.kind != TRANSFER]
    sent = [call for call in calls if call.kind == TRANSFER]
    bare = _replaced(hardware, index, replace(hardware.levels[index], start=0.0))
    if not joint or not sent:
        return replace(fit_level(calls, bare, index), start=0.0)
    fitted = fit_level(joint, bare, index)
    latency = min(fitted.latency, fit_line([_plain(call) for call in sent]).constant)
    start = fitted.latency - latency
    level = replace(
        _with_line(bare, index, Line(latency, 1.0 / fitted.rate)).levels[index], start=start
    )
    own = _own_lines(calls)
    rows = _fits(calls, _replaced(bare, index, level), own)
    return LevelFit(latency, fitted.rate, rows, own, start)


def _own_lines(calls: Sequence[Call]) -> dict[str, Line]:
    """Shape of calls -> the line through those alone."""
    shapes = dict.fromkeys(call.shape for call in calls)
    return {s: fit_line([_plain(call) for call in calls if call.shape == s]) for s in shapes}


def _fits(calls: Sequence[Call], machine: Hardware, own: Mapping[str, Line]) -> tuple[CallFit, ...]:
    """Calls beside what a machine, their own line and a table say."""
    prices = [call_terms(call, machine).of(call.nbytes) for call in calls]
    return tuple(
        CallFit(
            call,
            price,
            price / call.typical - 1,
            own[call.shape].error(_plain(call)),
            _table_error(call, calls),
        )
        for call, price in zip(calls, prices, strict=True)
    )


def _plain(call: Call) -> Row:
    """The equation of a line in bytes alone."""
    return relative(1.0, call.nbytes, call.typical)


def _settled(calls: Sequence[Call], hardware: Hardware, index: int, line: Line) -> Line:
    """The line after fitting to prices near it, pricing anew, and so on; what no price feels of
    it stays.
    """
    for _ in range(ROUNDS):
        rows = [_steepness(call, hardware, index, line).row(call) for call in calls]
        fitted = fit_line(rows)
        line = Line(
            fitted.constant if any(row.constant for row in rows) else line.constant,
            fitted.slope if any(row.slope for row in rows) else line.slope,
        )
    return line


def _loss(calls: Sequence[Call], hardware: Hardware) -> float:
    """Mean absolute error; less than a thousandth does not count, logs print no more digits."""
    errors = (call_terms(call, hardware).of(call.nbytes) / call.typical - 1 for call in calls)
    return round(fmean(map(abs, errors)), LOSS_DIGITS)


class _Steepness(NamedTuple):
    """A price near some line: beside what no change of the line moves, `rest` seconds.

    Attributes:
        latency: seconds per second of latency.
        inverse: seconds per second-per-byte of the link.
        rest: seconds.
    """

    latency: float
    inverse: float
    rest: float

    def row(self, call: Call) -> Row:
        """The equation that meets the call."""
        target = max(LEAST_LEFT * call.typical, call.typical - self.rest)
        return Row(self.latency, self.inverse, target, 1.0 / call.typical)


def _steepness(call: Call, hardware: Hardware, index: int, line: Line) -> _Steepness:
    """Derivatives of a price; exact, since it is linear but where another algorithm or level takes
    over.
    """

    def price(constant: float, slope: float) -> float:
        machine = _with_line(hardware, index, Line(constant, slope))
        return call_terms(call, machine).of(call.nbytes)

    constant, slope = max(line.constant, LEAST_LATENCY), max(line.slope, LEAST_INVERSE)
    here = price(constant, slope)
    by_latency = (price(constant * STRETCH, slope) - here) / (STRETCH - 1)
    by_slope = (price(constant, slope * STRETCH) - here) / (STRETCH - 1)
    latency = by_latency / constant if by_latency > LEAST_SLOPE * here else 0.0
    inverse = by_slope / slope if by_slope > LEAST_SLOPE * here else 0.0
    return _Steepness(latency, inverse, here - latency * constant - inverse * slope)


def _with_line(hardware: Hardware, index: int, line: Line) -> Hardware:
    """The machine with one level as a line says: seconds a step, and seconds per byte of a link.

    A measured rate holds copies through the host, if there are any. How a library's protocols
    differ stays as the profile says: their times scale as the latency, their rates as the rate.
    """
    level = replace(
        hardware.levels[index].timed(line.constant),
        bandwidth=1.0 / max(line.slope, LEAST_INVERSE),
        efficiency=1.0,
        peer_to_peer=True,
    )
    return _replaced(hardware, index, level)


def _alone(hardware: Hardware, index: int) -> Hardware:
    """The machine with all levels but one so fast that they do not count."""
    for place, level in enumerate(hardware.levels):
        if place != index:
            fast = replace(
                level.timed(0.0), bandwidth=1.0 / LEAST_INVERSE, efficiency=1.0, peer_to_peer=True
            )
            hardware = _replaced(hardware, place, fast)
    return hardware


def _replaced(hardware: Hardware, index: int, level: Level) -> Hardware:
    levels = list(hardware.levels)
    levels[index] = level
    return replace(hardware, levels=tuple(levels))


def call_terms(call: Call, hardware: Hardware) -> Terms:
    """The price of a call, per byte of one rank's operand."""
    if call.kind != TRANSFER:
        groups = np.array(call.groups, dtype=np.int64)
        return collective_terms(call.kind, group_geometry(groups, hardware), hardware)
    prices = [transfer_terms(source, target, hardware, 1) for source, target in call.groups]
    return max(prices, key=lambda terms: terms.of(call.nbytes))


def _table_error(call: Call, calls: Sequence[Call]) -> float | None:
    """Error of interpolating between the sizes below and above."""
    same = sorted((c for c in calls if c.shape == call.shape), key=lambda c: c.nbytes)
    place = same.index(call)
    if not 0 < place < len(same) - 1:
        return None
    below, above = same[place - 1], same[place + 1]
    part = log(call.nbytes / below.nbytes) / log(above.nbytes / below.nbytes)
    between = exp((1 - part) * log(below.typical) + part * log(above.typical))
    return between / call.typical - 1
