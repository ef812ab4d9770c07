"""Stack profile JSON <-> `ir.machine.Stack`: how the training software behaves.

{"name": "megatron", "extends": "autoplan",
 "defaults": {"schedule": "1f1b"},        pins taken when the user gives none
 "restricts": {"schedule": ["1f1b"],      values that the stack can express; absent: all
               "tp": ["divides kv_heads"],
               "pp": ["at most micro_batches if schedule=1f1b"]},    or rules, which all hold
 "habits": ["pad_vocab_128"],             rules that produce decisions: keys of `HABITS`
 "recorded_as": {"source": "Megatron"},   signs in recorded runs that it was this software:
                                          of source, notes, recompute, sharding ("zero 3")
 "unexplained": 1.1,                      factor within which 80 % of runs lie, constants apart
 "constants": {"pointwise_factor": 1.0}}  every name of `CONSTANTS`, with evidence

A rule is RELATION QUANTITY[/N] [if KEY=VALUE | if KEY>N | unless KEY], of `ir.machine.RELATIONS`
and `QUANTITIES`; KEY is a pin, or `precision` (the dtype of matrix products).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from math import isfinite
from typing import Any

from pydantic import Field, field_validator

from autoplan.errors import nearest
from autoplan.files.data import bundled_names, find_file
from autoplan.files.problems import Problems, Strict, validate
from autoplan.files.profiles import read_profile
from autoplan.files.quantities import AmountNumber, Number, Quantity, ShareNumber, stated, written
from autoplan.files.text import digest, read_json
from autoplan.ir.machine import HABITS, NEUTRAL, QUANTITIES, RELATIONS, Stack, StackRule

FOLDER = "hardware_profiles/stacks"

Pin = str | int | float | bool

_RULE = re.compile(
    rf"({'|'.join(sorted(RELATIONS, key=len, reverse=True))}) ({'|'.join(QUANTITIES)})"
    r"(?:/([1-9]\d{0,5}))?(?: if (\w+)([=>])(\w+))?(?: unless (\w+))?"
)

HOST_RANK = {
    "value": 4 << 30,
    "evidence": "assumed",
    "source": "interpreter, libraries and pinned buffers 2-3 GiB, a loader's workers and batches",
    "spread": 2,
}
"""`host_rank_bytes` of a stack that does not say."""


def neutral(name: str) -> dict[str, Any]:
    """A number that changes nothing, of a stack that does not say."""
    return {"value": NEUTRAL[name], "evidence": "assumed", "source": "not stated", "spread": 1}


class ConstantsFile(Strict):
    """Numbers that `cost` and `simulate` read, in base units.

    Source of their meaning and of the fitted values: fits of a closed-form model to published
    training runs, quoted number by number in the profiles.
    """

    pointwise_factor: Number = Field(
        description="bytes moved by pointwise operators over the bytes of their operands and "
        "results; 1 where every operator reads and writes once, less where chains are fused"
    )
    loss_factor: Number = Field(
        default=neutral("loss_factor"),
        validate_default=True,
        description="bytes moved over logits for the loss over those of reading and writing them "
        "once in the compute dtype; more where they are widened to fp32",
    )
    update_factor: Number = Field(
        default=neutral("update_factor"),
        validate_default=True,
        description="bytes moved to clip gradients and update parameters over those of reading and "
        "writing each operand once; more where a chain of kernels does it",
    )
    score_traffic: AmountNumber = Field(
        default=neutral("score_traffic"),
        validate_default=True,
        description="0: fused attention, whose scores stay on the chip; else bytes of scores moved "
        "over those that plain operators move (softmax in one pass), mask and dropout included",
    )
    host_layer_forward_s: AmountNumber = Field(
        description="seconds of host work to issue one layer forward, a floor under the device's "
        "time; backward twice that"
    )
    crossed_floor_s: AmountNumber = Field(
        default=neutral("crossed_floor_s"),
        validate_default=True,
        description="seconds a layer and rank of its groups that the host's floor grows by where "
        "one layer's collectives, transfers between stages and exchanges of gradients wait for one "
        "another's launch",
    )
    fixed_step_s: AmountNumber = Field(
        description="seconds of every step that belong to no operator (loader, logging, sync)"
    )
    layer_overlap: AmountNumber = Field(
        default=neutral("layer_overlap"),
        validate_default=True,
        description="share of the collectives inside a layer that runs beside its matrix products",
    )
    network_efficiency: ShareNumber = Field(
        default=neutral("network_efficiency"),
        validate_default=True,
        description="share of the rate between nodes, of what the machine allows, that the stack's "
        "collectives reach",
    )
    network_decline: AmountNumber = Field(
        default=neutral("network_decline"),
        validate_default=True,
        description="d: on a machine of n > 2 nodes collectives between them reach the share "
        "(2/n)^d of that rate; 0 where the fabric carries all pairs at once",
    )
    bucket_bytes: AmountNumber = Field(
        default=neutral("bucket_bytes"),
        validate_default=True,
        description="bytes of a message in which gradients are summed over ranks, about; 0: those "
        "of a layer are one message",
    )
    saved_factor: Number = Field(
        default=neutral("saved_factor"),
        validate_default=True,
        description="bytes kept of activations from forward to backward over those that backward "
        "reads once in the compute dtype",
    )
    logits_kept: AmountNumber = Field(
        default=neutral("logits_kept"),
        validate_default=True,
        description="further copies of the logits at the peak, in their own bytes",
    )
    scores_kept: AmountNumber = Field(
        default=neutral("scores_kept"),
        validate_default=True,
        description="copies of the attention scores kept for backward; 0 with fused attention",
    )
    gathered_kept: AmountNumber = Field(
        default=neutral("gathered_kept"),
        validate_default=True,
        description="share of the activations that are gathered in the forward pass and kept whole "
        "for backward; 0 where backward gathers them again",
    )
    framework_bytes: AmountNumber = Field(
        description="bytes of device memory taken by context, libraries and communicator buffers"
    )
    allocator_fraction: AmountNumber = Field(
        description="bytes lost to rounding and fragmentation as a share of counted memory"
    )
    overlap_contention: Number = Field(
        description="factor >= 1 on compute time while a collective runs beside it"
    )
    host_rank_bytes: AmountNumber = Field(
        default=HOST_RANK,
        validate_default=True,
        description="bytes of host memory that the process of one rank takes, its loader included",
    )

    @field_validator("overlap_contention")
    @classmethod
    def _slows(cls, number: Quantity) -> Quantity:
        if number.value < 1:
            raise ValueError("a number >= 1")
        return number

    @field_validator("allocator_fraction", "layer_overlap")
    @classmethod
    def _fraction(cls, number: Quantity) -> Quantity:
        if number.value >= 1:
            raise ValueError("a number < 1")
        return number


CONSTANTS: Mapping[str, str] = {
    name: str(info.description) for name, info in ConstantsFile.model_fields.items()
}
"""Every constant of a stack -> what it means and its unit."""


UNEXPLAINED = {
    "value": 1.25,
    "evidence": "assumed",
    "source": "a stack without published runs: twice what is left on stacks that were fitted",
}
"""`unexplained` of a stack that does not say."""


class SignsFile(Strict):
    """Regular expressions that all match, case ignored, what a run of this stack is recorded as."""

    source: str | None = None
    notes: str | None = None
    recompute: str | None = None
    sharding: str | None = None

    @field_validator("source", "notes", "recompute", "sharding")
    @classmethod
    def _pattern(cls, text: str | None) -> str | None:
        try:
            re.compile(text or "")
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"a regular expression ({error})") from None
        return text


class StackFile(Strict):
    """A whole stack profile, `extends` resolved."""

    name: str = Field(min_length=1)
    defaults: dict[str, Any] = {}
    restricts: dict[str, list[Any]] = {}
    habits: list[str] = []
    recorded_as: SignsFile = SignsFile()
    unexplained: Number = Field(default=UNEXPLAINED, validate_default=True)
    constants: ConstantsFile


def load_stack(spec: str, pins: Collection[str] | None = None) -> Stack:
    """The stack that a bundled name or a path means.

    Args:
        spec: bundled name or path.
        pins: every pin key there is; a key of the profile outside it is a problem. None: unchecked.

    Raises:
        InputError: unknown stack or bad profile; every problem at once.
    """
    path = find_file(spec, FOLDER, "stack")
    return parse_stack(read_profile(path, FOLDER, "stack"), str(path), pins=pins)


@cache
def recorded_stacks() -> Mapping[str, Mapping[str, str]]:
    """Bundled stack -> its signs in recorded runs: part of a record -> regular expression.

    Signs are a stack's own: those of the profile that it extends do not count.
    """
    table = {}
    for name in bundled_names(FOLDER):
        document = read_json(find_file(name, FOLDER, "stack"))
        signs = document.get("recorded_as", {}) if isinstance(document, dict) else {}
        if signs:
            table[name] = {where: str(text) for where, text in signs.items()}
    return table


@cache
def constant_origins(name: str) -> Mapping[str, str]:
    """Constant of a bundled stack -> the bundled stack that states it, itself or an ancestor."""
    document = read_json(find_file(name, FOLDER, "stack"))
    parent = document.get("extends")
    origins = dict(constant_origins(parent)) if parent else {}
    return {**origins, **dict.fromkeys(document.get("constants", {}), name)}


def parse_stack(
    document: object, source: str, path: str = "$", pins: Collection[str] | None = None
) -> Stack:
    """The stack that a profile document describes; see `load_stack`."""
    file = validate(StackFile, document, source, path)
    problems = Problems(source)
    _check_pins(file, path, pins, problems)
    _check_rules(file, path, problems)
    problems.check()
    numbers: dict[str, Quantity] = {name: getattr(file.constants, name) for name in CONSTANTS}
    origins = {name: stated(number) for name, number in numbers.items()}
    restricts = sorted(file.restricts.items())
    return Stack(
        name=file.name,
        defaults=dict(sorted(file.defaults.items())),
        restricts={name: plain for name, values in restricts if (plain := _plain(values))},
        rules=tuple(_rule(name, text) for name, values in restricts for text in _ruled(values)),
        habits=tuple(file.habits),
        constants={name: float(number.value) for name, number in numbers.items()},
        evidence={name: origin for name, origin in origins.items() if origin is not None},
        unexplained=float(file.unexplained.value),
    )


def _is_rule(value: Any) -> bool:
    """Whether a restriction is meant as a rule: no value of a pin has a space."""
    return isinstance(value, str) and " " in value.strip()


def _plain(values: list[Any]) -> tuple[Any, ...]:
    return tuple(value for value in values if not _is_rule(value))


def _ruled(values: list[Any]) -> list[str]:
    return [value for value in values if _is_rule(value)]


def _rule(key: str, text: str) -> StackRule:
    """The rule that a checked text states."""
    match = _RULE.fullmatch(text)
    assert match, "checked before"
    relation, quantity, over, *condition, unless = match.groups()
    name, sign, value = condition
    given = (name, sign, value) if name else None
    return StackRule(key, relation, quantity, int(over or 1), given, unless or "")


def _check_pins(
    file: StackFile, path: str, pins: Collection[str] | None, problems: Problems
) -> None:
    """Keys are pins there are, values are plain."""
    values = [(f"defaults.{name}", value) for name, value in file.defaults.items()]
    for name, allowed in file.restricts.items():
        values += [(f"restricts.{name}[{index}]", value) for index, value in enumerate(allowed)]
    for where, value in values:
        if not isinstance(value, Pin) or (isinstance(value, float) and not isfinite(value)):
            problems.add(f"{path}.{where}", value, "a finite number, a text, true or false")
    if pins is None:
        return
    for section in ("defaults", "restricts"):
        for name in getattr(file, section):
            if name not in pins:
                keys = f"one of {', '.join(pins)}"
                problems.add(f"{path}.{section}.{name}", name, keys, nearest(name, pins))


def _check_rules(file: StackFile, path: str, problems: Problems) -> None:
    """Rules can be read, habits are known."""
    for name, values in file.restricts.items():
        for index, value in enumerate(values):
            if _is_rule(value):
                _check_rule(f"{path}.restricts.{name}[{index}]", value, problems)
    for index, habit in enumerate(file.habits):
        if habit not in HABITS:
            allowed = f"one of {', '.join(HABITS)}"
            problems.add(f"{path}.habits[{index}]", habit, allowed, nearest(habit, HABITS))


def _check_rule(where: str, text: str, problems: Problems) -> None:
    match = _RULE.fullmatch(text)
    if not match:
        allowed = (
            f"a rule: {', '.join(RELATIONS)}; then {', '.join(QUANTITIES)}; then `/N`, "
            "`if KEY=VALUE`, `if KEY>N` or `unless KEY`"
        )
        problems.add(where, text, allowed)
    elif match[5] == ">" and not match[6].isdigit():
        problems.add(where, text, "a whole number after `>`")


def dump_stack(stack: Stack) -> dict[str, Any]:
    """The profile document of a stack; `parse_stack` gives the stack back, equal."""
    constants = {}
    names = {*stack.restricts, *(rule.key for rule in stack.rules)}
    for name, value in stack.constants.items():
        number = int(value) if value.is_integer() else value
        constants[name] = written(number, stack.evidence.get(name))
    return {
        "name": stack.name,
        "defaults": dict(sorted(stack.defaults.items())),
        "restricts": {name: _restriction(stack, name) for name in sorted(names)},
        "habits": list(stack.habits),
        "unexplained": {"value": stack.unexplained, "evidence": "fitted"},
        "constants": constants,
    }


def _restriction(stack: Stack, key: str) -> list[object]:
    rules = [str(rule) for rule in stack.rules if rule.key == key]
    return [*stack.restricts.get(key, ()), *rules]


def stack_digest(stack: Stack) -> str:
    """A name for the content of a stack."""
    return digest(dump_stack(stack))
