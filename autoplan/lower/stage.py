"""One stage of a Plan -> its StageProgram: which segments exist, in which order actions call them.

A segment exists once per distinct strategy, direction and first/later micro-batch. The list of
actions follows the schedule family; communication, gathers, reductions and frees are placed around
it by fixed rules: a gather is issued `Orders.prefetch` blocks ahead, a gathered parameter is
dropped after its block, gradients are brought to their optimizer layout right after an instance's
last backward, a sent tensor is held until the next send of its slot. With several chunks the last
stage sends on to the first; each pass is over one chunk, and what chunks share is fed for the first
of them and dropped after the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from autoplan.ir.graph import Graph
from autoplan.ir.plan import Plan, StagePlan
from autoplan.ir.program import Action, Segment, StageProgram
from autoplan.lower.member import Member, SegmentStore
from autoplan.lower.segments import backward_segment, forward_segment
from autoplan.lower.slots import StageSlots
from autoplan.lower.step import (
    factor_segment,
    final_segment,
    gather_segment,
    loss_segment,
    norm_segment,
    reduce_segment,
)
from autoplan.lower.update import step_segment
from autoplan.pipeline import SCHEDULES, Pipeline, Work


class StageLowering:
    """Lowers one stage.

    Args:
        plan: the Plan.
        graph: training step.
        stage: index of the stage.
        chunks: its instances, in order, by chunk.
        store: segments shared with other stages.
    """

    def __init__(
        self, plan: Plan, graph: Graph, stage: int, chunks: Sequence[Sequence[Member]],
        store: SegmentStore,
    ) -> None:  # fmt: skip
        self.plan, self.graph, self.stage, self.chunks = plan, graph, stage, chunks
        self.members = tuple(chain(*chunks))
        self.store, self.slots = store, StageSlots(plan, graph, chunks)
        self.segments: dict[str, Segment] = {}
        self.actions: list[Action] = []
        self._held: dict[str, Action] = {}
        self._keys: dict[tuple[object, ...], str] = {}

    @property
    def stage_plan(self) -> StagePlan:
        """The stage's part of the Plan."""
        return self.plan.stages[self.stage]

    # --- segments -------------------------------------------------------------------------------

    def _segment(
        self, member: Member, part: str, variant: object, build: Callable[[str], Segment]
    ) -> str:
        """Key of a member's segment, built once per distinct content."""
        identity = (
            member.strategy, part, variant, member.recompute, member.owned, member.shared,
            member.counted, member.opens,
        )  # fmt: skip
        if identity not in self._keys:
            base = f"{member.strategy}/{part}" + (".first" if variant == "first" else "")
            taken = sum(k == base or k.startswith(base + "#") for k in self.segments)
            key = f"{base}#{taken + 1}" if taken else base  # a mixed stage has several contents
            self.segments[key] = self.store.get((*identity, key), lambda: build(key))
            self._keys[identity] = key
        return self._keys[identity]

    def _forward(self, member: Member, first: bool) -> str:
        varies = any(op.family == "xent_loss" for op in member.block.forward)
        return self._segment(
            member, "F", "first" if first and varies else "later",
            lambda key: forward_segment(key, member.context, member.recompute, first),
        )  # fmt: skip

    def _backward(self, member: Member, first: bool) -> str:
        defines = member.opens if first else frozenset()
        return self._segment(
            member, "B", "first" if first else "later",
            lambda key: backward_segment(key, member.context, member.recompute, defines),
        )  # fmt: skip

    # --- actions --------------------------------------------------------------------------------

    def lower(self) -> StageProgram:
        """The stage's Program."""
        schedule = self.plan.schedule
        pipeline = Pipeline(len(self.plan.stages), schedule.micro_batches, len(self.chunks))
        for work in SCHEDULES[schedule.family](pipeline, self.stage):
            if work.kind == "F":
                self._forward_pass(work)
            else:
                self._backward_pass(work)
        for channel in list(self._held):
            self._release(channel)
        self._finish()
        return StageProgram(
            self.stage,
            self.stage_plan.mesh,
            self.segments,
            tuple(self.actions),
            self.slots.resident(),
            self.slots.feeds,
            self.slots.channels(),
            self.slots.gradients(),
        )

    def _forward_pass(self, work: Work) -> None:
        members, micro_batch = self.chunks[work.chunk], work.micro_batch
        first, after = members[0].index, members[-1].index + 1
        self._feed(work)
        if first > 0:
            self.actions.append(Action("RECV", "", first, micro_batch, self._neighbour(-1), ("x",)))
        for position, member in enumerate(members):
            self._gather_ahead(members, position)
            key = self._forward(member, micro_batch == 0)
            self.actions.append(Action("F", key, member.index, micro_batch))
            self._drop_gathered(member)
        if after < len(self.graph.instances):
            self._send("x", after, micro_batch, self._neighbour(+1))
        self._drop_feeds(work)

    def _backward_pass(self, work: Work) -> None:
        members = _backward_order(self.chunks[work.chunk])
        if not members:
            return
        micro_batch = work.micro_batch
        first, after = members[-1], members[0].index + 1
        if after < len(self.graph.instances):
            peer = self._neighbour(+1)
            self.actions.append(Action("RECV", "", after, micro_batch, peer, ("d.x",)))
        last_micro_batch = micro_batch == self.plan.schedule.micro_batches - 1
        for position, member in enumerate(members):
            self._gather_ahead(members, position)
            key = self._backward(member, micro_batch == 0)
            self.actions.append(Action("B", key, member.index, micro_batch))
            self._drop_gathered(member)
            self._reduce(member, micro_batch)
            if last_micro_batch and member.finals:
                self._finalise(member, member.finals, "")
        if first.block.passes_gradient and first.index > 0:
            self._send("d.x", first.index, micro_batch, self._neighbour(-1))
        self._drop_feeds(work)

    def _neighbour(self, step: int) -> int:
        """The stage before (-1) or after (+1); with several chunks the last comes round."""
        return (self.stage + step) % len(self.plan.stages)

    def _feed(self, work: Work) -> None:
        """Feed what this chunk is the first to read."""
        names = tuple(n for n, chunks in self.slots.readers.items() if chunks[0] == work.chunk)
        if names:
            self.actions.append(Action("FEED", "", -1, work.micro_batch, -1, names))

    def _drop_feeds(self, work: Work) -> None:
        """Free what nothing reads after this pass."""
        names = tuple(
            name for name, chunks in self.slots.readers.items()
            if self._last_pass(chunks) == (work.kind, work.chunk)
        )  # fmt: skip
        if names:
            self.actions.append(Action("FREE", "", -1, work.micro_batch, -1, names))

    def _last_pass(self, chunks: Sequence[int]) -> tuple[str, int]:
        """The last of a micro-batch's passes over some chunks."""
        turned = [chunk for chunk in chunks if _backward_order(self.chunks[chunk])]
        return ("B", turned[0]) if turned else ("F", chunks[-1])

    def _gather_ahead(self, running: Sequence[Member], position: int) -> None:
        """Issue the gathers due before the member at `position` runs (its own, if it is first)."""
        ahead = self.plan.orders.prefetch
        begin = position + ahead if position else 0
        for member in running[begin : position + ahead + 1]:
            self._gather(member)

    def _gather(self, member: Member) -> None:
        if member.gathers:
            key = self._segment(
                member, "GATHER", "",
                lambda key: gather_segment(key, member.context, member.gathers),
            )  # fmt: skip
            self.actions.append(Action("GATHER", key, member.index))

    def _drop_gathered(self, member: Member) -> None:
        if member.gathers:
            slots = tuple(name + "@" for name in member.gathers)
            self.actions.append(Action("FREE", "", member.index, -1, -1, slots))

    def _reduce(self, member: Member, micro_batch: int) -> None:
        if not member.reduces:
            return
        defines = member.opens if micro_batch == 0 else frozenset()
        key = self._segment(
            member, "REDUCE", "first" if micro_batch == 0 else "later",
            lambda key: reduce_segment(key, member.context, member.reduces, defines),
        )  # fmt: skip
        self.actions.append(Action("REDUCE", key, member.index, micro_batch))

    def _finalise(self, member: Member, parameters: tuple[str, ...], exchange: str) -> None:
        key = self._segment(
            member, "FINAL" + (".tied" if exchange else ""), exchange and (exchange,),
            lambda key: final_segment(key, member.context, parameters, exchange),
        )  # fmt: skip
        self.actions.append(Action("REDUCE", key, member.index))

    def _send(self, slot: str, instance: int, micro_batch: int, peer: int) -> None:
        """Send a slot; it is held until the next send of that name."""
        self._release(slot)
        action = Action("SEND", "", instance, micro_batch, peer, (slot,))
        self.actions.append(action)
        self._held[slot] = action

    def _release(self, slot: str) -> None:
        held = self._held.pop(slot, None)
        if held:
            self.actions.append(held._replace(kind="WAIT"))

    def _finish(self) -> None:
        """After the last micro-batch: shared gradients, norm, step, loss."""
        for member in self.members:
            for name in member.shared:
                self._finalise(member, (name,), "tied:" + name)
        updating = [member for member in self.members if member.owned]
        for position, member in enumerate(updating or self.members[:1]):
            self._norm(member, position == 0)
        plan = self.plan
        alone = len(plan.stages) == 1 and self.stage_plan.mesh.size == 1
        head = self.members[0]
        key = self._segment(
            head, "CLIP", "",
            lambda key: factor_segment(key, head.context, plan.workload, alone),
        )  # fmt: skip
        self.actions.append(Action("NORM", key))
        for member in updating:
            key = self._segment(member, "STEP", "", partial(self._step, member))
            self.actions.append(Action("STEP", key, member.index))
        self.actions.append(Action("FREE", "", -1, -1, -1, ("factor",)))
        last = self.members[-1]
        if last.index == len(self.graph.instances) - 1:
            key = self._segment(last, "LOSS", "", lambda key: loss_segment(key, last.context))
            self.actions.append(Action("REDUCE", key))

    def _norm(self, member: Member, first: bool) -> None:
        entries = [
            (name, prefix, member.counted or name not in member.shared)
            for name, prefix in member.gradients
        ]
        key = self._segment(
            member, "NORM", "first" if first else "later",
            lambda key: norm_segment(key, member.context, entries, first),
        )  # fmt: skip
        self.actions.append(Action("NORM", key, member.index))

    def _step(self, member: Member, key: str) -> Segment:
        optimizer = self.plan.workload.optimizer
        return step_segment(key, member.context, member.gradients, optimizer)


def _backward_order(members: Sequence[Member]) -> tuple[Member, ...]:
    """Those with a backward, in the order in which it passes them."""
    return tuple(member for member in reversed(members) if member.block.backward)
