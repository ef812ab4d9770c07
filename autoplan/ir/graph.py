"""The model as a graph of operators on tensors with named dims.

A model is a sequence of *instances* of a few distinct *blocks* (embedding, decoder layer, head).
Every tensor dim is a real storage dim: fused heads are stored as (g, r, d), weights as (out dims,
in dims), so that a split is always a slice along one storage dim.

Shape letters: b sequences, s positions, m model width, f feed-forward width, g key/value heads,
r query heads per key/value head, d head width, v vocabulary, p learned positions, c two statistics,
a rank of adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

Attrs = tuple[tuple[str, Any], ...]
GRADIENT = "d."


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a block.

    Attributes:
        name: unique in its block; the gradient of `x` is named `d.x`.
        dims: dim names in storage order; () is a scalar.
        role: "activation", "parameter", "gradient" (of an activation), "parameter_gradient",
            "feed" (ids, targets, positions, count: delivered by the loader).
        dtype: which dtype of the precision bundle it has: "compute", "statistic" (at least fp32),
            "index" (int64), "parameter", "gradient".
    """

    name: str
    dims: tuple[str, ...]
    role: str = "activation"
    dtype: str = "compute"

    def __str__(self) -> str:
        return f"{self.name}[{' '.join(self.dims)}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One operator of a block.

    Attributes:
        name: unique in its block.
        family: key into the catalogue `autoplan.ops.FAMILIES`.
        inputs: tensor names, in the family's operand order.
        outputs: tensor names, in the family's result order.
        attrs: the family's attributes as sorted (name, value) pairs.
        group: the layer operator it belongs to; all operators of a group, forward and backward,
            take the same split.
    """

    name: str
    family: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = ()
    group: str = ""

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value, or `default`."""
        return dict(self.attrs).get(name, default)

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {self.family}({', '.join(self.inputs)})"


@dataclass(frozen=True)
class Block:
    """A distinct block: forward operators, and backward ones once a training step is derived.

    Attributes:
        name: `embedding`, `layer`, `head`, or a variant such as `layer~frozen`.
        tensors: every tensor by name.
        forward: operators in execution order.
        backward: operators in execution order; empty before `training_step` and for a block that
            needs no backward.
        input: activation that comes from the previous block, or "" for the first.
        output: activation handed to the next block, or "" for the last.
        trainable: parameters that have a gradient, in order of definition.
        passes_gradient: whether backward produces `d.<input>`.
    """

    name: str
    tensors: Mapping[str, Tensor]
    forward: tuple[Op, ...]
    backward: tuple[Op, ...] = ()
    input: str = ""
    output: str = ""
    trainable: tuple[str, ...] = ()
    passes_gradient: bool = False

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Parameter names in order of definition."""
        return tuple(n for n, t in self.tensors.items() if t.role == "parameter")

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Layer operators in order of first use."""
        return tuple(dict.fromkeys(op.group for op in self.forward))

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Op, ...]]:
        """Forward operators that read each tensor."""
        table: dict[str, list[Op]] = {}
        for op in self.forward:
            for name in dict.fromkeys(op.inputs):
                table.setdefault(name, []).append(op)
        return {name: tuple(ops) for name, ops in table.items()}

    @cached_property
    def producer(self) -> Mapping[str, Op]:
        """The operator, forward or backward, that defines each tensor."""
        return {out: op for op in (*self.forward, *self.backward) for out in op.outputs}

    @cached_property
    def hubs(self) -> tuple[str, ...]:
        """Activations whose home layout is a decision of its own.

        These are the input, the output, and what several layer operators read.
        """
        names = []
        for name, tensor in self.tensors.items():
            if tensor.role != "activation":
                continue
            groups = {op.group for op in self.consumers.get(name, ())}
            if name in (self.input, self.output) or len(groups) > 1:
                names.append(name)
        return tuple(names)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """Forward activations that backward operators read, in order of definition."""
        used = {name for op in self.backward for name in op.inputs}
        return tuple(n for n, t in self.tensors.items() if t.role == "activation" and n in used)


def kind_of(block: str) -> str:
    """What a block is, whatever is frozen in it: `layer` for `layer` and its variant `layer~2`."""
    return block.split("~")[0]


@dataclass(frozen=True, slots=True)
class Instance:
    """One use of a block: its parameter `wq` under prefix `layers.3.` is `layers.3.wq`."""

    block: str
    prefix: str = ""


@dataclass(frozen=True)
class Graph:
    """A whole model.

    Attributes:
        name: the model's name.
        blocks: distinct blocks by name.
        instances: uses of blocks in execution order.
        extent: size of every dim but `b`, which the micro-batch fixes.
        init: per block-local parameter name the initialisation, ("normal", std) or ("constant", c).
    """

    name: str
    blocks: Mapping[str, Block]
    instances: tuple[Instance, ...]
    extent: Mapping[str, int]
    init: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> Mapping[str, tuple[str, str]]:
        """Full parameter name -> (block, local name) of its first use; tied ones stand once."""
        table: dict[str, tuple[str, str]] = {}
        for instance in self.instances:
            for local in self.blocks[instance.block].parameters:
                table.setdefault(instance.prefix + local, (instance.block, local))
        return table

    @cached_property
    def tied(self) -> Mapping[str, tuple[int, ...]]:
        """Full names of parameters with several uses -> indices of the instances that use them."""
        uses: dict[str, list[int]] = {}
        for index, instance in enumerate(self.instances):
            for local in self.blocks[instance.block].parameters:
                uses.setdefault(instance.prefix + local, []).append(index)
        return {name: tuple(indices) for name, indices in uses.items() if len(indices) > 1}

    def shape(self, block: str, tensor: str, batch: int = 1) -> tuple[int, ...]:
        """Global shape of a tensor with `batch` sequences."""
        extent = {**self.extent, "b": batch}
        return tuple(extent[dim] for dim in self.blocks[block].tensors[tensor].dims)

    @cached_property
    def parameters_total(self) -> int:
        """Exact number of parameters, tied ones counted once."""
        return sum(prod(self.shape(block, local)) for block, local in self.parameters.values())
