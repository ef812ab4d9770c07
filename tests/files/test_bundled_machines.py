"""The bundled machines: each loads, shows where its numbers come from, and is what it is called."""

from __future__ import annotations

from itertools import pairwise

import pytest

from autoplan.cost.collectives import device_rate
from autoplan.files.data import bundled_names
from autoplan.files.hardware import LEVEL_KEYS, NEUTRAL, dump_hardware, parse_hardware
from autoplan.files.machine_spec import FOLDER, load_hardware
from autoplan.ir.machine import Hardware

NAMES = bundled_names(FOLDER)
EXPECTED = (
    "a100-40g", "a100-80g", "ascend-910b", "b200", "cloudmatrix-384", "cpu-host", "h100-80g",
    "h200", "h800-80g", "rtx4090", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "mi300x", "gb200",
    "gb300", "b300", "h20", "l40s", "v100-32g", "rtx3090", "rtx4090-48g",
)  # fmt: skip


def numbers(hardware: Hardware) -> set[str]:
    """Paths of all numbers of a machine."""
    device = [key for key in hardware.device.__slots__ if key not in ("kind", "peak_flops")]
    known = [key for key in device if getattr(hardware.device, key) is not None]
    paths = {f"device.{key}" for key in known}
    paths |= {f"device.peak_flops.{dtype}" for dtype in hardware.device.peak_flops}
    for level in hardware.levels:
        stated = [key for key in LEVEL_KEYS if key in NEUTRAL and getattr(level, key)]
        paths |= {
            f"levels.{level.name}.{key}" for key in ("bandwidth", "latency", "efficiency", *stated)
        }
    return paths | {f"host.{key}" for key in ("memory", "cores", "device_bandwidth")}


def test_all_machines_of_the_contract_are_there():
    assert set(EXPECTED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_says_where_it_comes_from(name):
    hardware = load_hardware(name)
    assert numbers(hardware) <= hardware.evidence.keys()
    assert all(entry.source for entry in hardware.evidence.values())


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_plausible(name):
    hardware = load_hardware(name)
    device = hardware.device
    assert device.peak_flops_for_mfu in device.peak_flops.values()
    order = [
        device.peak_flops[d] for d in ("fp64", "fp32", "bf16", "fp8") if d in device.peak_flops
    ]
    assert order == sorted(order)
    for share in (device.gemm_efficiency, device.attention_efficiency, device.memory_efficiency):
        assert 0.2 <= share <= 1
    # A wider circle of devices is never reached faster, nor sooner.
    rates = [device_rate(level, hardware) * max(1, lanes(level)) for level in hardware.levels]
    assert all(inner >= outer for inner, outer in pairwise(rates))
    latencies = [level.latency for level in hardware.levels]
    assert latencies == sorted(latencies)
    for level in hardware.levels:  # what a protocol is for
        assert level.short_latency <= level.latency
        assert level.short_start <= level.start or not level.short_share
    assert device.memory_bandwidth > max(rates)


def lanes(level):
    return level.size - 1 if level.mesh else max(1, level.torus)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_survives_its_file(name):
    hardware = load_hardware(name)
    assert parse_hardware(dump_hardware(hardware), name) == hardware


def test_derived_machines_differ_where_they_should():
    def of(name: str) -> Hardware:
        return load_hardware(name)

    a40, a80, h100, h800, h200, b200 = map(of, ("a100-40g", "a100-80g", "h100-80g", "h800-80g",
                                                "h200", "b200"))  # fmt: skip
    assert a40.device.memory * 2 == a80.device.memory
    assert a40.device.memory_bandwidth < a80.device.memory_bandwidth
    assert h800.levels[0].bandwidth < h100.levels[0].bandwidth
    assert h800.levels[1].bandwidth == h100.levels[1].bandwidth
    assert h800.device.peak_flops["fp64"] < h100.device.peak_flops["fp64"]
    for less, more in ((a80, h100), (h100, h200), (h200, b200)):
        assert less.device.memory <= more.device.memory
        assert less.device.memory_bandwidth < more.device.memory_bandwidth
        assert less.device.peak_flops["bf16"] <= more.device.peak_flops["bf16"]
        assert less.levels[0].bandwidth <= more.levels[0].bandwidth
    assert [level.size for level in b200.levels] == [8, 16]


@pytest.mark.parametrize(
    ("name", "chips", "per_chip", "network"),
    [
        ("tpu-v5e", 256, 51.2e12 / 256, 6.4e12 / 8 / 256),
        ("tpu-v6e", 256, 102.4e12 / 256, 25.6e12 / 8 / 256),
        ("tpu-v5p", 6144, 600e9, 50e9 / 8),
        ("tpu-v4", 4096, 1.1e15 / 4096, None),
    ],
)
def test_tori_have_the_links_that_their_pages_add_up(name, chips, per_chip, network):
    """All-reduces of a pod, and its rate to the data-centre network, of one chip."""
    machine = load_hardware(name)
    chip, beyond = machine.levels
    assert (chip.name, chip.size, beyond.name) == ("chip", chips, "slice")
    assert chip.torus * chip.bandwidth == pytest.approx(per_chip, rel=0.01)
    if network:
        assert beyond.bandwidth / beyond.shared_by == pytest.approx(network)


def test_other_makers_do_not_inherit_what_is_not_theirs():
    mesh, rack = load_hardware("mi300x").levels[0], load_hardware("gb200")
    assert (mesh.mesh, mesh.in_switch, mesh.bandwidth) == (True, 0, 64e9)
    assert [level.size for level in rack.levels[:2]] == [4, 18]
    assert {level.bandwidth for level in rack.levels[:2]} == {900e9}


def test_cloudmatrix_counts_dies():
    bare = load_hardware("cloudmatrix-384")
    assert bare.count == 768
    assert [(level.name, level.size) for level in bare.levels] == [
        ("die", 2), ("npu", 8), ("node", 48),
    ]  # fmt: skip
    assert bare.devices_per_node == 16
    node, supernode = bare.levels[1], bare.levels[2]
    assert supernode.latency > node.latency  # two latency classes of one fabric
    assert 0.95 < supernode.bandwidth / node.bandwidth < 1
    # 289 PFLOP/s and 48 TB for 384 packages of two dies.
    assert round(bare.count * bare.device.peak_flops["bf16"] / 1e15) == 289
    assert round(bare.count * bare.device.memory / 2**40) == 48


def test_beyond_a_supernode_there_is_rdma():
    grown = load_hardware("cloudmatrix-384:1536")
    assert [level.size for level in grown.levels] == [2, 8, 48, 2]
    rdma = grown.levels[-1]
    assert (rdma.name, rdma.shared_by, rdma.bandwidth) == ("supernode", 2, 50e9)
    assert [level.size for level in load_hardware("cloudmatrix-384:8x16").levels] == [2, 8, 8]


def test_power_and_price_may_be_unknown_and_may_be_given():
    assert load_hardware("h100-80g").device.power == 700
    assert load_hardware("cloudmatrix-384").device.power is None
    given = load_hardware(
        "cloudmatrix-384", {"device.power": "350W", "device.price_per_hour": "1.5"}
    )
    assert (given.device.power, given.device.price_per_hour) == (350, 1.5)
    assert given.evidence["device.price_per_hour"].kind == "user"
