"""Forward and backward segments of a block under a strategy.

Forward reads tensors through their homes and keeps what backward needs in its saved layout.
Backward takes those back, adds gradients up at home, and leaves parameter gradients either in their
accumulators or, where each micro-batch reduces, in slots of their own. With recompute, forward
keeps only the block's input and backward first runs the forward operators it needs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.ir.graph import GRADIENT, Attrs, Block, Op
from autoplan.ir.layout import Layout, format_layout
from autoplan.ir.program import Segment
from autoplan.ir.workload import Precision
from autoplan.lower.builder import Binding, Named, SegmentBuilder
from autoplan.ops.layouts import BlockLayouts, gradient_source, replicated
from autoplan.ops.matrix import product_attrs

SHARDED_OPERAND = {
    "dropout": 0, "attention": 0, "attention_grad": 0, "packed_attention": 0,
    "packed_attention_grad": 0, "embedding": 1, "xent_stats": 0, "xent_grad": 0,
}  # fmt: skip
"""Families whose kernels need to know which part of an operand they hold -> that operand."""
SHARDED_RESULT = {"embedding_grad": 0}
RUN_FEEDS = frozenset({"positions", "count"})
"""Feeds that live as long as the step or the run, not a micro-batch."""
LOSS_SCALE = "loss_scale"
"""Slot of the factor on the loss, where the precision has one."""


@dataclass(frozen=True)
class BlockContext:
    """What all segments of one block share.

    Attributes:
        layouts: derived from the strategy.
        sizes: ranks per mesh axis.
        extent: global sizes, `b` included.
        precision: dtypes.
        tied: local names of parameters that several instances use.
    """

    layouts: BlockLayouts
    sizes: tuple[int, ...]
    extent: Mapping[str, int]
    precision: Precision
    tied: frozenset[str]

    @property
    def block(self) -> Block:
        """The block."""
        return self.layouts.block

    def named(self, tensor: str, category: str = "") -> Named:
        """A tensor of the block for the builder."""
        t = self.block.tensors[tensor]
        if not category:
            category = {"parameter": "parameters", "parameter_gradient": "gradients"}.get(
                t.role, "logits" if "v" in t.dims else "activations"
            )
        return Named(tensor, t.dims, self.precision.of(t.dtype), category)

    def named_as_read(self, parameter: str) -> Named:
        """A parameter as operators read it."""
        category = "gathered" if self.gathered(parameter) else ""
        return replace(self.named(parameter, category), dtype=self.precision.read("parameter"))

    def gathered(self, parameter: str) -> bool:
        """Whether operators read another layout or dtype of a parameter than is stored."""
        stored = self.layouts.strategy.stored[parameter]
        return stored.parameter != self.layouts.used[parameter] or self.casts

    @property
    def casts(self) -> bool:
        """Whether parameters are stored in another dtype than operators read."""
        return self.precision.parameter != self.precision.read("parameter")

    def reduced_each(self, parameter: str) -> bool:
        """Whether every micro-batch reduces the parameter's gradient."""
        stored = self.layouts.strategy.stored[parameter]
        return stored.gradient != self.layouts.raw_gradient(parameter)

    def instance_index(self, parameter: str) -> int | None:
        """Slots of a tied parameter have no instance index."""
        return None if parameter in self.tied else 0


def feed_slot(feed: str, layout: Layout) -> str:
    """Slot name of a feed: the loader delivers it in every layout that is read."""
    return feed + format_layout(layout)


