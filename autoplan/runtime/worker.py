"""The life of a worker: a forked process that performs one task after another.

It dies with its launcher (also when that is killed), keeps what it prints for the launcher to
quote, and answers each job with its result or with how it failed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from autoplan.errors import AutoplanError
from autoplan.runtime.distributed import World
from autoplan.runtime.progress import ProgressPage

PR_SET_PDEATHSIG = 1
"""Source: prctl(2), Linux."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGEST_KEPT = -1, -3, (1 << 30)
"""Source: mallopt(3), glibc; bytes up to which freed memory is kept."""


@dataclass(frozen=True)
class Seat:
    """A worker's place in a run.

    Attributes:
        index: which of the run's processes it is.
        world: all of them, joined.
        progress: page to write positions in.
    """

    index: int
    world: World
    progress: ProgressPage


Task = Callable[[Seat, Any], Any]
"""A function of a module (workers find it by name): (seat, payload) -> result."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a launcher asks of one worker.

    Attributes:
        store: file through which the run's processes find each other; the same file, the same
            world, which is then joined only once.
        size: number of processes.
        device_type: where tensors lie.
        task, payload: what to do.
    """

    store: str
    size: int
    device_type: str
    task: Task
    payload: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """How a task failed.

    Attributes:
        kind, args, state: the error's class, arguments and attributes.
        summary: its type and message.
        lines: where, innermost last.
    """

    kind: type[BaseException]
    args: tuple[Any, ...]
    state: dict[str, Any]
    summary: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an error that is being handled."""
        reported = isinstance(error, AutoplanError)
        return cls(
            type(error) if reported else Exception,
            error.args if reported else (),
            dict(vars(error)) if reported else {},
            f"{type(error).__name__}: {error}",
            tuple(traceback.format_exc().splitlines()),
        )

    def error(self) -> BaseException:
        """The error again, as it was raised."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        vars(error).update(self.state)
        return error


def serve(
    index: int, connection: Connection, progress: ProgressPage, output: int, parent: int
) -> None:
    """Perform jobs until the launcher hangs up; runs in the forked process.

    Args:
        index: the worker's number.
        connection: brings jobs, takes answers.
        progress: page shared with the launcher.
        output: file descriptor that takes what is printed.
        parent: process id of the launcher.

    The first message is empty and says that the worker is ready.
    """
    _settle(output, parent)
    connection.send_bytes(b"")  # ready: from here on it cannot outlive its launcher
    world: World | None = None
    store = ""
    while True:
        try:
            job: Job = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            if world is None or job.store != store:
                if world is not None:
                    world.leave()
                world = World.join(job.store, index, job.size, device_type=job.device_type)
                store = job.store
            answer = pickle.dumps(job.task(Seat(index, world, progress), job.payload))
        except Exception as error:  # every error of a task is an answer: the launcher judges it
            answer = pickle.dumps(Failure.of(error))
        connection.send_bytes(answer)


def _keep_memory(library: ctypes.CDLL) -> None:
    """Let the C allocator keep what tensors free.

    By default it maps blocks above 32 MiB anew each time, and every page of them faults: a fresh
    tensor of 33 MiB then takes nine times as long to fill as one of 31 MiB. Without `mallopt`
    (another C library) nothing is lost but that time.
    """
    tune = getattr(library, "mallopt", None)
    if tune is not None:
        tune(M_MMAP_THRESHOLD, LARGEST_KEPT)
        tune(M_TRIM_THRESHOLD, LARGEST_KEPT)


def _settle(output: int, parent: int) -> None:
    """Become a worker: own process group, no survivor of the launcher, one thread."""
    os.setpgid(0, 0)
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _keep_memory(library)
    if os.getppid() != parent:  # it died before the signal was asked for
        os.kill(os.getpid(), signal.SIGKILL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
