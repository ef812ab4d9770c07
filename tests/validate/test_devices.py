"""A device is recognised however its name is printed, and another device is not taken for it."""

from __future__ import annotations

from itertools import permutations

import pytest

from autoplan.files.data import bundled_names
from autoplan.files.machine_spec import FOLDER
from autoplan.validate.devices import USUAL, board_of, profile_named


@pytest.mark.parametrize(
    ("printed", "profile"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),  # as nvidia-smi prints it
        ("A100-SXM4-40GB", "a100-40g"),
        ("A100", "a100-80g"),
        ("H100 SXM5 80GB", "h100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
        ("H100_SXM", "h100-80g"),
        ("H100-96GB-500W", "h100-96g-500w"),
        ("Tesla V100-SXM2-32GB", "v100-32g"),
        ("V100", "v100-16g"),
        ("NVIDIA H200", "h200"),
        ("H200 141 GB", "h200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("RTX 4090-48GB", "rtx4090-48g"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("TPU v5p", "tpu-v5p"),
        ("TPU v5", "tpu-v5p"),  # as JAX prints it
        ("TPU v5 lite", "tpu-v5e"),
        ("v5litepod", "tpu-v5e"),
        ("TPU v6 lite", "tpu-v6e"),
        ("Ascend 910B3", "ascend-910b"),
        ("Ascend910B", "ascend-910b"),
        ("Ascend 910C (A3)", "cloudmatrix-384"),
    ],
)
def test_names_as_they_are_printed(printed, profile):
    assert profile_named(printed) == profile
    assert profile_named(printed.upper()) == profile_named(f" {printed.lower()} ") == profile


@pytest.mark.parametrize(
    "printed",
    [
        "abacus", "", "80GB", "SXM4", "A100-SXM-64GB", "H100-96GB", "RTX 4090 D", "RTX 3090 Ti",
        "H20-3e", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "TPU v3", "TPU",
    ],
)  # fmt: skip
def test_what_differs_in_a_word_is_another_device(printed):
    assert profile_named(printed) is None
    assert board_of(printed) is None


@pytest.mark.parametrize(
    ("printed", "switched"),
    [
        ("NVIDIA A100 80GB PCIe", "a100-80g"), ("NVIDIA A100-PCIE-40GB", "a100-40g"),
        ("H100 PCIe", "h100-80g"), ("NVIDIA H200 NVL", "h200"), ("V100-PCIE-32GB", "v100-32g"),
    ],
)  # fmt: skip
def test_boards_without_a_switch_are_told_apart(printed, switched):
    assert profile_named(printed) is None
    assert board_of(printed) == switched


@pytest.mark.parametrize("name", bundled_names(FOLDER))
def test_every_profile_has_its_own_name(name):
    assert profile_named(name) == name
    assert profile_named(name.replace("-", " ").replace("0g", "0 GB")) == name


def test_the_order_of_words_does_not_matter():
    words = ("NVIDIA", "A100", "SXM4", "80GB")
    assert {profile_named(" ".join(order)) for order in permutations(words)} == {"a100-80g"}


def test_usual_kinds_exist():
    assert set(USUAL.values()) <= set(bundled_names(FOLDER))
