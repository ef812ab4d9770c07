"""Schedule families (floor 1): the order of forward and backward over micro-batches on a stage.

A family is a function of a `Pipeline` and a stage that lists the stage's `Work`; lowering adds
communication. To add one: write the function and enter it in `SCHEDULES`.

A stage may hold several chunks of the model. Chunk c of stage s of p is virtual stage c p + s: a
micro-batch passes all stages once for every chunk.

`closed_form` is the lower bound that searching prunes with: it never exceeds the simulation, and
equals it where stages are equal and transfers are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What is scheduled.

    Attributes:
        stages: device groups.
        micro_batches: per step.
        chunks: parts of the model on each stage.
    """

    stages: int
    micro_batches: int
    chunks: int = 1

    @property
    def turn(self) -> int:
        """Micro-batches that pass a chunk before the next chunk takes its turn.

        Turns are equal, and at least as long as there are stages where so many micro-batches are.
        Source: the rounds of PyTorch's `ScheduleInterleaved1F1B`; Megatron-LM takes as many as
        there are stages, which is the same where those divide the micro-batches.
        """
        return self.micro_batches // rounds(self.stages, self.micro_batches)


def rounds(stages: int, micro_batches: int) -> int:
    """Turns of every chunk in an interleaved step; they must divide the micro-batches."""
    return max(1, micro_batches // stages)


class Work(NamedTuple):
    """One pass of a micro-batch over a chunk: `F` forward or `B` backward."""

    kind: str
    micro_batch: int
    chunk: int = 0


Order = list[Work]


def gpipe(pipeline: Pipeline, stage: int) -> Order:
    """All forwards, then all backwards in the same order of micro-batches; one chunk.

    Source: Huang et al. 2019, GPipe.
    """
    micro_batches = range(pipeline.micro_batches)
    return [Work("F", m) for m in micro_batches] + [Work("B", m) for m in micro_batches]


def one_forward_one_backward(pipeline: Pipeline, stage: int) -> Order:
    """Stage i runs min(stages - i - 1, M) forwards ahead, then alternates; one chunk.

    Source: Narayanan et al. 2021 (PipeDream-flush), Megatron-LM section 2.2.
    """
    micro_batches = range(pipeline.micro_batches)
    return _alternate(
        [Work("F", m) for m in micro_batches],
        [Work("B", m) for m in micro_batches],
        pipeline.stages - stage - 1,
    )


def interleaved(pipeline: Pipeline, stage: int) -> Order:
    """1F1B over chunks: a turn of t micro-batches passes a chunk, then the next one.

    Every stage passes the same sequence of (chunk, micro-batch), backward with the chunks reversed.
    Stage i of p with v chunks runs 2 (p - i - 1) + (v - 1) t forwards ahead, then alternates.

    Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters
    using Megatron-LM", section 2.2.2, figure 4; the lead of a stage is that of Megatron-LM.
    """
    stages, chunks, turn = pipeline.stages, pipeline.chunks, pipeline.turn
    turns = [
        (first + m, chunk)
        for first in range(0, pipeline.micro_batches, turn)
        for chunk in range(chunks)
        for m in range(turn)
    ]
    return _alternate(
        [Work("F", m, chunk) for m, chunk in turns],
        [Work("B", m, chunks - 1 - chunk) for m, chunk in turns],
        2 * (stages - stage - 1) + (chunks - 1) * turn,
    )


def _alternate(forward: Order, backward: Order, ahead: int) -> Order:
    """Some forwards ahead, then a forward and a backward in turn, then the backwards left over."""
    ahead = min(ahead, len(forward))
    order = forward[:ahead]
    for pair in zip(forward[ahead:], backward, strict=False):
        order += pair
    return order + backward[len(forward) - ahead :]


SCHEDULES: dict[str, Callable[[Pipeline, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}


def in_flight(family: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> int:
    """Largest number of (micro-batch, chunk) of a stage whose backward is still to come.

    A schedule that alternates reaches it before it repeats, so twice as many micro-batches as
    stages tell all (but for chunks that take longer turns); one that does not keeps them all.
    """
    uneven = chunks > 1 and micro_batches % stages
    few = micro_batches if uneven else min(micro_batches, 2 * stages)
    most = _most_alive(SCHEDULES[family](Pipeline(stages, few, chunks), stage))
    return micro_batches * chunks if most == few * chunks else most


def _most_alive(order: Order) -> int:
    alive = most = 0
    for work in order:
        alive += 1 if work.kind == "F" else -1
        most = max(most, alive)
    return most


def closed_form(stage_seconds: Sequence[float], micro_batches: int, chunks: int = 1) -> float:
    """Least step time of a flushing pipeline with free transfers.

    A stage works on every micro-batch, after the first has passed, and before the last comes back
    through, the virtual stages before its first.

    Args:
        stage_seconds: forward plus backward of one micro-batch, per virtual stage.
        micro_batches: per step.
        chunks: virtual stages of each stage.

    Source: max over s of M t_s + sum of t before s. For p equal stages with v chunks it is
    (M + (p - 1) / v) t, Narayanan et al. 2021, sections 2.2.1 and 2.2.2.
    """
    stages = len(stage_seconds) // chunks
    before, least = 0.0, 0.0
    for stage in range(stages):
        least = max(least, before + micro_batches * sum(stage_seconds[stage::stages]))
        before += stage_seconds[stage]
    return least
