"""Run a few small plans on this machine and print predicted beside measured, as the README shows.

    OMP_NUM_THREADS=1 python scripts/compare_here.py

Prints a Markdown table. Step times are medians after the first step; a machine that has other work
to do measures longer ones, so the load when each row starts stands beside it.
"""

from __future__ import annotations

import os

import torch

from autoplan.units import format_bytes, format_seconds
from autoplan.workflow import Options, Question, RunRequest, plan_run

STEPS = 6
HEAD = (
    "model", "pins", "batch", "predicted", "interval", "measured", "ratio", "interval holds",
    "memory counted and simulated", "load",
)  # fmt: skip
CASES = (
    ("tiny-llama", 1, "dp=1", 8, 128),
    ("tiny-llama", 2, "dp=2,zero=0", 8, 128),
    ("tiny-llama", 2, "tp=2", 8, 128),
    ("tiny-llama", 2, "pp=2,micro_batch=2", 8, 128),
    ("tiny-llama", 2, "dp=2,zero=3,recompute=full", 8, 128),
    ("tiny-gpt2", 2, "tp=2", 8, 128),
    ("gpt2", 2, "pp=2,micro_batch=1", 2, 128),
)
"""(model, ranks, pins, global batch, positions)."""


def row(model: str, ranks: int, pins: str, batch: int, seq_len: int) -> str:
    """A row of the table."""
    load = os.getloadavg()[0]
    options = Options(global_batch_size=batch, seq_len=seq_len)
    question = Question(model, f"cpu-host:{ranks}", pins=(pins,), options=options)
    request = RunRequest(STEPS, verify=False, precision="plan")
    document = plan_run(question, request).document
    assert document is not None, "one machine has every report"
    measured, predicted = document["measured"]["step_time_s"], document["predicted"]["step_time_s"]
    low, high = document["predicted"]["step_time_interval_s"]
    verdict = "inside" if low <= measured <= high else "**miss**"
    memory = document["counted_peak_bytes"]
    counted = format_bytes(memory["measured"])
    same = "equal" if memory["measured"] == memory["predicted"] else "**different**"
    cells = (
        model, f"`{pins}`", f"{batch} x {seq_len}", format_seconds(predicted),
        f"{format_seconds(low)} - {format_seconds(high)}", format_seconds(measured),
        f"{measured / predicted:.1f}", verdict, f"{counted}, {same}", f"{load:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"| {' | '.join(HEAD)} |")
    print("|" + "---|" * len(HEAD))
    for case in CASES:
        print(row(*case), flush=True)


if __name__ == "__main__":
    main()
