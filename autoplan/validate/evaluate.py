"""What does the planner predict for a recorded run? Case -> Prediction, by the ordinary path.

Pins and the stack's defaults make a Plan, the Plan a Program, the Program a Timeline, as in
`autoplan simulate`. Nothing here knows a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from autoplan.cost import Pricer, forward_flops, half_width, model_flops
from autoplan.errors import AutoplanError, InputError
from autoplan.ir.graph import kind_of
from autoplan.ir.plan import Plan
from autoplan.ir.program import Program
from autoplan.ir.record import Record
from autoplan.lower import lower
from autoplan.presets import build_plan
from autoplan.simulate import simulate_priced, state_bytes
from autoplan.validate.express import Case, express
from autoplan.validate.standing import printed_peak

BATCH = 8
"""Records handed to a worker at once: a second's work."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted for one record.

    Attributes:
        id: of the record.
        measured: seconds that were measured, or None.
        step_time: seconds.
        breakdown: seconds by kind, mean over devices.
        interval: seconds between which it is believed to lie, for 80 % of runs.
        peaks: bytes at the peak of each stage.
        lines: the memory account of the first stage, whose rank writes the log.
        printed: bytes that the record's source would print as its peak.
        capacity: bytes of a device.
        assumed: what the record did not say.
        refusal: why there is no prediction, or "".
    """

    id: str
    measured: float | None = None
    step_time: float = 0.0
    breakdown: Mapping[str, float] | None = None
    interval: tuple[float, float] | None = None
    peaks: tuple[int, ...] = ()
    lines: Mapping[str, int] | None = None
    printed: int = 0
    capacity: int = 0
    assumed: tuple[str, ...] = ()
    refusal: str = ""


def predict(record: Record) -> Prediction:
    """The prediction for a record; where there is none, the reason."""
    try:
        case = express(record)
        program = lower(case.graph, plan_of(case))
    except InputError as error:
        return Prediction(record.id, refusal="; ".join(map(str, error.problems)))
    except AutoplanError as error:
        return Prediction(record.id, refusal=str(error))
    return predict_program(case, program)


def plan_of(case: Case) -> Plan:
    """The Plan of a case."""
    machine = (case.hardware, case.stack)
    return build_plan(case.graph, case.config, machine, case.workload, case.pins)


def predict_program(case: Case, program: Program) -> Prediction:
    """The prediction for a case that is lowered."""
    timeline = simulate_priced(program, Pricer(case.hardware, case.stack))
    factor = 1 + half_width(timeline.breakdown, case.hardware, case.stack)
    return Prediction(
        id=case.record.id,
        measured=measured_seconds(case),
        step_time=timeline.step_time,
        interval=(timeline.step_time / factor, timeline.step_time * factor),
        breakdown=dict(timeline.breakdown),
        peaks=tuple(sum(lines.values()) for lines in timeline.peak_memory),
        lines=dict(timeline.peak_memory[0]),
        printed=printed_peak(case.record, timeline.peak_memory, made_states(program)),
        capacity=case.hardware.device.memory,
        assumed=case.assumed,
    )


def made_states(program: Program) -> list[int]:
    """Bytes of each stage that the optimizer makes in its first step."""
    return [state_bytes(stage, ("state",)) for stage in program.stages]


def measured_seconds(case: Case) -> float | None:
    """Seconds of a recorded step: as measured, or from its FLOP rate as the source counts FLOP.

    Understood of `flops_convention`: that recomputation counts (the forward pass of layers once
    more), and that attention behind the causal mask does not. Otherwise `cost.flops` holds.
    """
    record, measured = case.record, case.record.measured
    if record.step_time is not None:
        return record.step_time
    rate = None
    if measured.tflops_per_device is not None:
        rate = measured.tflops_per_device * 1e12
    elif measured.mfu is not None:
        rate = measured.mfu * case.hardware.device.peak_flops_for_mfu
    if rate is None:
        return None
    words = (record.flops_convention or "").lower()
    graph, batch = case.graph, case.workload.global_batch_size
    flops = model_flops(graph, batch, masked="halved" in words)
    if "recompute counted" in words and record.recompute == "full":
        layers = [i for i in graph.instances if kind_of(i.block) == "layer"]
        flops += forward_flops(graph, layers, batch)
    return flops / (rate * record.devices)


def predict_all(
    records: Sequence[Record], workers: int = 1, progress: Callable[[int], None] | None = None
) -> tuple[Prediction, ...]:
    """Predictions for many records, in their order.

    Args:
        records: any.
        workers: processes; 1: this one.
        progress: told how many are done.
    """
    told = progress or (lambda done: None)
    if workers == 1:
        results = []
        for record in records:
            results.append(predict(record))
            told(len(results))
        return tuple(results)
    results = []
    with ProcessPoolExecutor(workers) as pool:
        for prediction in pool.map(predict, records, chunksize=BATCH):
            results.append(prediction)
            told(len(results))
    return tuple(results)
