"""A pool of worker processes on this machine that many runs share.

Workers are forked from a launcher that has imported torch: eight are ready in 0.05 s, where
starting Python anew takes seconds. A fork copies one thread and no device context, so the launcher
must have one thread and no context. The processes find each other through a file, because a server
for that would be a second thread.
"""

from __future__ import annotations

import os
import pickle
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import torch

from autoplan.errors import LaunchError
from autoplan.runtime.progress import ProgressPage
from autoplan.runtime.supervise import Watch, Worker, supervise
from autoplan.runtime.worker import Job, Task, serve


class Pool:
    """Workers that outlive a run; a context manager that leaves no process behind."""

    def __init__(self, device_type: str = "cpu") -> None:
        """Fork nobody yet.

        Args:
            device_type: `cpu`, `cuda` or `npu`; worker k takes device k.
        """
        self._device_type = device_type
        self._workers: list[Worker] = []
        self._folder = TemporaryDirectory(prefix="autoplan-")
        self._worlds = 0
        self._size = 0

    def run(self, task: Task, payloads: Sequence[Any], watch: Watch) -> list[Any]:
        """Perform a task in one process per payload, all joined in one process group.

        Args:
            task: a function of a module.
            payloads: what each process gets; must be picklable, as the results.
            watch: what to judge the run by.

        Returns:
            The results in the order of `payloads`.

        Raises:
            LaunchError: a worker died, stopped, hung or raised; all workers are ended (the next
                run starts new ones).
            AutoplanError: a worker reported it.
        """
        size = len(payloads)
        if not all(worker.process.is_alive() for worker in self._workers):
            self.kill()  # somebody ended a worker between two runs
        self.grow(size)
        if size != self._size:
            self._worlds, self._size = self._worlds + 1, size
        store = f"{self._folder.name}/world-{self._worlds}"
        try:
            for worker, payload in zip(self._workers, payloads, strict=False):
                job = pickle.dumps(Job(store, size, self._device_type, task, payload))
                with suppress(BrokenPipeError):  # it has just died, as its supervisor will find
                    worker.connection.send_bytes(job)
            return supervise(self._workers[:size], watch)
        except BaseException:
            self.kill()
            raise

    def grow(self, size: int) -> None:
        """Fork until there are `size` workers, each ready for jobs and bound to die with us.

        Raises:
            LaunchError: this process has other threads or a device context, or a worker did not
                start; then all are ended.
        """
        if len(self._workers) < size:
            _check_forkable()
        context = get_context("fork")
        before = len(self._workers)
        for index in range(before, size):
            here, there = context.Pipe()
            progress = ProgressPage()
            output = os.memfd_create(f"worker-{index}")
            process = context.Process(
                target=serve, args=(index, there, progress, output, os.getpid()), daemon=True
            )
            with warnings.catch_warnings():
                # Later Pythons warn of native threads; numpy's BLAS has one, and handles forks.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            there.close()
            self._workers.append(Worker(process, here, progress, output))
        if not all(worker.await_ready() for worker in self._workers[before:]):
            self.kill()
            raise LaunchError("a worker died or was stopped while it started")

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.process.pid or 0 for worker in self._workers)

    def kill(self) -> None:
        """End every worker at once."""
        for worker in self._workers:
            worker.kill()
        self._workers, self._size = [], 0

    def close(self) -> None:
        """End every worker and remove the pool's files."""
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_forkable() -> None:
    if threading.active_count() > 1 or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise LaunchError(
            "workers cannot be forked from a process with several threads or a device context; "
            "start the ranks with torchrun -m autoplan.launch"
        )