class _BlockSegment:
    """Emits operators of one block into a builder."""

    def __init__(self, key: str, context: BlockContext) -> None:
        self.context = context
        self.layouts = context.layouts
        self.builder = SegmentBuilder(key, context.sizes, context.extent)
        self._waiting: dict[str, Layout] = {}

    def operand(self, name: str, layout: Layout) -> int:
        """The register of an operand in the layout its reader needs."""
        tensor = self.context.block.tensors[name]
        if (name, layout) in self.builder.table:
            return self.builder.table[name, layout]
        if tensor.role == "parameter":
            return self._parameter(name, layout)
        if tensor.role == "feed":
            binding = Binding("in", feed_slot(name, layout), None, name not in RUN_FEEDS)
            return self.builder.formal(self.context.named(name), layout, binding)
        if tensor.role == "gradient":
            home = self.layouts.gradient_home(gradient_source(name))
            source = self.layouts.produced.get(name, home)
        else:
            hub = self.layouts.home(name)
            home = hub.value if hub else None
            source = self._waiting.get(name, self.layouts.produced.get(name, home))
        assert source is not None
        through = (layout,) if home is None else (home, layout)
        return self.builder.value(self.context.named(name), source, *through)

    def _parameter(self, name: str, layout: Layout) -> int:
        if self.context.gathered(name):
            binding = Binding("in", name + "@")
        else:
            binding = Binding("in", name, self.context.instance_index(name))
        return self.builder.formal(self.context.named_as_read(name), layout, binding)

    def emit(self, op: Op, accumulate_into: int | None = None) -> None:
        """Emit one operator; its last operand is the accumulator, if one is given."""
        operands = self.layouts.operands(op)
        ins = [self.operand(n, layout) for n, layout in zip(op.inputs, operands, strict=True)]
        outs = []
        for name in op.outputs:
            layout = self.layouts.produced[name]
            register = self.builder.register(self.context.named(name), layout)
            self.builder.table[name, layout] = register
            outs.append(register)
        attrs = op.attrs + self._shard(op, operands)
        attrs += product_attrs(op, self.context.block.tensors, self.context.precision)
        if op.family == "xent_grad" and self.context.precision.scales_loss:
            ins.append(self._loss_scale())
        alias = None
        if accumulate_into is not None:
            ins.append(accumulate_into)
            alias = (accumulate_into, *(-1,) * (len(outs) - 1))
        self.builder.emit(op.family, ins, outs, attrs, alias)

    def _loss_scale(self) -> int:
        """The factor on the loss, with which its gradient begins."""
        dtype = self.context.precision.of("statistic")
        layout = replicated(self.layouts.axes)
        named = Named(LOSS_SCALE, (), dtype, "optimizer")
        return self.builder.formal(named, layout, Binding("in", LOSS_SCALE, None))

    def _shard(self, op: Op, operands: Sequence[Layout]) -> Attrs:
        """The `shard` attribute: which axes split which dims of the operand that matters."""
        if op.family in SHARDED_OPERAND:
            index = SHARDED_OPERAND[op.family]
            name, layout = op.inputs[index], operands[index]
        elif op.family in SHARDED_RESULT:
            name = op.outputs[SHARDED_RESULT[op.family]]
            layout = self.layouts.produced[name]
        else:
            return ()
        shard = []
        for position, dim in enumerate(self.context.block.tensors[name].dims):
            axes = tuple(i for i, p in enumerate(layout) if p.kind == "S" and p.name == dim)
            if axes:
                shard.append((position, axes))
        attrs: Attrs = (("shard", tuple(shard)),)
        if op.family == "embedding_grad":
            rows = self.builder.registers[self.builder.table[name, layout]].shape[0]
            attrs += (("rows", rows),)
        return attrs

    def wait_from(self, name: str, layout: Layout) -> None:
        """Bind a saved activation that backward takes back."""
        self._waiting[name] = layout
        self.builder.formal(
            self.context.named(name), layout, Binding("move", name, 0, per_micro_batch=True)
        )


def forward_segment(key: str, context: BlockContext, recompute: bool, first: bool) -> Segment:
    """The forward of one instance for one micro-batch.

    Args:
        key: segment key.
        context: of the block.
        recompute: keep only the input.
        first: first micro-batch of the step (the loss starts its sum).
    """
    block, layouts = context.block, context.layouts
    segment = _BlockSegment(key, context)
    builder = segment.builder
    if block.input:
        home = layouts.home(block.input)
        assert home is not None
        intent = "in" if keeps_input(block, recompute) else "move"
        builder.formal(
            context.named(block.input), home.value, Binding(intent, "x", 0, per_micro_batch=True)
        )
    for op in block.forward:
        if op.family == "xent_loss":
            _emit_loss(segment, op, first)
        else:
            segment.emit(op)
    if block.output:
        home = layouts.home(block.output)
        assert home is not None
        result = segment.operand(block.output, home.value)
        builder.bind(result, Binding("out", "x", 1, per_micro_batch=True))
    if block.backward and not recompute:
        for name, layout in layouts.saved.items():
            if name != block.input:
                saved = segment.operand(name, layout)
                builder.bind(saved, Binding("out", name, 0, per_micro_batch=True))
    return builder.build()


