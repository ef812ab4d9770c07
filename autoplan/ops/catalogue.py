"""The catalogue: every operator family by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoplan.ops import attention, matrix, norm, pointwise, token, update
from autoplan.ops.family import Family

EAGER: Mapping[str, tuple[float, float]] = {
    "rotary": (14, 7.0), "rms_norm": (7, 3.5), "rms_norm_dx": (9, 5.0), "rms_norm_dw": (4, 3.0),
    "layer_norm": (9, 4.7), "layer_norm_dx": (11, 6.3), "layer_norm_dw": (5, 3.9),
    "gated": (2, 1.7), "gated_grad": (4, 2.2), "dropout": (31, 20.0), "embedding": (6, 1.05),
    "embedding_grad": (8, 2.7), "xent_stats": (9, 2.0), "xent_loss": (5, 2.0),
    "xent_grad": (14, 4.0), "square_sum": (3, 1.0), "clip_factor": (5, 1.0), "adamw": (9, 2.0),
    "lion": (6, 1.6), "sgd": (5, 1.4), "muon_momentum": (5, 1.4), "orthogonalise": (18, 3.0),
    "muon": (3, 2.5), "adafactor_means": (9, 3.0), "adafactor_sums": (20, 4.0),
    "adafactor": (21, 5.0), "attention": (8, 1.0), "attention_grad": (10, 1.0),
}  # fmt: skip
"""Family -> (kernels, passes) of eager operators; others launch one that moves its operands once.
Measured: operators that `runtime.kernels` dispatches, views apart, and the bytes of their operands
and results over those of the instruction (torch 2.13, fp32). Of AdamW, Lion, SGD and Muon's
momentum, whose blocks stay in a cache, and of the norm, which reads once: time over that of one
pass through memory (one core, 8 Mi elements; it scatters by a fifth)."""

FAMILIES: dict[str, Family] = {
    family.name: replace(family, eager=EAGER.get(family.name, family.eager))
    for module in (matrix, attention, norm, pointwise, token, update)
    for family in module.FAMILIES
}
