"""The machine and the software stack: nouns filled by `files` from profile files.

Units: bytes, seconds, FLOP/s, bytes per second. Each number's evidence is kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from autoplan.ir.layout import Axis


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device (a rank).

    Attributes:
        kind: `rtx4090`, `a100-80g`, ...
        memory: bytes on the device.
        peak_flops: dense peak in FLOP/s per compute dtype (`bf16`, `fp32`, ...).
        peak_flops_for_mfu: the peak that MFU is counted against, FLOP/s.
        memory_bandwidth: bytes/s of the sheet.
        gemm_efficiency: share of the peak that a large matrix product reaches.
        gemm_half_flops: FLOP of a product that reaches half of that share (small products are
            slower).
        attention_efficiency: share of the peak that the attention kernel reaches, counting only
            the causal half.
        memory_efficiency: share of `memory_bandwidth` that streaming operators reach.
        launch: seconds per launched operator.
        power: watts under load, or None where nobody knows.
        price_per_hour: of one device, in whatever currency; or None.
    """

    kind: str
    memory: int
    peak_flops: Mapping[str, float]
    peak_flops_for_mfu: float
    memory_bandwidth: float
    gemm_efficiency: float
    gemm_half_flops: float
    attention_efficiency: float
    memory_efficiency: float
    launch: float
    power: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the interconnect: how `size` units of the level below talk to each other.

    Attributes:
        name: what is counted (`gpu`, `socket`, `node`).
        size: units joined by this level.
        bandwidth: bytes/s, one direction, of one link (or of the NICs that `shared_by` share).
        latency: seconds per message step.
        shared_by: devices that share one such link when all talk at once.
        duplex: whether both directions run at full bandwidth together.
        peer_to_peer: whether devices copy directly; otherwise through host memory.
        efficiency: share of `bandwidth` that a large ring collective reaches.
        mesh: whether every pair of units has a link of its own, of which `bandwidth` is one's:
            who talks to n units at once has n of them.
        torus: axes of the torus that the units form, whose `bandwidth` is that of one axis, both
            ways round; 0: none.
        start: seconds that a pass of a collective takes once, beside its steps and bytes: launch,
            and the time until all channels run at the full rate.
        in_switch: share of the rate (bandwidth · efficiency) at which the switch adds up what
            devices send it, each its operand once; 0: it does not.
        short_share: share of the rate that messages reach which a library sends by a protocol of
            little latency; 0: it has none, and the next two do not count.
        short_start, short_latency: `start` and `latency` of that protocol.
    """

    name: str
    size: int
    bandwidth: float
    latency: float
    shared_by: int = 1
    duplex: bool = True
    peer_to_peer: bool = True
    efficiency: float = 1.0
    mesh: bool = False
    torus: int = 0
    start: float = 0.0
    in_switch: float = 0.0
    short_share: float = 0.0
    short_start: float = 0.0
    short_latency: float = 0.0

    def timed(self, latency: float) -> Level:
        """The level with another latency, and the other times of messages in proportion."""
        factor = latency / self.latency if self.latency else 1.0
        return replace(
            self,
            latency=latency,
            start=self.start * factor,
            short_start=self.short_start * factor,
            short_latency=self.short_latency * factor,
        )


@dataclass(frozen=True, slots=True)
class Host:
    """The host of one node, or all hosts of a slice.

    Attributes:
        memory: bytes per node.
        cores: CPU cores per node.
        device_bandwidth: bytes/s between host and one device.
        ranks_share_cores: devices *are* host cores (a CPU machine), so concurrent ranks share them
            and collectives do not overlap compute.
        contention: factor by which a core computes slower while all cores of its host do than
            alone: they share clock, caches and memory. Devices that are not cores share none.
        start_ramp: seconds of computing after which a collective takes half of its level's `start`;
            0: it always takes all of it.
    """

    memory: int
    cores: int
    device_bandwidth: float
    ranks_share_cores: bool = False
    contention: float = 1.0
    start_ramp: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a number comes from: datasheet, measured, fitted, user or assumed."""

    kind: str
    source: str = ""
    spread: float | None = None


