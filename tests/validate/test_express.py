"""A recorded run is said in our words, or the reason is given why it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.describe import describe
from autoplan.errors import InputError
from autoplan.ir.record import Measured
from autoplan.validate.evaluate import measured_seconds, plan_of, predict
from autoplan.validate.express import (
    NotExpressedError,
    express,
    node_gigabits,
    profile_of,
    recorded_stack,
)
from autoplan.validate.standing import remark_on
from tests.validate.records import GPT, LLAMA, maxtext, record


def test_the_plan_of_a_record_has_the_layout_that_it_states():
    case = express(record(parallel={"tp": 2, "pp": 2, "dp": 2, "sp": False, "zero_stage": 1}))
    found = describe(case.graph, plan_of(case))
    stated = {"tp": 2, "pp": 2, "dp": 2, "sp": False, "zero": 1, "micro_batch": 2}
    assert {key: found[key] for key in stated} == stated


def test_fully_sharded_data_parallel_is_zero_3():
    parallel = {"tp": 1, "pp": 1, "dp": 8, "fsdp": True}
    case = express(record(parallel=parallel, schedule="dp"))
    assert describe(case.graph, plan_of(case))["zero"] == 3


def test_interleaved_stages_and_uneven_ends_are_said():
    shape = replace(GPT, layers=14)
    notes = "first and last stage hold one layer less"
    parallel = {"tp": 1, "pp": 4, "dp": 2, "vpp": 2}
    given = record(
        shape=shape, parallel=parallel, schedule="interleaved-1f1b", notes=notes, micro_batch=1
    )
    case = express(given)
    found = describe(case.graph, plan_of(case))
    assert (found["vpp"], found["layers_per_stage"]) == (2, [1, 2, 2, 2, 2, 2, 2, 1])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"shape": replace(LLAMA, experts=8)}, "mixture of experts"),
        ({"global_batch": None}, "batch"),
        ({"micro_batch": None}, "micro-batch"),
        ({"parallel": {"dp": 8}}, "layout"),
        ({"device": "abacus"}, "abacus"),
        ({"device": None}, "device"),
        ({"schedule": "zb-2p"}, "zb-2p"),
        ({"schedule": "zb-v", "parallel": {"tp": 1, "pp": 2, "dp": 4, "vpp": 2}}, "zb-v"),
        ({"recompute": "sometimes"}, "sometimes"),
        ({"precision": "fp3"}, "fp3"),
        ({"shape": replace(LLAMA, ffn=None)}, "ffn"),
        ({"flags": ("lora_finetune",)}, "adapters"),
    ],
)
def test_what_has_no_words_is_refused_with_the_reason(changed, reason):
    with pytest.raises(NotExpressedError, match=reason):
        express(record(**changed))
    assert reason in predict(record(**changed)).refusal


def test_a_layout_that_contradicts_itself_is_refused_like_a_pin():
    given = record(parallel={"tp": 3, "pp": 1})
    with pytest.raises(InputError):
        plan_of(express(given))
    assert "tp" in predict(given).refusal


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("HDR InfiniBand, 800 Gb/s per node (repo config)", 800),
        ("RDMA 400 Gb/s per GPU (CX-7)", 3200),
        ("8 x HDR InfiniBand 200Gb/s per node", 1600),
        ("InfiniBand HDR 200Gb/s x8 per node (remembered)", 1600),
        ("GPUDirect-TCPX, 4 x 200Gb/s per node (A3 High)", 800),
        ("RoCE RDMA, 4 nodes, rate not stated", None),
        ("", None),
    ],
)
def test_published_links_between_nodes_are_read(text, total):
    assert node_gigabits(text, 8) == total


@pytest.mark.parametrize("inter", ["EFA 3200 Gb/s per node", "8 x 400 Gb/s (AWS, efa)"])
def test_a_fabric_with_a_profile_of_its_own_is_taken_and_any_other_is_the_usual_one(inter):
    asked = {"device": "H100-80GB", "devices": 16, "parallel": {"tp": 2, "pp": 2, "dp": 4}}
    assert express(record(inter=inter, **asked)).hardware.name == "h100-80g-efa"
    assert express(record(inter="NDR 400 Gb/s per GPU", **asked)).hardware.name == "h100-80g"


def test_an_interleaved_run_of_unknown_chunks_has_two_and_says_so():
    shape = replace(LLAMA, layers=8)
    parallel = {"tp": 1, "pp": 2, "dp": 4}
    case = express(record(shape=shape, parallel=parallel, schedule="Interleaved1F1B"))
    assert describe(case.graph, plan_of(case))["vpp"] == 2
    assert "2 chunks a stage" in case.assumed
    stated = {**parallel, "vpp": 4}
    assert not express(record(shape=shape, parallel=stated, schedule="Interleaved1F1B")).assumed


@pytest.mark.parametrize("word", ["fp8", "float8", "fp8_tensor", "float8 rowwise"])
def test_narrow_products_have_several_names(word):
    assert express(record(precision=word)).workload.precision.compute == "fp8"


def test_links_between_nodes_are_those_of_the_record():
    case = express(record(devices=16, inter="100 Gb/s per node", parallel={"tp": 2, "pp": 2}))
    level = next(level for level in case.hardware.levels if level.name == "node")
    assert level.bandwidth / level.shared_by * 8 == pytest.approx(100e9 / 8)


def test_runs_on_slices_are_said_and_set_apart():
    """State is split over the chips of a slice, and copied between slices."""
    given = maxtext(2, 128.0)
    case = express(given)
    assert [(level.name, level.size) for level in case.hardware.levels] == [
        ("chip", 256), ("slice", 2),
    ]  # fmt: skip
    found = describe(case.graph, plan_of(case))
    assert (found["dp"], found["zero"], found["micro_batch"]) == (512, 3, 4)
    assert found["zero_axes"] == {"chip": 3}
    told = predict(given)
    assert told.measured == pytest.approx(12.5, rel=0.01)
    assert told.step_time == pytest.approx(told.measured, rel=0.1)
    assert remark_on(given) == "TPU"


def test_a_batch_over_devices_is_a_replicas_batch_times_its_devices():
    parallel = {"tp": 16, "pp": 1, "cp": 1, "dp": 16, "zero_stage": 3}
    text = "selective (qkv/proj offloaded)"
    case = express(maxtext(1, 110.0, parallel=parallel, recompute=text))
    found = describe(case.graph, plan_of(case))
    assert (found["micro_batch"], found["micro_batches"]) == (64, 1)
    # What is kept on the host has no words: it is computed again, and said to be.
    assert found["recompute"] == "full"
    assert any("offloaded" in assumed for assumed in case.assumed)


def test_kept_results_of_products_alone_are_a_stack_of_their_own():
    given = maxtext(1, 300.0, recompute="selective (minimal)")
    assert recorded_stack(given) == "maxtext-minimal"
    assert recorded_stack(maxtext(1, 300.0)) == "maxtext"


def test_a_node_of_a_source_may_be_a_rack_of_the_profile():
    def levels(per_node: int, **changed: object) -> list[tuple[str, int]]:
        given = record(device="GB200", devices=144, per_node=per_node, global_batch=288, **changed)
        return [(level.name, level.size) for level in express(given).hardware.levels]

    parallel = {"tp": 1, "pp": 1, "dp": 144}
    assert levels(72, parallel=parallel) == [("gpu", 4), ("node", 18), ("domain", 2)]
    assert levels(4, parallel=parallel) == levels(72, parallel=parallel)
    wide = express(
        record(device="GB200", devices=144, per_node=72, inter="800 Gb/s per GPU")
    ).hardware.levels[-1]
    assert (wide.name, wide.bandwidth) == ("domain", 100e9)


def test_names_of_devices_and_software_are_recognised():
    assert profile_of("A100-80GB") == profile_of("A100") == "a100-80g"
    assert profile_of("RTX 4090") == "rtx4090"
    with pytest.raises(NotExpressedError, match="PCIe, whose boards no switch joins"):
        profile_of("NVIDIA A100 80GB PCIe")
    assert recorded_stack(record(source="Nanotron sweep")) == "nanotron"
    assert recorded_stack(record(source="nobody's")) == "generic"
    torchtitan = record(source="torchtitan benchmarks", notes="async TP, float8 rowwise")
    assert recorded_stack(torchtitan) == "torchtitan-rowwise-async"
    # Between 2024-12-19 and 2025-04 compiling left the loss out.
    for date, name in (("202412", "torchtitan-2024-12"), ("202506", "torchtitan")):
        dated = record(source=f"torchtitan, llama3_{date}_x.md", notes="compile")
        assert recorded_stack(dated) == name
    # The software that a source is about stands before the one that its text came from.
    table = "Narayanan et al. 2021 (SC21) Table 1, as reproduced in repo bigscience"
    assert recorded_stack(record(source=table)) == "megatron-v2"


def test_rates_are_turned_into_seconds_as_the_source_counts():
    """A source that counts recomputation or halves attention means another time."""

    def seconds(convention: str, recompute: str = "none") -> float:
        measured = Measured(tflops_per_device=100.0)
        given = record(measured=measured, flops_convention=convention, recompute=recompute)
        found = measured_seconds(express(given))
        assert found
        return found

    plain = seconds("full attention")
    assert seconds("causal attention halved") < plain
    counted = seconds("full attention and recompute counted", "full")
    assert plain < counted < 4 / 3 * plain
    assert measured_seconds(express(record(measured=Measured(mfu=0.4)))) > 0
    assert measured_seconds(express(record(measured=Measured(peak_mem_gib=3.0)))) is None


def test_what_a_record_leaves_out_is_named():
    given = record(shape=replace(LLAMA, vocab=None), recompute=None, precision=None)
    assumed = " ".join(express(given).assumed)
    assert all(word in assumed for word in ("vocabulary", "recompute", "precision"))
