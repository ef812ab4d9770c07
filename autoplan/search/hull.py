"""The best weights of channels for a relaxed step: each gives decisions and a lower bound.

Linear programmes over mixtures of the decisions found so far alternate with exact minimisation over
all decisions for the programme's weights (column generation). It ends where no decision improves
the mixture: on the convex hull of all decisions. Source: Dantzig & Wolfe 1960, "Decomposition
principle for linear programs"; the bound of each round is Lagrange's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.search.chain import Chain, Solution
from autoplan.search.relaxed import Relaxation

FloatArray = NDArray[np.float64]

ROUNDS = 25
"""Weights that are tried at most."""
CLOSE = 1e-9
"""Share of a step by which a mixture must improve to go on."""
NEVER = 1e-9
"""Share of a limit that a mixture may be over it and still counts as fitting."""


@dataclass(frozen=True)
class Bound:
    """Weights and what they prove.

    Attributes:
        seconds: no decisions have a shorter step.
        weights: per block, of its channels.
        least: the weighted sum of the best decisions.
    """

    seconds: float
    weights: Mapping[str, FloatArray]
    least: float


@dataclass(frozen=True)
class Hull:
    """What the walk ended with.

    Attributes:
        bounds: the largest first.
        fits: whether a mixture of decisions fits in memory, unless that is not known.
        mixture: (share, decisions) of the last one.
    """

    bounds: Sequence[Bound]
    fits: bool
    mixture: Sequence[tuple[float, Solution]]

    @property
    def lower(self) -> float:
        """The best bound; infinite where nothing fits."""
        return self.bounds[0].seconds if self.fits and self.bounds else float("inf")


def walk(
    chain: Chain, relaxed: Relaxation, pool: list[Solution], met: Callable[[Solution], float]
) -> Hull:
    """Find the weights whose bound is the best.

    Args:
        chain: what is decided.
        relaxed: its step.
        pool: decisions to start from, at least one; those that are found are added.
        met: told of every new solution; the best step so far, which bounds need not exceed.
    """
    points = [relaxed.point(solution) for solution in pool]
    bounds: list[Bound] = []
    best, fits = float("inf"), True
    mixture: list[tuple[float, Solution]] = []
    for _ in range(ROUNDS):
        value, over, shares, duals = _mixture(relaxed, np.stack(points))
        mixture = [(x, s) for x, s in zip(shares, pool, strict=True) if x > 0.0]
        weights = relaxed.p - duals @ relaxed.big_h
        per_block = relaxed.per_block(weights * relaxed.seconds)
        solution = chain.minimise(per_block, relaxed.pace.stages)
        if solution is None:
            break
        bound = _bound(relaxed, duals, solution.objective / relaxed.seconds, value)
        bounds.append(Bound(bound * relaxed.seconds, per_block, solution.objective))
        best = min(best, met(solution))
        point = relaxed.point(solution)
        known = any(np.array_equal(point, other) for other in points)
        if known or value - bound <= CLOSE * value:
            fits = over <= NEVER
            break
        if bounds[-1].seconds >= best:
            break
        pool.append(solution)
        points.append(point)
    return Hull(sorted(bounds, key=lambda b: -b.seconds), fits, mixture)


def _mixture(
    relaxed: Relaxation, points: FloatArray
) -> tuple[float, float, FloatArray, FloatArray]:  # fmt: skip
    """(value, bytes over limits, share of each point, a dual per row) of the best mixture, in
    units.
    """
    from scipy.optimize import linprog

    columns = len(relaxed.q)
    cost = np.concatenate([relaxed.q, points @ relaxed.p])
    upper = -np.hstack([relaxed.big_g, relaxed.big_h @ points.T])
    one = np.concatenate([np.zeros(columns), np.ones(len(points))])[None, :]
    found = linprog(cost, A_ub=upper, b_ub=relaxed.k, A_eq=one, b_eq=[1.0], method="highs")
    assert found.success, found.message
    over = float(found.x[relaxed.excess].max())
    duals = np.maximum(-found.ineqlin.marginals, 0.0)
    return float(found.fun) + relaxed.constant, over, found.x[columns:], duals


def _bound(relaxed: Relaxation, duals: FloatArray, least: float, scale: float) -> float:
    """Lagrange's bound; what duals lack to be feasible is taken off."""
    lacking = float(np.maximum(duals @ relaxed.big_g - relaxed.q, 0.0).sum())
    return least - float(duals @ relaxed.k) + relaxed.constant - lacking * scale
