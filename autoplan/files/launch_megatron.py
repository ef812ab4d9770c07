"""Megatron-LM's arguments -> Launch: from a command line, or as its log repeats them.

Absent arguments have Megatron's own defaults. Source: Megatron-LM, megatron/training/arguments.py;
the older spellings are those of Megatron-DeepSpeed and of releases before core 0.6.
"""

from __future__ import annotations

import re

from autoplan.files.launch_megatron_model import read_model, read_shape
from autoplan.files.launch_settings import Settings
from autoplan.ir.launch import Launch
from autoplan.ir.record import Shape

Pins = dict[str, int | bool | str | tuple[int, ...]]

MARKS = frozenset(
    (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers", "hidden_size",
        "micro_batch_size", "num_attention_heads", "seq_length", "model_parallel_size",
    )
)  # fmt: skip
"""Arguments by which a command is recognised."""

SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
FP8_RECIPES = {
    "delayed": "fp8_tensor", "tensorwise": "fp8_tensor", "blockwise": "fp8_tile", "mxfp8": "mxfp8",
}  # fmt: skip
OPTIMIZERS = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}

UNPRICED = (
    "overlap_grad_reduce", "overlap_param_gather", "overlap_param_gather_with_optimizer_step",
    "tp_comm_overlap", "overlap_p2p_communication", "delay_wgrad_compute", "rampup_batch_size",
    "attention_backend", "use_flash_attn", "use_flash_attn_v2", "use_flash_attn_triton",
    "cross_entropy_loss_fusion", "cross_entropy_fusion_impl", "no_gradient_accumulation_fusion",
    "no_masked_softmax_fusion", "no_bias_gelu_fusion", "no_bias_swiglu_fusion",
    "no_bias_dropout_fusion", "no_persist_layer_norm", "no_rope_fusion", "fp8_param_gather",
    "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype",
    "exp_avg_sq_dtype", "cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph",
    "deterministic_mode", "use_cpu_initialization", "cp_comm_type",
    "hierarchical_context_parallel_sizes", "distribute_saved_activations", "transformer_impl",
    "cpu_offloading_num_layers",
    "moe_token_dispatcher_type", "moe_grouped_gemm", "moe_permute_fusion", "moe_enable_deepep",
    "moe_pad_expert_input_to_capacity", "moe_expert_capacity_factor", "moe_shared_expert_overlap",
    "moe_layer_recompute", "overlap_moe_expert_parallel_comm", "moe_router_load_balancing_type",
    "mtp_num_layers", "window_size", "softmax_type", "use_fused_weighted_squared_relu",
    "pipeline_model_parallel_layout", "standalone_embedding_stage", "encoder_num_layers",
    "use_tp_pp_dp_mapping_order", "mock_data_lengths", "reset_attention_mask", "sft", "packing",
    "recompute_modules", "multi_latent_attention", "heterogeneous_layers_config_path",
)  # fmt: skip
"""Arguments that may change time or memory, but nothing in a prediction."""

HARMLESS = re.compile(
    r"(lr|min_lr|decoupled|adam_|sgd_|weight_decay|start_weight_decay|end_weight_decay|clip_grad"
    r"|train_|eval_|exit_|save|load|no_save|no_load|finetune|log_|no_log|tensorboard|wandb|data_"
    r"|vocab_file|merge_file|tokenizer|tiktoken|split|mock_data|seed|init_method|num_workers|ckpt"
    r"|dist_ckpt|use_dist_ckpt|async_save|distributed_|dataloader|timing|profile|use_pytorch_profiler"
    r"|override_opt|use_checkpoint|initial_loss_scale|loss_scale|min_loss_scale|hysteresis|manual_gc"
    r"|no_create_attention|no_mmap|use_mcore_models|use_legacy_models|eod_mask|reset_position"
    r"|no_check_for_nan|check_for|calculate_per_token_loss|empty_unused_memory|local_rank|rank$"
    r"|barrier|lazy|mask_|short_seq|num_dataset|fp8_amax|fp8_margin|fp8_interval|no_fp8_wgrad"
    r"|te_rng|auto_detect|use_persistent|yaml_cfg|enable_one_logger|one_logger|nccl_|make_vocab"
    r"|accumulate_allreduce|attention_softmax_in_fp32|apply_query_key|no_query_key|micro_batch_group"
    r"|ddp_|no_initialization|perform_initialization|test_mode|dataset|streaming|report_|hybrid_"
    r"|no_async|moe_aux|moe_z|moe_router_(?!load)|moe_per_layer|embedding_init|output_bert|max_tokens"
    r"|legacy_tokenizer|end$|create_attention|model_name|scatter_gather|no_scatter|num_ckpt)"
)
"""Arguments that change neither the time nor the memory of a step."""


