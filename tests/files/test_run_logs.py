"""Logs become records: medians of what is warm, with the configuration that they had."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median

import pytest

from autoplan.errors import InputError
from autoplan.files.runs import read_runs
from tests.files.launches import (
    MEGATRON_DUMP,
    MEGATRON_SCRIPT,
    TORCHTITAN_TOML,
    megatron_log,
    torchtitan_log,
)

TIMES = [60000.0, 9000.0, 8000.0, 7100.0, 7000.0, 7050.0, 6900.0, 7010.0]


def read(tmp_path, name, text, **beside):
    for suffix, content in beside.items():
        (tmp_path / name).with_suffix(f".{suffix}").write_text(content)
    (tmp_path / name).write_text(text)
    (record,) = read_runs(tmp_path / name)
    return record


def test_a_megatron_log_with_its_arguments(tmp_path):
    run = read(tmp_path, "run.log", MEGATRON_DUMP + megatron_log(TIMES))
    assert run.step_time == pytest.approx(median(TIMES[3:]) / 1e3)
    assert run.measured.tflops_per_device == pytest.approx(4e6 / median(TIMES[3:]), abs=0.1)
    assert run.measured.peak_mem_gib == 44
    assert (run.devices, run.seq_len, run.global_batch, run.micro_batch) == (32, 8192, 256, 1)
    assert run.parallel == {
        "tp": 4, "pp": 2, "vpp": 1, "cp": 1, "ep": 1, "dp": 4, "sp": True, "zero_stage": 1,
        "fsdp": False,
    }  # fmt: skip
    assert (run.recompute, run.precision, run.schedule, run.stack) == (
        "full", "bf16_mixed", "1f1b", "megatron",
    )  # fmt: skip
    assert run.notes.startswith("median of 5 of 8 logged iterations; the middle half within")
    assert run.shape.layers == 32


def test_the_script_beside_a_log_says_the_same(tmp_path):
    own = read(tmp_path, "run.log", MEGATRON_DUMP + megatron_log(TIMES))
    beside = read(tmp_path, "run.log", megatron_log(TIMES), sh=MEGATRON_SCRIPT)
    assert beside.parallel == own.parallel
    assert beside.measured == own.measured
    assert beside.per_node == 8
    assert "not understood: --house-made-option 3" in beside.notes


def test_a_traced_command_is_a_configuration(tmp_path):
    words = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    line = f"+ torchrun --nproc_per_node 8 pretrain_gpt.py {words} --micro-batch-size 4 --bf16\n"
    run = read(tmp_path, "run.log", line + megatron_log(TIMES, batch=64))
    assert (run.devices, run.global_batch, run.parallel["dp"]) == (8, 64, 8)


@pytest.mark.parametrize(("count", "dropped"), [(1, 0), (2, 1), (3, 2), (4, 3), (30, 3), (50, 5)])
def test_the_first_iterations_are_dropped(tmp_path, count, dropped):
    """Three, or a tenth where that is more; the last one is always kept."""
    times = [50000.0] * dropped + [1000.0 + i for i in range(count - dropped)]
    run = read(tmp_path, "run.log", MEGATRON_DUMP + megatron_log(times))
    assert run.step_time == pytest.approx(median(times[dropped:]) / 1e3)


def test_a_batch_that_still_grows_is_another_measurement(tmp_path):
    text = MEGATRON_DUMP + megatron_log([500.0] * 6, batch=16) + megatron_log(TIMES)
    run = read(tmp_path, "run.log", text)
    assert (run.global_batch, run.step_time) == (256, pytest.approx(7.01))


def test_a_torchtitan_log_with_its_toml(tmp_path):
    rates = [300, 700, 800, 829, 831, 828, 830]
    run = read(tmp_path, "run.log", torchtitan_log(rates), toml=TORCHTITAN_TOML)
    assert run.measured.tokens_per_s_per_device == 829.5
    assert run.step_time == pytest.approx(256 * 8192 / (829.5 * 256))
    assert run.measured.peak_mem_gib == 61
    assert run.measured.mfu == pytest.approx(0.4167)
    assert run.device == "H100-80GB"
    assert (run.devices, run.global_batch, run.micro_batch, run.seq_len) == (256, 256, 8, 8192)
    assert (run.parallel["tp"], run.parallel["dp"], run.parallel["fsdp"]) == (8, 32, True)
    assert (run.name, run.shape.layers) == ("llama-3.1-70b", 80)


def test_a_run_that_ended_out_of_memory(tmp_path):
    text = MEGATRON_DUMP + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    run = read(tmp_path, "run.log", text)
    assert run.oom
    assert run.step_time is None


def test_a_row_may_name_a_log_and_say_what_it_leaves_out(tmp_path):
    log = read(tmp_path, "run.log", MEGATRON_DUMP + megatron_log(TIMES))
    assert log.device is None
    row = {"log": "run.log", "id": "mine", "device": "H100-80GB", "hardware": {"per_node": 8}}
    named = read(tmp_path, "runs.jsonl", json.dumps({**row, "flags": ["noisy"]}))
    wanted = replace(log, id="mine", device="H100-80GB", per_node=8, flags=("noisy",))
    assert named == wanted
    assert read(tmp_path, "r.csv", "log,device,source\nrun.log,h800,us\n").source == "us"
    for bad in ({"tp": 2}, {"devices": 8}, {"log": "gone.log"}):
        with pytest.raises(InputError):
            read(tmp_path, "runs.jsonl", json.dumps({**row, **bad}))


def test_the_device_that_a_driver_names_is_read(tmp_path):
    smi = "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |\n"
    assert (
        read(tmp_path, "run.log", smi + MEGATRON_DUMP + megatron_log(TIMES)).device == "A100-80GB"
    )


@pytest.mark.parametrize(
    "text",
    [
        megatron_log(TIMES),  # no configuration
        MEGATRON_DUMP,  # no time
        MEGATRON_DUMP.replace("micro_batch_size ................................ 1", ""),
        torchtitan_log([1, 2]),  # no configuration
        "nothing of the kind\n",
    ],
)
def test_a_log_that_says_too_little_is_refused(tmp_path, text):
    (tmp_path / "run.log").write_text(text)
    with pytest.raises(InputError) as caught:
        read_runs(tmp_path / "run.log")
    assert "run.log" in caught.value.problems[0].source


def test_what_neither_log_nor_configuration_say_is_asked_for(tmp_path):
    log, head = torchtitan_log([800] * 5).split("Building"), "[model]\nname = 'llama3'\n"
    (tmp_path / "run.toml").write_text(head)
    (tmp_path / "run.log").write_text(log[0] + log[1].partition("\n")[2])
    with pytest.raises(InputError, match="devices, in the log"):
        read_runs(tmp_path / "run.log")
