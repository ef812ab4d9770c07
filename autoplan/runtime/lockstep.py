"""All ranks of a Program in one process, one after the other: deterministic, no threads.

Each rank runs until it must wait; what it waits for lets it go on. A collective happens when all
members of its group have arrived, a send ends when its receiver has taken it. When no rank can
move, that is the deadlock which the same Program would meet on a real transport, and every rank
says what it waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from typing import Any

from torch import Tensor

from autoplan.errors import CheckError
from autoplan.runtime.kernels.collective import group_results
from autoplan.runtime.requests import (
    Collective,
    Expect,
    Identity,
    Receive,
    Request,
    Send,
    WaitSend,
)

Rank = Generator[Request, list[Tensor], Any]


def run_lockstep(ranks: Mapping[int, Rank]) -> dict[int, Any]:
    """Drive the interpreters of all ranks to their end.

    Args:
        ranks: rank -> its generator of requests.

    Returns:
        What each generator returned.

    Raises:
        CheckError: no rank can move, members of a group disagree on a collective, or a transfer
            does not fit its receiver or has none.
    """
    return _Lockstep(ranks).run()


class _Lockstep:
    """Who may go on, and what the others wait for."""

    def __init__(self, ranks: Mapping[int, Rank]) -> None:
        self._ranks = ranks
        self._ready: deque[tuple[int, list[Tensor] | None]] = deque(
            (rank, None) for rank in sorted(ranks)
        )
        self._arrived: dict[tuple[int, ...], dict[int, Collective]] = {}
        self._posted: dict[Identity, Send] = {}
        self._receiving: dict[Identity, Receive] = {}
        self._finishing: dict[Identity, WaitSend] = {}
        self._results: dict[int, Any] = {}

    def run(self) -> dict[int, Any]:
        while self._ready:
            rank, reply = self._ready.popleft()
            self._advance(rank, reply)
        if len(self._results) < len(self._ranks):
            raise CheckError("\n".join(["deadlock: no rank can move", *self._waits()]))
        if self._posted:
            lines = [f"  {_transfer(i)}, by {send.where}" for i, send in self._posted.items()]
            raise CheckError("\n".join(["sent and never received:", *lines]))
        return self._results

    def _advance(self, rank: int, reply: list[Tensor] | None) -> None:
        """Let a rank run to its next request."""
        try:
            request = self._ranks[rank].send(reply)  # type: ignore[arg-type]
        except StopIteration as end:
            self._results[rank] = end.value
            return
        match request:
            case Collective():
                self._arrive(rank, request)
            case Send():
                self._post(rank, request)
            case Receive():
                self._receiving[request.identity] = request
                self._deliver(request.identity)
            case Expect():
                self._ready.append((rank, []))
            case WaitSend():
                self._wait(rank, request)

    def _arrive(self, rank: int, request: Collective) -> None:
        """A rank has come to a collective; the last member of the group performs it for all."""
        members = self._arrived.setdefault(request.group, {})
        members[rank] = request
        if len(members) < len(request.group):
            return
        del self._arrived[request.group]
        requests = [members[member] for member in request.group]
        for other in requests[1:]:
            _agree(requests[0], other)
        operands = [member.operands for member in requests]
        results = group_results(request.instr, operands)
        for member, result in zip(request.group, results, strict=True):
            self._ready.append((member, list(result)))

    def _post(self, rank: int, request: Send) -> None:
        if request.identity in self._posted:
            raise CheckError(f"sent twice: {_transfer(request.identity)}, by {request.where}")
        self._posted[request.identity] = request
        self._ready.append((rank, []))
        self._deliver(request.identity)

    def _deliver(self, identity: Identity) -> None:
        """Copy a tensor to its receiver, once both are there."""
        if identity not in self._posted or identity not in self._receiving:
            return
        send, receive = self._posted.pop(identity), self._receiving.pop(identity)
        given = (tuple(send.tensor.shape), send.tensor.dtype)
        wanted = (receive.shape, receive.dtype)
        if given != wanted:
            raise CheckError(
                f"{_transfer(identity)}: {send.where} sends {given}, "
                f"{receive.where} expects {wanted}"
            )
        source, target = identity[-2:]
        self._ready.append((target, [send.tensor.clone()]))
        if self._finishing.pop(identity, None):
            self._ready.append((source, []))

    def _wait(self, rank: int, request: WaitSend) -> None:
        if request.identity in self._posted:
            self._finishing[request.identity] = request
        else:
            self._ready.append((rank, []))

    def _waits(self) -> list[str]:
        """What every rank that has not finished waits for, one line each."""
        lines: list[tuple[int, str]] = []
        for group, members in self._arrived.items():
            missing = [member for member in group if member not in members]
            for rank, request in members.items():
                text = f"{request.where}: {request.instr.op} over {group} waits for ranks {missing}"
                lines.append((rank, text))
        for identity, receive in self._receiving.items():
            lines.append((identity[-1], f"{receive.where}: waits for {_transfer(identity)}"))
        for identity, wait in self._finishing.items():
            text = f"{wait.where}: waits until rank {identity[-1]} takes {_transfer(identity)}"
            lines.append((identity[-2], text))
        return [f"  rank {rank}: {text}" for rank, text in sorted(lines)]


def _agree(one: Collective, other: Collective) -> None:
    if one.signature != other.signature:
        group = one.group
        raise CheckError(f"ranks of group {group} disagree on a collective:\n  {one}\n  {other}")


def _transfer(identity: Identity) -> str:
    name, instance, micro_batch, source, target = identity
    return f"{name} (instance {instance}, micro-batch {micro_batch}) from rank {source} to {target}"
