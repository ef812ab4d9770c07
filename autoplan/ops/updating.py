"""What updating one parameter consists of: computing on pieces of it, and moves between layouts.

    elementwise    adamw adamw_8bit lion sgd: one operator on this rank's shard
    adafactor      means of squares over columns and over rows are partial along axes that split
                   what they run over: summed; so are three sums over all elements
    muon           momentum on the shard; its matrix is gathered, made orthogonal by every rank
                   alike, and sliced again

So every optimizer runs on any shard of its parameters and states, and what it needs whole is a move
like any other: lowering emits the steps, searching prices them, and no layout is special.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from autoplan.ir.graph import Attrs, Block
from autoplan.ir.layout import B, Layout, P, local_shape
from autoplan.ir.optimizer import BLOCK_OF_8_BITS, UPDATES, State
from autoplan.ir.program import Register
from autoplan.ir.workload import Optimizer, Precision

Dims = tuple[str, ...]
MATCHED_RMS = 0.2
"""RMS of an AdamW step, which an orthogonal matrix is scaled to. Source: Liu et al. 2025, Muon is
scalable, equation 4."""
MASTER = "master"
"""Name of the copy that the optimizer updates where the parameter is its rounding."""


@dataclass(frozen=True, slots=True)
class Form:
    """What an optimizer sees in a parameter.

    Attributes:
        kind: one of `ir.optimizer.KINDS`.
        outer: how many of its dims are rows.
    """

    kind: str
    outer: int = 0


def form_of(block: Block, parameter: str) -> Form:
    """The form of a parameter: how the block's first reader uses it."""
    for op in block.forward:
        if op.family == "embedding" and op.inputs[1] == parameter:
            return Form("table", 1)
        if op.family == "linear" and op.inputs[1] == parameter:
            dims = block.tensors[parameter].dims
            return Form("table" if "v" in dims else "matrix", len(dims) - op.attr("contract"))
    return Form("vector")


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of an update as one rank holds it.

    Attributes:
        name: `parameter`, `gradient`, `factor`, a state, `master`, or what a step makes.
        dims: dim names in storage order.
        layout: how it is cut.
        dtype: a key of `DTYPE_BYTES`.
        block: one value per so many elements of the local part; 0 for one per element.
    """

    name: str
    dims: Dims
    layout: Layout
    dtype: str
    block: int = 0

    def register(self, sizes: Sequence[int], extent: Mapping[str, int]) -> Register:
        """Its type on a mesh of these sizes."""
        shape = local_shape(self.dims, self.layout, sizes, extent)
        if self.block:
            shape = (ceil(prod(shape) / self.block),)
        return Register(self.name, shape, self.dtype, "optimizer")


@dataclass(frozen=True, slots=True)
class Compute:
    """An instruction of an update.

    Attributes:
        family: its operator.
        ins: operands.
        changes: operands that it updates in place, its first results.
        makes: further results.
        attrs: of the instruction.
    """

    family: str
    ins: tuple[Piece, ...]
    changes: tuple[Piece, ...] = ()
    makes: tuple[Piece, ...] = ()
    attrs: Attrs = ()


@dataclass(frozen=True, slots=True)
class Move:
    """A piece's change of layout."""

    piece: Piece
    target: Layout


