"""Documents of unequal lengths: what is drawn, and that packed ones do not see each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autoplan.frontends import build_graph, step_graph, training_step
from autoplan.ir.lengths import Lengths
from autoplan.runtime.data import MASKED, Shape, SyntheticBatches
from autoplan.runtime.documents import PADDING, DocumentBatches
from autoplan.runtime.execute import whole_records
from autoplan.runtime.reference import ReferenceBatch, reference_step
from tests.runtime.matrix import GPT, LLAMA, LORA, NEOX, PACKED, PADDED, QWEN, Case, prepare

SHAPE = Shape(64, 96, 50)
PLAIN_GPT = replace(GPT, attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0)


def batches(lengths, seed=0):
    return DocumentBatches(SyntheticBatches(SHAPE, seed), lengths, seed)


def test_padding_is_never_learned():
    drawn = batches(PADDED)
    ids, targets, count = drawn.batch(1)
    whole, _, _ = SyntheticBatches(SHAPE, 0).batch(1)
    ends = drawn.ends(1)
    assert {*ends.flatten().tolist()} == {1, 3, 7, 12}
    beyond = torch.arange(SHAPE.seq_len) >= ends
    assert torch.equal(ids, torch.where(beyond, PADDING, whole))
    assert bool((targets[torch.arange(SHAPE.seq_len) >= ends - 1] == MASKED).all())
    assert count == int((targets != MASKED).sum())
    assert not drawn.more(1)


def test_packed_rows_are_full_and_count_from_each_start():
    drawn = batches(PACKED)
    ids, targets, _ = drawn.batch(0)
    assert torch.equal(ids, SyntheticBatches(SHAPE, 0).batch(0)[0])
    more = drawn.more(0)
    documents, places = more["documents"], more["places"]
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] == documents[:, :-1] + 1
    assert torch.equal(places == 0, starts)
    assert torch.equal(places[:, 1:][~starts[:, 1:]], places[:, :-1][~starts[:, 1:]] + 1)
    ends = torch.cat((starts[:, 1:], starts[:, :1]), 1)
    assert bool((targets[ends] == MASKED).all())
    lengths = (places[ends] + 1).tolist()
    assert {*lengths} >= {1, 3, 7, 12}


def test_lengths_are_a_function_of_seed_and_step_and_follow_the_histogram():
    drawn = batches(PADDED)
    assert torch.equal(drawn.ends(4), batches(PADDED).ends(4))
    assert not torch.equal(drawn.ends(4), drawn.ends(5))
    assert not torch.equal(drawn.ends(4), batches(PADDED, 1).ends(4))
    every = torch.cat([drawn.ends(step) for step in range(20)]).flatten()
    assert float((every == 3).double().mean()) == pytest.approx(0.4, abs=0.04)
    assert float(every.double().mean()) == pytest.approx(PADDED.mean, rel=0.05)
    assert PADDED.tokens(64, 96) == round(64 * PADDED.mean)


@pytest.mark.parametrize("lengths", [PACKED, Lengths("packed", ((96, 1.0),))])
def test_share_that_attention_sees(lengths):
    """Against drawn rows; exact where a document fills its row."""
    drawn = batches(lengths)
    shares = []
    for step in range(5):
        documents = drawn.more(step)["documents"]
        shares.append((documents[:, :, None] == documents[:, None]).double().mean())
    found = float(torch.stack(shares).mean())
    assert lengths.visible(96) == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("config", [LLAMA, QWEN, PLAIN_GPT, NEOX], ids=lambda config: config.name)
def test_packed_documents_equal_separate_sequences(config):
    """Loss and gradients of packed rows, and of their documents one a sequence, padded."""
    case = Case(2, "cp=2", config, batch=4, steps=1, lengths=PACKED)
    ready = prepare(case)
    records, _ = whole_records(ready.run())
    ids, targets, count = ready.batches.batch(0)
    documents = ready.batches.more(0)["documents"]
    rows = []
    for row in range(len(ids)):
        for document in range(int(documents[row].max()) + 1):
            inside = documents[row] == document
            width = int(inside.sum())
            padded = torch.full((2, case.seq_len), PADDING)
            padded[1] = MASKED
            padded[0, :width], padded[1, :width] = ids[row, inside], targets[row, inside]
            rows.append(padded)
    assert len(rows) > 3 * len(ids)
    alone = torch.stack(rows)
    graph = training_step(build_graph(config, case.seq_len))
    batch = ReferenceBatch(alone[:, 0], alone[:, 1], count)
    loss, gradients = reference_step(graph, records[0].parameters, batch)
    assert records[0].loss == pytest.approx(float(loss), rel=1e-12)
    largest = max(float(g.abs().max()) for g in gradients.values())
    for name, gradient in gradients.items():
        assert float((records[0].gradients[name] - gradient).abs().max()) <= 1e-12 * largest


CASES = (
    Case(2, "dp=2", lengths=PACKED),
    Case(2, "dp=2", lengths=PADDED, text=True),
    Case(2, "dp=2,zero=3,recompute=full", lengths=PACKED),
    Case(2, "tp=2", lengths=PACKED),
    Case(4, "cp=4", lengths=PACKED, text=True),
    Case(2, "cp=2", GPT, lengths=PACKED),
    Case(2, "cp=2", QWEN, lengths=PACKED),
    Case(2, "pp=2", lengths=PACKED),
    Case(2, "pp=2", lengths=PADDED),
    Case(2, "dp=2", lengths=PACKED, precision="bf16_mixed"),
    Case(8, "cp=2,tp=2,pp=2,recompute=full", lengths=PACKED, trainable=LORA),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plans_are_verified(case):
    ready = prepare(case)
    result = ready.run()
    verdict = ready.verify(result)
    assert verdict.verified, verdict.failures[:3]
    assert verdict.replicas_equal
    foretold = ready.foretold()
    for rank, run in result.ranks.items():
        assert {(step.peak, step.peak_at) for step in run.steps} == {foretold[rank]}


def test_masks_matter():
    """Packed attention is not what attention across documents would be."""
    ready = prepare(Case(1, "dp=1", steps=1, lengths=PACKED))
    records, _ = whole_records(ready.run())
    across = step_graph(LLAMA, replace(ready.case.workload, lengths=None))
    ids, targets, count = ready.batches.batch(0)
    loss, _ = reference_step(across, records[0].parameters, ReferenceBatch(ids, targets, count))
    assert abs(records[0].loss - float(loss)) > 1e-4
