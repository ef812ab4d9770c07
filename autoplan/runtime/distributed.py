"""The one module that speaks torch.distributed: gloo on CPUs, nccl or hccl on devices.

On CPUs every reduction is the sum in group order (all-to-alls, then a local sum): the bits of
lock-step, and no slower than gloo's own. On devices the library's collectives are used, whose order
of summation is their own.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import LaunchError
from autoplan.ir.program import Program
from autoplan.runtime.kernels.collective import exchanged_result, join, piece
from autoplan.runtime.requests import (
    Collective,
    Expect,
    Identity,
    Receive,
    Request,
    Send,
    WaitSend,
    all_groups,
    channels,
)

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}
"""Back end by device type; objects always travel through the CPUs."""

TIMEOUT_SECONDS = 600.0
"""Longest wait for a peer. A launcher that watches its workers finds a hang long before."""


@dataclass(frozen=True, slots=True)
class _Posted:
    """A transfer on its way; the tensor must live until it is waited for."""

    work: dist.Work
    tensor: Tensor


class World:
    """The processes of a run, joined: process k executes the k-th rank of a Program.

    Attributes:
        index: this process.
        size: number of processes.
        device: where its tensors lie.
    """

    def __init__(self, index: int, size: int, device: torch.device, timeout: float) -> None:
        """Wrap the process group that `join` or `from_environment` has made."""
        self.index = index
        self.size = size
        self.device = device
        self._timeout = timedelta(seconds=timeout)
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._channels: dict[tuple[int, int], dist.ProcessGroup] = {}
        self._ranks: tuple[int, ...] = ()
        self._sends: dict[Identity, _Posted] = {}
        self._receives: dict[Identity, _Posted] = {}

    @classmethod
    def join(
        cls, store: str, index: int, size: int,
        timeout: float = TIMEOUT_SECONDS, device_type: str = "cpu",
    ) -> World:  # fmt: skip
        """Join processes of this machine that meet at a file.

        Args:
            store: path of the file, which need not exist.
            index: this process.
            size: number of processes.
            timeout: seconds to wait for a peer, here and in every later communication.
            device_type: `cpu`, `cuda` or `npu`; each process takes the device of its index.
        """
        # Loopback: a host's own name may resolve to an address that does not answer.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        device = _own_device(device_type, index)
        dist.init_process_group(
            BACKENDS[device_type],
            store=dist.FileStore(store, size),  # type: ignore[attr-defined]
            rank=index,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        return cls(index, size, device, timeout)

    @classmethod
    def from_environment(cls, device_type: str, timeout: float = TIMEOUT_SECONDS) -> World:
        """Join the processes that torchrun has started.

        Args:
            device_type: `cpu`, `cuda` or `npu`; each process takes the device of its local rank.
            timeout: seconds to wait for a peer.

        Raises:
            LaunchError: torchrun's environment is not there.
        """
        missing = [n for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if n not in os.environ]
        if missing:
            raise LaunchError(f"{', '.join(missing)} not set: start this with torchrun")
        device = _own_device(device_type, int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(BACKENDS[device_type], timeout=timedelta(seconds=timeout))
        return cls(dist.get_rank(), dist.get_world_size(), device, timeout)

    def leave(self) -> None:
        """End the process group."""
        dist.destroy_process_group()

    def prepare(self, program: Program) -> None:
        """Make the groups that a Program communicates in; every process must call it.

        Groups stay for later Programs. All processes make all groups in one order, and with an
        explicit time-out: `new_group` does not inherit the one of `init_process_group`.

        Raises:
            LaunchError: the Program has another number of ranks.
        """
        if len(program.ranks) != self.size:
            raise LaunchError(f"{self.size} processes for a plan of {len(program.ranks)} ranks")
        self._ranks = program.ranks
        for group in all_groups(program):
            members = tuple(map(self._process, group))
            if members not in self._groups:
                self._groups[members] = self._new_group(members)
        if self.device.type == "cpu":
            return
        # gloo tells messages apart by tag; nccl and hccl by order alone, so each direction needs
        # a communicator of its own, or two neighbours that both send first would block.
        for source, target in channels(program):
            pair = (self._process(source), self._process(target))
            if pair not in self._channels:
                self._channels[pair] = self._new_group(pair)

    def drive(self, rank: Generator[Request, list[Tensor], Any]) -> Any:
        """Run a rank's interpreter to its end.

        Returns:
            What it returned.

        Raises:
            LaunchError: a peer is lost.
        """
        reply: list[Tensor] | None = None
        while True:
            try:
                request = rank.send(reply)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value
            try:
                reply = self._answer(request)
            except RuntimeError as error:
                raise LaunchError(f"communication failed in {request.where}: {error}") from error
            # While the rank computes on, nothing here may keep its tensors alive.
            del request

    def gather(self, value: Any) -> list[Any] | None:
        """Every process's value, in order, on process 0; None elsewhere."""
        values: list[Any] | None = [None] * self.size if self.index == 0 else None
        dist.gather_object(value, values, dst=0)
        return values

    def share(self, value: str) -> str:
        """Process 0's value, on every process."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        """The group that `prepare` made for these ranks; None for one rank alone."""
        return self._groups.get(tuple(map(self._process, ranks)))

    def _process(self, rank: int) -> int:
        return self._ranks.index(rank)

    def _new_group(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        """A group in mesh order: not that of ranks where an inner axis has a larger stride."""
        group: dist.ProcessGroup = dist.new_group(
            list(members), timeout=self._timeout, sort_ranks=False
        )
        return group

    def _answer(self, request: Request) -> list[Tensor]:
        match request:
            case Collective():
                return list(self._collective(request))
            case Send():
                self._send(request)
            case Receive():
                return [self._receive(request)]
            case Expect() if self.device.type == "cpu":
                self._receives[request.receive.identity] = self._post(request.receive)
            case WaitSend():
                self._sends.pop(request.identity).work.wait()
        return []

    def _collective(self, request: Collective) -> tuple[Tensor, ...]:
        group = self.group(request.group)
        if self.device.type != "cpu" and group is not None:
            return native_result(request, group)

        def exchange(flats: list[Tensor]) -> list[Tensor]:
            return flats if group is None else exchange_bytes(flats, group)

        members = len(request.group)
        return exchanged_result(request.instr, request.index, request.operands, members, exchange)

    def _send(self, request: Send) -> None:
        source, target = map(self._process, request.identity[-2:])
        tensor = request.tensor.contiguous()
        channel = self._channels.get((source, target))
        work = dist.isend(tensor, target, group=channel, tag=_tag(request.identity))
        assert work is not None  # this process is a member of the group
        self._sends[request.identity] = _Posted(work, tensor)

    def _receive(self, request: Receive) -> Tensor:
        posted = self._receives.pop(request.identity, None) or self._post(request)
        posted.work.wait()
        return posted.tensor

    def _post(self, request: Receive) -> _Posted:
        """Let a tensor come.

        gloo sends nothing before its receiver has asked, so on CPUs the next receive from every
        peer is posted while the rank computes: one tensor for each peer lives longer than the
        Program says. On devices a posted receive would occupy part of the device meanwhile.
        """
        source, target = map(self._process, request.identity[-2:])
        tensor = torch.empty(request.shape, dtype=request.dtype, device=self.device)
        channel = self._channels.get((source, target))
        work = dist.irecv(tensor, source, group=channel, tag=_tag(request.identity))
        assert work is not None  # this process is a member of the group
        return _Posted(work, tensor)


def _own_device(device_type: str, index: int) -> torch.device:
    """The device that a process of this machine computes on; it becomes torch's current one."""
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device(device_type, index)
    torch.get_device_module(device).set_device(device)
    return device


