"""Block instances of a stage, and the segments that stages share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from autoplan.ir.graph import GRADIENT, Block
from autoplan.ir.program import Segment
from autoplan.lower.segments import BlockContext
from autoplan.lower.step import REDUCED


@dataclass(frozen=True, eq=False)
class Member:
    """One block instance of a stage.

    Attributes:
        index: into the graph's instances.
        strategy: its key.
        context: of its block under that strategy.
        recompute: whether its forward is run again in backward.
        owned: trainable parameters whose reduced gradient, norm and step belong to this instance
            (a tied parameter belongs to the first instance of the stage that uses it).
        shared: owned parameters that other stages use as well.
        counted: whether this stage counts the shared ones in the norm.
        opens: trainable parameters whose accumulator this instance's first backward defines.
    """

    index: int
    strategy: str
    context: BlockContext
    recompute: bool
    owned: tuple[str, ...]
    shared: tuple[str, ...]
    counted: bool
    opens: frozenset[str]

    @property
    def block(self) -> Block:
        """Its block."""
        return self.context.block

    @cached_property
    def gathers(self) -> tuple[str, ...]:
        """Parameters gathered before use."""
        return tuple(name for name in self.block.parameters if self.context.gathered(name))

    @cached_property
    def reduces(self) -> tuple[str, ...]:
        """Parameters whose gradient every micro-batch reduces."""
        return tuple(name for name in self.block.trainable if self.context.reduced_each(name))

    @cached_property
    def finals(self) -> tuple[str, ...]:
        """Owned parameters whose gradient moves at the end of the step, shared ones aside."""
        stored = self.context.layouts.strategy.stored
        return tuple(
            name for name in self.owned
            if name not in self.shared and stored[name].gradient != stored[name].optimizer
        )  # fmt: skip

    @cached_property
    def gradients(self) -> tuple[tuple[str, str], ...]:
        """(owned parameter, slot prefix of its reduced gradient)."""
        moved = {*self.finals, *self.shared}
        return tuple((n, REDUCED if n in moved else GRADIENT) for n in self.owned)


@dataclass
class SegmentStore:
    """Distinct segments of a Program, shared by stages that call alike.

    Attributes:
        built: what a segment depends on -> segment.
    """

    built: dict[tuple[object, ...], Segment] = field(default_factory=dict)

    def get(self, identity: tuple[object, ...], build: Callable[[], Segment]) -> Segment:
        """The segment of that identity, built on first use."""
        if identity not in self.built:
            self.built[identity] = build()
        return self.built[identity]