def read_megatron(settings: Settings, whole_dump: bool = False) -> Launch:
    """What Megatron's arguments decide.

    Args:
        settings: the arguments by their names with underscores.
        whole_dump: whether every argument there is stands here, as in a log: then those that are
            not known are not told.
    """
    unpriced: list[str] = []
    shape = read_shape(settings)
    pins = _degrees(settings)
    pins |= _pipeline(settings, shape, pins, unpriced)
    pins |= _memory(settings, unpriced)
    settings.need("micro_batch_size", "sequences of a micro-batch")
    micro = settings.count("micro_batch_size", default=1)
    options: dict[str, str | int | float] = {"precision": _precision(settings)}
    lengths = settings.whole("seq_length", "encoder_seq_length", "max_length")
    batch = settings.whole("global_batch_size")
    options |= {"seq_len": lengths} if lengths else {}
    options |= {"global_batch_size": batch} if batch else {}
    optimizer = OPTIMIZERS[settings.text("optimizer", default="adam", allowed=OPTIMIZERS)]
    options["optimizer"] = optimizer
    model = read_model(settings, shape)
    world = settings.whole("world_size")
    older = settings.flag("deepspeed")
    settings.take("data_parallel_size", "deepspeed_config", "ds_config")
    unpriced += settings.found(UNPRICED)
    return Launch(
        source=settings.problems.source,
        stack="megatron-deepspeed" if older else "megatron",
        shape=shape,
        model=model,
        pins={**pins, "micro_batch": micro},
        options=options,
        per_replica=None if batch else micro,
        devices=world,
        unread=() if whole_dump else tuple(settings.left(HARMLESS)),
        unpriced=() if whole_dump else tuple(unpriced),
    )


def _degrees(settings: Settings) -> Pins:
    tp = settings.count("tensor_model_parallel_size", "model_parallel_size", default=1)
    pp = settings.count("pipeline_model_parallel_size", default=1)
    cp = settings.count("context_parallel_size", default=1)
    ep = settings.count("expert_model_parallel_size", default=1)
    etp = settings.whole("expert_tensor_parallel_size")
    pins: Pins = {"tp": tp, "cp": cp, "pp": pp, "dp": -1}
    if ep > 1:
        pins["ep"] = ep
    if etp and etp != tp:
        pins["etp"] = etp
    spread = settings.flag("sequence_parallel")
    if tp > 1:
        pins["sp"] = spread
    return pins


