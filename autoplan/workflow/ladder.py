"""How many devices does a model need? A ladder of machine sizes, each with its verdict.

Sizes double from one device to the whole machine, and go on beyond it while nothing fits, all with
the same batch, so that step times compare. Effort is bounded: a size whose state alone cannot fit,
cut over all devices, is refused without a search, and a search solves at most `SOLVED` candidates,
those with the least ideal time; the whole search of one size is for `plan_search`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from autoplan.errors import InfeasibleError, InputError
from autoplan.files.machine_spec import resize
from autoplan.ir.machine import Hardware
from autoplan.ir.optimizer import KINDS, OPTIMIZERS, UPDATES, Update
from autoplan.ir.timeline import MEMORY_LINES
from autoplan.ir.workload import DTYPE_BYTES, Precision, Workload
from autoplan.search import Request, SearchResult, search
from autoplan.units import format_bytes
from autoplan.workflow.prediction import Priced, price
from autoplan.workflow.question import Inputs

SOLVED = 24
"""Candidates of the outer space that a size may cost. [empirical] Llama-3.1-70B on 32 to 128
devices: within 5 % of the whole search."""
BEYOND = 4
"""Doublings beyond the machine while nothing fits."""
PLANS = 5
"""Plans of a size among which a safer one is looked for."""


@dataclass(frozen=True)
class Rung:
    """One size.

    Attributes:
        devices: of the machine.
        verdict: `fits`, `risky` or `no`.
        limits: what limits: the memory that is missing, or what takes most memory and time.
        knob: the cheapest change after which it would fit, or "".
        priced: the best plan found, or None.
        host_bytes: memory that each node needs, or None.
        found: how the plan was found, or None.
    """

    devices: int
    verdict: str
    limits: str
    knob: str = ""
    priced: Priced | None = None
    host_bytes: int | None = None
    found: SearchResult | None = None

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`."""
        predicted = self.priced.predicted if self.priced else {}
        return {
            "devices": self.devices,
            "verdict": self.verdict,
            "limits": self.limits,
            "knob": self.knob or None,
            "parallel": dict(self.priced.parallel) if self.priced else None,
            "step_time_s": predicted.get("step_time_s"),
            "tokens_per_s": predicted.get("tokens_per_s"),
            "peak_memory_bytes": predicted.get("peak_memory_bytes"),
            "host_bytes_per_node": self.host_bytes,
        }


def climb(asked: Inputs, progress: Callable[[str], None] | None = None) -> list[Rung]:
    """Every size of a machine, ascending.

    Args:
        asked: model, machine at its full size, batch.
        progress: told now and then how far it is.
    """
    rungs = [_rung(asked, hardware, progress) for hardware in sizes(asked.hardware)]
    for hardware in _beyond(asked.hardware):
        if any(rung.verdict != "no" for rung in rungs):
            break
        rungs.append(_rung(asked, hardware, progress))
    return rungs


def needed(rungs: list[Rung]) -> Rung | None:
    """The fewest devices: where it fits, or else where it may."""
    for verdict in ("fits", "risky"):
        for rung in rungs:
            if rung.verdict == verdict:
                return rung
    return None


def sizes(hardware: Hardware) -> Iterator[Hardware]:
    """Powers of two that fill whole units, and the machine itself."""
    count = 1
    while count < hardware.count:
        yield from _resized(hardware, count)
        count *= 2
    yield hardware


def _beyond(hardware: Hardware) -> Iterator[Hardware]:
    for doubling in range(1, BEYOND + 1):
        yield from _resized(hardware, hardware.count << doubling)


def _resized(hardware: Hardware, count: int) -> Iterator[Hardware]:
    try:
        yield resize(hardware, str(count))
    except InputError:
        return


