"""Which constants explain recorded runs best? Robust least squares through the ordinary path.

A record is lowered once; its Program is simulated again for every trial of the constants, so what
is fitted is what `simulate` computes. A step of many equal micro-batches is affine in their number
once the pipeline is full, so two short Programs stand for it: exact where stages are in step, and
in the fit alone (`evaluate` always simulates the whole step).

    minimise  sum over records  w · rho(log(predicted / measured))  +  sum over knobs (x - x0)² / s²

x are logarithms of the constants, x0 the profile's values, s their spreads as the profile states
them (a prior, so that what the records cannot tell stays where it was), rho the soft L1 of
`scipy.optimize.least_squares`; sources weigh alike, whatever their number of records. A knob's
posterior spread comes from the Jacobian at the end; one whose spread is that of its prior is *not
identified* by the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.cost import Measures, Pricer
from autoplan.files.stack import constant_origins
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.program import Program
from autoplan.ir.record import Record
from autoplan.lower import lower
from autoplan.simulate import run
from autoplan.validate.evaluate import plan_of
from autoplan.validate.express import Case, express

FloatArray = NDArray[np.float64]

PERTURBATION = 0.02
"""Relative change of a knob by which its effect is measured: beyond the kinks of maxima."""
SOFT = 0.06
"""Residual from which the loss grows linearly: about the floor between repeated runs."""
LEAST, MOST = 0.02, 50.0
"""Factors beyond which no knob is turned."""
NARROWEST = 0.08
"""Least part of a prediction that is left unexplained; see `cost.uncertainty`."""
EIGHTY, FEW = 0.8, 8
LONGEST = 0.7
"""Longest step of a logarithm at once: a factor of two."""
TINY = 1e-9
IDENTIFIED = 0.7
"""A knob is identified where its spread is below this share of its prior's, as logarithms."""
ITERATIONS = 4
CHUNK = 8
"""Samples handed to a worker at once."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A constant that may be fitted.

    Attributes:
        owner: `hardware` or `stack`.
        name: of the profile, or `*` for all.
        path: of the number, such as `device.gemm_efficiency`, `levels.node.latency`, or a
            constant's name.
        spread: one-sigma factor of the prior, > 1.
        least, most: bounds.
    """

    owner: str
    name: str
    path: str
    spread: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.owner} {self.name}: {self.path}"

    def concerns(self, case: Case) -> bool:
        """Whether a case is priced with this constant."""
        if self.owner == "stack":
            return constant_origins(case.stack_spec).get(self.path) == self.name
        named = self.name in ("*", case.hardware.device.kind)
        return named and read(case.hardware, self.path) is not None


def read(profile: Hardware | Stack, path: str) -> float | None:
    """A number of a profile, or None where it has none of that name."""
    if isinstance(profile, Stack):
        return profile.constants.get(path)
    where, *rest = path.split(".")
    if where == "device":
        return float(getattr(profile.device, rest[0]))
    found = [level for level in profile.levels if level.name == rest[0]]
    return float(getattr(found[0], rest[1])) if found else None


def written(profile: Any, path: str, factor: float) -> Any:
    """The profile with a number multiplied."""
    if isinstance(profile, Stack):
        return replace(
            profile, constants={**profile.constants, path: profile.constants[path] * factor}
        )
    where, *rest = path.split(".")
    if where == "device":
        value = getattr(profile.device, rest[0]) * factor
        return replace(profile, device=replace(profile.device, **{rest[0]: value}))
    levels = tuple(
        replace(level, **{rest[1]: getattr(level, rest[1]) * factor})
        if level.name == rest[0]
        else level
        for level in profile.levels
    )
    return replace(profile, levels=levels)


PRIORS: Mapping[str, tuple[float, float, float]] = {
    "device.gemm_efficiency": (1.05, 0.0, 0.97),
    "device.attention_efficiency": (1.2, 0.0, 0.97),
    "levels.node.latency": (2.0, 0.0, inf),
    "levels.node.efficiency": (1.1, 0.0, 0.97),
    "pointwise_factor": (1.8, 0.0, inf),
    "loss_factor": (1.5, 0.0, inf),
    "score_traffic": (1.4, 0.0, inf),
    "host_layer_forward_s": (2.0, 0.0, inf),
    "crossed_floor_s": (1.3, 0.0, inf),
    "fixed_step_s": (1.6, 0.0, inf),
    "overlap_contention": (1.25, 1.0, inf),
    "layer_overlap": (1.6, 0.0, 0.95),
    "network_efficiency": (1.6, 0.0, 1.0),
    "tensor_latency_s": (1.8, 0.0, inf),
}
"""Number of a profile that decides seconds -> spread of its prior, least and most value.
[empirical] Rates that benchmarks measure are held close, links inside a node and the ramp of small
products altogether; what only whole runs show is free."""
UNFITTED = ("autoplan", "generic")
"""Stacks that stand for other software than the runs': theirs is not fitted to those."""


