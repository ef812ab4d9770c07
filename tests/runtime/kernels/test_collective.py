"""Laws: collectives by messages give the bits of collectives by sight, and mean what they say."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from autoplan.ir.program import Instr
from autoplan.runtime.kernels.collective import (
    exchanged_result,
    group_results,
    incoming,
    local_result,
    outgoing,
)
from tests.runtime.kernels.calls import close, rand

SUM = ("reduction", "sum")
COLLECTIVES = [
    Instr("all_gather", (0, 1), (2, 3), (("axes", (0,)), ("dims", (1, 0)))),
    Instr("reduce_scatter", (0, 1), (2, 3), (("axes", (0,)), ("dims", (1, 0)), SUM)),
    Instr("all_reduce", (0, 1), (2, 3), (("axes", (0,)), SUM)),
    Instr("all_reduce", (0, 1), (2, 3), (("axes", (0,)), ("reduction", "softmax"))),
    Instr("all_to_all", (0, 1), (2, 3), (("axes", (0,)), ("dims", ((0, 1), (1, 0))))),
]  # fmt: skip


def exchange_all(buffers):
    """What an all-to-all gives each member."""
    return [[row[me] for row in buffers] for me in range(len(buffers))]


@pytest.mark.parametrize("instr", COLLECTIVES, ids=lambda i: f"{i.op}-{i.attr('reduction')}")
@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("second", [torch.float32, torch.bfloat16])
def test_collectives_by_messages_have_the_bits_of_collectives_by_sight(instr, members, second):
    shape = (6, 6, 2)
    operands = [
        (rand(*shape, seed=i), rand(*shape, seed=9 + i, dtype=second)) for i in range(members)
    ]
    expected = [local_result(instr, i, operands) for i in range(members)]
    came = exchange_all([outgoing(instr, own, members) for own in operands])
    for i, results in enumerate(group_results(instr, operands)):
        by_message = incoming(instr, i, came[i], operands[i])
        for a, b, c in zip(expected[i], results, by_message, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)
            assert a.dtype == b.dtype == c.dtype
            for value in (a, b, c):
                assert value.is_contiguous()
                assert value.untyped_storage().nbytes() == value.nbytes


def test_collectives_mean_what_they_say():
    n = range(3)
    operands = [(rand(6, 3, 2, seed=i),) for i in n]
    whole = [own[0] for own in operands]
    gather, scatter, reduce, softmax, exchange = (
        Instr(i.op, (0,), (1,), tuple((k, v[:1] if k == "dims" else v) for k, v in i.attrs))
        for i in COLLECTIVES
    )
    total = whole[0] + whole[1] + whole[2]
    for i in n:
        assert torch.equal(local_result(gather, i, operands)[0], torch.cat(whole, 1))
        assert torch.equal(local_result(scatter, i, operands)[0], total[:, i : i + 1])
        assert torch.equal(local_result(reduce, i, operands)[0], total)
        merged = local_result(softmax, i, operands)[0]
        close([merged[..., 1]], [total[..., 1]])
        close([merged[..., 0]], [torch.stack(whole)[..., 0].logsumexp(0)])
        moved = torch.cat([t[:, i : i + 1] for t in whole], 0)
        assert torch.equal(local_result(exchange, i, operands)[0], moved)


class Switch:
    """An all-to-all between threads."""

    def __init__(self, members: int) -> None:
        self.barrier = threading.Barrier(members)
        self.sent: dict[int, list[Tensor]] = {}
        self.rounds = 0

    def exchange(self, me: int, flats: list[Tensor]) -> list[Tensor]:
        self.sent[me] = flats
        if self.barrier.wait() == 0:
            self.rounds += 1
        came = [self.sent[other][me] for other in sorted(self.sent)]
        self.barrier.wait()
        assert [t.nbytes for t in came] == [t.nbytes for t in flats]
        return came


@pytest.mark.parametrize(("rows", "rounds"), [(3, 1), (1001, 2)])
def test_large_sums_in_two_phases_have_the_same_bits(rows, rounds):
    instr, members = COLLECTIVES[2], 3
    operands = [(rand(rows, 9, seed=i), rand(77, seed=9 + i)) for i in range(members)]
    switch = Switch(members)

    def member(me: int) -> tuple[Tensor, ...]:
        return exchanged_result(
            instr, me, operands[me], members, lambda flats: switch.exchange(me, flats)
        )

    with ThreadPoolExecutor(members) as threads:
        results = list(threads.map(member, range(members)))
    assert switch.rounds == rounds
    for got in results:
        for a, b in zip(got, local_result(instr, 0, operands), strict=True):
            assert torch.equal(a, b)
            assert a.untyped_storage().nbytes() == a.nbytes
