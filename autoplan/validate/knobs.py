"""Which constants of profiles may be fitted, how far, and where in a profile they are.

A knob turns one number. Numbers that decide seconds are turned by a factor exp(x); those that
decide bytes may be 0, and are moved by x units. Either way x = 0 is the profile's value, and
`Knob.sigma` is how far x is believed to be off before any run is seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from typing import Any

from autoplan.files.stack import constant_origins
from autoplan.ir.machine import Hardware, Stack
from autoplan.units import GIB
from autoplan.validate.express import Case

LEAST, MOST = 0.02, 50.0
"""Factors beyond which no knob is turned."""
ASSUMED = "assumed"
"""Kind of evidence of a number that nobody measured or fitted."""
EVERY = "*"
"""Owner's name of a knob that turns a number of all profiles."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A constant that may be fitted.

    Attributes:
        owner: `hardware` or `stack`.
        name: of the profile, or `*` for all.
        path: of the number, such as `device.gemm_efficiency`, `levels.node.latency`, or a
            constant's name.
        spread: one-sigma factor of the prior, > 1; with a unit: 1 is not moved at all.
        least, most: bounds of the factor; with a unit: of the number.
        unit: that the number is moved by for x = 1, one sigma of the prior; 0: it is multiplied.
    """

    owner: str
    name: str
    path: str
    spread: float
    least: float
    most: float
    unit: float = 0.0

    def __str__(self) -> str:
        return f"{self.owner} {self.name}: {self.path}"

    @property
    def sigma(self) -> float:
        """Of the prior of x."""
        return 1.0 if self.unit else log(self.spread)

    def concerns(self, case: Case) -> bool:
        """Whether a case is priced with this constant."""
        if self.owner == "stack":
            return self.name in (EVERY, constant_origins(case.stack_spec).get(self.path))
        named = self.name in (EVERY, case.hardware.device.kind)
        return named and read(case.hardware, self.path) is not None

    def turned(self, value: float, x: float) -> float:
        """The number at x where the profile has `value`."""
        if self.unit:
            return min(max(value + self.unit * x, self.least), self.most)
        return value * exp(x)

    def bounds(self, value: float) -> tuple[float, float]:
        """Least and most x where the profile has `value`."""
        if self.unit:
            return (self.least - value) / self.unit, (self.most - value) / self.unit
        return log(self.least), log(self.most)

    def reaching(self, value: float, wanted: float) -> float:
        """Where the number is `wanted`, or near it within bounds, if the profile has `value`: x."""
        least, most = self.bounds(value)
        x = (wanted - value) / self.unit if self.unit else log(wanted / value)
        return min(max(x, least), most)


def read(profile: Hardware | Stack, path: str) -> float | None:
    """A number of a profile, or None where it has none of that name."""
    if isinstance(profile, Stack):
        return profile.constants.get(path)
    where, *rest = path.split(".")
    if where == "device":
        return float(getattr(profile.device, rest[0]))
    found = [level for level in profile.levels if level.name == rest[0]]
    return float(getattr(found[0], rest[1])) if found else None


def written(profile: Any, path: str, value: float) -> Any:
    """The profile with a number replaced."""
    if isinstance(profile, Stack):
        return replace(profile, constants={**profile.constants, path: value})
    where, *rest = path.split(".")
    if where == "device":
        return replace(profile, device=replace(profile.device, **{rest[0]: value}))
    levels = tuple(
        replace(level, **{rest[1]: value}) if level.name == rest[0] else level
        for level in profile.levels
    )
    return replace(profile, levels=levels)


def adjusted(case: Case, turns: Mapping[Knob, float]) -> tuple[Hardware, Stack]:
    """Machine and stack of a case with knobs turned: knob -> x."""
    hardware, stack = case.hardware, case.stack
    for knob, x in turns.items():
        if x == 0.0 or not knob.concerns(case):
            continue
        if knob.owner == "hardware":
            value = knob.turned(read(hardware, knob.path) or 0.0, x)
            hardware = written(hardware, knob.path, value)
        else:
            stack = written(stack, knob.path, knob.turned(stack.constants[knob.path], x))
    return hardware, stack


# --- which ----------------------------------------------------------------------------------------

SECONDS: Mapping[str, tuple[float, float, float]] = {
    "device.gemm_efficiency": (1.05, 0.0, 0.97),
    "device.attention_efficiency": (1.2, 0.0, 0.97),
    "levels.node.latency": (2.0, 0.0, inf),
    "levels.node.efficiency": (1.1, 0.0, 0.97),
    "levels.node.start": (1.5, 0.0, inf),
    "pointwise_factor": (1.8, 0.0, inf),
    "loss_factor": (1.5, 0.0, inf),
    "update_factor": (1.2, 0.0, inf),
    "score_traffic": (1.4, 0.0, inf),
    "host_layer_forward_s": (2.0, 0.0, inf),
    "crossed_floor_s": (1.3, 0.0, inf),
    "fixed_step_s": (1.6, 0.0, inf),
    "overlap_contention": (1.25, 1.0, inf),
    "layer_overlap": (1.6, 0.0, 0.95),
    "network_efficiency": (1.6, 0.0, 1.0),
    "network_decline": (1.6, 0.0, inf),
}
"""Number of a profile that decides seconds -> spread of its prior, least and most value.
[empirical] Rates that benchmarks measure are held close, links inside a node and the ramp of small
products altogether; what only whole runs show is free."""
BYTES: Mapping[str, tuple[float, float, float]] = {
    "saved_factor": (0.4, 0.5, inf),
    "logits_kept": (1.0, 0.0, inf),
    "scores_kept": (1.0, 0.0, inf),
    "gathered_kept": (0.5, 0.0, 1.0),
    "allocator_fraction": (0.04, 0.0, 0.5),
    "framework_bytes": (0.7 * GIB, 0.0, inf),
}
"""Constant of a stack that decides bytes -> sigma of its prior in its own unit, least and most.
[empirical] About what the stacks that were fitted differ by. What is decided (habits) is not
fitted."""
UNFITTED = ("autoplan", "generic")
"""Stacks that stand for other software than the runs': theirs is not fitted to those."""


