"""Ranks that torchrun starts: on several machines, or when its flags are given.

Every node runs the same command. The plan is written to a file of this node, which
`autoplan.launch` reads in every process; process 0 leaves its report in another, so the node that
has it shows the report, and exit codes survive torchrun, which has only one of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from autoplan.errors import InputError, LaunchError, Problem
from autoplan.files.text import read_json, write_json
from autoplan.workflow.documents import plan_document
from autoplan.workflow.prediction import Priced


class Launched(Protocol):
    """What of a run's request the launched processes must know."""

    @property
    def steps(self) -> int:
        """Training steps."""

    @property
    def data(self) -> str:
        """A file, or ""."""

    @property
    def verify(self) -> bool:
        """Whether to verify."""

    @property
    def save(self) -> str:
        """A folder to leave the state in, or ""."""

    @property
    def resume(self) -> str:
        """A checkpoint to begin from, or ""."""


@dataclass(frozen=True, slots=True)
class Torchrun:
    """torchrun's own flags; "" leaves torchrun's default.

    Attributes:
        nnodes, nproc_per_node: machines, and processes on each.
        node_rank, rdzv_endpoint, rdzv_id, master_addr: as torchrun takes them.
        device: `cpu`, `cuda` or `npu`: where the ranks compute.
    """

    nnodes: int = 1
    nproc_per_node: int = 1
    node_rank: str = ""
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    master_addr: str = ""
    device: str = "cpu"

    def flags(self) -> list[str]:
        """The command line of torchrun without what it starts."""
        words = [f"--nnodes={self.nnodes}", f"--nproc-per-node={self.nproc_per_node}"]
        for name in ("node_rank", "rdzv_endpoint", "rdzv_id", "master_addr"):
            value = getattr(self, name)
            words += [f"--{name.replace('_', '-')}={value}"] if value else []
        if self.rdzv_endpoint:
            words.append("--rdzv-backend=c10d")
        elif self.nnodes == 1:
            words.append("--standalone")
        return words


def run_under_torchrun(
    priced: Priced, request: Launched, torchrun: Torchrun
) -> Mapping[str, Any] | None:
    """Run a plan in processes that torchrun starts.

    Args:
        priced: the plan as it is to be executed.
        request: steps, data, verification, checkpoints.
        torchrun: its flags.

    Returns:
        The report of process 0, or None where this node does not have it.

    Raises:
        InputError: torchrun would start another number of processes than the plan has ranks.
        LaunchError: torchrun failed and process 0 left no report.
    """
    started = torchrun.nnodes * torchrun.nproc_per_node
    if started != priced.devices:
        found = f"{torchrun.nnodes} x {torchrun.nproc_per_node} = {started} processes"
        allowed = f"{priced.devices}, one per device of the plan"
        raise InputError(Problem("--nnodes, --nproc-per-node", "", found, allowed))
    with TemporaryDirectory(prefix="autoplan-") as folder:
        plan, report = Path(folder) / "plan.json", Path(folder) / "report.json"
        write_json(plan, plan_document(priced))
        command = [sys.executable, "-m", "torch.distributed.run", *torchrun.flags()]
        command += ["-m", "autoplan.launch", str(plan), "--report", str(report)]
        command += ["--precision", "plan", "--steps", str(request.steps)]
        command += ["--device", torchrun.device]
        command += ["--data", request.data] if request.data else []
        command += ["--save", request.save] if request.save else []
        command += ["--resume", request.resume] if request.resume else []
        command += [] if request.verify else ["--no-verify"]
        # Standard output belongs to the report, so what the processes print goes to the other.
        done = subprocess.run(command, check=False, stdout=sys.stderr.fileno())
        document = read_json(report) if report.exists() else None
    if done.returncode and document is None:
        raise LaunchError(f"torchrun ended with exit code {done.returncode}; see its output above")
    return document
