"""Calibrate: recorded runs -> the constants of one machine and one stack that explain them best.

Runs are taken to be of that machine and stack, whatever they call them. Step times are fitted by
what decides seconds; peaks, and whether runs fitted, by what decides bytes. The result is a profile
that extends each, with evidence `fitted` for what the runs can tell and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, expm1
from pathlib import Path
from typing import Any

from autoplan.errors import AutoplanError, InputError, Problem
from autoplan.files.hardware import DEVICE_KEYS, LEVEL_KEYS
from autoplan.files.problems import Problems
from autoplan.files.text import write_json
from autoplan.ir.record import Record
from autoplan.validate.calibrate import NARROWEST, Fit, Fitter, fit, fits_told
from autoplan.validate.calibrate import unexplained as left_unexplained
from autoplan.validate.evaluate import measured_seconds
from autoplan.validate.knobs import Knob, knobs_of, memory_knobs_of, read
from autoplan.validate.samples import (
    FAILED,
    MEASURED,
    Lowered,
    Sample,
    lowered,
    memory_sample,
    time_sample,
)
from autoplan.validate.standing import doubt_about, source_of
from autoplan.validate.statistics import errors_of
from autoplan.workflow.judging import read_records
from autoplan.workflow.question import headroom_of

LEAST_RUNS = 3
"""Runs below which there is nothing to fit."""
MOST_RUNS = 200
"""Runs that are fitted: more add time, not knowledge."""
MOST_FOLDS = 8
TIMES = ("before", "after", "left_out")


@dataclass(frozen=True)
class Part:
    """What was fitted to one kind of number.

    Attributes:
        fit: what was found.
        samples: that it was fitted to.
        folds: what `left_out` leaves out: `models` or `layouts`.
    """

    fit: Fit
    samples: tuple[Sample, ...]
    folds: str

    @property
    def document(self) -> dict[str, Any]:
        """Errors before, after and left out; of runs that failed, whether that was predicted."""
        numbers = [n for n, sample in enumerate(self.samples) if sample.known == MEASURED]
        ratios = {name: getattr(self.fit, name) for name in TIMES}
        document: dict[str, Any] = {"runs": len(numbers), "folds": self.folds}
        document |= {name: _errors(found[n] for n in numbers) for name, found in ratios.items()}
        if all(sample.known != FAILED for sample in self.samples):
            return document
        told = {name: fits_told(self.samples, found, headroom_of) for name, found in ratios.items()}
        fits = {
            name: {"agreement": right, "false_fits": false}
            for name, (_, right, false) in told.items()
        }
        return document | {"outcomes": told["after"][0], "fits": fits}


@dataclass(frozen=True)
class Calibration:
    """Fits, and the profiles that they give.

    Attributes:
        times, memory: what was fitted; None where too few runs tell.
        refused: run -> why it could not be fitted.
        stack, hardware: profile documents.
    """

    times: Part | None
    memory: Part | None
    refused: Mapping[str, str]
    stack: Mapping[str, Any]
    hardware: Mapping[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`."""
        parts = [part for part in (self.times, self.memory) if part]
        return {
            "refused": [{"id": id_, "reason": why} for id_, why in sorted(self.refused.items())],
            "constants": [
                _knob_document(part, index) for part in parts for index in range(len(part.fit.x))
            ],
            "step_time": self.times.document if self.times else None,
            "peak_memory": self.memory.document if self.memory else None,
            "stack": dict(self.stack),
            "hardware": dict(self.hardware),
        }


def calibrate_runs(
    paths: Sequence[str], machine: str, stack: str,
    progress: Callable[[str], None] | None = None,
) -> Calibration:  # fmt: skip
    """Fit the constants of a machine and a stack to recorded runs.

    Args:
        paths: files of recorded runs, and training logs.
        machine: hardware profile, bundled or a path.
        stack: stack profile, bundled or a path.
        progress: told how far it is.

    Raises:
        InputError: unreadable files, or fewer runs with a number than can be fitted.
    """
    told = progress or (lambda text: None)
    records = read_records(paths, Problems("RUNS"))
    runs, refused = _runs(records, machine, stack, told)
    times = [time_sample(run, seconds) for run in runs if (seconds := _seconds(run))]
    memory = _memory_samples(runs)
    if max(len(times), len(memory)) < LEAST_RUNS:
        reasons = "; ".join(f"{id_}: {why}" for id_, why in list(refused.items())[:LEAST_RUNS])
        found = f"{len(runs)} runs with a number that can be expressed ({reasons or 'no others'})"
        raise InputError(Problem("RUNS", "", found, f"at least {LEAST_RUNS}"))
    cases = [run.case for run in runs]
    workers = len(os.sched_getaffinity(0))
    turned = knobs_of(cases, (), stated=True)
    timed = _fitted(times, turned, workers, lambda text: told(f"step time, {text}"))
    kept = _fitted(memory, memory_knobs_of(cases, ()), 1, lambda text: told(f"memory, {text}"))
    source = f"fit to {len(runs)} runs of {', '.join(Path(path).name for path in paths)}"
    return Calibration(
        timed, kept, refused,
        _stack_document(timed, kept, stack, source), _hardware_document(timed, machine, source),
    )  # fmt: skip


