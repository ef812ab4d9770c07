"""Schedule families (floor 1): the order of forward and backward over micro-batches on a stage.

A family is a function (stage, stages, micro-batches) -> list of ("F" | "B", micro-batch); lowering
adds communication. To add one: write the function and enter it in `SCHEDULES`.

`closed_form` is the lower bound that searching prunes with: it never exceeds the simulation, and
equals it where stages are equal and transfers are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Order = list[tuple[str, int]]


def gpipe(stage: int, stages: int, micro_batches: int) -> Order:
    """All forwards, then all backwards in the same order of micro-batches.

    Source: Huang et al. 2019, GPipe.
    """
    forward = [("F", m) for m in range(micro_batches)]
    return forward + [("B", m) for m in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Order:
    """Stage i runs min(stages - i - 1, M) forwards ahead, then alternates.

    Source: Narayanan et al. 2021 (PipeDream-flush), Megatron-LM section 2.2.
    """
    ahead = min(stages - stage - 1, micro_batches)
    order: Order = [("F", m) for m in range(ahead)]
    for m in range(micro_batches - ahead):
        order += [("F", ahead + m), ("B", m)]
    return order + [("B", m) for m in range(micro_batches - ahead, micro_batches)]


SCHEDULES: dict[str, Callable[[int, int, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}


def in_flight(family: str, stage: int, stages: int, micro_batches: int) -> int:
    """Largest number of micro-batches of a stage whose backward is still to come.

    A schedule that alternates reaches it before it repeats, so a few more micro-batches than stages
    tell all; one that does not keeps them all.
    """
    few = min(micro_batches, 2 * stages + 1)
    most = _most_alive(SCHEDULES[family](stage, stages, few))
    return micro_batches if most == few < micro_batches else most


def _most_alive(order: Order) -> int:
    alive = most = 0
    for kind, _ in order:
        alive += 1 if kind == "F" else -1
        most = max(most, alive)
    return most


def closed_form(stage_seconds: Sequence[float], micro_batches: int) -> float:
    """Least step time of a flushing pipeline with free transfers.

    A stage works on every micro-batch, after the first has passed, and before the last comes back
    through, the stages before it.

    Args:
        stage_seconds: forward plus backward of one micro-batch, per stage.
        micro_batches: per step.

    Source: max over s of M t_s + sum of t before s; for equal stages (M + p - 1) t, Narayanan et
    al. 2021, section 2.2.
    """
    before, least = 0.0, 0.0
    for seconds in stage_seconds:
        least = max(least, before + micro_batches * seconds)
        before += seconds
    return least
