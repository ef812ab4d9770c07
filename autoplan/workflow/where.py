"""Where does the time go? Every layer operator of every stage: work, collectives, what limits.

Seconds here are those that a device is busy, on its compute stream or on its collective stream,
over the whole step; what overlaps is counted on both, so they add up to more than the step takes.
What the step waits for is in the breakdown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from autoplan.cost import Pricer
from autoplan.cost.pricer import communicates, measure
from autoplan.ir.graph import GRADIENT, Block, Graph
from autoplan.ir.plan import Plan
from autoplan.ir.program import COLLECTIVES, Instr, Program, Segment, StageProgram

PASSES = {"F": "forward", "B": "backward"}
"""Kinds of action whose instructions belong to layer operators; other segments are one row each."""
OUTSIDE = {
    "GATHER": "gather parameters", "REDUCE": "reduce gradients", "NORM": "gradient norm",
    "STEP": "optimizer",
}  # fmt: skip


@dataclass
class Row:
    """An operator of a block in one direction.

    Attributes:
        calls: instructions executed in a step.
        compute, communication: seconds busy.
        causes: what limits -> seconds.
        collectives: (kind, axes, level, bytes of a rank's input) -> [times, seconds].
    """

    calls: int = 0
    compute: float = 0.0
    communication: float = 0.0
    causes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    collectives: dict[tuple[str, str, str, int], list[float]] = field(default_factory=dict)

    def document(self, names: tuple[str, str, str]) -> dict[str, Any]:
        """The row for `--json`; names are block, operator and pass."""
        return {
            "block": names[0],
            "operator": names[1],
            "pass": names[2],
            "calls": self.calls,
            "compute_s": self.compute,
            "communication_s": self.communication,
            "limited_by": max(self.causes, key=lambda cause: self.causes[cause], default=None),
            "collectives": [
                {
                    "kind": kind, "axes": axes, "level": level, "bytes": nbytes,
                    "times": int(times), "seconds": seconds,
                }
                for (kind, axes, level, nbytes), (times, seconds) in self.collectives.items()
            ],
        }  # fmt: skip


def stage_operators(graph: Graph, plan: Plan, program: Program) -> list[list[dict[str, Any]]]:
    """Per stage the rows of its operators, the longest first.

    Args:
        graph: the training step of the plan's model.
        plan: all decisions.
        program: its lowering.
    """
    pricer = Pricer(plan.hardware, plan.stack)
    tables = []
    for stage in program.stages:
        rows = _Stage(graph, plan, program, stage, pricer).rows()
        documents = [row.document(names) for names, row in rows.items()]
        tables.append(sorted(documents, key=lambda d: -(d["compute_s"] + d["communication_s"])))
    return tables


class _Stage:
    """The rows of one stage.

    Args:
        graph, plan, program: see `stage_operators`.
        stage: the stage.
        pricer: of the plan's machine.
    """

    def __init__(
        self, graph: Graph, plan: Plan, program: Program, stage: StageProgram, pricer: Pricer
    ) -> None:
        self.graph, self.plan, self.program = graph, plan, program
        self.stage, self.pricer = stage, pricer

    def rows(self) -> dict[tuple[str, str, str], Row]:
        """(block, operator, pass) -> row."""
        calls = Counter((a.segment, a.kind) for a in self.stage.actions if a.segment)
        table: dict[tuple[str, str, str], Row] = defaultdict(Row)
        for (key, kind), count in calls.items():
            segment = self.stage.segments[key]
            mesh, groups = self.stage.mesh, self.program.groups
            seconds = self.pricer.instruction_seconds(segment, mesh, groups, kind)
            for instr, taken in zip(segment.code, seconds.tolist(), strict=True):
                row = table[self._names(segment, instr, kind)]
                row.calls += count
                self._add(row, instr, segment, (kind, count, count * taken))
        return table

    def _names(self, segment: Segment, instr: Instr, kind: str) -> tuple[str, str, str]:
        part = segment.key.partition("/")[0]
        strategy = self.plan.strategies.get(part)
        name = strategy.block if strategy else part
        if kind not in PASSES:
            return name, OUTSIDE.get(kind, kind.lower()), "step"
        block = self.graph.blocks.get(name)
        register = segment.registers[instr.outs[0]].name if instr.outs else ""
        return name, operator_of(register, block), PASSES[kind]

    def _add(self, row: Row, instr: Instr, segment: Segment, spent: tuple[str, int, float]) -> None:
        """Add an instruction to its row; `spent`: kind of action, times, seconds in all."""
        kind, count, seconds = spent
        if instr.op not in COLLECTIVES:
            row.compute += seconds
            for cause, share in self._work_causes(instr, segment):
                row.causes[cause] += share * seconds
            return
        row.communication += seconds
        sizes = [segment.registers[r].nbytes for r in instr.ins]
        nbytes = sum(sizes)
        axes, level = self._crossed(instr)
        entry = row.collectives.setdefault((instr.op, axes, level, nbytes), [0, 0.0])
        entry[0] += count
        entry[1] += seconds
        terms = self.pricer.instruction_terms(instr, self.stage.mesh, self.program.groups)
        messages = self.pricer.messages(kind, instr.op, sizes)
        latency = count * sum(n * terms.line(each).seconds for n, each in messages)
        row.causes[f"latency of {level}"] += latency
        row.causes[f"bandwidth of {level}"] += seconds - latency

    def _crossed(self, instr: Instr) -> tuple[str, str]:
        """(axes, outermost level) of a collective."""
        axes = instr.attr("axes")
        if isinstance(axes, str):
            return axes, self.plan.hardware.levels[-1].name
        chosen = [self.stage.mesh.axes[i] for i in axes]
        names = {part for axis in chosen for part in axis.name.split(".")[0].split("+")}
        level = next(x.name for x in reversed(self.plan.hardware.levels) if x.name in names)
        return " x ".join(f"{axis.name}:{axis.size}" for axis in chosen), level

    def _work_causes(self, instr: Instr, segment: Segment) -> Iterator[tuple[str, float]]:
        """What bounds a computing instruction, with its share of the time."""
        if communicates(instr):
            yield "memory bandwidth", 1.0
            return
        work = measure(instr, segment)
        dtype = segment.registers[instr.ins[0]].dtype if instr.ins else ""
        rates = self.pricer.processor.rates(work.kind, dtype)
        arithmetic, streaming = work.flops / rates.flops, work.nbytes / rates.nbytes
        busy, launch = max(arithmetic, streaming), self.plan.hardware.device.launch
        whole = busy + launch
        if whole <= 0:
            return
        yield ("arithmetic" if arithmetic >= streaming else "memory bandwidth"), busy / whole
        yield "launch", launch / whole


def operator_of(register: str, block: Block | None) -> str:
    """The layer operator that a value belongs to.

    A gradient `d.x@y` is what reading `x` for `y` sends back, so it belongs to the operator of `y`;
    a parameter and its gradient to the first operator that reads it.
    """
    if block is None:
        return register
    base, _, reader = register.removeprefix(GRADIENT).partition("@")
    for name in (reader, base):
        tensor = name.partition("+")[0].rstrip("'")
        if tensor in block.parameters:
            readers = block.consumers.get(tensor, ())
            return readers[0].group if readers else tensor
        if tensor in block.producer:
            return block.producer[tensor].group
    return "boundary" if base == block.input else base
