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
from dataclasses import dataclass

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
        self._orders: dict[tuple[int, ...], Order] = {}

    def tables(self, weights: FloatArray) -> list[FloatArray]:
        """Scalar tables for a weight per channel, in the order of the factors."""
        flat = weights @ self._flat
        tables, start = [], 0
        for chooser in self.choosers:
            shape = chooser.values.shape[1:]
            size = int(np.prod(shape))
            table = flat[start : start + size].reshape(shape)
            tables.append(table[0] if shape[0] == 1 else table.min(axis=0))
            start += size
        return tables

    def solve(self, weights: FloatArray, keep: Sequence[int]) -> Elimination:
        """The exact minimum as a function of the variables kept."""
        key = tuple(keep)
        if key not in self._orders:
            sizes = [len(domain) for domain in self.domains]
            self._orders[key] = Order(sizes, [c.scope for c in self.choosers], key)
        return self._orders[key].run(self.tables(weights))

    def totals(self, assignment: Mapping[int, int], weights: FloatArray) -> FloatArray:
        """Channel totals of an assignment, with the best options for the weights."""
        total = np.zeros(COUNT)
        for chooser in self.choosers:
            values = chooser.at(assignment)
            total += values[:, int((weights @ values).argmin())]
        return total

    def decisions(
        self, assignment: Mapping[int, int], weights: FloatArray
    ) -> tuple[dict[str, Layout], dict[str, Stored]]:
        """Saved layouts and stored layouts that go with an assignment."""
        saved: dict[str, Layout] = {}
        stored: dict[str, Stored] = {}
        for chooser in self.choosers:
            meaning = chooser.meaning
            if meaning is None:
                continue
            option = int((weights @ chooser.at(assignment)).argmin())
            if isinstance(meaning, SavedChoice):
                side = meaning.sides[option]
                saved[meaning.tensor] = side.layouts[assignment[side.variable]]
            else:
                stored[meaning.parameter] = meaning.options[assignment[chooser.scope[0]]][option]
        return saved, stored
