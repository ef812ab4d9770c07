"""What people asked in public about dense training, each with the right answer.

The letter and number in a test's name are those of our collection of such questions; the comment
names the thread. A case is answered the way a person would ask it: a model, a machine, pins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoplan.errors import InputError
from autoplan.presets import build_plan, padded_vocab
from autoplan.presets.plan import settle
from autoplan.workflow import Options, Question, plan_search, resolve
from autoplan.workflow.ladder import least_bytes
from autoplan.workflow.prediction import Priced
from autoplan.workflow.verbs import find_plan
from tests.published.shapes import write_shapes

GB = 10**9
BF16_GRADIENTS = "bf16_mixed,gradient=bf16"
"""16 bytes a parameter: 2 + 2 + 12."""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> dict[str, str]:
    return write_shapes(tmp_path_factory.mktemp("models"))


def ask(model: str, machine: str, pins: str = "", batch: int = 8, seq: int = 2048, **more: Any):
    stack, overrides = more.pop("stack", None), more.pop("overrides", ())
    options = Options(batch, seq, **more)
    return Question(model, machine, overrides, stack, (pins,) if pins else (), options)


def priced(*args: Any, **more: Any) -> Priced:
    return find_plan(ask(*args, **more)).priced


def plan_of(question: Question):
    asked = resolve(question)
    machine = (asked.hardware, asked.stack)
    return build_plan(asked.graph, asked.config, machine, asked.workload, asked.pins)


def refused(*args: Any, **more: Any) -> dict[str, str]:
    """Field -> what is said about it; every problem of a question at once."""
    with pytest.raises(InputError) as caught:
        plan_of(ask(*args, **more))
    found: dict[str, str] = {}
    for problem in caught.value.problems:
        found[problem.field] = f"{found.get(problem.field, '')}{problem}\n"
    return found


def legal_degrees(key: str, question: Question, tried: range) -> set[int]:
    """The values of a degree that are accepted, each on just as many devices."""
    asked, legal = resolve(question), set()
    for degree in tried:
        level = replace(asked.hardware.levels[-1], size=degree)
        hardware = replace(asked.hardware, levels=(level,))
        pins = resolve(replace(question, pins=(f"{key}={degree},dp=1",))).pins
        try:
            settle(pins, asked.config, hardware, asked.stack, asked.workload)
        except InputError:
            continue
        legal.add(degree)
    return legal


# --- A: heads, widths, vocabulary ---------------------------------------------------------------


def test_a07_a08_heads_that_do_not_divide_are_told_with_all_else(shapes):
    """vllm-project/vllm#2652: 52 heads over 8; vllm#52435: one refusal after the other."""
    found = refused(shapes["wizardlm-33b"], "a100-80g:16", "tp=8,dp=3", 7)
    assert set(found) == {"tp", "degrees", "global_batch_size"}
    assert "8 for 52 heads, allowed: tp in {1, 2, 4, 13, 26, 52}" in found["tp"]
    assert "vocabulary 32001, allowed: tp in {1, 3}" in found["tp"]
    assert "vocab=false" in found["tp"]
    assert "dp=2 uses all 16" in found["degrees"]
    assert "nearest 6 or 9" in found["global_batch_size"]
    plan_of(ask(shapes["wizardlm-33b"], "a100-80g:4", "tp=4,vocab=false"))


def test_a07_key_and_query_heads_are_both_named():
    """Of the same thread: 28 heads over 8."""
    words = "8 for 28 heads with 4 key/value heads"
    said = refused("qwen2.5-7b", "h100-80g:8", "tp=8")["tp"]
    assert f"{words}, allowed: tp in {{1, 2, 4, 7}}" in said
    assert "with every rule, on 8 devices: tp in {1, 2, 4}" in said
    with pytest.raises(InputError, match=words) as caught:
        plan_search(ask("qwen2.5-7b", "h100-80g:16", "tp=8", 64))
    # A search may split groups of heads along one axis, and each group's queries along another.
    assert "tp in {1, 2, 4, 7, 14, 28}" in str(caught.value)