def _emit_loss(segment: _BlockSegment, op: Op, first: bool) -> None:
    """The loss sums over micro-batches in one slot of the step."""
    builder, context = segment.builder, segment.context
    (loss,) = op.outputs
    layout = segment.layouts.produced[loss]
    if first:
        segment.emit(op)
        builder.bind(builder.table[loss, layout], Binding("out", "loss", None))
        return
    so_far = builder.formal(context.named(loss), layout, Binding("acc", "loss", None))
    segment.emit(op, accumulate_into=so_far)
    builder.returned(so_far, builder.table[loss, layout])


def recomputed(block: Block) -> frozenset[str]:
    """Names of forward operators that recomputing must run for backward to have its operands."""
    wanted = set(block.saved)
    again = set()
    for op in reversed(block.forward):
        if wanted.intersection(op.outputs):
            again.add(op.name)
            wanted.update(op.inputs)
    return frozenset(again)


def keeps_input(block: Block, recompute: bool) -> bool:
    """Whether the block's input waits for backward: read there, or by what is computed again."""
    again = recomputed(block) if recompute else frozenset()
    readers = [op for op in block.forward if op.name in again]
    return block.input in block.saved or any(block.input in op.inputs for op in readers)


def backward_segment(
    key: str, context: BlockContext, recompute: bool, defines: frozenset[str]
) -> Segment:
    """The backward of one instance for one micro-batch: input and weight gradients.

    Args:
        key: segment key.
        context: of the block.
        recompute: run the forward again first.
        defines: parameters whose gradient accumulator this call defines; it adds to the others.
    """
    block, layouts = context.block, context.layouts
    segment = _BlockSegment(key, context)
    builder = segment.builder
    if block.output:
        home = layouts.home(block.output)
        assert home is not None
        name = GRADIENT + block.output
        builder.formal(
            context.named(name), home.gradient, Binding("move", "d.x", 1, per_micro_batch=True)
        )
    _take_saved(segment, recompute)
    for op in block.backward:
        gradient = op.outputs[0]
        if block.tensors[gradient].role == "parameter_gradient":
            _emit_weight_gradient(segment, op, defines)
        else:
            segment.emit(op)
    if block.passes_gradient:
        home = layouts.home(block.input)
        assert home is not None
        result = segment.operand(GRADIENT + block.input, home.gradient)
        builder.bind(result, Binding("out", "d.x", 0, per_micro_batch=True))
    return builder.build()


def _take_saved(segment: _BlockSegment, recompute: bool) -> None:
    """Bind what forward kept, or compute it again from the input."""
    block, layouts = segment.context.block, segment.layouts
    if keeps_input(block, recompute):
        home = layouts.home(block.input)
        assert home is not None
        segment.builder.formal(
            segment.context.named(block.input),
            home.value,
            Binding("move", "x", 0, per_micro_batch=True),
        )
    if recompute:
        again = recomputed(block)
        for op in block.forward:
            if op.name in again:
                segment.emit(op)
        return
    for name, layout in layouts.saved.items():
        if name != block.input:
            segment.wait_from(name, layout)


def _emit_weight_gradient(segment: _BlockSegment, op: Op, defines: frozenset[str]) -> None:
    """A parameter's gradient goes to its accumulator, or to a slot that REDUCE takes."""
    builder, context = segment.builder, segment.context
    for gradient in op.outputs:
        parameter = gradient.removeprefix(GRADIENT)
        layout = segment.layouts.produced[gradient]
        if context.reduced_each(parameter):
            segment.emit(op)
            register = builder.table[gradient, layout]
            builder.bind(register, Binding("out", "g." + parameter, 0, per_micro_batch=True))
            continue
        index = context.instance_index(parameter)
        if parameter in defines:
            segment.emit(op)
            builder.bind(builder.table[gradient, layout], Binding("out", gradient, index))
            continue
        so_far = builder.formal(context.named(gradient), layout, Binding("acc", gradient, index))
        segment.emit(op, accumulate_into=so_far)
        builder.returned(so_far, builder.table[gradient, layout])
