"""Two nodes of two ranks on this machine, joined by a link of known bandwidth.

A node is a Linux network namespace. Inside it ranks talk over loopback; between the two stands a
pair of virtual Ethernet devices, each shaped to the link's rate by a token bucket, so the link is
full duplex and shared by the ranks of a node, as a network card is. Ranks are ordinary processes of
the distributed runtime that torchrun's environment describes.

This needs root, or where users may make namespaces of their own

    unshare --map-root-user --net --mount sh -c 'mount -t tmpfs none /run && python …'

Sources: ip-netns(8), veth(4), tc-tbf(8).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoplan.errors import LaunchError
from autoplan.files.hardware import dump_hardware
from autoplan.files.machine_spec import load_hardware
from autoplan.files.text import read_json, write_json
from autoplan.ir.machine import Device, Evidence, Level
from autoplan.validate.campaign import Visit, shuffled_rounds

from .here import WARM_UP, Turns
from .parts import Part, Parts
from .visits import Seen

NODES, RANKS_PER_NODE = 2, 2
NETWORK = "10.231.77"
"""First three bytes of the nodes' addresses, which exist in their namespaces only."""
PORT = 29611
"""Where ranks meet; free in a new namespace."""
DEVICE = "wire"
"""Name of the virtual Ethernet device in each node."""
BURST_SECONDS, LEAST_BURST = 0.0003, 4 << 10
"""Size of the token bucket, in seconds of the rate, and in bytes at least two frames: what passes
at once after a pause. It must be small against messages, or those pass as if there were no link
(measured with 64 KiB: 0.4 ms for 64 KiB at 100 Mbit/s, whose bytes take 5.5)."""
FRAMES = 1
"""That a packet may hold: the bucket lets whole packets pass, which virtual devices otherwise hand
over in pieces of up to 64 KiB. (Measured: rates of 100 and 400 Mbit/s kept within 2 % from 64 KiB,
4 % at 400.)"""
QUEUE_BYTES = 4 << 20
"""What waits in front of the bucket before packets are dropped: above the window of TCP, since a
dropped packet costs a fifth of a second."""
PAYLOAD = 1448 / 1514
"""Share of an Ethernet frame that is TCP's payload, with time stamps."""
PATIENCE = 1800.0
"""Seconds after which a campaign is given up."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins the nodes.

    Attributes:
        rate: bytes per second each way, frames included.
    """

    rate: float


