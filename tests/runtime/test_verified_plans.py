"""Plans of every kind, run on gloo: right, the same bits as in lock-step, and the memory foretold."""

from pathlib import Path

import pytest
import torch

from autoplan.runtime.progress import describe_place
from autoplan.simulate.account import account
from tests.runtime.matrix import CASES, Case, prepare


def assert_same_bits(here, there):
    """Every stored parameter, optimizer state and reduced gradient of every rank and step."""
    assert here.losses == there.losses
    for rank, run in here.ranks.items():
        other = there.ranks[rank]
        pairs = list(zip(run.snapshots, other.snapshots, strict=True))
        pairs += [(a.gradients, b.gradients) for a, b in zip(run.steps, other.steps, strict=True)]
        for one, two in pairs:
            assert one.keys() == two.keys()
            assert all(torch.equal(one[name], two[name]) for name in one)
        assert [s.history for s in run.steps] == [s.history for s in other.steps]


def assert_memory_as_foretold(program, result):
    """The account made from the Program names the peak that the real tensors had, and its place."""
    for stage in program.stages:
        told = account(stage)
        for rank in stage.mesh.devices():
            at = describe_place(program, rank, told.action, told.instruction)
            for step in result.ranks[rank].steps:
                assert (step.peak, step.peak_at) == (told.peak, at)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plan_is_verified(case, pool):
    ready = prepare(case)
    assert len(ready.program.ranks) == case.ranks
    result = ready.run(pool)
    verdict = ready.verify(result)
    assert verdict.verified, verdict.failures[:3]
    assert verdict.replicas_equal
    assert verdict.max_gradient_error < 1e-12
    assert_memory_as_foretold(ready.program, result)
    assert_same_bits(ready.run(), result)
