"""One stage of a Plan -> its StageProgram: which segments exist and in which order actions call them.

A segment exists once per distinct strategy, direction and first/later micro-batch. The list of actions
follows the schedule family; communication, gathers, reductions and frees are placed around it by fixed
rules: a gather is issued `Orders.prefetch` blocks ahead, a gathered parameter is dropped after its
block, gradients are brought to their optimizer layout right after an instance's last backward,
a sent tensor is held until the next send on its channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoplan.ir.graph import GRADIENT, Block, Graph
from autoplan.ir.layout import Layout, local_shape
from autoplan.ir.plan import Plan, StagePlan
from autoplan.ir.program import Action, Register, Segment, SlotSpec, StageProgram
from autoplan.lower.segments import (
    RUN_FEEDS,
    BlockContext,
    backward_segment,
    feed_slot,
    forward_segment,
)
from autoplan.lower.step import (
    REDUCED,
    factor_segment,
    final_segment,
    gather_segment,
    loss_segment,
    norm_segment,
    reduce_segment,
    step_segment,
)
from autoplan.pipeline import SCHEDULES


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


class StageLowering:
    """Lowers one stage.

    Args:
        plan: the Plan.
        graph: training step.
        stage: index of the stage.
        members: its instances, in order.
        store: segments shared with other stages.
    """

    def __init__(
        self, plan: Plan, graph: Graph, stage: int, members: Sequence[Member], store: SegmentStore
    ) -> None:
        self.plan, self.graph, self.stage, self.members = plan, graph, stage, tuple(members)
        self.store = store
        self.segments: dict[str, Segment] = {}
        self.actions: list[Action] = []
        self._held: dict[str, Action] = {}
        self._keys: dict[tuple[object, ...], str] = {}

    @cached_property
    def _with_backward(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.block.backward)

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
        micro_batches = self.plan.schedule.micro_batches
        order = SCHEDULES[self.plan.schedule.family](
            self.stage, len(self.plan.stages), micro_batches
        )
        for kind, micro_batch in order:
            if kind == "F":
                self._forward_pass(micro_batch)
            else:
                self._backward_pass(micro_batch)
        for channel in list(self._held):
            self._release(channel)
        self._finish()
        return StageProgram(
            self.stage,
            self.stage_plan.mesh,
            self.segments,
            tuple(self.actions),
            self._resident(),
            self._feeds,
            self._channels(),
            self._gradient_specs(),
        )

    def _forward_pass(self, micro_batch: int) -> None:
        members = self.members
        feeds = self._feed_names
        if feeds:
            self.actions.append(Action("FEED", "", -1, micro_batch, -1, feeds))
        if self.stage > 0:
            first = members[0].index
            self.actions.append(Action("RECV", "", first, micro_batch, self.stage - 1, ("x",)))
        for position, member in enumerate(members):
            self._gather_ahead(position, +1)
            key = self._forward(member, micro_batch == 0)
            self.actions.append(Action("F", key, member.index, micro_batch))
            self._drop_gathered(member)
        if self.stage + 1 < len(self.plan.stages):
            self._send("x", members[-1].index + 1, micro_batch, self.stage + 1)
        if feeds and not any(member.block.backward for member in members):
            self.actions.append(Action("FREE", "", -1, micro_batch, -1, feeds))

    def _backward_pass(self, micro_batch: int) -> None:
        members = self._with_backward
        if not members:
            return
        if self.stage + 1 < len(self.plan.stages):
            last = self.members[-1].index + 1
            self.actions.append(Action("RECV", "", last, micro_batch, self.stage + 1, ("d.x",)))
        last_micro_batch = micro_batch == self.plan.schedule.micro_batches - 1
        for member in reversed(members):
            self._gather_ahead(self.members.index(member), -1)
            key = self._backward(member, micro_batch == 0)
            self.actions.append(Action("B", key, member.index, micro_batch))
            self._drop_gathered(member)
            self._reduce(member, micro_batch)
            if last_micro_batch and member.finals:
                self._finalise(member, member.finals, "")
        if members[0].block.passes_gradient and self.stage > 0:
            self._send("d.x", members[0].index, micro_batch, self.stage - 1)
        feeds = self._feed_names
        if feeds:
            self.actions.append(Action("FREE", "", -1, micro_batch, -1, feeds))

    def _gather_ahead(self, position: int, direction: int) -> None:
        """Issue the gathers due before the member at `position` runs (itself, if it is the first)."""
        running = self.members if direction > 0 else self._with_backward
        here = running.index(self.members[position])
        ahead = self.plan.orders.prefetch
        at_start = here == (0 if direction > 0 else len(running) - 1)
        due = range(ahead + 1) if at_start else (ahead,)
        for distance in due:
            target = here + direction * distance
            if 0 <= target < len(running):
                self._gather(running[target])

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
        """Send a slot; it is held until the next send on its channel."""
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
            lambda key: factor_segment(key, head.context, plan.workload.optimizer.clip, alone),
        )  # fmt: skip
        self.actions.append(Action("NORM", key))
        for member in updating:
            key = self._segment(member, "STEP", "", lambda key, m=member: self._step(key, m))
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

    def _step(self, key: str, member: Member) -> Segment:
        optimizer = self.plan.workload.optimizer
        return step_segment(key, member.context, member.gradients, optimizer)

    # --- slots ----------------------------------------------------------------------------------

    def _spec(
        self, member: Member, tensor: str, layout: Layout, slot: tuple[str, int],
        source: tuple[str, ...],
    ) -> SlotSpec:  # fmt: skip
        named = member.context.named(tensor)
        return self._make_spec(member, (named.name, named.dims, named.dtype, named.category),
                               layout, slot, source)  # fmt: skip

    def _make_spec(
        self, member: Member, named: tuple[str, tuple[str, ...], str, str], layout: Layout,
        slot: tuple[str, int], source: tuple[str, ...],
    ) -> SlotSpec:  # fmt: skip
        name, dims, dtype, category = named
        shape = local_shape(dims, layout, member.context.sizes, member.context.extent)
        register = Register(name, shape, dtype, category)
        return SlotSpec((*slot, -1), register, layout, dims, source)

    def _resident(self) -> tuple[SlotSpec, ...]:
        specs: dict[tuple[str, int, int], SlotSpec] = {}
        for member in self.members:
            for spec in (*self._parameter_specs(member), *self._run_feeds(member)):
                specs.setdefault(spec.slot, spec)
        return tuple(specs.values())

    def _full_name(self, member: Member, name: str) -> str:
        return self.graph.instances[member.index].prefix + name

    def _parameter_specs(self, member: Member) -> list[SlotSpec]:
        context, workload = member.context, self.plan.workload
        specs = []
        for name in member.block.parameters:
            stored = context.layouts.strategy.stored[name]
            index = -1 if name in context.tied else member.index
            full = self._full_name(member, name)
            specs.append(
                self._spec(member, name, stored.parameter, (name, index), ("parameter", full))
            )
            if name not in member.block.trainable:
                continue
            precision = context.precision
            states = [(s, precision.optimizer) for s in workload.optimizer.states]
            if precision.master != precision.parameter:
                states.append(("master", precision.master))
            for state, dtype in states:
                slot = f"{name}.{state}"
                source = ("master", full) if state == "master" else ("state", full, state)
                named = (slot, context.named(name).dims, dtype, "optimizer")
                specs.append(
                    self._make_spec(member, named, stored.optimizer, (slot, index), source)
                )
        return specs

    def _run_feeds(self, member: Member) -> list[SlotSpec]:
        """Positions and the number of valid tokens: there for the whole step."""
        return [
            self._spec(member, name, layout, (feed_slot(name, layout), -1), ("feed", name))
            for name, layout in member.context.layouts.feeds
            if name in RUN_FEEDS
        ]

    @cached_property
    def _feed_names(self) -> tuple[str, ...]:
        return tuple(self._feeds)

    @cached_property
    def _feeds(self) -> Mapping[str, SlotSpec]:
        table = {}
        for member in self.members:
            for name, layout in member.context.layouts.feeds:
                if name not in RUN_FEEDS:
                    slot = feed_slot(name, layout)
                    table[slot] = self._spec(member, name, layout, (slot, -1), ("feed", name))
        return table

    def _channels(self) -> Mapping[str, SlotSpec]:
        """What arrives from the neighbours: activations from before, gradients from after."""
        table = {}
        first, last = self.members[0], self.members[-1]
        if self.stage > 0:
            home = first.context.layouts.home(first.block.input)
            assert home is not None
            table["x"] = self._spec(first, first.block.input, home.value, ("x", -1), ("channel",))
        if self.stage + 1 < len(self.plan.stages) and last.block.backward:
            home = last.context.layouts.home(last.block.output)
            assert home is not None
            name = GRADIENT + last.block.output
            table["d.x"] = self._spec(last, name, home.gradient, ("d.x", -1), ("channel",))
        return table

    def _gradient_specs(self) -> Mapping[str, SlotSpec]:
        """Full parameter name -> the reduced gradient that STEP consumes."""
        table = {}
        for member in self.members:
            for name, prefix in member.gradients:
                stored = member.context.layouts.strategy.stored[name]
                index = -1 if name in member.context.tied else member.index
                full = self._full_name(member, name)
                table[full] = self._spec(
                    member, GRADIENT + name, stored.optimizer, (prefix + name, index),
                    ("gradient", full),
                )  # fmt: skip
        return table

