"""How far off are predictions of runs that no constant was fitted to?

Three ways to be unfamiliar, each a refit (`calibrate.refit`) without what is predicted:

    model       runs of one model of one source are left out
    described   a whole source is left out: device numbers are fitted without it, and of its
                software only decisions are known (pins, habits, which kernels there are); its
                constants are those of software in general
    generic     the same, and nobody has described its software: the stack is `generic`

Profiles were fitted to the same runs, so their values know what is left out. Folds must not: a
constant that the generic stack states starts there, and priors are `LOOSE` times as wide. So does a
fit of what decides bytes: fitted again to the same runs, it gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log

import numpy as np

from autoplan.cost import half_width
from autoplan.files.stack import constant_origins, load_stack
from autoplan.ir.machine import NEUTRAL, Hardware, Stack
from autoplan.validate.calibrate import (
    ITERATIONS,
    Fitter,
    FloatArray,
    asking,
    refit,
    solve,
)
from autoplan.validate.express import GENERIC
from autoplan.validate.knobs import SECONDS, Knob
from autoplan.validate.samples import Sample, TimeSample, lowered, time_sample

LOOSE = 2.0
"""[empirical] Wide enough that a handful of runs outweighs it."""
FITTED = "fitted"
"""Kind of evidence of a number that runs were fitted to."""
WAYS = ("model", "described", "generic")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run that was predicted unseen.

    Attributes:
        way: of `WAYS`.
        source, id: of the run.
        ratio: log(predicted / measured).
        half: log(1 + the half-width of its interval).
    """

    way: str
    source: str
    id: str
    ratio: float
    half: float

    @property
    def covered(self) -> bool:
        """Whether the interval contains the measurement."""
        return abs(self.ratio) <= self.half


def starts(knobs: Sequence[Knob], samples: Sequence[Sample]) -> FloatArray:
    """Where priors are centred that must not know the runs, shape (knobs,).

    Of what decides seconds: at the generic stack's value, where that stack has one. Of what decides
    bytes: there, where the profile's own value was fitted; what it assumes, it has from elsewhere.
    """
    generic = load_stack(GENERIC)
    start = np.zeros(len(knobs))
    for number, knob in enumerate(knobs):
        if knob.owner != "stack":
            continue
        stack = next(s.case.stack for s in samples if knob.concerns(s.case))
        value, origin = generic.constants.get(knob.path, 0.0), stack.evidence.get(knob.path)
        stated = bool(value) and value != NEUTRAL.get(knob.path)
        if (origin is not None and origin.kind == FITTED) if knob.unit else stated:
            start[number] = knob.reaching(stack.constants[knob.path], value)
    return start


def left_out(
    samples: Sequence[TimeSample], knobs: Sequence[Knob], sources: Sequence[str],
    workers: int = 1, iterations: int = ITERATIONS, progress: Callable[[str], None] | None = None,
) -> list[LeftOut]:  # fmt: skip
    """Every sample in every way.

    Args:
        samples: runs, lowered.
        knobs: that are fitted.
        sources: of each sample.
        workers: processes that simulate.
        iterations: of the fit to all samples, from which folds start.
        progress: told how far it is.
    """
    told = progress or (lambda text: None)
    fitter = Fitter(samples, knobs, sources, starts(knobs, samples), LOOSE)
    models = [f"{s}: {run.case.record.name}" for s, run in zip(sources, samples, strict=True)]
    with asking(fitter, workers) as asked:
        done = solve(fitter, asked[1], iterations, told)
        _, by_model = refit(fitter, done, models, asked, told)
        _, by_source = refit(fitter, done, sources, asked, told)
    typical = {source: typical_constants(samples, sources, source) for source in set(sources)}
    found = []
    for index, (run, source) in enumerate(zip(samples, sources, strict=True)):
        hardware, stack = fitter.profiles(index, by_model[models[index]])
        found.append(_left_out("model", source, run, hardware, stack))
        hardware, _ = fitter.profiles(index, by_source[source])
        stack = described(run.case.stack, typical[source])
        found.append(_left_out("described", source, run, hardware, stack))
        found.append(_left_out("generic", source, *_as_generic(run, hardware)))
        told(f"{index + 1} of {len(samples)} runs predicted without their source")
    return found


def _left_out(way: str, source: str, run: TimeSample, hardware: Hardware, stack: Stack) -> LeftOut:
    parts = run.breakdown(hardware, stack, {})
    ratio = log(fsum(parts.values()) / run.measured)
    half = log(1 + half_width(parts, hardware, stack))
    return LeftOut(way, source, run.case.record.id, ratio, half)


def _as_generic(run: TimeSample, hardware: Hardware) -> tuple[TimeSample, Hardware, Stack]:
    """A run as one of software that nobody has described."""
    other = lowered(replace(run.case.record, stack=GENERIC))
    return time_sample(other, run.measured), hardware, other.case.stack


def described(stack: Stack, typical: Mapping[str, float]) -> Stack:
    """A stack of which all is known but its constants.

    What a constant says of a decision is kept: one that changes nothing stays so (a kernel that
    there is not). Everything else is the generic stack's, or, where that has none, what other
    stacks have.
    """
    generic = load_stack(GENERIC)
    constants, evidence = dict(stack.constants), dict(stack.evidence)
    for path in SECONDS:
        if constants.get(path) in (None, NEUTRAL.get(path)):
            continue
        general = generic.constants[path]
        neutral = general == NEUTRAL.get(path)
        constants[path] = typical.get(path, general) if neutral else general
        evidence.pop(path, None)
        if path in generic.evidence and not neutral:
            evidence[path] = generic.evidence[path]
    return replace(stack, constants=constants, evidence=evidence, unexplained=generic.unexplained)


def typical_constants(
    samples: Sequence[TimeSample], sources: Sequence[str], without: str
) -> dict[str, float]:
    """Constant -> geometric mean over the stacks of other sources that do not leave it neutral."""
    stated: dict[str, dict[str, float]] = {}
    for run, source in zip(samples, sources, strict=True):
        if source == without:
            continue
        for path, origin in constant_origins(run.case.stack_spec).items():
            value = run.case.stack.constants.get(path, 0.0)
            if path in SECONDS and value and value != NEUTRAL.get(path):
                stated.setdefault(path, {})[origin] = value
    return {
        path: exp(fsum(map(log, values.values())) / len(values)) for path, values in stated.items()
    }
