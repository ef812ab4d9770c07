"""The verbs: questions, defaults, what a prediction says, and what a plan file may claim."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isclose

import pytest

from autoplan.cost.uncertainty import NARROWEST, half_width
from autoplan.errors import InputError
from autoplan.files.machine_spec import load_hardware
from autoplan.files.stack import load_stack
from autoplan.files.text import write_json
from autoplan.ir.machine import Evidence
from autoplan.ir.timeline import MEMORY_LINES
from autoplan.presets.pins import parse_pins
from autoplan.workflow import (
    Options,
    Question,
    RunRequest,
    Torchrun,
    load_plan,
    plan_document,
    plan_run,
    plan_simulate,
    resolve,
)
from autoplan.workflow.prediction import memory_interval, memory_verdict
from autoplan.workflow.question import filling_batch, usual_headroom, usual_precision
from autoplan.workflow.torchrun import run_under_torchrun
from autoplan.workflow.verbs import find_plan

SMALL = Options(global_batch_size=8, seq_len=32)


@pytest.fixture(scope="module")
def target():
    question = Question(
        "tiny-llama", "cpu-host:4", pins=("tp=2,pp=2,recompute=full",), options=SMALL
    )
    return find_plan(question, spans=True)


def test_what_is_left_open_is_assumed_and_said():
    inputs = resolve(Question("tiny-llama", "rtx4090:16"))
    assert inputs.workload.global_batch_size == 64
    assert inputs.workload.seq_len == 128  # the model has no more positions
    assert inputs.workload.precision.name == "bf16_mixed"
    assert inputs.stack.name == "autoplan"
    assert [word.split()[0] for word in inputs.assumed] == [
        "stack", "batch", "sequence", "precision", "optimizer", "headroom",
    ]  # fmt: skip


def test_what_is_given_is_not_assumed():
    options = Options(8, 64, "fp32", "sgd", "w_q$", 0.1, "2GiB", 3)
    inputs = resolve(Question("tiny-gpt2", "rtx4090:2", stack="megatron", options=options))
    workload = inputs.workload
    assert inputs.assumed == ()
    assert (workload.optimizer.name, workload.dropout, workload.seed) == ("sgd", 0.1, 3)
    assert workload.memory_headroom == 2 << 30
    assert inputs.graph.blocks["layer"].trainable == ("w_q",)


def test_dropout_replaces_the_models_own():
    def drops(dropout):
        options = replace(SMALL, dropout=dropout)
        graph = resolve(Question("tiny-gpt2", "cpu-host:2", options=options)).graph
        return sum(op.family == "dropout" for op in graph.blocks["layer"].forward)

    assert drops(0.0) == 0
    assert drops(0.5) > 0


def test_headroom_is_a_share_but_at_least_a_gib_on_real_devices():
    gib = 1 << 30
    assert usual_headroom(load_hardware("a100-80g")) == round(0.06 * 80 * gib)
    small = load_hardware("a100-80g", {"device.memory": "16GiB"})
    assert usual_headroom(small) == gib
    host = load_hardware("cpu-host")
    assert usual_headroom(host) == round(0.06 * host.device.memory)


def test_precision_follows_the_device():
    assert usual_precision(load_hardware("rtx4090")) == "bf16_mixed"
    assert usual_precision(load_hardware("cpu-host")) == "fp32"


@pytest.mark.parametrize("micro", [1, 3, 8])
def test_the_assumed_batch_divides_by_devices_and_micro_batch(micro):
    batch = filling_batch(6, parse_pins([f"micro_batch={micro}"]))
    assert batch >= 4 * 6
    assert batch % (6 * micro) == 0


@pytest.mark.parametrize("text", ["-1", "25GiB", "101%", "nan%", "much", "1e400"])
def test_headroom_is_judged(text):
    question = Question("tiny-llama", "rtx4090:2", options=Options(memory_headroom=text))
    with pytest.raises(InputError, match="--memory-headroom"):
        resolve(question)


def test_prediction_adds_up(target):
    predicted, priced = target.priced.predicted, target.priced
    seconds = predicted["step_time_s"]
    low, high = predicted["step_time_interval_s"]
    assert low < seconds < high
    assert seconds / low - 1 >= NARROWEST * 0.999
    assert isclose(sum(predicted["breakdown_s"].values()), seconds, rel_tol=1e-9)
    for stage in predicted["stages"]:
        assert isclose(sum(stage["breakdown_s"].values()), seconds, rel_tol=1e-9)
    assert isclose(predicted["tokens_per_s"], 8 * 32 / seconds)
    assert isclose(predicted["tokens_per_s_per_device"] * 4, predicted["tokens_per_s"])
    peaks = [sum(stage[line] for line in MEMORY_LINES) for stage in predicted["memory"]]
    assert max(peaks) == predicted["peak_memory_bytes"]
    assert predicted["hfu"] > predicted["mfu"] > 0  # layers are computed again
    peak = priced.plan.hardware.device.peak_flops_for_mfu
    assert isclose(predicted["mfu"], predicted["tflops_per_device"] * 1e12 / peak)


def test_interval_follows_what_the_step_waits_for():
    hardware, stack = load_hardware("rtx4090"), load_stack("autoplan")
    compute = half_width({"compute": 1.0}, hardware, stack)
    links = half_width({"compute": 0.5, "all_gather": 0.5}, hardware, stack)
    assert NARROWEST <= compute < links


def test_memory_verdict_has_three_values(target):
    plan, timeline = target.priced.plan, target.priced.timeline
    peak = target.priced.predicted["peak_memory_bytes"]

    def verdict(memory):
        device = replace(plan.hardware.device, memory=memory)
        return memory_verdict(
            timeline, replace(plan, hardware=replace(plan.hardware, device=device))
        )

    assert verdict(10 * peak) == "fits"
    assert verdict(peak + 1) == "risky"
    assert verdict(peak - 1) == "no"


def test_memory_is_less_sure_where_it_is_less_sure_what_is_kept(target):
    """Of software that nobody described, whose activations are the most of it."""
    stack, timeline = target.priced.plan.stack, target.priced.timeline
    widths = []
    for spread in (1.0, 1.2, 1.5):
        kept = Evidence("assumed", "somewhere", spread)
        unsure = replace(stack, evidence={**stack.evidence, "saved_factor": kept})
        low, high = memory_interval(timeline, unsure)
        widths.append(high - low)
    assert widths[0] < widths[1] < widths[2]


def test_a_plan_file_is_believed_only_about_its_decisions(target, tmp_path):
    path = tmp_path / "plan.json"
    document = plan_document(target.priced)
    write_json(path, document)
    loaded = load_plan(path)
    assert loaded.priced.plan == target.priced.plan
    assert loaded.priced.predicted == target.priced.predicted
    assert loaded.warnings == ()

    write_json(path, {**document, "parallel": {**document["parallel"], "tp": 4, "dp": 2}})
    with pytest.raises(InputError) as error:
        load_plan(path)
    assert [p.field for p in error.value.problems] == ["$.parallel.dp", "$.parallel.tp"]
    # A file of before a key was described says nothing about it.
    older = {key: value for key, value in document["parallel"].items() if key != "vpp"}
    write_json(path, {**document, "parallel": older})
    assert load_plan(path).priced.plan == target.priced.plan

    predicted = json.loads(json.dumps(document["predicted"]))
    predicted["step_time_s"] *= 2
    predicted["memory"][0]["parameters"] += 1
    write_json(path, {**document, "predicted": predicted})
    warnings = load_plan(path).warnings
    assert len(warnings) == 2
    assert "$.predicted.step_time_s" in warnings[0]
    assert str(predicted["step_time_s"])[:6] in warnings[0]


def test_a_plan_file_takes_no_options(target, tmp_path):
    path = tmp_path / "plan.json"
    write_json(path, plan_document(target.priced))
    question = Question(str(path), pins=("tp=2",), options=Options(seq_len=8))
    with pytest.raises(InputError) as error:
        plan_simulate(question)
    assert [p.source for p in error.value.problems] == ["--pin", "--seq-len"]


def test_a_run_that_this_machine_cannot_hold_is_refused():
    question = Question("llama-2-7b", "a100-80g:128", pins=("tp=8",))
    with pytest.raises(InputError) as error:
        plan_run(question, RunRequest())
    found = [problem.found for problem in error.value.problems]
    assert found[0] == "128 ranks"
    assert "over 128 ranks" in found[1]
    assert all("--rehearse" in problem.hint for problem in error.value.problems)


def test_torchrun_must_start_one_process_per_device(target):
    flags = Torchrun(nnodes=2, nproc_per_node=4)
    with pytest.raises(InputError, match="2 x 4 = 8 processes, allowed: 4"):
        run_under_torchrun(target.priced, RunRequest(), flags)


def test_torchruns_flags_are_its_own():
    flags = Torchrun(2, 4, "1", "host:29500", "job", "host").flags()
    assert flags == [
        "--nnodes=2", "--nproc-per-node=4", "--node-rank=1", "--rdzv-endpoint=host:29500",
        "--rdzv-id=job", "--master-addr=host", "--rdzv-backend=c10d",
    ]  # fmt: skip
    assert Torchrun(1, 2).flags()[-1] == "--standalone"
