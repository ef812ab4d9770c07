"""Segments that move parameters and gradients between their layouts, and the optimizer step.

    GATHER    stored -> used parameters                      before each use
    REDUCE    a micro-batch's gradients -> accumulators      where gradients do not stay partial
    FINAL     accumulated -> optimizer layout                once a step
    NORM      sum of squares, each element counted on one rank, over all stages
    STEP      optimizer on this rank's shard, parameters back to their stored layout

Within one segment, moves of one kind over the same axes share one message.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import GRADIENT
from autoplan.ir.layout import Layout
from autoplan.ir.plan import Stored
from autoplan.ir.program import Segment
from autoplan.ir.workload import Optimizer
from autoplan.lower.builder import Binding, Named, SegmentBuilder
from autoplan.ops.layouts import replicated
from autoplan.lower.segments import BlockContext

REDUCED = "r."
"""Prefix of the slot of a gradient in its optimizer layout."""


def _stored(context: BlockContext, parameter: str) -> Stored:
    return context.layouts.strategy.stored[parameter]


def gather_segment(key: str, context: BlockContext, parameters: Sequence[str]) -> Segment:
    """All-gathers of an instance's parameters into the layouts in which they are used."""
    builder = SegmentBuilder(key, context.sizes, context.extent)
    moves = []
    for name in parameters:
        binding = Binding("in", name, context.instance_index(name))
        builder.formal(context.named(name), _stored(context, name).parameter, binding)
        moves.append(
            (context.named(name, "gathered"), _stored(context, name).parameter,
             context.layouts.used[name])
        )  # fmt: skip
    for name, register in zip(parameters, builder.bucketed(moves), strict=True):
        builder.bind(register, Binding("out", name + "@"))
    return builder.build()


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
    for name, register in zip(parameters, builder.bucketed(moves), strict=True):
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
        register = builder.formal(gradient, stored.gradient, binding)
        if exchange:
            summed = builder.register(gradient, stored.gradient)
            attrs = (("axes", exchange), ("reduction", "sum"))
            builder.emit("all_reduce", (register,), (summed,), attrs)
            builder.table[gradient.name, stored.gradient] = summed
        moves.append((gradient, stored.gradient, stored.optimizer))
    for name, register in zip(parameters, builder.bucketed(moves), strict=True):
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


def factor_segment(key: str, context: BlockContext, clip: float, alone: bool) -> Segment:
    """Sums the norm over all ranks and turns it into the factor that scales gradients.

    Args:
        key: segment key.
        context: any block's of the stage.
        clip: limit of the gradient norm; 0 for none.
        alone: one rank in the whole Program, so that nothing is summed.
    """
    builder = SegmentBuilder(key, context.sizes, context.extent)
    layout = _replicated(context)
    dtype = context.precision.of("statistic")
    norm = Named("norm", (), dtype, "gradients")
    total = builder.formal(norm, layout, Binding("move", "norm", None))
    if not alone:
        summed = builder.register(norm, layout)
        attrs = (("axes", "world"), ("reduction", "sum"))
        builder.emit("all_reduce", (total,), (summed,), attrs)
        total = summed
    factor = builder.register(Named("factor", (), dtype, "gradients"), layout)
    builder.emit("clip_factor", (total,), (factor,), (("clip", clip),))
    builder.bind(factor, Binding("out", "factor", None))
    return builder.build()


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
    layout = _replicated(context)
    factor = builder.formal(
        Named("factor", (), context.precision.of("statistic"), "gradients"),
        layout,
        Binding("in", "factor", None),
    )
    moves = []
    for name, prefix in gradients:
        _update(builder, context, (name, prefix), factor, optimizer)
        stored = _stored(context, name)
        if stored.parameter != stored.optimizer:
            moves.append((_updated(context, name), stored.optimizer, stored.parameter))
    for (named, _, _), register in zip(moves, builder.bucketed(moves), strict=True):
        name = named.name.removesuffix("'")
        builder.bind(register, Binding("out", name, context.instance_index(name)))
    return builder.build()


def _updated(context: BlockContext, name: str) -> Named:
    """A parameter after its update, under a name of its own."""
    named = context.named(name)
    return Named(name + "'", named.dims, named.dtype, named.category)


def _update(
    builder: SegmentBuilder,
    context: BlockContext,
    gradient: tuple[str, str],
    factor: int,
    optimizer: Optimizer,
) -> None:
    """One parameter's update; leaves the new shard in the table as `name'`."""
    name, prefix = gradient
    stored = _stored(context, name)
    index = context.instance_index(name)
    named = context.named(name)
    in_place = stored.parameter == stored.optimizer
    binding = Binding("acc" if in_place else "move", name, index)
    parameter = builder.formal(named, stored.parameter, binding)
    shard = builder.value(named, stored.parameter, stored.optimizer)
    grad = builder.formal(
        context.named(GRADIENT + name), stored.optimizer, Binding("move", prefix + name, index)
    )
    ins, results = [shard, grad, factor], []
    names = [*optimizer.states]
    if context.precision.master != context.precision.parameter:
        names.append("master")
    aliases = [shard]
    outs = [builder.register(_updated(context, name), stored.optimizer)]
    for state in names:
        dtype = context.precision.master if state == "master" else context.precision.optimizer
        slot = f"{name}.{state}"
        old_state = Named(slot, named.dims, dtype, "optimizer")
        old = builder.formal(old_state, stored.optimizer, Binding("acc", slot, index))
        new = builder.register(old_state, stored.optimizer)
        ins.append(old)
        outs.append(new)
        aliases.append(old)
        results.append((old, new))
    builder.emit(optimizer.name, ins, outs, tuple(sorted(optimizer.hyper.items())), aliases)
    for old, new in results:
        builder.returned(old, new)
    if in_place:
        builder.returned(parameter, outs[0])
    builder.table[name + "'", stored.optimizer] = outs[0]


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
