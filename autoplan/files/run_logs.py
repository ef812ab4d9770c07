"""Training logs of Megatron-LM and torchtitan -> Record: medians without the first iterations.

The configuration is read from the log where this repeats it, or from a file beside it of the same
name (`run.log`: `run.sh`, `run.toml`, `run.json`, `run.txt`). Peak memory is what the allocator had
reserved at most, on the fullest of the ranks that report it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from statistics import median, quantiles

from autoplan.errors import InputError, Problem
from autoplan.files.data import bundled_names, is_file
from autoplan.files.hf_config import FOLDER as MODELS
from autoplan.files.hf_config import load_model
from autoplan.files.launch_config import parse_launch, read_dump
from autoplan.files.text import read_text
from autoplan.ir.launch import Launch
from autoplan.ir.record import OUT_OF_MEMORY, Measured, Record, Shape

WARM_UP, WARM_UP_SHARE = 3, 0.1
"""Logged iterations that are dropped: at least so many, and at least this share."""
BESIDE = (".sh", ".toml", ".json", ".txt", ".cmd")

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_MEGATRON = re.compile(
    r"iteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\): (\d+(?:\.\d+)?)([^\n]*)"
)
_BATCH = re.compile(r"global batch size:\s+(\d+)")
_TFLOPS = re.compile(r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs): (\d+(?:\.\d+)?)")
_RESERVED = re.compile(r"memory \(MB\) \|.*?max reserved: (\d+(?:\.\d+)?)")
_WORLD = re.compile(r"using world size: (\d+)")
_TRACED = re.compile(r"^\++ (.*(?:torchrun|pretrain\w*\.py|deepspeed|torch\.distributed).*)$", re.M)

_TITAN = re.compile(
    r"(?<!validate )step:\s*(\d+)\s+loss:.*?memory:\s*(\d+(?:\.\d+)?)GiB"
    r"[^\n]*?tps: (\d[\d,]*)([^\n]*)"
)
_TITAN_TFLOPS, _TITAN_MFU = (
    re.compile(r"tflops: (\d[\d,]*(?:\.\d+)?)"),
    re.compile(r"mfu: (\d+(?:\.\d+)?)%"),
)
_TITAN_MESH = re.compile(r"Building \d+-D device mesh with \[.*?\], \[([\d, ]+)\]")
_TITAN_BATCH = re.compile(
    r"local batch size (\d+), global batch size (\d+).*?sequence length (\d+)"
)
_TITAN_DEVICE = re.compile(r"\b[A-Z]{2,5} capacity: (.+?)(?: \(\d+\))? with (\d+(?:\.\d+)?)GiB")
_TITAN_MODEL = re.compile(r"Model (\S+) (\S+) size:")
_OOM = re.compile(r"OutOfMemoryError|(CUDA|HIP|NPU|XPU) out of memory")
_KIND = re.compile(r"(?:NVIDIA |GeForce )*(RTX \d+|[A-Z]+\d+[A-Z]*)")
_NVIDIA = re.compile(r"NVIDIA ([A-Z]\d{2,3})[- ](?:\w+-)?(\d+)GB")
"""A device as drivers call it, wherever a log shows it."""
_SIZES = (16, 24, 32, 40, 48, 64, 80, 96)
"""Nominal memories of devices that are sold with several, in GiB."""


@dataclass(frozen=True, slots=True)
class Logged:
    """What a log measured.

    Attributes:
        stack: which software wrote it.
        times: seconds of each logged iteration, in order; torchtitan has none.
        rates: tokens per second and device of each; Megatron has none.
        tflops, mfu: of each, where it tells.
        memory: largest reserved GiB, or None.
        global_batch, micro_batch, seq_len, devices, device, name: where the log says so.
    """

    stack: str
    times: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    tflops: tuple[float, ...] = ()
    mfu: tuple[float, ...] = ()
    memory: float | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    devices: int | None = None
    device: str | None = None
    name: str = ""


def is_log(text: str) -> bool:
    """Whether a text is a log of one of the two."""
    return bool(_MEGATRON.search(text) or _TITAN.search(_ANSI.sub("", text)) or read_dump(text))


def read_logged(path: str | Path) -> tuple[Launch, Record] | None:
    """The configuration of a log's run and what it measured, or None where the file is no log.

    Raises:
        InputError: as `read_log`.
    """
    file = Path(path)
    if file.suffix.lower() in (".json", ".toml", ".sh") or not is_file(file):
        return None
    text = read_text(file)
    if not is_log(text):
        return None
    record = read_log(text, file)
    launch = replace(_launch(_ANSI.sub("", text), file), source=str(path), devices=record.devices)
    options = {"global_batch_size": record.global_batch, "seq_len": record.seq_len}
    given = {key: value for key, value in options.items() if value}
    return replace(launch, options={**launch.options, **given}), record


def read_log(text: str, path: Path) -> Record:
    """The run that a log tells of.

    Args:
        text: of the log.
        path: of its file; its configuration may stand beside it.

    Raises:
        InputError: nothing was measured, or nothing says how the run was configured; every problem
            of the configuration at once.
    """
    plain = _ANSI.sub("", text)
    logged = _torchtitan(plain) if _TITAN.search(plain) else _megatron(plain)
    launch = _launch(plain, path)
    source = str(path)
    devices = logged.devices or launch.devices
    seq_len = logged.seq_len or launch.options.get("seq_len")
    oom = bool(_OOM.search(plain))
    problems = []
    for what, value in (("devices", devices), ("the sequence length", seq_len)):
        if not value:
            allowed = f"{what}, in the log or in a configuration beside it ({_beside(path)})"
            problems.append(Problem(source, "", "nothing", allowed))
    if not (logged.times or logged.rates or oom):
        allowed = "timed iterations, or the end out of memory"
        problems.append(Problem(source, "", "neither", allowed))
    if problems:
        raise InputError(problems)
    return _record(logged, launch, path, int(devices or 1), int(seq_len or 1), oom)


def _shape(launch: Launch) -> Shape:
    """Of the model, which a configuration may name only."""
    if launch.shape.layers or launch.name not in bundled_names(MODELS):
        return launch.shape
    model = load_model(launch.name)
    return Shape(
        model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn,
        model.gated, model.vocab, model.tied_embeddings,
    )  # fmt: skip


def _beside(path: Path) -> str:
    return ", ".join(path.with_suffix(suffix).name for suffix in BESIDE)


def _launch(text: str, path: Path) -> Launch:
    """The configuration of a log's run."""
    if read_dump(text):
        return parse_launch(text, str(path), path.parent)
    for suffix in BESIDE:
        beside = path.with_suffix(suffix)
        if beside != path and is_file(beside):
            return parse_launch(read_text(beside), str(beside), path.parent)
    traced = _TRACED.findall(text)
    if traced:
        return parse_launch(traced[-1], str(path), path.parent)
    allowed = f"the configuration, in the log or beside it ({_beside(path)})"
    raise InputError(Problem(str(path), "", "no configuration", allowed))


