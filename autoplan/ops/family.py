"""What an operator family declares, once: its dims, its gradient and its work.

Everything else follows. Along one mesh axis an operator either splits one of its dims (operands
that have the dim are `S`, others `B`; a result without it is partial), or does the same work on
every rank, or, if it is linear in its partial operands, lets `P` pass through. `signature` applies
that rule; no family writes placements by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol

from autoplan.errors import Refusal
from autoplan.ir.graph import Attrs, Block, Op, Tensor
from autoplan.ir.layout import B, P, Placement, S
from autoplan.ir.plan import Choice
from autoplan.ir.program import Instr, Register
from autoplan.ir.workload import DTYPE_BYTES

Dims = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What one instruction costs a device.

    Attributes:
        kind: "matmul", "attention", "attention_grad", "pointwise" (fusable), "loss" (streams
            logits), "optimizer" (streaming) or "optimizer_matmul".
        flops: FLOP on the matrix units (0 for streaming operators).
        nbytes: bytes moved between the device's memory and its cores.
        workspace: bytes of hidden temporaries: how far allocations peak above what is left when
            it returns. Measured per family by the allocator's profile (2026-11-29, torch 2.13, CPU,
            one thread); `tests/runtime/test_workspace.py` holds the declarations to it.
        rows: for matrix products the smallest of M, N, K (slivers are slower), else 0.
        plain_flops: of attention, FLOP of plain products over all scores, masked ones as well.
        score_bytes: of attention, what plain operators move of scores: each writes and reads them.
        kernels: that an eager framework launches for it.
        passes: bytes that these move over `nbytes`.
        cast_bytes: of a product in another dtype than its operands have, bytes moved to bring them
            into it.
    """

    kind: str
    flops: float
    nbytes: float
    workspace: float = 0.0
    rows: int = 0
    plain_flops: float = 0.0
    score_bytes: float = 0.0
    kernels: float = 1.0
    passes: float = 1.0
    cast_bytes: float = 0.0


WorkRule = Callable[[Instr, Sequence[Register], Sequence[Register]], Work]
"""(instruction, operand types, result types) -> Work."""


class Backward(Protocol):
    """What a family's gradient rule may use; `frontends.training` implements it."""

    def needed(self, tensor: str) -> bool:
        """Whether the gradient of an operand is wanted."""

    def emit(self, op: Op, family: str, inputs: Sequence[str], attrs: Attrs = ()) -> EmitResult:
        """Start a backward operator of `op`; the result names its outputs."""

    def pass_on(self, tensor: str, gradient: str) -> None:
        """The gradient of an operand is `gradient` itself, unchanged."""


class EmitResult(Protocol):
    """Names the outputs of a backward operator just started."""

    def gradients_of(self, *tensors: str) -> None:
        """Declare one output per operand: its gradient, with the operand's dims."""


GradientRule = Callable[[Op, Sequence[str], Backward], None]
"""(operator, names of the gradients of its outputs, builder): emits backward operators, or passes
an output's gradient on unchanged with `Backward.pass_on`."""


