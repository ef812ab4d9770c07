"""Search random small cases, compare with an integer programme over all, and print how close.

    OMP_NUM_THREADS=1 python scripts/exhaustive_search.py [--cases 100] [--seed 0] [--overlap]
                                                               [--memory]

One line a case: devices, layers, candidates, stages of the winner, seconds of the search and of the
oracle, the two best steps and the loss. `--memory` limits each case's memory to a random share of
what the optimum would take. Ends with 1 if the search is ever better than the oracle (one of them
is wrong), breaks a limit, or finds nothing where something fits.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from math import inf
from pathlib import Path
from random import Random
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from autoplan.search import Request
from autoplan.search.outer import Search
from tests.search.cases import random_request, with_memory
from tests.search.exhaustive import best_step

ROW = "{:>6} {:>7} {:>6} {:>10} {:>6} {:>8} {:>8} {:>14} {:>14} {:>9}"
HEAD = ROW.format(
    "case", "devices", "layers", "candidates", "stages", "search_s", "oracle_s", "search", "oracle",
    "loss",
)  # fmt: skip


def limited(rng: Random, request: Request) -> Request:
    """The same with a random share of the memory that its fastest plan takes."""
    rows = Search(request)._explore(inf)
    most = max(rows[0].estimate.partition.memory)
    return with_memory(request, rng.choice((0.5, 0.7, 0.85, 0.95)) * most)


def compare(number: int, request: Request, memory: bool) -> float:
    """Print a case; its loss: 0 where both agree, negative where something is wrong."""
    begin = perf_counter()
    search = Search(request)
    rows = search._explore(inf)
    middle = perf_counter()
    best, _ = best_step(request, search.engine, recompute=memory)
    end = perf_counter()
    got = rows[0].estimate.step_time if rows else inf
    loss = 0.0 if got == best else got / best - 1.0
    stages = rows[0].shape.stages if rows else 0
    sizes = request.hardware.count, request.config.layers, search.solved, stages
    times = f"{middle - begin:.2f}", f"{end - middle:.2f}", f"{got:.8e}", f"{best:.8e}"
    print(ROW.format(number, *sizes, *times, f"{loss:.2%}"), flush=True)
    if rows and max(rows[0].estimate.partition.memory) > search.engine.capacity:
        return -1.0
    return loss


def main() -> int:
    """Compare as many cases as asked for."""
    parser = ArgumentParser(description="Compare the search with exhaustive enumeration.")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overlap", action="store_true", help="collectives run beside computing")
    parser.add_argument("--memory", action="store_true", help="devices have too little memory")
    options = parser.parse_args()
    print(HEAD)
    losses = []
    for number in range(options.cases):
        rng = Random(f"{options.seed}/{number}")
        devices = (1, 2, 2, 2, 3) if options.overlap else (1, 2, 2, 2, 3, 4)  # the solver's limit
        request = random_request(rng, options.overlap, devices)
        if options.memory:
            request = limited(rng, request)
        losses.append(compare(number, request, options.memory))
    equal = sum(abs(loss) < 1e-9 for loss in losses)
    print(
        f"{equal} of {len(losses)} equal, largest loss {max(losses):.2%}, "
        f"mean {sum(losses) / len(losses):.3%}"
    )
    wrong = min(losses) < -1e-9 or max(losses) == inf
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
