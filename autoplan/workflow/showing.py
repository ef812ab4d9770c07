"""Show: a model, machine, stack or plan, for reading."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem, nearest
from autoplan.files.data import bundled_names, is_file
from autoplan.files.hardware import dump_hardware
from autoplan.files.hf_config import FOLDER as MODELS
from autoplan.files.hf_config import load_model
from autoplan.files.hub import is_hub_id
from autoplan.files.machine_spec import FOLDER as MACHINES
from autoplan.files.machine_spec import load_hardware
from autoplan.files.model import dump_model
from autoplan.files.stack import FOLDER as STACKS
from autoplan.files.stack import dump_stack, load_stack
from autoplan.files.text import read_json
from autoplan.frontends import build_graph
from autoplan.workflow.documents import kind_of, load_plan, plan_document

NOUNS = {"model": MODELS, "hardware": MACHINES, "stack": STACKS}
"""What may be shown by a bundled name, in the order in which a name is looked up."""
_SIZED = re.compile(r"(:\d+(x\d+)?|-\d+x\d+)$")


@dataclass(frozen=True)
class Shown:
    """Something to read.

    Attributes:
        kind: `names`, `model`, `hardware`, `stack` or `plan`.
        document: what it says.
        warnings: what a plan file says otherwise than derived.
    """

    kind: str
    document: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


def show(name: str = "", download: bool = False) -> Shown:
    """What a name or file means; without one, every bundled name.

    Args:
        name: a path, a bundled model, machine (with an optional size) or stack, in this order, or
            an id of the Hugging Face hub.
        download: whether such a model may be fetched.

    Raises:
        InputError: neither; every problem of a file at once.
    """
    if not name:
        return Shown("names", {kind: list(bundled_names(f)) for kind, f in NOUNS.items()})
    kind = _kind(name)
    if kind == "plan":
        loaded = load_plan(name)
        return Shown(kind, plan_document(loaded.priced, loaded.search), loaded.warnings)
    if kind == "model":
        return Shown(kind, _model(name, download))
    readers = {"hardware": _hardware, "stack": _stack}
    return Shown(kind, readers[kind](name))


def _kind(name: str) -> str:
    path = Path(name)
    if is_file(path):
        kind = kind_of(read_json(path, finite=False))
        if kind == "program":
            allowed = "a model, hardware, stack or plan file"
            raise InputError(
                Problem(name, "", "a program", allowed, "`autoplan simulate` reads it")
            )
        return "model" if kind == "unknown" else kind
    bare = _SIZED.sub("", name).lower()
    tables = {kind: bundled_names(folder) for kind, folder in NOUNS.items()}
    for kind, names in tables.items():
        wanted = {"model": name.lower().rpartition("/")[2].removesuffix("-hf"), "hardware": bare}
        if wanted.get(kind, name.lower()) in names:
            return kind
    if is_file(path / "config.json") or (path.suffix != ".json" and is_hub_id(name)):
        return "model"
    if path.suffix == ".json":
        raise InputError(Problem(name, "", "no such file", "a model, hardware, stack or plan file"))
    every = [known for names in tables.values() for known in names]
    allowed = f"a file or one of {', '.join(every)}"
    raise InputError(Problem("show", "", f"`{name}`", allowed, nearest(bare, every)))


def _model(name: str, download: bool) -> dict[str, Any]:
    config = load_model(name, download)
    total = build_graph(config, 1).parameters_total
    return {
        "name": config.name,
        "layers": config.layers,
        "parameters_total": total,
        "parameters_active": total,
        **{
            key: value for key, value in dump_model(config).items() if key not in ("name", "layers")
        },
    }


def _hardware(name: str) -> dict[str, Any]:
    hardware = load_hardware(name)
    return {"name": hardware.name, "devices": hardware.count, **dump_hardware(hardware)}


def _stack(name: str) -> dict[str, Any]:
    return dump_stack(load_stack(name))
