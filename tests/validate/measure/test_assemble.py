"""Measured numbers in the place of a profile's: nothing else moves, and the file holds them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.files.hardware import dump_hardware, parse_hardware
from autoplan.files.machine_spec import load_hardware, resize
from autoplan.validate.measure.assemble import Node, as_node, with_rate
from autoplan.validate.measure.compute import DeviceFit
from autoplan.validate.measure.links import LevelFit
from autoplan.validate.measure.rounding import rounded

NODE = Node(8, 141 << 30, 2 << 40, 96, 55e9, 1.02, "copies")


def node_of(name, node=NODE):
    parent = load_hardware(name)
    return parent, as_node(parent, "mine", node, DeviceFit(parent.device, {}, ()))


@pytest.mark.parametrize("name", ["h100-80g", "rtx4090", "cpu-host", "ascend-910b"])
def test_a_node_has_the_size_that_was_measured(name):
    parent, node = node_of(name)
    assert (node.count, node.devices_per_node, node.levels[0].size) == (8, 8, 8)
    assert parse_hardware(dump_hardware(rounded(node)), "mine") == rounded(node)
    assert node.device == replace(parent.device, memory=NODE.device_memory)
    known = {level.name for level in node.levels}
    assert {path.split(".")[1] for path in node.evidence if path.startswith("levels.")} <= known


def test_nodes_may_be_asked_for_where_the_parent_joins_them():
    larger = resize(node_of("h100-80g")[1], "4x8")
    assert (larger.count, [level.name for level in larger.levels]) == (32, ["gpu", "node"])


def fit(rate):
    return LevelFit(latency=3e-6, rate=rate, rows=(), lines={})


def test_a_rate_is_a_share_of_the_sheet_if_there_is_one():
    node = node_of("h100-80g")[1]
    level = with_rate(node, 0, fit(360e9), "log").levels[0]
    assert (level.bandwidth, level.efficiency, level.latency) == (450e9, 0.8, 3e-6)
    level = with_rate(node, 0, fit(500e9), "log").levels[0]
    assert (level.bandwidth, level.efficiency) == (500e9, 1)
    level = with_rate(node_of("cpu-host")[1], 0, fit(1e9), "log").levels[0]
    assert (level.bandwidth, level.efficiency) == (1e9, 1)


def test_a_start_that_was_told_from_the_latency_replaces_the_old_one():
    node = node_of("cpu-host")[1]
    known = replace(node, levels=(replace(node.levels[0], start=1.0),))
    found = with_rate(known, 0, replace(fit(1e9), start=2e-3), "calls")
    assert found.levels[0].start == 2e-3
    assert found.evidence["levels.rank.start"].kind == "measured"


def test_rounding_keeps_four_digits_of_what_was_measured_and_all_of_the_rest():
    parent, node = node_of("h100-80g")
    found = rounded(with_rate(node, 0, fit(123.456789e9), "log"))
    assert found.levels[0].bandwidth * found.levels[0].efficiency == pytest.approx(
        123.5e9, rel=1e-3
    )
    assert found.levels[0].efficiency == 0.2743
    assert found.device.peak_flops == parent.device.peak_flops
    assert found.host.cores == 96
