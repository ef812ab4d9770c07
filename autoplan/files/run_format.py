"""The format of recorded runs: its keys, as people read them and as a reader checks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from autoplan.files.problems import Strict

RUN_FORMAT = """\
Recorded runs: a .jsonl file with one object a line, a .json file with a list of them, or a .csv
file whose columns are named alike. Only seq_len, hardware.count and something measured are needed;
what is left out (or null, or an empty cell) counts as not published.

  id, source                      names of the run and of who measured it (a score is by source)
  model.name                      a bundled name or your own; with the shape below, only a label
  model.n_layers hidden heads kv_heads head_dim ffn gated_ffn vocab tied_embeddings
  model.experts topk shared_experts moe_ffn dense_layers
  seq_len global_batch micro_batch
                                  positions; sequences of a step, and of a micro-batch of a replica
  hardware.device count per_node intra inter
                                  kind, number, devices of a node, links inside and between nodes
  parallel.tp pp vpp cp ep dp sp zero_stage fsdp
                                  dp = count / (tp * pp * cp); sp and fsdp are true or false
  recompute precision schedule kernel stack
  measured.step_time_s tokens_per_s_per_device tflops_per_device mfu peak_mem_gib
                                  mfu as a fraction; peak memory of a device in GiB
  derived                         measured names that were computed from another one
  flags                           `oom`: the run ended out of memory; any other word is a remark
  flops_convention notes

A key may be nested, dotted (`parallel.tp`), or short: tp, layers, device, devices, model,
step_time_s. In CSV, derived and flags hold words separated by `;`. Training logs of Megatron-LM and
torchtitan are read as they are; name the launch script or the configuration file like the log
(run.log, run.sh or run.toml) where the log does not repeat it. A run with the key `log` is the one
of that file; beside it stand only what no log says: id, source, device, per_node, intra, inter,
kernel, stack, flags.
"""

Size = Annotated[int, Field(ge=1, le=1 << 40)]
Count = Annotated[int, Field(ge=0, le=1 << 40)]
Text = Annotated[str, Field(min_length=1)]
Amount = Annotated[float, Field(gt=0, le=1e15)]


class ModelRow(Strict):
    """`model`."""

    name: str | None = None
    n_layers: Size | None = None
    hidden: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    head_dim: Size | None = None
    ffn: Size | None = None
    gated_ffn: bool | None = None
    vocab: Size | None = None
    experts: Size | None = None
    topk: Size | None = None
    shared_experts: Count | None = None
    moe_ffn: Size | None = None
    dense_layers: Count | None = None
    tied_embeddings: bool | None = None


class HardwareRow(Strict):
    """`hardware`."""

    count: Size
    device: Text | None = None
    per_node: Size | None = None
    intra: Text | None = None
    inter: Text | None = None


class ParallelRow(Strict):
    """`parallel`."""

    tp: Size | None = None
    pp: Size | None = None
    vpp: Size | None = None
    cp: Size | None = None
    ep: Size | None = None
    dp: Size | None = None
    sp: bool | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    fsdp: bool | None = None


class MeasuredRow(Strict):
    """`measured`."""

    step_time_s: Amount | None = None
    tokens_per_s_per_device: Amount | None = None
    tflops_per_device: Amount | None = None
    mfu: Annotated[float, Field(gt=0, lt=1.5)] | None = None
    peak_mem_gib: Amount | None = None


class LoggedHardwareRow(Strict):
    """`hardware` beside a log."""

    device: Text | None = None
    per_node: Size | None = None
    intra: Text | None = None
    inter: Text | None = None


class LoggedRow(Strict):
    """A run whose log says the rest."""

    log: Text
    hardware: LoggedHardwareRow = LoggedHardwareRow()
    id: Text | None = None
    source: Text | None = None
    kernel: Text | None = None
    stack: Text | None = None
    flags: list[str] = []


class RunRow(Strict):
    """A run."""

    seq_len: Size
    hardware: HardwareRow
    id: Text | None = None
    source: Text | None = None
    read_or_remembered: str | None = None
    model: ModelRow = ModelRow()
    global_batch: Size | None = None
    micro_batch: Size | None = None
    parallel: ParallelRow = ParallelRow()
    recompute: Text | None = None
    precision: Text | None = None
    schedule: Text | None = None
    kernel: Text | None = None
    stack: Text | None = None
    measured: MeasuredRow = MeasuredRow()
    derived: list[str] = []
    flags: list[str] = []
    flops_convention: Text | None = None
    notes: str = ""


SECTIONS: Mapping[str, type[Strict]] = {
    "model": ModelRow, "hardware": HardwareRow, "parallel": ParallelRow, "measured": MeasuredRow,
}  # fmt: skip
PATHS = (
    *(f"{section}.{key}" for section, row in SECTIONS.items() for key in row.model_fields),
    *(name for name in RunRow.model_fields if name not in SECTIONS),
    "log",
)
"""Every key, dotted."""
ALIASES: Mapping[str, str] = {
    **{path.partition(".")[2]: path for path in PATHS if "." in path},
    "model": "model.name", "layers": "model.n_layers", "num_layers": "model.n_layers",
    "gated": "model.gated_ffn", "tied": "model.tied_embeddings", "top_k": "model.topk",
    "devices": "hardware.count", "gpus": "hardware.count", "devices_per_node": "hardware.per_node",
    "zero": "parallel.zero_stage",
    "peak_memory_gib": "measured.peak_mem_gib", "gbs": "global_batch", "mbs": "micro_batch",
    "global_batch_size": "global_batch", "micro_batch_size": "micro_batch", "seq_length": "seq_len",
}  # fmt: skip
"""Short name -> key."""
SWITCHES = frozenset(("model.gated_ffn", "model.tied_embeddings", "parallel.sp", "parallel.fsdp"))
TABLES = (".json", ".jsonl", ".csv")
"""Suffixes of files that are no logs."""
LISTS = frozenset(("derived", "flags"))
TEXTS = frozenset(
    (
        "id", "source", "model.name", "hardware.device", "hardware.intra", "hardware.inter",
        "recompute", "precision", "schedule", "kernel", "stack", "flops_convention", "notes",
        "read_or_remembered", "log",
    )
)  # fmt: skip
