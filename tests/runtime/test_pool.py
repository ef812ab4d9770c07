"""The pool: one set of workers for many runs of several sizes."""

import os
import signal
import threading

import pytest
import torch

from autoplan.errors import LaunchError
from autoplan.runtime.pool import Pool
from autoplan.runtime.supervise import Watch
from tests.runtime.tiny import PAIR, collectives, drive, program, stage


def where(seat, payload):
    return payload, seat.index, seat.world.size, os.getpid(), torch.get_num_threads()


def tensors(seat, payload):
    return payload


def test_workers_stay_and_worlds_change_size(pool):
    small, large = program(stage(PAIR, [], [])), collectives("fp32", 8)
    pids = []
    for size, prog in ((2, small), (4, large), (2, small)):
        answers = pool.run(where, list("abcd")[:size], Watch(prog))
        assert [a[:3] for a in answers] == [("abcd"[i], i, size) for i in range(size)]
        assert all(a[4] == 1 for a in answers)
        pids.append([a[3] for a in answers])
    assert pids[0] == pids[1][:2] == pids[2]


def test_tensors_travel_whole(pool):
    payload = {"a": torch.arange(10, dtype=torch.bfloat16), "b": torch.zeros(()), "c": [1, "x"]}
    (answer,) = pool.run(tensors, [payload], Watch(program(stage(PAIR, [], []))))
    assert torch.equal(answer["a"], payload["a"])
    assert answer["c"] == payload["c"]


def test_groups_are_reused(pool):
    prog = collectives("fp32", 8)
    first = pool.run(drive, [(prog, rank, 1) for rank in prog.ranks], Watch(prog))
    again = pool.run(drive, [(prog, rank, 1) for rank in prog.ranks], Watch(prog))
    assert all(torch.equal(a[k], b[k]) for a, b in zip(first, again, strict=True) for k in a)


def test_a_worker_ended_between_runs_is_replaced():
    prog = program(stage(PAIR, [], []))
    with Pool() as fresh:
        before = [a[3] for a in fresh.run(where, [1, 2], Watch(prog))]
        os.kill(before[1], signal.SIGKILL)
        os.waitid(os.P_PID, before[1], os.WEXITED | os.WNOWAIT)
        after = [a[3] for a in fresh.run(where, [1, 2], Watch(prog))]
    assert not set(before) & set(after)


def test_no_fork_beside_other_threads():
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with Pool() as fresh, pytest.raises(LaunchError, match="torchrun"):
            fresh.run(tensors, [1], Watch(program(stage(PAIR, [], []))))
    finally:
        done.set()
        other.join()
