"""What the factors of a block are built for: sizes, prices, and what pins leave open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoplan.ir.layout import Mesh
from autoplan.ir.workload import Optimizer, Precision
from autoplan.search.prices import OperatorPrices, Transitions
from autoplan.search.storage import StorageOptions

Allowed = Callable[[str, object], bool]
"""(variable name, value) -> whether pins leave it open."""


@dataclass(frozen=True)
class Setting:
    """What tables are built for.

    Attributes:
        extent: global sizes, `b` of one micro-batch included.
        micro_batches: per step.
        prices: of operators.
        transitions: between layouts, on the mesh.
        storage: stored layouts and what they cost.
        precision, optimizer: of the workload.
        allowed: what pins leave open.
        tied: a parameter that several blocks use, or "".
        opened: whether another block of the stage starts the sum of its gradient.
    """

    extent: Mapping[str, int]
    micro_batches: int
    prices: OperatorPrices
    transitions: Transitions
    storage: StorageOptions
    precision: Precision
    optimizer: Optimizer
    allowed: Allowed
    tied: str = ""
    opened: bool = False

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.transitions.mesh
