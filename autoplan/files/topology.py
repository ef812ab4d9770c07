"""`nvidia-smi topo -m` -> `Topology`: how the devices and network cards of a node are joined.

The matrix has a column for each device and a row that starts with its name; columns of affinities
follow, whose texts hold spaces, and a legend. A terminal's codes may stand in it, and old drivers
name network cards as they are called (`mlx5_0`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoplan.files.problems import Problems
from autoplan.files.text import read_text

NEAREST_FIRST = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths between two devices: NVLink, one PCIe switch, several, the host bridge, several of them in
a socket, the link between sockets. Source: the legend that `nvidia-smi topo -m` prints."""
SELF = "X"

_CODES = re.compile(r"\x1b\[[\d;]*m")
_PATH = re.compile(r"NV(\d+)|PIX|PXB|PHB|NODE|SYS|X")
_DEVICE = re.compile(r"GPU\d+")
_AFFINITY = ("CPU", "NUMA")
"""First words of the columns behind the matrix."""
ALLOWED = "X, NV1 to NV18, PIX, PXB, PHB, NODE or SYS"


@dataclass(frozen=True, slots=True)
class Topology:
    """One node.

    Attributes:
        devices: names in order, `GPU0`, ...
        cards: names of network cards.
        paths: (device, device or card) -> a word of `NEAREST_FIRST`; the same both ways.
        links: (device, device) -> NVLinks between them, where there are any.
    """

    devices: tuple[str, ...]
    cards: tuple[str, ...]
    paths: Mapping[tuple[str, str], str]
    links: Mapping[tuple[str, str], int]


def read_topology(path: str | Path) -> Topology:
    """The topology in a file; see `parse_topology`."""
    return parse_topology(read_text(path, "the output of `nvidia-smi topo -m`"), str(path))


def parse_topology(text: str, source: str) -> Topology:
    """The topology in what `nvidia-smi topo -m` printed.

    Raises:
        InputError: every problem, with its line.
    """
    problems = Problems(source)
    lines = [(n, _CODES.sub("", line).split()) for n, line in enumerate(text.splitlines(), 1)]
    heads = [(n, words) for n, words in lines if words and words[0] == "GPU0" and
             (len(words) == 1 or not _PATH.fullmatch(words[1]))]  # fmt: skip
    if not heads:
        problems.add("", "no line that starts with GPU0 and names the columns", "a matrix")
        problems.check()
    number, words = heads[0]
    names = _columns(words)
    rows: dict[str, Sequence[str]] = {}
    for line, cells in lines:
        if line <= number or not cells or cells[0] not in names:
            continue
        entries = cells[1 : len(names) + 1]
        if cells[0] in rows:
            problems.add(f"line {line}", f"a second row {cells[0]}", "each row once")
        elif len(entries) < len(names):
            problems.add(f"line {line}", f"{len(entries)} cells", f"{len(names)}, one a column")
        else:
            for column, cell in zip(names, entries, strict=True):
                if not _PATH.fullmatch(cell):
                    problems.add(f"line {line}, {column}", cell, ALLOWED)
            rows[cells[0]] = entries
    for name in names:
        if _DEVICE.fullmatch(name) and name not in rows:
            problems.add("", f"no row {name}", "a row for every GPU of the header")
    problems.check()
    return _topology(names, rows, problems)


def _columns(words: Sequence[str]) -> tuple[str, ...]:
    """Names of the matrix's columns: all before the affinities."""
    ends = [index for index, word in enumerate(words) if word in _AFFINITY]
    return tuple(words[: ends[0]] if ends else words)


def _topology(
    names: Sequence[str], rows: Mapping[str, Sequence[str]], problems: Problems
) -> Topology:
    devices = tuple(name for name in names if _DEVICE.fullmatch(name))
    paths: dict[tuple[str, str], str] = {}
    links: dict[tuple[str, str], int] = {}
    for one in devices:
        for other, cell in zip(names, rows[one], strict=True):
            if (one == other) != (cell == SELF):
                problems.add(f"{one}, {other}", cell, "X for a device itself and nowhere else")
            back = rows[other][names.index(one)] if other in rows else cell
            if back != cell:
                problems.add(f"{one}, {other}", f"{cell} and {back}", "the same both ways")
            if one != other:
                paths[one, other] = "NV" if cell.startswith("NV") else cell
                links |= {(one, other): int(cell[2:])} if cell.startswith("NV") else {}
    problems.check()
    cards = tuple(name for name in names if name not in devices)
    return Topology(devices, cards, paths, links)
