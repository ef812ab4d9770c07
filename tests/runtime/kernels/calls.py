"""Calls one kernel, and checks the laws of memory while doing so."""

from __future__ import annotations

import torch
from torch import Tensor

from autoplan.ir.program import Instr, Register
from autoplan.runtime.kernels import Place, StepContext, link

NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.int64: "int64"}
ALONE = Place((), ())


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def types(results) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(shape), NAMES[dtype]) for shape, dtype in results]


def run(op, operands, results, attrs=(), *, alias=None, place=ALONE, context=None):
    """Link and call; `results` are (shape, dtype) pairs; checks the laws of memory."""
    operands = list(operands)
    kinds = [(tuple(t.shape), NAMES[t.dtype]) for t in operands] + types(results)
    registers = [Register(f"r{i}", shape, dtype, "") for i, (shape, dtype) in enumerate(kinds)]
    ins = tuple(range(len(operands)))
    outs = tuple(range(len(operands), len(kinds)))
    alias = alias or (-1,) * len(outs)
    instr = Instr(op, ins, outs, tuple(dict(attrs).items()), tuple(alias))
    before = [t.clone() for t in operands]
    got = link(instr, registers, place)(context or StepContext(), operands)
    taken = {t.untyped_storage().data_ptr() for t in operands}
    for k, value in enumerate(got):
        assert tuple(value.shape) == registers[outs[k]].shape
        assert NAMES[value.dtype] == registers[outs[k]].dtype
        if alias[k] >= 0:
            assert value is operands[alias[k]]
            continue
        assert value.is_contiguous()
        assert value.untyped_storage().nbytes() == registers[outs[k]].nbytes
        assert value.untyped_storage().data_ptr() not in taken
        taken.add(value.untyped_storage().data_ptr())
    for k, (old, new) in enumerate(zip(before, operands, strict=True)):
        assert k in alias or torch.equal(old, new), "an operand was changed"
    return got


def like(*tensors: Tensor):
    return [(t.shape, t.dtype) for t in tensors]


def close(found, expected, limit=1e-12):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= limit * max(1.0, float(b.abs().max()))


def gradients(fn, inputs, cotangent):
    leaves = [t.clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(fn(*leaves), leaves, cotangent)


def with_accumulator(op, operands, expected, attrs=(), **more):
    """Run an accumulating operator both ways."""
    close(run(op, operands, like(expected), attrs, **more), [expected])
    total = rand(*expected.shape, seed=9)
    wanted = total + expected
    alias = (len(operands),)
    close(run(op, [*operands, total], like(total), attrs, alias=alias, **more), [wanted])
