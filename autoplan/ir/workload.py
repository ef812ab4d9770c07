"""What is trained: batch, sequence, precision, optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int64": 8}


@dataclass(frozen=True, slots=True)
class Precision:
    """A bundle of six dtypes.

    Attributes:
        name: `fp64`, `fp32`, `bf16_mixed`, ...
        compute, parameter, master, gradient, reduce, optimizer: dtype names; `master` equal to
            `parameter` means that there is no separate master copy.
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
        return str(getattr(self, role))


PRECISIONS = {
    "fp64": Precision("fp64", *("fp64",) * 6),
    "fp32": Precision("fp32", *("fp32",) * 6),
    "bf16_mixed": Precision("bf16_mixed", "bf16", "bf16", "fp32", "fp32", "fp32", "fp32"),
    "bf16_pure": Precision("bf16_pure", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16"),
    "fp16_mixed": Precision("fp16_mixed", "fp16", "fp16", "fp32", "fp32", "fp32", "fp32"),
}

OPTIMIZER_STATES = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum",)}
"""Per-element states of each optimizer, by name of the state."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Optimizer and its hyper-parameters (`lr`, `beta1`, `beta2`, `eps`, `weight_decay`,
    `momentum`); `clip` is the limit of the global gradient norm, 0 for none."""

    name: str = "adamw"
    hyper: Mapping[str, float] = field(default_factory=dict)
    clip: float = 1.0

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the per-element states."""
        return OPTIMIZER_STATES[self.name]


@dataclass(frozen=True, slots=True)
class Workload:
    """One training step.

    Attributes:
        kind: "train".
        global_batch_size: sequences per step over all devices.
        seq_len: positions per sequence.
        precision: the dtype bundle.
        optimizer: optimizer and clip.
        trainable: "full" or a regular expression that full parameter names must match.
        dropout: probability that replaces the model's own, or None to keep the model's.
        memory_headroom: bytes of every device kept free.
        seed: of initialisation and dropout.
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
