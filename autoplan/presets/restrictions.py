"""Pins -> what they leave open: which roles mesh axes may play, and which decisions suit a role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from autoplan.errors import InputError, Problem
from autoplan.ir.graph import kind_of
from autoplan.ir.layout import Layout
from autoplan.ir.machine import Stack
from autoplan.ir.plan import Home, Stored
from autoplan.ops.storing import LEVELS, level_of, splittable_axes
from autoplan.presets.pins import DEGREES, Pin, Pins, Value
from autoplan.presets.stages import settled_recompute, settled_schedule

SEARCHED = ("none", "full")
"""What a search makes of layers."""
NAMED = ("micro_batch", "zero", "recompute")
"""With all degrees, these keys leave nothing to search but details of a block."""

Roles = tuple[str, ...] | None
"""A role per mesh axis, or None where nothing about axes is pinned."""

AXES = ("dp", "cp", "tp", "tp2")
ABOUT_AXES = frozenset({*AXES, "sp", "micro_batch", "zero"})
EVERY: Mapping[str, tuple[Value, ...]] = {
    **dict.fromkeys(DEGREES, ()), "zero": (0, 1, 2, 3), "recompute": SEARCHED,
    "schedule": ("1f1b",),
}  # fmt: skip
"""Key -> what a search tries where nothing limits it; () stands for any degree."""
WEIGHT_SPLITS: Mapping[str, Mapping[str, frozenset[str | None]]] = {
    "tp": {
        "q": frozenset("grd"), "kv": frozenset({"g", "s", None}), "attention": frozenset("gr"),
        "o": frozenset("grd"), "up": frozenset("f"), "act": frozenset("f"), "down": frozenset("f"),
    },
    "tp2": {"q": frozenset("m"), "kv": frozenset("m"), "o": frozenset("m"),
            "up": frozenset("m"), "down": frozenset("m")},
}  # fmt: skip
"""Role -> layer operator -> splits that suit it; operators not named are free."""


def within(pins: Pins, stack: Stack) -> dict[str, Pin]:
    """Pins, and for what they leave open the values that the stack can express.

    Raises:
        InputError: a pinned recompute that only named plans have.
    """
    pins = {**pins, **_searched_recompute(pins, stack)}
    limited = dict(pins)
    for key, allowed in stack.restricts.items():
        values = tuple(value for value in allowed if isinstance(value, int | str))
        if key in pins:
            kept = tuple(value for value in values if pins[key].allows(value))
            limited[key] = Pin(kept) if kept else pins[key]
        elif key in EVERY and not _tries_all(key, values):
            limited[key] = Pin(values)
    return limited


def _searched_recompute(pins: Pins, stack: Stack) -> dict[str, Pin]:
    """The pinned values of recompute, as a search knows them."""
    if "recompute" not in pins:
        return {}
    words = [settled_recompute({"recompute": v}, stack) for v in pins["recompute"].values]
    if not set(words) <= set(SEARCHED):
        allowed = f"{' or '.join(SEARCHED)} in a search of placements"
        hint = "or every degree, micro_batch and zero beside it"
        raise InputError(Problem("--pin", "recompute", "selective", allowed, hint))
    return {"recompute": Pin(tuple(dict.fromkeys(words)))}


def _tries_all(key: str, values: tuple[Value, ...]) -> bool:
    return bool(EVERY[key]) and set(EVERY[key]) <= set(values)


def rules_name_axes(stack: Stack) -> bool:
    """Whether a stack's rules speak of degrees, so that axes need roles."""
    return any(rule.key in AXES for rule in stack.rules)


def problems(pins: Pins, devices: int) -> list[Problem]:
    """Pinned degrees that no plan on so many devices can have, and chunks without degrees."""
    chunks = pins.get("vpp", Pin((1,)))
    if chunks.values != (1,) and not (chunks.values and degrees_complete(pins, devices)):
        found = "|".join(map(str, chunks.values)) or f"{chunks.least} to {chunks.most}"
        hint = "how many chunks stages have is not searched; vpp=1|2|4 compares"
        allowed = "1 in a search, or values beside every degree (dp=-1 for the rest)"
        return [Problem("--pin", "vpp", found, allowed, hint)]
    fixed = {k: v for k in DEGREES if (v := _single(pins, k)) is not None and v > 0}
    product = prod(fixed.values())
    text = " x ".join(f"{key}={value}" for key, value in fixed.items())
    if devices % product:
        return [Problem("--pin", "degrees", text, f"a divisor of {devices} devices")]
    if len(fixed) == len(DEGREES) and product != devices:
        return [Problem("--pin", "degrees", text, f"a product of {devices} devices")]
    return []


def _single(pins: Pins, key: str) -> int | None:
    value = pins[key].single if key in pins else None
    return value if isinstance(value, int) else None


def degrees_complete(pins: Pins, devices: int) -> bool:
    """Whether the pinned degrees, with 1 for what is not named, use every device."""
    fixed = [v for key in DEGREES if (v := _single(pins, key)) is not None]
    if -1 in fixed:
        return True
    return bool(fixed) and prod(fixed) == devices


