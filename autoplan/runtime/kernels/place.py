"""What a kernel is told: once, where it stands (`Site`); at every call, the `StepContext`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from autoplan.errors import CheckError
from autoplan.ir.program import Instr, Register

DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
}
"""torch's name of each dtype that a register may have."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's position in the mesh of its stage.

    Attributes:
        sizes: ranks along each axis, outermost first.
        coordinate: the rank's index along each axis.
    """

    sizes: tuple[int, ...]
    coordinate: tuple[int, ...]

    def index(self, axes: Sequence[int]) -> int:
        """Row-major index of the coordinate over `axes` (indices, in mesh order)."""
        index = 0
        for axis in axes:
            index = index * self.sizes[axis] + self.coordinate[axis]
        return index

    def parts(self, axes: Sequence[int]) -> int:
        """Number of ranks over `axes`."""
        return prod(self.sizes[axis] for axis in axes)


@dataclass(slots=True)
class StepContext:
    """Where in the step the interpreter is; it sets the fields, kernels read them.

    Attributes:
        step: index of the step, from 0.
        seed: of the run.
        micro_batch: index of the running action's micro-batch.
        instance: index of the running action's block instance.
        batch: sequences per micro-batch over the whole stage.
    """

    step: int = 0
    seed: int = 0
    micro_batch: int = 0
    instance: int = 0
    batch: int = 1


Kernel = Callable[[StepContext, Sequence[Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction with the types of its registers and the rank that executes it."""

    instr: Instr
    registers: Sequence[Register]
    place: Place

    def attr(self, name: str) -> Any:
        """An attribute that the operator must have; CheckError without it."""
        for key, value in self.instr.attrs:
            if key == name:
                return value
        raise CheckError(f"instruction `{self.instr.op}` lacks the attribute `{name}`")

    def operand(self, k: int) -> tuple[int, ...]:
        """Local shape of operand k."""
        return self.registers[self.instr.ins[k]].shape

    def result(self, k: int = 0) -> tuple[int, ...]:
        """Local shape of result k."""
        return self.registers[self.instr.outs[k]].shape

    def dtype(self, k: int = 0) -> torch.dtype:
        """The dtype of result k."""
        return DTYPES[self.registers[self.instr.outs[k]].dtype]

    def region(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(global sizes, offsets) of a local shape under the `shard` attribute."""
        sizes, offsets = list(shape), [0] * len(shape)
        for dim, axes in self.instr.attr("shard", ()):
            sizes[dim] = shape[dim] * self.place.parts(axes)
            offsets[dim] = shape[dim] * self.place.index(axes)
        return tuple(sizes), tuple(offsets)


def statistic(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which statistics of values of `dtype` are computed: at least fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def owned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is strided or its storage is larger than itself.

    Memory is counted from shapes alone, so a result must fill exactly one buffer of its own.
    """
    exact = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if exact else tensor.clone(memory_format=torch.contiguous_format)


def accumulating(site: Site, arity: int, value: Callable[[Sequence[Tensor]], Tensor]) -> Kernel:
    """A kernel with one result, that adds it to its accumulator if it has one.

    Args:
        site: the instruction; an operand beyond `arity` is the accumulator.
        arity: operands of `value`.
        value: fresh result from the operands.
    """
    dtype = site.dtype()

    def define(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (value(operands).to(dtype),)

    def add(_: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        operands[arity].add_(value(operands))
        return (operands[arity],)

    return define if len(site.instr.ins) == arity else add
