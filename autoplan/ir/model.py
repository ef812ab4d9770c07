"""The normalised shape of a dense decoder: what `frontends` builds a Graph from.

It says what is computed, never how; whichever file format a model came in, this is all that is left
of it. `files` reads it from a Hugging Face `config.json` and writes it into plans.
"""

from __future__ import annotations

from dataclasses import dataclass

FAMILIES = (
    "llama", "gemma", "mistral", "qwen2", "qwen3", "phi3", "gpt2", "opt", "gpt_neox", "phi",
)  # fmt: skip
"""Decoder families, named after the first model of each."""

NORMS = ("rms_norm", "layer_norm")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of the rotary frequencies.

    Source: transformers, `modeling_rope_utils._compute_llama3_parameters`.

    Attributes:
        factor: by how much low frequencies are slowed.
        low_freq_factor, high_freq_factor: bounds of the blended band, in turns per context.
        original_max_positions: context length that the model was trained with first.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A dense decoder.

    Attributes:
        family: one of `FAMILIES`.
        name: the model's name.
        hidden: model width (dim `m`).
        layers: decoder layers.
        heads: query heads; `kv_heads` (dim `g`) divides it.
        kv_heads: key and value heads.
        head_dim: width of a head (dim `d`); heads * head_dim need not equal `hidden`.
        ffn: feed-forward width (dim `f`).
        vocab: vocabulary size (dim `v`).
        max_positions: longest sequence.
        norm: `rms_norm` (weight only) or `layer_norm` (weight and bias).
        norm_eps: added to the mean square or variance.
        norm_offset: added to the norm weight before use (Gemma stores weight - 1).
        activation: `silu`, `gelu` (exact), `gelu_tanh` or `relu`.
        gated: whether the feed-forward has a gate: act(gate(x)) * up(x).
        qkv_bias: whether query, key and value projections have a bias.
        output_bias: whether attention's output projection has a bias.
        mlp_bias: whether the feed-forward projections have a bias.
        qk_norm: whether each head's queries and keys are normalised over `d`, one weight for all
            heads.
        rope_theta: rotary base, or None without rotary positions.
        rope_scaling: scaling of the rotary frequencies, or None.
        rotary_dim: how much of each head, from its start, is rotated; 0 for the whole head.
        learned_positions: whether a table of positions is added to the embedding.
        position_offset: rows of that table before the one of position 0; the table (dim `p`) has
            max_positions + position_offset rows.
        sliding_window: a position attends to so many positions, itself the last; 0 for all.
        parallel_residual: whether attention and feed-forward both read the layer's input, so that
            both are added to it at once.
        shared_norm: whether these two parallel branches read one norm.
        tied_embeddings: whether the head uses the embedding's weight.
        head_bias: whether the head has a bias.
        embedding_scale: factor on the embedding's output.
        embedding_dropout, attention_dropout, residual_dropout: probabilities, in the embedding
            sum, on attention probabilities, and on each branch before it joins the residual.
        initializer_range: standard deviation of the initial weights.
    """

    family: str
    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_positions: int
    norm: str = "rms_norm"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope_theta: float | None = 10000.0
    rope_scaling: RopeScaling | None = None
    rotary_dim: int = 0
    learned_positions: bool = False
    position_offset: int = 0
    sliding_window: int = 0
    parallel_residual: bool = False
    shared_norm: bool = False
    tied_embeddings: bool = False
    head_bias: bool = False
    embedding_scale: float = 1.0
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    initializer_range: float = 0.02

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.kv_heads} heads of {self.head_dim}"
        return (
            f"{self.name}: {self.layers} x {self.family}, m={self.hidden}, {heads}, "
            f"f={self.ffn}, v={self.vocab}"
        )
