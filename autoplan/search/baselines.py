"""Plain choices, priced beside the winner: what people take when they do not search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from autoplan.errors import InputError
from autoplan.ir.plan import Plan
from autoplan.pins import parse_pins
from autoplan.presets import build_plan
from autoplan.search.candidates import divisors
from autoplan.search.result import Ranked, Request
from autoplan.units import format_bytes

PLAIN = {
    "data": ("zero=0",),
    "fsdp": ("zero=3", "zero=3,recompute=full"),
}
"""Name -> pins to try in order, on all devices as replicas."""


def baselines(
    request: Request, evaluate: Callable[[Plan], Ranked]
) -> dict[str, Ranked | str]:
    """Each plain choice, simulated, or why it is not one."""
    table: dict[str, Ranked | str] = {}
    for name, tries in PLAIN.items():
        table[name] = _first_fit(request, tries, evaluate)
    table["megatron"] = _first_fit(request, _rule_of_thumb(request), evaluate)
    return table


def _rule_of_thumb(request: Request) -> Iterator[str]:
    """Split weights inside a node as far as heads divide, then add stages until it fits.

    Source: Narayanan et al. 2021, section 5: tensor parallelism up to the node, then pipeline; layers
    are computed again where that is not enough.
    """
    hardware, config = request.hardware, request.config
    node = min(hardware.devices_per_node, hardware.count)
    widths = [t for t in divisors(node) if config.kv_heads % t == 0 and config.ffn % t == 0]
    width = widths[-1]
    for stages in divisors(hardware.count // width):
        if stages <= config.layers:
            for recompute in ("none", "full"):
                yield f"tp={width},pp={stages},zero=1,recompute={recompute}"


def _first_fit(
    request: Request, tries: Iterator[str] | tuple[str, ...], evaluate: Callable[[Plan], Ranked]
) -> Ranked | str:
    """The first try that fits, or why the last one does not."""
    reason = "does not apply"
    limit = request.hardware.device.memory - request.workload.memory_headroom
    for text in tries:
        try:
            plan = build_plan(
                request.graph, request.config, (request.hardware, replace(request.stack, restricts={})),
                request.workload, parse_pins([text]),
            )  # fmt: skip
        except InputError as error:
            reason = f"does not apply: {error.problems[0]}"
            continue
        row = evaluate(replace(plan, stack=request.stack))
        peak = max(sum(lines.values()) for lines in row.timeline.peak_memory)
        if peak <= limit:
            return row
        reason = f"needs {format_bytes(peak)} of {format_bytes(limit)}"
    return reason
