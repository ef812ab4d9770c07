"""Recorded runs: JSON lines, JSON, CSV and training logs -> `ir.record.Record`.

Units stand in the keys. A key may be written nested (`{"parallel": {"tp": 8}}`), dotted
(`parallel.tp`, which is how CSV columns are named) or by its short name (`tp`). `RUN_FORMAT` is the
whole of it, as people read it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem, nearest
from autoplan.files.problems import Problems, shown, validate
from autoplan.files.run_format import (
    ALIASES,
    LISTS,
    PATHS,
    RUN_FORMAT,
    SECTIONS,
    SWITCHES,
    TABLES,
    TEXTS,
    LoggedRow,
    MeasuredRow,
    RunRow,
)
from autoplan.files.run_logs import is_log, read_log
from autoplan.files.text import parse_json, read_text
from autoplan.ir.record import OUT_OF_MEMORY, Measured, Record, Shape

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_KERNEL = re.compile(r"(?:^|; )kernel: ([^;]+)")

__all__ = ["RUN_FORMAT", "read_runs"]

Row = tuple[str, Mapping[str, Any]]
"""(where a run stands, its keys and values)."""


def read_runs(path: str | Path) -> tuple[Record, ...]:
    """The runs of a file, in its order.

    Args:
        path: a `.csv`, a training log, or JSON.

    Raises:
        InputError: every problem at once, each with its line; one that many lines have in common
            is told once, with their number.
    """
    source = str(path)
    text = read_text(path, "a file of recorded runs").removeprefix("\ufeff")
    if Path(path).suffix.lower() not in TABLES and is_log(text):
        return (read_log(text, Path(path)),)
    problems = Problems(source)
    read = _csv_rows if Path(path).suffix.lower() == ".csv" else _json_rows
    records: dict[str, Record] = {}
    for index, (where, row) in enumerate(read(text, problems)):
        line = Problems(where)
        record = line.attempt(lambda i=index, w=where, r=row: _record(r, w, Path(path).stem, i))  # type: ignore[misc]
        if record is not None and record.id in records:
            line.add("id", record.id, "a name that no other run of the file has")
        elif record is not None:
            records[record.id] = record
        problems.found.extend(line.found)
    if problems.found:
        raise InputError(tuple(_merged(problems.found)))
    if not records:
        raise InputError(Problem(source, "", "no runs", "at least one run"))
    return tuple(records.values())


def _json_rows(text: str, problems: Problems) -> Iterator[Row]:
    """Objects of a list, one a line, or a single one over many lines."""
    source = problems.source
    first = text.lstrip().partition("\n")[0].rstrip()
    if first.startswith("{") and first.endswith("}"):
        lines = enumerate(text.splitlines(), start=1)
        texts = [(f"{source}:{number}", line) for number, line in lines if line.strip()]
    else:
        texts = [(source, text)] if text.strip() else []
    for where, part in texts:
        try:
            document = parse_json(part, where)
        except InputError as error:
            problems.found.extend(error.problems)
            continue
        runs = document if isinstance(document, list) else [document]
        for index, row in enumerate(runs):
            place = f"{where}[{index}]" if isinstance(document, list) else where
            if isinstance(row, dict):
                yield place, row
            else:
                problems.found.append(Problem(place, "", shown(row), "an object"))


def _csv_rows(text: str, problems: Problems) -> Iterator[Row]:
    source = problems.source
    header = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count))
    columns: list[str] | None = None
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.found.append(Problem(f"{source}:{start}", "", str(error), "CSV"))
            return
        if not any(cell.strip() for cell in cells):
            continue
        if columns is None:
            columns = _columns(cells, Problems(f"{source}:{start}"), problems)
        elif len(cells) != len(columns):
            found, allowed = f"{len(cells)} cells", f"{len(columns)} cells, as in the header"
            problems.found.append(Problem(f"{source}:{start}", "", found, allowed))
        else:
            pairs = ((c, _cell(c, t.strip())) for c, t in zip(columns, cells, strict=True) if c)
            yield f"{source}:{start}", {name: value for name, value in pairs if value is not None}


def _columns(cells: Sequence[str], line: Problems, problems: Problems) -> list[str]:
    """The key of each column, "" where it is none."""
    columns = []
    for cell in cells:
        name = cell.strip()
        path = _path(name, line)
        if path and path in columns:
            line.add(name, "a second column of this name", "each key once")
        columns.append(path)
    problems.found.extend(line.found)
    return columns


def _path(name: str, problems: Problems) -> str:
    """The dotted key that a name means, or "" after recording that it means none."""
    path = name if name in PATHS else ALIASES.get(name, "")
    if not path:
        hint = nearest(name, (*PATHS, *ALIASES))
        problems.add(name, "an unknown field", "what `autoplan validate --help` lists", hint)
    return path


def _cell(path: str, text: str) -> Any:
    """A cell as the value that JSON would have; what is no such value stays text."""
    if text in ("", "null"):
        return None
    if path in TEXTS:
        return text
    if path in LISTS:
        return [word.strip() for word in text.split(";") if word.strip()]
    if path in SWITCHES:
        return _WORDS.get(text.lower(), text)
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _record(row: Mapping[str, Any], where: str, stem: str, index: int) -> Record:
    problems = Problems(where)
    document = _nested(row, problems)
    if "log" in document:
        return _logged(document, where, problems)
    file = problems.attempt(lambda: validate(RunRow, document, where))
    if file is not None:
        _check(file, problems)
    problems.check()
    if file is None:
        raise AssertionError("without problems there is a row")
    model, hardware = file.model, file.hardware
    kernel = file.kernel or (found[1].strip() if (found := _KERNEL.search(file.notes)) else None)
    return Record(
        id=file.id or f"{stem}-{index + 1}",
        source=file.source or stem,
        name=model.name or "",
        shape=Shape(
            model.n_layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn,
            model.gated_ffn, model.vocab, model.tied_embeddings, model.experts, model.topk,
            model.shared_experts, model.moe_ffn, model.dense_layers,
        ),
        seq_len=file.seq_len,
        devices=hardware.count,
        global_batch=file.global_batch,
        micro_batch=file.micro_batch,
        device=hardware.device,
        per_node=hardware.per_node,
        intra=hardware.intra,
        inter=hardware.inter,
        parallel=file.parallel.model_dump(),
        recompute=file.recompute,
        precision=file.precision,
        schedule=file.schedule,
        kernel=kernel,
        stack=file.stack,
        measured=Measured(**file.measured.model_dump()),
        derived=tuple(file.derived),
        flags=tuple(file.flags),
        flops_convention=file.flops_convention,
        notes=file.notes,
    )  # fmt: skip


def _logged(document: Mapping[str, Any], where: str, problems: Problems) -> Record:
    """The run of a log, with what the row says beside it."""
    row = problems.attempt(lambda: validate(LoggedRow, document, where))
    problems.check()
    assert row is not None, "without problems there is a row"
    path = Path(re.sub(r"(:\d+)?(\[\d+\])?$", "", where)).parent / row.log
    run = read_log(read_text(path, "a training log"), path)
    said = row.model_dump(exclude={"log", "hardware", "flags"}) | row.hardware.model_dump()
    given = {name: value for name, value in said.items() if value is not None}
    return replace(run, **given, flags=(*run.flags, *row.flags))


def _nested(row: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Dotted and short keys put where they belong; null is as good as absent."""
    document: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            continue
        if name in SECTIONS and isinstance(value, Mapping):
            pairs = [(name, key, item) for key, item in value.items() if item is not None]
        elif name in SECTIONS and name not in ALIASES:
            pairs = [("", name, value)]
        else:
            section, _, key = _path(name, problems).rpartition(".")
            pairs = [(section, key, value)]
        for section, key, item in pairs:
            holder = document.setdefault(section, {}) if section else document
            if key in holder:
                problems.add(name, "the field twice", "each field once")
            elif key:
                holder[key] = item
    return document


def _check(file: RunRow, problems: Problems) -> None:
    names = tuple(MeasuredRow.model_fields)
    for name in file.derived:
        if name not in names:
            problems.add("derived", name, f"one of {', '.join(names)}", nearest(name, names))
    if OUT_OF_MEMORY not in file.flags and not any(file.measured.model_dump().values()):
        problems.add("measured", None, f"one of {', '.join(names)}, or the flag `oom`")


def _merged(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Problems that differ only in their line, as one."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        key = (problem.field, problem.found, problem.allowed, problem.hint)
        groups.setdefault(key, []).append(problem)
    for first, *rest in groups.values():
        lines = f"{first.found} (and in {len(rest)} more places)" if rest else first.found
        yield replace(first, found=lines)
