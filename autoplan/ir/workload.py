"""What is trained: batch, sequence, precision, optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplan.ir.lengths import Lengths
from autoplan.ir.optimizer import OPTIMIZERS, OptimizerRule

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int64": 8}
DTYPE_ROLES = ("compute", "parameter", "master", "gradient", "reduce", "optimizer")


@dataclass(frozen=True, slots=True)
class Precision:
    """A bundle of six dtypes.

    Attributes:
        name: `fp64`, `fp32`, `bf16_mixed`, ...
        compute: of activations and of parameters where operators read them. `fp8`: only the matrix
            products of hidden weights run in it, all else is bf16; the bytes of scale factors and
            the passes that quantise are not counted.
        parameter: of parameters as stored; cast to `compute` before they are gathered or read.
        master: of the copy that the optimizer updates; `parameter` for none.
        gradient: of accumulated parameter gradients.
        reduce: of parameter gradients on their way to another layout.
        optimizer: of optimizer states.
    """

    name: str
    compute: str
    parameter: str
    master: str
    gradient: str
    reduce: str
    optimizer: str

    def of(self, role: str) -> str:
        """The dtype of a tensor whose `Tensor.dtype` is `role`."""
        if role == "index":
            return "int64"
        if role == "statistic":
            return "fp64" if self.compute == "fp64" else "fp32"
        if role == "compute" and self.compute == "fp8":
            return "bf16"
        return str(getattr(self, role))

    def read(self, role: str) -> str:
        """The same as operators of the model read it: parameters have been cast."""
        return self.of("compute" if role == "parameter" else role)

    @property
    def scales_loss(self) -> bool:
        """Whether gradients would fall below the least fp16 number without a loss scale."""
        return self.compute == "fp16"

    @property
    def executed(self) -> bool:
        """Whether the runtime can compute in it; if not, it can only be priced."""
        return "fp8" not in (getattr(self, role) for role in DTYPE_ROLES)

    @property
    def coarsest(self) -> str:
        """What a run can be compared in: fp64, fp32, or 16-bit if any tensor but states is."""
        dtypes = {getattr(self, role) for role in DTYPE_ROLES if role != "optimizer"}
        narrow = any(DTYPE_BYTES[dtype] < DTYPE_BYTES["fp32"] for dtype in dtypes)
        return "16-bit" if narrow else min(dtypes, key=DTYPE_BYTES.__getitem__)

    def __str__(self) -> str:
        """The bundle and what differs from it: `bf16_mixed,gradient=bf16`."""
        bundle = PRECISIONS.get(self.name)
        pairs = ((role, str(getattr(self, role))) for role in DTYPE_ROLES)
        changed = [f"{r}={d}" for r, d in pairs if bundle and d != getattr(bundle, r)]
        return ",".join([self.name, *changed])


_FP8 = ("fp8", "bf16", "fp32", "fp32", "fp32")

PRECISIONS = {
    "fp64": Precision("fp64", *("fp64",) * 6),
    "fp32": Precision("fp32", *("fp32",) * 6),
    "bf16_mixed": Precision("bf16_mixed", "bf16", "bf16", "fp32", "fp32", "fp32", "fp32"),
    "bf16_pure": Precision("bf16_pure", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16"),
    "fp16_mixed": Precision("fp16_mixed", "fp16", "fp16", "fp32", "fp32", "fp32", "fp32"),
    # One scale a tensor (Transformer Engine); one a tile or block, states in bf16 (DeepSeek-V3
    # technical report, section 3.3); one per 32 elements (OCP MX). Only the bytes differ here.
    "fp8_tensor": Precision("fp8_tensor", *_FP8, "fp32"),
    "fp8_tile": Precision("fp8_tile", *_FP8, "bf16"),
    "mxfp8": Precision("mxfp8", *_FP8, "fp32"),
}


@dataclass(frozen=True, slots=True)
class LossScale:
    """The factor on the loss that keeps fp16 gradients representable.

    It halves after a step whose gradients are not finite, and doubles after `growth_interval` good
    steps in a row.

    Source of defaults: torch.amp.GradScaler.
    """

    initial: float = 65536.0
    growth_interval: int = 2000


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Optimizer and its hyper-parameters.

    Attributes:
        name: a key of `OPTIMIZERS`.
        hyper: those that differ from the optimizer's defaults.
        clip: limit of the global gradient norm, 0 for none.
    """

    name: str = "adamw"
    hyper: Mapping[str, float] = field(default_factory=dict)
    clip: float = 1.0

    @property
    def rule(self) -> OptimizerRule:
        """Its declaration."""
        return OPTIMIZERS[self.name]

    @property
    def settings(self) -> Mapping[str, float]:
        """Every hyper-parameter."""
        return {**self.rule.hyper, **self.hyper}


@dataclass(frozen=True, slots=True)
class Workload:
    """One training step.

    Attributes:
        kind: "train".
        global_batch_size: sequences per step over all devices.
        seq_len: positions per sequence.
        precision: the dtype bundle.
        optimizer: optimizer and clip.
        trainable: "full", adapters (`ir.adapter`), or a regular expression that full parameter
            names must match.
        dropout: probability that replaces the model's own, or None to keep the model's.
        memory_headroom: bytes of every device kept free.
        seed: of initialisation and dropout.
        loss_scale: where the precision scales the loss.
        lengths: of documents, or None where each fills its sequence.
    """

    kind: str
    global_batch_size: int
    seq_len: int
    precision: Precision
    optimizer: Optimizer
    trainable: str = "full"
    dropout: float | None = None
    memory_headroom: int = 0
    seed: int = 0
    loss_scale: LossScale = LossScale()
    lengths: Lengths | None = None

    @property
    def tokens(self) -> int:
        """Tokens of a step; padding is none."""
        sequences, width = self.global_batch_size, self.seq_len
        return self.lengths.tokens(sequences, width) if self.lengths else sequences * width

    @property
    def visible(self) -> float | None:
        """Mean share of a packed sequence that a position's document takes; else None."""
        packed = self.lengths is not None and self.lengths.packed
        return self.lengths.visible(self.seq_len) if self.lengths and packed else None
