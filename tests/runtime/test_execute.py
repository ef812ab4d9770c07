"""Whole runs: verified against the reference, the same bits on both transports, honest records."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoplan.errors import CheckError
from autoplan.runtime.execute import execute, whole_records
from autoplan.runtime.verify import verify
from tests.runtime.bigram import GRAPH, SETTINGS, TRIAL, bigram


def test_run_is_verified():
    records, unequal = whole_records(execute(bigram(), GRAPH, SETTINGS))
    verdict = verify(TRIAL, records, unequal)
    assert verdict.verified, verdict.failures
    assert len(verdict.losses) == 3
    assert not torch.equal(
        records[0].parameters["model.table"], records[2].parameters["model.table"]
    )


def test_both_transports_give_the_same_bits(pool):
    here, there = execute(bigram(), GRAPH, SETTINGS), execute(bigram(), GRAPH, SETTINGS, pool)
    assert here.losses == there.losses
    assert here.peaks == there.peaks
    for rank, run in here.ranks.items():
        for one, other in zip(run.snapshots, there.ranks[rank].snapshots, strict=True):
            assert all(torch.equal(one[key], other[key]) for key in one)
    assert all(seconds > 0 for seconds in there.step_seconds)


def test_accounts_agree_and_are_the_same_in_every_step():
    runs = {
        kind: execute(bigram(), GRAPH, replace(SETTINGS, memory=kind))
        for kind in ("running", "sweep")
    }
    for rank in (0, 1):
        running, sweep = (runs[kind].ranks[rank].steps for kind in ("running", "sweep"))
        assert [s.history for s in running] == [s.history for s in sweep]
        assert len({s.history for s in running}) == 1
        assert running[0].peak_at == "F F i0 m1: xent_grad"
        # table, momentum, gradient; logits and theirs; statistics; ids and targets; count, loss.
        assert running[0].peak == 8 * (3 * 64 + 2 * 48 + 12 + 12 + 2)


def test_without_records_nothing_is_kept():
    result = execute(bigram(), GRAPH, replace(SETTINGS, record=False, memory="none"))
    assert result.peaks == {0: 0, 1: 0}
    assert all(not run.snapshots and not run.steps[0].gradients for run in result.ranks.values())
    assert result.losses == execute(bigram(), GRAPH, SETTINGS).losses


def test_slots_left_behind_are_named():
    prog = bigram()
    actions = tuple(a for a in prog.stages[0].actions if a.kind != "FREE")
    prog = replace(prog, stages=(replace(prog.stages[0], actions=actions),))
    with pytest.raises(CheckError, match=r"ends the step with slots alive: \[\('ids', -1, 0\)"):
        execute(prog, GRAPH, SETTINGS)


def test_replicas_that_differ_are_found():
    result = execute(bigram(), GRAPH, SETTINGS)
    first = result.ranks[1].snapshots[1]["parameter", "model.table"]
    first[0, 0] += 1e-12
    _, unequal = whole_records(result)
    assert [d.index for d in unequal] == [(0, 0)]


def test_under_torchrun():
    """torchrun starts the ranks; process 0 verifies and prints one document."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", "tests.runtime.launch_bigram", "plan.json", "--steps", "2",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=root, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer = json.loads(line)
    assert answer["verified"] is True
    assert answer["loss"] == list(execute(bigram(), GRAPH, replace(SETTINGS, steps=2)).losses)
