"""Runs a random plan here, in lock-step, says what is wrong with it and what it covered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from autoplan.ir.adapter import is_lora
from autoplan.ir.graph import Graph
from autoplan.ir.plan import Plan
from autoplan.lower.check import check
from autoplan.ops import BlockLayouts
from autoplan.runtime.data import Batches, Shape, SyntheticBatches
from autoplan.runtime.documents import DocumentBatches
from autoplan.runtime.execute import execute, whole_records
from autoplan.runtime.session import Settings
from autoplan.runtime.verify import Trial, Verdict, verify
from autoplan.simulate import account
from tests.generators import Sample, sample


@dataclass(frozen=True)
class Outcome:
    """What became of one plan: its comparison with the reference; (stage, counted peak, simulated)
    where a rank's counted peak differs from the simulated one."""

    sample: Sample
    verdict: Verdict
    peaks: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        failures = [str(failure) for failure in self.verdict.failures[:2]]
        return "; ".join(failures + [f"stage {s}: peak {c}, not {p}" for s, c, p in self.peaks])


def attempt(seed: int) -> Outcome:
    """Draw, check, run for one step and verify the plan of a seed."""
    drawn = sample(Random(seed))
    program, workload = drawn.program, drawn.plan.workload
    check(program)
    shape = Shape(workload.global_batch_size, workload.seq_len, drawn.graph.extent["v"])
    batches: Batches = SyntheticBatches(shape, seed)
    if workload.lengths:
        batches = DocumentBatches(batches, workload.lengths, seed)
    result = execute(program, drawn.graph, Settings(1, workload.seed, batches))
    records, unequal = whole_records(result)
    verdict = verify(Trial(drawn.graph, workload, batches), records, unequal)
    simulated = {stage.stage: account(stage).peak for stage in program.stages}
    peaks = {(program.stage_of[rank], peak) for rank, peak in result.peaks.items()}
    wrong = tuple((s, peak, simulated[s]) for s, peak in sorted(peaks) if peak != simulated[s])
    return Outcome(drawn, verdict, wrong)


@dataclass
class Coverage:
    """Which pairs of decisions plans contained, and how many plans there were."""

    plans: int = 0
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, plan: Plan, graph: Graph) -> None:
        """Count a plan's pairs: operator family x split; schedule, lifetimes and axes pairwise."""
        self.plans += 1
        axes = f"{len(plan.stages[0].mesh.axes)} axes"
        features = [axes, f"{len(plan.stages)} stages", plan.schedule.family]
        features += _lifetimes(plan, graph)
        for strategy in plan.strategies.values():
            block = graph.blocks[strategy.block]
            for op in (*block.forward, *block.backward):
                splits = strategy.splits.get(op.group, ())
                self.seen.update({(op.family, str(choice)) for choice in splits})
        self.seen.update(combinations(features, 2))

    def table(self) -> str:
        """Rows are the first of a pair, columns the second."""
        rows = sorted({a for a, _ in self.seen})
        lines = []
        for row in rows:
            cells = sorted((b, n) for (a, b), n in self.seen.items() if a == row)
            lines.append(f"{row:18}" + "  ".join(f"{b}:{n}" for b, n in cells))
        return "\n".join(lines)


def _lifetimes(plan: Plan, graph: Graph) -> list[str]:
    """What a plan keeps, drops and computes again."""
    runs = [run for stage in plan.stages for run in stage.runs]
    again = sum(run.recompute for run in runs)
    found = [
        "no recompute" if not again else "recompute" if again == len(runs) else "mixed recompute"
    ]
    found.append(f"prefetch {plan.orders.prefetch}")
    stored = [
        (BlockLayouts(graph.blocks[s.block], s).used[name], entry)
        for s in plan.strategies.values()
        for name, entry in s.stored.items()
    ]
    found += ["gathers"] if any(used != entry.parameter for used, entry in stored) else []
    found += ["saved moves"] if any(s.saved for s in plan.strategies.values()) else []
    found += ["tied"] if graph.tied else []
    found += ["frozen"] if plan.workload.trainable != "full" else []
    found += ["adapters"] if is_lora(plan.workload.trainable) else []
    found += ["packed"] if plan.workload.lengths else []
    return found