def _rung(asked: Inputs, hardware: Hardware, progress: Callable[[str], None] | None) -> Rung:
    count = hardware.count
    limit = hardware.device.memory - asked.workload.memory_headroom
    least = least_bytes(asked, count)
    if least > limit:
        enough = next(n for n in _powers(count) if least_bytes(asked, n) <= limit)
        limits = (
            f"state needs {format_bytes(least)} of {format_bytes(limit)} on every device, "
            "cut over all of them"
        )
        return Rung(count, "no", limits, f"at least {enough} devices")
    request = Request(
        asked.graph, asked.config, hardware, asked.stack, asked.workload, asked.pins,
        PLANS, progress, SOLVED,
    )  # fmt: skip
    try:
        found = search(request)
    except InfeasibleError as error:
        first = str(error).splitlines()[0]
        return Rung(count, "no", first.rpartition("; ")[2], next(iter(error.nearest), ""))
    except InputError as error:
        return Rung(count, "no", str(error.problems[0]))
    plans = [price(asked.graph, ranked.plan, ranked.timeline) for ranked in found.plans]
    best = plans[0]
    hosts = [stage["host"] for stage in best.predicted["memory"] if stage["host"] is not None]
    host = max(hosts, default=None)
    knob = _safer(plans) if best.verdict == "risky" else ""
    return Rung(count, best.verdict, _limits(best, host), knob, best, host, found)


def _powers(count: int) -> Iterator[int]:
    while True:
        count *= 2
        yield count


def least_bytes(asked: Inputs, devices: int) -> int:
    """No plan has a fullest device with less than this, however it cuts state over so many.

    Source: every parameter, its master copy, accumulated gradient and optimizer states are alive
    when the first gradient is final, each at least once over all devices.
    """
    graph = asked.graph
    trained, frozen = _element_bytes(asked.workload)
    total = sum(
        prod(graph.shape(block, local))
        * (trained if local in graph.blocks[block].trainable else frozen)
        for block, local in graph.parameters.values()
    )
    constants = asked.stack.constants
    counted = ceil(total / devices)
    lost = ceil(constants["allocator_fraction"] * counted)
    return counted + lost + ceil(constants["framework_bytes"])


def _element_bytes(workload: Workload) -> tuple[int, int]:
    """Bytes of an element of a parameter that trains, at least, and of one that does not."""
    precision, rule = workload.precision, OPTIMIZERS[workload.optimizer.name]
    frozen = DTYPE_BYTES[precision.parameter]
    master = DTYPE_BYTES[precision.master] if precision.master != precision.parameter else 0
    states = min(_state_bytes(UPDATES[rule.update(kind)], precision) for kind in KINDS)
    return frozen + master + DTYPE_BYTES[precision.gradient] + states, frozen


def _state_bytes(update: Update, precision: Precision) -> int:
    """Of what an update remembers of each element; what it remembers by rows is little."""
    return sum(
        DTYPE_BYTES[precision.optimizer if state.dtype == "optimizer" else state.dtype]
        for state in update.states
        if state.over == "elements"
    )


def _limits(best: Priced, host: int | None) -> str:
    """What takes most of the memory and of the time of a plan that runs."""
    stages = best.predicted["memory"]
    fullest = max(stages, key=lambda stage: sum(stage[line] for line in MEMORY_LINES))
    line = max(MEMORY_LINES, key=lambda name: int(fullest[name]))
    parts = best.predicted["breakdown_s"]
    part = max(parts, key=lambda kind: float(parts[kind]))
    share = parts[part] / best.predicted["step_time_s"]
    text = f"{line} {format_bytes(fullest[line])}; {part.replace('_', ' ')} {share:.0%} of the time"
    capacity = best.plan.hardware.host.memory
    if host is not None and host > capacity:
        text += f"; host memory {format_bytes(host)} of {format_bytes(capacity)} a node"
    return text


def _safer(plans: list[Priced]) -> str:
    """The fastest plan that fits for sure, as what it changes of the first."""
    best = plans[0]
    for other in plans[1:]:
        if other.verdict == "fits":
            changed = [
                f"{key}={value}"
                for key, value in other.parallel.items()
                if best.parallel.get(key) != value and key not in ("order", "zero_axes")
            ]
            slower = other.predicted["step_time_s"] / best.predicted["step_time_s"] - 1
            return f"fits with {' '.join(changed)}, {slower:.0%} slower"
    return "more devices, or a measurement"
