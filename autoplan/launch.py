"""What `torchrun … -m autoplan.launch plan.json` runs in every process: one rank of a plan.

Process 0 gathers what the ranks did, verifies it and prints one JSON document; the others only
compute. A process that fails prints why and ends with the error's exit code, and torchrun ends the
rest.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.errors import AutoplanError
from autoplan.ir.program import Program
from autoplan.runtime.distributed import BACKENDS, World
from autoplan.runtime.execute import RunResult, execute_in_world, whole_records
from autoplan.runtime.session import Settings
from autoplan.runtime.verify import Trial, Verdict, verify


@dataclass(frozen=True)
class Launch:
    """A plan, ready to run.

    Attributes:
        program: what all ranks execute.
        trial: graph, workload and data, as verification needs them.
        settings: how to run.
        device_type: `cpu`, `cuda` or `npu`.
    """

    program: Program
    trial: Trial
    settings: Settings
    device_type: str


Prepare = Callable[[Namespace], Launch]
"""Command line -> what to run: loads the plan and lowers it."""


def launch(ready: Launch) -> tuple[RunResult, Verdict | None] | None:
    """Run this process's rank.

    Returns:
        On process 0 what all ranks did, and the verdict if the run was recorded; None elsewhere.

    Raises:
        LaunchError: torchrun's environment is missing, it started another number of processes
            than the plan has ranks, or a peer was lost.
    """
    world = World.from_environment(ready.device_type)
    try:
        result = execute_in_world(ready.program, ready.trial.graph, ready.settings, world)
    finally:
        world.leave()
    if result is None:
        return None
    verdict = None
    if ready.settings.record:
        records, unequal = whole_records(result)
        verdict = verify(ready.trial, records, unequal)
    return result, verdict


def parse(argv: Sequence[str]) -> Namespace:
    """The command line: the plan and how to run it."""
    parser = ArgumentParser(prog="torchrun … -m autoplan.launch", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan file")
    parser.add_argument("--steps", type=int, default=1, help="number of training steps")
    parser.add_argument("--data", type=Path, help="any file; without it tokens are synthetic")
    parser.add_argument("--device", choices=sorted(BACKENDS), default="cpu", help="device type")
    parser.add_argument("--no-verify", dest="verify", action="store_false", help="only run")
    return parser.parse_args(argv)


def document(result: RunResult, verdict: Verdict | None) -> dict[str, Any]:
    """What process 0 prints."""
    return {
        "verified": verdict.verified if verdict else None,
        "max_gradient_error": verdict.max_gradient_error if verdict else None,
        "loss": list(result.losses),
        "measured": {"step_time_s": list(result.step_seconds), "peak_memory_bytes": result.peaks},
    }


def main(argv: Sequence[str], prepare: Prepare) -> int:
    """Run one rank of the plan that the command line names.

    Args:
        argv: the command line without the program's name.
        prepare: makes of it what to run.

    Returns:
        The exit code.
    """
    try:
        outcome = launch(prepare(parse(argv)))
        if outcome is not None:
            result, verdict = outcome
            sys.stdout.write(json.dumps(document(result, verdict)) + "\n")
            if verdict is not None:
                verdict.raise_if_failed()
    except AutoplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    from autoplan.workflow import prepare_launch

    sys.exit(main(sys.argv[1:], prepare_launch))
