"""Search random small cases, compare with the best there is, and print how close.

    OMP_NUM_THREADS=1 python scripts/exhaustive_search.py [--cases 2000] [--seed 0] [--from 0]
                                                [--overlap | --no-overlap] [--memory | --no-memory]
                                                [--limit 120] [--simulated]

The best is an integer programme's over all candidates, with the estimate that the search minimises.
Six cases of ten have streams that overlap, seven of ten have less memory than the fastest plan
takes; the flags say which are wanted. One line a case: devices, layers, candidates, stages of the
winner, whether streams overlap and memory is short, CPU seconds of the search and of the oracle,
the two best steps and the loss. A case that the oracle does not decide in `--limit` seconds counts
as neither equal nor not. Ends with 1 if they ever differ, or the search breaks a limit.

With `--simulated` the best is that of all plans of a space of at most a few hundred, each of them
simulated: with memory enough, and under two limits. That says how far estimates mislead.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from random import Random
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.search.cases import Case, random_case
from tests.search.exhaustive import Undecided, best_step
from tests.search.simulated import PLENTY, gap, random_space

EXACT = 1e-9
ROW = "{:>6} {:>7} {:>6} {:>10} {:>6} {:>7} {:>6} {:>8} {:>8} {:>14} {:>14} {:>9}"
HEAD = ROW.format(
    "case", "devices", "layers", "candidates", "stages", "overlap", "memory", "search_s",
    "oracle_s", "search", "oracle", "loss",
)  # fmt: skip
NEAR = (0.0, 0.01, 0.05, 0.2)
"""Losses up to which simulated cases are counted."""


def compare(number: int, case: Case, limit: float) -> float | None:
    """Print a case; its loss: 0 where both agree, negative where something is wrong, None where the
    oracle does not decide.
    """
    begin = process_time()
    search = case.search()
    rows = search._explore(inf)
    middle = process_time()
    got = rows[0].estimate.step_time if rows else inf
    loss: float | None
    try:
        best = best_step(case, limit)
        loss = 0.0 if got == best else got / best - 1.0
    except Undecided:
        best, loss = nan, None
    end = process_time()
    stages = rows[0].shape.stages if rows else 0
    sizes = case.asked.hardware.count, case.asked.config.layers, search.solved, stages
    kind = "yes" if case.overlap else "no", "short" if case.limited else "loose"
    times = f"{middle - begin:.2f}", f"{end - middle:.2f}", f"{got:.8e}", f"{best:.8e}"
    text = "undecided" if loss is None else f"{loss:.2%}"
    print(ROW.format(number, *sizes, *kind, *times, text), flush=True)
    if rows and max(rows[0].estimate.partition.memory) > search.engine.capacity:
        return -1.0
    return loss


def with_programme(options: Namespace) -> int:
    """Compare as many cases as asked for with the integer programme."""
    print(HEAD)
    rows = []
    for number in range(options.start, options.start + options.cases):
        rng = Random(f"{options.seed}/{number}")
        case = random_case(rng, overlap=options.overlap, short=options.memory)
        rows.append(compare(number, case, options.limit))
    losses = [loss for loss in rows if loss is not None]
    equal = sum(abs(loss) < EXACT for loss in losses)
    print(
        f"{equal} of {len(losses)} equal, largest loss {max(losses):.2%}, "
        f"mean {sum(losses) / len(losses):.3%}; {len(rows) - len(losses)} not decided by the oracle"
    )
    return 0 if equal == len(losses) else 1


def with_simulation(options: Namespace) -> int:
    """Compare as many spaces as asked for with the simulation of all their plans."""
    loose, limited = [], []
    for number in range(options.start, options.start + options.cases):
        rng = Random(f"{options.seed}/simulated/{number}")
        space = random_space(rng)
        loose.append(gap(space.searched(PLENTY), space.best(PLENTY)))
        mine = [gap(space.searched(m), space.best(m)) for m in space.limits(rng)]
        limited += mine
        text = " ".join(f"{loss:8.2%}" for loss in (loose[-1], *mine))
        print(f"{number:>6} {len(space.rows):>6} plans {text}", flush=True)
    print(spread("with memory enough", loose))
    print(spread("under a limit", limited))
    return 0 if min(*loose, *limited) > -EXACT else 1


def spread(name: str, losses: Sequence[float]) -> str:
    """How many losses are how large."""
    finite = [loss for loss in losses if loss < inf]
    near = ", ".join(f"{sum(loss <= near for loss in losses)} within {near:.0%}" for near in NEAR)
    return (
        f"{name}: {len(losses)} cases, {near}, largest {max(finite, default=0.0):.2%}, "
        f"nothing found though something fits {len(losses) - len(finite)}"
    )


def main() -> int:
    """Compare as the command line asks."""
    parser = ArgumentParser(description="Compare the search with exhaustive enumeration.")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="start", help="number of the first")
    parser.add_argument("--overlap", action=BooleanOptionalAction, help="collectives run beside")
    parser.add_argument("--memory", action=BooleanOptionalAction, help="memory is short")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of the oracle a case")
    parser.add_argument("--simulated", action="store_true", help="simulate every plan")
    options = parser.parse_args()
    return with_simulation(options) if options.simulated else with_programme(options)


if __name__ == "__main__":
    sys.exit(main())
