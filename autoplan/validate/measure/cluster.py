"""A profile of a cluster that is not here: from its topology and its logs of communication.

Devices, and whatever no file tells, are those of the profile that is extended. A topology replaces
the levels inside a node (`levels`), logs replace the latency and the rate of the outermost level
that their ranks cross; the levels inside come first, since their time is subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autoplan.errors import InputError, Problem
from autoplan.files.machine_spec import load_hardware
from autoplan.files.nccl_log import NcclLog, read_nccl_log
from autoplan.files.problems import Problems
from autoplan.files.topology import read_topology
from autoplan.ir.machine import Hardware
from autoplan.validate.measure.assemble import with_rate
from autoplan.validate.measure.levels import with_topology
from autoplan.validate.measure.links import Call, LevelFit, crossed, fit_level
from autoplan.validate.measure.rounding import rounded


@dataclass(frozen=True)
class Cluster:
    """A profile made from files.

    Attributes:
        hardware: the profile.
        fits: level name -> its fit.
        notes: what a reader must know.
    """

    hardware: Hardware
    fits: Mapping[str, LevelFit]
    notes: tuple[str, ...]


def profile_cluster(name: str, extends: str, topology: str | None, logs: Sequence[str]) -> Cluster:
    """The profile that files describe.

    Args:
        name: of the profile.
        extends: profile of the devices.
        topology: file with what `nvidia-smi topo -m` printed, or None.
        logs: files of nccl-tests.

    Raises:
        InputError: unreadable files, or logs of ranks that the machine does not have; every
            problem at once.
    """
    problems = Problems("--extends")
    if not extends:
        problems.add("", None, "the profile of these devices, such as a100-80g")
    parent = problems.attempt(lambda: load_hardware(extends)) if extends else None
    found = problems.attempt(lambda: read_topology(topology)) if topology else None
    read = [problems.attempt(partial(read_nccl_log, log)) for log in logs]
    problems.check()
    assert parent is not None, "a missing one is a problem"
    notes: list[str] = []
    hardware = replace(parent, name=name)
    if found:
        hardware = with_topology(hardware, found, notes)
    return _with_logs(hardware, [log for log in read if log], notes)


def _with_logs(hardware: Hardware, logs: Sequence[NcclLog], notes: list[str]) -> Cluster:
    """The machine with every level that a log crosses as measured, the inner ones first."""
    calls: dict[int, list[Call]] = {}
    sources: dict[int, list[str]] = {}
    problems = []
    for log in logs:
        groups = _groups(log, hardware)
        if max(map(max, groups)) >= hardware.count or len(set(groups[0])) < 2:
            allowed = f"ranks of {hardware.name}, which has {hardware.count} devices"
            problems.append(Problem(log.source, "", f"{log.ranks} ranks", allowed))
            continue
        if log.guessed:
            notes.append(f"{log.source}: read as {log.kind}, which its bandwidths fit")
        made = [_call(log, groups, row.nbytes, row.seconds) for row in log.rows]
        index = crossed(made[0], hardware)
        calls.setdefault(index, []).extend(made)
        sources.setdefault(index, []).append(f"{log.kind} of {log.ranks} ranks")
    if problems:
        raise InputError(problems)
    fits: dict[str, LevelFit] = {}
    for index in sorted(calls):
        fitted = fit_level(calls[index], hardware, index)
        fits[hardware.levels[index].name] = fitted
        source = f"nccl-tests: {', '.join(dict.fromkeys(sources[index]))}"
        hardware = with_rate(hardware, index, fitted, source)
    return Cluster(rounded(hardware), fits, tuple(notes))


def _groups(log: NcclLog, hardware: Hardware) -> tuple[tuple[int, ...], ...]:
    """Devices of the ranks, each host's the first of its node; of transfers, a ring of pairs."""
    per_node = hardware.devices_per_node
    taken: dict[int, int] = {}
    devices = []
    for rank in range(log.ranks):
        host = log.hosts[rank] if log.hosts else rank // per_node
        place = taken.get(host, 0)
        devices.append(host * per_node + place)
        taken[host] = place + 1
    if log.kind == "send":
        following = devices[1:] + devices[:1]
        return tuple(zip(devices, following, strict=True))
    return (tuple(devices),)


def _call(
    log: NcclLog, groups: tuple[tuple[int, ...], ...], nbytes: int, seconds: float
) -> Call:  # fmt: skip
    """Bytes are of the whole; an all-gather's operand is one rank's part of it."""
    operand = nbytes // log.ranks if log.kind == "all_gather" else nbytes
    return Call(log.kind, groups, max(1, operand), (seconds,))