def knobs_of(cases: Sequence[Case]) -> list[Knob]:
    """What the profiles of some cases state and `PRIORS` lets vary: stack constants where they are
    stated, device numbers for each kind, links and overheads together for all kinds.
    """
    wanted: dict[tuple[str, str, str], None] = {}
    for case in cases:
        for path in PRIORS:
            origin = constant_origins(case.stack_spec).get(path)
            if origin in UNFITTED:
                continue
            if origin:
                wanted["stack", origin, path] = None
            elif "." in path and read(case.hardware, path) is not None:
                alone = path in ("device.gemm_efficiency", "device.attention_efficiency")
                name = case.hardware.device.kind if alone else "*"
                wanted["hardware", name, path] = None
    knobs = (_knob(*key, cases) for key in sorted(wanted))
    return [knob for knob in knobs if knob is not None]


def _knob(owner: str, name: str, path: str, cases: Sequence[Case]) -> Knob | None:
    """A knob whose factor keeps every value it turns within bounds; None if a value is 0."""
    spread, least, most = PRIORS[path]
    free = Knob(owner, name, path, spread, 0.0, inf)
    values = [read(getattr(c, owner), path) or 0.0 for c in cases if free.concerns(c)]
    if not min(values):
        return None
    return replace(free, least=max(least / min(values), LEAST), most=min(most / max(values), MOST))


@dataclass(frozen=True)
class Sample:
    """A record ready to be simulated many times.

    Attributes:
        case: what it says.
        seconds: measured.
        programs: (program, weight): their weighted times add up to the step's.
    """

    case: Case
    seconds: float
    programs: tuple[tuple[Program, float], ...]

    def predict(self, hardware: Hardware, stack: Stack, measures: Measures) -> float:
        """Seconds of the step with other constants."""
        pricer = Pricer(hardware, stack, measures)
        total = sum(weight * run(program, pricer).makespan for program, weight in self.programs)
        return total + pricer.fixed_step


def sample_of(record: Record, seconds: float) -> Sample:
    """A record, lowered.

    Raises:
        AutoplanError: it cannot be expressed.
    """
    case = express(record)
    plan = plan_of(case)
    count, stages = plan.schedule.micro_batches, len(plan.stages)
    each = case.workload.global_batch_size // count
    shorter, longer = (2, 3) if stages == 1 else (2 * stages, 3 * stages)
    sizes = {count: 1.0}
    if count > longer:
        slope = (count - shorter) / (longer - shorter)
        sizes = {shorter: 1.0 - slope, longer: slope}

    def lowered(micro_batches: int) -> Program:
        workload = replace(case.workload, global_batch_size=each * micro_batches)
        return lower(case.graph, plan_of(replace(case, workload=workload)))

    return Sample(case, seconds, tuple((lowered(n), weight) for n, weight in sizes.items()))