def test_a09_torchtitan_splits_key_heads_only(shapes):
    """pytorch/torchtitan PR#2577: two key/value heads, so at most two ranks."""
    said = refused(shapes["qwen2.5-3b"], "h100-80g:4", "tp=4", stack="torchtitan")["tp"]
    assert "4 for kv heads 2 on stack torchtitan" in said
    assert "tp in {1, 2}" in said
    plan_of(ask(shapes["qwen2.5-3b"], "h100-80g:4", "tp=2", stack="torchtitan"))
    plan_of(ask(shapes["qwen2.5-3b"], "h100-80g:4", "tp=4"))  # queries of a group split here
    question = ask(shapes["qwen2.5-3b"], "h100-80g:4", "pp=1,cp=1", stack="torchtitan")
    for row in plan_search(question).plans:
        assert row.parallel["tp"] in (1, 2)


def test_a14_a15_a17_padded_vocabulary(shapes):
    """epfLLM/Megatron-LLM#103, NVIDIA/Megatron-LM#1754, hpcaitech/ColossalAI#6167."""
    assert padded_vocab(32000, 2) == 32000
    assert padded_vocab(32002, 2) == 32256
    assert (padded_vocab(50257, 2, 1), padded_vocab(50257, 2)) == (50258, 50432)
    assert padded_vocab(128256, 8, 64) == 128512
    assert "vocab_size 50258" in refused("gpt2", "h100-80g:2", "tp=2", seq=1024)["tp"]
    said = refused("gpt2", "h100-80g:2", "tp=2", seq=1024, stack="megatron")["tp"]
    assert "vocabulary 50257" in said
    assert "vocab_size 50432, padded to a multiple of 128 x 2" in said
    plan_of(ask("gpt2", "h100-80g:2", "tp=2,vocab=false", seq=1024))
    assert "vocabulary 65535" in refused(shapes["vocab-65535"], "h100-80g:2", "tp=2")["tp"]


@pytest.mark.parametrize(
    ("model", "seq", "legal"),
    [
        ("qwen2.5-14b", 81920, {1, 2, 4, 8, 40}),  # verl-project/verl#1226: 40 heads, 8 keys
        ("qwen2.5-7b", 7168, {1, 2, 4, 28}),  # DAMO-NLP-SG/LongPO#5: 28 heads, 4 keys
    ],
)
def test_a18_a19_legal_degrees_of_ulysses(shapes, model, seq, legal):
    """Heads split, and keys split or are repeated; the sequence divides by all that is tried."""
    question = ask(shapes.get(model, model), "h100-80g:8", seq=seq, stack="deepspeed")
    assert legal_degrees("cp", question, range(1, 65)) == legal


def test_a19_ulysses_over_eight_is_refused():
    said = refused("qwen2.5-7b", "h100-80g:8", "cp=8", stack="deepspeed")["cp"]
    assert "8 for heads 28 on stack deepspeed" in said
    assert "8 for kv heads 4" not in said  # eight repeats four


# --- B: stages ----------------------------------------------------------------------------------


def test_b03_seven_layers_over_two_stages(shapes):
    """NVIDIA/Megatron-LM#381: refused there unless the layout is given; four and three here."""
    said = refused(shapes["seven-layers"], "h100-80g:2", "pp=2", stack="megatron")["pp"]
    assert "2 for layers 7 on stack megatron" in said
    assert "pp in {1, 7}" in said
    given = "pp=2,layers_per_stage=4+3"
    for pins, stack in ((given, "megatron"), ("pp=2", None)):
        found = priced(shapes["seven-layers"], "h100-80g:2", pins, stack=stack)
        assert found.parallel["layers_per_stage"] == [4, 3]
    question = ask(shapes["seven-layers"], "h100-80g:2", "pp=2", stack="megatron")
    with pytest.raises(InputError, match="layers 7 on stack megatron"):
        plan_search(question)


