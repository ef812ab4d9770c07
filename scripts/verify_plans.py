"""Run every kind of plan on gloo (or in lock-step) and print how it compares with the reference.

    OMP_NUM_THREADS=1 python scripts/verify_plans.py [--lockstep] [--only WORDS]

One line a plan: ranks, transport, largest error of a gradient (of the loss in 16 bits), loss of the
last step, counted peak of the fullest rank (which must be the simulated one), seconds. Ends with 5
if any plan is not verified or its counted peak is not the simulated one.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from autoplan.errors import MismatchError
from autoplan.runtime.pool import Pool
from autoplan.units import format_bytes
from tests.runtime.matrix import CASES, Case, prepare

ROW = "{:58} {:>5} {:9} {:>8} {:>8} {:>10} {:>5}  {}"
HEAD = ROW.format("plan", "ranks", "transport", "error", "loss", "peak", "s", "result")


def line(case: Case, pool: Pool | None) -> tuple[str, bool]:
    """The row of a case, and whether all is well."""
    begin = perf_counter()
    ready = prepare(case)
    result = ready.run(pool)
    verdict = ready.verify(result)
    seconds = perf_counter() - begin
    foretold = {rank: peak for rank, (peak, _) in ready.foretold().items()}
    same = result.peaks == foretold
    well = verdict.verified and same
    words = "verified" if verdict.verified else f"WRONG: {verdict.failures[0]}"
    words += ", peak as simulated" if same else f", PEAK SIMULATED {max(foretold.values())}"
    error = max(verdict.max_gradient_error, verdict.max_loss_error)
    transport = "lock-step" if pool is None else "gloo"
    peak = format_bytes(max(result.peaks.values()))
    numbers = f"{error:.1e}", f"{result.losses[-1]:.5f}", peak, f"{seconds:.2f}"
    return ROW.format(str(case), case.ranks, transport, *numbers, words), well


def main() -> int:
    """Run the cases that the command line asks for."""
    parser = ArgumentParser(description="Run and verify every kind of plan.")
    parser.add_argument("--lockstep", action="store_true", help="all ranks in this process")
    parser.add_argument("--only", default="", help="plans whose line contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [case for case in CASES if options.only in str(case)]
    bad = 0
    print(HEAD)
    with ExitStack() as stack:
        pool = None if options.lockstep else stack.enter_context(Pool())
        for case in chosen:
            row, well = line(case, pool)
            bad += not well
            print(row, flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} plans verified, counted peak = simulated peak")
    return MismatchError.exit_code if bad else 0


if __name__ == "__main__":
    sys.exit(main())
