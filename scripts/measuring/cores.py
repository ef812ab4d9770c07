"""Who keeps the cores busy: a few processes, or something else?

Source: proc_stat(5) and proc_pid_stat(5), Linux. Ticks are 10 ms.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

IDLE_FIELDS = (3, 4)
"""Of the first line of /proc/stat: idle, and waiting for a disk."""
TIME_FIELDS = slice(11, 13)
"""Of /proc/PID/stat after the command's name: user and system time."""
TICKS = os.sysconf("SC_CLK_TCK")


class Cores:
    """Counts, from its making, what other work than given processes takes.

    Args:
        processes: ids of those whose time does not count as other work, besides this one.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes = (*processes, os.getpid())
        self._begin, self._other = perf_counter(), self._taken()

    def elsewhere(self) -> float:
        """Cores that other work has kept busy since, on average."""
        other = (self._taken() - self._other) / TICKS
        return max(0.0, other / (perf_counter() - self._begin))

    def _taken(self) -> int:
        """Ticks of all cores but those of the processes."""
        # Guest time, from the ninth field on, is part of user time already.
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        busy = sum(fields) - sum(fields[k] for k in IDLE_FIELDS)
        return busy - sum(map(_ticks, self._processes))


def _ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[TIME_FIELDS]))
