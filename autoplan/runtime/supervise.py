"""Watching workers: a dead, stopped, failed or hung one is found, named and never left behind.

Three signs, looked at every `TICK`: a process has ended or is stopped (reported at once); a worker
answers with an error; no rank has finished an instruction for the limit. When one worker dies its
peers' connections break a few milliseconds later, so an error that only says so waits `GRACE` for
the cause.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

from autoplan.errors import AutoplanError, LaunchError
from autoplan.ir.program import Program
from autoplan.runtime.progress import Position, ProgressPage
from autoplan.runtime.worker import Failure

TICK = 0.02
"""Seconds between two looks at the processes."""

GRACE = 0.5
"""Seconds in which the cause of a broken connection shows itself."""

QUIET_SECONDS, QUIET_FACTOR = 20.0, 20.0
LAST_LINES = 12


def quiet_limit(longest: float) -> float:
    """Seconds without progress after which a run is hung.

    Args:
        longest: predicted seconds of its longest instruction.
    """
    return max(QUIET_SECONDS, QUIET_FACTOR * longest)


@dataclass(frozen=True)
class Watch:
    """What a run's launcher needs to judge it.

    Attributes:
        program: what the ranks execute; process k executes `program.ranks[k]`.
        limit: seconds without progress after which the run is hung.
    """

    program: Program
    limit: float = QUIET_SECONDS


@dataclass(frozen=True, eq=False)
class Worker:
    """A launcher's hold on one worker.

    Attributes:
        process: the forked process, leader of a process group of its own.
        connection: takes jobs, brings answers.
        progress: where it stands.
        output: file descriptor of what it printed.
    """

    process: BaseProcess
    connection: Connection
    progress: ProgressPage
    output: int

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it.

        Source: proc(5): the state is the first field after the command name in parentheses.
        """
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def await_ready(self) -> bool:
        """Wait for its first message; False when it died or was stopped before that."""
        while not self.connection.poll(TICK):
            if self.stopped or not self.process.is_alive():
                return False
        try:
            self.connection.recv_bytes()
        except EOFError:
            return False
        return True

    def last_lines(self) -> tuple[str, ...]:
        """The end of what it printed."""
        size = os.fstat(self.output).st_size
        text = os.pread(self.output, 1 << 14, max(0, size - (1 << 14))).decode(errors="replace")
        return tuple(text.splitlines()[-LAST_LINES:])

    def kill(self) -> None:
        """End it and everything it started, also when stopped, and reap it."""
        pid = self.process.pid
        assert pid is not None
        # The group exists once the worker has made it; the process itself is killed in any case.
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()
        os.close(self.output)


def supervise(workers: Sequence[Worker], watch: Watch) -> list[Any]:
    """Wait for one answer of each worker.

    Returns:
        The results, by worker.

    Raises:
        LaunchError: a worker died, stopped, hung or raised an error that is a bug.
        AutoplanError: a worker reported it; raised as it is.
    """
    return _Supervisor(workers, watch).collect()


class _Supervisor:
    """One run being watched."""

    def __init__(self, workers: Sequence[Worker], watch: Watch) -> None:
        self._workers = workers
        self._watch = watch
        self._results: dict[int, Any] = {}
        self._lost: tuple[float, LaunchError] | None = None
        self._started = [worker.progress.read().started for worker in workers]
        self._moved = monotonic()

    def collect(self) -> list[Any]:
        handles = [w.connection for w in self._workers] + [
            w.process.sentinel for w in self._workers
        ]
        while len(self._results) < len(self._workers):
            wait(handles, timeout=TICK)
            for index, worker in enumerate(self._workers):
                self._look(index, worker)
            self._check_lost()
            self._check_quiet()
        return [self._results[index] for index in range(len(self._workers))]

    def _look(self, index: int, worker: Worker) -> None:
        """Take a worker's answer, if there is one, and see whether it is still alive."""
        ended = False
        if index not in self._results and worker.connection.poll():
            try:
                self._answer(index, pickle.loads(worker.connection.recv_bytes()))
            except (EOFError, ConnectionResetError):
                ended = True
        if ended or not worker.process.is_alive():
            worker.process.join()
            self._fail(index, f"died ({_how(worker.process.exitcode)})", worker.last_lines())
        if worker.stopped:
            self._fail(index, "is stopped (a signal stopped its process)")

    def _answer(self, index: int, answer: Any) -> None:
        if not isinstance(answer, Failure):
            self._results[index] = answer
            self._moved = monotonic()
            return
        error = answer.error()
        if isinstance(error, LaunchError):
            # Its connection broke: most likely because another rank died.
            lost = LaunchError(self._text(index, f"lost its peers: {error}"))
            self._lost = self._lost or (monotonic(), lost)
        elif isinstance(error, AutoplanError):
            raise error
        else:
            self._fail(index, f"raised {answer.summary}", answer.lines[-LAST_LINES:])

    def _check_lost(self) -> None:
        if self._lost and monotonic() - self._lost[0] > GRACE:
            raise self._lost[1]

    def _check_quiet(self) -> None:
        positions = [worker.progress.read() for worker in self._workers]
        started = [position.started for position in positions]
        if started != self._started:
            self._started, self._moved = started, monotonic()
        if monotonic() - self._moved < self._watch.limit:
            return
        running = [i for i in range(len(self._workers)) if i not in self._results]
        # Whoever computes holds up those that communicate; among equals, who came least far.
        culprit = min(running, key=lambda i: (positions[i].communicating, positions[i].started))
        others = tuple(
            f"rank {self._rank(i)}: {self._where(i, positions[i])}" for i in running if i != culprit
        )
        quiet = f"hangs: no rank has finished an instruction for {self._watch.limit:g} s"
        self._fail(culprit, quiet, (*others, *self._workers[culprit].last_lines()))

    def _fail(self, index: int, what: str, lines: Sequence[str] = ()) -> None:
        raise LaunchError(self._text(index, what, lines))

    def _text(self, index: int, what: str, lines: Sequence[str] = ()) -> str:
        where = self._where(index, self._workers[index].progress.read())
        head = f"rank {self._rank(index)} {what}; it stood at {where}"
        return "\n".join([head, *(f"  {line}" for line in lines)])

    def _rank(self, index: int) -> int:
        return self._watch.program.ranks[index]

    def _where(self, index: int, position: Position) -> str:
        return position.describe(self._watch.program, self._rank(index))


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
