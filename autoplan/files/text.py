"""JSON as text: strict reading, byte-stable writing, atomic files, digests."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files.problems import Problems, shown

_WIDTH = 100


def read_json(path: str | Path, finite: bool = True) -> Any:
    """The JSON document in a file.

    Args:
        path: the file.
        finite: refuse NaN and Infinity wherever they stand (strict JSON has neither); without it
            the reader of single fields refuses them.

    Raises:
        InputError: no file, not text, not JSON (with line and column), a key that stands twice, or
            every number that is not finite.
    """
    source = str(path)
    return parse_json(read_text(path), source, finite)


def parse_json(text: str, source: str, finite: bool = True) -> Any:
    """The JSON document in a text; see `read_json`."""
    problems = Problems(source)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        for name in table if len(table) < len(pairs) else ():
            if sum(key == name for key, _ in pairs) > 1:
                problems.add(name, "the field twice", "each field once")
        return table

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(Problem(source, where, error.msg, "JSON")) from None
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(source, "", shown(str(error)), "ordinary JSON")) from None
    if finite:
        for where, value in _not_finite(document, "$"):
            problems.add(where, value, "a finite number")
    problems.check()
    return document


def read_text(path: str | Path, allowed: str = "a JSON file") -> str:
    """The text of a file.

    Args:
        path: the file.
        allowed: what it should be, for the message.

    Raises:
        InputError: no file, or not text.
    """
    source, file = str(path), Path(path)
    try:
        if file.is_dir():
            raise InputError(Problem(source, "", "a folder", allowed))
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(Problem(source, "", "no such file", allowed)) from None
    except UnicodeDecodeError:
        raise InputError(Problem(source, "", "bytes that are not text", allowed)) from None
    except (OSError, ValueError) as error:
        raise InputError(Problem(source, "", str(error), "a file that can be read")) from None


def _not_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not isfinite(value):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _not_finite(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{path}[{index}]")


def format_json(document: Any) -> str:
    """Canonical JSON text: what fits on a line stands on one, keys in the order given.

    Floats are written as Python's shortest exact `repr`, so equal documents give equal bytes on
    every machine.
    """
    return "\n".join(_lines(document, "", "")) + "\n"


def _lines(value: Any, indent: str, prefix: str) -> Iterator[str]:
    short = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if not isinstance(value, dict | list | tuple) or len(indent + prefix + short) < _WIDTH:
        yield f"{indent}{prefix}{short}"
        return
    if isinstance(value, dict):
        items = [(json.dumps(k, ensure_ascii=False) + ": ", v) for k, v in value.items()]
    else:
        items = [("", v) for v in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    yield f"{indent}{prefix}{start}"
    for index, (name, item) in enumerate(items):
        *head, last = _lines(item, indent + " ", name)
        yield from head
        yield last + ("," if index + 1 < len(items) else "")
    yield f"{indent}{end}"


def write_json(path: str | Path, document: Any) -> None:
    """Write canonical JSON; see `write_text`."""
    write_text(path, format_json(document))


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, which is complete or untouched.

    Raises:
        InputError: the file cannot be written.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(Problem(str(path), "", str(error), "a file that can be written")) from None


def digest(document: Any) -> str:
    """A name for the content of a document: neither the order of keys nor 1 or 1.0 matters."""
    text = json.dumps(_plain(document), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
