"""Sixteen bits beside masters in fp32: the loss stays near, masters and parameters stay one."""

import pytest
import torch

from tests.runtime.matrix import GPT, SGD, Case, prepare

CASES = (
    Case(1, "micro_batch=2", precision="bf16_mixed"),
    Case(2, "dp=2", precision="bf16_mixed", steps=3),
    Case(2, "tp=2", precision="bf16_mixed", steps=3),
    Case(2, "dp=2,zero=1", precision="bf16_mixed"),
    Case(2, "dp=2,zero=2", precision="bf16_mixed", optimizer=SGD),
    Case(2, "dp=2,zero=3,recompute=full", precision="bf16_mixed"),
    Case(2, "pp=2", precision="bf16_mixed"),
    Case(4, "dp=2,tp=2,zero=1", GPT, precision="bf16_mixed"),
    Case(2, "dp=2", precision="fp16_mixed"),
    Case(2, "tp=2", precision="bf16_pure"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_is_near_the_fp32_reference(case):
    ready = prepare(case)
    result = ready.run()
    verdict = ready.verify(result)
    assert verdict.limit == 0.02
    assert verdict.verified, verdict.failures
    assert 0 < verdict.max_loss_error < verdict.limit
    assert result.peaks == {rank: peak for rank, (peak, _) in ready.foretold().items()}


@pytest.mark.parametrize("case", [c for c in CASES if "mixed" in c.precision], ids=str)
def test_gradients_and_masters_are_fp32(case):
    result = prepare(case).run()
    for run in result.ranks.values():
        assert {g.dtype for step in run.steps for g in step.gradients.values()} == {torch.float32}
        kinds = {source[0]: tensor.dtype for source, tensor in run.snapshots[-1].items()}
        low = torch.bfloat16 if case.precision.startswith("bf16") else torch.float16
        assert kinds == {"parameter": low, "master": torch.float32, "state": torch.float32}


@pytest.mark.parametrize("pins", ["dp=2", "tp=2", "pp=2"])
def test_parameters_are_the_masters_rounded(pins):
    """After every step, also where the masters have moved by less than a 16-bit step."""
    result = prepare(Case(2, pins, precision="bf16_mixed", steps=3)).run()
    for run in result.ranks.values():
        for snapshot in run.snapshots:
            for kind, *name in snapshot:
                if kind == "master":
                    master = snapshot["master", name[0]]
                    assert torch.equal(snapshot["parameter", name[0]], master.bfloat16())
    first, last = run.snapshots[0], run.snapshots[-1]
    masters = [source for source in first if source[0] == "master"]
    assert all(not torch.equal(first[source], last[source]) for source in masters)
