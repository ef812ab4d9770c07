"""Segments that move parameters and gradients between their layouts, and the optimizer step.

    GATHER    stored -> used parameters                      before each use
    REDUCE    a micro-batch's gradients -> accumulators      where gradients do not stay partial
    FINAL     accumulated -> optimizer layout                once a step
    NORM      sum of squares, each element counted on one rank, over all stages
    (STEP     is in `update`)

Parameters are cast to the dtype that operators read before they are gathered, gradients to that of
reductions before they travel, and back. Within one segment, moves of one kind over the same axes
share one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoplan.ir.graph import GRADIENT, Attrs
from autoplan.ir.layout import Layout
from autoplan.ir.plan import Stored
from autoplan.ir.program import Segment
from autoplan.ir.workload import Precision, Workload
from autoplan.lower.builder import Binding, Named, SegmentBuilder
from autoplan.lower.segments import LOSS_SCALE, BlockContext
from autoplan.lower.update import FACTOR, factor_named
from autoplan.ops.layouts import replicated

REDUCED = "r."
"""Prefix of the slot of a gradient in its optimizer layout."""


def _stored(context: BlockContext, parameter: str) -> Stored:
    return context.layouts.strategy.stored[parameter]


def gather_segment(key: str, context: BlockContext, parameters: Sequence[str]) -> Segment:
    """Brings an instance's parameters into the dtype and layouts in which they are used."""
    builder = SegmentBuilder(key, context.sizes, context.extent)
    moves = []
    for name in parameters:
        stored, read = _stored(context, name).parameter, context.named_as_read(name)
        binding = Binding("in", name, context.instance_index(name))
        builder.formal(context.named(name), stored, binding)
        if context.casts:
            read = replace(read, name=name + "@")
            builder.cast(context.named(name), read, stored)
        moves.append((read, stored, context.layouts.used[name]))
    for name, register in zip(parameters, builder.bucketed(moves), strict=True):
        builder.bind(register, Binding("out", name + "@"))
    return builder.build()


def _reduced(
    builder: SegmentBuilder,
    context: BlockContext,
    moves: Sequence[tuple[Named, Layout, Layout]],
    exchange: str = "",
) -> list[int]:
    """Gradients in their target layouts, in their own dtype; they travel in that of reductions."""
    wire = context.precision.reduce
    travelling = []
    for gradient, source, target in moves:
        there = gradient
        if gradient.dtype != wire and (exchange or source != target):
            there = replace(gradient, name=gradient.name + "~", dtype=wire)
            builder.cast(gradient, there, source)
        if exchange:
            summed = builder.register(there, source)
            attrs = (("axes", exchange), ("reduction", "sum"))
            builder.emit("all_reduce", (builder.table[there.name, source],), (summed,), attrs)
            builder.table[there.name, source] = summed
        travelling.append((there, source, target))
    registers = builder.bucketed(travelling)
    for index, (gradient, _, target) in enumerate(moves):
        there = travelling[index][0]
        if there != gradient:
            registers[index] = builder.cast(there, gradient, target)
    return registers


def reduce_segment(
    key: str, context: BlockContext, parameters: Sequence[str], defines: frozenset[str]
) -> Segment:
    """Reduces one micro-batch's gradients and adds them to their accumulators."""
    builder = SegmentBuilder(key, context.sizes, context.extent)
    moves = []
    for name in parameters:
        raw = context.layouts.raw_gradient(name)
        binding = Binding("move", "g." + name, 0, per_micro_batch=True)
        gradient = context.named(GRADIENT + name)
        builder.formal(gradient, raw, binding)
        moves.append((gradient, raw, _stored(context, name).gradient))
    for name, register in zip(parameters, _reduced(builder, context, moves), strict=True):
        gradient = context.named(GRADIENT + name)
        index = context.instance_index(name)
        if name in defines:
            builder.bind(register, Binding("out", GRADIENT + name, index))
            continue
        layout = _stored(context, name).gradient
        so_far = builder.register(gradient, layout)
        builder.bind(so_far, Binding("acc", GRADIENT + name, index))
        total = builder.register(gradient, layout)
        builder.emit("accumulate", (so_far, register), (total,), (), (so_far,))
        builder.returned(so_far, total)
    return builder.build()


def final_segment(
    key: str, context: BlockContext, parameters: Sequence[str], exchange: str = ""
) -> Segment:
    """Brings accumulated gradients into their optimizer layout.

    Args:
        key: segment key.
        context: of the block.
        parameters: those whose gradient is not there yet (or is shared with another stage).
        exchange: name of the group over which a tied parameter's gradients of several stages are
            summed first, or "".
    """
    builder = SegmentBuilder(key, context.sizes, context.extent)
    moves: list[tuple[Named, Layout, Layout]] = []
    for name in parameters:
        gradient = context.named(GRADIENT + name)
        stored = _stored(context, name)
        binding = Binding("move", GRADIENT + name, context.instance_index(name))
        builder.formal(gradient, stored.gradient, binding)
        moves.append((gradient, stored.gradient, stored.optimizer))
    registers = _reduced(builder, context, moves, exchange)
    for name, register in zip(parameters, registers, strict=True):
        builder.bind(register, Binding("out", REDUCED + name, context.instance_index(name)))
    return builder.build()


