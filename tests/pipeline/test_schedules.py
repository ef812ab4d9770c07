"""Laws: a schedule passes everything once, in the published order, and takes the closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.pipeline import SCHEDULES, Pipeline, Work, closed_form, in_flight, rounds

SHAPES = tuple(
    (family, Pipeline(stages, turns * stages, chunks))
    for stages in (1, 2, 3, 4, 6)
    for turns in (1, 2, 3, 5)
    for family, chunks in (
        ("gpipe", 1), ("1f1b", 1), *((("interleaved", v) for v in (2, 3, 4)) if stages > 1 else ()),
    )
)  # fmt: skip
UNEVEN = tuple(
    ("interleaved", Pipeline(stages, micro_batches, chunks))
    for stages, micro_batches in ((4, 3), (4, 10), (4, 5), (3, 2), (2, 3), (3, 8), (6, 14), (2, 1))
    for chunks in (2, 3)
)
"""Turns that are not of as many micro-batches as there are stages."""
Seconds = Callable[[str, int], float]
"""Of a pass (`F` or `B`) over a virtual stage."""


def makespan(family: str, pipeline: Pipeline, seconds: Seconds) -> float:
    """The longest path, by performing every stage's next work whose operands are there.

    Raises:
        AssertionError: the stages wait for each other.
    """
    depth = pipeline.stages * pipeline.chunks
    left = [SCHEDULES[family](pipeline, stage) for stage in range(pipeline.stages)]
    free = [0.0] * pipeline.stages
    done: dict[tuple[str, int, int], float] = {}
    while any(left):
        moved = False
        for stage, order in enumerate(left):
            if not order:
                continue
            kind, micro_batch, chunk = order[0]
            number = chunk * pipeline.stages + stage
            if kind == "F":
                needs = [("F", micro_batch, number - 1)] if number else []
            else:
                needs = [("F", micro_batch, number)]
                needs += [("B", micro_batch, number + 1)] if number + 1 < depth else []
            if all(need in done for need in needs):
                start = max([free[stage], *(done[need] for need in needs)])
                free[stage] = done[kind, micro_batch, number] = start + seconds(kind, number)
                del order[0]
                moved = True
        assert moved, "the stages wait for each other"
    return max(free)


@pytest.mark.parametrize(("family", "pipeline"), SHAPES + UNEVEN, ids=str)
def test_every_pass_happens_once_and_backward_after_forward(family, pipeline):
    for stage in range(pipeline.stages):
        order = SCHEDULES[family](pipeline, stage)
        passes = [
            (m, c) for m in range(pipeline.micro_batches) for c in range(pipeline.chunks)
        ]  # fmt: skip
        assert sorted(order) == sorted(Work(kind, *where) for kind in "BF" for where in passes)
        assert all(order.index(Work("F", *p)) < order.index(Work("B", *p)) for p in passes)
        for chunk in range(pipeline.chunks):
            for kind in "FB":
                own = [w.micro_batch for w in order if (w.kind, w.chunk) == (kind, chunk)]
                assert own == sorted(own), "sums are in the order of micro-batches"


def words(order: Sequence[Work]) -> str:
    """`F0.1`: forward of micro-batch 0 over chunk 1."""
    return " ".join(f"{work.kind}{work.micro_batch}.{work.chunk}" for work in order)


PUBLISHED = {
    0: "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 "
       "F5.1 B3.1 F6.1 B0.0 F7.1 B1.0 B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0",
    3: "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 "
       "F6.0 B2.0 F7.0 B3.0 F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0",
}  # fmt: skip


@pytest.mark.parametrize("stage", PUBLISHED)
def test_interleaving_is_the_published_order(stage):
    """Narayanan et al. 2021, figure 4: first and last of four devices, two chunks each."""
    order = SCHEDULES["interleaved"](Pipeline(4, 8, 2), stage)
    assert words(order) == PUBLISHED[stage]


@pytest.mark.parametrize(("family", "pipeline"), SHAPES, ids=str)
@pytest.mark.parametrize("seconds", [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (1.0, 7.0)], ids=str)
def test_equal_stages_take_the_closed_form(family, pipeline, seconds):
    forward, backward = seconds
    stages, micro_batches, chunks = pipeline.stages, pipeline.micro_batches, pipeline.chunks
    found = makespan(family, pipeline, lambda kind, _: forward if kind == "F" else backward)
    part = forward + backward
    assert found == closed_form([part] * stages * chunks, micro_batches, chunks)
    # The bubble is (p - 1) / (v M) of the ideal time: the same paper, section 2.2.2.
    ideal = micro_batches * chunks * part
    assert found - ideal == pytest.approx((stages - 1) / (chunks * micro_batches) * ideal)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SHAPES + UNEVEN), st.data())
def test_the_closed_form_is_a_bound_for_unequal_stages(shape, data):
    family, pipeline = shape
    depth = pipeline.stages * pipeline.chunks
    numbers = st.lists(st.integers(0, 9), min_size=depth, max_size=depth)
    forward, backward = data.draw(numbers), data.draw(numbers)
    found = makespan(
        family, pipeline, lambda kind, n: float(forward[n] if kind == "F" else backward[n])
    )
    seconds = [float(f + b) for f, b in zip(forward, backward, strict=True)]
    assert closed_form(seconds, pipeline.micro_batches, pipeline.chunks) <= found


def test_turns_are_equal_and_as_published():
    """pytorch/pytorch#129597: 10 and 3 micro-batches over 4 stages pass, 9 do not."""
    assert [Pipeline(4, m, 2).turn for m in (3, 4, 8, 10, 15)] == [3, 4, 4, 5, 5]
    legal = [m for m in range(1, 21) if m % rounds(4, m) == 0]
    assert legal == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20]


@pytest.mark.parametrize(("family", "pipeline"), SHAPES + UNEVEN, ids=str)
def test_in_flight_counts_what_the_order_leaves_open(family, pipeline):
    stages, micro_batches, chunks = pipeline.stages, pipeline.micro_batches, pipeline.chunks
    for stage in range(stages):
        alive = most = 0
        for work in SCHEDULES[family](pipeline, stage):
            alive += 1 if work.kind == "F" else -1
            most = max(most, alive)
        assert in_flight(family, stage, stages, micro_batches, chunks) == most
        published = {
            "gpipe": micro_batches,
            "1f1b": min(stages - stage, micro_batches),
            "interleaved": min(
                2 * (stages - stage - 1) + (chunks - 1) * pipeline.turn + 1, micro_batches * chunks
            ),
        }
        assert most == published[family]
