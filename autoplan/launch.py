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
from autoplan.files.text import write_json
from autoplan.ir.program import Program
from autoplan.runtime.distributed import BACKENDS, World
from autoplan.runtime.execute import RunResult, execute_in_world, whole_records
from autoplan.runtime.session import Settings
from autoplan.runtime.verify import Trial, Verdict, verify
from autoplan.workflow import Question, RunRequest, prepare_file
from autoplan.workflow.running import run_document


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
    parser.add_argument("--data", default="", help="any file; without it tokens are synthetic")
    parser.add_argument("--precision", default="fp64", help="fp64, fp32, ..., or `plan`")
    parser.add_argument("--device", choices=sorted(BACKENDS), default="cpu", help="device type")
    parser.add_argument("--no-verify", dest="verify", action="store_false", help="only run")
    parser.add_argument("--save", default="", help="folder to leave the state in")
    parser.add_argument("--resume", default="", help="checkpoint to begin from")
    parser.add_argument("--report", type=Path, help="write the report here, print nothing")
    return parser.parse_args(argv)


def prepare(arguments: Namespace) -> Launch:
    """The plan that the command line names, lowered and checked.

    Raises:
        InputError: bad plan or arguments.
    """
    request = RunRequest(
        arguments.steps, arguments.data, arguments.verify, precision=arguments.precision,
        save=arguments.save, resume=arguments.resume,
    )  # fmt: skip
    ready = prepare_file(Question(str(arguments.plan)), request)
    return Launch(ready.program, ready.trial, ready.settings, arguments.device)


def main(argv: Sequence[str], prepare: Prepare = prepare) -> int:
    """Run one rank of the plan that the command line names.

    Args:
        argv: the command line without the program's name.
        prepare: makes of it what to run.

    Returns:
        The exit code.
    """
    arguments = parse(argv)
    try:
        outcome = launch(prepare(arguments))
        if outcome is not None:
            result, verdict = outcome
            _report(run_document(result, verdict), arguments.report)
            if verdict is not None:
                verdict.raise_if_failed()
    except AutoplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _report(document: dict[str, Any], path: Path | None) -> None:
    if path is None:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        write_json(path, document)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
