"""A price list by hand: seconds of a call by its segment's key."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoplan.ir.program import COLLECTIVES


class Prices:
    """What `cost.Pricer` offers the engine; the first instruction takes all of a call's seconds."""

    def __init__(
        self,
        seconds: Callable[[str], float],
        transfer: float = 0.0,
        overlaps: bool = True,
        contention: float = 1.0,
    ) -> None:
        self.seconds, self.transfer = seconds, transfer
        self.overlaps, self.compute_contention = overlaps, contention
        self.fixed_step = self.layer_overlap = 0.0

    def instruction_seconds(self, segment, mesh, groups, kind=""):
        table = np.zeros(len(segment.code))
        table[:1] = self.seconds(segment.key)
        return table

    def runs_beside(self, kind, segment):
        return self.overlaps and kind in ("GATHER", "REDUCE")

    def kinds(self, segment):
        return tuple(i.op if i.op in COLLECTIVES else "compute" for i in segment.code)

    def layer_floor(self, backward):
        return 0.0

    def crossed_floor(self, segment, mesh, groups, backward):
        return 0.0

    def exchange_seconds(self, nbytes, sources, targets):
        return self.transfer