def test_b06_a_remainder_may_go_to_the_last_stages():
    """Oneflow-Inc/libai PR#225: 12 layers over 5 stages."""
    question = ask("gpt2", "h100-80g:5", "pp=5", seq=1024)
    asked = resolve(question)
    stack = replace(asked.stack, habits=("remainder_last",))
    for chosen, layers in ((stack, (2, 2, 2, 3, 3)), (asked.stack, (3, 3, 2, 2, 2))):
        found = settle(asked.pins, asked.config, asked.hardware, chosen, asked.workload)
        assert found.layers == layers


def test_b08_every_layer_is_on_one_stage(shapes):
    """ml-explore/mlx-lm#1688: ten layers on three ranks, two of them lost."""
    found = priced(shapes["ten-layers"], "h100-80g:3", "pp=3")
    assert found.parallel["layers_per_stage"] == [4, 3, 3]
    for row in plan_search(ask(shapes["ten-layers"], "h100-80g:3", "pp=3")).plans:
        assert sum(row.parallel["layers_per_stage"]) == 10


def test_b11_fewer_micro_batches_than_stages():
    """pytorch/torchtitan#775: 1F1B hung with one micro-batch; GPipe has a bubble and runs."""
    said = refused("llama-3.1-8b", "h100-80g:4", "pp=4", 2, stack="torchtitan")["pp"]
    assert "4 for micro batches 2 on stack torchtitan" in said
    assert "pp in {1, 2}" in said
    gpipe = priced("llama-3.1-8b", "h100-80g:4", "pp=4,schedule=gpipe", 2, stack="torchtitan")
    assert gpipe.predicted["breakdown_s"]["bubble"] > 0
    plan_of(ask("llama-3.1-8b", "h100-80g:4", "pp=4", 4, stack="torchtitan"))
    plan_of(ask("llama-3.1-8b", "h100-80g:4", "pp=4", 2))  # our runtime runs it


def test_b10_b12_turns_of_an_interleaved_schedule():
    """verl PR#1617: Megatron's micro-batches are a multiple of the stages; pytorch PR#129597: equal
    turns will do, so 10 and 3 pass over 4 stages, and 9 do not.
    """
    pins = "pp=4,vpp=2,micro_batch=1"
    for batch, torch, megatron in ((3, True, False), (8, True, True), (9, False, False),
                                   (10, True, False), (12, True, True)):  # fmt: skip
        for stack, legal in (("torchtitan", torch), ("megatron", megatron)):
            question = ("llama-3.1-8b", "h100-80g:4", pins, batch)
            if legal:
                found = priced(*question, stack=stack)
                assert found.parallel["schedule"] == "interleaved"
            else:
                said = refused(*question, stack=stack)
                assert "vpp=2" in said.get("micro_batch", "") or "micro batches" in said["pp"]


def test_b17_one_f_one_b_keeps_as_many_micro_batches_as_stages():
    """marin-community/marin#6532: the peak grew with the micro-batches, and should not have."""
    pins = "pp=8,dp=1,micro_batch=1,recompute=none"
    rows = {m: priced("llama-2-7b", "a100-80g:8", pins, m).predicted for m in (8, 16, 32)}
    flying = {m: [stage["in_flight"] for stage in row["memory"]] for m, row in rows.items()}
    assert flying[8] == flying[16] == flying[32] == [8, 7, 6, 5, 4, 3, 2, 1]
    peaks = {m: row["peak_memory_bytes"] for m, row in rows.items()}
    assert peaks[8] <= peaks[16] == peaks[32]


# --- C: devices and batches ---------------------------------------------------------------------


