"""Law: model FLOP of a decoder are 6 N per token plus 12 L h s of attention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.cost import model_flops
from autoplan.files.hf_config import load_model
from autoplan.frontends import build_graph, training_step
from autoplan.ir.program import Instr
from autoplan.ops.attention import visible_share


@pytest.mark.parametrize(
    "name", ["llama-2-13b", "llama-3.1-70b", "gpt3-175b", "gemma-2b", "opt-6.7b", "phi-4"]
)
def test_six_n_and_attention(name: str) -> None:
    """N without the embedding look-up, head included; s² in full. Source: PaLM, appendix B."""
    config = load_model(name)
    seq_len, batch = 2048, 4
    graph = training_step(build_graph(config, seq_len))
    table = config.vocab * config.hidden
    looked_up = 0 if config.tied_embeddings else table
    rows = config.max_positions + config.position_offset
    looked_up += rows * config.hidden if config.learned_positions else 0
    weights = graph.parameters_total - looked_up
    attention = 12 * config.layers * config.heads * config.head_dim * seq_len
    expected = batch * seq_len * (6 * weights + attention)
    assert model_flops(graph, batch) == pytest.approx(expected, rel=0.01)


def test_a_window_counts_in_full_for_every_query() -> None:
    """Whatever lies beyond it is not counted; the causal mask, as everywhere, is not seen."""
    config = replace(load_model("tiny-llama"), sliding_window=4)
    whole = replace(config, sliding_window=0)
    narrow, full = (model_flops(training_step(build_graph(c, 16)), 1) for c in (config, whole))
    attention = 12 * config.layers * config.heads * config.head_dim * 16 * 16
    assert full - narrow == pytest.approx(attention * (1 - 4 / 16))


@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (2, 8), (4, 8)])
@pytest.mark.parametrize("window", [0, 1, 3, 5, 8, 20])
def test_the_visible_share_is_that_of_the_mask(queries: int, keys: int, window: int) -> None:
    """Counted score by score for the last queries; a query's own key counts one half."""
    seen = 0.0
    for query in range(keys - queries, keys):
        for key in range(query + 1):
            distance = query - key
            if distance < (window or keys):
                seen += 0.5 if distance == 0 and query < (window or keys) else 1.0
    instr = Instr("attention", (), (), (("causal", True), ("window", window)))
    assert visible_share(instr, queries, keys) == pytest.approx(seen / (queries * keys))


def test_linear_in_the_batch() -> None:
    graph = training_step(build_graph(load_model("tiny-llama"), 16))
    assert model_flops(graph, 12) == pytest.approx(3 * model_flops(graph, 4))


def test_frozen_parts_need_no_weight_gradients() -> None:
    """Only the head trains: forward of all, and the head's weight gradient."""
    config = load_model("tiny-llama")
    graph = build_graph(config, 16)
    forward = model_flops(graph, 4)
    head = 2 * 4 * 16 * config.hidden * config.vocab
    assert model_flops(training_step(graph, "^head$"), 4) == pytest.approx(forward + head)
    assert model_flops(training_step(graph), 4) == pytest.approx(3 * forward)
