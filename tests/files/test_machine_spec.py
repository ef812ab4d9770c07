"""HARDWARE specs: sizes, overrides, derived profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoplan.errors import InputError
from autoplan.files.machine_spec import load_hardware
from autoplan.ir.machine import Evidence


def levels(spec: str) -> list[tuple[str, int, int]]:
    return [(level.name, level.size, level.shared_by) for level in load_hardware(spec).levels]


def complaint(spec: str, overrides: dict[str, str] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load_hardware(spec, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("spec", "expected", "per_node"),
    [
        ("rtx4090", [("gpu", 4, 1), ("socket", 2, 4), ("node", 8, 8)], 8),
        ("rtx4090-8x8", [("gpu", 4, 1), ("socket", 2, 4), ("node", 8, 8)], 8),
        ("rtx4090:8", [("gpu", 4, 1), ("socket", 2, 4)], 8),
        ("rtx4090:2", [("gpu", 2, 1)], 2),
        ("rtx4090:1", [("gpu", 1, 1)], 1),
        ("rtx4090:1024", [("gpu", 4, 1), ("socket", 2, 4), ("node", 128, 8)], 8),
        ("rtx4090:16x4", [("gpu", 4, 1), ("node", 16, 4)], 4),
        ("a100-80g:1024", [("gpu", 8, 1), ("node", 128, 1)], 8),
        ("h100-80g:4x1", [("node", 4, 1)], 1),
        ("cpu-host:4", [("rank", 4, 1)], 4),
        ("tpu-v5e:64", [("chip", 64, 1)], 64),
        ("tpu-v5e:3x64", [("chip", 64, 1), ("slice", 3, 8)], 64),
        ("tpu-v5e:512", [("chip", 256, 1), ("slice", 2, 8)], 256),
        ("gb200:144", [("gpu", 4, 1), ("node", 18, 1), ("domain", 2, 1)], 4),
    ],
)
def test_sizes_fill_inner_levels_first(spec, expected, per_node) -> None:
    assert levels(spec) == expected
    assert load_hardware(spec).devices_per_node == per_node


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("rtx4090:6", "4 or 8"),
        ("rtx4090:12", "8 or 16"),
        ("rtx4090:2x16", "at most 8"),
        ("cpu-host:2x2", "no level `node` or `slice`"),
        ("tpu-v5e:2x512", "at most 256"),
        ("rtx4090:0", "a size"),
        ("rtx4090:-8", "a size"),
        ("rtx4090:many", "a size"),
        ("rtx4090:999999999", "at most"),
        ("rtx4900", "did you mean `rtx4090`?"),
        ("no/such/file.json", "no such file"),
    ],
)
def test_sizes_and_names_that_cannot_be_met(spec: str, text: str) -> None:
    assert text in complaint(spec)


def test_overrides_change_any_number_and_its_evidence() -> None:
    hardware = load_hardware(
        "rtx4090",
        {
            "levels.node.bandwidth": "200Gbit/s",
            "levels.node.latency_us": "3",
            "levels.gpu.peer_to_peer": "true",
            "device.memory": "48GiB",
            "device.peak_flops.bf16": "100TFLOP/s",
            "device.gemm_efficiency": "0.5",
            "host.cores": "12",
        },
    )
    assert hardware.levels[-1].bandwidth == 25e9
    assert hardware.levels[-1].latency == 3e-6
    assert hardware.levels[0].peer_to_peer
    assert hardware.device.memory == 48 << 30
    assert hardware.device.peak_flops["bf16"] == 100e12
    assert (hardware.device.gemm_efficiency, hardware.host.cores) == (0.5, 12)
    assert hardware.evidence["levels.node.bandwidth"] == Evidence("user", "--set")


def test_all_wrong_overrides_are_reported_at_once() -> None:
    text = complaint(
        "rtx4090:8",
        {
            "levels.nod.size": "3",
            "levels.node.bandwidth": "25",
            "device.memory": "-1GiB",
            "device.peak_flops.bf16": "1e400TFLOP/s",
            "device.gemm_efficiency": "1.5",
            "device.launch": "nans",
            "levels.gpu.duplex": "maybe",
        },
    )
    for part in (
        "did you mean `levels.node.size`?", "such as 25GB/s", "$.device.memory_gib",
        "is not finite", "a number <= 1", "such as 5us", "true or false",
    ):  # fmt: skip
        assert part in text


def test_a_profile_extends_another(tmp_path: Path) -> None:
    child = {
        "extends": "a100-80g",
        "name": "a100-40g",
        "device": {"memory_gib": 40, "memory_bandwidth_gb_per_s": 1555},
        "levels": [{"name": "node", "size": 4}],
    }
    (tmp_path / "mine.json").write_text(json.dumps(child))
    parent, derived = load_hardware("a100-80g"), load_hardware(f"{tmp_path / 'mine.json'}:16")
    assert derived.device.memory == 40 << 30
    assert derived.device.peak_flops == parent.device.peak_flops
    assert [level.size for level in derived.levels] == [8, 2]
    assert "device.memory" not in derived.evidence


def test_profiles_in_a_circle_are_refused(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.json").write_text(json.dumps({"extends": f"{other}.json"}))
    assert "circle" in complaint(str(tmp_path / "a.json"))


def test_every_bundled_number_says_where_it_comes_from() -> None:
    for name in ("rtx4090", "a100-80g", "h100-80g", "cpu-host"):
        evidence = load_hardware(name).evidence
        assert all(entry.source for entry in evidence.values())
        for path in ("device.memory", "device.gemm_efficiency", "host.memory"):
            assert path in evidence