def named_grid(pins: Pins, batch: int) -> list[dict[str, Pin]]:
    """Complete pins: those given, with every value that they leave open in name.

    Empty where a search over placements is the better answer: the mesh has at most two axes, its
    stages one chunk, and something is left open.

    Args:
        pins: with complete degrees.
        batch: global batch.
    """
    axes = sum(1 for key in AXES if (_single(pins, key) or 1) != 1)
    open_names = [key for key in NAMED if key not in pins or pins[key].single is None]
    chunks = pins.get("vpp", Pin((1,))).values
    if open_names and axes <= 2 and chunks == (1,):
        return []
    powers = [1 << i for i in range(batch.bit_length()) if batch % (1 << i) == 0]
    every: dict[str, list[Value]] = {
        "micro_batch": list(powers), "zero": [0, 1, 2, 3], "recompute": list(SEARCHED),
        "vpp": list(chunks),
    }  # fmt: skip
    choices = []
    for key in (*NAMED, "vpp"):
        pin = pins.get(key)
        given = list(pin.values) if pin and pin.values else every[key]
        choices.append([value for value in given if pin is None or pin.allows(value)])
    return [
        {**pins, **{key: Pin((value,)) for key, value in zip((*NAMED, "vpp"), row, strict=True)}}
        for row in product(*choices)
    ]


def stages(pins: Pins, count: int, layers: int) -> bool:
    """Whether a pipeline depth is allowed."""
    given = pins.get("layers_per_stage")
    if given is not None and isinstance(given.single, tuple) and len(given.single) != count:
        return False
    return count <= layers and ("pp" not in pins or pins["pp"].allows(count))


def schedules(pins: Pins) -> tuple[str, ...]:
    """Schedule families to try."""
    pin = pins.get("schedule", Pin(("1f1b",)))
    return tuple(dict.fromkeys(settled_schedule({"schedule": value}) for value in pin.values))


def recompute(pins: Pins) -> str:
    """`none`, `full`, or nothing where layers decide on their own."""
    pin = pins.get("recompute")
    return str(pin.single) if pin and pin.single is not None else ""


def layers(pins: Pins) -> tuple[int, ...] | None:
    """Layers of each stage, if pinned."""
    pin = pins.get("layers_per_stage")
    return pin.single if pin is not None and isinstance(pin.single, tuple) else None


def roles(pins: Pins, sizes: Sequence[int], batch: int, named: bool = False) -> Iterator[Roles]:
    """Every way in which axes of these sizes can play roles that the pins allow.

    Args:
        pins: what is fixed.
        sizes: of the mesh axes.
        batch: sequences of a micro-batch over all replicas.
        named: whether axes need roles even where no pin speaks of them.
    """
    if not (named or ABOUT_AXES.intersection(pins)):
        yield None
        return
    for played in product(AXES, repeat=len(sizes)):
        degrees = role_degrees(played, sizes)
        if not all(pins[r].allows(degrees[r]) or pins[r].single == -1 for r in AXES if r in pins):
            continue
        if batch % degrees["dp"]:
            continue
        if "zero" in pins and degrees["dp"] * degrees["cp"] == 1 and not pins["zero"].allows(0):
            continue  # nothing is replicated, so nothing could be split
        if "micro_batch" in pins and not pins["micro_batch"].allows(batch // degrees["dp"]):
            continue
        yield played


def role_degrees(played: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    """Degree of every role of `AXES` where axes play these."""
    return {role: prod(s for s, r in zip(sizes, played, strict=True) if r == role) for role in AXES}


class Rule:
    """What pins and roles say about single decisions of a block.

    Args:
        pins: what is fixed.
        roles: of the mesh axes.
    """

    def __init__(self, pins: Pins, roles: Roles) -> None:
        self.pins, self.roles = pins, roles

    def allows(self, block: str, variable: str, value: object) -> bool:
        """Whether a value of a layer operator or hub suits every axis' role."""
        kind = kind_of(block)
        if variable == "head" and isinstance(value, tuple) and not self._vocabulary(value):
            return False
        if self.roles is None:
            return True
        if isinstance(value, Home):  # of any block: neighbours share the residual stream's
            return self._home(value)
        if kind != "layer":
            return True
        assert isinstance(value, tuple)
        return all(
            self._split(variable, role, choice)
            for role, choice in zip(self.roles, value, strict=True)
        )

    def _vocabulary(self, choices: Sequence[object]) -> bool:
        pin = self.pins.get("vocab")
        return pin is None or pin.allows("v" in choices)

    def _split(self, group: str, role: str, choice: object) -> bool:
        if role in ("dp", "cp"):
            return choice == ("b" if role == "dp" else "s")
        suiting = WEIGHT_SPLITS[role].get(group)
        if suiting is not None:
            return choice in suiting
        if group.endswith("_norm") and "sp" in self.pins:
            return self.pins["sp"].allows(choice == "s")
        return choice != "b" or group in ("attention", "act")

    def _home(self, home: Home) -> bool:
        assert self.roles is not None
        for role, placement in zip(self.roles, home.value, strict=True):
            wanted = {"dp": "b", "cp": "s"}.get(role)
            if wanted and not (placement.kind == "S" and placement.name == wanted):
                return False
            if not wanted and placement.kind == "S" and placement.name == "b":
                return False
        return True

    def stores(self, stored: Stored, used: Layout, raw: Layout) -> bool:
        """Whether stored layouts are at the pinned level on axes that split data."""
        pin = self.pins.get("zero")
        if pin is None:
            return True
        axes = splittable_axes(used, raw)
        if self.roles is not None:
            axes = tuple(i for i in axes if self.roles[i] in ("dp", "cp"))
        levels = [LEVELS.index(level_of(stored, used, raw, axis)) for axis in axes]
        return not levels or pin.allows(max(levels))
