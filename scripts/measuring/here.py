"""Plans in turn on this machine, through the runtime's pool: forked once, used by all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from autoplan.runtime.execute import execute
from autoplan.runtime.pool import Pool
from autoplan.validate.campaign import shuffled_rounds
from autoplan.workflow import Priced, RunRequest
from autoplan.workflow.running import Prepared, prepare

from .cores import Cores
from .visits import Seen, seen

WARM_UP = 1
"""Steps of a visit that do not count: caches, allocators and the branch predictor are another
plan's."""


@dataclass(frozen=True, slots=True)
class Turns:
    """How often plans are visited.

    Attributes:
        rounds: visits of each.
        steps: of a visit that count.
        extra: more rounds, of the plans that had no undisturbed visit.
        seed: of the order.
    """

    rounds: int = 3
    steps: int = 2
    extra: int = 0
    seed: int = 0


def run_in_turn(
    plans: Sequence[Priced], turns: Turns, tell: Callable[[str], None]
) -> list[list[Seen]]:
    """The visits of every plan, by plan.

    Args:
        plans: what to run.
        turns: how often.
        tell: told how far it is.
    """
    request = RunRequest(WARM_UP + turns.steps, verify=False, precision="plan")
    visits: list[list[Seen]] = [[] for _ in plans]
    with ExitStack() as stack:
        pools = {ranks: stack.enter_context(Pool()) for ranks in {p.devices for p in plans}}
        for ranks, pool in pools.items():
            pool.grow(ranks)  # before this process computes, which may start threads
        ready = [prepare(priced, request) for priced in plans]
        orders = shuffled_rounds(len(plans), turns.rounds + turns.extra, turns.seed)
        for number, order in enumerate(orders):
            for place, index in enumerate(order):
                if number >= turns.rounds and not all(s.visit.disturbed for s in visits[index]):
                    continue
                tell(f"round {number + 1}, {place + 1} of {len(order)}")
                visits[index].append(_visit(ready[index], pools[plans[index].devices]))
    return visits


def _visit(ready: Prepared, pool: Pool) -> Seen:
    cores = Cores(pool.processes)
    result = execute(ready.program, ready.priced.graph, ready.settings, pool)
    return seen(result, WARM_UP, cores.elsewhere())
