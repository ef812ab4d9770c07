"""Profile files that derive from one another: `"extends": "a100-80g"`.

The parent is a bundled name or a path beside the file. Objects merge key by key, lists of named
objects (`levels`) by name, new names behind; a number is replaced whole, its evidence included.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files.data import bundled_names, find_file
from autoplan.files.text import read_json


def read_profile(path: Path, folder: str, kind: str) -> dict[str, Any]:
    """The document of a profile with its parents merged in and `extends` gone.

    Args:
        path: the file.
        folder: data folder of bundled profiles of this kind.
        kind: `hardware` or `stack`: for messages.

    Raises:
        InputError: a file cannot be read, or profiles extend each other in a circle.
    """
    chain: list[dict[str, Any]] = []
    seen: list[Path] = []
    current: Path | None = path
    while current is not None:
        if current.resolve() in seen:
            allowed = "profiles that do not extend each other in a circle"
            raise InputError(Problem(str(path), "$.extends", f"`{current}` again", allowed))
        seen.append(current.resolve())
        document = read_json(current)
        if not isinstance(document, dict):
            raise InputError(Problem(str(current), "$", type(document).__name__, "an object"))
        parent = document.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            allowed = "a bundled name or a path"
            raise InputError(Problem(str(current), "$.extends", str(parent), allowed))
        chain.append(document)
        current = _parent(parent, current, folder, kind) if parent else None
    merged: dict[str, Any] = {}
    for document in reversed(chain):
        merged = _merge(merged, document)
    return merged


def _parent(name: str, child: Path, folder: str, kind: str) -> Path:
    beside = child.parent / name
    if name not in bundled_names(folder) and beside.is_file():
        return beside
    return find_file(name, folder, kind)


def _merge(parent: Any, child: Any) -> Any:
    if isinstance(parent, Mapping) and isinstance(child, Mapping):
        if "value" in parent or "value" in child:
            return child
        return {**parent, **{k: _merge(parent.get(k), v) for k, v in child.items()}}
    if _named(parent) and _named(child):
        table = {entry["name"]: entry for entry in parent}
        for entry in child:
            table[entry["name"]] = _merge(table.get(entry["name"]), entry)
        return list(table.values())
    return child


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, Mapping) and isinstance(entry.get("name"), str) for entry in value
    )