def refusal() -> str:
    """Why this machine cannot be made into two nodes, or "" where it can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} command (package iproute2)"
    try:
        with two_nodes(Link(1e6)):
            return ""
    except LaunchError as error:
        return str(error)


@contextmanager
def two_nodes(link: Link) -> Iterator[tuple[str, ...]]:
    """Names of the namespaces, for as long as the context lasts.

    Raises:
        LaunchError: the system refuses to make them.
    """
    names = tuple(f"autoplan-{os.getpid()}-{node}" for node in range(NODES))
    with ExitStack() as stack:
        for name in names:
            _system("ip", "netns", "add", name)
            stack.callback(_forget, name)
        ends = [f"veth{os.getpid()}-{node}" for node in range(NODES)]
        _system("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        stack.callback(_quietly, "ip", "link", "delete", ends[0])  # where it was not moved
        for node, name in enumerate(names):
            _system("ip", "link", "set", ends[node], "netns", name, "name", DEVICE)
            inside = ("ip", "-n", name)
            _system(*inside, "address", "add", f"{address(node)}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _system(*inside, "link", "set", "dev", device, "up")
            _system(*inside, "link", "set", "dev", DEVICE, "gso_max_segs", str(FRAMES))
            burst = max(LEAST_BURST, round(link.rate * BURST_SECONDS))
            shape = ("rate", f"{round(link.rate * 8)}bit", "burst", str(burst))
            queue = ("limit", str(QUEUE_BYTES))
            _system("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", "tbf", *shape, *queue)
        yield names


def address(node: int) -> str:
    """Of a node, in its namespace."""
    return f"{NETWORK}.{node + 1}"


def write_machine(folder: Path, profile: str, link: Link) -> str:
    """Write the profile of the two nodes; its path.

    Inside a node numbers are those of the innermost level of `profile`. Both nodes really are one
    such machine: each has half of its cores, and computes as slowly as when all are busy.
    """
    here = load_hardware(f"{profile}:{RANKS_PER_NODE}")
    inside = replace(here.levels[0], name="gpu")
    cores = max(1, here.host.cores // NODES)
    host = replace(here.host, cores=cores, memory=here.host.memory // NODES, contention=1.0)
    across = Level(
        "node", NODES, link.rate, inside.latency, shared_by=RANKS_PER_NODE,
        efficiency=PAYLOAD, start=inside.start,
    )  # fmt: skip
    evidence = {
        where.replace(f"levels.{here.levels[0].name}.", "levels.gpu."): what
        for where, what in here.evidence.items()
    }
    for number in ("latency", "start"):
        if f"levels.gpu.{number}" in evidence:
            evidence[f"levels.node.{number}"] = evidence[f"levels.gpu.{number}"]
    evidence["levels.node.bandwidth"] = Evidence("user", "rate of the token bucket", 1.05)
    evidence["levels.node.efficiency"] = Evidence("user", "headers of Ethernet, IP and TCP", 1.05)
    machine = replace(
        here, name=f"{here.name}-apart", levels=(inside, across), evidence=evidence, host=host,
        device=_slowed(here.device, here.host.contention), devices_per_node=RANKS_PER_NODE,
    )  # fmt: skip
    path = folder / "hardware.json"
    write_json(path, dump_hardware(machine))
    return str(path)


def _slowed(device: Device, factor: float) -> Device:
    """A device that takes that much longer for everything."""
    return replace(
        device,
        gemm_efficiency=device.gemm_efficiency / factor,
        attention_efficiency=device.attention_efficiency / factor,
        memory_efficiency=device.memory_efficiency / factor,
        launch=device.launch * factor,
    )


def run_apart(
    rows: Sequence[dict[str, Any]], link: Link, turns: Turns, folder: Path
) -> list[list[Seen]]:
    """The visits of every row's plan, run on two nodes.

    Args:
        rows: with their plans.
        link: between the nodes.
        turns: how often; extra rounds are not made.
        folder: takes what ranks print.

    Raises:
        LaunchError: a rank failed.
    """
    orders = shuffled_rounds(len(rows), turns.rounds, turns.seed)
    with TemporaryDirectory(prefix="autoplan-") as scratch, two_nodes(link) as names:
        job, report = Path(scratch) / "job.json", Path(scratch) / "report.json"
        plans = []
        for index, row in enumerate(rows):
            plans.append(str(Path(scratch) / f"plan-{index}.json"))
            write_json(plans[-1], row["plan"])
        steps = WARM_UP + turns.steps
        write_json(job, {"plans": plans, "orders": orders, "steps": steps, "report": str(report)})
        _run_ranks(names, job, folder)
        found = read_json(report)["visits"]
    return [
        [
            Seen(Visit(tuple(v["seconds"]), v["elsewhere"]), _parts(v["parts"]), v["peak"])
            for v in found
            if v["plan"] == index
        ]
        for index in range(len(rows))
    ]


def _parts(document: dict[str, list[float]]) -> Parts:
    return {name: Part(*pair) for name, pair in document.items()}


def _run_ranks(names: Sequence[str], job: Path, folder: Path) -> None:
    """Run all ranks to their end."""
    program = Path(__file__).parents[1] / "measure_rank.py"
    with ExitStack() as stack:
        ranks = []
        for rank in range(NODES * RANKS_PER_NODE):
            log = stack.enter_context((folder / f"rank-{rank}.log").open("w"))
            command = ["ip", "netns", "exec", names[rank // RANKS_PER_NODE]]
            command += [sys.executable, str(program), str(job)]
            process = subprocess.Popen(command, env=_environment(rank), stdout=log, stderr=log)
            stack.callback(_end, process)
            ranks.append(process)
        for rank, process in enumerate(ranks):
            try:
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise LaunchError(f"no end after {PATIENCE:g} s") from None
            if code:
                last = (folder / f"rank-{rank}.log").read_text().splitlines()[-12:]
                raise LaunchError("\n  ".join([f"rank {rank} ended with {code}", *last]))


def _environment(rank: int) -> dict[str, str]:
    """As torchrun sets it, and the network device of a node."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % RANKS_PER_NODE),
        "WORLD_SIZE": str(NODES * RANKS_PER_NODE),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": DEVICE,
        "OMP_NUM_THREADS": "1",
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _forget(name: str) -> None:
    _quietly("ip", "netns", "delete", name)


def _quietly(*command: str) -> None:
    with suppress(LaunchError):
        _system(*command)


def _system(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr or done.stdout).strip()
        raise LaunchError(f"`{' '.join(command)}` failed: {why}")
