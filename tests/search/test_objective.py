"""Law: what the search minimises is what the simulator measures of the lowered plan.

On a machine where nothing overlaps, with one stage, the channel totals of *any* legal decisions add
up to the simulated step. Three effects are not sums over decisions, and each test says how far they
reach:

    shared reads     two layer operators that fetch one tensor along the same steps fetch it once
    shared messages  parameters of a block move in one message: each bears its share of the latency
    once a step      the norm of all ranks, the clip factor, the loss (excluded here, by name)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from autoplan.cost import Pricer
from autoplan.ir.graph import GRADIENT
from autoplan.ir.machine import Level
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Plan
from autoplan.ir.program import COLLECTIVES, Program
from autoplan.lower import lower
from autoplan.ops import BlockLayouts, gradient_source
from autoplan.search.candidates import Shape, arrangements
from autoplan.search.chain import Chain, Pace, Solution
from autoplan.search.engine import Engine
from autoplan.search.step import Room, estimate
from autoplan.search.tables import CHANNEL
from autoplan.simulate import simulate_priced
from tests.search.cases import (
    FREE,
    TIED,
    TINY,
    engine,
    machine,
    one_stage,
    random_solution,
    request,
)

MICRO_BATCHES = 2
ONCE = ("CLIP", "LOSS")
MESHES = [(), (2,), (4,), (2, 2)]
SHARED_READS = 0.06
"""Share of a step that reading a tensor once instead of twice has saved at most."""


class Trial:
    """Random decisions on one stage: priced by the search, and simulated."""

    def __init__(
        self, rng: Random, config: DecoderConfig, sizes: tuple[int, ...], recompute: bool = False,
        latency: float = 0.0, noise: float = 1e3, precision: str = "fp32",
    ) -> None:  # fmt: skip
        ranks = sizes[0] * (sizes[1] if len(sizes) > 1 else 1) if sizes else 1
        hardware = machine(Level("gpu", ranks, 1e9, latency), launch=latency)
        asked = request(config, hardware, 4 * MICRO_BATCHES, 16, precision)
        self.engine: Engine = engine(asked)
        mesh, _ = next(arrangements(hardware, sizes, 1))
        shape = Shape(1, mesh, 0, MICRO_BATCHES, "1f1b")
        chain = self.engine.chain(shape, FREE)
        assert chain is not None
        self.chain: Chain = chain
        self.recompute = recompute
        self.solution: Solution = random_solution(rng, chain, noise)
        again = config.layers if recompute else 0
        self.plan: Plan = one_stage(self.engine, chain, shape, self.solution, again)
        self.program: Program = lower(asked.graph, self.plan)

    def priced(self) -> dict[str, float]:
        """Seconds by part of a step, as the search sees them."""
        table: dict[str, float] = defaultdict(float)
        for name, total in self.solution.totals.items():
            again = self.recompute and name == "layer"
            get = {channel: float(total[i]) for channel, i in CHANNEL.items()}
            count = self.chain.counts[name]
            table["F"] += count * MICRO_BATCHES * get["XF"]
            table["B"] += count * MICRO_BATCHES * (get["XB"] + get["RC" if again else "RG"])
            table["weights"] += count * MICRO_BATCHES * (get["WF"] + get["WB"])
            table["once"] += count * (get["ON"] + get["OK"])
        return table

    def simulated(self) -> dict[str, float]:
        """The same of the Program, what happens once a step aside."""
        stage = self.program.stages[0]
        table: dict[str, float] = defaultdict(float)
        for key, calls in self._calls().items():
            seconds = self.engine.pricer.instruction_seconds(
                stage.segments[key], stage.mesh, self.program.groups
            )
            part = key.split("/")[1].split("#")[0].split(".")[0]
            table[PARTS.get(part, part)] += calls * float(seconds.sum())
        return table

    def _calls(self) -> Counter[str]:
        return Counter(a.segment for a in self.program.stages[0].actions if a.segment)

    def message_latency(self) -> float:
        """What the latencies of all moves of parameters and gradients add up to, in seconds."""
        stage, pricer = self.program.stages[0], self.engine.pricer
        total = 0.0
        for key, calls in self._calls().items():
            if key.split("/")[1].split("#")[0].split(".")[0] in PARTS:
                for instr in stage.segments[key].code:
                    if instr.op in COLLECTIVES or instr.op == "slice":
                        terms = pricer.mesh_terms(instr.op, instr.attr("axes"), stage.mesh)
                        total += calls * terms.seconds
        return total

    def shares_reads(self) -> bool:
        """Whether two layer operators fetch one tensor."""
        return any(
            _shares(self.chain.graph.blocks[s.block], s) for s in self.plan.strategies.values()
        )


PARTS = {"GATHER": "weights", "REDUCE": "weights", "FINAL": "once", "NORM": "once", "STEP": "once"}


def _shares(block, strategy) -> bool:
    """Whether some tensor, on its way to two layer operators, changes its layout for both."""
    layouts = BlockLayouts(block, strategy)
    for ops, waiting in ((block.forward, {}), (block.backward, layouts.saved)):
        fetched: dict[str, set[str]] = defaultdict(set)
        for op in ops:
            for name, layout in zip(op.inputs, layouts.operands(op), strict=True):
                if block.tensors[name].role not in ("activation", "gradient"):
                    continue
                gradient = name.startswith(GRADIENT)
                home = layouts.home(gradient_source(name) if gradient else name)
                at = layouts.produced.get(name)
                if home is not None:
                    at = home.gradient if gradient else home.value
                    if name in layouts.produced and layouts.produced[name] != at != layout:
                        fetched[name].add("home")
                if layout != at or waiting.get(name, at) != at:
                    fetched[name].add(op.group or f"sum of {op.outputs[0]}")
        if any(len(groups) > 1 for groups in fetched.values()):
            return True
    return False


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("sizes", MESHES)
def test_channel_totals_are_the_simulated_step(sizes, recompute):
    rng = Random(repr((sizes, recompute)))
    equal = 0
    for config, noise in product((TINY, TIED), (1e3, 1e-4, 0.0, 0.0)):
        trial = Trial(rng, config, sizes, recompute, noise=noise, precision="bf16_mixed")
        priced, simulated = trial.priced(), trial.simulated()
        assert priced["weights"] == pytest.approx(simulated["weights"], rel=1e-9)
        # The first instance's norm reads no sum of those before it: 4 bytes.
        assert priced["once"] == pytest.approx(simulated["once"], rel=1e-3)
        for part in ("F", "B"):
            assert simulated[part] <= priced[part] * (1 + 1e-9)
            assert priced[part] <= simulated[part] * (1 + SHARED_READS)
            if not trial.shares_reads():
                assert priced[part] == pytest.approx(simulated[part], rel=1e-9)
                equal += 1
    assert equal


@pytest.mark.parametrize("sizes", MESHES[1:])
def test_latency_of_shared_messages_is_what_is_left_out(sizes):
    rng = Random(repr(sizes))
    for noise in (1e3, 1e-4, 0.0):
        trial = Trial(rng, TINY, sizes, latency=1e-4, noise=noise)
        priced, simulated = trial.priced(), trial.simulated()
        missing = sum(simulated[part] - priced[part] for part in ("weights", "once"))
        assert -1e-6 <= missing <= trial.message_latency() + 1e-6
        for part in ("F", "B"):
            assert simulated[part] <= priced[part] * (1 + 1e-9)
            if not trial.shares_reads():
                assert priced[part] == pytest.approx(simulated[part], rel=1e-9)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("floor", [0.0, 1e-3])
@pytest.mark.parametrize("sizes", MESHES)
def test_the_estimate_of_a_candidate_is_its_simulated_step(sizes, floor, recompute):
    rng = Random(repr((sizes, floor, recompute)))
    trial = Trial(rng, TINY, sizes, recompute, noise=0.0)
    constants = {**trial.engine.pricer.stack.constants, "host_layer_forward_s": floor}
    pricer = Pricer(trial.plan.hardware, replace(trial.plan.stack, constants=constants))
    pace = Pace(1, MICRO_BATCHES, 1, 0.0, None, recompute)
    room = Room((1e12,), "1f1b", "full" if recompute else "none")
    found = estimate(trial.chain, trial.solution, pace, room, pricer)
    assert found is not None
    simulated = simulate_priced(trial.program, pricer).step_time
    simulated -= sum(trial.simulated()[part] for part in ONCE)
    slack = SHARED_READS if trial.shares_reads() else 1e-3
    assert simulated * (1 - 1e-6) <= found.step_time <= simulated * (1 + slack)