def test_c09_c14_a_batch_that_replicas_do_not_divide():
    """NVIDIA-NeMo/Megatron-Bridge PR#6091: 192 over 128 replicas; verl PR#1811."""
    said = refused("llama-2-7b", "h100-80g:256", "tp=2,dp=128", 192)["global_batch_size"]
    assert "192, allowed: a multiple of dp x micro_batch = 128 x 1" in said
    assert "nearest 128 or 256" in said
    assert "dp in {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96}" in said
    plan_of(ask("llama-2-7b", "h100-80g:256", "tp=2,dp=128", 768))
    with pytest.raises(InputError, match="nearest 128 or 256"):
        plan_search(ask("llama-2-7b", "h100-80g:256", "dp=128", 192))


def test_c10_eight_ways_of_tensor_parallel_leave_one_replica():
    """alibaba/Megatron-LLaMA#61: one node, tp 8 and "dp 8"."""
    said = refused("llama-2-13b", "a100-80g:8", "tp=8,pp=1,dp=8", 8)["degrees"]
    assert "tp=8 x dp=8 = 64, allowed: a product of 8 devices" in said
    assert "dp=1 uses all 8" in said
    found = priced("llama-2-13b", "a100-80g:8", "tp=8,pp=1", 1)
    assert found.parallel["dp"] == found.parallel["micro_batches"] == 1


def test_c11_h12_a_world_that_is_not_the_machine():
    """huggingface/nanotron PR#329: 8 devices, tp 2, dp 16; NVIDIA/Megatron-LM#1000: tp 8, pp 2."""
    assert "dp=4 uses all 8" in refused("llama-2-7b", "h100-80g:8", "tp=2,dp=16", 32)["degrees"]
    said = refused("llama-3.1-70b", "a100-80g:8", "tp=8,pp=2,dp=1")["degrees"]
    assert "tp=8 x pp=2 = 16, allowed: a product of 8 devices" in said


def test_c13_the_global_batch_stays():
    """Oneflow-Inc/libai#345: from dp 2 to tp 2, accumulation doubles."""
    wide = priced("llama-2-7b", "a100-80g:2", "dp=2,tp=1,micro_batch=1", 16)
    deep = priced("llama-2-7b", "a100-80g:2", "dp=1,tp=2,micro_batch=1", 16)
    for found, micro_batches in ((wide, 8), (deep, 16)):
        assert found.plan.workload.global_batch_size == 16
        assert found.parallel["micro_batches"] == micro_batches


@pytest.mark.parametrize(("tp", "unit"), [(3, 12), (4, 8)])
def test_c18_positions_divide_for_context_and_sequence_parallel(tp, unit):
    """NVIDIA-NeMo/RL PR#3563: a multiple of cp x lcm(2, tp)."""
    said = refused("gpt2", f"h100-80g:{2 * tp}", f"tp={tp},cp=2,vocab=false", 1, unit - 1,
                   stack="megatron")  # fmt: skip
    assert set(said) == {"cp"}
    legal = []
    for seq in range(1, 6 * unit + 1):
        question = ask("gpt2", f"h100-80g:{2 * tp}", f"tp={tp},cp=2,vocab=false", 1, seq,
                       stack="megatron")  # fmt: skip
        try:
            plan_of(question)
        except InputError:
            continue
        legal.append(seq)
    assert legal == [unit * i for i in range(1, 7)]


def test_c21_fp8_products_want_sixteen_positions_a_rank():
    """NVIDIA-NeMo/Speech PR#8869: 184 positions a rank after the split."""
    question = ("llama-2-7b", "h100-80g:2", "cp=2,dp=1", 8)
    said = refused(*question, 368, precision="fp8_tensor", stack="megatron")["cp"]
    assert "2 for seq len 368 / 16 on stack megatron" in said
    plan_of(ask(*question, 384, precision="fp8_tensor", stack="megatron"))
    plan_of(ask(*question, 368, stack="megatron"))


# --- D, G, H: does it fit? ----------------------------------------------------------------------

ZERO_3 = "zero=3,recompute=full"


