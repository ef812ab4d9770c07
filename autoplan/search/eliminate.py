"""Exact minimisation over a graph of small tables: min-plus variable elimination.

    minimise   sum over factors f of  table_f[x_i for i in scope_f]   over x_i in 0 .. domain_i - 1

Eliminating a variable adds the tables that contain it and takes the minimum over it; the order is
greedy, least resulting table first. Decoder blocks have width 2, so no table has more than three
variables. Source: Dechter 1999, "Bucket elimination: a unifying framework for reasoning".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Factor:
    """A table over variables.

    Attributes:
        scope: variable numbers, ascending.
        table: one axis per variable of `scope`.
    """

    scope: tuple[int, ...]
    table: FloatArray


@dataclass(frozen=True)
class _Addition:
    """How tables are added into one over a wider scope: per table its axes' order and shape."""

    members: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    def run(self, tables: Sequence[FloatArray]) -> FloatArray:
        total = np.zeros(self.shape)
        for member, order, shape in zip(self.members, self.orders, self.shapes, strict=True):
            total += tables[member].transpose(order).reshape(shape)
        return total


class Order:
    """An order of elimination for tables of given scopes; runs for any tables of those shapes.

    Args:
        domains: number of values of each variable.
        scopes: variables of each table.
        keep: variables left in the result.
    """

    def __init__(
        self, domains: Sequence[int], scopes: Sequence[Sequence[int]], keep: Sequence[int] = ()
    ) -> None:
        self.kept = tuple(sorted(keep))
        self._domains = domains
        self._scopes: list[tuple[int, ...]] = [tuple(scope) for scope in scopes]
        self._pool = list(range(len(scopes)))
        self._rounds: list[tuple[int, tuple[int, ...], _Addition]] = []
        left = set(range(len(domains))) - set(self.kept)
        while left:
            variable = min(left, key=lambda v: (self._size(v), v))
            left.remove(variable)
            self._plan(variable)
        self._last = self._addition(self._pool, self.kept)

    def _size(self, variable: int) -> int:
        scopes = [self._scopes[i] for i in self._pool if variable in self._scopes[i]]
        return prod(self._domains[v] for v in {v for scope in scopes for v in scope})

    def _plan(self, variable: int) -> None:
        mine = [i for i in self._pool if variable in self._scopes[i]]
        scope = tuple(sorted({v for i in mine for v in self._scopes[i]} - {variable}))
        self._rounds.append((variable, scope, self._addition(mine, (*scope, variable))))
        self._pool = [i for i in self._pool if i not in mine] + [len(self._scopes)]
        self._scopes.append(scope)

    def _addition(self, members: Sequence[int], scope: tuple[int, ...]) -> _Addition:
        orders, shapes = [], []
        for member in members:
            axes = [scope.index(v) for v in self._scopes[member]]
            orders.append(tuple(sorted(range(len(axes)), key=axes.__getitem__)))
            shapes.append(
                tuple(self._domains[v] if v in self._scopes[member] else 1 for v in scope)
            )
        shape = tuple(self._domains[v] for v in scope)
        return _Addition(tuple(members), tuple(orders), tuple(shapes), shape)

    def run(self, tables: Sequence[FloatArray]) -> Elimination:
        """Minimise over all variables but those kept.

        Args:
            tables: one per scope; `inf` marks what is not allowed.

        Complexity: the sum over eliminated variables of the size of the table they stand in.
        """
        pool = list(tables)
        records = []
        for variable, scope, addition in self._rounds:
            total = addition.run(pool)
            best = total.argmin(axis=-1)
            records.append((variable, scope, best))
            rows = total.reshape(-1, total.shape[-1])
            least = rows[np.arange(len(rows)), best.reshape(-1)]
            pool.append(least.reshape(best.shape))
        return Elimination(self.kept, self._last.run(pool), tuple(records))

    def regrets(self, tables: Sequence[FloatArray]) -> list[Regret]:
        """What each value costs over the best one, last variable to be eliminated first.

        Assigned in this order, the regrets of any values add up to what their sum of tables is
        over the minimum for the kept variables.
        """
        pool = list(tables)
        steps = []
        for variable, scope, addition in self._rounds:
            total = addition.run(pool)
            least = total.min(axis=-1)
            pool.append(least)
            bar = np.where(np.isfinite(least), least, 0.0)
            steps.append(Regret(variable, scope, total - bar[..., None]))
        return steps[::-1]

    @property
    def cells(self) -> int:
        """Entries of all tables that a run goes through."""
        return sum(prod(addition.shape) for _, _, addition in self._rounds)


@dataclass(frozen=True)
class Regret:
    """What each value of a variable costs over the best one.

    Attributes:
        variable: its number.
        scope: the variables that this depends on.
        table: one axis per variable of `scope`, then the values.
    """

    variable: int
    scope: tuple[int, ...]
    table: FloatArray


@dataclass(frozen=True)
class Elimination:
    """The minimum as a function of the variables that were kept.

    Attributes:
        kept: their numbers, ascending.
        table: least value for each of their assignments.
        records: (variable, scope of its minimiser, minimiser), in order of elimination.
    """

    kept: tuple[int, ...]
    table: FloatArray
    records: tuple[tuple[int, tuple[int, ...], NDArray[np.intp]], ...]

    def assignment(self, kept: Mapping[int, int]) -> dict[int, int]:
        """The best value of every variable, given values of the kept ones."""
        values = dict(kept)
        for variable, scope, best in reversed(self.records):
            values[variable] = int(best[tuple(values[v] for v in scope)])
        return values


def eliminate(
    domains: Sequence[int], factors: Sequence[Factor], keep: Sequence[int] = ()
) -> Elimination:
    """Minimise over all variables but those kept; see `Order` for many tables of one shape."""
    order = Order(domains, [factor.scope for factor in factors], keep)
    return order.run([factor.table for factor in factors])