def _megatron(text: str) -> Logged:
    lines = _MEGATRON.findall(text)
    batches = [_last(_BATCH, rest) for _, _, rest in lines]
    usual = Counter(batches).most_common(1)[0][0] if batches else None
    # A batch that is still growing is another measurement.
    kept = [line for line, batch in zip(lines, batches, strict=True) if batch == usual]
    memory = [float(number) for number in _RESERVED.findall(text)]
    world, device = _last(_WORLD, text), _NVIDIA.search(text)
    return Logged(
        stack="megatron",
        device=f"{device[1]}-{device[2]}GB" if device else None,
        times=tuple(float(ms) / 1e3 for _, ms, _ in kept if float(ms)),
        tflops=_floats(_TFLOPS, [rest for _, _, rest in kept]),
        memory=max(memory) / 1024 if memory else None,
        global_batch=int(usual) if usual else None,
        devices=int(world) if world else None,
    )


def _torchtitan(text: str) -> Logged:
    steps = {step: (memory, rate, rest) for step, memory, rate, rest in _TITAN.findall(text)}
    rows = list(steps.values())
    rest = [row[2] for row in rows]
    batch, mesh = _TITAN_BATCH.search(text), _last(_TITAN_MESH, text)
    device, model = _TITAN_DEVICE.search(text), _TITAN_MODEL.search(text)
    return Logged(
        stack="torchtitan",
        rates=tuple(rate for row in rows if (rate := float(row[1].replace(",", "")))),
        tflops=_floats(_TITAN_TFLOPS, rest),
        mfu=tuple(share / 100 for share in _floats(_TITAN_MFU, rest)),
        memory=max(float(row[0]) for row in rows),
        global_batch=int(batch[2]) if batch else None,
        micro_batch=int(batch[1]) if batch else None,
        seq_len=int(batch[3]) if batch else None,
        devices=prod(map(int, re.findall(r"\d+", mesh))) if mesh else None,
        device=_kind(device[1], float(device[2])) if device else None,
        name=f"{model[1]} {model[2]}" if model else "",
    )