@pytest.mark.parametrize(
    ("model", "devices", "least"),
    [
        ("qwen-72b", 8, 145 * GB),  # D03 QwenLM/Qwen#755
        ("qwen2-72b", 4, 290 * GB),  # D04 hiyouga/LlamaFactory#5553, its language model
        ("qwen2-72b", 16, 72 * GB),  # D05 hiyouga/LlamaFactory#5590
    ],
)
def test_d03_d04_d05_full_tuning_of_72b_on_80_gb(shapes, model, devices, least):
    """16 bytes a parameter over all devices, and what is gathered besides."""
    found = priced(shapes[model], f"a100-80g:{devices}", ZERO_3, devices,
                   precision=BF16_GRADIENTS, stack="deepspeed")  # fmt: skip
    assert found.verdict == "no"
    assert found.predicted["peak_memory_bytes"] > least


def test_d06_32b_on_seven_or_eight_80_gb():
    """hiyouga/LlamaFactory#6999: out of memory on seven, and for another user on eight."""
    asked = resolve(ask("qwen2.5-32b", "a100-80g:7", batch=7, seq=1024))
    limit = asked.hardware.device.memory - asked.workload.memory_headroom
    assert least_bytes(asked, 7) > limit
    for pins in (ZERO_3, "zero=3,recompute=none"):
        found = priced("qwen2.5-32b", "a100-80g:8", pins, 8, 1024, stack="deepspeed")
        assert found.verdict == "risky"


def test_d09_3b_on_four_24_gb(shapes):
    """hiyouga/LlamaFactory#6752: ZeRO-2 does not fit with its default buckets, ZeRO-3 does.

    Of 24 GB the buckets of stage 2 take 2 x 2 x 4.5 x 5e8 bytes (as its documentation counts), and
    those of stage 3, sized by the model's width, next to nothing.
    """
    buckets = {2: 2 * 2 * 4.5 * 5e8, 3: 2 * 2 * 4.5 * 2048**2}
    verdicts = {}
    for zero, nbytes in buckets.items():
        found = priced(shapes["qwen2.5-3b"], "rtx4090:4", f"zero={zero},recompute=full", 4, 512,
                       stack="deepspeed", memory_headroom=nbytes)  # fmt: skip
        verdicts[zero] = found.verdict
    assert verdicts == {2: "risky", 3: "fits"}


def test_d15_neox_20b_fits_in_eight_80_gb():
    """EleutherAI/gpt-neox#892: 18 bytes x 20.55e9 = 370 GB of 640."""
    found = priced("gpt-neox-20b", "a100-80g:8", ZERO_3, stack="deepspeed")
    assert found.verdict == "fits"
    assert 370 * GB / 8 < found.predicted["peak_memory_bytes"] < 1.25 * 370 * GB / 8


def test_d25_mpt_7b_with_eight_sequences_a_device(shapes):
    """mosaicml/llm-foundry#54: eight do not fit 40 GB; fewer is the advice."""
    peaks = []
    for micro_batch in (8, 4, 2):
        pins = f"micro_batch={micro_batch},recompute=none"
        found = priced(shapes["mpt-7b"], "a100-40g:8", pins, 64, stack="llm-foundry")
        peaks.append(found.predicted["peak_memory_bytes"])
        assert found.verdict == ("fits" if micro_batch == 2 else "no")
    assert peaks == sorted(peaks, reverse=True)


def test_d27_7b_on_one_80_gb():
    """tatsu-lab/stanford_alpaca#220: 16 bytes x 6.7e9 = 108 GB."""
    found = priced("llama-2-7b", "a100-80g:1", "recompute=full", 1, 512, precision=BF16_GRADIENTS)
    assert found.verdict == "no"
    assert found.predicted["peak_memory_bytes"] > 107.8 * GB


