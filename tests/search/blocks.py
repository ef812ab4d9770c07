"""Random small blocks, and their best decisions by two ways that are not elimination."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_matrix

from autoplan.cost import Pricer
from autoplan.frontends import derive_backward
from autoplan.ir.graph import Attrs, Block, Op, Tensor
from autoplan.ir.layout import Axis, Mesh
from autoplan.ir.machine import Level
from autoplan.ir.workload import PRECISIONS, Optimizer
from autoplan.search.build import TableBuilder
from autoplan.search.eliminate import Factor
from autoplan.search.prices import OperatorPrices, Transitions
from autoplan.search.setting import Setting
from autoplan.search.space import BlockSpace
from autoplan.search.storage import StorageOptions
from autoplan.search.tables import CHANNEL, BlockTables
from tests.search.cases import FREE, HYPER, machine, stack

LEGAL = 1e9
"""Weighted seconds that no legal decision costs; see `search.prices.IMPOSSIBLE`."""
MILLI = 1e3
"""Solvers have absolute tolerances, so they are given milliseconds."""


class _Writer:
    """Forward operators of a block whose activations have width `m` or `f`."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.tensors = {"x": Tensor("x", ("b", "s", "m"))}
        self.ops: list[Op] = []
        self.widths = {"m": ["x"], "f": []}

    def result(self, name: str, width: str) -> str:
        self.tensors[name] = Tensor(name, ("b", "s", width))
        self.widths[width].append(name)
        return name

    def op(
        self, family: str, ins: tuple[str, ...], outs: tuple[str, ...], attrs: Attrs = ()
    ) -> None:
        self.ops.append(Op(outs[0], family, ins, outs, attrs, outs[0]))

    def linear(self, name: str, source: str, width: str) -> None:
        weight = "w_" + name
        inner = self.tensors[source].dims[-1]
        self.tensors[weight] = Tensor(weight, (width, inner), "parameter", "parameter")
        self.op("linear", (source, weight), (self.result(name, width),), (("contract", 1),))

    def norm(self, name: str, source: str) -> None:
        width = self.tensors[source].dims[-1]
        self.tensors[name + ".w"] = Tensor(name + ".w", (width,), "parameter", "parameter")
        self.tensors[name + ".rstd"] = Tensor(name + ".rstd", ("b", "s"), dtype="statistic")
        attrs = (("eps", 1e-6), ("offset", 0.0))
        outs = (self.result(name, width), name + ".rstd")
        self.op("rms_norm", (source, name + ".w"), outs, attrs)

    def layer(self, name: str) -> None:
        """One more layer operator, on what there is."""
        rng = self.rng
        width = rng.choice([w for w, names in self.widths.items() if names])
        names = self.widths[width]
        family = rng.choice(("linear", "linear", "norm", "activation", "pair"))
        if family == "linear":
            self.linear(name, rng.choice(names), rng.choice("mf"))
        elif family == "norm":
            self.norm(name, rng.choice(names))
        elif family == "activation" or len(names) < 2:
            source = rng.choice(names)
            self.op("activation", (source,), (self.result(name, width),), (("activation", "silu"),))
        else:
            pair = rng.choice(("add", "gated"))
            sources = tuple(rng.sample(names, 2))
            attrs = (("activation", "silu"),) if pair == "gated" else ()
            self.op(pair, sources, (self.result(name, width),), attrs)


def random_block(rng: Random, layers: int) -> Block:
    """A trained block of so many layer operators; the last gives its output."""
    writer = _Writer(rng)
    for number in range(layers - 1):
        writer.layer(f"t{number}")
    writer.linear("y", writer.ops[-1].outputs[0] if writer.ops else "x", "m")
    wanted, ops = {"y"}, []
    for op in reversed(writer.ops):  # what does not lead to the output has no gradient
        if wanted.intersection(op.outputs):
            wanted.update((*op.inputs, *op.outputs))
            ops.insert(0, op)
    tensors = {name: tensor for name, tensor in writer.tensors.items() if name in wanted}
    block = Block("layer", tensors, tuple(ops), input="x", output="y")
    return derive_backward(block, frozenset(block.parameters), input_needed=True)


