"""The best step of a candidate by one integer programme: decisions, stages, recomputing, memory.

    minimise   sum_s t_s + (M - 1) max_s t_s + max_s last_s + constants     (see `search.step`)
    so that    memory_s <= limit_s

Where stages are cut and how many layers are run again is enumerated; everything else is columns: a
value of each variable, and an option with the values that it depends on. It shares with the search
the tables and the closed form of a step, and nothing of how their minimum is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from math import inf
from time import perf_counter

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_matrix

from autoplan.cost import Pricer
from autoplan.pipeline import in_flight
from autoplan.search.chain import Chain, Pace, is_layer
from autoplan.search.step import Room
from autoplan.search.tables import CHANNEL, COUNT
from tests.search.cases import FREE, Case, engine, every_shape

IMPOSSIBLE = 1e12
MICRO = 1e6
"""Seconds and bytes are scaled, since solvers have absolute tolerances."""
KIB = 1e-3

Row = dict[int, float]


class Undecided(Exception):
    """A programme was not solved in the time it was given."""


def add(*terms: tuple[float, Row]) -> Row:
    """A weighted sum of linear expressions."""
    total: Row = {}
    for factor, row in terms:
        for column, value in row.items():
            total[column] = total.get(column, 0.0) + factor * value
    return total


@dataclass
class Programme:
    """Columns and rows under construction.

    Attributes:
        seconds: that it may be solved for; beyond, it is undecided.
    """

    seconds: float = inf
    upper: list[float] = field(default_factory=list)
    integral: list[int] = field(default_factory=list)
    rows: list[tuple[Row, float, float]] = field(default_factory=list)

    def column(self, upper: float = inf, integral: bool = False) -> int:
        self.upper.append(upper)
        self.integral.append(int(integral))
        return len(self.upper) - 1

    def between(self, low: float, row: Row, high: float) -> None:
        self.rows.append((row, low, high))

    def at_least(self, *rows: Row) -> Row:
        """A new quantity that is no less than any of these (or than 0)."""
        column = self.column()
        for row in rows:
            self.between(0.0, add((1.0, {column: 1.0}), (-1.0, row)), inf)
        return {column: 1.0}

    def least(self, objective: Row, bar: float = inf) -> float:
        """The minimum, or infinity if nothing is feasible, or nothing below a bar."""
        entries = [(r, c, v) for r, (row, _, _) in enumerate(self.rows) for c, v in row.items()]
        i, j, v = (np.array(part) for part in zip(*entries, strict=True))
        matrix = coo_matrix((v, (i, j)), (len(self.rows), len(self.upper))).tocsr()
        low, high = (np.array(side) for side in list(zip(*self.rows, strict=True))[1:])
        cost = np.zeros(len(self.upper))
        cost[list(objective)] = list(objective.values())
        found = None
        for integral in (0, self.integral):  # a bound first, which is quick
            found = milp(
                cost, constraints=LinearConstraint(matrix, low, high), integrality=integral,
                bounds=(0, np.array(self.upper)),
                options={"mip_rel_gap": 0.0, "time_limit": self.seconds},
            )  # fmt: skip
            if found.status == 1:
                raise Undecided
            if found.status == 2 or (found.success and found.fun >= bar):
                return inf
            assert found.success, found.message
        return float(found.fun)


class ChainProgramme(Programme):
    """Decisions of all blocks of a chain, and what they cost.

    Attributes:
        totals: block -> channel -> expression, seconds in milliseconds and bytes in units of 1000.
    """

    def __init__(self, chain: Chain, seconds: float = inf) -> None:
        super().__init__(seconds)
        self.chain = chain
        self.totals: dict[str, dict[str, Row]] = {}
        shared: list[int] | None = None
        for name, tables in chain.tables.items():
            assert tables.shared is None, "no tied parameters here"
            values: list[list[int]] = []
            for variable, domain in enumerate(tables.domains):
                if variable == tables.space.boundary and shared is not None:
                    values.append(shared)
                    continue
                values.append([self.column(1.0, integral=True) for _ in domain])
                self.between(1.0, dict.fromkeys(values[-1], 1.0), 1.0)
            shared = values[tables.space.boundary]
            self.totals[name] = {channel: {} for channel in CHANNEL}
            for chooser in tables.choosers:
                self._factor(name, chooser.values, [values[v] for v in chooser.scope])

    def _factor(self, block: str, table: np.ndarray, values: Sequence[Sequence[int]]) -> None:
        """A column per option and values; along each variable they add up to that value's."""
        shape = table.shape[1:]
        flat = table.reshape(COUNT, -1)
        legal = np.abs(flat).max(axis=0) < IMPOSSIBLE
        chosen = len(table[0]) > 1  # a mixture of options is none
        columns = np.array([self.column(1.0 if ok else 0.0, chosen) for ok in legal]).reshape(shape)
        for axis, mine in enumerate(values):
            for value, column in enumerate(mine):
                cells = columns.take(value, axis=axis + 1).ravel()
                self.between(0.0, {**dict.fromkeys(map(int, cells), 1.0), column: -1.0}, 0.0)
        for channel, index in CHANNEL.items():
            scale = KIB if channel.startswith("M") else MICRO
            row = self.totals[block][channel]
            for column, value, ok in zip(columns.ravel(), flat[index], legal, strict=True):
                if ok and value:
                    row[int(column)] = scale * float(value)

    def beside(self, compute: Row, weights: Row, overlaps: bool) -> Row:
        """Two streams: the longer one, or one after the other."""
        return self.at_least(compute, weights) if overlaps else add((1.0, compute), (1.0, weights))


