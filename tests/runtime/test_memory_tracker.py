"""torch's own tracker of tensors sees the memory that the interpreter counts."""

from dataclasses import replace

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker

from autoplan.ops import FAMILIES
from autoplan.runtime.execute import execute
from autoplan.runtime.feeds import Loader
from autoplan.runtime.session import RankJob, Surroundings, run_rank
from autoplan.runtime.supervise import Watch
from tests.runtime.matrix import GPT, LLAMA, Case, prepare

SIZES = {"hidden": 128, "heads": 8, "head_dim": 16, "vocab": 4096, "max_positions": 128}
LLAMA = replace(LLAMA, ffn=384, kv_heads=4, **SIZES)
GPT = replace(GPT, ffn=512, kv_heads=8, **SIZES)
ASIDE = 1 << 17
"""Bytes of what is no slot or register: the global batch, mask blocks, buffers of a collective."""


def peak_of(tracker):
    """Bytes of all tensors at the moment when there were most."""
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def workspace(stage):
    """The largest temporary that any instruction declares, in bytes."""
    return max(
        FAMILIES[instr.op].measure(instr, *types).workspace
        for segment in stage.segments.values()
        for instr in segment.code
        if instr.op in FAMILIES
        for types in [[[segment.registers[r] for r in rs] for rs in (instr.ins, instr.outs)]]
    )


def tracked(seat, job):
    """A worker's task: one rank of a run under the tracker."""
    seat.world.prepare(job.program)
    around = Surroundings(Loader(job.program, job.settings.batches), progress=seat.progress)
    with MemTracker() as tracker:
        run = seat.world.drive(run_rank(job, around))
    return peak_of(tracker), run.steps[0].peak


def assert_agreement(seen, counted, stage):
    assert abs(seen - counted) <= 0.1 * counted + (16 << 20)
    # Much sharper: all that the count leaves out is what families declare.
    assert counted <= seen <= counted + workspace(stage) + ASIDE


@pytest.mark.parametrize(
    "case",
    [
        Case(1, "micro_batch=2", LLAMA, precision="fp32", seq_len=128),
        Case(1, "micro_batch=4,recompute=full", LLAMA, precision="bf16_mixed", seq_len=128),
        Case(1, "micro_batch=2", GPT, precision="fp32", seq_len=128),
    ],
    ids=str,
)
def test_tracker_agrees_on_one_rank(case):
    ready = prepare(case)
    settings = replace(ready.settings, steps=1, record=False)
    with MemTracker() as tracker:
        result = execute(ready.program, ready.graph, settings)
    assert_agreement(peak_of(tracker), result.peaks[0], ready.program.stages[0])


def test_tracker_agrees_in_every_process(pool):
    ready = prepare(Case(2, "tp=2,micro_batch=2", LLAMA, precision="fp32", seq_len=128))
    settings = replace(ready.settings, steps=1, record=False)
    jobs = [RankJob(ready.program, ready.graph, settings, rank) for rank in (0, 1)]
    for seen, counted in pool.run(tracked, jobs, Watch(ready.program)):
        assert_agreement(seen, counted, ready.program.stages[0])
