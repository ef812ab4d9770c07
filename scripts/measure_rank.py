"""One rank of a campaign on several nodes: runs the plans of a job in the order that it says.

    RANK=… WORLD_SIZE=… … python scripts/measure_rank.py job.json

The job names plan files, the rounds, the steps of a visit and where rank 0 leaves its report.
"""

from __future__ import annotations

import os
import sys
from itertools import chain
from pathlib import Path

import torch
from measuring.cores import Cores
from measuring.here import WARM_UP
from measuring.visits import seen

from autoplan.files.text import read_json, write_json
from autoplan.runtime.distributed import World
from autoplan.runtime.execute import execute_in_world
from autoplan.workflow import Question, RunRequest, prepare_file

TIMEOUT_SECONDS = 120.0


def main(path: str) -> None:
    """Run the job in a file."""
    torch.set_num_threads(1)
    job = read_json(path)
    request = RunRequest(job["steps"], verify=False, precision="plan")
    ready = [prepare_file(Question(plan), request) for plan in job["plans"]]
    world = World.from_environment("cpu", TIMEOUT_SECONDS)
    processes = world.gather(os.getpid())
    visits = []
    for index in chain.from_iterable(job["orders"]):
        cores = Cores(processes or ())
        plan = ready[index]
        result = execute_in_world(plan.program, plan.priced.graph, plan.settings, world)
        if result is None:
            continue
        one = seen(result, WARM_UP, cores.elsewhere())
        visits.append(
            {
                "plan": index,
                "seconds": list(one.visit.seconds),
                "elsewhere": one.visit.elsewhere,
                "parts": one.parts,
                "peak": one.peak,
            }
        )
    world.leave()
    if world.index == 0:
        write_json(Path(job["report"]), {"visits": visits})


if __name__ == "__main__":
    main(sys.argv[1])
