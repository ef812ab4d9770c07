"""Law 10 for every optimizer that is executed: on any shard it makes the step of the whole.

What each needs whole it fetches, and nothing else.
"""

import pytest

from autoplan.ir.optimizer import OPTIMIZERS, UPDATES
from autoplan.ir.program import COLLECTIVES
from autoplan.ir.workload import Optimizer
from autoplan.lower.check import check
from tests.runtime.matrix import ADAFACTOR, GPT, LION, MUON, TIED, Case, prepare

RATES = {"adafactor": ADAFACTOR, "lion": LION, "muon": MUON}
EXECUTED = [RATES.get(name, Optimizer(name)) for name, rule in OPTIMIZERS.items() if rule.executed]
PLANS = [
    (2, "dp=2", TIED),
    (2, "tp=2", GPT),
    (2, "dp=2,zero=1", TIED),
    (4, "dp=2,tp=2,zero=2", GPT),
    (2, "dp=2,zero=3", GPT),
    (2, "pp=2", TIED),
]


@pytest.mark.parametrize(("ranks", "pins", "model"), PLANS, ids=[p[1] for p in PLANS])
@pytest.mark.parametrize("optimizer", EXECUTED, ids=lambda o: o.name)
def test_every_plan_makes_the_step_of_the_whole(optimizer, ranks, pins, model):
    ready = prepare(Case(ranks, pins, model, optimizer=optimizer))
    check(ready.program)
    result = ready.run()
    verdict = ready.verify(result)
    assert verdict.verified, verdict.failures[:3]
    assert result.peaks == {rank: peak for rank, (peak, _) in ready.foretold().items()}


def moves_of(optimizer, pins, ranks=2):
    """Collectives of the optimizer step, per segment."""
    (stage,) = prepare(Case(ranks, pins, optimizer=optimizer)).program.stages
    return {
        key: [i.op for i in part.code if i.op in COLLECTIVES]
        for key, part in stage.segments.items()
        if "/STEP" in key
    }


@pytest.mark.parametrize("optimizer", EXECUTED, ids=lambda o: o.name)
def test_only_what_is_split_is_fetched(optimizer):
    """Whole states need nothing. Split ones: Muon gathers matrices, in one message a layer;
    Adafactor sums rows or columns, and then three numbers; the parameters are gathered last.
    """
    assert not any(moves_of(optimizer, "dp=2").values())
    layer = moves_of(optimizer, "dp=2,zero=1")["layer/STEP"]
    first = {"muon": ["all_gather"], "adafactor": ["all_reduce"] * 2}.get(optimizer.name, [])
    assert layer[: len(first)] == first
    assert set(layer[len(first) :]) == {"all_gather"}


def test_states_are_as_large_as_declared():
    """Rows and columns of Adafactor; a byte and its share of a scale in 8 bits."""
    sizes = {}
    for name in OPTIMIZERS:
        (stage,) = prepare(Case(2, "dp=2", optimizer=Optimizer(name))).program.stages
        sizes[name] = {
            s.source[2]: s.register.nbytes
            for s in stage.resident
            if s.source[:2] == ("state", "layers.0.w_gate")
        }
    elements = 32 * 48
    assert sizes["adamw"] == {"exp_avg": 8 * elements, "exp_avg_sq": 8 * elements}
    assert sizes["adafactor"] == {"rows": 8 * 48, "columns": 8 * 32}
    scales = {f"{name}_scale": 4 * elements // 256 for name in ("exp_avg", "exp_avg_sq")}
    assert sizes["adamw_8bit"] == {"exp_avg": elements, "exp_avg_sq": elements, **scales}
    assert sizes["muon"] == sizes["sgd"] == {"momentum": 8 * elements}
    assert sizes["lion"] == {"exp_avg": 8 * elements}


def test_muon_leaves_tables_and_vectors_to_adamw():
    program = prepare(Case(1, "micro_batch=2", optimizer=MUON)).program
    states = {}
    for spec in program.stages[0].resident:
        if spec.source[0] == "state":
            states.setdefault(spec.source[1], []).append(spec.source[2])
    adamw = ["exp_avg", "exp_avg_sq"]
    assert states["embedding"] == states["head"] == states["final_norm"] == adamw
    assert states["layers.0.w_q"] == states["layers.1.w_down"] == ["momentum"]


def test_declarations_agree():
    """Every optimizer has a default of every hyper-parameter of its updates."""
    for rule in OPTIMIZERS.values():
        updates = {rule.matrix, rule.table, rule.vector}
        assert {key for name in updates for key in UPDATES[name].hyper} == set(rule.hyper)
