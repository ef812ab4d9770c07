"""Draw random legal plans, run each for one step in lock-step and compare it with the reference.

    OMP_NUM_THREADS=1 python scripts/verify_random_plans.py [N] [SEED]

N plans from SEED on. Prints every failure with its seed, plans per minute, the largest error and
which pairs of decisions were met how often. Ends with 5 if any plan fails.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from autoplan.errors import AutoplanError, MismatchError
from tests.runtime.trials import Coverage, attempt


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("plans", type=int, nargs="?", default=300)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    coverage, failed, refused, worst = Coverage(), 0, 0, 0.0
    begin = perf_counter()
    for seed in range(given.seed, given.seed + given.plans):
        try:
            outcome = attempt(seed)
        except AutoplanError as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        coverage.add(outcome.sample.plan, outcome.sample.graph)
        refused += outcome.sample.refused
        worst = max(worst, outcome.verdict.worst.error if outcome.verdict.worst else 0.0)
        if not outcome.verdict.verified or outcome.peaks:
            failed += 1
            print(f"seed {seed}: {outcome}")
    seconds = perf_counter() - begin
    print(coverage.table())
    rate = 60 * given.plans / seconds
    print(f"{given.plans} plans at {rate:.0f} a minute, {refused} draws refused by lowering")
    print(f"{failed} failed, worst error {worst:.2g}")
    return MismatchError.exit_code if failed else 0


if __name__ == "__main__":
    sys.exit(main())
