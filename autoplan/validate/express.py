"""What did a recorded run do, in our words? Record -> model, machine, stack, workload and pins.

A record is expressed through the same doors as a question on the command line. What it leaves out
is the stack's default, and what had to be taken for granted is named in `Case.assumed`. What the
planner has no words for raises `NotExpressedError` with the reason; nothing is dropped silently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

from autoplan.errors import AutoplanError, InputError, Problem
from autoplan.files.data import bundled_names
from autoplan.files.hardware import levels_inside
from autoplan.files.machine_spec import FOLDER, load_hardware
from autoplan.files.stack import load_stack, recorded_stacks
from autoplan.files.workload import parse_workload, precision_document
from autoplan.frontends import step_graph
from autoplan.ir.graph import Graph
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.record import Record, Shape
from autoplan.ir.workload import PRECISIONS, Optimizer, Precision, Workload
from autoplan.presets.legal import padded_vocab
from autoplan.presets.pins import PARSERS, Pins, parse_pins
from autoplan.validate.devices import board_of, profile_named

GENERIC = "generic"
"""The stack of a record whose software nobody has described."""
USUAL_VOCAB = 50304
"""GPT-2's vocabulary, padded to a multiple of 128: taken where a source does not say."""
NO_SCHEDULE = ("dp", "")
FEWEST_CHUNKS = 2
"""Chunks of a stage that interleaves, where a source does not say how many: what is least."""


class NotExpressedError(AutoplanError):
    """A run that the planner has no words for, and why."""


@dataclass(frozen=True)
class Case:
    """A record, expressed.

    Attributes:
        record: what was measured.
        config, hardware, stack, workload, pins: what it was measured on, as `presets` takes it.
        assumed: what the record did not say.
        stack_spec: how the stack is called: a bundled name, or a path.
    """

    record: Record
    config: DecoderConfig
    hardware: Hardware
    stack: Stack
    workload: Workload
    pins: Pins
    assumed: tuple[str, ...]
    stack_spec: str

    @property
    def graph(self) -> Graph:
        """The training step; the same object for the same model and workload but for its batch."""
        return _graph(self.config, self.workload.precision, self.workload.seq_len)


def express(record: Record) -> Case:
    """The case that a record describes.

    Raises:
        NotExpressedError: it leaves out what nobody can guess, or says what has no words yet.
        InputError: what it says contradicts itself.
    """
    assumed: list[str] = []
    batch = record.global_batch
    if batch is None:
        raise NotExpressedError("the batch is not published")
    config = _config(record, assumed)
    hardware = _hardware(record, assumed)
    spec = record.stack or recorded_stack(record)
    stack = _stack(spec)
    workload = _workload(record, batch, stack, assumed)
    pins = parse_pins(_pins(record, config, stack, assumed))
    return Case(record, config, hardware, stack, workload, pins, tuple(assumed), spec)


# --- model ------------------------------------------------------------------------------------


def _config(record: Record, assumed: list[str]) -> DecoderConfig:
    """The decoder of a published shape: Llama-like with a gate, GPT-like without."""
    shape = record.shape
    if shape.experts:
        raise NotExpressedError("mixture of experts")
    if "mla_attention" in record.flags:
        raise NotExpressedError("latent attention")
    hidden, layers, heads, ffn, gated = _known(shape)
    if shape.vocab is None:
        assumed.append(f"vocabulary {USUAL_VOCAB}")
    vocab, parts = shape.vocab or USUAL_VOCAB, int(record.parallel.get("tp") or 1)
    if vocab % parts:
        vocab = padded_vocab(vocab, parts)
    return DecoderConfig(
        family="llama" if gated else "gpt2",
        name=record.name or "recorded",
        hidden=hidden, layers=layers, heads=heads, kv_heads=shape.kv_heads or heads,
        head_dim=shape.head_dim or hidden // heads, ffn=ffn, vocab=vocab,
        max_positions=record.seq_len,
        norm="rms_norm" if gated else "layer_norm",
        activation="silu" if gated else "gelu_tanh",
        gated=gated,
        qkv_bias=not gated, output_bias=not gated, mlp_bias=not gated,
        rope_theta=10000.0 if gated else None,
        learned_positions=not gated,
        tied_embeddings=bool(shape.tied),
    )  # fmt: skip


def _known(shape: Shape) -> tuple[int, int, int, int, bool]:
    """What no model is without."""
    needed = {
        "hidden": shape.hidden, "layers": shape.layers, "heads": shape.heads, "ffn": shape.ffn,
        "gated": shape.gated,
    }  # fmt: skip
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise NotExpressedError(f"the model's {', '.join(missing)} not published")
    hidden, layers, heads, ffn = (int(needed[n] or 0) for n in ("hidden", "layers", "heads", "ffn"))
    return hidden, layers, heads, ffn, bool(shape.gated)


# --- machine ----------------------------------------------------------------------------------


