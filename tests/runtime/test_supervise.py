"""A rank that dies, stops, fails or hangs is named with its instruction, and nobody stays."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from autoplan.errors import InputError, LaunchError
from autoplan.runtime import worker
from autoplan.runtime.pool import Pool
from autoplan.runtime.supervise import Watch, quiet_limit
from tests.runtime.tiny import accident, drive


def run(how, victim=2, limit=20.0):
    """The error of a run of four ranks with an accident, and the workers' process ids."""
    prog = accident(how, victim)
    jobs = [(prog, rank, 3) for rank in prog.ranks]
    with Pool() as pool:
        pool.grow(4)
        processes = pool.processes
        with pytest.raises((LaunchError, InputError)) as caught:
            pool.run(drive, jobs, Watch(prog, limit))
    return caught.value, processes


def gone(processes):
    """No such process any more, or dead and waiting for an init that takes its time to reap."""
    for pid in processes:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            return False
    return True


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("SIGKILL", "rank 2 died (SIGKILL)"),
        ("SIGSTOP", "rank 2 is stopped"),
        ("exit", "rank 2 died (exit code 3)"),
        ("raise", "rank 2 raised ZeroDivisionError: an accident"),
        ("hang", "rank 2 hangs: no rank has finished an instruction for 0.5 s"),
    ],
)
def test_culprit_and_instruction_are_named(how, what):
    begin = time.monotonic()
    error, processes = run(how, limit=0.5 if how == "hang" else 20.0)
    text = str(error)
    assert isinstance(error, LaunchError)
    assert text.startswith(what)
    assert "step 1: F layer/F: fault" in text
    assert gone(processes)
    assert time.monotonic() - begin < 15  # well below the 20 s of the limit
    if how == "exit":
        assert "last words" in text
    if how == "raise":
        assert "in _raise" in text  # the last lines say where
    if how == "hang":
        assert "rank 0: step 1: F layer/F: all_reduce" in text


def test_reported_errors_come_back_as_they_are():
    error, processes = run("report")
    assert isinstance(error, InputError)
    assert error.problems[0].field == "$.a"
    assert str(error) == "plan.json: $.a: found 1, allowed: 2"
    assert gone(processes)


def test_a_pool_starts_anew_after_a_failure():
    with Pool() as pool:
        for _ in range(2):
            prog = accident("raise", 0)
            with pytest.raises(LaunchError, match="rank 0 raised"):
                pool.run(drive, [(prog, rank, 3) for rank in prog.ranks], Watch(prog))
            assert pool.processes == ()
        good = accident("raise", 9)
        assert len(pool.run(drive, [(good, rank, 3) for rank in good.ranks], Watch(good))) == 4


def slow_to_settle(output, parent, settle=worker._settle):
    """A worker on a busy machine."""
    time.sleep(0.3)
    settle(output, parent)


def test_workers_are_settled_once_the_pool_has_grown(monkeypatch):
    """Before that a worker has not yet asked to die with its launcher."""
    monkeypatch.setattr(worker, "_settle", slow_to_settle)
    with Pool() as pool:
        pool.grow(3)
        outputs = [Path(f"/proc/{pid}/fd/1").readlink().name for pid in pool.processes]
        assert all(name.startswith("memfd:worker-") for name in outputs)


def test_a_worker_that_dies_while_it_starts_is_an_error(monkeypatch):
    monkeypatch.setattr(worker, "_settle", lambda output, parent: os._exit(3))
    with Pool() as pool:
        with pytest.raises(LaunchError, match="died or was stopped while it started"):
            pool.grow(2)
        assert pool.processes == ()


def test_limit_follows_the_longest_instruction():
    assert quiet_limit(0.1) == 20
    assert quiet_limit(3) == 60


def test_workers_die_with_their_launcher():
    """Also when it is killed and one of them is stopped."""
    code = """
        import os, signal, time, torch
        from autoplan.runtime.pool import Pool
        pool = Pool()
        pool.grow(3)
        os.kill(pool.processes[1], signal.SIGSTOP)
        print(*pool.processes, flush=True)
        time.sleep(60)
    """
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    with launcher:
        assert launcher.stdout is not None
        processes = [int(word) for word in launcher.stdout.readline().split()]
        assert len(processes) == 3
        time.sleep(0.1)
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not gone(processes):
        time.sleep(0.01)
    assert gone(processes)