def norm_segment(
    key: str,
    context: BlockContext,
    gradients: Sequence[tuple[str, str, bool]],
    first: bool,
) -> Segment:
    """Adds the sum of squares of an instance's reduced gradients to the stage's.

    Args:
        key: segment key.
        context: of the block.
        gradients: (parameter, slot prefix of its reduced gradient, whether this stage counts it).
        first: whether this call defines the sum.
    """
    builder = SegmentBuilder(key, context.sizes, context.extent)
    ins, owners = [], []
    for name, prefix, counts in gradients:
        shard = _stored(context, name).optimizer
        binding = Binding("in", prefix + name, context.instance_index(name))
        ins.append(builder.formal(context.named(GRADIENT + name), shard, binding))
        copies = tuple(i for i, p in enumerate(shard) if p.kind == "B")
        owners.append(copies if counts else None)
    total = Named("norm", (), context.precision.of("statistic"), "gradients")
    layout = _replicated(context)
    if first:
        register = builder.register(total, layout)
        builder.emit("square_sum", ins, (register,), _norm_attrs(owners, accumulates=False))
        builder.bind(register, Binding("out", "norm", None))
    else:
        so_far = builder.formal(total, layout, Binding("acc", "norm", None))
        register = builder.register(total, layout)
        attrs = _norm_attrs(owners, accumulates=True)
        builder.emit("square_sum", (*ins, so_far), (register,), attrs, (so_far,))
        builder.returned(so_far, register)
    return builder.build()


def _norm_attrs(
    owners: Sequence[tuple[int, ...] | None], accumulates: bool
) -> tuple[tuple[str, object], ...]:
    return (("accumulates", accumulates), ("owner", tuple(owners)))


def _replicated(context: BlockContext) -> Layout:
    return replicated(len(context.sizes))


def factor_segment(key: str, context: BlockContext, workload: Workload, alone: bool) -> Segment:
    """Sums the norm over all ranks and turns it into the factor that scales gradients.

    With a loss scale the factor takes it off again, is 0 where the norm is not finite, and the
    scale is adapted: all ranks see the same norm, so all decide alike.

    Args:
        key: segment key.
        context: any block's of the stage.
        workload: limit of the gradient norm (0 for none), loss scale.
        alone: one rank in the whole Program, so that nothing is summed.
    """
    builder = SegmentBuilder(key, context.sizes, context.extent)
    layout = _replicated(context)
    norm = Named("norm", (), context.precision.of("statistic"), "gradients")
    total = builder.formal(norm, layout, Binding("move", "norm", None))
    if not alone:
        summed = builder.register(norm, layout)
        over = (("axes", "world"), ("reduction", "sum"))
        builder.emit("all_reduce", (total,), (summed,), over)
        total = summed
    factor = builder.register(factor_named(context), layout)
    attrs: Attrs = (("clip", workload.optimizer.clip),)
    scales = scale_states(context.precision)
    attrs += (("growth_interval", workload.loss_scale.growth_interval),) if scales else ()
    old = [builder.formal(s, layout, Binding("move", s.name, None)) for s in scales]
    new = [builder.register(s, layout) for s in scales]
    builder.emit("clip_factor", (total, *old), (factor, *new), attrs, (-1, *old))
    builder.bind(factor, Binding("out", FACTOR, None))
    for state, register in zip(scales, new, strict=True):
        builder.bind(register, Binding("out", state.name, None))
    return builder.build()


def scale_states(precision: Precision) -> tuple[Named, ...]:
    """What a loss scale remembers: itself, and (good steps in a row, steps taken)."""
    if not precision.scales_loss:
        return ()
    dtype = precision.of("statistic")
    counts = Named(LOSS_SCALE + ".counts", ("c",), dtype, "optimizer")
    return Named(LOSS_SCALE, (), dtype, "optimizer"), counts


def loss_segment(key: str, context: BlockContext) -> Segment:
    """Sums the loss over the ranks that hold parts of it."""
    builder = SegmentBuilder(key, context.sizes, context.extent)
    name = context.block.forward[-1].outputs[0]
    source = context.layouts.produced[name]
    builder.formal(context.named(name), source, Binding("move", "loss", None))
    target = _replicated(context)
    total = builder.value(context.named(name), source, target)
    builder.bind(total, Binding("out", "loss", None))
    return builder.build()