def profile_of(device: str | None) -> str:
    """The hardware profile of a published kind of device, or a path to one.

    Raises:
        NotExpressedError: there is none.
    """
    if device is None:
        raise NotExpressedError("the device is not published")
    if device.endswith(".json") and Path(device).is_file():
        return device
    name = profile_named(device)
    if name is None:
        switched = board_of(device)
        why = f", whose boards no switch joins as it does those of {switched}" if switched else ""
        raise NotExpressedError(f"no hardware profile for {device}{why}")
    return name


def on_fabric(name: str, inter: str) -> str:
    """The profile of a device behind the fabric that a text names, where there is one of it."""
    words = re.findall(r"[a-z]+", inter.lower())
    named = (f"{name}-{word}" for word in words)
    return next((known for known in named if known in bundled_names(FOLDER)), name)


def _hardware(record: Record, assumed: list[str]) -> Hardware:
    name = on_fabric(profile_of(record.device), record.inter or "")
    count, per_node = record.devices, record.per_node
    rate = node_gigabits(record.inter or "", per_node or 1)
    if rate is None and per_node and count > per_node:
        assumed.append("links between nodes as in the profile")
    return _machine(name, count, per_node, rate)


@lru_cache(maxsize=1024)
def _machine(name: str, count: int, per_node: int | None, gigabits: float | None) -> Hardware:
    """A profile's machine of a size; `gigabits` a second leave a node in all.

    What a source calls a node is what the profile calls so, a node or slice, of any size; or else
    a whole unit of some level: a rack, whose nodes the profile tells apart.
    """
    whole = load_hardware(name)
    inside, levels = levels_inside(whole.levels), whole.levels
    unknown = len(levels) > inside + 1 and per_node not in whole.spans
    if per_node is None or inside == len(levels) or count < per_node or unknown:
        return load_hardware(f"{name}:{count}", _partial_racks(whole, count))
    if count % per_node:
        raise NotExpressedError(f"{count} devices do not fill nodes of {per_node}")
    racks = [i for i in range(inside + 1, len(levels)) if whole.spans[i] == per_node]
    joined, size = (racks[0], count) if racks else (inside, f"{count // per_node}x{per_node}")
    overrides = {} if racks else _partial_racks(whole, count)
    if gigabits is not None:
        link = gigabits / 8 * levels[joined].shared_by / per_node
        overrides[f"levels.{levels[joined].name}.bandwidth"] = f"{link}GB/s"
    return load_hardware(f"{name}:{size}", overrides)


def _partial_racks(whole: Hardware, count: int) -> dict[str, str]:
    """Smaller racks, all alike, where full ones do not make the number: 256 are 4 of 64, not of 72.

    Sources give the number of devices alone, and a job takes the same share of each rack.
    """
    overrides, spans = {}, whole.spans
    for i in range(levels_inside(whole.levels), len(whole.levels) - 1):
        nodes, rest = divmod(count, spans[i])
        if count > spans[i + 1] and count % spans[i + 1] and not rest:
            filled = max(n for n in range(1, whole.levels[i].size + 1) if nodes % n == 0)
            overrides[f"levels.{whole.levels[i].name}.size"] = str(filled)
    return overrides


def node_gigabits(text: str, per_node: int) -> float | None:
    """Gigabits a second that leave a node, one direction, as a text says; None if it does not.

    Understood: `N Gb/s per node`, `N Gb/s per GPU`, `K x … N Gb/s per node`, `N Gb/s xK per node`.
    """
    match = re.search(r"(\d+(?:\.\d+)?) ?Gb/s", text)
    if not match:
        return None
    rate = float(match[1])
    before = re.search(r"(\d+) ?x ", text[: match.start()])
    after = re.match(r" ?x ?(\d+)", text[match.end() :])
    several = before or after
    if several:
        return rate * int(several[1])
    single = re.search(r"per (GPU|NPU|device|rank)", text[match.end() :], re.IGNORECASE)
    return rate * per_node if single else rate


# --- software ---------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _stack(name: str) -> Stack:
    return load_stack(name)


def recorded_stack(record: Record) -> str:
    """The bundled stack whose signs a record bears, else the generic one.

    Of several the one with most signs, then the one named first, then the longest signs.
    """
    texts = {
        "source": record.source,
        "notes": "; ".join(filter(None, (record.notes, f"kernel: {record.kernel}"))),
        "recompute": record.recompute or "",
        "sharding": f"zero {_zero(record)}",
    }
    best, most = GENERIC, (0, 0, 0)
    for name, signs in recorded_stacks().items():
        found = [re.search(pattern, texts[part], re.I) for part, pattern in signs.items()]
        first = min((match.start() for match in found if match), default=0)
        rank = len(found), -first, sum(map(len, signs.values()))
        if all(found) and (best == GENERIC or rank > most):
            best, most = name, rank
    return best


def _workload(record: Record, batch: int, stack: Stack, assumed: list[str]) -> Workload:
    if any(flag.startswith("lora") for flag in record.flags):
        raise NotExpressedError("the rank of the adapters is not published")
    usual = str(stack.defaults.get("precision", "bf16_mixed"))
    if record.precision is None:
        assumed.append(f"precision {usual}")
    problems: list[Problem] = []
    precision = precision_document(_precision(record.precision or "bf16", usual), problems)
    if problems:
        raise InputError(problems)
    document = {"global_batch_size": batch, "seq_len": record.seq_len, "precision": precision}
    return parse_workload(document, record.id)


