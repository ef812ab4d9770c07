"""Recorded runs, small ones of every published layout; facts of `nanotron`, `zb` and others."""

from __future__ import annotations

from dataclasses import replace

from autoplan.ir.record import Measured, Record, Shape

LLAMA = Shape(
    layers=8, hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=2816, gated=True, vocab=32000,
    tied=False,
)  # fmt: skip
GPT = replace(LLAMA, ffn=4096, gated=False, tied=True)


def record(**changed: object) -> Record:
    """A run of eight devices, with some fields changed."""
    plain = {
        "id": "here-1", "source": "somebody's cluster", "name": "tiny", "shape": LLAMA,
        "seq_len": 1024, "global_batch": 32, "micro_batch": 2, "device": "A100-80GB", "devices": 8,
        "per_node": 8, "parallel": {"tp": 2, "pp": 2, "dp": 2, "sp": True, "zero_stage": 1},
        "recompute": "none", "precision": "bf16", "schedule": "1f1b",
        "measured": Measured(step_time_s=1.0),
    }  # fmt: skip
    return Record(**{**plain, **changed})  # type: ignore[arg-type]


TPU_32B = Shape(
    layers=32, hidden=8192, heads=64, kv_heads=64, head_dim=128, ffn=28672, gated=True, vocab=32000,
    tied=False,
)  # fmt: skip


def maxtext(slices: int, tflops: float, **changed: object) -> Record:
    """MaxText's published run of 32B on so many slices of 256 TPU v5e: 4 sequences a chip."""
    return record(
        **{
            "id": f"maxtext-v5e-32b-{256 * slices}", "source": "MaxText TPU v5e results",
            "name": "MaxText-32B", "shape": TPU_32B, "seq_len": 2048, "global_batch": 1024 * slices,
            "micro_batch": 4, "device": "TPU v5e", "devices": 256 * slices, "per_node": 256,
            "inter": "DCN between slices", "recompute": "full", "schedule": "dp",
            "parallel": {"tp": 1, "pp": 1, "cp": 1, "dp": 256 * slices, "zero_stage": 3},
            "measured": Measured(tflops_per_device=tflops),
            "flops_convention": "MaxText TFLOP/s per chip, no recompute",
            **changed,
        }
    )  # fmt: skip
