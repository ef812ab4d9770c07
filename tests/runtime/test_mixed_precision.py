"""Sixteen bits beside masters in fp32: the loss stays near, masters and parameters stay one."""

from dataclasses import replace

import pytest
import torch

from autoplan.ir.program import COLLECTIVES
from autoplan.ir.workload import LossScale
from autoplan.runtime.execute import whole_records
from autoplan.runtime.reference_optimizer import Scale
from autoplan.runtime.verify import Trial, verify
from tests.runtime.matrix import (
    ADAFACTOR,
    FSDP2,
    GPT,
    LION,
    MUON,
    OVERFLOWING,
    SGD,
    TIED,
    Case,
    prepare,
)

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
    Case(2, "dp=2,zero=1", precision="bf16_mixed,gradient=bf16"),
    Case(2, "dp=2,zero=2", TIED, precision="bf16_mixed,optimizer=bf16", optimizer=ADAFACTOR),
    Case(2, "pp=2", TIED, precision=FSDP2),
    Case(4, "dp=2,tp=2,zero=3", precision=FSDP2, optimizer=MUON),
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


@pytest.mark.parametrize("case", [c for c in CASES if c.precision.endswith("mixed")], ids=str)
def test_gradients_and_masters_are_fp32(case):
    result = prepare(case).run()
    for run in result.ranks.values():
        assert {g.dtype for step in run.steps for g in step.gradients.values()} == {torch.float32}
        kinds = {source[0]: tensor.dtype for source, tensor in run.snapshots[-1].items()}
        low = torch.bfloat16 if case.precision.startswith("bf16") else torch.float16
        scale = (
            {"scale": torch.float32, "scale_counts": torch.float32} if "fp16" in str(case) else {}
        )
        assert kinds == {"parameter": low, "master": torch.float32, "state": torch.float32, **scale}


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


def dtypes_of(case):
    """(operator, dtype of its first operand) of every instruction, by action."""
    (stage,) = prepare(case).program.stages
    return {
        key: {(i.op, part.registers[i.ins[0]].dtype) for i in part.code}
        for key, part in stage.segments.items()
    }


def test_casts_stand_before_gathers_and_around_reductions():
    """Stored in fp32, read in bf16: 16 bits are gathered and reduced, 32 added up and stepped."""
    found = dtypes_of(Case(2, "dp=2,zero=3", precision=FSDP2))
    assert found["layer/GATHER"] == {("cast", "fp32"), ("all_gather", "bf16")}
    moved = {("cast", "fp32"), ("reduce_scatter", "bf16"), ("cast", "bf16")}
    assert moved <= found["layer/REDUCE.first"] <= moved | {("accumulate", "fp32")}
    assert {dtype for _, dtype in found["layer/STEP"]} == {"fp32"}
    assert {dtype for op, dtype in found["layer/F"] if op == "linear"} == {"bf16"}


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16_mixed", "bf16_pure"])
def test_nothing_is_cast_or_scaled_where_nothing_differs(precision):
    found = dtypes_of(Case(2, "dp=2,zero=3", precision=precision))
    assert not {op for pairs in found.values() for op, _ in pairs} & {"cast"}
    (stage,) = prepare(Case(2, "dp=2", precision=precision)).program.stages
    assert not [spec for spec in stage.resident if spec.source[0].startswith("scale")]


def test_the_loss_scale_costs_no_message():
    """What is not finite is found through the norm."""

    def messages(precision):
        (stage,) = prepare(Case(2, "dp=2,zero=1", precision=precision)).program.stages
        return {
            key: sum(i.op in COLLECTIVES for i in part.code) for key, part in stage.segments.items()
        }

    assert messages("fp16_mixed") == messages("bf16_mixed")


SCALED = [(2, "dp=2,zero=1"), (2, "tp=2"), (2, "pp=2"), (4, "dp=2,pp=2,zero=3")]


@pytest.mark.parametrize(("ranks", "pins"), SCALED, ids=[pins for _, pins in SCALED])
@pytest.mark.parametrize("optimizer", [SGD, LION, MUON, ADAFACTOR], ids=lambda o: o.name)
def test_a_step_that_overflows_is_skipped_on_all_ranks_alike(optimizer, ranks, pins):
    """Then nothing changes but the scale, which is halved; after a good step it doubles."""
    case = Case(
        ranks, pins, TIED, precision="fp16_mixed", steps=4, optimizer=optimizer,
        loss_scale=OVERFLOWING,
    )  # fmt: skip
    ready = prepare(case)
    result = ready.run()
    verdict = ready.verify(result)
    assert verdict.verified, verdict.failures
    records, _ = whole_records(result)
    assert records[0].scales[0] == Scale(OVERFLOWING.initial)
    skipped = [after.taken == before.taken for before, after in (r.scales for r in records)]
    assert skipped[0]
    assert not all(skipped)
    for skip, record in zip(skipped, records, strict=True):
        before, after = record.scales
        assert after.value == before.value * (0.5 if skip else 2.0)
        assert skip != all(bool(g.isfinite().all()) for g in record.gradients.values())
    for run in result.ranks.values():
        for skip, one, two in zip(skipped, run.snapshots, run.snapshots[1:], strict=False):
            lasting = [source for source in one if not source[0].startswith("scale")]
            assert skip == all(torch.equal(one[source], two[source]) for source in lasting)


def test_bias_correction_counts_steps_taken():
    """After one skipped step AdamW makes the step that it would have made first."""
    scales = LossScale(OVERFLOWING.initial / 2, 10), OVERFLOWING
    first, later = (
        prepare(Case(2, "dp=2", precision="fp16_mixed", steps=4, loss_scale=scale)).run()
        for scale in scales
    )
    (good, *_), bad = whole_records(first)[0], whole_records(later)[0]
    index = next(i for i, record in enumerate(bad) if record.scales[1].taken)
    assert index > 0
    assert good.scales[1].taken == 1
    moved = [
        float((r.parameters_after["head"].float() - r.parameters["head"].float()).abs().max())
        for r in (good, bad[index])
    ]
    assert moved[0] == pytest.approx(moved[1], rel=0.1)


def test_a_run_that_should_have_skipped_is_refused():
    ready = prepare(Case(2, "dp=2", precision="fp16_mixed", loss_scale=OVERFLOWING))
    records, _ = whole_records(ready.run())
    finite = {name: torch.zeros_like(g) for name, g in records[0].gradients.items()}
    forged = replace(records[0], gradients=finite)
    trial = Trial(ready.graph, ready.case.workload, ready.batches)
    failures = verify(trial, [forged]).failures
    assert any("loss scale after step 0" in failure.what for failure in failures)
