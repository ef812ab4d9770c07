"""What a stage is lent, fed and sent: the slots that exist before its actions define any.

Parameters and optimizer state are resident for the whole run, feeds arrive per step or micro-batch,
channels bring activations and gradients from the neighbours; STEP consumes reduced gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain

from autoplan.ir.graph import GRADIENT, Graph
from autoplan.ir.layout import Layout
from autoplan.ir.plan import Plan
from autoplan.ir.program import SlotSpec
from autoplan.lower.builder import Named, SegmentBuilder
from autoplan.lower.member import Member
from autoplan.lower.segments import RUN_FEEDS, feed_slot
from autoplan.lower.step import scale_states
from autoplan.lower.update import parameter_recipe, state_named
from autoplan.ops.layouts import replicated
from autoplan.ops.updating import MASTER


class StageSlots:
    """Slots of one stage.

    Args:
        plan: the Plan.
        graph: training step.
        chunks: its instances, in order, by chunk.
    """

    def __init__(self, plan: Plan, graph: Graph, chunks: Sequence[Sequence[Member]]) -> None:
        self.workload, self.graph, self.chunks = plan.workload, graph, chunks
        self.members = tuple(chain(*chunks))

    def resident(self) -> tuple[SlotSpec, ...]:
        """What is there before the first step: parameters, their state, feeds of the whole step."""
        specs: dict[tuple[str, int, int], SlotSpec] = {}
        for member in self.members:
            for spec in (*self._parameter_specs(member), *self._run_feeds(member)):
                specs.setdefault(spec.slot, spec)
        return (*specs.values(), *self._loss_scale())

    @cached_property
    def feeds(self) -> Mapping[str, SlotSpec]:
        """Slot -> what every micro-batch is fed."""
        table = {}
        for member in self.members:
            for name, layout in member.context.layouts.feeds:
                if name not in RUN_FEEDS:
                    slot = feed_slot(name, layout)
                    table[slot] = self._spec(member, name, layout, (slot, -1), ("feed", name))
        return table

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """Slot of a feed -> the chunks that read it, in order."""
        table: dict[str, dict[int, None]] = {slot: {} for slot in self.feeds}
        for number, chunk in enumerate(self.chunks):
            for member in chunk:
                for name, layout in member.context.layouts.feeds:
                    if name not in RUN_FEEDS:
                        table[feed_slot(name, layout)][number] = None
        return {slot: tuple(chunks) for slot, chunks in table.items()}

    def channels(self) -> Mapping[str, SlotSpec]:
        """What arrives from the neighbours: activations from before, gradients from after."""
        table = {}
        for chunk in self.chunks:
            first, last = chunk[0], chunk[-1]
            if first.index > 0:
                home = first.context.layouts.home(first.block.input)
                assert home is not None
                name = first.block.input
                table["x"] = self._spec(first, name, home.value, ("x", -1), ("channel",))
            if last.index + 1 < len(self.graph.instances) and last.block.backward:
                home = last.context.layouts.home(last.block.output)
                assert home is not None
                name = GRADIENT + last.block.output
                table["d.x"] = self._spec(last, name, home.gradient, ("d.x", -1), ("channel",))
        return table

    def gradients(self) -> Mapping[str, SlotSpec]:
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

    def _parameter_specs(self, member: Member) -> list[SlotSpec]:
        context, workload = member.context, self.workload
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
            for piece in parameter_recipe(context, name, workload.optimizer).states:
                own = ("master", full) if piece.name == MASTER else ("state", full, piece.name)
                named = state_named(name, piece)
                specs.append(self._make_spec(member, named, piece.layout, (named.name, index), own))
        return specs

    def _loss_scale(self) -> list[SlotSpec]:
        """The loss scale, if there is one, whose source tells how it begins."""
        member = self.members[0]
        layout = replicated(len(member.context.sizes))
        start = repr(self.workload.loss_scale.initial)
        return [
            self._make_spec(member, named, layout, (named.name, -1), source)
            for named, source in zip(
                scale_states(member.context.precision),
                (("scale", start), ("scale_counts",)),
                strict=False,
            )
        ]

    def _run_feeds(self, member: Member) -> list[SlotSpec]:
        """Positions and the number of valid tokens: there for the whole step."""
        return [
            self._spec(member, name, layout, (feed_slot(name, layout), -1), ("feed", name))
            for name, layout in member.context.layouts.feeds
            if name in RUN_FEEDS
        ]

    def _full_name(self, member: Member, name: str) -> str:
        return self.graph.instances[member.index].prefix + name

    def _spec(
        self, member: Member, tensor: str, layout: Layout, slot: tuple[str, int],
        source: tuple[str, ...],
    ) -> SlotSpec:  # fmt: skip
        return self._make_spec(member, member.context.named(tensor), layout, slot, source)

    def _make_spec(
        self, member: Member, named: Named, layout: Layout, slot: tuple[str, int],
        source: tuple[str, ...],
    ) -> SlotSpec:  # fmt: skip
        builder = SegmentBuilder("", member.context.sizes, member.context.extent)
        register = builder.registers[builder.register(named, layout)]
        return SlotSpec((*slot, -1), register, layout, named.dims, source)
