"""Fitting a device: the machine that prices its own readings is found again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from autoplan.ir.machine import Evidence
from autoplan.ops import FAMILIES
from autoplan.validate.measure.compute import (
    family_lines,
    fit_device,
    pooled,
    price_parts,
    scatter,
)
from tests.validate.measure.readings import STACK, machine, readings

TRUE = {
    "gemm_efficiency": 0.6, "gemm_half_flops": 4e5, "attention_efficiency": 0.25,
    "memory_efficiency": 0.3, "launch": 2e-5,
}  # fmt: skip


def on_sheet(hardware):
    """Peaks and bandwidth as a data sheet says."""
    sheet = Evidence("datasheet", "sheet")
    paths = [f"device.peak_flops.{dtype}" for dtype in hardware.device.peak_flops]
    known = dict.fromkeys([*paths, "device.memory_bandwidth"], sheet)
    return replace(hardware, evidence={**hardware.evidence, **known})


def test_the_machine_that_made_the_readings_is_found():
    fitted = fit_device(readings(machine(**TRUE)), on_sheet(machine()), STACK, "test")
    assert max(abs(part.error) for part in fitted.parts) < 0.03
    for name in ("gemm_efficiency", "attention_efficiency", "launch"):
        assert getattr(fitted.device, name) == pytest.approx(TRUE[name], rel=0.1)
    assert all(fitted.evidence[f"device.{name}"].kind == "measured" for name in TRUE)
    assert all(fitted.evidence[f"device.{name}"].spread < 1.05 for name in TRUE)


def test_noise_is_averaged():
    random = Random(0)
    noisy = readings(machine(**TRUE), noise=lambda: random.lognormvariate(0, 0.2))
    fitted = fit_device(noisy, on_sheet(machine()), STACK, "test")
    quiet = price_parts(readings(machine(**TRUE)), replace(machine(), device=fitted.device), STACK)
    assert sum(part.share * abs(part.error) for part in quiet) < 0.2  # of four steps


def test_a_data_sheet_is_kept_and_otherwise_the_best_rate_is_the_peak():
    made = readings(machine(**TRUE), ("fp32", "bf16_pure"))
    kept = fit_device(made, on_sheet(machine()), STACK, "test").device
    assert kept.peak_flops == machine().device.peak_flops
    seen = fit_device(made, machine(), STACK, "test")
    best = {
        dtype: max(
            r.work.flops / r.typical
            for r in made
            if r.dtype == dtype and r.part == "matrix products"
        )
        for dtype in ("fp32", "bf16")
    }
    assert {dtype: seen.device.peak_flops[dtype] for dtype in best} == best
    assert seen.device.peak_flops_for_mfu == best["fp32"]
    assert seen.evidence["device.peak_flops.fp32"].source.startswith("best rate seen")
    assert "device.peak_flops.fp64" not in seen.evidence
    usual = [part for part in seen.parts if part.precision == "fp32"]
    assert max(abs(part.error) for part in usual) < 0.1


def test_shares_of_a_step_add_up():
    parts = list(price_parts(readings(machine()), machine(), STACK))
    for step in {part.step for part in parts}:
        assert sum(p.share for p in parts if p.step == step) == pytest.approx(1)
    assert max(abs(part.error) for part in parts) < 1e-9


def test_scatter_is_the_sigma_of_the_logs():
    random = Random(1)
    assert scatter([2.0] * 5) == 1
    drawn = [random.lognormvariate(-7, 0.1) for _ in range(4001)]
    assert scatter(drawn) == pytest.approx(1.105, abs=0.01)


def test_every_family_has_a_line_of_its_own():
    """Streaming ones are priced by one, so that it is met."""
    device = machine(**TRUE).device
    lines = {line.family: line for line in family_lines(readings(machine(**TRUE)))}
    assert set(lines) > {"linear", "attention_grad", "rotary", "adamw"}
    adamw = lines["adamw"]
    kernels, passes = FAMILIES["adamw"].eager
    assert (adamw.unit, adamw.seconds) == ("B", pytest.approx(kernels * device.launch))
    rate = device.memory_bandwidth * device.memory_efficiency
    assert adamw.rate == pytest.approx(rate / passes)
    assert lines["linear"].unit == "FLOP"


def test_a_step_measured_twice_is_one_with_all_its_seconds():
    once = readings(machine(**TRUE))
    slower = [replace(r, seconds=tuple(2 * t for t in r.seconds)) for r in once]
    known = pooled(once)
    assert [(r.step, r.family, r.work) for r in pooled([*once, *slower])] == [
        (r.step, r.family, r.work) for r in known
    ]
    for one, both in zip(known, pooled([*once, *slower]), strict=True):
        assert sum(both.seconds) == pytest.approx(3 * sum(one.seconds))
        assert both.count == one.count
