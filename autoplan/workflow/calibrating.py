"""Calibrate: recorded runs -> the constants of one machine and one stack that explain them best.

Runs are taken to be of that machine and stack, whatever they call them. The result is a profile
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
from autoplan.validate.calibrate import Fit, Fitter, Knob, Sample, fit, knobs_of, read, sample_of
from autoplan.validate.calibrate import unexplained as left_unexplained
from autoplan.validate.evaluate import measured_seconds
from autoplan.validate.express import express
from autoplan.validate.standing import remark_on, source_of
from autoplan.validate.statistics import Errors, errors_of
from autoplan.workflow.judging import read_records

LEAST_RUNS = 3
"""Runs below which there is nothing to fit."""
MOST_RUNS = 200
"""Runs that are fitted: more add time, not knowledge."""


@dataclass(frozen=True)
class Calibration:
    """A fit, and the profiles that it gives.

    Attributes:
        fit: what was found.
        samples: the runs that were fitted.
        refused: run -> why it could not be fitted.
        stack, hardware: profile documents.
    """

    fit: Fit
    samples: tuple[Sample, ...]
    refused: Mapping[str, str]
    stack: Mapping[str, Any]
    hardware: Mapping[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`."""
        knobs = enumerate(self.fit.knobs)
        return {
            "runs": len(self.samples),
            "refused": [{"id": id_, "reason": why} for id_, why in sorted(self.refused.items())],
            "constants": [_knob_document(self, index, knob) for index, knob in knobs],
            "before": _errors(self.fit.before),
            "after": _errors(self.fit.after),
            "left_out": _errors(self.fit.left_out),
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
        InputError: unreadable files, or fewer runs with a time than can be fitted.
    """
    told = progress or (lambda text: None)
    samples, refused = [], {}
    for record in read_records(paths, Problems("RUNS")):
        named = replace(record, device=machine, stack=stack)
        try:
            samples.append(_sample(named))
        except AutoplanError as error:
            refused[record.id] = str(error)
        told(f"{len(samples)} runs lowered")
    if len(samples) < LEAST_RUNS:
        reasons = "; ".join(f"{id_}: {why}" for id_, why in list(refused.items())[:LEAST_RUNS])
        found = f"{len(samples)} runs with a time that can be expressed ({reasons or 'no others'})"
        raise InputError(Problem("RUNS", "", found, f"at least {LEAST_RUNS}"))
    kept = tuple(samples[:: -(-len(samples) // MOST_RUNS)])
    sources = [source_of(sample.case.record) for sample in kept]
    groups = [sample.case.record.name for sample in kept]
    knobs = knobs_of([sample.case for sample in kept])
    workers = len(os.sched_getaffinity(0))
    found_fit = fit(Fitter(kept, knobs, sources), groups, workers, progress=told)
    factor = left_unexplained([stack] * len(kept), found_fit.left_out)[stack]
    source = f"fit to {len(kept)} runs of {', '.join(Path(path).name for path in paths)}"
    return Calibration(
        found_fit, kept, refused,
        _stack_document(found_fit, kept, stack, (factor, source)),
        _hardware_document(found_fit, kept, machine, source),
    )  # fmt: skip


def _sample(record: Record) -> Sample:
    remark = remark_on(record)
    if record.oom or remark:
        raise InputError(Problem(record.id, "flags", remark or "oom", "a run that counts"))
    seconds = measured_seconds(express(record))
    if not seconds:
        raise InputError(Problem(record.id, "measured", "no step time", "a time or a rate"))
    return sample_of(record, seconds)


def _value(knob: Knob, samples: Sequence[Sample]) -> float:
    """The profile's value of what a knob turns."""
    profiles = (getattr(s.case, knob.owner) for s in samples if knob.concerns(s.case))
    return read(next(profiles), knob.path) or 0.0


def _knob_document(done: Calibration, index: int, knob: Knob) -> dict[str, Any]:
    before = _value(knob, done.samples)
    identified = done.fit.identified(index)
    return {
        "profile": knob.owner,
        "number": knob.path,
        "before": before,
        "after": before * exp(done.fit.x[index]) if identified else before,
        "spread": float(done.fit.spreads[index]) if identified else knob.spread,
        "identified": identified,
    }


def _errors(ratios: Iterable[float]) -> dict[str, Any]:
    found: Errors = errors_of([expm1(ratio) for ratio in ratios])
    return {
        "median_abs_error": found.median_abs_error,
        "p90_abs_error": found.p90_abs_error,
        "max_abs_error": found.max_abs_error,
        "bias": found.bias,
    }


def _number(found: Fit, index: int, value: float, source: str) -> dict[str, Any]:
    return {
        "value": float(f"{value * exp(found.x[index]):.4g}"),
        "evidence": "fitted",
        "source": source,
        "spread": float(f"{found.spreads[index]:.4g}"),
    }


def _stack_document(
    found: Fit, samples: Sequence[Sample], stack: str, left: tuple[float, str]
) -> dict[str, Any]:
    """A profile that extends the stack's with what was identified."""
    factor, source = left
    constants = {
        knob.path: _number(found, index, _value(knob, samples), source)
        for index, knob in enumerate(found.knobs)
        if knob.owner == "stack" and found.identified(index)
    }
    name = f"{Path(stack).stem}-fitted"
    unexplained = {"value": float(f"{factor:.4g}"), "evidence": "fitted", "source": source}
    return {
        "name": name, "extends": _parent(stack), "unexplained": unexplained, "constants": constants,
    }  # fmt: skip


def _hardware_document(
    found: Fit, samples: Sequence[Sample], machine: str, source: str
) -> dict[str, Any]:
    """The same for the machine; numbers in the units of profile files."""
    device: dict[str, Any] = {}
    levels: dict[str, dict[str, Any]] = {}
    for index, knob in enumerate(found.knobs):
        if knob.owner != "hardware" or not found.identified(index):
            continue
        section, *rest = knob.path.split(".")
        key, unit = (DEVICE_KEYS if section == "device" else LEVEL_KEYS)[rest[-1]]
        holder = device if section == "device" else levels.setdefault(rest[0], {"name": rest[0]})
        base = _value(knob, samples)
        scaled = base * unit.scale if unit.divides else base / unit.scale
        holder[key] = _number(found, index, scaled, source)
    name = f"{Path(machine).stem}-fitted"
    document: dict[str, Any] = {"name": name, "extends": _parent(machine)}
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