def exchange_bytes(flats: Sequence[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """All-to-all of flat byte buffers of one size, straight from buffer to buffer.

    gloo's own all-gather and all-to-all copy what they send and receive once more, into temporaries
    of the whole that are new, and so have to be mapped, in every call.

    Args:
        flats: one for each member in group order; all the same object where all need the same.
        group: the members.

    Returns:
        What each member sent, in group order; this member's own as it is.
    """
    members, here = len(flats), dist.get_rank(group)
    others = [(here + step) % members for step in range(1, members)]
    received = [torch.empty_like(flat) for flat in flats]
    received[here] = flats[here]
    works = [dist.irecv(received[other], group=group, group_src=other) for other in others]
    works += [dist.isend(flats[other], group=group, group_dst=other) for other in others]
    for work in works:
        assert work is not None  # this process is a member of the group
        work.wait()
    return received


def native_result(request: Collective, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """A collective by the library's own operations, one operand after the other.

    Args:
        request: what to do.
        group: all its members.
    """
    return tuple(_native(request, k, operand, group) for k, operand in enumerate(request.operands))


def _native(request: Collective, k: int, operand: Tensor, group: dist.ProcessGroup) -> Tensor:
    instr, members = request.instr, len(request.group)
    summed = instr.attr("reduction") != "softmax"
    if instr.op == "all_reduce" and summed:
        total = operand.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total
    if instr.op in ("all_gather", "all_reduce"):
        gathered = operand.new_empty((members, *operand.shape))
        dist.all_gather_single(gathered, operand.contiguous()[None], group=group)
        return join(instr, k, gathered.unbind(0))
    pieces = torch.stack([piece(instr, k, operand, m, members) for m in range(members)])
    if instr.op == "reduce_scatter":
        part = torch.empty_like(pieces[0])
        dist.reduce_scatter_single(part, pieces.flatten(0, 1), group=group)
        return part
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=group)
    return join(instr, k, received.unbind(0))


def _tag(identity: Identity) -> int:
    """A number that both ends derive from what is transferred; 31 bits, as gloo takes."""
    return zlib.crc32(repr(identity[:-2]).encode()) & 0x7FFFFFFF
