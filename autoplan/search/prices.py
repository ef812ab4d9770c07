"""Prices as arrays: operators on local sizes, transitions between all layouts of a tensor.

Operators are cached by their *local* sizes, which recur over meshes and batches; transitions by
mesh and by the divisibility of dims, as the lines of every step of the default route of every
layout pair: each step is as dear as the least of its lines at the size that moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.boxing import RouteTable, route_table
from autoplan.cost import Pricer, Terms
from autoplan.ir.graph import Block, Op
from autoplan.ir.layout import Mesh
from autoplan.ir.program import Instr, Register
from autoplan.ir.workload import Precision
from autoplan.ops import FAMILIES
from autoplan.ops.matrix import product_attrs
from autoplan.ops.updating import Compute
from autoplan.search.space import Side

FloatArray = NDArray[np.float64]
IMPOSSIBLE = 1e15
"""Seconds of a transition that has no route; large, but safe to multiply by zero."""

Local = tuple[int, ...]
"""Local sizes of the dims that an operator sees, in the order of `OperatorPrices.dims`."""


class OperatorPrices:
    """Seconds of a block's operators, by local sizes.

    Args:
        pricer: prices of the machine and stack.
        precision: dtypes.
        extent: global sizes of dims (`b` aside).

    Attributes:
        columns: seconds per value of a variable, kept for candidates on meshes of the same sizes.
    """

    def __init__(self, pricer: Pricer, precision: Precision, extent: Mapping[str, int]) -> None:
        self.pricer, self.precision, self.extent = pricer, precision, extent
        self._cache: dict[tuple[str, str, bool], dict[Local, float]] = {}
        self._dims: dict[tuple[str, str], tuple[str, ...]] = {}
        self._element_cache: dict[object, float] = {}
        self.columns: dict[object, FloatArray] = {}

    def dims(self, block: Block, op: Op) -> tuple[str, ...]:
        """The dims that an operator sees, whose local sizes price it."""
        key = (block.name, op.name)
        if key not in self._dims:
            ins, outs = FAMILIES[op.family].operand_dims(op, block.tensors)
            every = dict.fromkeys(dim for operand in (*ins, *outs) for dim in operand)
            self._dims[key] = tuple(dim for dim in every if dim != "t")
        return self._dims[key]

    def seconds(
        self, block: Block, op: Op, rows: Sequence[Local], accumulate: bool = False
    ) -> FloatArray:
        """Seconds of one operator.

        Args:
            block: whose operator it is.
            op: the operator.
            rows: local sizes.
            accumulate: adds its result to an accumulator.

        Shapes:
            result: one per row.
        """
        known = self._cache.setdefault((block.name, op.name, accumulate), {})
        result = np.empty(len(rows))
        for index, local in enumerate(rows):
            if local not in known:
                sizes = dict(zip(self.dims(block, op), local, strict=True))
                known[local] = self._measure(block, op, sizes, accumulate)
            result[index] = known[local]
        return result

    def _measure(self, block: Block, op: Op, local: dict[str, int], accumulate: bool) -> float:
        ins_dims, outs_dims = FAMILIES[op.family].operand_dims(op, block.tensors)
        ins = [
            self._register(block, name, dims, local)
            for name, dims in zip(op.inputs, ins_dims, strict=True)
        ]
        outs = [
            self._register(block, name, dims, local)
            for name, dims in zip(op.outputs, outs_dims, strict=True)
        ]
        if accumulate:
            ins.append(outs[0])
        attrs = op.attrs + product_attrs(op, block.tensors, self.precision)
        instr = Instr(op.family, tuple(range(len(ins))), tuple(range(len(outs))), attrs)
        work = FAMILIES[op.family].measure(instr, ins, outs)
        return self.pricer.work_seconds(work, instr.attr("product", ins[0].dtype))

    def _register(
        self, block: Block, name: str, dims: Sequence[str], local: Mapping[str, int]
    ) -> Register:
        # Keys are read along `t` as long as positions are: whole, whatever splits the queries.
        shape = tuple(self.extent["s"] if dim == "t" else local[dim] for dim in dims)
        return Register(name, shape, self.precision.read(block.tensors[name].dtype), "")

    def updating(self, step: Compute, sizes: Sequence[int]) -> float:
        """Seconds of an instruction of an update, on a mesh of these sizes."""
        key = (step, tuple(sizes))
        if key not in self._element_cache:
            ins = [piece.register(sizes, self.extent) for piece in step.ins]
            outs = [piece.register(sizes, self.extent) for piece in (*step.changes, *step.makes)]
            numbers = tuple(range(len(ins))), tuple(range(len(outs)))
            work = FAMILIES[step.family].measure(
                Instr(step.family, *numbers, step.attrs), ins, outs
            )
            self._element_cache[key] = self.pricer.work_seconds(work, ins[0].dtype)
        return self._element_cache[key]

    def on_elements(
        self, family: str, ins: Sequence[tuple[float, str]], outs: Sequence[tuple[float, str]]
    ) -> float:
        """Seconds of an operator of the optimizer step on operands given as (elements, dtype)."""
        key = (family, tuple(ins), tuple(outs))
        if key not in self._element_cache:
            self._element_cache[key] = self._measure_elements(family, ins, outs)
        return self._element_cache[key]

    def _measure_elements(
        self, family: str, ins: Sequence[tuple[float, str]], outs: Sequence[tuple[float, str]]
    ) -> float:
        registers = [Register("", (int(count),), dtype, "") for count, dtype in (*ins, *outs)]
        instr = Instr(family, tuple(range(len(ins))), tuple(range(len(ins), len(registers))))
        work = FAMILIES[family].measure(instr, registers[: len(ins)], registers[len(ins) :])
        return self.pricer.work_seconds(work, ins[0][1])


class RoutePrices(NamedTuple):
    """Prices of the default routes between all layouts.

    Attributes:
        seconds: of every line of every step, shape (steps, lines, from, to); a route of fewer steps
            has zeros. On a machine where every price is one line the steps are added up.
        per_byte: likewise, per byte of the whole tensor.
    """

    seconds: FloatArray
    per_byte: FloatArray

    def at(self, rows: NDArray[np.int64], columns: NDArray[np.int64], nbytes: float) -> FloatArray:
        """Seconds of routes for a tensor of that size, by (from, to) broadcast."""
        steps, lines, count, _ = self.seconds.shape
        places = rows * count + columns
        flat = places.ravel()  # taken from flat tables: much faster than by two indices
        every = self.seconds.reshape(steps * lines, -1).take(flat, axis=1)
        every += self.per_byte.reshape(steps * lines, -1).take(flat, axis=1) * nbytes
        least = every.reshape(steps, lines, -1).min(axis=1)
        return np.asarray(least.sum(axis=0).reshape(places.shape))

    def line(self, source: int, target: int, nbytes: float) -> tuple[float, float]:
        """(seconds, seconds per byte) of one route near a size."""
        every = zip(
            self.seconds[:, :, source, target].tolist(),
            self.per_byte[:, :, source, target].tolist(),
            strict=True,
        )
        total, slope = 0.0, 0.0
        for step in every:
            seconds, per_byte = min(zip(*step, strict=True), key=lambda x: x[0] + x[1] * nbytes)
            total, slope = total + seconds, slope + per_byte
        return total, slope


class Transitions:
    """Prices of default routes between all layouts of tensors on one mesh.

    Args:
        pricer: prices.
        mesh: of a stage; its offset does not matter.
    """

    def __init__(self, pricer: Pricer, mesh: Mesh) -> None:
        self.pricer, self.mesh = pricer, mesh
        self._cache: dict[int, RoutePrices] = {}
        self._tables: dict[tuple[tuple[str, ...], tuple[int, ...]], RouteTable] = {}
        self._terms: dict[tuple[str, tuple[int, ...]], Terms] = {}

    def table(self, dims: tuple[str, ...], extent: tuple[int, ...]) -> RouteTable:
        """The routes of tensors with these dims."""
        key = (dims, extent)
        if key not in self._tables:  # spares the general cache's key
            self._tables[key] = route_table(dims, extent, self.mesh.sizes)
        return self._tables[key]

    def routes(self, table: RouteTable) -> RoutePrices:
        """Prices by [from, to]; impossible without a route."""
        if id(table) not in self._cache:
            self._cache[id(table)] = self._price(table)
        return self._cache[id(table)]

    def _price(self, table: RouteTable) -> RoutePrices:
        seconds, per_byte = self._direct(table)
        following, count = table.following, len(table.following)
        reached = following >= 0
        # What has no route says so in a step of its own.
        missing = np.where(reached | np.eye(count, dtype=bool), 0.0, IMPOSSIBLE)
        steps = [] if reached.all() else [(np.broadcast_to(missing, seconds.shape), 0.0 * per_byte)]
        pairs = np.flatnonzero(reached & ~np.eye(count, dtype=bool))
        hop, targets = pairs // count, pairs % count
        while len(pairs):  # all pairs take one step along their routes at a time
            after = following[hop, targets]
            step = np.zeros_like(seconds), np.zeros_like(per_byte)
            for made, known in zip(step, (seconds, per_byte), strict=True):
                flat = known.reshape(len(known), -1)
                made.reshape(len(made), -1)[:, pairs] = flat.take(hop * count + after, axis=1)
            steps.append(step)
            left = after != targets
            pairs, hop, targets = pairs[left], after[left], targets[left]
        if not steps:
            steps = [(np.zeros_like(seconds), np.zeros_like(per_byte))]
        every = [np.array(part) for part in zip(*steps, strict=True)]
        if len(seconds) == 1:
            every = [part.sum(axis=0, keepdims=True) for part in every]
        return RoutePrices(*every)

    def _direct(self, table: RouteTable) -> tuple[FloatArray, FloatArray]:
        """[line, from, to] of single steps: seconds, and seconds per byte of the whole tensor."""
        count = len(table.layouts)
        used = {(step.kind, step.axes) for step in table.steps.values()}
        lines = {key: self._step_terms(*key).lines for key in used}
        most = 2 if any(long != short for long, short in lines.values()) else 1
        seconds, per_byte = np.zeros((most, count, count)), np.zeros((most, count, count))
        for (i, j), step in table.steps.items():
            for number, line in enumerate(lines[step.kind, step.axes][:most]):
                seconds[number, i, j], per_byte[number, i, j] = line
        split = [[p.kind == "S" for p in layout] for layout in table.layouts]
        ranks = np.array(self.mesh.sizes, dtype=np.float64)
        pieces = np.where(np.array(split, dtype=bool).reshape(count, -1), ranks, 1.0).prod(axis=1)
        return seconds, per_byte / pieces[:, None]

    def _step_terms(self, kind: str, axes: tuple[int, ...]) -> Terms:
        """Price of a step, per byte of one rank's input."""
        if (kind, axes) not in self._terms:
            self._terms[kind, axes] = self.pricer.mesh_terms(kind, axes, self.mesh)
        return self._terms[kind, axes]

    def price(
        self, tensor: tuple[tuple[str, ...], tuple[int, ...], int], sources: Side, targets: Side
    ) -> FloatArray:
        """Seconds of the routes from each source to each target.

        Args:
            tensor: (dims, global extent, bytes of one element).
            sources: layouts that the tensor has.
            targets: layouts that it is to have.

        Shapes:
            result: (sources, targets).
        """
        dims, extent, width = tensor
        routes = self.routes(self.table(dims, extent))
        return routes.at(sources.numbers[:, None], targets.numbers, prod(extent) * width)
