"""What decisions come to as a step: blocks weighed, cut into stages, layers run again.

What an instance of a block takes follows from its channel totals:

    forward  = max(XF, WF)
    backward = max(XB + RG, WB), or max(XB + RG, XB + RC, WB) where forward runs again
    last     = ON + max(backward, WB + OK) - backward, once
    step     = sum_s t_s + (M - 1) max_s t_s + max_s last_s + transfers + constants

with + instead of max on machines whose collectives do not run beside computing. Computing takes at
least what the host needs to issue it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autoplan.cost import Pricer
from autoplan.pipeline import in_flight
from autoplan.search.chain import Chain, Pace, Solution, is_layer
from autoplan.search.partition import ChainCosts, Limits, Partition, partition
from autoplan.search.tables import CHANNEL

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A solution cut into stages.

    Attributes:
        solution: the decisions.
        partition: stages and recomputed layers.
        step_time: estimated seconds.
    """

    solution: Solution
    partition: Partition
    step_time: float


@dataclass(frozen=True)
class Room:
    """Memory of the stages and how they are filled.

    Attributes:
        limits: bytes per stage.
        schedule: family.
        recompute: "none", "full", or "" where it may be decided per layer.
        layers: layers per stage if given.
        hop: seconds of one transfer between neighbours.
    """

    limits: Sequence[float]
    schedule: str
    recompute: str = ""
    layers: Sequence[int] | None = None
    hop: float = 0.0

    def flight(self, pace: Pace) -> tuple[int, ...]:
        """Micro-batches that wait for backward, per stage."""
        return _flight(self.schedule, pace.stages, pace.micro_batches)


@cache
def _flight(schedule: str, stages: int, micro_batches: int) -> tuple[int, ...]:
    return tuple(in_flight(schedule, s, stages, micro_batches) for s in range(stages))


def estimate(
    chain: Chain, solution: Solution, pace: Pace, room: Room, pricer: Pricer
) -> Estimate | None:
    """Cut a solution into stages that fit, or None.

    Args:
        chain: what was solved.
        solution: decisions.
        pace: stages and micro-batches.
        room: memory per stage.
        pricer: whether streams overlap, fixed costs.
    """
    costs = _chain_costs(chain, solution, room, pricer)
    must = room.recompute == "full"
    limits = Limits(room.flight(pace), room.limits, pace.micro_batches, must, room.layers)
    cut = partition(costs, limits)
    if cut is None:
        return None
    step = pipelined(cut.seconds, cut.once, pace, room)
    return Estimate(solution, cut, step + pricer.fixed_step)


def pipelined(
    seconds: Sequence[float], once: Sequence[float], pace: Pace, room: Room
) -> float:  # fmt: skip
    """A step from each stage's seconds of a micro-batch, and once a step; constants aside."""
    hops = 2 * room.hop * (pace.stages - 1)
    # A round trip to the next stage is hidden only as far as micro-batches are in flight.
    period = max(seconds) + (hops / pace.stages if room.schedule == "1f1b" else 0.0)
    return sum(seconds) + hops + (pace.micro_batches - 1) * period + max(once)


def _chain_costs(chain: Chain, solution: Solution, room: Room, pricer: Pricer) -> ChainCosts:
    blocks = chain.graph.blocks
    rows, totals = {}, solution.totals
    for name, total in totals.items():
        each = instance_seconds(total, pricer, bool(blocks[name].backward))
        rows[name] = [each.kept, each.more, each.once, each.sooner]
        rows[name] += [total[CHANNEL[m]] for m in ("MW", "MA", "MX")]
    table = np.array([rows[name] for name in chain.order], dtype=float)
    layer = np.array([is_layer(name) for name in chain.order])
    backward = np.array([bool(blocks[name].backward) for name in chain.order])
    may = layer & backward if room.recompute != "none" else np.zeros_like(layer)
    kept, more, once, sooner, weights, saved, inputs = table.T
    return ChainCosts(
        kept, more, weights, saved, inputs * backward, saved, layer, may, once, sooner
    )


@dataclass(frozen=True)
class InstanceSeconds:
    """What instances of a block take; arrays of one shape.

    Attributes:
        kept: forward and backward of one micro-batch.
        more: in addition where forward runs again.
        once: more of the last backward, and the optimizer.
        sooner: how much less that is where forward runs again, since more hides behind it.
    """

    kept: FloatArray
    more: FloatArray
    once: FloatArray
    sooner: FloatArray


def instance_seconds(totals: FloatArray, pricer: Pricer, backward: bool) -> InstanceSeconds:
    """Seconds of instances of a block with a backward or without.

    Shapes:
        totals: (…, channels); results (…).
    """
    get = {name: totals[..., i] for name, i in CHANNEL.items()}
    zero = np.zeros(totals.shape[:-1])

    def beside(compute: FloatArray, weights: FloatArray) -> FloatArray:
        return np.maximum(compute, weights) if pricer.overlaps else compute + weights

    forward = beside(np.maximum(get["XF"], pricer.layer_floor(False)), get["WF"])
    if not backward:
        return InstanceSeconds(forward, zero, get["ON"] + get["OK"], zero)
    compute = np.maximum(get["XB"] + get["RG"], pricer.layer_floor(True))
    again = np.maximum(compute, get["XB"] + get["RC"])
    back, longer = beside(compute, get["WB"]), beside(again, get["WB"])
    last = beside(compute, get["WB"] + get["OK"]) - back
    sooner = last - (beside(again, get["WB"] + get["OK"]) - longer)
    return InstanceSeconds(forward + back, longer - back, get["ON"] + last, sooner)
