"""Configurations of other software: what they decide, what they leave, and what is wrong."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest

from autoplan.errors import InputError
from autoplan.files.launch_config import COMMAND_LINE, read_launch
from autoplan.files.stack import load_stack
from autoplan.presets.pins import LATER, PARSERS
from tests.files.launches import (
    DEEPSPEED_JSON,
    DEEPSPEED_SCRIPT,
    MEGATRON_DUMP,
    MEGATRON_SCRIPT,
    TORCHTITAN_TOML,
)

GPT = "pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
GPT += "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 "
PINS = {
    "tp": 4, "cp": 1, "pp": 2, "dp": -1, "sp": True, "schedule": "1f1b", "zero": 1,
    "recompute": "full", "micro_batch": 1,
}  # fmt: skip


def launched(tmp_path, name, text, **beside):
    for other, content in beside.items():
        (tmp_path / other.replace("_", ".", 1)).write_text(content)
    path = tmp_path / name
    path.write_text(text)
    return read_launch(path)


def problems(text, *path):
    with pytest.raises(InputError) as caught:
        launched(path[0], path[1], text) if path else read_launch(text)
    return caught.value.problems


def test_a_megatron_script(tmp_path):
    launch = launched(tmp_path, "run.sh", MEGATRON_SCRIPT)
    assert launch.stack == "megatron"
    assert launch.pins == PINS
    assert launch.options == {
        "global_batch_size": 256, "seq_len": 8192, "precision": "bf16_mixed", "optimizer": "adamw",
    }  # fmt: skip
    assert (launch.devices, launch.per_node, launch.per_replica) == (32, 8, None)
    assert str(launch).startswith(f"{launch.source} (megatron): 32 layers of 4096")
    assert launch.unread == ("--house-made-option 3",)
    assert launch.unpriced == ("--overlap-grad-reduce",)
    model = launch.model
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim) == (
        32, 4096, 32, 8, 128,
    )  # fmt: skip
    assert (model.ffn, model.vocab, model.norm, model.gated, model.rope_theta) == (
        14336, 128256, "rms_norm", True, 500000.0,
    )  # fmt: skip
    assert [model.tied_embeddings, model.mlp_bias, model.learned_positions] == [False] * 3


def test_the_arguments_that_a_log_repeats_are_those_of_the_script(tmp_path):
    script = launched(tmp_path, "run.sh", MEGATRON_SCRIPT)
    dump = launched(tmp_path, "run.log", MEGATRON_DUMP)
    for name in ("stack", "shape", "model", "pins", "options", "devices"):
        assert getattr(dump, name) == getattr(script, name), name
    assert dump.unread == ()


def test_absent_arguments_have_megatrons_defaults():
    launch = read_launch(GPT + "--tokenizer-type GPT2BPETokenizer")
    assert launch.source == COMMAND_LINE
    assert launch.pins == {
        "tp": 1, "cp": 1, "pp": 1, "dp": -1, "zero": 0, "recompute": "none", "micro_batch": 2,
    }  # fmt: skip
    assert launch.options["precision"] == "fp32"
    assert (launch.devices, launch.per_replica) == (None, 2)
    model = launch.model
    assert (model.ffn, model.kv_heads, model.vocab, model.norm) == (8192, 16, 50257, "layer_norm")
    assert (model.learned_positions, model.tied_embeddings, model.mlp_bias) == (True, True, True)
    assert (model.attention_dropout, model.residual_dropout) == (0.1, 0.1)
    gated = read_launch(GPT + "--swiglu --vocab-size 32000").model
    assert gated.ffn == 5440  # two thirds of four widths, in units of 64


@pytest.mark.parametrize(
    ("words", "pins"),
    [
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
         {"pp": 4, "vpp": 2, "schedule": "interleaved"}),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 3",
         {"pp": 4, "vpp": 3, "schedule": "interleaved"}),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 6",
         {"pp": 4, "schedule": "1f1b"}),
        ("--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 6 "
         "--decoder-last-pipeline-num-layers 8", {"layers_per_stage": (6, 10, 8)}),
        ("--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split", {"layers_per_stage": (12, 12)}),
        ("--tensor-model-parallel-size 2", {"tp": 2, "sp": False}),
        ("--context-parallel-size 4", {"cp": 4}),
        ("--num-experts 8 --expert-model-parallel-size 8", {"ep": 8}),
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity selective", {"recompute": "selective"}),
        ("--checkpoint-activations", {"recompute": "full"}),
        ("--use-distributed-optimizer", {"zero": 1}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {"zero": 3}),
        ("--use-torch-fsdp2", {"zero": 3}),
        ("--zero-stage 2", {"zero": 2}),
        ("--optimizer-cpu-offload", {"offload": "optimizer"}),
        ("--use-tp-pp-dp-mapping", {"order": "tp-pp-dp"}),
    ],
)  # fmt: skip
def test_what_megatrons_arguments_decide(words, pins):
    launch = read_launch(GPT + words)
    assert {key: launch.pins.get(key) for key in pins} == pins
    assert not launch.unread


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("--bf16", "bf16_mixed"), ("--fp16", "fp16_mixed"), ("", "fp32"),
        ("--bf16 --fp8-format hybrid", "fp8_tensor"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "fp8_tile"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--fp16 --deepspeed", "fp16_mixed,gradient=fp16,reduce=fp16"),
        ("--bf16 --deepspeed --accumulate-allreduce-grads-in-fp32", "bf16_mixed"),
        ("--bf16 --grad-reduce-in-bf16", "bf16_mixed,gradient=bf16,reduce=bf16"),
    ],
)  # fmt: skip
def test_the_precision_of_a_megatron_run(words, precision):
    assert read_launch(GPT + words).options["precision"] == precision


def test_what_is_only_nearly_priced_is_told():
    launch = read_launch(GPT + "--recompute-granularity full --recompute-method block "
                         "--recompute-num-layers 4 --rampup-batch-size 16 16 1000")  # fmt: skip
    assert launch.pins["recompute"] == "full"
    assert launch.unpriced == (
        "--recompute-method block: 4 layers only; priced as all", "--rampup-batch-size 16 16 1000",
    )  # fmt: skip


def test_megatron_with_deepspeed_takes_the_stage_of_its_file(tmp_path):
    text = 'cat <<EOF > ds.json\n{"zero_optimization": {"stage": 1}}\nEOF\ndeepspeed '
    launch = launched(tmp_path, "run.sh", f"{text}{GPT} --deepspeed --deepspeed_config ds.json")
    assert (launch.stack, launch.pins["zero"]) == ("megatron-deepspeed", 1)
    assert launch.unread == ()


def test_all_that_is_wrong_with_arguments_comes_at_once():
    found = problems(
        "pretrain_gpt.py --num-layers 24 --hidden-size $WIDTH --num-attention-heads many "
        "--micro-batch-size 0 --recompute-granularity some --attention-dropout x --seq-length 8"
    )
    assert [problem.field for problem in found] == [
        "--hidden-size", "--num-attention-heads", "--recompute-granularity", "--micro-batch-size",
        "--attention-dropout",
    ]  # fmt: skip
    assert "write its value" in found[0].hint
    (missing,) = problems("pretrain_gpt.py --num-layers 2 --hidden-size 64 --seq-length 8")
    assert missing.field == "micro_batch_size"


def test_heads_that_do_not_divide_are_refused():
    text = GPT + "--vocab-size 512 --group-query-attention --num-query-groups 3"
    assert problems(text)[0].found == "3"


def test_a_torchtitan_file(tmp_path):
    launch = launched(tmp_path, "llama3_70b.toml", TORCHTITAN_TOML)
    assert (launch.stack, launch.name) == ("torchtitan-eager", "llama-3.1-70b")
    assert launch.pins == {
        "tp": 8, "cp": 1, "pp": 1, "dp": -1, "sp": True, "zero": 3, "recompute": "full",
        "micro_batch": 8,
    }  # fmt: skip
    assert launch.options["precision"] == "bf16_mixed,parameter=fp32"
    assert (launch.per_replica, launch.options["seq_len"]) == (8, 8192)
    assert launch.unpriced == ("parallelism.enable_async_tensor_parallel = True",)
    assert launch.unread == ()


def test_overrides_on_torchtitans_command_line_win(tmp_path):
    script = (
        'CONFIG_FILE=${CONFIG_FILE:-"./a.toml"}\nNGPU=8\ntorchrun --nproc_per_node=${NGPU} -m '
        "torchtitan.train --job.config_file ${CONFIG_FILE} --training.local_batch_size=4 "
        "--parallelism.pipeline_parallel_degree 4 --parallelism.surprise 3 "
        "--training.global_batch_size 64"
    )
    launch = launched(tmp_path, "run.sh", script, a_toml=TORCHTITAN_TOML)
    assert {key: launch.pins[key] for key in ("pp", "schedule", "zero", "micro_batch")} == {
        "pp": 4, "schedule": "1f1b", "zero": 2, "micro_batch": 1,
    }  # fmt: skip
    assert (launch.devices, launch.options["global_batch_size"], launch.per_replica) == (
        8,
        64,
        None,
    )
    assert launch.unread == ("--parallelism.surprise 3",)


@pytest.mark.parametrize(
    ("section", "key", "value", "pins"),
    [
        ("parallelism", "data_parallel_shard_degree", "1", {"zero": 0}),
        ("parallelism", "data_parallel_replicate_degree", "2", {"dp_replicate": 2, "zero": 3}),
        ("parallelism", "fsdp_reshard_after_forward", '"never"', {"zero": 2}),
        ("parallelism", "context_parallel_degree", "4", {"cp": 4}),
        ("training", "enable_cpu_offload", "true", {"offload": "parameters"}),
        ("activation_checkpoint", "mode", '"selective"', {"recompute": "selective"}),
        ("parallelism", "pipeline_parallel_schedule", '"Interleaved1F1B"', {"schedule": None}),
        ("optimizer", "name", '"Muon"', {}),
    ],
)
def test_what_torchtitans_keys_decide(tmp_path, section, key, value, pins):
    lines = [line for line in TORCHTITAN_TOML.splitlines() if not line.startswith(f"{key} =")]
    lines.insert(lines.index(f"[{section}]") + 1, f"{key} = {value}")
    launch = launched(tmp_path, "a.toml", "\n".join(lines))
    assert {name: launch.pins.get(name) for name in pins} == pins
    assert not launch.unread


@pytest.mark.parametrize(
    ("enable", "stack"), [("false", "torchtitan-eager"), ("true", "torchtitan")]
)
def test_compiled_and_eager_runs_are_two_stacks(tmp_path, enable, stack):
    text = TORCHTITAN_TOML.replace("enable = false", f"enable = {enable}")
    assert launched(tmp_path, "a.toml", text).stack == stack


def test_a_command_handed_to_hosts_is_read():
    """Scripts of clusters put launcher and arguments in variables, and the whole in quotes."""
    launch = read_launch(
        "#!/bin/bash\n#SBATCH --nodes=48\n#SBATCH --gres=gpu:8\n"
        'CONFIG="./ds.$SLURM_JOBID.json"\n'
        'cat <<EOT > $CONFIG\n{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}\nEOT\n'
        'LAUNCHER="python -u -m torch.distributed.run \\\n --nproc_per_node 8 --nnodes $NNODES"\n'
        f'ARGS=" \\\n {GPT} --fp16 \\\n --pipeline-model-parallel-size 12 \\\n"\n'
        'DS=" --deepspeed --deepspeed_config ${CONFIG} --deepspeed-activation-checkpointing"\n'
        'export CMD="$ARGS $DS"\n'
        'echo "$CMD"\n'
        'srun --jobid $SLURM_JOBID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD" | tee x\n'
    )
    assert launch.stack == "megatron-deepspeed"
    assert {k: launch.pins[k] for k in ("pp", "zero", "recompute", "micro_batch")} == {
        "pp": 12, "zero": 1, "recompute": "full", "micro_batch": 2,
    }  # fmt: skip
    assert (launch.per_node, launch.devices, launch.unread) == (8, 384, ())


def test_deepspeeds_file_and_the_trainers_arguments(tmp_path):
    launch = launched(tmp_path, "run.sh", DEEPSPEED_SCRIPT, ds_json=DEEPSPEED_JSON)
    assert (launch.stack, launch.name) == ("deepspeed", "meta-llama/Llama-2-7b-hf")
    assert launch.pins == {
        "tp": 1, "cp": 1, "pp": 1, "dp": -1, "zero": 3, "recompute": "full", "micro_batch": 2,
    }  # fmt: skip
    assert launch.options == {
        "precision": "bf16_mixed,gradient=bf16,reduce=bf16", "optimizer": "adamw", "seq_len": 4096,
    }  # fmt: skip
    assert (launch.per_replica, launch.devices, launch.per_node) == (32, 8, 8)
    assert launch.unpriced == ("zero_optimization.overlap_comm = True",)
    assert launch.unread == ()


def test_a_deepspeed_file_alone(tmp_path):
    document = {
        "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "my_key": [1],
        "communication_data_type": "fp32",
    }  # fmt: skip
    launch = launched(tmp_path, "ds.json", json.dumps(document))
    assert launch.pins["zero"] == 2
    assert (launch.pins["micro_batch"], launch.pins["offload"]) == (4, "optimizer")
    assert launch.options["global_batch_size"] == 256
    assert launch.options["precision"] == "fp16_mixed,gradient=fp16,reduce=fp32"
    assert launch.unread == ("my_key = [1]",)


def test_a_micro_batch_that_depends_on_the_devices_is_asked_for(tmp_path):
    (problem,) = problems('{"train_batch_size": 64, "fp16": {"enabled": true}}', tmp_path, "a.json")
    assert problem.field == "train_micro_batch_size_per_gpu"
    launch = launched(tmp_path, "a.sh", "deepspeed train.py --deepspeed --gradient_checkpointing")
    assert launch.unpriced == ("no per_device_train_batch_size: 8 by default",)
    assert (launch.pins["micro_batch"], launch.per_replica) == (8, 8)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "[training\n"), ("a.json", "[]"), ("a.json", "{}"), ("a.sh", "echo hello"),
        ("a.sh", "python train.py --lr 3"), ("a.sh", "torchrun t.py --job.config_file gone.toml"),
        ("a.json", '{"train_batch_size": "many"}'), ("a.sh", ""), ("a.sh", "'\"$(("),
        ("a.toml", '[parallelism]\npipeline_parallel_schedule = "1G1B"\n'),
        ("a.toml", "[training]\nseq_len = [1]\n"),
    ],
)  # fmt: skip
def test_whatever_is_no_configuration_is_refused(tmp_path, name, text):
    assert problems(text, tmp_path, name)


def test_no_file_is_refused(tmp_path):
    for path in (tmp_path / "none.sh", tmp_path, "none.sh"):
        with pytest.raises(InputError):
            read_launch(path)


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", TORCHTITAN_TOML), ("a.json", DEEPSPEED_JSON)]
)
def test_a_damaged_file_is_read_or_refused(tmp_path, name, text):
    chance = random.Random(7)
    path = tmp_path / name
    for _ in range(200):
        chars = list(text)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(chars))
            chars[at : at + chance.randint(0, 4)] = chance.choice(["", "0", '"', "[", "-1", "true"])
        path.write_text("".join(chars))
        with suppress(InputError):
            read_launch(path)


def test_pins_and_stacks_are_ours(tmp_path):
    """Whatever a reader decides has a name that pins know, of a stack that there is."""
    for name, text in (("a.sh", MEGATRON_SCRIPT), ("a.toml", TORCHTITAN_TOML)):
        launch = launched(tmp_path, name, text)
        assert set(launch.pins) <= {*PARSERS, *LATER}
        assert load_stack(launch.stack).name == launch.stack
