"""Predicted against measured on one device: profile it, predict plans, run them, compare.

    python scripts/device_check.py --extends h200          on a CUDA device, under 8 minutes
    python scripts/device_check.py --device cpu --plans 4  tries the script without one

Plans differ in size, precision, micro-batch and recomputation. All predictions are in
`predictions.json` of the output folder before anything runs. Memory is compared with what torch's
allocator gave out at its peak, which holds tensors and temporaries but no context and no gaps;
without such an allocator with what the runtime counted.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring.here import WARM_UP
from measuring.predicted import Row, predict_all, row_of, write_models
from measuring.scores import markdown, render, score
from measuring.visits import Seen, measured, seen
from measuring.workloads import DEVICE_MODELS, DEVICE_WORKLOADS, MODELS, device_strata

from autoplan.errors import AutoplanError
from autoplan.files.hardware import dump_hardware
from autoplan.files.text import write_json
from autoplan.ir.timeline import COUNTED_LINES
from autoplan.runtime.execute import RunResult
from autoplan.runtime.feeds import Loader
from autoplan.runtime.pool import Pool
from autoplan.runtime.session import RankJob, RankRun, Surroundings, run_rank
from autoplan.runtime.supervise import Watch, quiet_limit
from autoplan.runtime.worker import Seat
from autoplan.units import format_bytes
from autoplan.validate.campaign import balanced_sample
from autoplan.validate.measure.machine import Effort, measure_machine
from autoplan.workflow import Priced, RunRequest
from autoplan.workflow.running import Prepared, prepare

TENSOR_LINES = (*COUNTED_LINES, "workspace")
"""Lines of predicted memory that torch's allocator gives out."""
EFFORT = {"cuda": Effort(longest=0.2), "cpu": Effort(longest=0.02, steps=2, sizes=(1 << 10,))}


@dataclass(frozen=True)
class Answer:
    """What the worker saw: its run, and the most bytes that the allocator gave out."""

    run: RankRun
    allocated: int


def perform(seat: Seat, job: RankJob) -> Answer:
    """The worker's task: run a plan of one rank."""
    device = seat.world.device
    module = None if device.type == "cpu" else torch.get_device_module(device)
    if module is not None:
        module.empty_cache()
        module.reset_peak_memory_stats()
    around = Surroundings(Loader(job.program, job.settings.batches), device, seat.progress)
    run: RankRun = seat.world.drive(run_rank(job, around))
    return Answer(run, module.max_memory_allocated() if module is not None else 0)


def run_one(ready: Prepared, pool: Pool) -> tuple[Seen, int]:
    """What a plan's run measured, and the peak of the allocator."""
    program, settings = ready.program, ready.settings
    seat = program.ranks[0]
    job = RankJob(program, ready.priced.graph, settings, seat)
    (answer,) = pool.run(perform, [job], Watch(program, quiet_limit(settings.longest)))
    return seen(RunResult(program, {seat: answer.run}), WARM_UP, 0.0), answer.allocated


def memory_of(priced: Priced, peak: int, allocated: int) -> dict[str, Any]:
    """Predicted and measured bytes of the same things."""
    lines = priced.timeline.peak_memory[0]
    kinds = TENSOR_LINES if allocated else COUNTED_LINES
    return {
        "predicted": sum(lines.get(line, 0) for line in kinds),
        "measured": allocated or peak,
        "counted": peak,
    }


def memory_table(rows: Sequence[Row]) -> str:
    """Markdown: predicted and measured memory of every plan."""
    table: list[tuple[str, ...]] = [("plan", "pins", "predicted", "measured", "error")]
    off = []
    for row in rows:
        memory: Mapping[str, Any] = row["memory"]
        off.append(memory["predicted"] / memory["measured"] - 1)
        sizes = [format_bytes(memory[key]) for key in ("predicted", "measured")]
        cells = (f"{row['id']} {row['group']}", f"`{row['pins']}`", *sizes, f"{off[-1]:+.1%}")
        table.append(cells)
    usual = median(map(abs, off))
    return (
        f"{markdown(table)}\n\nmemory: median error {usual:.1%}, largest {max(off, key=abs):+.1%}"
    )


def machine_of(options: Namespace) -> str:
    """The profile to predict with, made here unless one is named."""
    if options.hardware:
        return str(options.hardware)
    # In workers, before this process has a device context, which cannot be forked.
    extends = options.extends or ("cpu-host" if options.device == "cpu" else "")
    found = measure_machine("here", 1, extends, EFFORT[options.device])
    path = options.output / "hardware.json"
    write_json(path, dump_hardware(found.hardware))
    return str(path)


def check(options: Namespace) -> None:
    """Profile, predict, run, print."""
    machine = machine_of(options)
    models = DEVICE_MODELS if options.device == "cuda" else MODELS
    folder = options.output / "models"
    write_models(folder, {w[0]: models[w[0]] for w in DEVICE_WORKLOADS[options.device]})
    cases = balanced_sample(device_strata(options.device), 2 * options.plans, options.seed)
    planned = predict_all(cases, folder, {1: f"{machine}:1"})[: options.plans]
    rows = [row_of(number, case, priced) for number, (case, priced) in enumerate(planned)]
    write_json(options.output / "predictions.json", {"rows": rows})
    request = RunRequest(WARM_UP + options.steps, verify=False, precision="plan")
    with Pool(options.device) as pool:
        pool.grow(1)
        for row, (_, priced) in zip(rows, planned, strict=True):
            one, allocated = run_one(prepare(priced, request), pool)
            row["measured"] = measured([one])
            row["memory"] = memory_of(priced, one.peak, allocated)
    write_json(options.output / "results.json", {"score": score(rows), "rows": rows})
    print(f"{render(rows)}\n\n{memory_table(rows)}")


def main(argv: Sequence[str]) -> int:
    """Run; the exit code."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=sorted(DEVICE_WORKLOADS), default="cuda")
    parser.add_argument("--hardware", help="a profile, instead of measuring one")
    parser.add_argument("--extends", default="", help="profile of such a device")
    parser.add_argument("--plans", type=int, default=20, help="how many")
    parser.add_argument("--steps", type=int, default=5, help="steps of a plan that count")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("-o", "--output", type=Path, default=Path("device-check"), help="folder")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # the worker is forked, which other threads do not survive
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        check(options)
    except AutoplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