def test_d33_a_sequence_of_131072_must_be_split():
    """microsoft/nnscaler#7: one operator's result takes 7.5 GB; more replicas do not help."""
    verdicts = {}
    for pins in ("dp=32", "tp=8,cp=4", "cp=32"):
        found = priced("llama-3.1-70b", "a100-40g:32", f"{pins},{ZERO_3}", 32, 131072,
                       precision="bf16_pure", overrides=("device.memory=46GiB",))  # fmt: skip
        verdicts[pins] = found.verdict
    assert verdicts == {"dp=32": "no", "tp=8,cp=4": "fits", "cp=32": "fits"}


def test_g04_logits_of_a_long_sequence(shapes):
    """hiyouga/LlamaFactory#3259: 32768 x 152064 x 4 = 19.9 GB, copies besides."""
    common = {"precision": BF16_GRADIENTS, "stack": "deepspeed"}
    whole = priced(shapes["qwen1.5-32b"], "a100-80g:8", ZERO_3, 8, 32768, **common)
    split = priced(shapes["qwen1.5-32b"], "a100-80g:8", f"cp=8,{ZERO_3}", 1, 32768, **common)
    assert max(stage["logits"] for stage in whole.predicted["memory"]) > 19.9 * GB
    assert (whole.verdict, split.verdict) == ("no", "fits")


@pytest.mark.parametrize(
    ("pins", "batch", "fits"),
    [
        ("tp=2,pp=6,micro_batch=2", 2048, False),  # H02: out of memory
        ("tp=2,pp=6,micro_batch=1", 2048, False),  # H02: out of memory
        ("tp=2,pp=12,micro_batch=1", 2048, True),  # H02: 63 GB
        ("tp=8,pp=8,micro_batch=1", 2016, True),  # H03: 52 GB
        ("tp=8,pp=4,micro_batch=4", 2016, True),  # H03: 59 GB
        ("tp=8,pp=2,micro_batch=2", 2016, True),  # H03: 76 GB
        ("tp=8,pp=1,micro_batch=1", 2016, False),  # H03: out of memory
    ],
)
def test_h02_h03_181b_on_384_a100(shapes, pins, batch, fits):
    """bigscience-workshop/bigscience, prequel of tr11-176B-ml: fp16 with fp16 gradients, ZeRO-1."""
    found = priced(shapes["bigscience-181b"], "a100-80g:384", f"{pins},zero=1,recompute=full",
                   batch, precision="fp16_mixed,gradient=fp16", stack="megatron")  # fmt: skip
    assert (found.verdict == "fits") is fits


@pytest.mark.parametrize(("devices", "micro_batch"), [(32, 2), (64, 8)])
def test_h21_published_runs_of_mpt_70b_fit(shapes, devices, micro_batch):
    """mosaicml/llm-foundry, benchmarking: H100-80, full recomputation."""
    found = priced(shapes["mpt-70b"], f"h100-80g:{devices}", f"micro_batch={micro_batch}",
                   devices * micro_batch, stack="llm-foundry")  # fmt: skip
    assert found.verdict == "fits"


@pytest.mark.parametrize("stack", ["megatron", "torchtitan", "llm-foundry", "deepspeed"])
def test_a_search_finds_what_the_stack_can_express(stack):
    """Rules differ by backend: zero, grids, heads, stages, micro-batches."""
    question = ask("tiny-llama", "cpu-host:4", "", 8, 64, stack=stack)
    allowed = resolve(question).stack.restricts
    answer = plan_search(question)
    assert answer.plans
    for row in answer.plans:
        outside = {k: row.parallel[k] for k in allowed if row.parallel[k] not in allowed[k]}
        assert not outside


# --- what this version does not express is said, not ignored ------------------------------------


@pytest.mark.parametrize("pin", ["offload=optimizer", "cp_comm=ulysses", "ep=8"])
def test_b12_e04_keys_of_later_are_refused_by_name(pin):
    """DeepSpeed#4867 (offload); experts."""
    with pytest.raises(InputError, match="this version does not express it"):
        resolve(ask("llama-2-7b", "a100-80g:8", pin))