Steps = tuple[Compute | Move, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to update one parameter on a rank's shard.

    Attributes:
        parameter, gradient, factor: what is there to begin with.
        states: what the update remembers, a master copy last.
        steps: in order; the parameter is changed by the last.
    """

    parameter: Piece
    gradient: Piece
    factor: Piece
    states: tuple[Piece, ...]
    steps: Steps


@dataclass(frozen=True, slots=True)
class Policy:
    """What all updates of a step share.

    Attributes:
        optimizer, precision: of the workload.
        extent: global sizes of dims.
    """

    optimizer: Optimizer
    precision: Precision
    extent: Mapping[str, int]


def factor_dims(precision: Precision) -> Dims:
    """Dims of the factor on gradients: alone, or beside the number of steps taken so far."""
    return ("c",) if precision.scales_loss else ()


def recipe(policy: Policy, form: Form, dims: Dims, layout: Layout) -> Recipe:
    """How to update a parameter.

    Args:
        policy: optimizer, dtypes, sizes.
        form: what the optimizer sees in it.
        dims: of the parameter.
        layout: of its optimizer state.
    """
    precision = policy.precision
    update = policy.optimizer.rule.update(form.kind)
    cut = _Cut(dims, form.outer, layout)
    parameter = Piece("parameter", dims, layout, precision.parameter)
    gradient = Piece("gradient", dims, layout, precision.gradient)
    whole = (B,) * len(layout)
    factor = Piece("factor", factor_dims(precision), whole, precision.of("statistic"))
    states = [cut.state(state, precision) for state in UPDATES[update].states]
    if precision.master != precision.parameter:
        states.append(Piece(MASTER, dims, layout, precision.master))
    start = Recipe(parameter, gradient, factor, tuple(states), ())
    settings = policy.optimizer.settings
    hyper = tuple(sorted((key, settings[key]) for key in UPDATES[update].hyper))
    if update == "muon":
        return replace(start, steps=_muon(policy, cut, start, hyper))
    if update.startswith("adafactor"):
        return replace(start, steps=_adafactor(policy, cut, start, hyper))
    operands = (parameter, gradient, factor, *states)
    return replace(start, steps=(Compute(update, operands, (parameter, *states), (), hyper),))


@dataclass(frozen=True, slots=True)
class _Cut:
    """A parameter as rows by columns, and how its layout cuts them."""

    dims: Dims
    outer: int
    layout: Layout

    @property
    def rows(self) -> Dims:
        return self.dims[: self.outer]

    @property
    def columns(self) -> Dims:
        return self.dims[self.outer :]

    def kept(self, dims: Dims) -> Layout:
        """The layout of what has only these dims and is the same along every other axis."""
        return tuple(p if p.kind == "S" and p.name in dims else B for p in self.layout)

    def summed(self, dims: Dims) -> Layout:
        """The layout of local sums over every dim but these."""
        return tuple(p if p.kind != "S" or p.name in dims else P() for p in self.layout)

    def state(self, state: State, precision: Precision) -> Piece:
        dtype = precision.optimizer if state.dtype == "optimizer" else state.dtype
        block = BLOCK_OF_8_BITS if state.over == "blocks" else 0
        dims = {"rows": self.rows, "columns": self.columns}.get(state.over, self.dims)
        return Piece(state.name, dims, self.kept(dims), dtype, block)


def _split(start: Recipe) -> tuple[Piece, tuple[Piece, ...]]:
    """What the optimizer updates (a master copy, or the parameter), and all it changes with it."""
    master = tuple(s for s in start.states if s.name == MASTER)
    return (master or (start.parameter,))[0], (start.parameter, *master)


def _muon(policy: Policy, cut: _Cut, start: Recipe, hyper: Attrs) -> Steps:
    """Momentum, gather, orthogonalise, slice, apply."""
    extent, precision = policy.extent, policy.precision
    sides = [prod(extent[dim] for dim in dims) for dims in (cut.rows, cut.columns)]
    scale = MATCHED_RMS * max(sides) ** 0.5
    _, changes = _split(start)
    momentum, whole = start.states[0], (B,) * len(cut.layout)
    direction = Piece("direction", cut.dims, cut.layout, precision.of("compute"))
    orthogonal = replace(direction, name="orthogonal", layout=whole)
    sliced = replace(orthogonal, layout=cut.layout)
    named = dict(hyper)
    apply = (("lr", named["lr"]), ("scale", scale), ("weight_decay", named["weight_decay"]))
    return (
        Compute(
            "muon_momentum", (start.gradient, start.factor, momentum), (momentum,), (direction,),
            (("momentum", named["momentum"]),),
        ),
        Move(direction, whole),
        Compute(
            "orthogonalise", (replace(direction, layout=whole),), (), (orthogonal,),
            (("outer", cut.outer),),
        ),
        Move(orthogonal, cut.layout),
        Compute("muon", (start.parameter, sliced, start.factor, *changes[1:]), changes, (), apply),
    )  # fmt: skip


def _adafactor(policy: Policy, cut: _Cut, start: Recipe, hyper: Attrs) -> Steps:
    """Means of squares of rows and columns, sums over all elements, apply.

    A parameter that is no matrix skips the means: its state has a value per element.
    """
    extent, statistic = policy.extent, policy.precision.of("statistic")
    value, changes = _split(start)
    states = tuple(state for state in start.states if state.name != MASTER)
    counts = tuple(prod(extent[dim] for dim in dims) for dims in (cut.rows, cut.columns))
    attrs = (*hyper, ("counts", counts))
    means: list[Piece] = []
    steps: list[Compute | Move] = []
    if cut.outer:
        parts = [
            Piece(name, dims, cut.summed(dims), statistic)
            for name, dims in (("row_means", cut.rows), ("column_means", cut.columns))
        ]
        means = [replace(p, layout=cut.kept(p.dims)) for p in parts]
        steps.append(
            Compute("adafactor_means", (start.gradient, start.factor), (), tuple(parts),
                    (("counts", counts), ("outer", cut.outer)))
        )  # fmt: skip
        steps += [Move(part, mean.layout) for part, mean in zip(parts, means, strict=True)]
    locals_ = [
        Piece(name, (), cut.summed(()), statistic) for name in ("parameter_sum", "scale_sum", "sum")
    ]
    whole = (B,) * len(cut.layout)
    sums = tuple(replace(piece, layout=whole) for piece in locals_)
    outer = ("outer", cut.outer)
    operands = (start.gradient, start.factor, value, *states, *means)
    steps.append(Compute("adafactor_sums", operands, states, tuple(locals_), (*attrs, outer)))
    steps += [Move(piece, whole) for piece in locals_]
    operands = (start.parameter, start.gradient, start.factor, *states, *sums, *changes[1:])
    steps.append(Compute("adafactor", operands, changes, (), (*attrs, outer)))
    return tuple(steps)
