"""Fitting a level: the machine that prices its own communication is found again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from autoplan.files.machine_spec import load_hardware
from autoplan.validate.measure.links import Call, call_terms, crossed, fit_cores, fit_level

SIZES = [1 << shift for shift in range(10, 29, 2)]
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def calls(hardware, groups, noise=lambda: 1.0, kinds=KINDS):
    """Every collective over some groups, as long as `hardware` says."""
    return [
        replace(
            call, seconds=tuple(call_terms(call, hardware).of(size) * noise() for _ in range(3))
        )
        for size in SIZES
        for kind in kinds
        for call in [Call(kind, groups, size, (1.0,))]
    ]


@pytest.mark.parametrize("spec", ["cpu-host:2", "cpu-host:4", "h100-80g:8", "ascend-910b:8"])
@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_a_level_is_found_again(spec, sigma):
    random = Random(0)
    hardware = load_hardware(spec)
    everybody = (tuple(range(hardware.count)),)
    made = calls(hardware, everybody, lambda: random.lognormvariate(0, sigma))
    neighbours = ((0, 1),)
    made += calls(hardware, neighbours, kinds=("send",))
    wrong = replace(hardware.levels[0].timed(1.0), bandwidth=1.0)
    fitted = fit_level(made, replace(hardware, levels=(wrong,)), 0)
    level = hardware.levels[0]
    slack = 1e-6 if not sigma else 0.1
    assert fitted.latency == pytest.approx(level.latency, rel=slack)
    assert fitted.rate == pytest.approx(level.bandwidth * level.efficiency, rel=slack)
    assert fitted.typical_error() < max(1e-9, sigma)


def test_what_busy_ranks_wait_for_is_told_from_the_latency_of_a_transfer():
    here = load_hardware("cpu-host:2")
    true = replace(here.levels[0], latency=1e-4, start=2e-3, bandwidth=7e8, efficiency=1.0)
    hardware = replace(here, levels=(true,))
    made = calls(hardware, ((0, 1),)) + calls(hardware, ((0, 1),), kinds=("send",))
    fitted = fit_cores(made, here, 0)
    assert (fitted.latency, fitted.start) == pytest.approx((1e-4, 2e-3), rel=1e-3)
    assert fitted.rate == pytest.approx(7e8, rel=1e-3)
    assert max(abs(row.error) for row in fitted.rows) < 1e-3
    assert fit_cores(made[:4], here, 0).start == 0, "nothing to tell them apart by"


def test_the_level_between_nodes_is_found_beside_those_inside():
    hardware = load_hardware("a100-80g:4x8")
    made = calls(hardware, (tuple(range(32)),), kinds=("all_to_all", "all_gather"))
    assert crossed(made[0], hardware) == 1
    fitted = fit_level(made, hardware, 1)
    node = hardware.levels[1]
    assert fitted.rate == pytest.approx(node.bandwidth * node.efficiency, rel=0.05)
    assert fitted.latency == pytest.approx(node.latency, rel=0.05)


def test_a_table_is_off_only_where_the_curve_bends():
    hardware = load_hardware("cpu-host:2")
    made = calls(hardware, ((0, 1),), kinds=("all_reduce",))
    rows = fit_level(made, hardware, 0).rows
    assert rows[0].table_error is None
    assert rows[-1].table_error is None
    inner = [row.table_error for row in rows[1:-1]]
    assert all(error >= -1e-9 for error in inner)  # a chord lies above latency + bytes / rate
    assert max(inner) < 0.3


def test_an_operation_with_an_algorithm_of_its_own_has_a_line_of_its_own():
    hardware = load_hardware("cpu-host:2")
    fast = calls(hardware, ((0, 1),), kinds=("all_gather", "reduce_scatter", "all_to_all"))
    slow = calls(hardware, ((0, 1),), lambda: 3.0, kinds=("all_reduce",))
    rows = fit_level([*fast, *slow], hardware, 0).rows
    assert all(abs(row.own_error) < 1e-9 for row in rows)
    off = [row for row in rows if row.call.kind == "all_reduce"]
    assert all(row.error == pytest.approx(-2 / 3, abs=1e-6) for row in off)