def _pipeline(settings: Settings, shape: Shape, pins: Pins, unpriced: list[str]) -> Pins:
    """Schedule, chunks and layers of each stage."""
    per_chunk = settings.whole("num_layers_per_virtual_pipeline_stage")
    chunks = settings.count(
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size", default=1
    )
    stages, layers = pins["pp"], shape.layers
    assert isinstance(stages, int)
    ends = [settings.whole(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last")]
    counted = [
        int(settings.flag(f"account_for_{what}_in_pipeline_split"))
        for what in ("embedding", "loss")
    ]
    if stages == 1:
        return {}
    if per_chunk and layers:
        chunks = max(layers // (stages * per_chunk), 1)
    elif per_chunk:
        unpriced.append("--num-layers-per-virtual-pipeline-stage, without --num-layers")
    if chunks > 1:
        found: Pins = {"vpp": chunks, "schedule": "interleaved"}
    else:
        found = {"schedule": "1f1b"}
    if any((*ends, *counted)):
        spread = _spread(stages, layers, ends, counted) if chunks == 1 else None
        if spread:
            found["layers_per_stage"] = spread
        else:
            unpriced.append("the layers of the first and last stage")
    return found


def _spread(
    stages: int, layers: int | None, ends: list[int | None], counted: list[int]
) -> tuple[int, ...] | None:
    """Layers of each stage where the ends differ, or None where they do not come out even."""
    if layers is None:
        return None
    if any(counted):
        each, rest = divmod(layers + sum(counted), stages)
        first, last = (each - extra for extra in counted)
        return None if rest else (first, *(each,) * (stages - 2), last)
    fixed = [end for end in ends if end is not None]
    middle = stages - len(fixed)
    each, rest = divmod(layers - sum(fixed), middle) if middle else (0, layers - sum(fixed))
    if rest or each < 0:
        return None
    head = () if ends[0] is None else (ends[0],)
    tail = () if ends[1] is None else (ends[1],)
    return (*head, *(each,) * middle, *tail)


def _memory(settings: Settings, unpriced: list[str]) -> Pins:
    """How state is split, what is computed again, what is offloaded."""
    zero = 1 if settings.flag("use_distributed_optimizer") else 0
    sharding = settings.text("data_parallel_sharding_strategy", allowed=SHARDING)
    if settings.flag("use_megatron_fsdp", "use_custom_fsdp"):
        zero = SHARDING[sharding or "no_shard"]
    if settings.flag("use_torch_fsdp2"):
        zero = 3
    stage = settings.whole("zero_stage", least=0)
    zero = zero if stage is None else stage
    pins: Pins = {"zero": zero, "recompute": _recompute(settings, unpriced)}
    if settings.flag("optimizer_cpu_offload", "cpu_optimizer"):
        pins["offload"] = "optimizer"
    if settings.flag("use_tp_pp_dp_mapping"):
        pins["order"] = "tp-pp-dp"
    return pins


def _recompute(settings: Settings, unpriced: list[str]) -> str:
    granularity = settings.text("recompute_granularity", allowed=("full", "selective"))
    selective = settings.flag("recompute_activations")
    method = settings.text("recompute_method", "activations_checkpoint_method")
    count = settings.count("recompute_num_layers", "activations_checkpoint_num_layers", default=1)
    older = settings.flag(
        "checkpoint_activations", "deepspeed_activation_checkpointing", "recompute_full"
    )
    if not granularity and selective:
        granularity = "selective"
    if granularity == "full" or (not granularity and (older or method)):
        if method == "block":
            unpriced.append(f"--recompute-method block: {count} layers only; priced as all")
        elif count and count > 1:
            unpriced.append(f"--recompute-num-layers {count}: priced as each layer by itself")
        return "full"
    return granularity or "none"


def _precision(settings: Settings) -> str:
    fp8 = settings.text("fp8_format", "fp8", "fp8_hybrid", "fp8_e4m3")
    recipe = settings.text("fp8_recipe", default="delayed", allowed=FP8_RECIPES)
    bf16, fp16 = settings.flag("bf16"), settings.flag("fp16")
    dtype = settings.text("params_dtype", "torch_dtype")
    # DeepSpeed keeps and exchanges gradients in the dtype of the model.
    narrow = settings.flag("grad_reduce_in_bf16") or (
        settings.flag("deepspeed") and not settings.flag("accumulate_allreduce_grads_in_fp32")
    )
    if fp8 and fp8.lower() != "false":
        name = FP8_RECIPES[recipe]
    elif bf16 or "bfloat16" in dtype:
        name = "bf16_mixed"
    else:
        name = "fp16_mixed" if fp16 or "float16" in dtype or "half" in dtype else "fp32"
    kept = "fp16" if name == "fp16_mixed" else "bf16"
    return f"{name},gradient={kept},reduce={kept}" if narrow and name != "fp32" else name
