"""DeepSpeed's JSON, and the arguments of a Hugging Face trainer beside it -> Launch.

`auto` in the JSON is what the trainer's arguments say. Source: DeepSpeed, "DeepSpeed Configuration
JSON"; transformers, `TrainingArguments`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autoplan.files.launch_settings import Settings
from autoplan.ir.launch import Launch

Pins = dict[str, int | bool | str | tuple[int, ...]]

MARKS = frozenset(
    (
        "per_device_train_batch_size", "deepspeed", "deepspeed_config", "zero_optimization.stage",
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
        "model_name_or_path", "gradient_checkpointing",
    )
)  # fmt: skip
OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw", "adamw_apex_fused": "adamw", "fusedadam": "adamw", "cpuadam": "adamw",
    "adamw_8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit", "paged_adamw_8bit": "adamw_8bit",
    "adafactor": "adafactor", "sgd": "sgd", "lion": "lion", "lion_32bit": "lion",
    "fusedlion": "lion", "muon": "muon",
}  # fmt: skip
DTYPES = {
    "fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfp16": "bf16", "bfloat16": "bf16",
    "fp32": "fp32", "float32": "fp32",
}  # fmt: skip
DEFAULT_PER_DEVICE = 8
"""`per_device_train_batch_size` of a trainer that is not told."""

UNPRICED = (
    "zero_optimization.overlap_comm", "zero_optimization.zero_hpz_partition_size",
    "zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_gradients",
    "zero_optimization.stage3_max_live_parameters", "zero_optimization.stage3_max_reuse_distance",
    "zero_optimization.offload_param.device", "zero_optimization.sub_group_size", "torch_compile",
    "attn_implementation", "use_liger_kernel", "flash_attn", "group_by_length", "packing",
    "sparse_gradients", "compression_training", "activation_checkpointing.cpu_checkpointing",
    "amp.enabled",
    "activation_checkpointing.number_checkpoints", "fp16.auto_cast", "quantization_bit",
    "activation_checkpointing.partition_activations", "torch_autocast.enabled", "load_in_4bit",
    "load_in_8bit", "neftune_noise_alpha", "freeze_layers",
)  # fmt: skip
HARMLESS = re.compile(
    r"zero_optimization\.(allgather|reduce_|contiguous|round_robin|load_from|stage3_(gather|param|prefetch)"
    r"|elastic|ignore|offload_(optimizer|param)\.(pin|buffer|fast|nvme|max|ratio|pipeline))"
    r"|(optimizer|scheduler)\.|scheduler|gradient_clipping|prescale|gradient_predivide|steps_per_print"
    r"|wall_clock|dump_state|fp16\.(loss|initial|hyst|min|consec)|bf16\.(?!enabled)|tensorboard|wandb"
    r"|csv_monitor|comet|flops_profiler|comms_logger|checkpoint|autotuning|zero_allow|zero_force|aio"
    r"|activation_checkpointing\.(profile|contiguous|synch)|elasticity|dataloader"
    r"|output_dir|overwrite|num_train_epochs|max_steps|learning_rate|lr_|warmup|weight_decay|adam_"
    r"|max_grad_norm|logging|save_|eval|per_device_eval|do_|report_to|run_name|seed|data|train_file"
    r"|validation|tokenizer|cache_dir|preprocessing|remove_unused|ddp_|local_rank|push_to|hub_|cutoff"
    r"|trust_remote|template|stage$|finetuning|lora_|use_lora|peft|overwrite|plot_loss|resume|disable"
    r"|include_|load_best|metric|prediction|optim_args|tf32|use_fast|streaming|model_revision|torch_dtype"
)


def read_deepspeed(settings: Settings) -> Launch:
    """What DeepSpeed's keys and a trainer's arguments decide.

    Args:
        settings: dotted keys of the JSON and arguments; values `auto` taken out.
    """
    settings.take("deepspeed", "deepspeed_config")
    micro = settings.whole("train_micro_batch_size_per_gpu", "per_device_train_batch_size")
    settings.take("per_device_train_batch_size")
    steps = settings.whole("gradient_accumulation_steps")
    batch = settings.whole("train_batch_size")
    unpriced: list[str] = []
    if micro is None and batch:
        settings.need("train_micro_batch_size_per_gpu", "sequences of a micro-batch")
    elif micro is None:
        unpriced.append(f"no per_device_train_batch_size: {DEFAULT_PER_DEVICE} by default")
    pins = {**_pins(settings), "micro_batch": micro or DEFAULT_PER_DEVICE}
    options: dict[str, str | int | float] = {"precision": _precision(settings)}
    options["optimizer"] = _optimizer(settings)
    length = settings.whole(
        "max_seq_length", "max_length", "model_max_length", "block_size", "cutoff_len",
        "seq_length", "sequence_len", "max_seq_len",
    )  # fmt: skip
    options |= {"seq_len": length} if length else {}
    options |= {"global_batch_size": batch} if batch else {}
    trainable = _trainable(settings)
    options |= {"trainable": trainable} if trainable else {}
    unpriced += settings.found(UNPRICED)
    return Launch(
        source=settings.problems.source,
        stack="deepspeed",
        name=settings.text("model_name_or_path", "model_name", "model_id", "model"),
        pins=pins,
        options=options,
        per_replica=None if batch else (micro or DEFAULT_PER_DEVICE) * (steps or 1),
        unread=tuple(settings.left(HARMLESS)),
        unpriced=tuple(unpriced),
    )


def _pins(settings: Settings) -> Pins:
    tp = settings.count("tensor_parallel.autotp_size", "tensor_parallel.tp_size")
    cp = settings.count("sequence_parallel_size", "sp_size")
    stage = settings.whole("zero_optimization.stage", least=0)
    flags = settings.flag("gradient_checkpointing", "activation_checkpointing.enabled")
    pins: Pins = {"tp": tp, "cp": cp, "pp": 1, "dp": -1, "zero": stage or 0}
    pins["recompute"] = "full" if flags else "none"
    if cp > 1:
        pins["cp_comm"] = "ulysses"
    if settings.text("zero_optimization.offload_optimizer.device", default="none") != "none":
        pins["offload"] = "optimizer"
    settings.take("zero_optimization.cpu_offload")
    return pins


def _precision(settings: Settings) -> str:
    """Gradients are kept and exchanged in the dtype of the model unless told otherwise.

    Source: DeepSpeed, "DeepSpeed Configuration JSON", `communication_data_type` and `data_types`.
    """
    bf16 = settings.flag("bf16.enabled", "bfloat16.enabled", "bf16")
    fp16 = settings.flag("fp16.enabled", "fp16")
    kept = settings.text("data_types.grad_accum_dtype", allowed=DTYPES)
    sent = settings.text("communication_data_type", allowed=DTYPES)
    own = "bf16" if bf16 else "fp16" if fp16 else ""
    if not own:
        return "fp32"
    gradient, reduce = DTYPES.get(kept, own), DTYPES.get(sent, own)
    return f"{own}_mixed,gradient={gradient},reduce={reduce}"


def _optimizer(settings: Settings) -> str:
    name = settings.text("optimizer.type", "optim", default="adamw", allowed=OPTIMIZERS)
    settings.take("optim")
    return OPTIMIZERS[name.lower()]


def _trainable(settings: Settings) -> str:
    """Adapters, in the words of `--trainable`."""
    rank = settings.whole("lora_r", "lora_rank", "lora.r")
    kind = settings.text("finetuning_type", "use_lora", "use_peft")
    return f"lora:r={rank or 8}" if kind.lower() in ("lora", "true") or rank else ""


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A JSON document with dotted keys; what is `auto` is as good as absent."""
    table: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            table |= flattened(value, f"{prefix}{name}.")
        elif value != "auto":
            table[prefix + name] = value
    return table
