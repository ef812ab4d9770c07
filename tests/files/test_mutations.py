"""Law: a damaged file either still loads or raises InputError; never another exception.

And for damage that no reader may accept (a size below one, a NaN, a text for a number), it raises.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autoplan.errors import InputError
from autoplan.files.checkpoint import parse_checkpoint
from autoplan.files.hardware import parse_hardware
from autoplan.files.hf_config import parse_hf_config
from autoplan.files.plan import parse_plan
from autoplan.files.program import parse_program
from autoplan.files.stack import parse_stack
from autoplan.files.text import parse_json
from autoplan.files.workload import parse_workload
from tests.files.examples import documents

DOCUMENTS = documents()
READERS: dict[str, Callable[[Any], Any]] = {
    "llama": lambda d: parse_hf_config(d, "config.json", "m"),
    "gpt2": lambda d: parse_hf_config(d, "config.json", "m"),
    "gemma": lambda d: parse_hf_config(d, "config.json", "m"),
    "hardware": lambda d: parse_hardware(d, "h.json"),
    "stack": lambda d: parse_stack(d, "s.json"),
    "workload": lambda d: parse_workload(d, "w.json"),
    "plan": lambda d: parse_plan(d, "plan.json"),
    "program": lambda d: parse_program(d, "program.json"),
    "checkpoint": lambda d: parse_checkpoint(d, "checkpoint.json"),
}
VALUES = (
    -1, 0, -0.5, 2.5, 7, math.nan, math.inf, 10**30, 10**400, 1e300,
    "abc", "", "[S(b), S(b)]", None, True, [], {}, [1, "a"], {"value": 1}, {"value": None},
)  # fmt: skip
MUTANTS = 1000


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything inside a document."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutate(document: Any, rng: random.Random) -> str:
    """Damage a document in one place; says how."""
    path = rng.choice(list(places(document)))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    kind = rng.choice(("delete", "misspell", "duplicate", "value", "value", "value"))
    if kind == "delete":
        del holder[key]
    elif kind == "misspell" and isinstance(holder, dict):
        at = rng.randrange(len(key) + 1)
        holder[key[:at] + rng.choice(["x", ""]) + key[at + 1 :]] = holder.pop(key)
    elif kind == "duplicate" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
        kind = f"= {str(holder[key])[:40]}"
    return f"{path} {kind}"


def outcome(kind: str, document: Any, damage: list[str]) -> InputError | None:
    try:
        READERS[kind](document)
    except InputError as error:
        return error
    except Exception as error:
        pytest.fail(f"{damage}: {type(error).__name__}: {error}")
    return None


@pytest.mark.parametrize("kind", READERS)
def test_mutants_load_or_are_input_errors(kind: str) -> None:
    rng = random.Random(f"mutants of {kind}")
    refused = 0
    for _ in range(MUTANTS):
        document = copy.deepcopy(DOCUMENTS[kind])
        damage = [mutate(document, rng) for _ in range(rng.choice((1, 1, 1, 3)))]
        error = outcome(kind, document, damage)
        if error is not None:
            refused += 1
            assert error.problems, damage
            assert all(p.found and p.allowed for p in error.problems), damage
    assert refused > MUTANTS // 4


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("whole", [None, [], 3, "x", math.nan])
def test_a_document_that_is_no_object_is_an_input_error(kind: str, whole: Any) -> None:
    with pytest.raises(InputError):
        READERS[kind](whole)


@pytest.mark.parametrize("kind", READERS)
def test_damaged_text_is_an_input_error(kind: str) -> None:
    rng = random.Random(f"text of {kind}")
    text = json.dumps(DOCUMENTS[kind])
    for _ in range(20):
        at = rng.randrange(len(text))
        broken = text[:at] + rng.choice(["", "{", '"', "\\", "9", "\x00"]) + text[at + 1 :]
        try:
            READERS[kind](parse_json(broken, "file.json"))
        except InputError:
            continue


NUMBERS = [
    (kind, path)
    for kind in ("llama", "gpt2", "gemma", "hardware", "workload")
    for path in places(DOCUMENTS[kind])
    if path[-1] not in ("pretraining_tp", "n_ctx", "spread", "seed")
]


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "4096"])
def test_no_number_may_be_negative_infinite_or_a_text(value: Any) -> None:
    for kind, path in NUMBERS:
        document = copy.deepcopy(DOCUMENTS[kind])
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        if type(holder[path[-1]]) not in (int, float):
            continue
        holder[path[-1]] = value
        with pytest.raises(InputError):
            READERS[kind](document)
