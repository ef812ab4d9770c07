"""How much may still be done: entries of tables, so that answers never depend on time."""

from __future__ import annotations

from dataclasses import dataclass

COMPARISONS = 60
"""Comparisons of two numbers that take as long as an entry of a table. [empirical]"""


@dataclass
class Effort:
    """What is left of it.

    Attributes:
        left: entries of tables; about ten nanoseconds each on a core of 2023.
    """

    left: float

    def affords(self, entries: float) -> bool:
        """Whether so much is left."""
        return self.left >= entries

    def spend(self, entries: float) -> None:
        """Take off what was done."""
        self.left -= entries
