"""Search random small cases, compare with an integer programme over all, and print how close.

    OMP_NUM_THREADS=1 python scripts/exhaustive_search.py [--cases 2000] [--seed 0] [--from 0]
                                                [--overlap | --no-overlap] [--memory | --no-memory]

Six cases of ten have streams that overlap, seven of ten have less memory than the fastest plan
takes; the flags say which are wanted. One line a case: devices, layers, candidates, stages of the
winner, whether streams overlap and memory is short, CPU seconds of the search and of the oracle,
the two best steps and the loss. Ends with 1 if they ever differ, or the search breaks a limit.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction
from math import inf
from pathlib import Path
from random import Random
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.search.cases import Case, random_case
from tests.search.exhaustive import best_step

EXACT = 1e-9
ROW = "{:>6} {:>7} {:>6} {:>10} {:>6} {:>7} {:>6} {:>8} {:>8} {:>14} {:>14} {:>9}"
HEAD = ROW.format(
    "case", "devices", "layers", "candidates", "stages", "overlap", "memory", "search_s",
    "oracle_s", "search", "oracle", "loss",
)  # fmt: skip


def compare(number: int, case: Case) -> float:
    """Print a case; its loss: 0 where both agree, negative where something is wrong."""
    begin = process_time()
    search = case.search()
    rows = search._explore(inf)
    middle = process_time()
    best = best_step(case)
    end = process_time()
    got = rows[0].estimate.step_time if rows else inf
    loss = 0.0 if got == best else got / best - 1.0
    stages = rows[0].shape.stages if rows else 0
    sizes = case.asked.hardware.count, case.asked.config.layers, search.solved, stages
    kind = "yes" if case.overlap else "no", "short" if case.limited else "loose"
    times = f"{middle - begin:.2f}", f"{end - middle:.2f}", f"{got:.8e}", f"{best:.8e}"
    print(ROW.format(number, *sizes, *kind, *times, f"{loss:.2%}"), flush=True)
    if rows and max(rows[0].estimate.partition.memory) > search.engine.capacity:
        return -1.0
    return loss


def main() -> int:
    """Compare as many cases as asked for."""
    parser = ArgumentParser(description="Compare the search with exhaustive enumeration.")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="start", help="number of the first")
    parser.add_argument("--overlap", action=BooleanOptionalAction, help="collectives run beside")
    parser.add_argument("--memory", action=BooleanOptionalAction, help="memory is short")
    options = parser.parse_args()
    print(HEAD)
    losses = []
    for number in range(options.start, options.start + options.cases):
        rng = Random(f"{options.seed}/{number}")
        case = random_case(rng, overlap=options.overlap, short=options.memory)
        losses.append(compare(number, case))
    equal = sum(abs(loss) < EXACT for loss in losses)
    print(
        f"{equal} of {len(losses)} equal, largest loss {max(losses):.2%}, "
        f"mean {sum(losses) / len(losses):.3%}"
    )
    return 0 if equal == len(losses) else 1


if __name__ == "__main__":
    sys.exit(main())