@dataclass(frozen=True)
class Hardware:
    """A machine.

    Attributes:
        name: profile name.
        device: the device kind (one group in this version).
        levels: innermost first.
        host: host of one node.
        evidence: path of a number (`levels.node.bandwidth`) -> where it comes from.
        devices_per_node: devices of a node, which share a host, or of a slice.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    host: Host
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    devices_per_node: int = 1

    @cached_property
    def count(self) -> int:
        """Number of devices."""
        return prod(level.size for level in self.levels)

    @cached_property
    def spans(self) -> tuple[int, ...]:
        """Devices under one unit of each level and of the whole: (1, size0, size0*size1, ...)."""
        spans = [1]
        for level in self.levels:
            spans.append(spans[-1] * level.size)
        return tuple(spans)


def name_axes(hardware: Hardware, grid: Sequence[tuple[int, int]]) -> tuple[Axis, ...]:
    """Mesh axes for (size, stride) pairs, named after the hardware levels that they run over.

    An axis over two levels is named `node+gpu`; a second axis over the same levels gets a suffix.
    """
    spans = hardware.spans
    names: list[str] = []
    for size, stride in grid:
        levels = [
            level.name
            for i, level in reversed(list(enumerate(hardware.levels)))
            if spans[i] < stride * size and spans[i + 1] > stride
        ]
        name = "+".join(levels) or hardware.levels[-1].name
        taken = sum(1 for other in names if other.split(".")[0] == name)
        names.append(f"{name}.{taken + 1}" if taken else name)
    return tuple(Axis(name, size, stride) for name, (size, stride) in zip(names, grid, strict=True))


@dataclass(frozen=True, slots=True)
class StackRule:
    """A rule that a stack puts on one pin: `divides seq_len/2 if cp>1`.

    Attributes:
        key: the pin.
        relation: of `RELATIONS`.
        quantity: of `QUANTITIES`.
        over: what the quantity is divided by first.
        condition: (key, `=` or `>`, value) without which the rule says nothing, or None.
        unless: a pin that lifts the rule where it is given, or "".
    """

    key: str
    relation: str
    quantity: str
    over: int = 1
    condition: tuple[str, str, str] | None = None
    unless: str = ""

    def __str__(self) -> str:
        over = f"/{self.over}" if self.over != 1 else ""
        condition = f" if {''.join(self.condition)}" if self.condition else ""
        unless = f" unless {self.unless}" if self.unless else ""
        return f"{self.relation} {self.quantity}{over}{condition}{unless}"


RELATIONS = ("divides", "at most", "divides or repeats")
"""n divides q; n <= q; n divides q or is a multiple of it."""
QUANTITIES = (
    "heads", "kv_heads", "layers", "hidden", "ffn", "vocab", "seq_len", "micro_batches",
)  # fmt: skip
"""What rules speak of: dims of the model, positions, and micro-batches a step."""


HABITS: Mapping[str, str] = {
    "eager_kernels": "an operator runs as the kernels of its parts, none of them fused",
    "gradient_buffers": "gradients lie in buffers that exist throughout the step",
    "late_accumulation": "a micro-batch's gradients are added up when its backward pass has ended",
    "late_exchange": "gradients of split states are exchanged after backward, not beside it",
    "balance_by_parameters": "a stage ends with the block that exceeds its share of weights",
    "batch_of_device": "a micro-batch is published as sequences over devices, not over replicas",
    "ends_count": "stages are even in layers where embedding and head stand for one each",
    "fused_loss": "the loss widens logits a row at a time, and keeps no copy of them in fp32",
    "gathered_logits": "the loss is computed on whole logits, not on vocabulary parts",
    "lone_exchange": "gradients are exchanged while nothing is computed",
    "recompute_scores": "plain attention computes its scores again in the backward pass",
    "remainder_last": "layers left over by an even split go to the last stages, not the first",
    "split_in_node": "the state of weights is split inside a node and copied between nodes",
    "tensorwise_gather": "split parameters are gathered tensor by tensor, not a layer together",
    "selective_alternate": "selective recompute is that of every second layer of a stage",
    "pad_vocab_64": "the vocabulary is padded to a multiple of 64 x tp",
    "pad_vocab_128": "the vocabulary is padded to a multiple of 128 x tp",
}
"""Habit -> what it decides."""


NEUTRAL: Mapping[str, float] = {
    "layer_overlap": 0.0, "loss_factor": 1.0, "score_traffic": 0.0, "crossed_floor_s": 0.0,
    "network_efficiency": 1.0, "network_decline": 0.0,
    "bucket_bytes": 0.0, "update_factor": 1.0,
    "saved_factor": 1.0, "logits_kept": 0.0, "scores_kept": 0.0, "gathered_kept": 0.0,
}  # fmt: skip
"""Constants that change nothing, of a stack that does not state them."""


@dataclass(frozen=True)
class Stack:
    """The training software whose behaviour is priced.

    Attributes:
        name: `autoplan`, `megatron`, ...
        defaults: pins that the stack takes when the user gives none.
        restricts: pin key -> values that the stack can express.
        rules: what else a pin must obey.
        habits: rules that produce decisions; see `HABITS`.
        constants: numbers by name (bytes, factors, seconds), completed by `NEUTRAL`; see
            `hardware_profiles/stacks/`.
        evidence: constant -> where it comes from.
        unexplained: factor within which 80 % of runs lie when all constants are right.
    """

    name: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    restricts: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    rules: tuple[StackRule, ...] = ()
    habits: tuple[str, ...] = ()
    constants: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    unexplained: float = 1.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", {**NEUTRAL, **self.constants})
