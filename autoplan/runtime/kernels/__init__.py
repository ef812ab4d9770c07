"""Kernels: what each instruction computes on a rank's local tensors.

`link(instr, registers, place)` resolves operator, attributes and shard offsets once and returns a
function from operands to results; the interpreter calls it many times. There is no autograd: the
backward of every operator is an operator with its own kernel (a local vjp would compute the forward
again, at 1.4 to 7 times the price).

Three laws let memory be counted exactly from the Program alone. A result that the instruction
declares in place (`Instr.alias`) *is* the operand's tensor. Every other result is fresh, contiguous
and fills its storage. Dims are merged with `view`, never `reshape`, so nothing is copied unasked.

Statistics (norms, log-sum-exps, softmax) are computed in fp32 at least, fp64 if the data are fp64.
Offsets into the whole tensor come from the `shard` attribute and the rank's `Place`; the first
sequence of a micro-batch from the `StepContext`.

One module a family: `linear` `norms` `pointwise` `rotary` `attention` `vocabulary` `optimizer`
`muon` `adafactor`.
`collective` holds the local parts of communication, which transports call themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoplan.errors import CheckError, nearest
from autoplan.ir.program import Instr, Register
from autoplan.runtime.kernels import (
    adafactor,
    attention,
    linear,
    muon,
    norms,
    optimizer,
    pointwise,
    rotary,
    vocabulary,
)
from autoplan.runtime.kernels.place import Kernel, Place, Site, StepContext

__all__ = ["KERNELS", "Kernel", "Place", "StepContext", "link"]

KERNELS: dict[str, Callable[[Site], Kernel]] = {
    **linear.KERNELS,
    **norms.KERNELS,
    **pointwise.KERNELS,
    **rotary.KERNELS,
    **attention.KERNELS,
    **vocabulary.KERNELS,
    **optimizer.KERNELS,
    **muon.KERNELS,
    **adafactor.KERNELS,
}
"""Operator -> builder of its kernel."""


def link(instr: Instr, registers: Sequence[Register], place: Place) -> Kernel:
    """The kernel of an instruction for one rank.

    Args:
        instr: any instruction but a collective.
        registers: the types of its segment's registers.
        place: the rank's position in its mesh.

    Raises:
        CheckError: no such operator, or it lacks an attribute.
    """
    builder = KERNELS.get(instr.op)
    if builder is None:
        raise CheckError(f"no kernel for operator `{instr.op}`; {nearest(instr.op, KERNELS)}")
    return builder(Site(instr, registers, place))
