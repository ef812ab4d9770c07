"""Matrix products: `b s m, o m -> b s o`, contracting the dims that operand and weight share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from autoplan.ir.graph import Attrs, Op, Tensor
from autoplan.ir.program import Instr, Register
from autoplan.ir.workload import DTYPE_BYTES, Precision
from autoplan.ops.family import Backward, Family, Work, elements


def _product(left: Register, right: Register, out: Register) -> Work:
    """M N K from element counts: |left|·|right|·|out| = (M N K)²; FLOP = 2 M N K.

    Source: the count of multiply-adds of a dense matrix product.
    """
    a, b, c = prod(left.shape), prod(right.shape), prod(out.shape)
    mnk = (a * b * c) ** 0.5
    rows = int(round(min(mnk / a, mnk / b, mnk / c))) if mnk else 0
    return Work("matmul", 2.0 * mnk, float(left.nbytes + right.nbytes + out.nbytes), rows=rows)


def _cast_bytes(instr: Instr, registers: Sequence[Register], copies: int) -> float:
    """Bytes moved to read tensors and to write them in the product's own dtype, if it has one.

    Source: Transformer Engine and torchao.float8 cast an activation, a weight and the gradient of
    an activation once each; of what the weight's gradient needs as well they write a transposed
    copy at the same time.
    """
    moved = 0.0
    for register in registers:
        dtype = instr.attr("product", register.dtype)
        if dtype != register.dtype:
            moved += register.nbytes + copies * elements(register) * DTYPE_BYTES[dtype]
    return moved


def _forward_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    x, weight = ins
    cast = _cast_bytes(instr, [x], 2) + _cast_bytes(instr, [weight], 1)
    return replace(_product(x, weight, outs[0]), cast_bytes=cast)


def _input_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    return replace(_product(ins[0], ins[1], outs[0]), cast_bytes=_cast_bytes(instr, ins[:1], 2))


def _weight_work(instr: Instr, ins: Sequence[Register], outs: Sequence[Register]) -> Work:
    """An accumulator is read as well; where its dtype is not the product's, the product is a
    temporary, widened before it is added.
    """
    work, accumulator = _product(ins[0], ins[1], outs[0]), ins[2:]
    moved = work.nbytes + sum(r.nbytes for r in accumulator)
    workspace = 0.0
    if ins[0].dtype != outs[0].dtype:
        widened = sum(r.nbytes for r in accumulator)
        workspace = float(elements(outs[0]) * DTYPE_BYTES[ins[0].dtype] + widened)
    return replace(work, nbytes=moved, workspace=workspace)


def _gradient(op: Op, d_outputs: Sequence[str], backward: Backward) -> None:
    x, w = op.inputs
    (dy,) = d_outputs
    if backward.needed(x):
        backward.emit(op, "linear_dx", (dy, w), op.attrs).gradients_of(x)
    if backward.needed(w):
        backward.emit(op, "linear_dw", (x, dy), op.attrs).gradients_of(w)


PRODUCTS = ("linear", "linear_dx", "linear_dw")


def product_attrs(op: Op, tensors: Mapping[str, Tensor], precision: Precision) -> Attrs:
    """The attribute `product` where a matrix product does not run in the dtype of its operands.

    In fp8 that is so for every hidden weight; the output head stays as wide as activations are.
    Source: DeepSeek-V3 technical report, section 3.3.1; Transformer Engine in Megatron.
    """
    if op.family not in PRODUCTS or precision.compute == precision.of("compute"):
        return ()
    hidden = all("v" not in tensors[name].dims for name in (*op.inputs, *op.outputs))
    return (("product", precision.compute),) if hidden else ()


FAMILIES = (
    Family("linear", work=_forward_work, gradient=_gradient),
    Family("linear_dx", work=_input_work),
    Family("linear_dw", work=_weight_work, accumulates=True),
)
