"""Which plans are worth measuring? A few that tie with the best, and how to run them.

Plans that differ in details only teach nothing: a shortlist has plans whose degrees or lifetimes
differ, the fastest of each kind.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.errors import InputError
from autoplan.presets.pins import DEGREES, PARSERS, normalise_key, parse_pins
from autoplan.workflow.prediction import Priced
from autoplan.workflow.question import Question

MOST = 4
"""Plans of a shortlist."""
KIND = (*DEGREES, "vpp", "zero", "recompute")
"""Keys in which plans worth measuring differ."""
PINNED = (*DEGREES, "vpp", "zero", "recompute", "micro_batch", "schedule")
"""Keys that a command repeats."""


@dataclass(frozen=True)
class Candidate:
    """A plan to measure.

    Attributes:
        priced: the plan.
        command: makes its plan file and runs it.
    """

    priced: Priced
    command: str


def shortlist(
    question: Question, plans: Sequence[Priced], others: Iterable[Priced]
) -> list[Candidate]:
    """At most `MOST` different plans that tie with the best, the best first.

    Args:
        question: what was asked, repeated by the commands.
        plans: best first.
        others: plain choices.
    """
    best = plans[0]
    tied = [priced for priced in (*plans[1:], *others) if priced.ties(best)]
    chosen = [best]
    for priced in sorted(tied, key=lambda priced: float(priced.predicted["step_time_s"])):
        kinds = [_kind(other) for other in chosen]
        new = _kind(priced) not in kinds and _expressible(priced)
        if len(chosen) < MOST and priced.verdict != "no" and new:
            chosen.append(priced)
    return [
        Candidate(priced, _command(question, priced, rank))
        for rank, priced in enumerate(chosen, start=1)
    ]


def _kind(priced: Priced) -> str:
    return repr([(key, _plain(priced.parallel.get(key))) for key in KIND])


def _expressible(priced: Priced) -> bool:
    """Whether pins can say the degrees: a command must not find another plan."""
    return not any(isinstance(priced.parallel.get(key), Mapping) for key in DEGREES)


def _plain(value: Any) -> Any:
    """`full:35/80` and `full:36/80` are one kind."""
    return value.partition(":")[0] if isinstance(value, str) else value


def pin_text(parallel: Mapping[str, Any]) -> str:
    """The pins of a plan that a person can type: single values of keys that pins have."""
    words = []
    for key in PINNED:
        value = parallel.get(key)
        if value is None or isinstance(value, Mapping) or key not in PARSERS:
            continue
        if key == "schedule" and parallel.get("pp", 1) == 1 or (key, value) == ("vpp", 1):
            continue
        word = f"{key}={value}"
        try:
            parse_pins([word])
        except InputError:
            continue  # such as the share of layers that are computed again
        words.append(word)
    return ",".join(words)


def _command(question: Question, priced: Priced, rank: int) -> str:
    path = f"plan-{rank}.json"
    words = ["autoplan", "search", question.subject, question.machine, *given_words(question)]
    pins = ",".join([pin_text(priced.parallel), *_other_pins(question)])
    words += ["--pin", pins, "-o", path]
    return f"{shlex.join(words)} && autoplan run {path} --steps 10"


def _other_pins(question: Question) -> list[str]:
    """What was pinned beside the keys of `PINNED`, as typed."""
    pieces = [piece.strip() for text in question.pins for piece in text.split(",")]
    keys = [normalise_key(re.split(r"[<>=]", piece)[0].strip()) for piece in pieces]
    return [piece for key, piece in zip(keys, pieces, strict=True) if key not in (*PINNED, "")]


def given_words(question: Question) -> list[str]:
    """The options of a question, pins aside, as they would be typed."""
    words = []
    for text in question.overrides:
        words += ["--set", text]
    if question.stack is not None:
        words += ["--stack", question.stack]
    for name, value in question.options.given.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words
