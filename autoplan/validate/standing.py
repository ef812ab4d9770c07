"""Which recorded runs are judged together, and which apart?

Decided by what a record says and measured, never by what is predicted for it. Records are judged by
source; within a source, those of equal model, machine and batch form a group, whose members are
alternatives: a planner would choose among them.

A record that counts has no remark. A remark sets a record apart: its configuration is not wholly
known (`UNUSABLE`), or it is known to have measured something else than its configuration, or what
it measured has nothing to do with the others (`RULES`). Of the last `doubt_about` has no doubt:
they may be fitted to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.ir.record import Record

UNUSABLE = (
    "partly_remembered", "relative_only", "memory_only", "layout_product_mismatch",
    "layout_unknown", "incomplete_config", "modified_architecture", "unbalanced_routing",
    "architecture_", "flops_check_", "_finetune",
)  # fmt: skip
"""Parts of flags that set a record apart."""
UNWEIGHTED = {
    "vtrain-single": "exactly affine in micro-batches and layers: composed of timings of parts",
}
"""Source -> why it has no weight among all sources."""
FIRST_STAGE = {
    "nanotron": "peaks follow the first stage, and contradict the largest: rank 0 writes the log",
    "infini": "the log line of rank 0",
}
"""Source -> why its memory is that of the first stage; elsewhere it is the fullest device's."""
ALLOCATED, RESERVED = ("allocator", "framework"), ("framework",)
NOT_PRINTED: Mapping[str, tuple[str, ...]] = {
    "alpa": ALLOCATED, "infini": ALLOCATED, "paddlenlp": ALLOCATED,
    "torchtitan": RESERVED, "nanotron": RESERVED,
}  # fmt: skip
"""Source -> lines of the memory account that its number leaves out.

Source: Alpa prints the most that was allocated, as does the Megatron-LM log of infini; PaddleNLP
says the same, and that devices use 2-3 GB more; torchtitan prints the most that was reserved;
nanotron's counter is PyTorch's, reserved or allocated. No such counter knows of the context and of
communicators.
"""
FIRST_STEP = {"infini": "printed after one iteration, whose peak is before Adam makes its moments"}
"""Source -> why its number is without the states that the optimizer makes in its first step."""
STALL_SLOT_S, STALL_MFU = 0.45, 0.2
"""[empirical] A pipeline slot that takes this long at no MFU, and the MFU from which it may."""
NODE = 8
"""Devices of a node of the source `nanotron`."""
SHORT = 40
"""Characters of a source's name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Runs that are set apart for what they measured.

    Attributes:
        remark: short name.
        source: whose runs; "" for all.
        scored: whether those runs are scored apart in full, and once with the source's others;
            without, their errors are shown among the flagged.
        why: for people.
        holds: of which.
        sound: whether they measured what they say, on what others did not.
    """

    remark: str
    source: str
    scored: bool
    why: str
    holds: Callable[[Record], bool]
    sound: bool = False


def _over_nodes(record: Record) -> bool:
    return (record.parallel.get("tp") or 1) > NODE


def _stalled(record: Record) -> bool:
    """Whether a pipeline slot took very long while hardly computing."""
    parallel, measured = record.parallel, record.measured
    stages, replicas = parallel.get("pp") or 1, parallel.get("dp") or 1
    seconds, batch, micro = record.step_time, record.global_batch, record.micro_batch
    if not (seconds and batch and micro and measured.mfu):
        return False
    slots = batch / (micro * replicas) + stages - 1
    return seconds / slots * (1 - measured.mfu / STALL_MFU) > STALL_SLOT_S


def _tpu(record: Record) -> bool:
    return (record.device or "").startswith("TPU")


RULES = (
    Rule(
        "TPU", "", True, "chips that are no GPUs, with software of their own: no weight", _tpu,
        sound=True,
    ),
    Rule("tp > 8", "nanotron", True, "a tensor-parallel group that spans nodes", _over_nodes),
    Rule(
        "stalled", "nanotron", False,
        "0.45 s and more a slot, whatever the model: 19 s and 89 s for one layout", _stalled,
    ),
)  # fmt: skip
"""The first that holds gives the remark."""
IN_FULL = frozenset(rule.remark for rule in RULES if rule.scored)
"""Remarks on runs that are scored apart in full."""


def source_of(record: Record) -> str:
    """The source that a record is judged under, short.

    Of an id such as `name-17` or `name-part-17` all but the number, of another with dashes what
    stands before the first; else the beginning of what the record calls its source.
    """
    numbered = re.fullmatch(r"([a-z0-9]+(?:-[a-z]+)?)-\d+", record.id)
    first, dash, _ = record.id.partition("-")
    if not dash or first.isdigit():
        return record.source[:SHORT].strip()
    return numbered[1] if numbered else first


def printed_peak(record: Record, stages: Sequence[Mapping[str, int]], states: Sequence[int]) -> int:
    """Bytes that a record's source would print.

    Args:
        record: of that source.
        stages: memory account of each.
        states: bytes of each that the optimizer makes in its first step.
    """
    source = source_of(record)
    left_out = NOT_PRINTED.get(source, ())
    peaks = [
        sum(n for line, n in lines.items() if line not in left_out) - made * (source in FIRST_STEP)
        for lines, made in zip(stages, states, strict=True)
    ]
    return peaks[0] if source in FIRST_STAGE else max(peaks)


def group_of(record: Record) -> Hashable:
    """What alternatives have in common."""
    return (
        source_of(record), record.name, record.seq_len, record.global_batch, record.device,
        record.devices, record.precision, record.kernel,
    )  # fmt: skip


def remark_on(record: Record) -> str:
    """Why a record is set apart, or "" where it counts."""
    for flag in record.flags:
        if any(part in flag for part in UNUSABLE):
            return flag.partition("_off_by_")[0]
    rule = rule_for(record)
    return rule.remark if rule else ""


def doubt_about(record: Record) -> str:
    """Why a record says nothing sure even of its own machine and software, or ""."""
    remark, rule = remark_on(record), rule_for(record)
    return "" if rule and rule.sound and remark == rule.remark else remark


def rule_for(record: Record) -> Rule | None:
    """The rule that sets a record apart, if one does."""
    source = source_of(record)
    held = (rule for rule in RULES if rule.source in ("", source) and rule.holds(record))
    return next(held, None)
