"""What is run: models whose step takes tenths of a second, and plans for them.

A case is a workload with pins. Cases come in strata, one for each kind of plan of a workload, so
that a sample has some of every kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

POSITIONS = 2048


def llama(hidden: int, layers: int, heads: tuple[int, int], ffn: int, vocab: int) -> dict[str, Any]:
    """A config of the Llama family; `heads` are query heads and key/value heads."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1], "intermediate_size": ffn, "vocab_size": vocab,
        "max_position_embeddings": POSITIONS, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False,
    }  # fmt: skip


def gpt2(hidden: int, layers: int, heads: int, vocab: int) -> dict[str, Any]:
    """A config of the GPT-2 family, without dropout."""
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": hidden,
        "n_layer": layers, "n_head": heads, "n_positions": POSITIONS, "n_ctx": POSITIONS,
        "vocab_size": vocab, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip


MODELS: Mapping[str, dict[str, Any]] = {
    "llama-wide": llama(512, 4, (8, 4), 1408, 8192),
    "llama-deep": llama(128, 12, (4, 4), 352, 2048),
    "llama-mid": llama(256, 6, (8, 4), 704, 4096),
    "gpt-mid": gpt2(384, 6, 8, 4096),
    "llama-slim": llama(128, 4, (4, 4), 352, 512),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A plan to measure.

    Attributes:
        model: a key of `MODELS`.
        batch, seq_len: sequences of a step, positions of a sequence.
        ranks: processes.
        pins: what fixes the plan, or "" for the one that the planner picks.
        precision: a bundle of dtypes.
    """

    model: str
    batch: int
    seq_len: int
    ranks: int
    pins: str
    precision: str = "fp32"

    @property
    def group(self) -> str:
        """What a planner chooses among: plans of one workload on as many ranks."""
        words = f"{self.model} {self.batch}x{self.seq_len} on {self.ranks}"
        return words if self.precision == "fp32" else f"{words} in {self.precision}"

    def __str__(self) -> str:
        return f"{self.group}: {self.pins or 'the pick'}"


Workload = tuple[str, int, int]
"""(model, batch, positions)."""

WORKLOADS: tuple[Workload, ...] = (
    ("llama-wide", 8, 64), ("llama-deep", 8, 128), ("llama-mid", 8, 128), ("gpt-mid", 8, 64),
)  # fmt: skip

MICRO_BATCHES = (1, 2, 4, 8)
CHOICES: Mapping[str, tuple[object, ...]] = {
    "micro_batch": MICRO_BATCHES, "recompute": ("none", "full"),
}  # fmt: skip
"""What plans of every kind choose from."""
KINDS: Mapping[int, tuple[str, ...]] = {
    1: tuple(f"dp=1,micro_batch={size}" for size in MICRO_BATCHES),
    2: (
        "dp=2,zero=0", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3",
        "tp=2,sp=true", "tp=2,sp=false", "tp=2,vocab=false", "tp2=2", "cp=2",
        "pp=2,schedule=1f1b", "pp=2,schedule=gpipe",
    ),
    4: (
        "dp=4,zero=0", "dp=4,zero=1", "dp=4,zero=3", "tp=4", "tp=2,tp2=2", "tp=2,dp=2", "pp=4",
        "pp=2,dp=2", "pp=2,tp=2", "cp=2,dp=2",
    ),
}  # fmt: skip
"""Ranks -> kinds of plans."""


def strata(ranks: int) -> Mapping[str, list[Case]]:
    """Kind of plan of a workload -> its cases; some may be illegal, as the planner will say."""
    return {
        f"{workload} {kind}": list(_cases(workload, ranks, kind, "fp32"))
        for workload, kind in product(WORKLOADS, KINDS[ranks])
    }


def _cases(workload: Workload, ranks: int, kind: str, precision: str) -> Iterator[Case]:
    left = {key: values for key, values in CHOICES.items() if f"{key}=" not in kind}
    for values in product(*left.values()):
        pins = [kind, *(f"{key}={value}" for key, value in zip(left, values, strict=True))]
        yield Case(*workload, ranks, ",".join(pins), precision)


DEVICE_MODELS: Mapping[str, dict[str, Any]] = {
    "gpt-125m": gpt2(768, 12, 12, 50304),
    "llama-350m": llama(1024, 24, (16, 8), 2816, 32000),
    "llama-700m": llama(1536, 22, (16, 8), 4096, 32000),
}
"""For one accelerator: a step takes tenths of a second, initial parameters are made in seconds."""
DEVICE_WORKLOADS: Mapping[str, tuple[Workload, ...]] = {
    "cuda": (("gpt-125m", 16, 1024), ("llama-350m", 8, 2048), ("llama-700m", 8, 2048)),
    "cpu": (("llama-deep", 4, 64),),
}
DEVICE_PRECISIONS = ("bf16_mixed", "bf16_pure", "fp32")


def device_strata(device: str) -> Mapping[str, list[Case]]:
    """The same for a single device, over precisions as well."""
    return {
        f"{workload} {precision}": list(_cases(workload, 1, "dp=1", precision))
        for workload, precision in product(DEVICE_WORKLOADS[device], DEVICE_PRECISIONS)
    }


NAMESPACE_WORKLOAD = ("llama-slim", 8, 128)
"""Narrow, so that there is little to compute for what is to communicate."""
NAMESPACE_KINDS = (
    "dp=4,zero=0", "dp=4,zero=1", "dp=4,zero=3",
    "dp=2,tp=2,order=tp-dp", "dp=2,tp=2,order=dp-tp", "tp=4", "tp=2,tp2=2",
    "pp=4,micro_batch=1", "pp=4,micro_batch=2",
    "pp=2,dp=2,micro_batch=1,order=dp-pp", "pp=2,dp=2,micro_batch=2,order=dp-pp",
    "pp=2,dp=2,micro_batch=2,order=pp-dp",
    "pp=2,tp=2,micro_batch=2,order=tp-pp", "pp=2,tp=2,micro_batch=4,order=tp-pp",
    "pp=2,tp=2,micro_batch=2,order=pp-tp", "cp=2,dp=2,order=cp-dp",
)  # fmt: skip
"""Plans for two nodes of two ranks; the innermost degree of `order` stays inside a node."""


def namespace_cases() -> list[Case]:
    """Cases on two nodes of two ranks, the planner's pick first."""
    return [Case(*NAMESPACE_WORKLOAD, 4, pins) for pins in ("", *NAMESPACE_KINDS)]
