"""Measuring this machine, a little of it: what comes out is a profile, of what was measured."""

from __future__ import annotations

import json

import pytest

from autoplan.errors import InputError
from autoplan.files.hardware import parse_hardware
from autoplan.files.machine_spec import load_hardware
from autoplan.files.text import format_json
from autoplan.validate.measure import Effort, measure_machine, measured_document
from autoplan.validate.measure.programs import (
    COLLECTIVES,
    calls,
    group_mesh,
    group_shapes,
    ladder,
)

LITTLE = Effort(longest=0.0, steps=2, sizes=(1 << 10, 1 << 14, 1 << 18), pauses=1)


@pytest.fixture(scope="module")
def measured():
    told = []
    found = measure_machine("mine", 2, effort=LITTLE, progress=lambda *at: told.append(at))
    return found, told


def test_the_profile_survives_its_file(measured):
    document = json.loads(format_json(measured_document(measured[0])["hardware"]))
    assert parse_hardware(document, "mine") == measured[0].hardware


def test_the_profile_is_of_this_machine(measured):
    hardware, parent = measured[0].hardware, load_hardware("cpu-host")
    assert (hardware.name, hardware.count, hardware.devices_per_node) == ("mine", 2, 2)
    assert hardware.host.ranks_share_cores
    assert hardware.device.memory * 2 <= hardware.host.memory
    assert set(hardware.device.peak_flops) == set(parent.device.peak_flops)
    kinds = {path: origin.kind for path, origin in hardware.evidence.items()}
    assert set(kinds) == {*parent.evidence, "levels.rank.size"}
    assert {path for path, kind in kinds.items() if kind != "measured"} == set()


def test_what_was_measured_is_priced_near(measured):
    """Of the step that the device was fitted to; a busy machine is no excuse, its own time is."""
    parts = [part for part in measured[0].device.parts if part.precision == "fp32"]
    assert {part.part for part in parts} == {"matrix products", "attention", "streaming"}
    assert sum(part.share * abs(part.error) for part in parts) < 0.3


def test_every_instruction_and_every_call_is_in_the_document(measured):
    document = measured_document(measured[0])
    families = {row["family"] for row in document["operators"]}
    assert families > {"linear", "linear_dw", "attention", "rms_norm", "adamw", "xent_grad"}
    assert all(row["seconds"] > 0 and row["spread"] >= 1 for row in document["operators"])
    (links,) = document["links"].values()
    rows = {(row["kind"], row["nbytes"]) for row in links["rows"]}
    assert rows == {(kind, n) for kind in (*COLLECTIVES, "send") for n in LITTLE.sizes}
    assert 0 < document["interpreter_s"] < 1e-3
    assert 0 < document["cpu_share"] <= 1


def test_progress_never_goes_back(measured):
    shares = [done for _, done in measured[1]]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize("ranks", [0, 65])
def test_ranks_that_cannot_be(ranks):
    with pytest.raises(InputError, match="allowed: 1 to 64") as caught:
        measure_machine("mine", ranks, "cpu-hots")
    assert "did you mean `cpu-host`?" in str(caught.value)


def test_the_ladder_grows():
    rungs = list(ladder())
    assert len(set(rungs)) == len(rungs)
    weights = [rung.width**2 * rung.seq_len for rung in rungs]
    assert weights[0] == min(weights)
    assert max(weights) == weights[-2]  # the widest comes before its long sequences


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 12])
def test_groups_part_the_ranks(ranks):
    for members, stride in group_shapes(ranks):
        mesh, axis = group_mesh(ranks, members, stride)
        groups = {mesh.group(coordinate, [axis]) for coordinate in mesh.coordinates()}
        assert sorted(rank for group in groups for rank in group) == list(range(ranks))
        assert all(len(g) == members and g[1] - g[0] == stride for g in groups)


def test_large_messages_are_sent_less_often():
    counts = [calls(1 << shift) for shift in range(10, 26)]
    assert counts == sorted(counts, reverse=True)
