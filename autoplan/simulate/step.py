"""One step's Timeline: the engine's seconds and the account's bytes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from autoplan.cost import Beside, Pricer, estimated_lines
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.program import Program, StageProgram
from autoplan.ir.timeline import Timeline
from autoplan.simulate.account import Account, account, load_bytes, state_bytes
from autoplan.simulate.calls import KINDS
from autoplan.simulate.engine import run


def simulate(program: Program, hardware: Hardware, stack: Stack, spans: bool = False) -> Timeline:
    """Predict one step of a Program on a machine.

    Args:
        program: passes `lower.check`.
        hardware: the machine.
        stack: the training software.
        spans: whether to keep every action's start and end.

    Raises:
        CheckError: stages wait for each other.
    """
    return simulate_priced(program, Pricer(hardware, stack), spans)


def simulate_priced(program: Program, pricer: Pricer, spans: bool = False) -> Timeline:
    """`simulate` with a price list that keeps what it has worked out for other Programs."""
    outcome = run(program, pricer, spans)
    stages = tuple({**spent, "fixed": pricer.fixed_step} for spent in outcome.spent)
    accounts = [account(stage) for stage in program.stages]
    return Timeline(
        step_time=outcome.makespan + pricer.fixed_step,
        spans=outcome.spans,
        breakdown=_mean(stages, [stage.mesh.size for stage in program.stages]),
        stage_breakdown=stages,
        peak_memory=tuple(
            _memory(stage, counted, pricer)
            for stage, counted in zip(program.stages, accounts, strict=True)
        ),
        peak_at=tuple(
            _place(stage, counted) for stage, counted in zip(program.stages, accounts, strict=True)
        ),
        in_flight=tuple(counted.in_flight for counted in accounts),
        load_peak=tuple(
            load_bytes(stage, program.extent) + ceil(pricer.stack.constants["framework_bytes"])
            for stage in program.stages
        ),
        state=tuple(map(state_bytes, program.stages)),
    )


def _mean(stages: Sequence[Mapping[str, float]], devices: Sequence[int]) -> Mapping[str, float]:
    """Mean over devices of what stages spend, by kind."""
    total = sum(devices)
    return {
        kind: sum(spent[kind] * n for spent, n in zip(stages, devices, strict=True)) / total
        for kind in KINDS
    }


def _memory(stage: StageProgram, counted: Account, pricer: Pricer) -> Mapping[str, int]:
    """All lines of the memory account at the peak."""
    beside = Beside(
        workspace=max(map(pricer.segment_workspace, stage.segments.values()), default=0),
        scores=_scores(stage, counted.in_flight, pricer),
        gradients=counted.gradients,
    )
    return {**counted.lines, **estimated_lines(counted.lines, beside, pricer.stack)}


def _scores(stage: StageProgram, in_flight: int, pricer: Pricer) -> int:
    """Bytes of one copy of the scores between forward and backward, at most.

    A layer that computes its forward pass again keeps them only while its backward pass runs.
    """
    copies = {key: pricer.segment_scores(segment) for key, segment in stage.segments.items()}
    if not any(copies.values()):
        return 0
    kept = again = 0
    for action in stage.actions:
        if action.micro_batch == 0 and action.kind == "F":
            kept += copies[action.segment]
        elif action.micro_batch == 0 and action.kind == "B":
            kept -= copies[action.segment]
            again = max(again, copies[action.segment])
    return in_flight * max(kept, 0) + again


def _place(stage: StageProgram, counted: Account) -> str:
    """The action, and the instruction in it, at the peak."""
    if counted.action < 0:
        return ""
    action = stage.actions[counted.action]
    if counted.instruction < 0:
        return str(action)
    return f"{action}: {stage.segments[action.segment].code[counted.instruction].op}"