def knobs_of(
    cases: Sequence[Case], unfitted: Collection[str] = UNFITTED, stated: bool = False
) -> list[Knob]:
    """What decides seconds: what the profiles of some cases state and `SECONDS` lets vary.

    Stack constants where they are stated, device numbers for each kind, links and overheads
    together for all kinds. A constant that is 0 stays so.

    Args:
        cases: runs to fit.
        unfitted: stacks whose constants stay as they are.
        stated: whether a number that a profile assumes is believed no closer than it says.
    """
    wanted: dict[tuple[str, str, str], None] = {}
    for case in cases:
        for path in SECONDS:
            origin = constant_origins(case.stack_spec).get(path)
            if origin in unfitted:
                continue
            if origin:
                wanted["stack", origin, path] = None
            elif "." in path and read(case.hardware, path) is not None:
                alone = path in ("device.gemm_efficiency", "device.attention_efficiency")
                name = case.hardware.device.kind if alone else EVERY
                wanted["hardware", name, path] = None
    knobs = (_knob(*key, cases, stated) for key in sorted(wanted))
    return [knob for knob in knobs if knob is not None]


def _knob(owner: str, name: str, path: str, cases: Sequence[Case], stated: bool) -> Knob | None:
    """A knob whose factor keeps every value it turns within bounds; None if a value is 0."""
    spread, least, most = SECONDS[path]
    free = Knob(owner, name, path, spread, 0.0, inf)
    profiles = [getattr(case, owner) for case in cases if free.concerns(case)]
    values = [read(profile, path) or 0.0 for profile in profiles]
    if not min(values):
        return None
    if stated:
        origins = [profile.evidence.get(path) for profile in profiles]
        assumed = [origin.spread or 1.0 for origin in origins if origin and origin.kind == ASSUMED]
        spread = max([spread, *assumed])
    bounds = max(least / min(values), LEAST), min(most / max(values), MOST)
    return replace(free, spread=spread, least=bounds[0], most=bounds[1])


def memory_knobs_of(cases: Sequence[Case], unfitted: Collection[str] = UNFITTED) -> list[Knob]:
    """What decides bytes beside what a Program counts: constants of `BYTES` that profiles state.

    Args:
        cases: runs to fit.
        unfitted: stacks whose constants stay as they are; with none, all cases have the same stack,
            and what it does not state is fitted as well (but scores, which fused attention never
            keeps).
    """
    if not unfitted:
        plain = any(case.stack.constants["score_traffic"] for case in cases)
        paths = [path for path in BYTES if plain or path != "scores_kept"]
        return [_memory_knob(EVERY, path) for path in paths]
    origins = {
        (origin, path)
        for case in cases
        for path in BYTES
        if (origin := constant_origins(case.stack_spec).get(path)) and origin not in unfitted
    }
    return [_memory_knob(*key) for key in sorted(origins)]


def _memory_knob(name: str, path: str) -> Knob:
    unit, least, most = BYTES[path]
    return Knob("stack", name, path, 1.0, least, most, unit)
