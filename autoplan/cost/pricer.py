"""The price list of one machine with one stack: segments as tables, single steps from a cache.

Both paths end in the same formulas (`compute`, `collectives`), so a step that the search prices and
the instruction that lowering makes of it cost the same, to the last bit. Only the table of a
segment knows how long ranks have computed before a collective. Where they are cores of a host that
matters (`start_share`), and a single step has the most that it may take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf, prod
from typing import NamedTuple

import numpy as np

from autoplan.cost.collectives import (
    Geometry,
    Terms,
    collective_terms,
    group_geometry,
    mesh_groups,
    transfer_terms,
)
from autoplan.cost.compute import FloatArray, Processor
from autoplan.ir.layout import Mesh
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.program import COLLECTIVES, Instr, Segment
from autoplan.ops import FAMILIES, Work
from autoplan.ops.attention import FORWARD_PASSES

Groups = Mapping[str, tuple[tuple[int, ...], ...]]
"""Named groups of a Program; see `ir.program.Program.groups`."""


class Measured(NamedTuple):
    """What of a segment does not depend on prices.

    Attributes:
        segment: kept, so that its identity stays its own.
        computing: indices of instructions that compute.
        works, dtypes: of these.
        kinds: what the time of every instruction counts as.
    """

    segment: Segment
    computing: tuple[int, ...]
    works: tuple[Work, ...]
    dtypes: tuple[str, ...]
    kinds: tuple[str, ...]


EXCHANGES = ("GATHER", "REDUCE", "STEP")
"""Kinds of action that communicate parameters and gradients."""
SUMS = ("all_reduce", "reduce_scatter")
"""Collectives that sum gradients, which may lie in buckets."""
Messages = Sequence[tuple[int, float]]
"""(how many, bytes of each) of messages that one collective is made of."""

Measures = dict[int, Measured]
"""Identity of a segment -> what it measures: for who prices the same Programs many times."""


class Pricer:
    """Seconds and workspace of instructions.

    Args:
        hardware: the machine.
        stack: the training software.
        measures: shared with other pricers, or None.

    Attributes:
        overlaps: whether collectives run beside computing (not where ranks are host cores).
        compute_contention: factor on computing while a collective runs beside it.
        fixed_step: seconds of every step that belong to no instruction.
        layer_overlap: share of a layer's own collectives that its computing hides.
    """

    def __init__(self, hardware: Hardware, stack: Stack, measures: Measures | None = None) -> None:
        self.hardware, self.stack = _reached(hardware, stack), stack
        self.processor = Processor(hardware, stack)
        self.overlaps = not hardware.host.ranks_share_cores
        self._late = "late_exchange" in stack.habits
        self._alone = "lone_exchange" in stack.habits
        self.compute_contention = stack.constants["overlap_contention"]
        self.fixed_step = stack.constants["fixed_step_s"]
        self.layer_overlap = stack.constants["layer_overlap"] if self.overlaps else 0.0
        self._tensorwise = "tensorwise_gather" in stack.habits
        self._bucket = stack.constants["bucket_bytes"]
        self._ready = _ready(hardware, stack)
        self._measures = {} if measures is None else measures
        self._works: dict[tuple[Work, str], float] = {}
        self._meshes: dict[tuple[str, tuple[int, ...], Mesh], Terms] = {}
        self._named: dict[tuple[str, tuple[tuple[int, ...], ...]], Terms] = {}

    def runs_beside(self, kind: str, segment: Segment) -> bool:
        """Whether what an action performs runs beside computing.

        Args:
            kind: of the action.
            segment: what it performs.
        """
        if not self.overlaps or kind not in ("GATHER", "REDUCE"):
            return False
        if self._alone and kind == "REDUCE":
            return False
        return not (self._late and any(instr.op == "reduce_scatter" for instr in segment.code))

    # --- single prices, cached ------------------------------------------------------------------

    def work_seconds(self, work: Work, dtype: str) -> float:
        """Seconds of one operator on operands of `dtype`."""
        key = (work, dtype)
        if key not in self._works:
            self._works[key] = self.processor.work_seconds(work, dtype)
        return self._works[key]

    def mesh_terms(self, kind: str, axes: tuple[int, ...], mesh: Mesh) -> Terms:
        """The price of a collective or slice along mesh axes, per byte of one rank's input."""
        key = (kind, axes, mesh)
        if key not in self._meshes:
            self._meshes[key] = self._find_mesh_terms(kind, axes, mesh)
        return self._meshes[key]

    def _find_mesh_terms(self, kind: str, axes: tuple[int, ...], mesh: Mesh) -> Terms:
        if kind == "slice":
            parts = prod(mesh.axes[i].size for i in axes)
            return Terms(*self.processor.copy_terms(1.0 / parts))
        geometry = group_geometry(mesh_groups(mesh, axes), self.hardware)
        return self._geometry_terms(kind, geometry)

    def _geometry_terms(self, kind: str, geometry: Geometry) -> Terms:
        """Of one collective; a fabric between nodes may carry less the more nodes there are.

        All groups of a machine communicate at once, so the nodes of the machine count, not those of
        a group. Source of the power law: published runs whose gradient exchange costs nothing
        visible on 8 nodes and a third of the step on 32, in four groups of 8 nodes as in one of 32,
        while transfers between two nodes cost what the links allow; oversubscribed spines behave
        so.
        """
        decline = self.stack.constants["network_decline"]
        if not decline or geometry.ranks == 1:
            return collective_terms(kind, geometry, self.hardware)
        nodes = self.hardware.count // self.hardware.devices_per_node
        share = min(2 / max(nodes, 1), 1.0) ** decline
        slowed = _slowed(self.hardware, [share] * len(self.hardware.levels))
        return collective_terms(kind, geometry, slowed)

    def group_terms(self, kind: str, groups: tuple[tuple[int, ...], ...]) -> Terms:
        """The price of a collective over groups of its own, per byte of one rank's input."""
        key = (kind, groups)
        if key not in self._named:
            geometry = group_geometry(np.array(groups, dtype=np.int64), self.hardware)
            self._named[key] = self._geometry_terms(kind, geometry)
        return self._named[key]

    def transfer_seconds(
        self, nbytes: float, source: int, target: int, concurrent: int | None = None
    ) -> float:
        """Seconds to send bytes between two devices; see `collectives.transfer_terms`."""
        return transfer_terms(source, target, self.hardware, concurrent).of(nbytes)

    def exchange_seconds(
        self, nbytes: float, sources: Sequence[int], targets: Sequence[int]
    ) -> float:
        """Seconds until the slowest of several transfers made at once is done.

        Args:
            nbytes: that each device sends.
            sources: devices that send.
            targets: devices that receive, pair by pair.
        """
        if not nbytes or not len(sources):
            return 0.0
        start, end = np.asarray(sources), np.asarray(targets)
        spans = np.array(self.hardware.spans[1:])[:, None]
        levels = (start // spans == end // spans).argmax(axis=0)
        slowest = 0.0
        for number, level in enumerate(self.hardware.levels):
            mine = np.flatnonzero((levels == number) & (start != end))
            if len(mine):
                _, sending = np.unique(start[mine] // level.shared_by, return_counts=True)
                pair = int(start[mine[0]]), int(end[mine[0]])
                seconds = self.transfer_seconds(nbytes, *pair, int(sending.max()))
                slowest = max(slowest, seconds)
        return slowest

    def layer_floor(self, backward: bool) -> float:
        """Seconds of host work to issue one layer; see `compute.Processor.layer_floor`."""
        return self.processor.layer_floor(backward)

    def crossed_floor(self, segment: Segment, mesh: Mesh, groups: Groups, backward: bool) -> float:
        """What it grows by where a layer's collectives wait for other streams' to be launched.

        Source: fit to published runs of one stack, in which every layer then takes a time that
        grows with the ranks of its groups, whatever the model and micro-batch.
        """
        seconds = self.stack.constants["crossed_floor_s"]
        if not seconds:
            return 0.0
        return (
            (1 + backward)
            * seconds
            * max(
                (
                    self._ranks(instr, mesh, groups)
                    for instr in segment.code
                    if instr.op in COLLECTIVES
                ),
                default=0,
            )
        )

    def _ranks(self, instr: Instr, mesh: Mesh, groups: Groups) -> int:
        axes = instr.attr("axes")
        if isinstance(axes, str):
            return max(map(len, groups[axes]))
        return prod(mesh.axes[i].size for i in axes)

    # --- segments as tables ---------------------------------------------------------------------

    def instruction_seconds(
        self, segment: Segment, mesh: Mesh, groups: Groups, kind: str = ""
    ) -> FloatArray:
        """Seconds of every instruction of a segment.

        Args:
            segment: the segment.
            mesh: of the stage that runs it.
            groups: named groups of the Program.
            kind: of the action that performs it, or "" where that does not matter.

        Shapes:
            result: (instructions,).
        """
        seconds = np.zeros(len(segment.code))
        measured = self._measured(segment)
        if measured.computing:
            seconds[list(measured.computing)] = self.processor.table_seconds(
                measured.works, measured.dtypes
            )
        computed = inf  # since the last collective; what ran before the segment, nobody knows here
        for index, instr in enumerate(segment.code):
            if communicates(instr):
                sizes = [segment.registers[r].nbytes for r in instr.ins]
                messages = self.messages(kind, instr.op, sizes)
                seconds[index] = self._message_seconds(instr, messages, mesh, groups)
                if self._ready and instr.op in COLLECTIVES:
                    ready = self._ready._message_seconds(instr, messages, mesh, groups)
                    part = start_share(computed, self.hardware.host.start_ramp)
                    seconds[index] = ready + part * (seconds[index] - ready)
                    computed = -seconds[index]
            computed += seconds[index]
        return seconds

    def _message_seconds(
        self, instr: Instr, messages: Messages, mesh: Mesh, groups: Groups
    ) -> float:  # fmt: skip
        terms = self.instruction_terms(instr, mesh, groups)
        return sum(count * terms.of(nbytes) for count, nbytes in messages)

    def messages(self, kind: str, collective: str, sizes: Sequence[float]) -> Messages:
        """The messages that a collective is made of.

        Args:
            kind: of the action; parameters and gradients are cut as the stack does.
            collective: which.
            sizes: bytes of one rank's input, tensor by tensor.

        Source: PyTorch's DistributedDataParallel cuts gradients into buckets of about a size
        (`bucket_cap_mb`) and hands each to one collective; who gathers what an optimizer updated
        tensor by tensor pays a collective's latency for each.
        """
        whole, count = sum(sizes), 1
        if kind in EXCHANGES:
            if self._tensorwise and collective == "all_gather":
                return tuple((1, nbytes) for nbytes in sizes)
            if self._bucket and collective in SUMS:
                count = max(1, round(whole / self._bucket))
        return ((count, whole / count),)

    def message_count(self, summed: bool, nbytes: float, share: float) -> float:
        """About how many messages move a block's parameters (or sum its gradients) at once.

        Args:
            summed: whether they are gradients to sum.
            nbytes: one rank's input of one tensor.
            share: of all input that it is.
        """
        if self._tensorwise and not summed:
            return 1 / share
        return self.messages("REDUCE", SUMS[0], (nbytes / share,))[0][0] if summed else 1

    def _measured(self, segment: Segment) -> Measured:
        if id(segment) not in self._measures:
            self._measures[id(segment)] = _measure_all(segment)
        return self._measures[id(segment)]

    def instruction_terms(self, instr: Instr, mesh: Mesh, groups: Groups) -> Terms:
        """The price of a collective or slice of a segment, per byte of one rank's input."""
        axes = instr.attr("axes")
        if isinstance(axes, str):
            return self.group_terms(instr.op, groups[axes])
        return self.mesh_terms(instr.op, axes, mesh)

    def kinds(self, segment: Segment) -> tuple[str, ...]:
        """What the time of every instruction counts as: compute, optimizer or its collective."""
        return self._measured(segment).kinds

    def segment_scores(self, segment: Segment) -> int:
        """Bytes of one copy of the scores that the forward attentions of a segment compute."""
        return ceil(sum(_scores(instr, segment) for instr in segment.code))

    def segment_workspace(self, segment: Segment) -> int:
        """Bytes of the largest hidden temporary of any instruction.

        Source of the habit `fused_loss`: a compiled loss needs about its gradient beside the
        logits; pytorch/torchtitan pull request 1033 measures it below a loss in sixteen chunks.
        """
        works = self._measured(segment).works
        left_out = "loss" if "fused_loss" in self.stack.habits else ""
        sizes = (work.workspace for work in works if work.kind != left_out)
        return ceil(max(sizes, default=0.0))


def _scores(instr: Instr, segment: Segment) -> float:
    """Bytes of one copy of the scores that a forward attention computes."""
    if instr.op not in ("attention", "packed_attention"):
        return 0.0
    return measure(instr, segment).score_bytes / FORWARD_PASSES


def start_share(computed: float, ramp: float) -> float:
    """Share of a level's `start` that a collective takes where ranks are cores of a host.

    Args:
        computed: seconds for which a rank has computed since it last waited for others.
        ramp: seconds after which it is half.

    Source: a fair scheduler lets whoever waited run before who computed, and the more so the longer
    that was, up to a slice; so a collective's messages wait for a core that has just computed, and
    hardly after another collective. Measured on two cores: 0.5 ms after nothing, 0.9 to 1.3 after
    0.4 ms, 2 to 2.7 after 1.5 ms, 3 to 4 after 6 to 24 ms. [empirical] as to its shape.
    """
    return 1.0 if computed == inf else computed / (computed + ramp) if computed else 0.0


def _ready(hardware: Hardware, stack: Stack) -> Pricer | None:
    """Prices of collectives of ranks that have not computed; None where that is no difference."""
    if not hardware.host.start_ramp:
        return None
    levels = tuple(replace(level, start=0.0) for level in hardware.levels)
    host = replace(hardware.host, start_ramp=0.0)
    return Pricer(replace(hardware, levels=levels, host=host), stack)


def _reached(hardware: Hardware, stack: Stack) -> Hardware:
    """The machine with links between nodes as fast as the stack's collectives drive them."""
    share = stack.constants["network_efficiency"]
    return hardware if share == 1 else _slowed(hardware, [share] * len(hardware.levels))


def _slowed(hardware: Hardware, shares: Sequence[float]) -> Hardware:
    """The machine with the levels above a node as fast as some shares of themselves."""
    levels = tuple(
        replace(level, efficiency=level.efficiency * share)
        if span >= hardware.devices_per_node
        else level
        for level, span, share in zip(hardware.levels, hardware.spans, shares, strict=False)
    )
    return replace(hardware, levels=levels)


def communicates(instr: Instr) -> bool:
    """Whether an instruction is a step of a route (a collective, or a local slice)."""
    return instr.op in COLLECTIVES or instr.op == "slice"


def measure(instr: Instr, segment: Segment) -> Work:
    """The work of a computing instruction on its registers."""
    ins = [segment.registers[r] for r in instr.ins]
    outs = [segment.registers[r] for r in instr.outs]
    return FAMILIES[instr.op].measure(instr, ins, outs)


def _measure_all(segment: Segment) -> Measured:
    computing, works, dtypes, kinds = [], [], [], []
    for index, instr in enumerate(segment.code):
        if communicates(instr):
            kinds.append(instr.op if instr.op in COLLECTIVES else "compute")
            continue
        work = measure(instr, segment)
        own = segment.registers[instr.ins[0]].dtype if instr.ins else ""
        computing.append(index)
        works.append(work)
        dtypes.append(instr.attr("product", own))
        kinds.append("optimizer" if work.kind.startswith("optimizer") else "compute")
    return Measured(segment, tuple(computing), tuple(works), tuple(dtypes), tuple(kinds))
