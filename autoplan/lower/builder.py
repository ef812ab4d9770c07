"""Builds segments: registers, instructions, transitions, formals, and who frees what.

Three verbs: `formal` binds a slot, `emit` appends an instruction, `build` computes frees. `value`
fetches a tensor in a layout, along the route of `boxing`; a transition is keyed by (tensor,
layout), so that two readers share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod

from autoplan.boxing import Step, route
from autoplan.ir.graph import Attrs
from autoplan.ir.layout import Layout, local_shape
from autoplan.ir.program import Formal, Instr, Register, Segment


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor as the builder sees it.

    Attributes:
        name: its name.
        dims: dim names in storage order.
        dtype: a key of `DTYPE_BYTES`.
        category: line of the memory account.
        block: one value per so many elements of the local piece; 0 for one per element.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    category: str
    block: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """How a register is bound to a slot; see `ir.program.Formal`."""

    intent: str
    slot: str
    layer: int | None = 0
    per_micro_batch: bool = False


class SegmentBuilder:
    """Collects one segment.

    Args:
        key: of the segment.
        sizes: ranks per mesh axis.
        extent: global size of every dim, `b` included.
    """

    def __init__(self, key: str, sizes: tuple[int, ...], extent: Mapping[str, int]) -> None:
        self.key, self.sizes, self.extent = key, sizes, extent
        self.registers: list[Register] = []
        self.code: list[Instr] = []
        self.formals: list[Formal] = []
        self.table: dict[tuple[str, Layout], int] = {}

    def register(self, tensor: Named, layout: Layout) -> int:
        """A new register for one rank's piece of `tensor` in `layout`."""
        shape = local_shape(tensor.dims, layout, self.sizes, self.extent)
        if tensor.block:
            shape = (ceil(prod(shape) / tensor.block),)
        self.registers.append(Register(tensor.name, shape, tensor.dtype, tensor.category))
        return len(self.registers) - 1

    def formal(self, tensor: Named, layout: Layout, binding: Binding) -> int:
        """Bind a slot that exists before the call (`in`, `move`, `acc`)."""
        register = self.register(tensor, layout)
        self.table[tensor.name, layout] = register
        self.bind(register, binding)
        return register

    def returned(self, register: int, replacement: int) -> None:
        """Say which register an accumulator's slot holds after the call."""
        for index, formal in enumerate(self.formals):
            if formal.register == register:
                self.formals[index] = formal._replace(returns=replacement)

    def bind(self, register: int, binding: Binding) -> None:
        """Bind an existing register to a slot."""
        self.formals.append(
            Formal(register, binding.intent, binding.slot, binding.layer, binding.per_micro_batch)
        )

    def emit(
        self,
        op: str,
        ins: Sequence[int],
        outs: Sequence[int],
        attrs: Attrs = (),
        alias: Sequence[int] | None = None,
    ) -> None:
        """Append an instruction."""
        aliases = tuple(alias) if alias is not None else (-1,) * len(outs)
        self.code.append(Instr(op, tuple(ins), tuple(outs), attrs, aliases))

    def cast(self, tensor: Named, target: Named, layout: Layout) -> int:
        """A tensor of the table in the dtype, and under the name, of `target`."""
        result = self.register(target, layout)
        self.emit("cast", (self.table[tensor.name, layout],), (result,))
        self.table[target.name, layout] = result
        return result

    def value(self, tensor: Named, *waypoints: Layout) -> int:
        """The register that holds `tensor` in the last waypoint.

        Args:
            tensor: in the table in the first waypoint.
            waypoints: the tensor is there, passes through, and is wanted in the last.

        Only steps that lead on from what is in the table already are emitted, and none twice.
        """
        extent = tuple(self.extent[dim] for dim in tensor.dims)
        arrival: dict[Layout, Step] = {}
        for source, target in pairwise(waypoints):
            for step in route(source, target, tensor.dims, extent, self.sizes):
                arrival.setdefault(step.after, step)
        missing, layout = [], waypoints[-1]
        while (tensor.name, layout) not in self.table:
            missing.append(arrival[layout])
            layout = missing[-1].before
        for step in reversed(missing):
            before = self.table[tensor.name, step.before]
            after = self.register(tensor, step.after)
            self.emit_steps((step,), (tensor,), (before,), (after,))
            self.table[tensor.name, step.after] = after
        return self.table[tensor.name, waypoints[-1]]

    def emit_steps(
        self, steps: Sequence[Step], tensors: Sequence[Named], ins: Sequence[int],
        outs: Sequence[int],
    ) -> None:  # fmt: skip
        """Append one collective (or one slice) over operands that all make the same step."""
        first = steps[0]
        dims = [
            t.dims.index(step.dim) if step.dim else -1
            for t, step in zip(tensors, steps, strict=True)
        ]
        attrs: list[tuple[str, object]] = [("axes", first.axes)]
        if first.kind == "slice":
            attrs.append(("dim", dims[0]))
        elif first.kind == "all_to_all":
            to = [t.dims.index(step.to_dim) for t, step in zip(tensors, steps, strict=True)]
            attrs.append(("dims", tuple(zip(dims, to, strict=True))))
        elif first.kind != "all_reduce":
            attrs.append(("dims", tuple(dims)))
        if first.reduction:
            attrs.append(("reduction", first.reduction))
        self.emit(first.kind, ins, outs, tuple(attrs))

    def bucketed(self, tensors: Sequence[tuple[Named, Layout, Layout]]) -> list[int]:
        """Move several tensors at once: steps of one kind over the same axes share one message.

        Args:
            tensors: (tensor, source layout, target layout); sources must be in the table.

        Returns:
            The register of each tensor in its target layout.
        """
        pending: list[list[Step]] = []
        for tensor, source, target in tensors:
            extent = tuple(self.extent[dim] for dim in tensor.dims)
            pending.append(list(route(source, target, tensor.dims, extent, self.sizes)))
        while any(pending):
            leader, first = next((i, steps[0]) for i, steps in enumerate(pending) if steps)
            same = (first.kind, first.axes, first.reduction)
            members = [
                i for i, steps in enumerate(pending)
                if steps and (steps[0].kind, steps[0].axes, steps[0].reduction) == same
                and (first.kind != "slice" or i == leader)  # a slice is no message to share
            ]  # fmt: skip
            self._emit_bucket([(tensors[i][0], pending[i].pop(0)) for i in members])
        return [self.table[tensor.name, target] for tensor, _, target in tensors]

    def _emit_bucket(self, members: Sequence[tuple[Named, Step]]) -> None:
        ins = [self.table[tensor.name, step.before] for tensor, step in members]
        outs = [self.register(tensor, step.after) for tensor, step in members]
        steps = [step for _, step in members]
        self.emit_steps(steps, [tensor for tensor, _ in members], ins, outs)
        for (tensor, step), out in zip(members, outs, strict=True):
            self.table[tensor.name, step.after] = out

    def build(self) -> Segment:
        """The segment, with the frees of every instruction.

        A register is freed by the instruction that reads it last (or defines it, if nothing does),
        unless it is lent or leaves through a formal.
        """
        kept = {f.register for f in self.formals if f.intent in ("in", "out")}
        kept |= {f.returns for f in self.formals if f.intent == "acc"}
        last: dict[int, int] = {}
        for index, instr in enumerate(self.code):
            for register in (*instr.outs, *instr.ins):
                last[register] = index
        frees: dict[int, list[int]] = {}
        for register, index in last.items():
            if register not in kept:
                frees.setdefault(index, []).append(register)
        code = tuple(
            Instr(i.op, i.ins, i.outs, i.attrs, i.alias, tuple(sorted(frees.get(index, ()))))
            for index, i in enumerate(self.code)
        )
        return Segment(self.key, tuple(self.formals), tuple(self.registers), code)
