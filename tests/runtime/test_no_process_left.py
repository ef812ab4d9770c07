"""After normal use nothing is left: no process, no file, no descriptor."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from autoplan.runtime.pool import Pool
from tests.runtime.matrix import Case, prepare
from tests.runtime.test_supervise import gone

ROOT = Path(__file__).parents[2]


def children():
    """Process ids of this process's children, zombies included."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has just ended
        if int(parent) == os.getpid():
            found.add(int(stat.parent.name))
    return found


def left(folder):
    """What a pool could leave behind: children, open descriptors, temporary folders."""
    return children(), len(list(Path("/proc/self/fd").iterdir())), sorted(folder.glob("autoplan-*"))


def test_runs_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    two, four = prepare(Case(2, "dp=2", steps=1)), prepare(Case(4, "dp=2,tp=2", steps=1))
    before = left(tmp_path)
    with Pool() as pool:
        for ready in (two, four, two):
            assert ready.verify(ready.run(pool)).verified
        processes = set(pool.processes)
        assert len(processes) == 4
        assert children() - before[0] == processes
        assert len(list(tmp_path.glob("autoplan-*"))) == 1
    assert left(tmp_path) == before


def test_a_program_that_closes_no_pool_leaves_nothing_behind(tmp_path):
    code = """
        import torch
        from autoplan.runtime.pool import Pool
        from tests.runtime.matrix import Case, prepare
        pool = Pool()
        ready = prepare(Case(4, "dp=2,pp=2", steps=1))
        assert ready.verify(ready.run(pool)).verified
        print(*pool.processes)
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    processes = [int(word) for word in done.stdout.split()]
    assert len(processes) == 4
    assert gone(processes)
    assert not list(tmp_path.glob("autoplan-*"))
