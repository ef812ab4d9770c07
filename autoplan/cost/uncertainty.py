"""How far may a predicted step time be off? Half-widths of intervals that hold 80 % of runs.

Three things are uncertain, and err independently of each other.

The machine: each part of the step by the spread of the number that decides it, and the parts are
taken to err together; compute and the bubble, which is other stages' compute, follow the efficiency
of matrix products, the optimizer memory bandwidth, what every step costs the stack its own spread,
everything else the widest of the levels.

The software: a stack's constants by their spreads, each as much as it usually moves a step
(`SENSITIVITIES`). So an interval grows with what is assumed of a stack, number by number, and a fit
of that number narrows it.

And what the model leaves out: the stack's `unexplained`, the factor within which 80 % of published
runs lie whose constants were fitted without them. An interval is never narrower than `NARROWEST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import expm1, hypot, log

from autoplan.ir.machine import NEUTRAL, Evidence, Hardware, Stack

NARROWEST = 0.12
"""Least half-width of an interval, as a fraction. [empirical] Where a stack was fitted to one
cluster, runs of its software on others lie 9 to 17 % off in the median: `published_accuracy.py` of
`tests/data/published_elsewhere.jsonl`."""
UNSTATED_SPREAD = {"assumed": 1.2, "fitted": 1.1}
"""Spread of a number whose profile states none, by the kind of its evidence."""
EIGHTY_PERCENT = 1.28
"""Standard deviations on either side that hold 80 % of a normal distribution."""
SENSITIVITIES: Mapping[str, float] = {
    "pointwise_factor": 0.13, "loss_factor": 0.04, "score_traffic": 0.11,
    "overlap_contention": 0.21, "layer_overlap": 0.11, "network_efficiency": 0.12,
    "crossed_floor_s": 0.5,
}  # fmt: skip
"""Constant of a stack -> d log(step time) / d log(constant). [empirical] Root mean square over
three published runs of each source whose stack has it, by `validate.calibrate`."""


def half_width(breakdown: Mapping[str, float], hardware: Hardware, stack: Stack) -> float:
    """How far the step time may be off, as a fraction; see the module."""
    total = sum(breakdown.values())
    if total <= 0:
        return NARROWEST
    spreads = part_spreads(breakdown, hardware, stack)
    off = sum(seconds * (spreads[kind] - 1) for kind, seconds in breakdown.items()) / total
    machine, software = EIGHTY_PERCENT * log(1 + off), EIGHTY_PERCENT * software_sigma(stack)
    return max(NARROWEST, expm1(hypot(machine, software, log(stack.unexplained))))


def software_sigma(stack: Stack) -> float:
    """One-sigma of the logarithm of a step time by the constants of its stack that change it."""
    return hypot(
        *(
            sensitivity * log(spread_of(stack.evidence.get(name)))
            for name, sensitivity in SENSITIVITIES.items()
            if stack.constants[name] != NEUTRAL.get(name)
        )
    )


def part_spreads(kinds: Iterable[str], hardware: Hardware, stack: Stack) -> dict[str, float]:
    """Part of a step -> the one-sigma factor by which it may be off; see the module."""
    evidence = hardware.evidence
    compute = spread_of(evidence.get("device.gemm_efficiency"))
    memory = spread_of(evidence.get("device.memory_efficiency"))
    links = [
        spread_of(evidence.get(f"levels.{level.name}.{number}"))
        for level in hardware.levels
        for number in ("bandwidth", "efficiency")
    ]
    fixed = spread_of(stack.evidence.get("fixed_step_s"))
    spreads = {"compute": compute, "bubble": compute, "optimizer": memory, "fixed": fixed}
    communication = max(links, default=1.0)
    return {kind: spreads.get(kind, communication) for kind in kinds}


def spread_of(evidence: Evidence | None) -> float:
    """The one-sigma factor by which a number may be off."""
    if evidence is None:
        return UNSTATED_SPREAD["assumed"]
    return evidence.spread or UNSTATED_SPREAD.get(evidence.kind, 1.0)
