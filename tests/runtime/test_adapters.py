"""Adapters under every kind of plan: verified, and what is frozen keeps its bits."""

from __future__ import annotations

import pytest

from autoplan.describe import describe
from autoplan.runtime.execute import whole_records
from autoplan.runtime.verify import bit_difference
from tests.runtime.matrix import GEMMA, LORA, NEOX, QWEN, TIED, Case, prepare

NARROW = "lora:r=2,targets=q|v|down"
"""A rank that four devices do not divide."""
UNGATED = "lora:r=4,targets=q|o|up|down,alpha=4"

CASES = (
    Case(2, "dp=2", trainable=LORA),
    Case(2, "tp=2", trainable=LORA),
    Case(2, "tp=2,sp=false", trainable=LORA),
    Case(4, "tp=2,tp2=2", trainable=LORA),
    Case(4, "tp=4", trainable=NARROW),
    Case(4, "tp=4,sp=false", trainable=NARROW),
    Case(2, "cp=2", trainable=LORA),
    Case(2, "pp=2", trainable=LORA),
    Case(2, "dp=2,zero=3", trainable=LORA),
    Case(2, "dp=2,zero=3,recompute=full", TIED, trainable=LORA),
    Case(2, "tp=2", GEMMA, trainable=LORA),
    Case(2, "tp=2", NEOX, trainable=UNGATED),
    Case(2, "tp=2", QWEN, trainable=LORA),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_adapters_train_alone(case):
    ready = prepare(case)
    named = dict(pair.split("=") for pair in case.pins.split(","))
    parallel = {k: str(v).lower() for k, v in describe(ready.graph, ready.plan).items()}
    assert named.items() <= parallel.items()
    result = ready.run()
    verdict = ready.verify(result)
    assert verdict.verified, verdict.failures[:3]
    records, unequal = whole_records(result)
    assert not unequal
    before, after = records[0].parameters, records[-1].parameters_after
    changed = {name for name in before if bit_difference(name, before[name], after[name])}
    assert changed == {name for name in before if ".lora_" in name}


def test_memory_of_adapters():
    """Optimizer state and gradients are those of adapters; everything else is as large."""

    def state(trainable: str) -> int:
        (stage,) = prepare(Case(2, "dp=2", trainable=trainable)).program.stages
        return sum(spec.register.nbytes for spec in stage.resident if spec.source[0] == "state")

    ready = prepare(Case(2, "dp=2", trainable=LORA))
    adapters = sum(
        register.nbytes
        for name, spec in ready.program.stages[0].gradients.items()
        for register in (spec.register,)
        if ".lora_" in name
    )
    assert state(LORA) == 2 * adapters
    assert 3 * state(LORA) < state("full")
