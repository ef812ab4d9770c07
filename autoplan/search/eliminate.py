"""Exact minimisation over a graph of small tables: min-plus variable elimination.

    minimise   sum over factors f of  table_f[x_i for i in scope_f]      over x_i in 0 .. domain_i - 1

Eliminating a variable adds the tables that contain it and takes the minimum over it; the order is greedy,
least resulting table first. Decoder blocks have width 2, so no table has more than three variables.
Source: Dechter 1999, "Bucket elimination: a unifying framework for reasoning".
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
    """Minimise over all variables but those kept.

    Args:
        domains: number of values of each variable.
        factors: tables; `inf` marks what is not allowed.
        keep: variables left in the result.

    Complexity: the sum over eliminated variables of the size of the table they stand in.
    """
    pool = list(factors)
    kept = tuple(sorted(keep))
    left = {variable for factor in pool for variable in factor.scope} - set(kept)
    left |= set(range(len(domains))) - set(kept)
    records = []
    while left:
        variable = min(left, key=lambda v: (_size(v, pool, domains), v))
        left.remove(variable)
        mine = [factor for factor in pool if variable in factor.scope]
        pool = [factor for factor in pool if variable not in factor.scope]
        scope = tuple(sorted({v for f in mine for v in f.scope} - {variable}))
        total = _sum(mine, (*scope, variable), domains)
        best = total.argmin(axis=-1)
        records.append((variable, scope, best))
        pool.append(Factor(scope, np.take_along_axis(total, best[..., None], -1)[..., 0]))
    return Elimination(kept, _sum(pool, kept, domains), tuple(records))


def _size(variable: int, pool: Sequence[Factor], domains: Sequence[int]) -> int:
    scope = {v for factor in pool if variable in factor.scope for v in factor.scope}
    return prod(domains[v] for v in scope)


def _sum(factors: Sequence[Factor], scope: Sequence[int], domains: Sequence[int]) -> FloatArray:
    """The sum of tables over a scope that contains all of theirs, axes in the order of `scope`."""
    total = np.zeros([domains[v] for v in scope])
    for factor in factors:
        axes = [scope.index(v) for v in factor.scope]
        order = np.argsort(axes)
        table = factor.table.transpose(order)
        shape = [1] * len(scope)
        for axis in axes:
            shape[axis] = domains[scope[axis]]
        total += table.reshape(shape)
    return total
