"""A Record: one training run that somebody measured, as it was published or logged.

Whatever a source does not say is None, never zero and never guessed; turning a record into a plan,
and what has to be assumed for it, is the business of those who compare records with predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OUT_OF_MEMORY = "oom"
"""The flag of a run that ended out of memory."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a source says of a model; None where it is silent.

    Attributes:
        layers, hidden, heads, kv_heads, head_dim, ffn, vocab: as in `ir.model.DecoderConfig`.
        gated: whether the feed-forward has a gate.
        tied: whether the head uses the embedding's weight.
        experts: routed experts of a layer, or None in a dense model.
        top_k: routed experts that a token visits.
        shared_experts: experts that every token visits.
        moe_ffn: width of one expert.
        dense_layers: leading layers without experts.
    """

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    gated: bool | None = None
    vocab: int | None = None
    tied: bool | None = None
    experts: int | None = None
    top_k: int | None = None
    shared_experts: int | None = None
    moe_ffn: int | None = None
    dense_layers: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured; None where it was not.

    Attributes:
        step_time_s: seconds of an optimizer step.
        tokens_per_s_per_device: tokens per second, of one device.
        tflops_per_device: 1e12 FLOP per second, of one device, as the source counts FLOP.
        mfu: of the device's peak, as a fraction.
        peak_mem_gib: largest memory of a device, in GiB.
    """

    step_time_s: float | None = None
    tokens_per_s_per_device: float | None = None
    tflops_per_device: float | None = None
    mfu: float | None = None
    peak_mem_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A run.

    Attributes:
        id: unique in its file.
        source: who measured it; records are judged by source.
        name: the model, or "".
        shape: of the model.
        seq_len: positions of a sequence.
        global_batch: sequences of a step over all devices.
        micro_batch: sequences of a micro-batch of one replica.
        device: kind, as published, or None.
        devices: how many, as the source counts them.
        per_node: devices of a node.
        intra, inter: links inside and between nodes, as published.
        parallel: configuration key -> value, None where not published; a key that no source of
            this kind has is absent.
        recompute, precision, schedule: as published.
        kernel: attention kernel.
        stack: training software.
        measured: what was measured.
        derived: names of measured values that were computed from another one.
        flags: what sets the run apart; `oom`: it ended out of memory.
        flops_convention: how the source counts FLOP.
        notes: anything else.
    """

    id: str
    source: str
    name: str
    shape: Shape
    seq_len: int
    devices: int
    global_batch: int | None = None
    micro_batch: int | None = None
    device: str | None = None
    per_node: int | None = None
    intra: str | None = None
    inter: str | None = None
    parallel: Mapping[str, int | bool | None] = field(default_factory=dict)
    recompute: str | None = None
    precision: str | None = None
    schedule: str | None = None
    kernel: str | None = None
    stack: str | None = None
    measured: Measured = Measured()
    derived: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    flops_convention: str | None = None
    notes: str = ""

    @property
    def oom(self) -> bool:
        """Whether the run ended out of memory."""
        return OUT_OF_MEMORY in self.flags

    @property
    def step_time(self) -> float | None:
        """Seconds of a step, from what was measured rather than derived, or None.

        Tokens per second and device give it through the tokens of the batch.
        """
        seconds, rate = self.measured.step_time_s, self.measured.tokens_per_s_per_device
        if seconds is not None and "step_time_s" not in self.derived:
            return seconds
        if rate and self.global_batch and "tokens_per_s_per_device" not in self.derived:
            return self.global_batch * self.seq_len / (rate * self.devices)
        return seconds

    def __str__(self) -> str:
        degrees = " ".join(f"{key}={value}" for key, value in self.parallel.items() if value)
        kind = self.device or "devices of an unknown kind"
        return f"{self.id}: {self.name or 'a model'} on {self.devices} x {kind}, {degrees}"