def _precision(word: str, usual: str) -> str:
    """The bundle of a published compute dtype, with what the stack keeps otherwise."""
    _, comma, changes = usual.partition(",")
    if word.partition(",")[0] in PRECISIONS:
        return word
    if word.startswith("bf16"):
        return usual
    if word.startswith("fp16"):
        return "fp16_mixed" + comma + changes.replace("bf16", "fp16")
    if word.startswith(("fp8", "float8")):
        return "fp8_tensor" + comma + changes
    if word.startswith("fp32"):
        return "fp32"
    raise NotExpressedError(f"precision {word}")


# --- layout -----------------------------------------------------------------------------------


def _pins(record: Record, config: DecoderConfig, stack: Stack, assumed: list[str]) -> list[str]:
    """The pins that a record states."""
    parallel = record.parallel
    if record.micro_batch is None:
        raise NotExpressedError("the micro-batch is not published")
    if parallel.get("tp") is None or parallel.get("pp") is None:
        raise NotExpressedError("the layout is not published")
    if (parallel.get("ep") or 1) > 1:
        raise NotExpressedError("mixture of experts")
    pins = {key: parallel.get(key) or 1 for key in ("tp", "pp", "cp")}
    pins["micro_batch"] = record.micro_batch
    if "batch_of_device" in stack.habits:
        pins["micro_batch"] *= prod(pins[key] for key in ("tp", "pp", "cp"))
    if parallel.get("sp") is not None and pins["tp"] > 1:
        pins["sp"] = bool(parallel["sp"])
    zero = _zero(record)
    if zero is not None:
        pins["zero"] = zero
    texts = [f"{key}={value}" for key, value in pins.items()]
    texts += _schedule(record, assumed)
    texts += _recompute(record.recompute, stack, assumed)
    texts += _layers(record, config, int(pins["pp"]), assumed)
    return texts


def _zero(record: Record) -> int | None:
    return 3 if record.parallel.get("fsdp") else record.parallel.get("zero_stage")


def _schedule(record: Record, assumed: list[str]) -> list[str]:
    word = (record.schedule or "").lower().replace("-", "_")
    word = "interleaved" if word.startswith("interleaved") else word
    chunks, stages = _chunks(record), record.parallel.get("pp") or 1
    if chunks > 1 and not record.parallel.get("vpp"):
        assumed.append(f"{chunks} chunks a stage")
    if word in NO_SCHEDULE:
        if not word and stages > 1:
            assumed.append("schedule 1f1b" if chunks == 1 else "schedule interleaved")
        return [f"vpp={chunks}"] if chunks > 1 else []
    parse, _ = PARSERS["schedule"]
    try:
        parse(word)
    except ValueError:
        raise NotExpressedError(f"schedule {record.schedule}") from None
    return [f"schedule={word}", *([f"vpp={chunks}"] if chunks > 1 else [])]


def _chunks(record: Record) -> int:
    """Chunks of a stage."""
    interleaved = (record.schedule or "").lower().startswith("interleaved")
    fewest = FEWEST_CHUNKS if interleaved and (record.parallel.get("pp") or 1) > 1 else 1
    return int(record.parallel.get("vpp") or fewest)


def _recompute(text: str | None, stack: Stack, assumed: list[str]) -> list[str]:
    if text is None:
        assumed.append(f"recompute {stack.defaults.get('recompute', 'none')}")
        return []
    word = text.split()[0].lower()
    if "offload" in text.lower():
        # What is not kept on the host is computed again, and that is most of a layer.
        assumed.append(f"recompute full, for {text}")
        word = "full"
    parse, _ = PARSERS["recompute"]
    try:
        parse(word)
    except ValueError:
        raise NotExpressedError(f"recompute {text}") from None
    return [f"recompute={word}"]


def _layers(record: Record, config: DecoderConfig, stages: int, assumed: list[str]) -> list[str]:
    """Stages whose ends, which hold embedding and head, have a layer less than the others.

    A record says so, or its layers fill the stages in no other even way: embedding and head are
    counted as a layer each (Megatron's `account-for-embedding-in-pipeline-split` and its like).
    """
    said = "first and last stage hold one layer less" in record.notes
    stages = stages * _chunks(record) if stages > 1 else 1
    each, rest = divmod(config.layers + 2, stages)
    if stages < 2 or rest or not (said or config.layers % stages):
        return []
    if not said:
        assumed.append("a layer less in the first and the last stage")
    return [f"layers_per_stage={'+'.join(map(str, (each - 1, *(each,) * (stages - 2), each - 1)))}"]


@lru_cache(maxsize=256)
def _graph(config: DecoderConfig, precision: Precision, seq_len: int) -> Graph:
    return step_graph(config, Workload("train", 1, seq_len, precision, Optimizer()))