def _kind(name: str, memory: float) -> str:
    """`NVIDIA A100-SXM4-80GB` with 79.2 GiB as people write it: A100-80GB."""
    match = _KIND.match(name)
    sizes = [size for size in _SIZES if size >= memory]
    if not match or not sizes or match[1].startswith("RTX"):
        return match[1] if match else name
    return f"{match[1]}-{sizes[0]}GB"


def _last(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    return str(found[-1]) if found else ""


def _floats(pattern: re.Pattern[str], texts: Sequence[str]) -> tuple[float, ...]:
    found = (pattern.search(text) for text in texts)
    return tuple(float(match[1].replace(",", "")) for match in found if match)


def _warm(values: Sequence[float]) -> Sequence[float]:
    """Without the first iterations, but never without the last."""
    return values[min(max(WARM_UP, ceil(WARM_UP_SHARE * len(values))), len(values) - 1) :]


def _middle(values: Sequence[float]) -> float | None:
    return median(_warm(values)) if values else None


def _notes(values: Sequence[float], launch: Launch) -> str:
    """How many iterations, and how far they spread."""
    parts = []
    if values:
        warm = _warm(values)
        parts.append(f"median of {len(warm)} of {len(values)} logged iterations")
        if len(warm) > 1:
            low, _, high = quantiles(warm, n=4, method="inclusive")
            parts.append(f"the middle half within {(high - low) / median(warm):.1%}")
    if launch.unpriced:
        parts.append("not priced: " + ", ".join(launch.unpriced))
    if launch.unread:
        parts.append("not understood: " + ", ".join(launch.unread))
    return "; ".join(parts)


def _record(
    logged: Logged, launch: Launch, path: Path, devices: int, seq_len: int, oom: bool
) -> Record:  # fmt: skip
    pins, options = launch.pins, launch.options
    whole = {key: value for key, value in pins.items() if isinstance(value, int)}
    others = prod(whole.get(key, 1) for key in ("tp", "pp", "cp"))
    replicas = devices // others if devices % others == 0 else None
    batch = logged.global_batch or options.get("global_batch_size")
    if not batch and launch.per_replica and replicas:
        batch = launch.per_replica * replicas
    zero, recompute = whole.get("zero"), pins.get("recompute")
    micro = whole.get("micro_batch")
    if whole.get("pp", 1) == 1:  # the log knows what was overridden on the command line
        micro = logged.micro_batch or micro
    return Record(
        id=path.stem,
        source=path.name,
        name=launch.name or logged.name,
        shape=_shape(launch),
        seq_len=seq_len,
        devices=devices,
        global_batch=int(batch) if batch else None,
        micro_batch=micro,
        device=logged.device,
        per_node=launch.per_node,
        parallel={
            **{key: whole.get(key, 1) for key in ("tp", "pp", "vpp", "cp", "ep")},
            "dp": replicas,
            "sp": whole.get("sp", False),
            "zero_stage": zero,
            "fsdp": launch.stack.startswith("torchtitan") and zero in (2, 3),
        },
        recompute=None if recompute is None else str(recompute),
        precision=str(options["precision"]) if "precision" in options else None,
        schedule=str(pins["schedule"]) if "schedule" in pins else None,
        stack=launch.stack,
        measured=Measured(
            step_time_s=_middle(logged.times),
            tokens_per_s_per_device=_middle(logged.rates),
            tflops_per_device=_middle(logged.tflops),
            mfu=_middle(logged.mfu),
            peak_mem_gib=logged.memory,
        ),
        flags=(OUT_OF_MEMORY,) if oom else (),
        notes=_notes(logged.times or logged.rates, launch),
    )