def _runs(
    records: Sequence[Record], machine: str, stack: str, told: Callable[[str], None]
) -> tuple[list[Lowered], dict[str, str]]:
    """Up to `MOST_RUNS` runs that count, lowered, and why others could not be."""
    refused, counting = {}, []
    for record in records:
        remark = doubt_about(record)
        if remark:
            refused[record.id] = f"set apart: {remark}"
        else:
            counting.append(replace(record, device=machine, stack=stack))
    found = []
    chosen = counting[:: -(-len(counting) // MOST_RUNS) or 1]
    for record in chosen:
        try:
            run = lowered(record)
            if not (record.oom or record.measured.peak_mem_gib or measured_seconds(run.case)):
                raise InputError(Problem(record.id, "measured", "nothing", "a time, rate or peak"))
            found.append(run)
        except AutoplanError as error:
            refused[record.id] = str(error)
        told(f"{len(found)} of {len(chosen)} runs lowered")
    return found, refused


def _seconds(run: Lowered) -> float | None:
    return None if run.case.record.oom else measured_seconds(run.case)


def _memory_samples(runs: Sequence[Lowered]) -> list[Sample]:
    """Peaks; and outcomes, where some run failed."""
    found: list[Sample] = [memory_sample(r) for r in runs if r.case.record.measured.peak_mem_gib]
    if any(run.case.record.oom for run in runs):
        found += [memory_sample(run, outcome=True) for run in runs]
    return found


def _fitted(
    samples: Sequence[Sample], knobs: Sequence[Knob], workers: int, told: Callable[[str], None]
) -> Part | None:
    """A fit, with folds by model, or by layout where all runs are of one model."""
    if len(samples) < LEAST_RUNS or not knobs:
        return None
    records = [sample.case.record for sample in samples]
    names, folds = [record.name for record in records], "models"
    if len(set(names)) == 1:
        names, folds = [str(sorted(record.parallel.items())) for record in records], "layouts"
    numbers = {name: str(n % MOST_FOLDS) for n, name in enumerate(dict.fromkeys(names))}
    fitter = Fitter(samples, knobs, [source_of(record) for record in records])
    found = fit(fitter, [numbers[name] for name in names], workers, progress=told)
    return Part(found, tuple(samples), folds)


# --- documents ------------------------------------------------------------------------------------


def _value(knob: Knob, samples: Sequence[Sample]) -> float:
    """The profile's value of what a knob turns."""
    profiles = (getattr(s.case, knob.owner) for s in samples if knob.concerns(s.case))
    return read(next(profiles), knob.path) or 0.0


def _knob_document(part: Part, index: int) -> dict[str, Any]:
    knob, identified = part.fit.knobs[index], part.fit.identified(index)
    before = _value(knob, part.samples)
    after, spread = part.fit.number(index, before)
    return {
        "profile": knob.owner,
        "number": knob.path,
        "before": before,
        "after": after if identified else before,
        "spread": spread if identified else None,
        "identified": identified,
    }


def _errors(ratios: Iterable[float]) -> dict[str, Any]:
    found = errors_of([expm1(ratio) for ratio in ratios])
    return {
        "median_abs_error": found.median_abs_error,
        "p90_abs_error": found.p90_abs_error,
        "max_abs_error": found.max_abs_error,
        "bias": found.bias,
    }


def _identified(part: Part | None, owner: str) -> dict[str, tuple[float, float]]:
    """Path -> (number, spread) of what runs can tell of a profile."""
    if part is None:
        return {}
    return {
        knob.path: part.fit.number(index, _value(knob, part.samples))
        for index, knob in enumerate(part.fit.knobs)
        if knob.owner == owner and part.fit.identified(index)
    }


def _number(value: float, spread: float, source: str) -> dict[str, Any]:
    return {
        "value": float(f"{value:.4g}"), "evidence": "fitted", "source": source,
        "spread": float(f"{spread:.4g}"),
    }  # fmt: skip


def _stack_document(
    times: Part | None, memory: Part | None, stack: str, source: str
) -> dict[str, Any]:
    """A profile that extends the stack's with what was identified."""
    numbers = {**_identified(times, "stack"), **_identified(memory, "stack")}
    document: dict[str, Any] = {"name": f"{Path(stack).stem}-fitted", "extends": _parent(stack)}
    if times:
        left = left_unexplained([stack] * len(times.samples), times.fit.left_out)[stack]
        factor = float(f"{max(left, exp(NARROWEST)):.4g}")
        document["unexplained"] = {"value": factor, "evidence": "fitted", "source": source}
    constants = {path: _number(*number, source) for path, number in numbers.items()}
    return document | {"constants": constants}


def _hardware_document(times: Part | None, machine: str, source: str) -> dict[str, Any]:
    """The same for the machine; numbers in the units of profile files."""
    device: dict[str, Any] = {}
    levels: dict[str, dict[str, Any]] = {}
    for path, (value, spread) in _identified(times, "hardware").items():
        section, *rest = path.split(".")
        key, unit = (DEVICE_KEYS if section == "device" else LEVEL_KEYS)[rest[-1]]
        holder = device if section == "device" else levels.setdefault(rest[0], {"name": rest[0]})
        holder[key] = _number(
            value * unit.scale if unit.divides else value / unit.scale, spread, source
        )
    document: dict[str, Any] = {"name": f"{Path(machine).stem}-fitted", "extends": _parent(machine)}
    document |= {"device": device} if device else {}
    return document | ({"levels": list(levels.values())} if levels else {})


def _parent(name: str) -> str:
    """A bundled name as it is, a file by where it lies."""
    return str(Path(name).resolve()) if Path(name).is_file() else name


def write_profiles(done: Calibration, output: str) -> tuple[str, str]:
    """Write the stack's profile to a file, and the machine's beside it (`X.hardware.json`).

    Returns:
        Both paths.
    """
    beside = str(Path(output).with_suffix(".hardware.json"))
    write_json(output, dict(done.stack))
    write_json(beside, dict(done.hardware))
    return output, beside
