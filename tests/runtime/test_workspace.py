"""What a family declares as temporaries bounds what the allocator sees, and not by much."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from autoplan.frontends import build_graph, training_step
from autoplan.ir.machine import Stack
from autoplan.ir.program import COLLECTIVES
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.lower import lower
from autoplan.ops import FAMILIES, update
from autoplan.presets import build_plan
from autoplan.presets.pins import parse_pins
from autoplan.runtime import kernels
from autoplan.runtime.kernels.place import DTYPES, Place, StepContext
from tests.plans import ADAMW, machine
from tests.runtime.matrix import GPT, LLAMA, SGD

SEQUENCES, SEQ_LEN = 4, 256
WIDE = {"hidden": 512, "heads": 8, "head_dim": 64, "vocab": 4096, "max_positions": SEQ_LEN}
MODELS = {
    "llama": (replace(LLAMA, ffn=1024, kv_heads=4, layers=1, **WIDE), ADAMW),
    "gpt": (replace(GPT, ffn=2048, kv_heads=8, layers=1, **WIDE), SGD),
}
SCRATCH = 1 << 19
"""Bytes that a kernel may take beside: per row, or for a block whatever the operands' size."""
PACKING = 3 * SCRATCH
"""The same for matrix products of 16 bits, which oneDNN packs."""
FACTOR = 3.0
"""A declaration is at most so many times what is measured."""


UPDATES = {"llama": (Optimizer("muon"), Optimizer("lion")), "gpt": (Optimizer("adafactor"),)}
"""Optimizers whose steps are measured beside those of `MODELS`."""


def every_instruction(model, pins, ranks, precision):
    """(instruction, registers, place) of every distinct instruction but collectives."""
    config, own = MODELS[model]
    yield from instructions(config, own, pins, ranks, precision)
    for optimizer in UPDATES[model]:
        for found in instructions(config, optimizer, pins, ranks, precision):
            if found[0].op in {family.name for family in update.FAMILIES}:
                yield found


def instructions(config, optimizer, pins, ranks, precision):
    """The same with one optimizer."""
    graph = training_step(build_graph(config, SEQ_LEN))
    batch = SEQUENCES * ranks
    workload = Workload("train", batch, SEQ_LEN, PRECISIONS[precision], optimizer)
    profile_ = (machine(ranks), Stack("toy"))
    plan = build_plan(graph, config, profile_, workload, parse_pins([pins]))
    (stage,) = lower(graph, plan).stages
    place = Place(stage.mesh.sizes, (0,) * len(stage.mesh.sizes))
    found = {}
    for segment in stage.segments.values():
        for instr in segment.code:
            types = tuple(segment.registers[r][1:3] for r in (*instr.ins, *instr.outs))
            if instr.op not in COLLECTIVES:
                found.setdefault((instr.op, types), (instr, segment.registers, place))
    return found.values()


def operand(register):
    """Values that every operator takes."""
    if register.dtype == "int64":
        return torch.randint(0, 200, register.shape)
    return torch.rand(register.shape).add_(0.5).to(DTYPES[register.dtype])


def measured(call):
    """How far the allocator's total rises above what is left when a call returns, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        results = call()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    del results
    return peak - total


@pytest.mark.parametrize(
    ("model", "pins", "ranks", "precision"),
    [
        ("llama", f"micro_batch={SEQUENCES}", 1, "fp32"),
        ("llama", f"micro_batch={SEQUENCES}", 1, "bf16_mixed"),
        ("gpt", f"micro_batch={SEQUENCES}", 1, "fp32"),
        ("gpt", f"micro_batch={SEQUENCES}", 1, "bf16_pure"),
        ("llama", f"cp=2,tp=2,micro_batch={SEQUENCES}", 4, "bf16_mixed"),
    ],
    ids=["llama", "llama in 16 bits", "gpt", "gpt in 16 bits", "sharded"],
)
def test_declared_workspace_bounds_the_measured_one(model, pins, ranks, precision):
    torch.manual_seed(0)
    wrong = []
    for instr, registers, place in every_instruction(model, pins, ranks, precision):
        ins, outs = ([registers[r] for r in numbers] for numbers in (instr.ins, instr.outs))
        kernel = kernels.link(instr, registers, place)
        operands = [operand(register) for register in ins]
        context = StepContext(batch=SEQUENCES * ranks)
        found = measured(lambda k=kernel, c=context, o=operands: k(c, o))
        declared = FAMILIES[instr.op].measure(instr, ins, outs).workspace
        scratch = PACKING if instr.op.startswith("linear") else SCRATCH
        # What fused attention declares is for GPUs, whose kernels keep more than those of CPUs.
        loose = instr.op == "attention_grad" and not instr.attr("dropout")
        most = torch.inf if loose else FACTOR * found + scratch
        if not (found - scratch) / 1.1 <= declared <= most:
            wrong.append((instr.op, [r.shape for r in ins], found >> 10, int(declared) >> 10))
    assert not wrong
