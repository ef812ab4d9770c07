"""One step's Timeline: the engine's seconds and the account's bytes together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod

from autoplan.cost import Beside, Pricer, estimated_lines
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.program import Program, Register, StageProgram
from autoplan.ir.timeline import Timeline
from autoplan.ir.workload import DTYPE_BYTES
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


def memory_parts(program: Program, pricer: Pricer) -> tuple[tuple[Mapping[str, int], Beside], ...]:
    """What every stage's memory is worked out from: the counted lines, and what is beside them.

    Neither depends on a constant of the stack, so `cost.estimated_lines` gives the account of the
    same Program under other constants without counting again; habits do count.
    """
    accounts = [(stage, account(stage)) for stage in program.stages]
    return tuple((counted.lines, _beside(stage, counted, pricer)) for stage, counted in accounts)


def _memory(stage: StageProgram, counted: Account, pricer: Pricer) -> Mapping[str, int]:
    """All lines of the memory account at the peak."""
    beside = _beside(stage, counted, pricer)
    return {**counted.lines, **estimated_lines(counted.lines, beside, pricer.stack)}


def _held(stage: StageProgram, counted: Account, stack: Stack) -> Mapping[str, int]:
    """The counted lines when most is held, with buffers of gradients where the stack has them.

    Source of their size: a whole gradient, in the dtype that adds up, of every trained parameter as
    the rank stores it; such as Megatron-LM's and nanotron's, which allot them before the first
    step and do not split them with the state.
    """
    if "gradient_buffers" not in stack.habits:
        return counted.lines
    buffers = sum(
        prod(register.shape) * DTYPE_BYTES[stage.gradients[name].register.dtype]
        for name, register in _trained(stage)
    )
    held = {**counted.others, "gradients": max(buffers, counted.others["gradients"])}
    return held if sum(held.values()) > counted.peak else counted.lines


def _trained(stage: StageProgram) -> Iterator[tuple[str, Register]]:
    """Name and register of every parameter that a rank stores and trains."""
    for spec in stage.resident:
        if spec.source[0] == "parameter" and spec.source[1] in stage.gradients:
            yield spec.source[1], spec.register


def _beside(stage: StageProgram, counted: Account, pricer: Pricer) -> Beside:
    return Beside(
        workspace=max(map(pricer.segment_workspace, stage.segments.values()), default=0),
        scores=_scores(stage, counted.in_flight, pricer),
        gathered=counted.in_flight * _gathered(stage),
        unadded=sum(register.nbytes for _, register in _trained(stage)),
        held=_held(stage, counted, pricer.stack),
    )


def _gathered(stage: StageProgram) -> int:
    """Bytes that the forward pass of a micro-batch gathers of what it keeps in shards."""
    found = 0
    for segment in {a.segment for a in stage.actions if a.kind == "F"}:
        code, registers = stage.segments[segment].code, stage.segments[segment].registers
        kept = {
            formal.register for formal in stage.segments[segment].formals if formal.intent == "out"
        }
        calls = sum(
            a.segment == segment and a.kind == "F" and a.micro_batch == 0 for a in stage.actions
        )
        found += calls * sum(
            registers[out].nbytes
            for instr in code
            if instr.op == "all_gather" and kept.intersection(instr.ins)
            for out in instr.outs
        )
    return found


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
