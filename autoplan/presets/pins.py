"""Pins: the familiar names by which people fix parts of an answer.

A pin is one value (`tp=4`), a choice (`tp=4|8`), a bound (`pp<=8`, `pp>=2`), or -1 (`dp=-1`:
whatever the other degrees leave). Case, `-` and `_` are alike; spellings of other stacks are
understood, ours are printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from autoplan.errors import InputError, Problem, nearest

Value = int | str | bool | tuple[int, ...]

DEGREES = ("tp", "tp2", "cp", "dp", "pp")
"""Keys whose product is the number of devices."""
SCHEDULES = ("gpipe", "1f1b", "interleaved")
RECOMPUTE = ("none", "full", "selective")
LATER = frozenset(
    (
        "ep", "etp", "slices", "f", "group", "wgrad", "offload", "cp_comm", "loss_chunk",
        "capacity", "zero_axes", "dp_shard", "dp_replicate", "reshard_after_forward",
    )
)  # fmt: skip
"""Keys of the contract that this version does not express; naming one is an error that says so."""

ALIASES = {
    "tensor_model_parallel_size": "tp", "tensor_parallel_degree": "tp",
    "pipeline_model_parallel_size": "pp", "pipeline_parallel_degree": "pp",
    "context_parallel_size": "cp", "context_parallel_degree": "cp",
    "data_parallel_degree": "dp", "data_parallel_size": "dp", "sequence_parallel": "sp",
    "micro_batch_size": "micro_batch", "mbs": "micro_batch", "local_batch_size": "micro_batch",
    "train_micro_batch_size_per_gpu": "micro_batch", "zero_stage": "zero",
    "recompute_granularity": "recompute", "activation_checkpoint": "recompute",
    "pipeline_parallel_schedule": "schedule", "virtual_pipeline_model_parallel_size": "vpp",
}  # fmt: skip

SPELLINGS = {"interleaved1f1b": "interleaved", "interleaved_1f1b": "interleaved"}
"""Schedules of other stacks."""


def _positive(text: str) -> Value:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _degree_or_rest(text: str) -> Value:
    return -1 if text == "-1" else _positive(text)


def _choice(*allowed: str) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        word = text.lower().replace("-", "_")
        if word not in allowed:
            raise ValueError
        return word

    return parse


def _schedule(text: str) -> Value:
    word = text.lower().replace("-", "_")
    return _choice(*SCHEDULES)(SPELLINGS.get(word, word))


def _flag(text: str) -> Value:
    words = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


def _level(text: str) -> Value:
    value = int(text)
    if not 0 <= value <= 3:
        raise ValueError
    return value


def _order(text: str) -> Value:
    keys = re.split(r"[-:>]", text.lower())
    if len(set(keys)) != len(keys) or any(key not in DEGREES for key in keys):
        raise ValueError
    return "-".join(keys)


def _layers(text: str) -> Value:
    parts = tuple(int(part) for part in re.split(r"[+:]", text))
    if any(part < 0 for part in parts):
        raise ValueError
    return parts


PARSERS: Mapping[str, tuple[Callable[[str], Value], str]] = {
    "dp": (_degree_or_rest, "a positive degree, or -1 for the rest"),
    "tp": (_positive, "a positive degree"),
    "tp2": (_positive, "a positive degree"),
    "cp": (_positive, "a positive degree"),
    "pp": (_positive, "a positive degree"),
    "vpp": (_positive, "a positive number of chunks on each stage"),
    "sp": (_flag, "true or false"),
    "zero": (_level, "0, 1, 2 or 3"),
    "vocab": (_flag, "true or false"),
    "order": (_order, "degrees innermost first, joined by `-`, such as tp-dp-pp"),
    "micro_batch": (_positive, "a positive number of sequences"),
    "recompute": (_choice(*RECOMPUTE), ", ".join(RECOMPUTE)),
    "schedule": (_schedule, ", ".join(SCHEDULES)),
    "layers_per_stage": (_layers, "layers of each stage joined by `+`, such as 10+10+12+8"),
}
"""Key -> (parser of one value, what is allowed)."""


@dataclass(frozen=True, slots=True)
class Pin:
    """What one key may be.

    Attributes:
        values: the allowed values, or () where bounds decide.
        least, most: bounds, inclusive.
    """

    values: tuple[Value, ...] = ()
    least: int = 0
    most: int = 1 << 60

    def allows(self, value: Value) -> bool:
        """Whether the pin allows a value."""
        if self.values:
            return value in self.values
        return isinstance(value, int) and self.least <= value <= self.most

    @property
    def single(self) -> Value | None:
        """The value, if there is just one."""
        return self.values[0] if len(self.values) == 1 else None


Pins = Mapping[str, Pin]


def parse_pins(texts: Iterable[str], source: str = "--pin") -> dict[str, Pin]:
    """`["tp=4,pp<=8", "zero=1"]` -> pins by key.

    Raises:
        InputError: unknown keys, malformed or repeated values; all problems at once.
    """
    pins: dict[str, Pin] = {}
    problems: list[Problem] = []
    for text in texts:
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            match = re.match(r"^([\w-]+)\s*(<=|>=|=)\s*(\S+)$", part)
            if not match:
                problems.append(Problem(source, "", f"`{part}`", "key=value, key=a|b or key<=n"))
                continue
            key, relation, value = match.groups()
            _parse_one(pins, problems, source, (normalise_key(key), relation, value))
    if problems:
        raise InputError(problems)
    return pins


def normalise_key(key: str) -> str:
    """Our spelling of a key."""
    word = key.lower().replace("-", "_").lstrip("_")
    return ALIASES.get(word, word)


def _parse_one(
    pins: dict[str, Pin], problems: list[Problem], source: str, pin: tuple[str, str, str]
) -> None:
    key, relation, text = pin
    if key in LATER:
        problems.append(Problem(source, key, text, "nothing yet: this version does not express it"))
        return
    if key not in PARSERS:
        problems.append(
            Problem(source, key, text, ", ".join(PARSERS), nearest(key, (*PARSERS, *ALIASES)))
        )
        return
    if key in pins:
        problems.append(Problem(source, key, f"a second value {text}", "one pin a key"))
        return
    parser, allowed = PARSERS[key]
    try:
        values = tuple(parser(piece) for piece in text.split("|"))
    except ValueError:
        problems.append(Problem(source, key, f"`{text}`", allowed))
        return
    if relation == "=":
        pins[key] = Pin(values)
    elif len(values) == 1 and isinstance(values[0], int) and parser is not _flag:
        bound = values[0]
        pins[key] = Pin((), 1, bound) if relation == "<=" else Pin((), bound)
    else:
        problems.append(Problem(source, key, f"{relation}{text}", "a bound on one number"))
