"""torchtitan's TOML, and overrides on its command line -> Launch.

Absent keys have torchtitan's own defaults. Source: torchtitan/config/job_config.py; the keys of
`[experimental]` and `training.batch_size` are those of releases before 2025.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files.launch_settings import Settings
from autoplan.ir.launch import Launch

Pins = dict[str, int | bool | str | tuple[int, ...]]

SECTIONS = (
    "job", "profiling", "metrics", "model", "optimizer", "lr_scheduler", "training", "parallelism",
    "checkpoint", "activation_checkpoint", "compile", "float8", "quantize", "mx", "comm",
    "memory_estimation", "fault_tolerance", "experimental", "validation", "debug",
)  # fmt: skip
DEFAULT_SEQ_LEN, DEFAULT_BATCH, DEFAULT_ALTERNATE = 2048, 8, "2"

MODELS = {
    ("llama2", "7b"): "llama-2-7b", ("llama2", "13b"): "llama-2-13b",
    ("llama2", "70b"): "llama-2-70b", ("llama3", "8b"): "llama-3.1-8b",
    ("llama3", "70b"): "llama-3.1-70b", ("llama3", "405b"): "llama-3.1-405b",
    ("qwen3", "8b"): "qwen3-8b",
}  # fmt: skip
"""Name and flavor -> bundled model."""
SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "zbvzerobubble": "zb_v",
    "interleavedzerobubble": "zb_h1", "dualpipev": "dualpipe_v", "loopedbfs": "loopedbfs",
}  # fmt: skip
OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "muon": "muon"}
CHUNKED = frozenset(("interleaved", "zb_v", "zb_h1", "dualpipe_v", "loopedbfs"))
CHUNKS = 2
"""Stages of a rank under these schedules. Source: torchtitan/distributed/pipeline_parallel.py."""

HARMLESS = re.compile(
    r"(job|profiling|metrics|lr_scheduler|checkpoint|comm|memory_estimation|validation|debug)\."
    r"|optimizer\.(?!name)|training\.(dataset|steps|max_norm|gc_|seed|deterministic|warmup)"
    r"|model\.(hf_assets|tokenizer|print_|norm_type)|fault_tolerance\.(?!enable)"
    r"|compile\.components|(quantize|float8|mx)\..*(filter_fqns|emulate|cast_kernel)"
    r"|activation_checkpoint\.(per_op|early_stop|preserve|determinism)"
)
UNPRICED = (
    "parallelism.enable_async_tensor_parallel",
    "experimental.enable_async_tensor_parallel", "training.enable_async_tensor_parallel",
    "parallelism.disable_loss_parallel", "training.disable_loss_parallel",
    "parallelism.context_parallel_rotate_method", "parallelism.context_parallel_load_balancer",
    "parallelism.enable_compiled_autograd", "experimental.enable_compiled_autograd",
    "parallelism.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part",
    "parallelism.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_layers_per_stage",
    "parallelism.pipeline_parallel_first_stage_less_layers",
    "parallelism.pipeline_parallel_last_stage_less_layers", "float8.enable_fsdp_float8_all_gather",
    "float8.precompute_float8_dynamic_scale_for_fsdp", "float8.force_recompute_fp8_weight_in_bwd",
    "quantize.linear.float8.enable_fsdp_float8_all_gather",
    "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", "fault_tolerance.enable",
    "optimizer.early_step_in_backward", "training.mixed_precision_reduce",
    "activation_checkpoint.memory_budget", "model.use_flex_attn", "model.attn_mask_type",
)  # fmt: skip


def read_toml(text: str, source: str) -> dict[str, Any]:
    """A TOML document with dotted keys.

    Raises:
        InputError: not TOML.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(Problem(source, "", str(error), "TOML")) from None
    return dict(_dotted("", document))


