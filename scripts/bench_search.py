"""How long searches take, how many candidates they solve, and how much memory they need.

    OMP_NUM_THREADS=1 python scripts/bench_search.py [--only WORDS] [--growth]

Each search runs in a process of its own, so that its peak of resident memory is its own. `--growth`
searches one model on more and more devices of one kind.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

from autoplan.describe import describe
from autoplan.files.hf_config import load_model
from autoplan.files.machine_spec import load_hardware
from autoplan.files.stack import load_stack
from autoplan.frontends import build_graph, training_step
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.search import Request, search
from autoplan.units import KIB, format_bytes, format_seconds

HYPER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
HEADROOM = 0.06
"""Share of each device's memory kept free, as the command line does by default."""
ROW = "{:14} {:16} {:>6} {:>6} {:>8} {:>8} {:>10} {:>10} {:>10}  {}"
HEAD = ROW.format(
    "model", "machine", "batch", "seq", "seconds", "cpu_s", "candidates", "peak_rss", "step", "plan"
)  # fmt: skip
DEGREES = ("tp", "tp2", "cp", "dp", "pp", "zero", "micro_batches")


@dataclass(frozen=True)
class Bench:
    """A question.

    Attributes:
        model, machine: names or files.
        batch: sequences per step.
        seq_len: positions per sequence.
    """

    model: str
    machine: str
    batch: int
    seq_len: int

    def __str__(self) -> str:
        return f"{self.model} {self.machine} {self.batch} {self.seq_len}"


BENCHES = [
    Bench("llama-2-13b", "rtx4090", 128, 4096),
    Bench("gpt3-175b", "a100-80g:1024", 1536, 2048),
    Bench("llama-2-70b", "a100-80g:256", 1024, 4096),
    Bench("llama-2-70b", "cloudmatrix-384", 1024, 4096),
    Bench("llama-3.1-405b", "h100-80g:16384", 2048, 8192),
]
GROWTH = [Bench("llama-2-13b", f"a100-80g:{8 * 4**i}", 64 * 4**i, 4096) for i in range(5)]


def measure(bench: Bench) -> str:
    """Search, and say in a row what it took."""
    hardware, stack = load_hardware(bench.machine), load_stack("autoplan")
    config = load_model(bench.model)
    begin, cpu = perf_counter(), process_time()
    graph = training_step(build_graph(config, bench.seq_len))
    workload = Workload(
        "train", bench.batch, bench.seq_len, PRECISIONS["bf16_mixed"], Optimizer("adamw", HYPER),
        memory_headroom=int(HEADROOM * hardware.device.memory),
    )  # fmt: skip
    result = search(Request(graph, config, hardware, stack, workload))
    seconds, cpu = perf_counter() - begin, process_time() - cpu
    peak = format_bytes(getrusage(RUSAGE_SELF).ru_maxrss * KIB)
    best = result.plans[0]
    words = describe(graph, best.plan)
    winner = " ".join(f"{key}={words[key]}" for key in DEGREES)
    step = format_seconds(best.timeline.step_time)
    sizes = bench.batch, bench.seq_len, f"{seconds:.2f}", f"{cpu:.2f}"
    return ROW.format(bench.model, bench.machine, *sizes, result.candidates, peak, step, winner)


def main() -> None:
    """Measure what the command line asks for."""
    parser = ArgumentParser(description="Time searches.")
    parser.add_argument("--only", default="", help="searches whose line contains this")
    parser.add_argument("--growth", action="store_true", help="one model on 8 to 2048 devices")
    options = parser.parse_args()
    print(HEAD)
    for bench in GROWTH if options.growth else BENCHES:
        if options.only in str(bench):
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:
                print(alone.submit(measure, bench).result(), flush=True)


if __name__ == "__main__":
    main()
