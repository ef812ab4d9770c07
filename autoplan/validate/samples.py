"""Recorded runs, lowered once, to be predicted many times with other constants.

A step of many equal micro-batches is affine in their number once the pipeline is full, so two short
Programs stand for it: exact where stages are in step, and in fits alone (`evaluate` always
simulates the whole step). The longer of the two holds as much memory as the whole step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from autoplan.cost import Beside, Measures, Pricer, estimated_lines
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.program import Program
from autoplan.ir.record import Record
from autoplan.lower import lower
from autoplan.simulate import memory_parts, run
from autoplan.units import GIB
from autoplan.validate.evaluate import made_states, plan_of
from autoplan.validate.express import Case, express
from autoplan.validate.standing import printed_peak

MEASURED, RAN, FAILED = 0, 1, -1
"""What is known of a sample: its number, or only on which side of a limit it was."""


class Sample(Protocol):
    """A run whose number is predicted from constants.

    Attributes:
        case: what it says.
        measured: its number, or the limit that it kept or did not.
        known: `MEASURED`, or `RAN` below the limit, or `FAILED` above it.
    """

    @property
    def case(self) -> Case: ...
    @property
    def measured(self) -> float: ...
    @property
    def known(self) -> int: ...

    def predict(self, hardware: Hardware, stack: Stack, measures: Measures) -> float:
        """The number with other constants."""
        ...


@dataclass(frozen=True)
class Lowered:
    """A run's Programs.

    Attributes:
        case: what it says.
        programs: (program, weight): their weighted times add up to the step's.
    """

    case: Case
    programs: tuple[tuple[Program, float], ...]


def lowered(record: Record) -> Lowered:
    """A record's Programs.

    Raises:
        AutoplanError: it cannot be expressed.
    """
    case = express(record)
    plan = plan_of(case)
    count, stages = plan.schedule.micro_batches, len(plan.stages)
    each = case.workload.global_batch_size // count
    shorter, longer = (2, 3) if stages == 1 else (2 * stages, 3 * stages)
    sizes = {count: 1.0}
    if count > longer:
        slope = (count - shorter) / (longer - shorter)
        sizes = {shorter: 1.0 - slope, longer: slope}

    def program(micro_batches: int) -> Program:
        workload = replace(case.workload, global_batch_size=each * micro_batches)
        return lower(case.graph, plan_of(replace(case, workload=workload)))

    return Lowered(case, tuple((program(n), weight) for n, weight in sizes.items()))


# --- seconds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeSample:
    """A step time.

    Attributes:
        case: what the record says.
        measured: seconds.
        programs: see `Lowered`.
        known: always `MEASURED`.
    """

    case: Case
    measured: float
    programs: tuple[tuple[Program, float], ...]
    known: int = MEASURED

    def predict(self, hardware: Hardware, stack: Stack, measures: Measures) -> float:
        """Seconds of the step with other constants."""
        return sum(self.breakdown(hardware, stack, measures).values())

    def breakdown(
        self, hardware: Hardware, stack: Stack, measures: Measures
    ) -> Mapping[str, float]:
        """The same by kind, mean over devices."""
        pricer = Pricer(hardware, stack, measures)
        total: dict[str, float] = {"fixed": pricer.fixed_step}
        for program, weight in self.programs:
            sizes = [stage.mesh.size for stage in program.stages]
            share = weight / sum(sizes)
            for spent, size in zip(run(program, pricer).spent, sizes, strict=True):
                for kind, seconds in spent.items():
                    total[kind] = total.get(kind, 0.0) + share * size * seconds
        return total


def time_sample(run: Lowered, seconds: float) -> TimeSample:
    """A run whose step took so long."""
    return TimeSample(run.case, seconds, run.programs)


# --- bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemorySample:
    """A peak of memory, or whether it was within the device.

    Attributes:
        case: what the record says.
        measured: bytes that its source printed, or of the device.
        known: see `Sample`.
        stages: per stage what its account is worked out from.
        states: bytes of each that the optimizer makes in its first step.
    """

    case: Case
    measured: float
    known: int
    stages: tuple[tuple[Mapping[str, int], Beside], ...]
    states: tuple[int, ...]

    def predict(self, hardware: Hardware, stack: Stack, measures: Measures) -> float:
        """Bytes as the source prints them, or of the fullest stage, with other constants."""
        accounts = [
            {**counted, **estimated_lines(counted, beside, stack)}
            for counted, beside in self.stages
        ]
        if self.known == MEASURED:
            return printed_peak(self.case.record, accounts, self.states)
        return max(sum(lines.values()) for lines in accounts)


def memory_sample(run: Lowered, outcome: bool = False) -> MemorySample:
    """A run's peak as its source printed it, or its outcome.

    Args:
        run: lowered.
        outcome: whether it ran or ended out of memory is told, not its peak.
    """
    case = run.case
    program, _ = run.programs[-1]
    stages = memory_parts(program, Pricer(case.hardware, case.stack))
    states = tuple(made_states(program))
    if outcome:
        known = FAILED if case.record.oom else RAN
        return MemorySample(case, case.hardware.device.memory, known, stages, states)
    peak = (case.record.measured.peak_mem_gib or 0.0) * GIB
    return MemorySample(case, peak, MEASURED, stages, states)
