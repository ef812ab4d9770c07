"""Logs of nccl-tests (`all_reduce_perf`, ...) -> `NcclLog`: seconds of one collective by size.

A row is `size count type [redop] [root]` and two groups of `time algbw busbw errors`, out of place
and in place; older versions have no root, and an empty redop where nothing is reduced. Lines of
other programs may stand between, and a launcher's tag in front.

Which collective it was, the log says in a line of newer versions or through the program's name; or
its columns do: bus over algorithm bandwidth is 2 (n-1)/n of an all-reduce, (n-1)/n of what gathers
or scatters, and 1 of a transfer. Source: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import median

from autoplan.files.problems import Problems
from autoplan.files.text import read_text

PROGRAMS: Mapping[str, str] = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce",
    "all_gather": "all_gather", "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all",
    "sendrecv": "send",
}  # fmt: skip
"""Name of a test -> our name of what it does."""
TYPE_BYTES: Mapping[str, int] = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2, "float": 4,
    "double": 8, "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip

MOST_RANKS = 1 << 16
GROUP = 4
"""Columns of a group: time, algbw, busbw, errors."""
CLOSE = 0.02
"""Relative error that printing with two decimals leaves in a ratio of bandwidths, at most."""
EXACT_RATE = 1.0
"""GB/s from which two decimals are precise enough for a ratio."""

_TAG = re.compile(r"^\[\d+(?:,\d+)?\](?:<std\w+>)?:?\s*")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\b")
_TEST = re.compile(
    rf"\b({'|'.join(PROGRAMS)})(?:_perf|_test)\b|[Tt]est starting:\s*({'|'.join(PROGRAMS)})"
)


@dataclass(frozen=True, slots=True)
class NcclRow:
    """One size.

    Attributes:
        nbytes: of the `size` column.
        seconds: out of place.
    """

    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NcclLog:
    """What one test measured.

    Attributes:
        source: the file.
        kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `send`.
        ranks: how many took part.
        hosts: of each rank, the index of its host; empty where the log does not say.
        rows: by size; of sizes above zero.
        guessed: whether the kind was read off the columns alone.
    """

    source: str
    kind: str
    ranks: int
    hosts: tuple[int, ...]
    rows: tuple[NcclRow, ...]
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class _Cells:
    """A row as printed.

    Attributes:
        line: its number.
        row: size and time.
        elements: bytes of the `count` column.
        ratio: bus over algorithm bandwidth, or 0 where they are too small to tell.
        reduces: whether something is reduced.
        rooted: whether one rank is the root, as of a broadcast.
    """

    line: int
    row: NcclRow
    elements: int
    ratio: float
    reduces: bool
    rooted: bool


def read_nccl_log(path: str | Path) -> NcclLog:
    """The measurement in a file; see `parse_nccl_log`."""
    return parse_nccl_log(read_text(path, "a log of nccl-tests"), str(path))


def parse_nccl_log(text: str, source: str) -> NcclLog:
    """The measurement in what a test of nccl-tests printed.

    Raises:
        InputError: every problem, with its line.
    """
    problems = Problems(source)
    cells: list[_Cells] = []
    hosts: dict[int, str] = {}
    name = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = _TAG.sub("", raw).strip()
        rank, test = _RANK.match(line), _TEST.search(line)
        if rank:
            hosts[int(rank[1])] = rank[2]
        if test and not name:
            name = test[1] or test[2]
        words = line.split()
        if _starts_row(words):
            row = _cells(number, words, problems)
            cells += [row] if row else []
    if not (cells or problems.found):
        allowed = "rows `size count type redop root time algbw busbw #wrong ...`"
        problems.add("", "no row of a table", allowed)
    problems.check()
    cells = [row for row in cells if row.row.nbytes]
    ranks = len(hosts) or _ranks(cells)
    kind = PROGRAMS.get(name) or PROGRAMS.get(_named(source)) or _kind(cells, ranks)
    if not 2 <= ranks <= MOST_RANKS:
        found = f"{ranks} ranks" if ranks else "neither ranks nor bandwidths to tell them by"
        problems.add("", found, f"lines `# Rank ...` of 2 to {MOST_RANKS} ranks")
    if not kind:
        problems.add("", "another collective", ", ".join(dict.fromkeys(PROGRAMS.values())))
    problems.check()
    numbers = {host: index for index, host in enumerate(dict.fromkeys(hosts.values()))}
    return NcclLog(
        source,
        kind,
        ranks,
        tuple(numbers[hosts[rank]] for rank in sorted(hosts)),
        tuple(row.row for row in cells),
        guessed=not (PROGRAMS.get(name) or PROGRAMS.get(_named(source))),
    )


def _named(source: str) -> str:
    """The test that a file is named after, or ""."""
    stem = Path(source).stem.lower().replace("-", "_")
    return next((name for name in PROGRAMS if name in stem), "")


def _starts_row(words: Sequence[str]) -> bool:
    return len(words) > 2 and words[0].isdigit() and words[1].isdigit() and words[2].isalnum()


def _cells(line: int, words: Sequence[str], problems: Problems) -> _Cells | None:
    """A row, or None after recording what is wrong with it."""
    where, wanted = f"line {line}", 3 + 2 * GROUP
    if words[2] not in TYPE_BYTES:
        problems.add(f"{where}, type", words[2], f"one of {', '.join(TYPE_BYTES)}")
        return None
    if not wanted <= len(words) <= wanted + 2:
        problems.add(where, f"{len(words)} columns", f"{wanted} to {wanted + 2} columns")
        return None
    between, outside = words[3 : -2 * GROUP], words[-2 * GROUP : -GROUP]
    numbers = []
    for name, word in zip(("time", "algbw", "busbw"), outside, strict=False):
        number = _number(word)
        if number is None or (name == "time" and not number):
            problems.add(f"{where}, {name}", word, "a number > 0" if name == "time" else "a number")
        numbers.append(number or 0.0)
    time, algorithm, bus = numbers
    return _Cells(
        line,
        NcclRow(int(words[0]), time * 1e-6),
        int(words[1]) * TYPE_BYTES[words[2]],
        bus / algorithm if algorithm >= EXACT_RATE else 0.0,
        any(word.isalpha() and word != "none" for word in between),
        any(word.isdigit() for word in between),
    )


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def _ratio(cells: Sequence[_Cells]) -> float:
    ratios = [row.ratio for row in cells if row.ratio]
    return median(ratios) if ratios else 0.0


def _ranks(cells: Sequence[_Cells]) -> int:
    """Ranks by the columns: of a size that is cut, its parts; else by the bandwidths; 0: unknown.

    2 (n-1)/n of an all-reduce is solved for n.
    """
    largest = max(cells, key=lambda row: row.row.nbytes, default=None)
    if largest and 0 < largest.elements < largest.row.nbytes:
        return round(largest.row.nbytes / largest.elements)
    ratio = _ratio(cells)
    return round(2 / (2 - ratio)) if 1 - CLOSE < ratio < 2 - CLOSE else 0


def _kind(cells: Sequence[_Cells], ranks: int) -> str:
    """The collective by its columns, or ""; what gathers and what exchanges look alike."""
    ratio, reduces = _ratio(cells), any(row.reduces for row in cells)
    if not ratio or not ranks or any(row.rooted for row in cells):
        return ""
    if abs(ratio / (2 * (ranks - 1) / ranks) - 1) < CLOSE and reduces:
        return "all_reduce"
    if abs(ratio / ((ranks - 1) / ranks) - 1) < CLOSE:
        return "reduce_scatter" if reduces else "all_gather"
    return "send" if abs(ratio - 1) < CLOSE and not reduces else ""
