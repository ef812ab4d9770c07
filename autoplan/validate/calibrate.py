"""Which constants explain recorded runs best? Robust least squares through the ordinary path.

What is fitted is what `simulate` computes: a sample is predicted again for every trial of the
constants, its step time by simulation, its peak of memory from the account of its Program.

    minimise  sum over samples  w · rho(link(log(predicted / measured)))
            + sum over knobs    (x - x0)² / s²

x are the turns of the knobs, x0 and s their priors as the profile states them (so that what the
samples cannot tell stays where it was), rho the soft L1 of `scipy.optimize.least_squares`; sources
weigh alike, whatever their number of runs. link is the identity; of a run of which only is known
that it kept a limit, or did not, a smooth hinge. A knob's posterior spread comes from the Jacobian
at the end; one whose spread is that of its prior is *not identified* by the samples.

What a fit is worth is what it predicts for runs that it has not seen: `refit` fits once more
without each group. Where the profile itself was fitted to the same runs, its values must not be the
prior: `Fitter` takes another start, and priors that are wider.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import exp, log
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from autoplan.cost import Measures
from autoplan.ir.machine import Hardware, Stack
from autoplan.validate.knobs import Knob, adjusted, read
from autoplan.validate.samples import FAILED, MEASURED, Sample

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Ask = Callable[[Sequence[int], FloatArray], FloatArray]
"""(samples, x) -> log(predicted / measured) of each."""
Rows = Callable[[Sequence[int], FloatArray], tuple[FloatArray, FloatArray]]
"""(samples, x) -> that of each, and its derivatives, shape (samples, knobs)."""

PERTURBATION = 0.02
"""Change of x by which a knob's effect is measured: beyond the kinks of maxima."""
SOFT = 0.06
"""Residual from which the loss grows linearly: about the floor between repeated runs."""
HINGE = 0.03
"""Width over which a limit is soft: allocators retry, and limits are not known to a per cent."""
NARROWEST = 0.08
"""Least part of a prediction that is left unexplained; see `cost.uncertainty`."""
EIGHTY, FEW = 0.8, 8
LONGEST, LONGEST_MOVE = 0.7, 3.0
"""Longest step of x at once: a factor of two, or three sigma of a number that is moved."""
TINY = 1e-9
IDENTIFIED = 0.7
"""A knob is identified where its spread is below this share of its prior's."""
ITERATIONS = 4
STILL = 5e-3
"""Change of a logarithm below which it is affine."""
CHUNK = 8
"""Samples handed to a worker at once."""


@dataclass(frozen=True)
class Fit:
    """What a fit found.

    Attributes:
        knobs: that were fitted.
        x: how far they were turned, shape (knobs,).
        sigmas: of x after the fit, shape (knobs,).
        before, after: log(predicted / measured) of each sample with the profile's values and after
            the fit, shape (samples,).
        left_out: the same, each sample predicted with constants fitted without its group.
    """

    knobs: tuple[Knob, ...]
    x: FloatArray
    sigmas: FloatArray
    before: FloatArray
    after: FloatArray
    left_out: FloatArray

    def identified(self, index: int) -> bool:
        """Whether the samples say more of a knob than its prior does."""
        return bool(self.sigmas[index] < IDENTIFIED * self.knobs[index].sigma)

    def number(self, index: int, value: float) -> tuple[float, float]:
        """(number after the fit, the one-sigma factor by which it may be off).

        Args:
            index: of the knob.
            value: of the number before.
        """
        knob, sigma = self.knobs[index], float(self.sigmas[index])
        after = knob.turned(value, float(self.x[index]))
        if knob.unit:
            return after, 1 + sigma * knob.unit / max(after, sigma * knob.unit)
        return after, exp(sigma)


