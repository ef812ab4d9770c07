"""What was measured, as a document for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autoplan.files.hardware import dump_hardware
from autoplan.validate.measure.assemble import LARGE
from autoplan.validate.measure.cluster import Cluster
from autoplan.validate.measure.compute import Part, Reading, family_lines, scatter
from autoplan.validate.measure.links import CallFit, LevelFit
from autoplan.validate.measure.machine import Measured


def measured_document(measured: Measured) -> dict[str, Any]:
    """A measured machine: `hardware`, the profile, and what it rests on."""
    return {
        "hardware": dump_hardware(measured.hardware),
        "cpu_share": measured.share,
        "interpreter_s": measured.interpreter,
        "outside_share": measured.outside,
        "parts": [_part(part) for part in measured.device.parts],
        "families": [asdict(line) for line in family_lines(measured.readings)],
        "operators": [_operator(reading) for reading in measured.readings],
        "links": {measured.hardware.levels[0].name: links_document(measured.level)}
        if measured.level
        else {},
        "notes": list(measured.notes),
    }


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """A cluster described by files: `hardware`, the profile, and how well it fits its logs."""
    return {
        "hardware": dump_hardware(cluster.hardware),
        "links": {name: links_document(fit) for name, fit in cluster.fits.items()},
        "notes": list(cluster.notes),
    }


def links_document(level: LevelFit) -> dict[str, Any]:
    """A level's fit: median absolute errors of small and large messages, and every row."""
    return {
        "latency_s": level.latency,
        "bandwidth": level.rate,
        "error_small": level.typical_error(most=LARGE),
        "error_large": level.typical_error(least=LARGE),
        "lines": {
            shape: {"seconds": line.constant, "seconds_per_byte": line.slope}
            for shape, line in level.lines.items()
        },
        "rows": [_call(row) for row in level.rows],
    }


def _part(part: Part) -> Mapping[str, Any]:
    return {
        "step": part.step,
        "precision": part.precision,
        "part": part.part,
        "count": part.count,
        "measured_s": part.measured,
        "predicted_s": part.predicted,
        "share": part.share,
        "error": part.error,
    }


def _operator(reading: Reading) -> Mapping[str, Any]:
    return {
        "step": reading.step,
        "precision": reading.precision,
        "family": reading.family,
        "kind": reading.work.kind,
        "dtype": reading.dtype,
        "flops": reading.work.flops,
        "nbytes": reading.work.nbytes,
        "rows": reading.work.rows,
        "count": reading.count,
        "seconds": reading.typical,
        "spread": scatter(reading.seconds),
    }


def _call(row: CallFit) -> Mapping[str, Any]:
    call = row.call
    return {
        "kind": call.kind,
        "groups": [list(group) for group in call.groups],
        "nbytes": call.nbytes,
        "seconds": call.typical,
        "spread": scatter(call.seconds),
        "fitted_s": row.seconds,
        "error": row.error,
        "own_error": row.own_error,
        "table_error": row.table_error,
    }
