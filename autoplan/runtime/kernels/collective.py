"""The local part of collectives: what a member sends to each other, what it makes of what came.

`piece` and `join` are the only definition: a result is `join` of the pieces of all members in group
order. A transport that sees all operands uses `local_result` or `group_results`; one that exchanges
messages sends `outgoing`, receives as many bytes from each member as it sent to it, and calls
`incoming` (or lets `exchanged_result` do all of it). Hence both give the same bits: a reduction is
the sum in group order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from autoplan.ir.program import Instr

Exchange = Callable[[list[Tensor]], list[Tensor]]
"""An all-to-all: flat byte buffers, one for each member, to those that came, of the same sizes."""

TWO_PHASE_BYTES = 1 << 16
"""A sum of more bytes is scattered, then gathered: 2 instead of n - 1 times its bytes travel.
[empirical: the all-gather form loses from about this size on gloo]"""


def piece(instr: Instr, k: int, operand: Tensor, member: int, members: int) -> Tensor:
    """What `member` needs of one member's operand k: a view of it."""
    if instr.op in ("all_gather", "all_reduce"):
        return operand
    dim = instr.attr("dims")[k]
    dim = dim[1] if instr.op == "all_to_all" else dim
    length = operand.shape[dim] // members
    return operand.narrow(dim, member * length, length)


def join(instr: Instr, k: int, pieces: Sequence[Tensor]) -> Tensor:
    """Result k from the pieces of all members in group order: a fresh contiguous tensor."""
    if instr.op == "all_gather":
        return torch.cat(tuple(pieces), instr.attr("dims")[k])
    if instr.op == "all_to_all":
        return torch.cat(tuple(pieces), instr.attr("dims")[k][0])
    return _softmax_merge(pieces) if instr.attr("reduction") == "softmax" else _sum(pieces)


def _sum(pieces: Sequence[Tensor]) -> Tensor:
    total = pieces[0].clone(memory_format=torch.contiguous_format)
    for other in pieces[1:]:
        total.add_(other)
    return total


def _softmax_merge(pieces: Sequence[Tensor]) -> Tensor:
    """Merge stats[... 2]: log-sum-exps as such, target logits by sum."""
    lse = reduce(torch.logaddexp, (part[..., 0] for part in pieces))
    return torch.stack((lse, _sum([part[..., 1] for part in pieces])), -1)


def local_result(
    instr: Instr, index: int, operands: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """Results for member `index`, given the operands of every member in group order."""
    members = len(operands)
    return tuple(
        join(instr, k, [piece(instr, k, own[k], index, members) for own in operands])
        for k in range(len(operands[index]))
    )


def group_results(
    instr: Instr, operands: Sequence[Sequence[Tensor]]
) -> tuple[tuple[Tensor, ...], ...]:
    """`local_result` of every member; what all members share is computed once and copied."""
    members = range(len(operands))
    if instr.op not in ("all_gather", "all_reduce"):
        return tuple(local_result(instr, index, operands) for index in members)
    first = local_result(instr, 0, operands)
    return (first, *(tuple(t.clone() for t in first) for _ in members[1:]))


def _pack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors' bytes, one after the other."""
    flats = [t.contiguous().view(-1).view(torch.uint8) for t in tensors]
    return torch.cat(flats) if len(flats) > 1 else flats[0]


def _unpack(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `_pack`, given tensors of the same shapes and dtypes."""
    tensors, start = [], 0
    for model in like:
        part = flat[start : start + model.nbytes]
        if start % model.element_size():
            part = part.clone()  # a view as a wider dtype must start on its boundary
        tensors.append(part.view(model.dtype).view(model.shape))
        start += model.nbytes
    return tensors


def outgoing(instr: Instr, operands: Sequence[Tensor], members: int) -> list[Tensor]:
    """One flat byte buffer for each member, in group order; what all need is one shared buffer."""
    if instr.op in ("all_gather", "all_reduce"):
        return [_pack(operands)] * members
    return [
        _pack([piece(instr, k, t, member, members) for k, t in enumerate(operands)])
        for member in range(members)
    ]


def incoming(
    instr: Instr, index: int, flats: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Results of member `index` from the buffers that each member sent it, in group order.

    Args:
        instr: the collective.
        index: this member's place in the group.
        flats: what came; its own entry included.
        operands: this member's own, for shapes and dtypes.
    """
    members = len(flats)
    like = [piece(instr, k, t, index, members) for k, t in enumerate(operands)]
    received = [_unpack(flat, like) for flat in flats]
    return tuple(join(instr, k, [own[k] for own in received]) for k in range(len(operands)))


def exchanged_result(
    instr: Instr, index: int, operands: Sequence[Tensor], members: int, exchange: Exchange
) -> tuple[Tensor, ...]:
    """The collective by all-to-alls alone; large sums in two, with the same bits.

    Args:
        instr: the collective.
        index: this member's place in the group.
        operands: this member's.
        members: size of the group.
        exchange: the transport's all-to-all.
    """
    summed = instr.op == "all_reduce" and instr.attr("reduction") != "softmax"
    large = sum(t.nbytes for t in operands) > TWO_PHASE_BYTES
    if members > 2 and summed and large and len({t.dtype for t in operands}) == 1:
        return _two_phase_sum(operands, members, exchange)
    return incoming(instr, index, exchange(outgoing(instr, operands, members)), operands)


def _two_phase_sum(
    operands: Sequence[Tensor], members: int, exchange: Exchange
) -> tuple[Tensor, ...]:
    """Sum in group order: each member sums its part of all elements, then all parts go to all."""
    flat = torch.cat([t.view(-1) for t in operands])
    share = -(-len(flat) // members)
    padded = torch.nn.functional.pad(flat, (0, share * members - len(flat)))
    parts = exchange([part.view(torch.uint8) for part in torch.split(padded, share)])
    total = _sum([part.view(flat.dtype) for part in parts])
    whole = torch.cat(exchange([total.view(torch.uint8)] * members)).view(flat.dtype)
    sizes = [t.numel() for t in operands]
    pieces = torch.split(whole[: len(flat)], sizes)
    return tuple(p.clone().view(t.shape) for p, t in zip(pieces, operands, strict=True))