# --- the fit --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """What a fit found.

    Attributes:
        knobs: that were fitted.
        x: logarithms of the factors on the profile's values, shape (knobs,).
        spreads: one-sigma factor of each knob after the fit, shape (knobs,).
        before, after: log(predicted / measured) of each sample with the profile's values and after
            the fit, shape (samples,).
        left_out: the same, each sample predicted with constants fitted without its group.
    """

    knobs: tuple[Knob, ...]
    x: FloatArray
    spreads: FloatArray
    before: FloatArray
    after: FloatArray
    left_out: FloatArray

    def identified(self, index: int) -> bool:
        """Whether the records say more of a knob than its prior does."""
        return bool(log(self.spreads[index]) < IDENTIFIED * log(self.knobs[index].spread))


def adjusted(case: Case, factors: Mapping[Knob, float]) -> tuple[Hardware, Stack]:
    """Machine and stack of a case with knobs turned."""
    hardware, stack = case.hardware, case.stack
    for knob, factor in factors.items():
        if factor != 1.0 and knob.concerns(case):
            if knob.owner == "hardware":
                hardware = written(hardware, knob.path, factor)
            else:
                stack = written(stack, knob.path, factor)
    return hardware, stack


class Fitter:
    """Samples and knobs.

    Args:
        samples: records, lowered.
        knobs: what may change.
        sources: of each sample; sources weigh alike.
    """

    def __init__(
        self, samples: Sequence[Sample], knobs: Sequence[Knob], sources: Sequence[str]
    ) -> None:
        self.samples, self.knobs = tuple(samples), tuple(knobs)
        counts = Counter(sources)
        each = len(samples) / len(counts)
        self.weights = np.array([(each / counts[source]) ** 0.5 for source in sources])
        self.prior = np.array([SOFT / log(knob.spread) for knob in knobs])
        self.concerned = [
            [n for n, knob in enumerate(self.knobs) if knob.concerns(sample.case)]
            for sample in self.samples
        ]
        self._measures: Measures = {}

    def ratio(self, index: int, x: FloatArray) -> float:
        """log(predicted / measured) of a sample with knobs at exp(x)."""
        sample = self.samples[index]
        factors = {self.knobs[n]: exp(x[n]) for n in self.concerned[index]}
        seconds = sample.predict(*adjusted(sample.case, factors), self._measures)
        return log(seconds / sample.seconds)

    def row(self, index: int, x: FloatArray) -> tuple[float, dict[int, float]]:
        """A sample's log ratio, and its derivatives by the knobs that concern it."""
        here = self.ratio(index, x)
        slopes = {}
        for n in self.concerned[index]:
            moved = x.copy()
            moved[n] += PERTURBATION
            slopes[n] = (self.ratio(index, moved) - here) / PERTURBATION
        return here, slopes

    def step(
        self, x: FloatArray, ratios: FloatArray, slopes: FloatArray, kept: FloatArray
    ) -> FloatArray:
        """The best change of x where ratios are affine; `kept` is 0 for samples left out."""
        from scipy.optimize import least_squares

        weights = self.weights * kept
        jacobian = np.vstack([weights[:, None] * slopes, np.diag(self.prior)])
        low = np.maximum([log(k.least) - a for k, a in zip(self.knobs, x, strict=True)], -LONGEST)
        high = np.minimum([log(k.most) - a for k, a in zip(self.knobs, x, strict=True)], LONGEST)
        solution = least_squares(
            lambda dx: np.concatenate([weights * (ratios + slopes @ dx), self.prior * (x + dx)]),
            np.zeros(len(x)),
            lambda dx: jacobian,
            bounds=(np.minimum(low, -TINY), np.maximum(high, TINY)),
            loss="soft_l1",
            f_scale=SOFT,
        )
        return np.asarray(solution.x)

    def spreads(self, slopes: FloatArray) -> FloatArray:
        """One-sigma factors of the knobs: inverse curvature of the sum at the solution."""
        weighted = self.weights[:, None] * slopes
        curvature = weighted.T @ weighted + np.diag(self.prior**2)
        return np.exp(SOFT * np.sqrt(np.diag(np.linalg.inv(curvature))))


_fitter: Fitter
"""What worker processes simulate: inherited when they are forked."""


def _row(task: tuple[int, FloatArray]) -> tuple[float, dict[int, float]]:
    return _fitter.row(*task)


def fit(
    fitter: Fitter, groups: Sequence[str], workers: int = 1, iterations: int = ITERATIONS,
    progress: Callable[[str], None] | None = None,
) -> Fit:  # fmt: skip
    """Robust least squares, and every sample again without its group.

    Left-out predictions use the affine ratios at the solution: their constants differ little from
    the solution's, and every fold would else be a fit of its own.

    Args:
        fitter: samples and knobs.
        groups: of each sample, for folds.
        workers: processes that simulate.
        iterations: Gauss-Newton steps, each a full set of derivatives.
        progress: told what is done.
    """
    global _fitter
    _fitter = fitter
    told = progress or (lambda text: None)
    x, before = np.zeros(len(fitter.knobs)), np.zeros(0)
    everyone = np.ones(len(fitter.samples))
    with get_context("fork").Pool(workers) as pool:
        for iteration in range(iterations + 1):
            tasks = [(index, x) for index in range(len(fitter.samples))]
            rows = pool.map(_row, tasks, chunksize=CHUNK)
            ratios = np.array([ratio for ratio, _ in rows])
            slopes = np.zeros((len(rows), len(x)))
            for index, (_, found) in enumerate(rows):
                slopes[index, list(found)] = list(found.values())
            before = ratios if iteration == 0 else before
            told(f"iteration {iteration}: median error {np.median(np.abs(np.expm1(ratios))):.1%}")
            if iteration < iterations:
                x = x + fitter.step(x, ratios, slopes, everyone)
    left_out = ratios.copy()
    for group in dict.fromkeys(groups):
        inside = np.array([g == group for g in groups])
        change = fitter.step(x, ratios, slopes, np.where(inside, 0.0, 1.0))
        left_out[inside] = (ratios + slopes @ change)[inside]
    return Fit(fitter.knobs, x, fitter.spreads(slopes), before, ratios, left_out)


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
