"""Checkpoints: a run that stops, and goes on under another plan, is the run that never stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from autoplan.errors import InputError
from autoplan.files.checkpoint import MANIFEST, read_checkpoint
from autoplan.runtime import checkpoint
from autoplan.runtime.checkpoint import Checkpoints
from autoplan.runtime.execute import RunResult, execute, whole_records
from autoplan.runtime.verify import StepRecord, Trial, verify
from autoplan.workflow.checkpoints import go_on, state_of
from tests.runtime.matrix import (
    ADAFACTOR,
    GPT,
    LLAMA,
    OVERFLOWING,
    SGD,
    TIED,
    Case,
    Prepared,
    prepare,
)

EQUAL = 1e-12


@dataclass(frozen=True)
class Hop:
    """Two steps under one plan, two more under another; both differ in nothing else."""

    before: Case
    ranks: int
    pins: str

    @property
    def after(self) -> Case:
        return replace(self.before, ranks=self.ranks, pins=self.pins)

    def __str__(self) -> str:
        return f"{self.before}, then {self.pins}"


HOPS = (
    Hop(Case(2, "tp=2"), 2, "pp=2"),
    Hop(Case(2, "tp=2"), 2, "dp=2,zero=3"),
    Hop(Case(4, "dp=2,pp=2,zero=3"), 1, "micro_batch=4"),
    Hop(Case(2, "tp=2", TIED), 2, "pp=2"),
    Hop(Case(4, "dp=2,pp=2,zero=3", TIED), 2, "tp=2"),
    Hop(Case(2, "tp=2", GPT), 4, "dp=2,pp=2,zero=2"),
    Hop(Case(2, "dp=2,zero=1", optimizer=SGD), 4, "tp=4,sp=false"),
    Hop(Case(4, "dp=2,tp=2,zero=1", optimizer=ADAFACTOR), 2, "pp=2"),
    Hop(Case(2, "pp=2", trainable=r"layers\.1\."), 2, "dp=2,zero=3"),
)


def run(ready: Prepared, steps: int, save=None, resume=None, pool=None) -> RunResult:
    """Some steps of a case, from a checkpoint and to another."""
    state = state_of(ready.plan, ready.program, "")
    first = go_on(resume, state)[0] if resume else 0
    store = Checkpoints(first, resume, save, replace(state, step=first + steps))
    settings = replace(ready.settings, steps=steps, store=store)
    return execute(ready.program, ready.graph, settings, pool)


def records(result: RunResult) -> tuple[StepRecord, ...]:
    found, unequal = whole_records(result)
    assert not unequal
    return found


def assert_same(one: StepRecord, other: StepRecord, limit: float) -> None:
    """The same loss, and the same parameters and optimizer state at the beginning and end."""
    assert one.loss == pytest.approx(other.loss, rel=limit, abs=0)
    pairs = [(one.parameters, other.parameters), (one.parameters_after, other.parameters_after)]
    pairs += [(states, other.states[name]) for name, states in one.states.items()]
    for here, there in pairs:
        assert here.keys() == there.keys()
        for name, value in here.items():
            torch.testing.assert_close(value, there[name], rtol=limit, atol=limit, msg=name)
    assert one.states.keys() == other.states.keys()
    assert one.scales == other.scales


@pytest.mark.parametrize("hop", HOPS, ids=str)
def test_goes_on_under_another_plan(hop, tmp_path):
    """In lock-step; what resumes is also verified, from its own first step on."""
    before, after = prepare(hop.before), prepare(hop.after)
    whole = records(run(before, 4))
    run(before, 2, save=tmp_path / "saved")
    resumed = records(run(after, 2, resume=tmp_path / "saved"))
    for one, other in zip(resumed, whole[2:], strict=True):
        assert_same(one, other, EQUAL)
    trial = Trial(after.graph, hop.after.workload, after.batches, first_step=2)
    verdict = verify(trial, resumed)
    assert verdict.verified, verdict.failures


@pytest.mark.parametrize("hop", [*HOPS[:2], HOPS[5]], ids=str)
def test_goes_on_in_processes(hop, tmp_path, pool):
    """Every rank writes and reads its own parts, and both transports write the same state."""
    before, after = prepare(hop.before), prepare(hop.after)
    run(before, 2, save=tmp_path / "saved", pool=pool)
    run(before, 2, save=tmp_path / "here")
    resumed = records(run(after, 2, resume=tmp_path / "saved", pool=pool))
    here = records(run(after, 2, resume=tmp_path / "here"))
    for one, other in zip(resumed, here, strict=True):
        assert_same(one, other, 0)
    assert len(list((tmp_path / "saved").glob("*.distcp"))) == hop.before.ranks


def test_a_chain_of_plans_ends_where_one_run_does(tmp_path):
    """Three plans, one folder: each run replaces the checkpoint that it began from."""
    cases = [Case(2, pins, GPT) for pins in ("tp=2", "pp=2", "dp=2,zero=3")]
    whole = records(run(prepare(cases[0]), 3))
    folder, resume = tmp_path / "saved", None
    for case in cases:
        result = run(prepare(case), 1, save=folder, resume=resume)
        resume = folder
    assert_same(records(result)[0], whole[2], EQUAL)
    assert read_checkpoint(folder).step == 3
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_masters_and_loss_scale_go_on_with_the_same_bits(tmp_path):
    case = Case(2, "dp=2,zero=1", precision="fp16_mixed", loss_scale=OVERFLOWING, steps=4)
    ready = prepare(case)
    whole = records(run(ready, 4))
    run(ready, 2, save=tmp_path / "saved")
    resumed = records(run(ready, 2, resume=tmp_path / "saved"))
    assert resumed[0].scales[0].taken == 1  # of two steps: the first overflowed
    for one, other in zip(resumed, whole[2:], strict=True):
        assert_same(one, other, 0)
    names = read_checkpoint(tmp_path / "saved").tensors
    assert {"scale", "scale_counts", "master/embedding"} <= names.keys()


@pytest.mark.parametrize("case", [HOPS[4].before, HOPS[5].after, HOPS[7].before], ids=str)
def test_every_element_is_written_once(case, tmp_path):
    run(prepare(case), 1, save=tmp_path / "saved")
    metadata = dcp.FileSystemReader(tmp_path / "saved").read_metadata()
    for name, tensor in metadata.state_dict_metadata.items():
        assert sum(prod(c.sizes) for c in tensor.chunks) == prod(tensor.size), name
        assert len({c.offsets for c in tensor.chunks}) == len(tensor.chunks), name


def test_begins_with_exactly_what_was_left(tmp_path):
    """Loading is the inverse of saving, bit by bit."""
    before, after = prepare(HOPS[5].before), prepare(HOPS[5].after)
    left = records(run(before, 1, save=tmp_path / "saved"))[0].parameters_after
    begun = records(run(after, 1, resume=tmp_path / "saved"))[0].parameters
    assert all(torch.equal(begun[name], left[name]) for name in left)


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("checkpoints") / "saved"
    run(prepare(Case(2, "tp=2")), 1, save=folder)
    return folder


@pytest.fixture
def copied(saved, tmp_path) -> Path:
    folder = tmp_path / "copied"
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def complaint(case: Case, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        run(prepare(case), 1, resume=folder)
    return str(caught.value)


def test_another_model_is_refused_with_every_difference(saved):
    wide = replace(LLAMA, ffn=96, activation="gelu")
    found = complaint(Case(2, "tp=2", wide, optimizer=SGD, precision="fp32"), saved)
    assert "identity: model ffn: found 48, allowed: 96, as the plan has" in found
    assert "identity: model activation: found silu, allowed: gelu" in found
    assert "identity: optimizer: found adamw, allowed: sgd" in found
    assert "identity: precision: found fp64, allowed: fp32" in found
    assert "parameter/layers.0.w_gate: found fp64 [48, 32], allowed: fp32 [96, 32]" in found
    assert "state/head/exp_avg: found fp64 [64, 32], allowed: nothing" in found
    assert "state/head/momentum: found nothing, allowed: fp32 [64, 32]" in found


def test_what_may_change_is_said(saved):
    ready = prepare(Case(2, "pp=2", replace(LLAMA, residual_dropout=0.1), batch=8))
    step, notes = go_on(saved, state_of(ready.plan, ready.program, ""))
    assert step == 1
    assert notes[1:] == (
        "resumes with global batch size 8 (saved with 4)",
        "resumes with model residual_dropout 0.1 (saved with 0.0)",
    )


def test_no_checkpoint(tmp_path):
    assert "found no such folder" in complaint(Case(2, "tp=2"), tmp_path / "nowhere")
    assert "found a folder without `checkpoint.json`" in complaint(Case(2, "tp=2"), tmp_path)


def test_missing_and_truncated_files_are_all_named(copied):
    (copied / "__0_0.distcp").unlink()
    (copied / ".metadata").write_bytes(b"short")
    found = complaint(Case(2, "tp=2"), copied)
    assert "__0_0.distcp: found no such file" in found
    assert ".metadata: found 5 bytes, allowed: the" in found


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("processes", [False, True], ids=["lockstep", "gloo"])
def test_damaged_files_are_found(name, processes, copied, request):
    path = copied / name
    path.write_bytes(bytes(path.stat().st_size))
    workers = request.getfixturevalue("pool") if processes else None
    with pytest.raises(InputError, match="--resume: found .*copied.*as they were saved"):
        run(prepare(Case(2, "pp=2")), 1, resume=copied, pool=workers)


def test_a_damaged_description_is_found(copied):
    (copied / MANIFEST).write_text('{"schema_version": 1, "step": -1, "files": {}}')
    found = complaint(Case(2, "tp=2"), copied)
    assert "$.step" in found
    assert "identity" in found


def test_a_failed_save_leaves_what_was_there(copied, monkeypatch):
    """A full disk half-way: the old checkpoint stands, and nothing lies beside it."""
    calls = []

    def fails(self, item):
        calls.append(item)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return self._boxes[item.index].piece

    monkeypatch.setattr(checkpoint._Saver, "resolve_data", fails)
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    with pytest.raises(InputError, match="--save: found .*No space left on device"):
        run(prepare(Case(2, "pp=2")), 1, save=copied, resume=copied)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
    assert [path.name for path in copied.parent.iterdir()] == ["copied"]
