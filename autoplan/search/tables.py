"""What every decision of a block costs: the factors that elimination minimises over.

A factor is a table over one or two variables with a value per *channel* (kinds of time and memory that
a step weighs differently) and possibly several *options* per entry (stored layouts of a parameter, the
layout in which a tensor waits for backward), of which the cheapest is taken for the weights at hand.

    XF XB     forward and backward on the compute stream, collectives of activations included
    RG        fetching saved tensors again in backward (not needed where forward is run again)
    RC        running forward again
    WF WB     parameter gathers, gradient reductions: on the collective stream
    ON OK     once a step: optimizer; last reduction of gradients
    MA MX MW  bytes: saved per micro-batch; the block's input; parameters, gradients, optimizer state
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from autoplan.ir.graph import GRADIENT, Block, Op
from autoplan.ir.layout import Layout, Mesh, split_factor
from autoplan.ir.plan import Stored
from autoplan.ir.workload import DTYPE_BYTES, Optimizer, Precision
from autoplan.lower.segments import recomputed
from autoplan.ops import FAMILIES, gradient_source
from autoplan.search.eliminate import Factor
from autoplan.search.prices import IMPOSSIBLE, Local, OperatorPrices, Transitions
from autoplan.search.space import BlockSpace
from autoplan.search.storage import StorageOptions

FloatArray = NDArray[np.float64]

CHANNELS = ("XF", "XB", "RG", "RC", "WF", "WB", "ON", "OK", "MA", "MX", "MW")
CHANNEL = {name: i for i, name in enumerate(CHANNELS)}
COUNT = len(CHANNELS)


@dataclass(frozen=True)
class Chooser:
    """A factor with options.

    Attributes:
        scope: one or two variables.
        values: (options, channels, domain…).
        meaning: option -> what it decides, as ("saved", tensor, layouts) or ("stored", parameter,
            table of `Stored` per (value, option)); None where there is one option.
    """

    scope: tuple[int, ...]
    values: FloatArray
    meaning: tuple[object, ...] | None = None


@dataclass
class BlockTables:
    """All factors of one block on one mesh with one micro-batch size.

    Attributes:
        space: its variables.
        domains: values left per variable: indices into `space.variables[i].values`.
        choosers: the factors.
    """

    space: BlockSpace
    domains: list[NDArray[np.intp]]
    choosers: list[Chooser] = field(default_factory=list)

    def factors(self, weights: FloatArray) -> list[Factor]:
        """Scalar tables for a weight per channel."""
        return [
            Factor(c.scope, np.tensordot(weights, c.values, axes=(0, 1)).min(axis=0))
            for c in self.choosers
        ]

    def totals(self, assignment: Mapping[int, int], weights: FloatArray) -> FloatArray:
        """Channel totals of an assignment, with the best options for the weights."""
        total = np.zeros(COUNT)
        for chooser in self.choosers:
            index = tuple(assignment[v] for v in chooser.scope)
            values = chooser.values[(slice(None), slice(None), *index)]
            total += values[int((values @ weights).argmin())]
        return total

    def decisions(
        self, assignment: Mapping[int, int], weights: FloatArray
    ) -> tuple[dict[str, Layout], dict[str, Stored]]:
        """Saved layouts and stored layouts that go with an assignment."""
        saved: dict[str, Layout] = {}
        stored: dict[str, Stored] = {}
        for chooser in self.choosers:
            if chooser.meaning is None:
                continue
            index = tuple(assignment[v] for v in chooser.scope)
            values = chooser.values[(slice(None), slice(None), *index)]
            option = int((values @ weights).argmin())
            kind, name, table = chooser.meaning
            if kind == "saved":
                saved[name] = table(option, index)  # type: ignore[operator,index]
            else:
                stored[name] = table[index[0]][option]  # type: ignore[index]
        return saved, stored


Allowed = Callable[[str, object], bool]
"""(variable name, value) -> whether a pin leaves it open."""


@dataclass(frozen=True)
class Setting:
    """What tables are built for.

    Attributes:
        extent: global sizes, `b` of one micro-batch included.
        micro_batches: per step.
        prices: of operators.
        transitions: between layouts, on the mesh.
        storage: stored layouts and what they cost.
        precision, optimizer: of the workload.
        allowed: what pins leave open.
    """

    extent: Mapping[str, int]
    micro_batches: int
    prices: OperatorPrices
    transitions: Transitions
    storage: StorageOptions
    precision: Precision
    optimizer: Optimizer
    allowed: Allowed

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.transitions.mesh


class _TableBuilder:
    """Collects the factors of one block; adds up those with one option per scope."""

    def __init__(self, space: BlockSpace, setting: Setting) -> None:
        self.space, self.setting = space, setting
        self.block = space.block
        self.sizes = setting.mesh.sizes
        self.again = recomputed(space.block)
        self.domains = [self._domain(i) for i in range(len(space.variables))]
        self._plain: dict[tuple[int, ...], FloatArray] = {}
        self._choosers: list[Chooser] = []

    # --- domains --------------------------------------------------------------------------------

    def _domain(self, number: int) -> NDArray[np.intp]:
        variable = self.space.variables[number]
        keep = [
            i for i, value in enumerate(variable.values)
            if self.setting.allowed(variable.name, value) and self._divides(variable.name, value)
        ]  # fmt: skip
        return np.array(keep, dtype=np.intp)

    def _divides(self, name: str, value: object) -> bool:
        """Whether every dim that the value splits divides by the axes that split it."""
        layouts: list[Sequence[object]]
        if isinstance(value, tuple):
            layouts = [value]
        else:
            layouts = [
                [p.name if p.kind == "S" else None for p in layout]
                for layout in (value.value, value.gradient)  # type: ignore[attr-defined]
            ]
        for names in layouts:
            parts: dict[object, int] = {}
            for dim, size in zip(names, self.sizes, strict=True):
                if dim is not None and dim != "P":
                    parts[dim] = parts.get(dim, 1) * size
            if any(self.setting.extent[str(dim)] % factor for dim, factor in parts.items()):
                return False
        return True

    # --- adding ---------------------------------------------------------------------------------

    def add(self, scope: tuple[int, ...], channel: str, values: FloatArray) -> None:
        """Add to the one-option factor of a scope; the scope may be in any order."""
        if len(scope) == 2 and scope[0] > scope[1]:
            scope, values = (scope[1], scope[0]), values.T
        if len(scope) == 2 and scope[0] == scope[1]:
            scope, values = scope[:1], np.diagonal(values)
        if scope not in self._plain:
            shape = [len(self.domains[v]) for v in scope]
            self._plain[scope] = np.zeros((1, COUNT, *shape))
        self._plain[scope][0, CHANNEL[channel]] += values

    def build(self) -> BlockTables:
        """All factors."""
        self._operators()
        self._forward_transitions()
        self._backward_transitions()
        self._saved()
        self._parameters()
        plain = [Chooser(scope, values) for scope, values in self._plain.items()]
        return BlockTables(self.space, self.domains, [*plain, *self._choosers])

    # --- operators ------------------------------------------------------------------------------

    def _local(self, op: Op, value: object) -> Local:
        ins, outs = FAMILIES[op.family].operand_dims(op, self.block.tensors)
        extent = self.setting.extent
        dims = dict.fromkeys(dim for operand in (*ins, *outs) for dim in operand if dim in extent)
        local = {dim: extent[dim] for dim in dims}
        assert isinstance(value, tuple)
        for choice, size in zip(value, self.sizes, strict=True):
            if choice in local:
                local[choice] //= size
        return tuple(local.items())

    def _operators(self) -> None:
        for op in self.block.forward:
            seconds = self._seconds(op)
            self.add((self.space.groups[op.group],), "XF", seconds)
            if op.name in self.again:
                self.add((self.space.groups[op.group],), "RC", seconds)
        for op in self.block.backward:
            if not op.group:
                self._sum(op)
            elif self.block.tensors[op.outputs[0]].role != "parameter_gradient":
                self.add((self.space.groups[op.group],), "XB", self._seconds(op))

    def _seconds(self, op: Op, accumulate: bool = False) -> FloatArray:
        number = self.space.groups[op.group]
        values = self.space.variables[number].values
        prices = self.setting.prices
        return np.array(
            [
                prices.seconds(self.block, op, self._local(op, values[i]), accumulate)
                for i in self.domains[number]
            ]
        )

    def _sum(self, op: Op) -> None:
        """Adding up gradients, at home or, for a tensor without one, as its readers leave them."""
        source = gradient_source(op.outputs[0])
        if source in self.space.hubs:
            number = self.space.hubs[source]
            layouts = self.space.home_layouts(source, gradient=True)
        else:
            producer = self.block.producer[op.inputs[0]]
            number = self.space.groups[producer.group]
            layouts = self.space.result_layouts(producer, producer.outputs.index(op.inputs[0]))
        dims = self.block.tensors[op.outputs[0]].dims
        extent, prices = self.setting.extent, self.setting.prices
        seconds = []
        for i in self.domains[number]:
            local = tuple(
                (dim, extent[dim] // split_factor(dim, layouts[i], self.sizes)) for dim in dims
            )
            seconds.append(prices.seconds(self.block, op, local))
        self.add((number,), "XB", np.array(seconds))

    # --- transitions ----------------------------------------------------------------------------

    def _price(
        self, tensor: str, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> FloatArray:
        t = self.block.tensors[tensor]
        extent = tuple(self.setting.extent[dim] for dim in t.dims)
        width = DTYPE_BYTES[self.setting.precision.of(t.dtype)]
        return self.setting.transitions.price((t.dims, extent, width), sources, targets)

    def _select(self, number: int, layouts: Sequence[Layout]) -> list[Layout]:
        return [layouts[i] for i in self.domains[number]]

    def _produced(self, tensor: str) -> tuple[int, list[Layout]]:
        """(variable, layouts) in which an operator leaves a tensor; only for operators' results."""
        op = self.block.producer[tensor]
        number = self.space.groups[op.group]
        layouts = self.space.result_layouts(op, op.outputs.index(tensor))
        return number, self._select(number, layouts)

    def _home(self, hub: str, gradient: bool) -> tuple[int, list[Layout]]:
        number = self.space.hubs[hub]
        return number, self._select(number, self.space.home_layouts(hub, gradient))

    def _read(self, op: Op, position: int) -> tuple[int, list[Layout]]:
        number = self.space.groups[op.group]
        return number, self._select(number, self.space.operand_layouts(op, position))

    def _edge(
        self, tensor: str, source: tuple[int, list[Layout]], target: tuple[int, list[Layout]],
        channels: Sequence[str],
    ) -> None:  # fmt: skip
        seconds = self._price(tensor, source[1], target[1])
        for channel in channels:
            self.add((source[0], target[0]), channel, seconds)

    def _forward_transitions(self) -> None:
        seen: set[tuple[str, int]] = set()
        for op in self.block.forward:
            channels = ("XF", "RC") if op.name in self.again else ("XF",)
            for position, name in enumerate(op.inputs):
                number = self.space.groups[op.group]
                if self.block.tensors[name].role != "activation" or (name, number) in seen:
                    continue
                seen.add((name, number))
                hub = name in self.space.hubs
                source = self._home(name, gradient=False) if hub else self._produced(name)
                self._edge(name, source, self._read(op, position), channels)
            for name in op.outputs:
                if name in self.space.hubs:
                    home = self._home(name, gradient=False)
                    self._edge(name, self._produced(name), home, channels)

    def _backward_transitions(self) -> None:
        """Gradients travel from the operators that leave them, through homes, to their readers."""
        seen: set[tuple[str, int]] = set()
        for op in self.block.backward:
            for name in op.outputs:
                self._to_gradient_home(op, name)
            for position, name in enumerate(op.inputs):
                if self.block.tensors[name].role != "gradient":
                    continue
                source = gradient_source(name)
                if not op.group:
                    self._sum_operand(op, name, seen)
                    continue
                number = self.space.groups[op.group]
                if (name, number) in seen:
                    continue
                seen.add((name, number))
                hub = source in self.space.hubs
                start = self._home(source, gradient=True) if hub else self._gradient_produced(name)
                self._edge(name, start, self._read(op, position), ("XB",))

    def _gradient_produced(self, name: str) -> tuple[int, list[Layout]]:
        op = self.block.producer[name]
        return self._produced(op.inputs[0]) if not op.group else self._produced(name)

    def _to_gradient_home(self, op: Op, name: str) -> None:
        """A gradient of a hub goes home as soon as it is read."""
        source = gradient_source(name)
        if op.group and self.block.tensors[name].role == "gradient" and source in self.space.hubs:
            home = self._home(source, gradient=True)
            self._edge(name, self._produced(name), home, ("XB",))

    def _sum_operand(self, op: Op, name: str, seen: set[tuple[str, int]]) -> None:
        """An operand of a sum that is another hub's gradient (through a residual addition)."""
        into, of = gradient_source(op.outputs[0]), gradient_source(name)
        if into == of or into not in self.space.hubs or of not in self.space.hubs:
            return
        target = self._home(into, gradient=True)
        if (name, target[0]) not in seen:
            seen.add((name, target[0]))
            self._edge(name, self._home(of, gradient=True), target, ("XB",))

    # --- what waits for backward ----------------------------------------------------------------

    def _nbytes(self, tensor: str, layouts: Sequence[Layout]) -> FloatArray:
        t = self.block.tensors[tensor]
        whole = prod(self.setting.extent[dim] for dim in t.dims)
        width = DTYPE_BYTES[self.setting.precision.of(t.dtype)]
        parts = [
            prod(s for p, s in zip(layout, self.sizes, strict=True) if p.kind == "S")
            for layout in layouts
        ]
        return np.array([whole * width / part for part in parts])

    def _readers(self, tensor: str) -> list[tuple[int, list[Layout]]]:
        """Distinct (variable, layouts) in which backward reads a saved tensor."""
        readers: dict[tuple[int, tuple[Layout, ...]], None] = {}
        for op in self.block.backward:
            for position, name in enumerate(op.inputs):
                if name == tensor:
                    number, layouts = self._read(op, position)
                    readers[number, tuple(layouts)] = None
        return [(number, list(layouts)) for number, layouts in readers]

    def _saved(self) -> None:
        block = self.block
        if block.input and block.backward:
            number, home = self._home(block.input, gradient=False)
            self.add((number,), "MX", self._nbytes(block.input, home))
        for tensor in block.saved:
            if tensor in self.space.hubs:
                self._saved_hub(tensor)
            else:
                self._saved_between(tensor)

    def _saved_hub(self, tensor: str) -> None:
        """A hub waits at home or as its operator left it; readers fetch it from home."""
        home = self._home(tensor, gradient=False)
        for reader in self._readers(tensor):
            self._edge(tensor, home, reader, ("RG",))
        if tensor == self.block.input:
            return
        produced = self._produced(tensor)
        shape = (len(produced[1]), len(home[1]))
        values = np.zeros((2, COUNT, *shape))
        values[0, CHANNEL["MA"]] = self._nbytes(tensor, home[1])[None, :]
        values[1, CHANNEL["MA"]] = self._nbytes(tensor, produced[1])[:, None]
        values[1, CHANNEL["RG"]] = self._price(tensor, produced[1], home[1])
        partial = [any(p.kind == "P" for p in layout) for layout in produced[1]]
        values[1, CHANNEL["RG"], partial] = IMPOSSIBLE
        values[1, CHANNEL["MA"], partial] = IMPOSSIBLE

        def layout(option: int, index: tuple[int, ...]) -> Layout:
            return home[1][index[1]] if option == 0 else produced[1][index[0]]

        self._choose((produced[0], home[0]), values, ("saved", tensor, layout))

    def _saved_between(self, tensor: str) -> None:
        """Any other tensor waits as its operator left it, or as the reader needs it."""
        produced = self._produced(tensor)
        readers = self._readers(tensor)
        others = [r for r in readers if r[0] != produced[0]]
        own = [r[1] for r in readers if r[0] == produced[0]]
        if not others:
            self._saved_alone(tensor, produced, own)
            return
        other = others[0]
        values = np.zeros((2, COUNT, len(produced[1]), len(other[1])))
        values[0, CHANNEL["MA"]] = self._nbytes(tensor, produced[1])[:, None]
        values[0, CHANNEL["RG"]] = self._price(tensor, produced[1], other[1])
        values[1, CHANNEL["MA"]] = self._nbytes(tensor, other[1])[None, :]
        for layouts in own:
            direct = self._aligned(tensor, produced[1], layouts)
            values[0, CHANNEL["RG"]] += direct[:, None]
            values[1, CHANNEL["RG"]] += self._price(tensor, other[1], layouts).T
        partial = [any(p.kind == "P" for p in layout) for layout in produced[1]]
        values[0, CHANNEL["MA"], partial] = IMPOSSIBLE
        values[0, CHANNEL["RG"], partial] = IMPOSSIBLE

        def layout(option: int, index: tuple[int, ...]) -> Layout:
            return produced[1][index[0]] if option == 0 else other[1][index[1]]

        self._choose((produced[0], other[0]), values, ("saved", tensor, layout))

    def _saved_alone(
        self, tensor: str, produced: tuple[int, list[Layout]], own: list[list[Layout]]
    ) -> None:
        """Only the operator's own backward reads it: it waits as that reads it."""
        wanted = own[0] if own else produced[1]
        self.add(produced[:1], "MA", self._nbytes(tensor, wanted))

    def _aligned(
        self, tensor: str, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> FloatArray:
        """Price value by value of one variable."""
        return np.asarray(np.diagonal(self._price(tensor, sources, targets)))

    def _choose(
        self, scope: tuple[int, int], values: FloatArray, meaning: tuple[str, str, object]
    ) -> None:
        """Add a factor with options, its scope put in ascending order."""
        kind, name, layout = meaning
        if scope[0] > scope[1]:
            assert callable(layout)
            inner = layout

            def layout(option: int, index: tuple[int, ...]) -> Layout:
                return inner(option, index[::-1])  # type: ignore[no-any-return]

            values = values.transpose(0, 1, 3, 2)
            scope = (scope[1], scope[0])
        self._choosers.append(Chooser(scope, values, (kind, name, layout)))

    # --- parameters -----------------------------------------------------------------------------

    def _parameters(self) -> None:
        share = self._bucket_shares()
        for op in self.block.forward:
            for position, name in enumerate(op.inputs):
                if self.block.tensors[name].role == "parameter":
                    self._parameter(op, position, name, share[name])

    def _bucket_shares(self) -> dict[str, float]:
        """Share of a message's latency that each parameter bears: moves share messages."""
        tensors = self.block.tensors
        sizes = {
            name: float(prod(self.setting.extent[dim] for dim in tensors[name].dims))
            for name in self.block.parameters
        }
        total = sum(sizes.values())
        return {name: size / total for name, size in sizes.items()}

    def _parameter(self, op: Op, position: int, name: str, share: float) -> None:
        number, used = self._read(op, position)
        trainable = name in self.block.trainable
        raw = self._produced(GRADIENT + name)[1] if trainable else used
        dims = self.block.tensors[name].dims
        plain = fresh = np.zeros(len(used))
        if trainable:
            writer = self.block.producer[GRADIENT + name]
            fresh, added = self._seconds(writer), self._seconds(writer, accumulate=True)
            m = self.setting.micro_batches
            plain = (fresh + (m - 1) * added) / m
        columns, tables = [], []
        for index, (u, r) in enumerate(zip(used, raw, strict=True)):
            rows = self.setting.storage.options(name, dims, u, r, trainable)
            tables.append([stored for stored, _ in rows])
            vectors = np.array([vector for _, vector in rows])
            vectors = self.setting.storage.with_share(rows, vectors, share)
            reduced = np.array([stored.gradient != r for stored, _ in rows])
            vectors[:, CHANNEL["XB"]] += np.where(reduced, fresh[index], plain[index])
            columns.append(vectors)
        most = max(len(column) for column in columns)
        values = np.full((most, COUNT, len(used)), IMPOSSIBLE)
        for index, column in enumerate(columns):
            values[: len(column), :, index] = column
        self._choosers.append(Chooser((number,), values, ("stored", name, tables)))


def build_tables(space: BlockSpace, setting: Setting) -> BlockTables | None:
    """The factors of a block; None where pins or divisibility leave a variable without a value."""
    builder = _TableBuilder(space, setting)
    if any(len(domain) == 0 for domain in builder.domains):
        return None
    return builder.build()


__all__ = ["CHANNEL", "CHANNELS", "Block", "BlockTables", "Chooser", "Setting", "build_tables"]
