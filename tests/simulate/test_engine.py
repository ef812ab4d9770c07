"""The engine: equal to a longest path, to closed forms, and never below its bounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import CheckError
from autoplan.pipeline import closed_form
from autoplan.simulate import run
from tests.plans import SAMPLE, TINY_LLAMA, Choices, make_program
from tests.simulate.oracle import ends
from tests.simulate.prices import Prices

PROGRAMS = {name: make_program(*case) for name, case in SAMPLE.items()}
PIPELINES = {
    (family, stages, micro_batches, chunks): make_program(
        replace(TINY_LLAMA, layers=stages * chunks),
        Choices((), stages, micro_batches, family, batch=micro_batches, chunks=chunks),
    )
    for stages, micro_batches, chunks, families in (
        *((p, m, 1, ("gpipe", "1f1b")) for p, m in ((2, 1), (2, 4), (4, 2), (4, 4), (4, 9))),
        *((p, m, v, ("interleaved",)) for p, m, v in ((2, 2, 2), (2, 6, 3), (3, 6, 2), (4, 8, 2))),
    )
    for family in families
}


def drawn(seed: int):
    """Seconds of each segment: a function of seed and key."""
    return lambda key: Random(f"{seed} {key}").choice((0.0, 1.0, 2.0, 3.0, 5.0, 8.0))


def blocks(forward: float, backward: float):
    """Layers take time, nothing else does."""
    table = {"layer/F": forward, "layer/B": backward, "layer/B.first": backward}
    return lambda key: table.get(key, 0.0)


@pytest.mark.parametrize("case", PIPELINES)
def test_equal_stages_and_free_transfers_take_the_closed_form(case):
    _, stages, micro_batches, chunks = case
    outcome = run(PIPELINES[case], Prices(blocks(1.0, 2.0)))
    assert outcome.makespan == closed_form([3.0] * stages * chunks, micro_batches, chunks)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(PIPELINES)), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 4.0]))
def test_makespan_is_at_least_what_stages_and_one_micro_batch_take(case, seed, transfer):
    _, stages, micro_batches, chunks = case
    random = Random(seed)
    forward, backward = random.randint(0, 4), random.randint(0, 4)
    ends_too = {
        f"{block}/{part}": float(random.randint(0, 6))
        for block in ("embedding", "head")
        for part in ("F", "B")
    }
    layer = blocks(float(forward), float(backward))

    def seconds(key: str) -> float:
        return ends_too.get(key.removesuffix(".first"), layer(key))

    outcome = run(PIPELINES[case], Prices(seconds, transfer))
    parts = [float(forward + backward)] * stages * chunks
    parts[0] += ends_too["embedding/F"] + ends_too["embedding/B"]
    parts[-1] += ends_too["head/F"] + ends_too["head/B"]
    # A stage starts after the forwards before it; after its last backward, theirs follow.
    assert outcome.makespan >= closed_form(parts, micro_batches, chunks)
    assert outcome.makespan >= sum(parts) + 2 * (len(parts) - 1) * transfer


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(list(PROGRAMS)), st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 7.0]),
    st.booleans(),
)  # fmt: skip
def test_equals_the_longest_path(name, seed, transfer, overlaps):
    program = PROGRAMS[name]
    prices = Prices(drawn(seed), transfer, overlaps)
    expected = ends(program, prices)
    outcome = run(program, prices)
    assert outcome.makespan == max(expected.values())
    spent = [sum(kinds.values()) for kinds in outcome.spent]
    assert spent == pytest.approx([outcome.makespan] * len(spent), rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(PROGRAMS)), st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 7.0]))
def test_overlap_is_never_slower_than_none(name, seed, transfer):
    beside = run(PROGRAMS[name], Prices(drawn(seed), transfer))
    alone = run(PROGRAMS[name], Prices(drawn(seed), transfer, overlaps=False))
    contended = run(PROGRAMS[name], Prices(drawn(seed), transfer, contention=1.5))
    assert beside.makespan <= alone.makespan
    assert beside.makespan <= contended.makespan


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(PROGRAMS)), st.integers(0, 10**6))
def test_spans_of_a_stream_follow_each_other_and_fill_no_more_than_the_step(name, seed):
    outcome = run(PROGRAMS[name], Prices(drawn(seed), 1.0, contention=1.25), spans=True)
    streams: dict[tuple[int, str], list] = {}
    for span in outcome.spans:
        streams.setdefault((span.stage, span.stream), []).append(span)
    assert {stream.split()[0] for _, stream in streams} <= {
        "compute", "collective", "send", "receive"
    }  # fmt: skip
    for spans in streams.values():
        assert all(one.end <= two.start for one, two in pairwise(spans))
        assert sum(span.end - span.start for span in spans) <= outcome.makespan * (1 + 1e-12)
    assert max(span.end for span in outcome.spans) == outcome.makespan


def test_a_gather_is_hidden_but_for_the_first():
    """Each layer's gather runs beside the block before it; only the first is waited for."""
    program = PROGRAMS["gathered"]

    def seconds(key: str) -> float:
        if "GATHER" in key:
            return 1.0
        return 4.0 if key.endswith(("/F", "/F.first", "/B", "/B.first")) else 0.0

    outcome = run(program, Prices(seconds))
    # Two micro-batches of four blocks forward and back. Of each pass the gather of the first block
    # is waited for; the one after it waits for that and runs beside the first block.
    assert outcome.spent[0]["compute"] == 2 * 8 * 4.0
    assert outcome.spent[0]["all_gather"] == 2 * 2 * 1.0
    assert outcome.makespan == 2 * 8 * 4.0 + 4.0


def test_computing_is_slower_beside_a_collective():
    program = PROGRAMS["gathered"]

    def seconds(key: str) -> float:
        return {"layer/GATHER": 3.0, "layer/F": 4.0}.get(key, 0.0)

    plain = run(program, Prices(seconds)).makespan
    # In each forward pass 3 of the first layer's seconds have the second's gather beside them; with
    # a factor of 1.5 they do the work of 2.
    assert run(program, Prices(seconds, contention=1.5)).makespan == pytest.approx(plain + 2 * 1.0)


def test_a_wait_for_a_transfer_is_sending_and_the_rest_is_bubble():
    program = PIPELINES["1f1b", 2, 1, 1]
    outcome = run(program, Prices(blocks(2.0, 2.0), transfer=0.5))
    first, last = outcome.spent
    assert outcome.makespan == 2 * 4.0 + 2 * 0.5
    assert (first["compute"], first["send"], first["bubble"]) == (4.0, 0.5, 4.5)
    assert (last["compute"], last["send"], last["bubble"]) == (4.0, 1.0, 4.0)


def test_all_stages_take_the_norm_together():
    outcome = run(PROGRAMS["four stages"], Prices(drawn(3), 1.0), spans=True)
    starts = {span.start for span in outcome.spans if "/CLIP" in span.name}
    assert len(starts) == 1


def test_names_who_waits_for_what_when_no_stage_can_go_on():
    program = PIPELINES["1f1b", 2, 1, 1]
    stages = [
        replace(stage, actions=tuple(a for a in stage.actions if a.kind not in ("SEND", "WAIT")))
        for stage in program.stages
    ]
    with pytest.raises(CheckError) as error:
        run(replace(program, stages=tuple(stages)), Prices(blocks(1.0, 1.0)))
    text = str(error.value)
    assert "stage 0, action" in text
    assert "waits for d.x (instance 2, micro-batch 0) from stage 1" in text
    assert "waits for x (instance 2, micro-batch 0) from stage 0" in text