@dataclass(frozen=True)
class Family:
    """An operator family.

    Attributes:
        name: catalogue key, also the name of its instruction.
        whole: dims that no axis may split.
        whole_of: positions of operands all of whose dims are whole (the weight of a norm); results
            count on after operands here and in `renames`.
        renames: operand position -> {dim: dim in this operator} (attention reads keys along `t`,
            though they were produced along `s`).
        reductions: dim -> reduction of a result that lacks it; absent: `sum`.
        linear_in: operand positions that may be partial together, with a partial first result.
        accumulates: the instruction takes an accumulator as a last operand.
        work: (instruction, operand types, result types) -> Work; None: streams all its operands
            and results once.
        gradient: how backward operators are derived; None for families without one.
        eager: (kernels, passes) of an eager framework; see `Work`.
    """

    name: str
    whole: frozenset[str] = frozenset()
    whole_of: tuple[int, ...] = ()
    renames: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    reductions: Mapping[str, str] = field(default_factory=dict)
    linear_in: tuple[int, ...] = ()
    accumulates: bool = False
    work: WorkRule | None = None
    gradient: GradientRule | None = None
    eager: tuple[float, float] = (1.0, 1.0)

    def measure(self, instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
        """The work of an instruction of this family on local shapes."""
        work = self.work(instr, ins, outs) if self.work else streaming("pointwise", ins, outs)
        if self.eager == (1.0, 1.0):
            return work
        return replace(work, kernels=self.eager[0], passes=self.eager[1])

    def operand_dims(self, op: Op, tensors: Mapping[str, Tensor]) -> tuple[list[Dims], list[Dims]]:
        """Dims of operands and results as this operator sees them."""
        names = (*op.inputs, *op.outputs)
        dims = [
            tuple(self.renames.get(i, {}).get(dim, dim) for dim in tensors[name].dims)
            for i, name in enumerate(names)
        ]
        return dims[: len(op.inputs)], dims[len(op.inputs) :]

    def _whole(self, dims: Sequence[Dims]) -> frozenset[str]:
        """Dims that must stay whole, given those of operands and results."""
        return self.whole.union(*(dims[i] for i in self.whole_of))

    def choices(self, op: Op, tensors: Mapping[str, Tensor]) -> tuple[Choice, ...]:
        """Everything one axis may do to this operator."""
        ins, outs = self.operand_dims(op, tensors)
        whole = self._whole((*ins, *outs))
        split = [dim for dim in dict.fromkeys(sum((*ins, *outs), ())) if dim not in whole]
        return (None, *split, *(("P",) if self.linear_in else ()))

    def signature(
        self, op: Op, tensors: Mapping[str, Tensor], choice: Choice
    ) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
        """Placements of operands and results along one axis.

        A dim that the operator lacks means the same work on every rank (an operator tied to another
        one that has it).

        Raises:
            Refusal: the dim must stay whole, or P cannot pass.
        """
        ins, outs = self.operand_dims(op, tensors)
        if choice is None:
            return (B,) * len(ins), (B,) * len(outs)
        if choice == "P":
            if not self.linear_in:
                return (B,) * len(ins), (B,) * len(outs)
            operands = tuple(P() if i in self.linear_in else B for i in range(len(ins)))
            return operands, (P(), *(B,) * (len(outs) - 1))
        if not any(choice in dims for dims in (*ins, *outs)):
            return (B,) * len(ins), (B,) * len(outs)
        if choice in self._whole((*ins, *outs)):
            raise Refusal(f"{self.name} needs {choice} whole")
        operands = tuple(S(choice) if choice in dims else B for dims in ins)
        partial = P(self.reductions.get(choice, "sum"))
        return operands, tuple(S(choice) if choice in dims else partial for dims in outs)


def streaming(kind: str, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """Work of an operator that reads every operand and writes every result once."""
    return Work(kind, 0.0, float(sum(r.nbytes for r in (*ins, *outs))))


def elements(register: Register) -> int:
    """Number of elements of a register."""
    return prod(register.shape)


def narrow(register: Register) -> bool:
    """Whether kernels widen its values to fp32 before they compute statistics."""
    return DTYPE_BYTES[register.dtype] < DTYPE_BYTES["fp32"]


def exact_nbytes(register: Register) -> float:
    """Bytes of a register as kernels compute with it: in fp32 at least."""
    return float(elements(register) * max(DTYPE_BYTES[register.dtype], DTYPE_BYTES["fp32"]))


def streaming_with(wide: float, widened: float, kind: str = "pointwise") -> WorkRule:
    """Work of a streaming operator with temporaries.

    Args:
        wide: copies of its first operand in fp32 (fp64) that it keeps, where the data are as wide.
        widened: the same where the data have 16 bits: what is widened is a temporary, too.
        kind: of the work.
    """

    def work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
        copies = widened if narrow(ins[0]) else wide
        nbytes = streaming(kind, ins, outs).nbytes
        return Work(kind, 0.0, nbytes, copies * exact_nbytes(ins[0]))

    return work


def block_signature(
    family: Family, op: Op, block: Block, choices: Sequence[Choice]
) -> tuple[tuple[tuple[Placement, ...], ...], tuple[tuple[Placement, ...], ...]]:
    """Layouts of operands and results over all axes, in the names of the block's tensors.

    Returns:
        (a layout per operand, a layout per result).

    Raises:
        Refusal: as `Family.signature`.
    """
    per_axis = [family.signature(op, block.tensors, choice) for choice in choices]
    operands = tuple(tuple(axis[0][i] for axis in per_axis) for i in range(len(op.inputs)))
    results = tuple(tuple(axis[1][i] for axis in per_axis) for i in range(len(op.outputs)))
    return operands, results
