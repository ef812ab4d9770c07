"""Every error that autoplan reports, and the exit code of each.

    AutoplanError
    ├── InputError        2   a file, flag or pin is wrong; carries *all* problems found
    ├── InfeasibleError   3   no plan fits; carries the smallest violated limits and what would fit
    ├── CheckError        4   a Program breaks an invariant
    ├── MismatchError     5   ran, but the numbers differ from the reference
    └── LaunchError       6   a worker died or hung

Anything else that reaches the command line is a bug and exits with 70.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

EXIT_BUG = 70


class AutoplanError(Exception):
    """Base of everything that autoplan reports without a traceback."""

    exit_code = EXIT_BUG


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the input.

    Attributes:
        source: the file or flag (`plan.json`, `--pin`).
        field: path of the field inside it (`$.levels[0].size`), or "" for the whole.
        found: what stands there, as text.
        allowed: what may stand there, as text.
        hint: the nearest correct spelling or a change that would help, or "".
    """

    source: str
    field: str
    found: str
    allowed: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.source}: {self.field}" if self.field else self.source
        text = f"{where}: found {self.found}, allowed: {self.allowed}"
        return f"{text} (hint: {self.hint})" if self.hint else text


class InputError(AutoplanError):
    """Bad input: all problems at once."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | Problem) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InfeasibleError(AutoplanError):
    """Nothing fits.

    Attributes:
        refused: how many candidates fell to each reason.
        nearest: changes that would make a plan fit, nearest first.
    """

    exit_code = 3

    def __init__(
        self, message: str, refused: dict[str, int] | None = None, nearest: Sequence[str] = ()
    ) -> None:
        self.refused = dict(refused or {})
        self.nearest = tuple(nearest)
        lines = [message]
        lines += [f"  refused {count} x {reason}" for reason, count in self.refused.items()]
        lines += [f"hint: {change}" for change in self.nearest]
        super().__init__("\n".join(lines))


class CheckError(AutoplanError):
    """A Program breaks an invariant; names the instruction and both sides."""

    exit_code = 4


class MismatchError(AutoplanError):
    """The run's numbers differ from the reference."""

    exit_code = 5


class LaunchError(AutoplanError):
    """A worker died or hung; names the rank and its instruction."""

    exit_code = 6


class Refusal(Exception):
    """A candidate breaks a rule; caught and counted by whoever enumerates candidates."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The allowed spelling closest to `word` as a hint, or "" when none is close."""
    matches = get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f"did you mean `{matches[0]}`?" if matches else ""