@dataclass(frozen=True)
class Cut:
    """First instance of each stage and the end; layers of each stage that are run again."""

    bounds: tuple[int, ...]
    again: tuple[int, ...]


def cuts(chain: Chain, stages: int, recompute: bool) -> Iterator[Cut]:
    """Every way to give each stage at least one layer, and to run some of them again."""
    layer = [is_layer(name) for name in chain.order]
    for inner in combinations(range(1, len(layer)), stages - 1):
        bounds = (0, *inner, len(layer))
        counts = [sum(layer[i:j]) for i, j in zip(bounds, bounds[1:], strict=False)]
        if min(counts) >= 1:
            for again in product(*(range(n + 1) if recompute else (0,) for n in counts)):
                yield Cut(bounds, again)


def best_cut(
    chain: Chain, cut: Cut, pace: Pace, machine: tuple[Room, Pricer], bar: float = inf,
    seconds_left: float = inf,
) -> float:  # fmt: skip
    """The least step of a candidate with given stages; infinity if none is below a bar.

    Raises:
        Undecided: in so many seconds that is not known.
    """
    room, pricer = machine
    made = ChainProgramme(chain, seconds_left)
    each = {name: _seconds(made, get, pricer) for name, get in made.totals.items()}
    seconds, lasts = [], []
    for stage, (i, j) in enumerate(zip(cut.bounds, cut.bounds[1:], strict=False)):
        names = chain.order[i:j]
        count = cut.again[stage]
        again = [name for name in names if is_layer(name)][:count]
        kept = list((Counter(names) - Counter(again)).elements())
        seconds.append(
            add(*((1.0, each[n].kept) for n in kept), *((1.0, each[n].again) for n in again))
        )
        lasts.append(
            add(*((1.0, each[n].once) for n in kept), *((1.0, each[n].once_again) for n in again))
        )
        flight = in_flight(room.schedule, stage, pace.stages, pace.micro_batches)
        _limit(made, names, (flight, count), KIB * room.limits[stage])
    slowest = made.at_least(*seconds)
    end = made.at_least(*lasts)
    rest = pace.micro_batches - 1
    objective = add(*((1.0, row) for row in seconds), (float(rest), slowest), (1.0, end))
    hops = 2 * room.hop * (pace.stages - 1)
    waiting = hops * (1.0 + (rest / pace.stages if room.schedule == "1f1b" else 0.0))
    fixed = waiting + pricer.fixed_step
    return made.least(objective, MICRO * (bar - fixed)) / MICRO + fixed


@dataclass(frozen=True)
class Seconds:
    """What an instance of a block takes: kept, or run again in backward.

    Attributes:
        kept, again: each micro-batch.
        once, once_again: once a step.
    """

    kept: Row
    again: Row
    once: Row
    once_again: Row


def _seconds(made: ChainProgramme, get: Mapping[str, Row], pricer: Pricer) -> Seconds:
    overlaps = pricer.overlaps
    forward = made.beside(get["XF"], get["WF"], overlaps)
    kept = add((1.0, get["XB"]), (1.0, get["RG"]))
    more = made.at_least(kept, add((1.0, get["XB"]), (1.0, get["RC"])))
    reduced = add((1.0, get["WB"]), (1.0, get["OK"]))
    table = []
    for compute in (kept, more):
        backward = made.beside(compute, get["WB"], overlaps)
        last = made.beside(compute, reduced, overlaps)
        table.append(add((1.0, forward), (1.0, backward)))
        table.append(add((1.0, get["ON"]), (1.0, last), (-1.0, backward)))
    return Seconds(table[0], table[2], table[1], table[3])


def _limit(
    made: ChainProgramme, names: Sequence[str], stage: tuple[int, int], limit: float
) -> None:
    """What a stage holds, at the block whose saved tensors are the largest transient."""
    flight, again = stage
    held = add(
        *((1.0, made.totals[name]["MW"]) for name in names),
        *((float(flight), made.totals[name][m]) for name in names for m in ("MA", "MX")),
        (-float(flight * again), made.totals["layer"]["MA"]),
    )
    for name in dict.fromkeys(names):
        made.between(-inf, add((1.0, held), (1.0, made.totals[name]["MA"])), limit)


def best_step(case: Case, seconds: float = inf) -> float:
    """The least estimated step of all candidates, or infinity if nothing fits.

    Raises:
        Undecided: in so many seconds that is not known.
    """
    best, made, end = inf, engine(case.asked), perf_counter() + seconds
    for shape in every_shape(case.asked):
        chain = case.chain(shape, FREE)
        if chain is None:
            continue
        flight = in_flight(shape.schedule, 0, shape.stages, shape.micro_batches)
        pace = Pace(shape.stages, shape.micro_batches, flight, 0.0, None, False)
        room = made.room(shape, FREE, (0.0,) * shape.stages)
        # Running layers again pays only where memory is short.
        for cut in cuts(chain, shape.stages, case.limited):
            left = max(end - perf_counter(), 0.0)
            best = min(best, best_cut(chain, cut, pace, (room, made.pricer), best, left))
    return best
