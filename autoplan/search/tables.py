"""What every decision of a block costs: the factors that elimination minimises over.

A factor is a table over one or two variables with a value per *channel* (kinds of time and memory
that a step weighs differently) and possibly several *options* per entry (stored layouts of a
parameter, the layout in which a tensor waits for backward), of which the cheapest is taken for the
weights at hand.

    XF XB     forward and backward on the compute stream, collectives of activations included
    RG        fetching saved tensors again in backward (not needed where forward is run again)
    RC        running forward again
    WF WB     parameter gathers, gradient reductions: on the collective stream
    ON OK     once a step: optimizer; last reduction of gradients
    MA MX MW  bytes: saved per micro-batch; the block's input; parameters, gradients, their state
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.ir.layout import Layout
from autoplan.ir.plan import Stored
from autoplan.search.eliminate import Elimination, Order
from autoplan.search.space import BlockSpace, IndexArray, Side

FloatArray = NDArray[np.float64]

CHANNELS = ("XF", "XB", "RG", "RC", "WF", "WB", "ON", "OK", "MA", "MX", "MW")
CHANNEL = {name: i for i, name in enumerate(CHANNELS)}
COUNT = len(CHANNELS)
ILLEGAL = 1e12
"""Seconds or bytes that no legal entry reaches; see `prices.IMPOSSIBLE`."""


@dataclass(frozen=True)
class SavedChoice:
    """Options of the layout in which a tensor waits: per option the side whose layout it has."""

    tensor: str
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class StoredChoice:
    """Options of a parameter's stored layouts, per value of its operator's variable."""

    parameter: str
    options: Sequence[Sequence[Stored]]


@dataclass(frozen=True)
class Chooser:
    """A factor with options.

    Attributes:
        scope: one or two variables, ascending.
        values: (channels, options, domain…).
        meaning: what the options decide; None where there is one.
    """

    scope: tuple[int, ...]
    values: FloatArray
    meaning: SavedChoice | StoredChoice | None = None

    def at(self, assignment: Mapping[int, int]) -> FloatArray:
        """(channels, options) at an assignment."""
        values = self.values
        for variable in reversed(self.scope):
            values = values[..., assignment[variable]]
        return np.asarray(values)


@dataclass(frozen=True)
class Decision:
    """What may be decided in a block: the value of a variable, or the option of a factor.

    Attributes:
        block: its name.
        variable: number, or None.
        factor: number, where there is no variable.
    """

    block: str
    variable: int | None = None
    factor: int = -1


class BlockTables:
    """All factors of one block on one mesh with one micro-batch size.

    Args:
        space: its variables.
        domains: values left per variable: indices into `space.variables[i].values`.
        choosers: the factors.
        apart: a parameter that other blocks use as well, or "": its factor is `shared`, and left to
            whoever joins the blocks.
    """

    def __init__(
        self, space: BlockSpace, domains: Sequence[IndexArray], choosers: Sequence[Chooser],
        apart: str = "",
    ) -> None:  # fmt: skip
        self.space, self.domains = space, list(domains)
        self.shared: Chooser | None = None
        self.choosers: list[Chooser] = []
        for chooser in choosers:
            if isinstance(chooser.meaning, StoredChoice) and chooser.meaning.parameter == apart:
                self.shared = chooser
            else:
                self.choosers.append(chooser)
        # One matrix for all tables, so that new weights cost one product.
        self._flat = np.concatenate([c.values.reshape(COUNT, -1) for c in self.choosers], axis=1)
        # Weights may be zero, and what is impossible stays so.
        self._bar(np.asarray((self._flat >= ILLEGAL).any(axis=0)))
        self._orders: dict[tuple[int, ...], Order] = {}

    def _bar(self, barred: NDArray[np.bool_]) -> None:
        """Leave out entries of the factors."""
        self._barred, self._impossible = barred, np.flatnonzero(barred)

    def _cut(self, flat: NDArray[Any]) -> list[NDArray[Any]]:
        """A row of all entries as an array (options, domain…) per factor."""
        parts, start = [], 0
        for chooser in self.choosers:
            shape = chooser.values.shape[1:]
            size = prod(shape)
            parts.append(flat[start : start + size].reshape(shape))
            start += size
        return parts

    def within(self, decision: Decision, allowed: NDArray[np.bool_]) -> BlockTables:
        """The same, with only some values of a variable or options of a factor allowed."""
        smaller, barred = copy(self), self._barred.copy()
        for number, (chooser, entries) in enumerate(
            zip(self.choosers, self._cut(barred), strict=True)
        ):
            if decision.variable is None and number == decision.factor:
                entries[~allowed] = True
            elif decision.variable in chooser.scope:
                axis = chooser.scope.index(decision.variable) + 1
                np.moveaxis(entries, axis, 0)[~allowed] = True
        smaller._bar(barred)
        return smaller

    def tables(self, weights: FloatArray) -> list[FloatArray]:
        """Scalar tables for a weight per channel, in the order of the factors."""
        tables = self.optional(weights)
        return [table[0] if len(table) == 1 else table.min(axis=0) for table in tables]

    def optional(self, weights: FloatArray) -> list[FloatArray]:
        """The same with an axis for the options."""
        flat = weights @ self._flat
        flat[self._impossible] = np.inf
        return self._cut(flat)

    def order(self, keep: Sequence[int]) -> Order:
        """How all variables but those kept are eliminated."""
        key = tuple(keep)
        if key not in self._orders:
            sizes = [len(domain) for domain in self.domains]
            self._orders[key] = Order(sizes, [c.scope for c in self.choosers], key)
        return self._orders[key]

    def solve(self, weights: FloatArray, keep: Sequence[int]) -> Elimination:
        """The exact minimum as a function of the variables kept."""
        return self.order(keep).run(self.tables(weights))

    def options(self, assignment: Mapping[int, int], weights: FloatArray) -> tuple[int, ...]:
        """The best option of every factor of an assignment."""
        best = []
        for chooser, barred in zip(self.choosers, self._cut(self._barred), strict=True):
            for variable in reversed(chooser.scope):
                barred = barred[..., assignment[variable]]
            price = np.where(barred, np.inf, weights @ chooser.at(assignment))
            best.append(int(price.argmin()))
        return tuple(best)

    def totals(self, assignment: Mapping[int, int], options: Sequence[int]) -> FloatArray:
        """Channel totals of an assignment with an option for every factor."""
        total = np.zeros(COUNT)
        for chooser, option in zip(self.choosers, options, strict=True):
            total += chooser.at(assignment)[:, option]
        return total

    def decisions(
        self, assignment: Mapping[int, int], options: Sequence[int]
    ) -> tuple[dict[str, Layout], dict[str, Stored]]:
        """Saved layouts and stored layouts that go with an assignment and its options."""
        saved: dict[str, Layout] = {}
        stored: dict[str, Stored] = {}
        for chooser, option in zip(self.choosers, options, strict=True):
            meaning = chooser.meaning
            if isinstance(meaning, SavedChoice):
                side = meaning.sides[option]
                saved[meaning.tensor] = side.layouts[assignment[side.variable]]
            elif meaning is not None:
                stored[meaning.parameter] = meaning.options[assignment[chooser.scope[0]]][option]
        return saved, stored