def block_tables(rng: Random, block: Block, sizes: Sequence[int], batch: int = 4) -> BlockTables:
    """The factors of a block on a machine with one link."""
    level = Level("gpu", int(np.prod(sizes)), 10 ** rng.uniform(7.5, 9.5), rng.choice((0.0, 1e-6)))
    pricer = Pricer(machine(level), stack())
    extent = {"b": batch, "s": 8, "m": 8, "f": 16}
    axes = [Axis(f"gpu.{i}", size, int(np.prod(sizes[i + 1 :]))) for i, size in enumerate(sizes)]
    kinds = PRECISIONS["bf16_mixed"], Optimizer("adamw", HYPER)
    prices, transitions = (
        OperatorPrices(pricer, kinds[0], extent),
        Transitions(pricer, Mesh(tuple(axes))),
    )
    storage = StorageOptions(prices, transitions, extent, kinds, FREE.stored, CHANNEL)
    setting = Setting(
        extent, rng.randint(1, 4), prices, transitions, storage, *kinds, lambda *_: True
    )
    tables = TableBuilder(BlockSpace(block, len(sizes)), setting).build()
    assert tables is not None
    return tables


def factors(tables: BlockTables, weights: np.ndarray) -> list[Factor]:
    """The tables with options folded one by one."""
    result = []
    for chooser in tables.choosers:
        options = [
            np.tensordot(weights, chooser.values[:, i], 1) for i in range(chooser.values.shape[1])
        ]
        least = options[0]
        for option in options[1:]:
            least = np.minimum(least, option)
        result.append(Factor(chooser.scope, least))
    return result


def by_brute_force(sizes: Sequence[int], parts: Sequence[Factor]) -> float:
    """The least sum over all assignments, all at once."""
    total = np.zeros(sizes)
    for part in parts:
        shape = [size if v in part.scope else 1 for v, size in enumerate(sizes)]
        total += part.table.reshape(shape)
    return float(total.min())


def by_milp(sizes: Sequence[int], parts: Sequence[Factor]) -> float:
    """The least sum as an integer programme: a column per value, and per pair of a factor's values.

    The columns of a factor sum, along each of its variables, to that variable's values.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)])
    cost = [np.zeros(size) for size in sizes]
    pairs: dict[tuple[int, ...], np.ndarray] = {}
    for part in parts:
        if len(part.scope) == 1:
            cost[part.scope[0]] = cost[part.scope[0]] + part.table
        else:
            pairs[part.scope] = pairs.get(part.scope, 0.0) + part.table
    columns, count = [*cost], int(starts[-1])
    rows: list[tuple[int, int, float]] = [
        (variable, column, 1.0)
        for variable, size in enumerate(sizes)
        for column in range(starts[variable], starts[variable] + size)
    ]
    right, row = [1.0] * len(sizes), len(sizes)
    for (a, b), table in pairs.items():
        for axis, variable in ((0, a), (1, b)):
            for value in range(sizes[variable]):
                cells = np.arange(table.size).reshape(table.shape).take(value, axis=axis)
                rows += [(row, count + int(cell), 1.0) for cell in cells]
                rows.append((row, int(starts[variable]) + value, -1.0))
                right.append(0.0)
                row += 1
        columns.append(table.ravel())
        count += table.size
    objective = np.concatenate(columns)
    legal = objective < LEGAL
    i, j, v = (np.array(part) for part in zip(*rows, strict=True))
    constraint = LinearConstraint(coo_matrix((v, (i, j)), (row, count)).tocsr(), right, right)
    integral = np.zeros(count)
    integral[: int(starts[-1])] = 1
    found = milp(
        np.where(legal, objective, 0.0) * MILLI, constraints=constraint, integrality=integral,
        bounds=(0, np.where(legal, 1.0, 0.0)), options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    assert found.success, found.message
    return float(found.fun) / MILLI