class Fitter:
    """Samples and knobs.

    Args:
        samples: runs, lowered.
        knobs: what may change.
        sources: of each sample; sources weigh alike.
        start: where priors are centred, shape (knobs,); None: at the profile's values.
        loose: factor on the spreads of priors.
    """

    def __init__(
        self, samples: Sequence[Sample], knobs: Sequence[Knob], sources: Sequence[str],
        start: FloatArray | None = None, loose: float = 1.0,
    ) -> None:  # fmt: skip
        self.samples, self.knobs = tuple(samples), tuple(knobs)
        counts = Counter(sources)
        each = len(samples) / max(len(counts), 1)
        self.weights = np.array([(each / counts[source]) ** 0.5 for source in sources])
        self.start = np.zeros(len(knobs)) if start is None else start
        self.prior = np.array([SOFT / (loose * knob.sigma) for knob in knobs])
        self.known = np.array([sample.known for sample in self.samples])
        self.concerned = [
            [n for n, knob in enumerate(self.knobs) if knob.concerns(sample.case)]
            for sample in self.samples
        ]
        self.bounds = np.array([self._bounds(knob) for knob in self.knobs]).reshape(-1, 2).T
        self._measures: Measures = {}

    def _bounds(self, knob: Knob) -> tuple[float, float]:
        values = (
            read(getattr(sample.case, knob.owner), knob.path)
            for sample in self.samples
            if knob.concerns(sample.case)
        )
        return knob.bounds(next(values, 0.0) or 0.0)

    def profiles(self, index: int, x: FloatArray) -> tuple[Hardware, Stack]:
        """Machine and stack of a sample with knobs turned."""
        turns = {self.knobs[n]: float(x[n]) for n in self.concerned[index]}
        return adjusted(self.samples[index].case, turns)

    def ratio(self, index: int, x: FloatArray) -> float:
        """log(predicted / measured) of a sample."""
        sample = self.samples[index]
        return log(sample.predict(*self.profiles(index, x), self._measures) / sample.measured)

    def row(self, index: int, x: FloatArray) -> tuple[float, dict[int, float]]:
        """A sample's log ratio, and its derivatives by the knobs that concern it."""
        here = self.ratio(index, x)
        slopes = {}
        for n in self.concerned[index]:
            moved = x.copy()
            moved[n] += PERTURBATION
            slopes[n] = (self.ratio(index, moved) - here) / PERTURBATION
        return here, slopes

    def link(self, ratios: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(how far each sample is off, the derivative of that by its log ratio)."""
        size = self.known * ratios / HINGE
        off = np.where(self.known, HINGE * np.logaddexp(0.0, size), ratios)
        return off, np.where(self.known, self.known / (1 + np.exp(-size)), 1.0)

    def step(
        self, x: FloatArray, ratios: FloatArray, slopes: FloatArray, kept: FloatArray
    ) -> FloatArray:
        """The best change of x where ratios are affine; `kept` is 0 for samples left out."""
        from scipy.optimize import least_squares

        weights, away = self.weights * kept, x - self.start

        def residuals(dx: FloatArray) -> FloatArray:
            off, _ = self.link(ratios + slopes @ dx)
            return np.concatenate([weights * off, self.prior * (away + dx)])

        def jacobian(dx: FloatArray) -> FloatArray:
            _, change = self.link(ratios + slopes @ dx)
            return np.vstack([(weights * change)[:, None] * slopes, np.diag(self.prior)])

        longest = np.array([LONGEST_MOVE if knob.unit else LONGEST for knob in self.knobs])
        low = np.maximum(self.bounds[0] - x, -longest)
        high = np.minimum(self.bounds[1] - x, longest)
        solution = least_squares(
            residuals, np.zeros(len(x)), jacobian,
            bounds=(np.minimum(low, -TINY), np.maximum(high, TINY)), loss="soft_l1", f_scale=SOFT,
        )  # fmt: skip
        return np.asarray(solution.x)

    def sigmas(self, ratios: FloatArray, slopes: FloatArray) -> FloatArray:
        """Of the knobs: inverse curvature of the sum at the solution."""
        _, change = self.link(ratios)
        weighted = (self.weights * change)[:, None] * slopes
        curvature = weighted.T @ weighted + np.diag(self.prior**2)
        return SOFT * np.sqrt(np.diag(np.linalg.inv(curvature)))


# --- many samples at once -------------------------------------------------------------------------

Row = tuple[float, dict[int, float]]

_fitter: Fitter
"""What worker processes simulate: inherited when they are forked."""


def _row(task: tuple[int, FloatArray]) -> Row:
    return _fitter.row(*task)


def _ratio(task: tuple[int, FloatArray]) -> float:
    return _fitter.ratio(*task)


@contextmanager
def asking(fitter: Fitter, workers: int) -> Iterator[tuple[Ask, Rows]]:
    """Predictions of a fitter's samples by several processes; by this one, if `workers` is 1."""
    global _fitter
    _fitter = fitter
    with get_context("fork").Pool(workers) if workers > 1 else nullcontext() as pool:

        def ask(indices: Sequence[int], x: FloatArray) -> FloatArray:
            tasks = [(index, x) for index in indices]
            found = pool.map(_ratio, tasks, chunksize=CHUNK) if pool else map(_ratio, tasks)
            return np.array(list(found), dtype=np.float64)

        def rows(indices: Sequence[int], x: FloatArray) -> tuple[FloatArray, FloatArray]:
            tasks = [(index, x) for index in indices]
            found = pool.map(_row, tasks, chunksize=CHUNK) if pool else map(_row, tasks)
            ratios, slopes = np.zeros(len(tasks)), np.zeros((len(tasks), len(x)))
            for place, (ratio, given) in enumerate(found):
                ratios[place] = ratio
                slopes[place, list(given)] = list(given.values())
            return ratios, slopes

        yield ask, rows


# --- the fit --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solution:
    """Where a fit ended.

    Attributes:
        x: of the knobs.
        before, ratios: of the samples at the profile's values, and at x.
        slopes: derivatives there, shape (samples, knobs).
    """

    x: FloatArray
    before: FloatArray
    ratios: FloatArray
    slopes: FloatArray


def solve(fitter: Fitter, rows: Rows, iterations: int, told: Callable[[str], None]) -> Solution:
    """Gauss-Newton steps, each with a full set of derivatives."""
    x, everyone = np.zeros(len(fitter.knobs)), np.ones(len(fitter.samples))
    before = np.zeros(0)
    for iteration in range(iterations + 1):
        ratios, slopes = rows(range(len(everyone)), x)
        before = ratios if iteration == 0 else before
        told(f"iteration {iteration}: median error {_median(fitter, ratios)}")
        if iteration < iterations:
            x = x + fitter.step(x, ratios, slopes, everyone)
    return Solution(x, before, ratios, slopes)


def _median(fitter: Fitter, ratios: FloatArray) -> str:
    """Of the samples whose number is known."""
    numbers = np.abs(np.expm1(ratios[fitter.known == 0]))
    return f"{np.median(numbers):.1%}" if len(numbers) else "unknown"


def refit(
    fitter: Fitter, done: Solution, groups: Sequence[str], asked: tuple[Ask, Rows],
    told: Callable[[str], None],
) -> tuple[FloatArray, dict[str, FloatArray]]:  # fmt: skip
    """Every sample predicted with constants that were fitted without its group.

    A fold starts from the solution and takes two steps; after the first, samples that it changed
    are predicted again with their derivatives, after the last those that were left out.

    Args:
        fitter: its priors are those of the folds.
        done: with all samples.
        groups: of each sample.
        asked: predict.
        told: how far it is.

    Returns:
        log(predicted / measured) of each sample, and x without each group.
    """
    ask, rows = asked
    left_out, turned = done.ratios.copy(), {}
    names = list(dict.fromkeys(groups))
    for number, group in enumerate(names, 1):
        inside = np.array([g == group for g in groups])
        kept = np.where(inside, 0.0, 1.0)
        slopes = done.slopes.copy()
        x = done.x + fitter.step(done.x, done.ratios, slopes, kept)
        ratios, changed = _changed(done, x, ~inside)
        ratios[changed], slopes[changed] = rows(changed, x)
        x = x + fitter.step(x, ratios, slopes, kept)
        ratios, changed = _changed(done, x, inside)
        ratios[changed] = ask(changed, x)
        left_out[inside] = ratios[inside]
        turned[group] = x
        told(f"{number} of {len(names)} groups left out")
    return left_out, turned


def _changed(done: Solution, x: FloatArray, asked: BoolArray) -> tuple[FloatArray, list[int]]:
    """(log ratios at x where they are affine, which of those asked for are not)."""
    change = done.slopes @ (x - done.x)
    return done.ratios + change, [int(n) for n in np.flatnonzero(asked & (np.abs(change) > STILL))]


def fit(
    fitter: Fitter, groups: Sequence[str], workers: int = 1, iterations: int = ITERATIONS,
    progress: Callable[[str], None] | None = None,
) -> Fit:  # fmt: skip
    """Robust least squares, and every sample again without its group.

    Args:
        fitter: samples and knobs.
        groups: of each sample, for folds.
        workers: processes that predict.
        iterations: Gauss-Newton steps.
        progress: told what is done.
    """
    told = progress or (lambda text: None)
    with asking(fitter, workers) as (ask, rows):
        done = solve(fitter, rows, iterations, told)
        left_out, _ = refit(fitter, done, groups, (ask, rows), told)
    sigmas = fitter.sigmas(done.ratios, done.slopes)
    return Fit(fitter.knobs, done.x, sigmas, done.before, done.ratios, left_out)


def unexplained(stacks: Sequence[str], left_out: FloatArray) -> dict[str, float]:
    """Stack -> the factor within which 80 % of its left-out runs lie.

    A stack with few runs borrows: it takes what 80 % of all runs keep to, if that is more.
    """
    size = np.abs(left_out)
    everyone = float(np.quantile(size, EIGHTY))
    table = {}
    for name in sorted(set(stacks)):
        mine = size[[stack == name for stack in stacks]]
        own = float(np.quantile(mine, EIGHTY))
        table[name] = exp(own if len(mine) >= FEW else max(own, everyone))
    return table


def fits_told(
    samples: Sequence[Sample], ratios: Sequence[float] | FloatArray, headroom: Callable[[int], int]
) -> tuple[int, float, float]:
    """(runs of which is known whether they fitted, share predicted rightly, false among fits).

    Args:
        samples: any; those whose number is known do not count.
        ratios: log(predicted / measured) of each.
        headroom: bytes of a device -> bytes that are left free.
    """
    told = [
        (exp(ratio) * sample.measured <= sample.measured - headroom(round(sample.measured)),
         sample.known == FAILED)
        for sample, ratio in zip(samples, ratios, strict=True)
        if sample.known != MEASURED
    ]  # fmt: skip
    right = sum(fits != failed for fits, failed in told)
    false = sum(fits and failed for fits, failed in told)
    return len(told), right / max(len(told), 1), false / max(sum(fits for fits, _ in told), 1)