def _dotted(prefix: str, table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in table.items():
        key = prefix + name
        pairs += _dotted(key + ".", value) if isinstance(value, dict) else [(key, value)]
    return pairs


def read_torchtitan(settings: Settings) -> Launch:
    """What torchtitan's keys decide.

    Args:
        settings: dotted keys, overrides applied.
    """
    unpriced: list[str] = []
    pins = _degrees(settings)
    stages = pins["pp"]
    assert isinstance(stages, int)
    pins |= _pipeline(settings, stages)
    pins |= _state(settings, stages)
    pins |= _recompute(settings, unpriced)
    local = settings.count(
        "training.local_batch_size", "training.batch_size", default=DEFAULT_BATCH
    )
    batch = _global_batch(settings)
    pieces = settings.count(
        "parallelism.pipeline_parallel_microbatch_size",
        "experimental.pipeline_parallel_microbatch_size",
    )
    pins["micro_batch"] = local if stages == 1 else pieces
    options: dict[str, str | int | float] = {
        "seq_len": settings.count("training.seq_len", default=DEFAULT_SEQ_LEN),
        "precision": _precision(settings, unpriced),
        "optimizer": OPTIMIZERS[
            settings.text("optimizer.name", default="adamw", allowed=OPTIMIZERS).lower()
        ],
    }
    if batch:
        options["global_batch_size"] = batch
    name, flavor = settings.text("model.name"), settings.text("model.flavor")
    compiled = settings.flag("compile.enable", "training.compile")
    unpriced += settings.found(UNPRICED)
    return Launch(
        source=settings.problems.source,
        stack="torchtitan" if compiled else "torchtitan-eager",
        name=MODELS.get((name.lower(), flavor.lower()), f"{name} {flavor}".strip()),
        pins=pins,
        options=options,
        per_replica=None if batch else local,
        unread=tuple(settings.left(HARMLESS)),
        unpriced=tuple(unpriced),
    )


def _parallel(settings: Settings, what: str) -> int:
    """A degree, wherever releases have put it."""
    keys = [
        f"{part}.{what}_parallel_degree" for part in ("parallelism", "training", "experimental")
    ]
    return settings.count(*keys, default=1)


def _degrees(settings: Settings) -> Pins:
    tp, pp = _parallel(settings, "tensor"), _parallel(settings, "pipeline")
    cp, ep = _parallel(settings, "context"), _parallel(settings, "expert")
    pins: Pins = {"tp": tp, "cp": cp, "pp": pp, "dp": -1}
    if ep > 1:
        pins["ep"] = ep
    etp = settings.whole("parallelism.expert_tensor_parallel_degree")
    if etp and etp != tp:
        pins["etp"] = etp
    if tp > 1:
        pins["sp"] = True
    return pins


def _pipeline(settings: Settings, stages: int) -> Pins:
    schedule = settings.text(
        "parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule",
        default="1F1B", allowed=SCHEDULES,
    )  # fmt: skip
    if stages == 1:
        return {}
    family = SCHEDULES[schedule.lower()]
    return {"schedule": family, "vpp": CHUNKS} if family in CHUNKED else {"schedule": family}


def _state(settings: Settings, stages: int) -> Pins:
    """Sharded data parallelism is full sharding; a pipeline keeps what it has gathered.

    Source: torchtitan/models/llama3/infra/parallelize.py, `reshard_after_forward_policy`.
    """
    replicas = settings.count("parallelism.data_parallel_replicate_degree", default=1)
    _, shards = settings.take(
        "parallelism.data_parallel_shard_degree", "training.data_parallel_degree"
    )
    policy = settings.text(
        "parallelism.fsdp_reshard_after_forward", default="default",
        allowed=("default", "always", "never"),
    )  # fmt: skip
    keeps = policy == "never" or (policy == "default" and stages > 1)
    pins: Pins = {"zero": 2 if keeps else 3}
    if str(shards) == "1":
        pins["zero"] = 0
    elif replicas > 1:
        pins["dp_replicate"] = replicas
    if settings.flag("training.enable_cpu_offload"):
        pins["offload"] = "parameters"
    if str(shards) not in ("None", "-1"):
        pins["dp"] = replicas * settings.count(
            "parallelism.data_parallel_shard_degree", "training.data_parallel_degree"
        )
    return pins


def _recompute(settings: Settings, unpriced: list[str]) -> Pins:
    mode = settings.text(
        "activation_checkpoint.mode", default="selective",
        allowed=("none", "selective", "full", "memory_budget"),
    )  # fmt: skip
    option = settings.text("activation_checkpoint.selective_ac_option", default=DEFAULT_ALTERNATE)
    if mode == "memory_budget":
        unpriced.append("activation_checkpoint.mode = memory_budget; priced as selective")
    if mode == "selective" and option not in ("op", DEFAULT_ALTERNATE):
        unpriced.append(f"activation_checkpoint.selective_ac_option = {option}")
    return {"recompute": "selective" if mode == "memory_budget" else mode}


def _global_batch(settings: Settings) -> int | None:
    key, value = settings.take("training.global_batch_size")
    return settings.whole(key) if key and str(value) != "-1" else None


def _precision(settings: Settings, unpriced: list[str]) -> str:
    """Mixed precision keeps the parameters in 32 bits and casts what it gathers."""
    _, converters = settings.take("model.converters")
    recipe = settings.text(
        "float8.recipe_name", "quantize.linear.float8.recipe_name", "mx.recipe_name"
    )
    settings.take("mx.recipe_name", "quantize.linear.mx.recipe_name")
    param = settings.text("training.mixed_precision_param", default="bfloat16")
    dtype = settings.text("training.dtype", default="float32")
    words = str(converters or "").lower()
    if "mx" in words:
        return "mxfp8"
    if "float8" in words:
        if recipe.startswith("rowwise"):
            unpriced.append(f"float8 recipe {recipe}: priced with one scale a tensor")
        return "fp8_tensor"
    if dtype == "bfloat16":
        return "bf16_pure"
    return "bf16_mixed,parameter=fp32" if param == "bfloat16" else "fp32"
