"""Law: storing, casting, reducing and updating parameters cost the search what the Program costs.

For every optimizer and for precisions that cast, on any legal decisions; latency aside, since moves
of a block share messages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from autoplan.files.workload import parse_precision, precision_document
from autoplan.ir.machine import Level
from autoplan.ir.optimizer import OPTIMIZERS
from autoplan.ir.workload import Optimizer
from autoplan.lower import lower
from autoplan.search.candidates import Shape, arrangements
from autoplan.search.tables import CHANNEL
from tests.search.cases import FREE, TINY, engine, machine, one_stage, random_solution, request

MICRO_BATCHES = 2
PRECISIONS = (
    "fp32", "bf16_mixed", "bf16_mixed,parameter=fp32,reduce=bf16", "bf16_pure,gradient=fp32",
    "bf16_mixed,optimizer=bf16",
)  # fmt: skip


def priced_and_lowered(optimizer: str, precision: str, sizes: tuple[int, ...]):
    """(engine, solution, stage, groups) of random decisions."""
    ranks = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    hardware = machine(Level("gpu", ranks, 1e9, 0.0), launch=0.0)
    asked = request(TINY, hardware, 4 * MICRO_BATCHES, 16)
    workload = replace(
        asked.workload, optimizer=Optimizer(optimizer),
        precision=parse_precision(precision_document(precision, []), "test"),
    )  # fmt: skip
    made = engine(replace(asked, workload=workload))
    mesh, _ = next(arrangements(hardware, sizes, 1))
    shape = Shape(1, mesh, 0, MICRO_BATCHES, "1f1b")
    chain = made.chain(shape, FREE)
    assert chain is not None
    solution = random_solution(Random(repr((optimizer, precision, sizes))), chain)
    program = lower(asked.graph, one_stage(made, chain, shape, solution))
    return made, chain, solution, program


def seconds_of(made, program) -> tuple[float, float]:
    """Seconds of a step's gathers and reductions; of what happens once."""
    stage = program.stages[0]
    calls = Counter(a.segment for a in stage.actions if a.segment)
    totals = {"weights": 0.0, "once": 0.0}
    for key, count in calls.items():
        part = key.split("/")[1].split("#")[0].split(".")[0]
        where = {"GATHER": "weights", "REDUCE": "weights", "FINAL": "once", "NORM": "once",
                 "STEP": "once"}.get(part)  # fmt: skip
        if where:
            each = made.pricer.instruction_seconds(stage.segments[key], stage.mesh, program.groups)
            totals[where] += count * float(each.sum())
    return totals["weights"], totals["once"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_cost_what_their_program_costs(optimizer, precision):
    sizes = (2, 2) if optimizer in ("muon", "adafactor") else (2,)
    made, chain, solution, program = priced_and_lowered(optimizer, precision, sizes)
    priced: Counter[str] = Counter()
    for name, total in solution.totals.items():
        for channel, index in CHANNEL.items():
            priced[channel] += chain.counts[name] * float(total[index])
    weights, once = seconds_of(made, program)
    assert MICRO_BATCHES * (priced["WF"] + priced["WB"]) == pytest.approx(weights, rel=1e-9)
    # The first instance's norm reads no sum of those before it: 4 bytes.
    assert priced["ON"] + priced["OK"] == pytest.approx(once, rel=1e-3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_states_weigh_what_their_slots_weigh(optimizer):
    _, chain, solution, program = priced_and_lowered(optimizer, "bf16_mixed", (2, 2))
    stage = program.stages[0]
    kinds = ("parameter", "master", "state")
    held = sum(s.register.nbytes for s in stage.resident if s.source[0] in kinds)
    registers = {
        (formal.slot(action.instance, -1)): part.registers[formal.register]
        for action in stage.actions
        if action.segment and "/B" in action.segment or "/REDUCE" in action.segment
        for part in (stage.segments[action.segment],)
        for formal in part.formals
        if formal.name.startswith("d.") and formal.intent == "out" and not formal.per_micro_batch
    }
    gradients = sum(register.nbytes for register in registers.values())
    weight = sum(
        chain.counts[name] * float(total[CHANNEL["MW"]]) for name, total in solution.totals.items()
    )
    assert weight == pytest.approx(held + gradients)
