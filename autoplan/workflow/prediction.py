"""A Timeline -> the numbers that people read: throughput, utilisation, memory, and how sure.

MFU counts the model's own FLOPs (no recomputation, causal attention counted as `cost.flops` says)
against `peak_flops_for_mfu`; HFU counts what is executed.

The interval is `cost.uncertainty`'s.

Of memory, `load_peak` is a device's while parameters are loaded, `host` a node's; `first_step_peak`
equals the peak of every step, since optimizer states exist before the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, hypot
from typing import Any

from autoplan.cost import forward_flops, half_width, model_flops, spread_of
from autoplan.describe import describe
from autoplan.ir.graph import Graph
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.plan import Plan
from autoplan.ir.timeline import MEMORY_LINES, Timeline
from autoplan.lower import stage_instances

ESTIMATED_LINES = {"allocator": "allocator_fraction", "framework": "framework_bytes"}
"""Memory lines that a constant of the stack decides."""
WORKSPACE_SPREAD = 1.5
"""[empirical] Of what kernels take beside their operands."""


@dataclass(frozen=True)
class Priced:
    """A plan and what it costs.

    Attributes:
        plan, graph, timeline: what was simulated.
        parallel: its pin keys.
        predicted: the numbers, as in a plan file.
        verdict: whether it fits: `fits`, `risky` or `no`.
    """

    plan: Plan
    graph: Graph
    timeline: Timeline
    parallel: Mapping[str, Any]
    predicted: Mapping[str, Any]
    verdict: str

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds between which the step time is believed to lie."""
        low, high = self.predicted["step_time_interval_s"]
        return low, high

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return sum(stage.mesh.size for stage in self.plan.stages)

    def ties(self, other: Priced) -> bool:
        """Whether the intervals overlap, so that the prediction cannot tell the two apart."""
        return self.interval[0] <= other.interval[1] and other.interval[0] <= self.interval[1]


@dataclass(frozen=True, slots=True)
class Work:
    """What a step accomplishes.

    Attributes:
        tokens: of the global batch; on average where documents are padded.
        devices: that share it.
        flops: of the model, or None where only a Program is known.
        executed_flops: with what is computed again.
    """

    tokens: int
    devices: int
    flops: float | None = None
    executed_flops: float | None = None


def price(graph: Graph, plan: Plan, timeline: Timeline) -> Priced:
    """The numbers of a simulated plan.

    Args:
        graph: the training step of the plan's model and workload.
        plan: what was simulated.
        timeline: its simulation.
    """
    workload = plan.workload
    flops = model_flops(graph, workload.global_batch_size)
    work = Work(
        tokens=workload.tokens,
        devices=sum(stage.mesh.size for stage in plan.stages),
        flops=flops,
        executed_flops=flops + recomputed_flops(graph, plan),
    )
    return Priced(
        plan,
        graph,
        timeline,
        describe(graph, plan),
        predicted_document(timeline, work, plan.hardware, plan.stack),
        memory_verdict(timeline, plan),
    )


def recomputed_flops(graph: Graph, plan: Plan) -> float:
    """FLOP of a step that are spent again: the forward of blocks that recompute."""
    again = tuple(
        graph.instances[index]
        for stage in stage_instances(plan)
        for index, _, recompute in stage
        if recompute
    )
    return forward_flops(graph, again, plan.workload.global_batch_size)


def predicted_document(
    timeline: Timeline, work: Work, hardware: Hardware, stack: Stack
) -> dict[str, Any]:
    """The `predicted` object of a plan file. Units stand in the keys; rates are per second."""
    seconds = timeline.step_time
    half = half_width(timeline.breakdown, hardware, stack)
    per_device = work.flops / seconds / work.devices if work.flops is not None else None
    executed = work.executed_flops
    peak = hardware.device.peak_flops_for_mfu
    return {
        "step_time_s": seconds,
        "step_time_interval_s": [seconds / (1 + half), seconds * (1 + half)],
        "tokens_per_s": work.tokens / seconds,
        "tokens_per_s_per_device": work.tokens / seconds / work.devices,
        "model_flops": work.flops,
        "tflops_per_device": None if per_device is None else per_device / 1e12,
        "mfu": None if per_device is None else per_device / peak,
        "hfu": None if executed is None else executed / seconds / work.devices / peak,
        "breakdown_s": dict(timeline.breakdown),
        "stages": [{"breakdown_s": dict(stage)} for stage in timeline.stage_breakdown],
        "memory": [
            {**_memory(timeline, stage), "host": host_bytes(timeline, stage, hardware, stack)}
            for stage in range(len(timeline.peak_memory))
        ],
        "peak_memory_bytes": max(map(_peak, timeline.peak_memory), default=0),
    }


def _memory(timeline: Timeline, stage: int) -> dict[str, Any]:
    lines = timeline.peak_memory[stage]
    return {
        **{line: lines.get(line, 0) for line in MEMORY_LINES},
        "in_flight": _at(timeline.in_flight, stage),
        "peak_at": _at(timeline.peak_at, stage),
        "first_step_peak": _peak(lines),
        "load_peak": _at(timeline.load_peak, stage),
    }


def host_bytes(timeline: Timeline, stage: int, hardware: Hardware, stack: Stack) -> int | None:
    """Bytes of host memory that a node full of a stage's devices needs, or None.

    Each device's process takes the stack's `host_rank_bytes`, and a checkpoint is staged there: a
    copy of what the device saves.
    """
    state = _at(timeline.state, stage)
    process = stack.constants.get("host_rank_bytes")
    if state is None or process is None:
        return None
    return min(hardware.devices_per_node, hardware.count) * (ceil(process) + int(state))


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def _peak(lines: Mapping[str, int]) -> int:
    return sum(lines.get(line, 0) for line in MEMORY_LINES)


def memory_verdict(timeline: Timeline, plan: Plan) -> str:
    """Whether a plan fits.

    `no`: the peak exceeds the device. `risky`: it reaches into the headroom, or would exceed the
    device if the estimated lines, which err independently, were as large as their spread allows.
    Otherwise `fits`.
    """
    capacity = plan.hardware.device.memory
    verdict = "fits"
    for lines in timeline.peak_memory:
        peak = _peak(lines)
        if peak > capacity:
            return "no"
        off = _memory_off(lines, plan.stack)
        if peak + off > capacity or peak > capacity - plan.workload.memory_headroom:
            verdict = "risky"
    return verdict


def memory_interval(timeline: Timeline, stack: Stack) -> tuple[float, float]:
    """Bytes between which the peak of the fullest device is believed to lie."""
    peaks = [(_peak(lines), _memory_off(lines, stack)) for lines in timeline.peak_memory]
    low = max((peak - off for peak, off in peaks), default=0.0)
    return low, max((peak + off for peak, off in peaks), default=0.0)


def _memory_off(lines: Mapping[str, int], stack: Stack) -> float:
    """By how many bytes a peak may be off.

    What errs, independently: the estimated lines, and how much the stack keeps of activations.
    """
    spreads = {k: spread_of(stack.evidence.get(c)) for k, c in ESTIMATED_LINES.items()}
    spreads["workspace"] = WORKSPACE_SPREAD
    saved = stack.constants["saved_factor"] * lines.get("activations", 0)
    return hypot(
        saved * (spread_of(stack.evidence.get("saved_factor")) - 1),
        *(lines.get(line, 0) * (s - 1) for line, s in spreads.items()),
    )
