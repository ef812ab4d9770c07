"""Options of the command line -> the question that a verb takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from autoplan.cli.options import Asking
from autoplan.errors import Problem

if TYPE_CHECKING:
    from autoplan.workflow import Question


class Numbers:
    """Whole numbers that were typed; what is wrong with them is collected for the question.

    Attributes:
        problems: of every number so far.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def whole(self, flag: str, text: str, least: int = 1) -> int:
        """The number, or `least` after recording a problem."""
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            allowed = f"a whole number, at least {least}"
            self.problems.append(Problem(flag, "", f"`{text}`", allowed))
        return max(number, least)


def question(
    given: Asking, subject: str, machine: str | None, problems: Sequence[Problem] = ()
) -> Question:
    """What a person asks.

    Args:
        given: the options.
        subject: a model, or a plan file where `machine` is missing.
        machine: hardware with its size.
        problems: of options that are no part of the question.
    """
    from autoplan.workflow import Options, Question

    names = [field.name for field in fields(Options)]
    return Question(
        subject=subject,
        machine=machine or "",
        overrides=tuple(given.set or ()),
        stack=given.stack,
        pins=tuple(given.pin or ()),
        options=Options(**{name: getattr(given, name) for name in names}),
        download=given.download,
        problems=tuple(problems),
    )
