"""Shapes of published models that are not bundled, as `config.json` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autoplan.files.text import write_json


def _qwen2(hidden: int, layers: int, heads: tuple[int, int], ffn: int, **more: Any) -> Any:
    return {
        "model_type": "qwen2", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1],
        "intermediate_size": ffn, "vocab_size": 152064, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False, "hidden_act": "silu",
        "use_sliding_window": False, **more,
    }  # fmt: skip


def _llama(hidden: int, layers: int, heads: int, ffn: int, vocab: int) -> Any:
    return {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads, "intermediate_size": ffn,
        "vocab_size": vocab, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip


def _gpt2(hidden: int, layers: int, heads: int, vocab: int) -> Any:
    return {
        "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads,
        "vocab_size": vocab, "n_positions": 2048, "activation_function": "gelu_new",
        "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.0,
        "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    }  # fmt: skip


SHAPES = {
    "qwen-72b": _qwen2(8192, 80, (64, 64), 24576),
    "qwen2-72b": _qwen2(8192, 80, (64, 8), 29568),
    "qwen2.5-3b": _qwen2(2048, 36, (16, 2), 11008, vocab_size=151936, tie_word_embeddings=True),
    "qwen2.5-14b": _qwen2(5120, 48, (40, 8), 13824),
    "qwen1.5-32b": _qwen2(5120, 64, (40, 8), 27392),
    "wizardlm-33b": _llama(6656, 60, 52, 17920, 32001),
    "bigscience-181b": _gpt2(14336, 72, 64, 250880),
    "mpt-7b": _gpt2(4096, 32, 32, 50432),  # learned instead of linear positions
    "mpt-70b": _gpt2(8192, 80, 64, 50432),  # likewise
    "seven-layers": _llama(64, 7, 4, 128, 256),
    "ten-layers": _llama(64, 10, 4, 128, 256),
    "vocab-65535": _llama(64, 4, 4, 128, 65535),
}


def write_shapes(folder: Path) -> dict[str, str]:
    """Name -> path of its file."""
    for name, document in SHAPES.items():
        write_json(folder / f"{name}.json", document)
    return {name: str(folder / f"{name}.json") for name in SHAPES}
