"""How long documents are, and what becomes of those that are shorter than a sequence.

`padded`: each sequence holds one document; what lies beyond it is computed and not learned.
`packed`: documents follow each other until a sequence is full, the last one cut; positions start
again with each, and attention stays within it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

PACKINGS = ("padded", "packed")


@dataclass(frozen=True)
class Lengths:
    """Documents of unequal lengths.

    Attributes:
        packing: one of `PACKINGS`.
        histogram: (length in positions, weight), shortest first; weights need not sum to one.
    """

    packing: str
    histogram: tuple[tuple[int, float], ...]

    @property
    def packed(self) -> bool:
        """Whether documents share sequences."""
        return self.packing == "packed"

    @cached_property
    def total(self) -> float:
        """Sum of all weights."""
        return sum(weight for _, weight in self.histogram)

    @cached_property
    def mean(self) -> float:
        """Mean length of a document."""
        return sum(length * weight for length, weight in self.histogram) / self.total

    def visible(self, seq_len: int) -> float:
        """Length of the document that a position of a packed sequence lies in, on average, as a
        share of the sequence: the scores of attention that its documents have.

        E[L²] / E[L] positions, as if no document were cut; at most the whole sequence. Source:
        length-biased sampling of a renewal process (Ross, Stochastic Processes, section 3.6).
        """
        squares = sum(length**2 * weight for length, weight in self.histogram) / self.total
        return min(1.0, squares / self.mean / seq_len)

    def tokens(self, sequences: int, seq_len: int) -> int:
        """Positions that hold a token, on average: padding does not count."""
        return round(sequences * (seq_len if self.packed else self.mean))

    def scaled(self, before: int, after: int) -> Lengths:
        """The same shares of a sequence that has `after` instead of `before` positions."""
        weights: dict[int, float] = {}
        for length, weight in self.histogram:
            short = max(1, length * after // before)
            weights[short] = weights.get(short, 0.0) + weight
        return Lengths(self.packing, tuple(sorted(weights.items())))

    def __str__(self) -> str:
        shortest, longest = self.histogram[0][0], self.histogram[-1][0]
        return f"{self.packing}, {shortest} to {longest} positions a document"
