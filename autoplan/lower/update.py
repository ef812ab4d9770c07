"""The updates of one instance's parameters, as `ops.updating` says they are made.

Parameters that need a move in between wait for each other, so that moves of one kind share a
message; every other one is updated before the next begins, so that little is alive at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.ir.graph import GRADIENT
from autoplan.ir.layout import Layout
from autoplan.ir.program import Segment
from autoplan.ir.workload import Optimizer
from autoplan.lower.builder import Binding, Named, SegmentBuilder
from autoplan.lower.segments import BlockContext
from autoplan.ops.layouts import replicated
from autoplan.ops.updating import (
    Compute,
    Move,
    Piece,
    Policy,
    Recipe,
    factor_dims,
    form_of,
    recipe,
)

FACTOR = "factor"
"""Slot of the factor on gradients."""


def factor_named(context: BlockContext) -> Named:
    """The factor on gradients, for the builder."""
    precision = context.precision
    return Named(FACTOR, factor_dims(precision), precision.of("statistic"), "gradients")


def parameter_recipe(context: BlockContext, name: str, optimizer: Optimizer) -> Recipe:
    """How a parameter of a block is updated."""
    policy = Policy(optimizer, context.precision, context.extent)
    dims = context.block.tensors[name].dims
    layout = context.layouts.strategy.stored[name].optimizer
    return recipe(policy, form_of(context.block, name), dims, layout)


def state_named(parameter: str, piece: Piece) -> Named:
    """A state of a parameter, for the builder: the slot has the same name."""
    slot = f"{parameter}.{piece.name}"
    return Named(slot, piece.dims, piece.dtype, "optimizer", piece.block)


@dataclass(frozen=True, slots=True)
class _Owner:
    """What all updates of a segment share."""

    builder: SegmentBuilder
    context: BlockContext
    optimizer: Optimizer
    factor: int


class _Updating:
    """One parameter on its way through its recipe."""

    def __init__(self, owner: _Owner, name: str, prefix: str) -> None:
        self.owner, self.name, self.prefix = owner, name, prefix
        self.stored = owner.context.layouts.strategy.stored[name]
        self.recipe = parameter_recipe(owner.context, name, owner.optimizer)
        self.left = list(self.recipe.steps)
        self.at: dict[Piece, int] = {self.recipe.factor: owner.factor}
        self.in_place = self.stored.parameter == self.stored.optimizer
        self._acquire()

    @property
    def updated(self) -> Named:
        """The parameter after its update, under a name of its own."""
        named = self.owner.context.named(self.name)
        return replace(named, name=self.name + "'")

    def _acquire(self) -> None:
        """Bind the parameter (its shard, if it is stored whole), its gradient and its states."""
        builder, context, name = self.owner.builder, self.owner.context, self.name
        index, named = context.instance_index(name), context.named(name)
        binding = Binding("acc" if self.in_place else "move", name, index)
        self.bound = builder.formal(named, self.stored.parameter, binding)
        shard = builder.value(named, self.stored.parameter, self.stored.optimizer)
        self.at[self.recipe.parameter] = shard
        gradient = Binding("move", self.prefix + name, index)
        self.at[self.recipe.gradient] = builder.formal(
            context.named(GRADIENT + name), self.stored.optimizer, gradient
        )
        self.old = {}
        for piece in self.recipe.states:
            state = state_named(name, piece)
            binding = Binding("acc", state.name, index)
            self.old[piece] = self.at[piece] = builder.formal(state, piece.layout, binding)

    def _named(self, piece: Piece) -> Named:
        if piece == self.recipe.parameter:
            return self.updated
        if piece in self.old:
            return state_named(self.name, piece)
        return Named(f"{self.name}.{piece.name}", piece.dims, piece.dtype, "gradients")

    def advance(self) -> None:
        """Emit what computes, up to the next change of layout."""
        while self.left and (isinstance(self.left[0], Compute) or self._idle(self.left[0])):
            step = self.left.pop(0)
            if isinstance(step, Compute):
                self._emit(step)

    @staticmethod
    def _idle(move: Move) -> bool:
        return move.piece.layout == move.target

    def _emit(self, step: Compute) -> None:
        builder = self.owner.builder
        ins = [self.at[piece] for piece in step.ins]
        alias = [self.at[piece] for piece in step.changes] + [-1] * len(step.makes)
        outs = []
        for piece in (*step.changes, *step.makes):
            named = self._named(piece)
            register = self.at[piece] = builder.register(named, piece.layout)
            builder.table[named.name, piece.layout] = register
            outs.append(register)
        builder.emit(step.family, ins, outs, step.attrs, alias)

    def moves(self) -> list[tuple[Named, Layout, Layout]]:
        """The changes of layout that come next."""
        found = []
        for step in self.left:
            if not isinstance(step, Move):
                break
            if not self._idle(step):
                found.append((self._named(step.piece), step.piece.layout, step.target))
        return found

    def moved(self) -> None:
        """The next changes of layout have been made."""
        while self.left and isinstance(self.left[0], Move):
            step = self.left.pop(0)
            assert isinstance(step, Move)
            after = replace(step.piece, layout=step.target)
            self.at[after] = self.owner.builder.table[self._named(step.piece).name, step.target]

    def finish(self) -> None:
        """Give the states back, and the parameter where it is stored as it was updated."""
        for piece, old in self.old.items():
            self.owner.builder.returned(old, self.at[piece])
        if self.in_place:
            self.owner.builder.returned(self.bound, self.at[self.recipe.parameter])


def step_segment(
    key: str,
    context: BlockContext,
    gradients: Sequence[tuple[str, str]],
    optimizer: Optimizer,
) -> Segment:
    """Updates an instance's parameters on this rank's shard and restores their stored layout.

    Args:
        key: segment key.
        context: of the block.
        gradients: (parameter, slot prefix of its reduced gradient).
        optimizer: name and hyper-parameters.
    """
    builder = SegmentBuilder(key, context.sizes, context.extent)
    layout = replicated(len(context.sizes))
    factor = builder.formal(factor_named(context), layout, Binding("in", FACTOR, None))
    owner = _Owner(builder, context, optimizer, factor)
    updates = []
    for name, prefix in gradients:
        updates.append(_Updating(owner, name, prefix))
        updates[-1].advance()
    while any(update.left for update in updates):
        builder.bucketed([move for update in updates for move in update.moves()])
        for update in updates:
            update.moved()
            update.advance()
    for update in updates:
        update.finish()
    away = [update for update in updates if not update.in_place]
    moves = [(u.updated, u.stored.optimizer, u.stored.parameter) for u in away]
    for update, register in zip(away, builder.bucketed(moves), strict=True):
        index = context.instance_index(update.name)
        builder.bind(register, Binding("out", update.name, index))
    return builder.build()
