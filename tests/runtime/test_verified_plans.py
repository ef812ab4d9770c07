"""Plans of every kind on gloo: right, with the bits of lock-step and the memory foretold."""

import pytest

from autoplan.runtime.verify import bit_difference
from tests.runtime.matrix import CASES, prepare


def assert_same_bits(here, there):
    """Every stored parameter, optimizer state and reduced gradient, before and after every step."""
    assert here.losses == there.losses
    for rank, run in here.ranks.items():
        other = there.ranks[rank]
        pairs = list(zip(run.snapshots, other.snapshots, strict=True))
        pairs += [(a.gradients, b.gradients) for a, b in zip(run.steps, other.steps, strict=True)]
        for one, two in pairs:
            assert one.keys() == two.keys()
            unlike = [name for name in one if bit_difference(str(name), one[name], two[name])]
            assert not unlike
        assert [s.history for s in run.steps] == [s.history for s in other.steps]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plan_is_verified(case, pool):
    ready = prepare(case)
    assert len(ready.program.ranks) == case.ranks
    result = ready.run(pool)
    verdict = ready.verify(result)
    assert verdict.verified, verdict.failures[:3]
    assert verdict.replicas_equal
    assert len(verdict.losses) == case.steps
    foretold = ready.foretold()
    for rank, run in result.ranks.items():
        assert {(step.peak, step.peak_at) for step in run.steps} == {foretold[rank]}
    assert_same_bits(ready.run(), result)
