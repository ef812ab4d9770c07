"""What a checkpoint says of itself: `checkpoint.json` beside the files that hold its tensors.

A folder is a checkpoint if it has this file, which is written last. It tells whether another run
can go on from here without reading a tensor: of what model, which tensors, how many bytes of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import Field

from autoplan.errors import InputError, Problem
from autoplan.files.data import exists, is_file
from autoplan.files.problems import Strict, validate
from autoplan.files.text import read_json, write_json
from autoplan.ir.program import Program

MANIFEST = "checkpoint.json"

MOST_STEPS = 1 << 31

Facts = Mapping[str, str]


class CheckpointFile(Strict):
    """The file."""

    schema_version: Literal[1] = 1
    step: int = Field(ge=0, lt=MOST_STEPS)
    identity: dict[str, str]
    circumstances: dict[str, str]
    tensors: dict[str, str]
    files: dict[str, int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a training between two steps.

    Attributes:
        step: index of the next step: so many have been done.
        identity: of model, optimizer and precision; whoever goes on must have the same.
        circumstances: seed, batch, data, rates: whoever goes on may change them, knowingly.
        tensors: name -> type of the whole tensor, as `fp64 [64, 32]`.
    """

    step: int
    identity: Facts
    circumstances: Facts
    tensors: Facts


def tensor_types(program: Program) -> dict[str, str]:
    """What a checkpoint of a Program's state has: the same for every plan of a model."""
    table = {}
    for stage in program.stages:
        for spec in stage.resident:
            if spec.kept_as:
                shape = [program.extent[dim] for dim in spec.dims]
                table[spec.kept_as] = f"{spec.register.dtype} {shape}"
    return dict(sorted(table.items()))


def dump_checkpoint(checkpoint: Checkpoint, files: Mapping[str, int]) -> dict[str, Any]:
    """The document; `files` are the bytes of each file."""
    return {
        "schema_version": 1,
        "step": checkpoint.step,
        "identity": dict(checkpoint.identity),
        "circumstances": dict(checkpoint.circumstances),
        "tensors": dict(checkpoint.tensors),
        "files": dict(sorted(files.items())),
    }


def parse_checkpoint(document: object, source: str) -> tuple[Checkpoint, dict[str, int]]:
    """The checkpoint that a document describes, and the bytes of each file.

    Raises:
        InputError: every problem of the document.
    """
    file = validate(CheckpointFile, document, source)
    return Checkpoint(file.step, file.identity, file.circumstances, file.tensors), file.files


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Make a folder that has the tensors a checkpoint.

    Raises:
        InputError: it cannot be written.
    """
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    write_json(folder / MANIFEST, dump_checkpoint(checkpoint, files))


def read_checkpoint(folder: Path) -> Checkpoint:
    """What a folder says of itself.

    Raises:
        InputError: it is no checkpoint, or one of which something is missing: every problem.
    """
    if not is_file(folder / MANIFEST):
        found = "a folder without `checkpoint.json`" if exists(folder) else "no such folder"
        raise InputError(Problem(str(folder), "", found, "a folder that --save has written"))
    source = str(folder / MANIFEST)
    checkpoint, files = parse_checkpoint(read_json(folder / MANIFEST), source)
    problems = []
    for name, size in files.items():
        path = folder / name
        found = f"{path.stat().st_size} bytes" if is_file(path) else "no such file"
        if found != f"{size} bytes":
            problems.append(Problem(str(path), "", found, f"the {size} bytes that were saved"))
    if problems:
        raise InputError(problems)
    return checkpoint


def refusals(found: Checkpoint, wanted: Checkpoint, source: str) -> Iterator[Problem]:
    """Why a run cannot go on from a checkpoint, one problem for each difference.

    Args:
        found: what there is.
        wanted: what the run would save.
        source: the folder, for the messages.
    """
    yield from _differences(found.identity, wanted.identity, source, "identity")
    yield from _differences(found.tensors, wanted.tensors, source, "tensors")


def changes(found: Checkpoint, wanted: Checkpoint) -> tuple[str, ...]:
    """What goes on differently from what was saved, as `seed 1 (saved with 0)`."""
    before, after = found.circumstances, wanted.circumstances
    return tuple(
        f"{name} {after.get(name, 'none')} (saved with {before.get(name, 'none')})"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )


def save_problem(folder: Path) -> Problem | None:
    """Why nothing can be saved in a folder, or None.

    A checkpoint that stands there is replaced; whatever else does is nobody's to delete.
    """
    allowed = "a new folder, an empty one or a checkpoint to replace"
    try:
        if not folder.exists():
            return None
        if not folder.is_dir():
            return Problem("--save", "", f"`{folder}`, which is no folder", allowed)
        if is_file(folder / MANIFEST) or not any(folder.iterdir()):
            return None
    except (OSError, ValueError) as error:
        return Problem("--save", "", f"`{folder}` ({error})", allowed)
    return Problem("--save", "", f"`{folder}`, which holds something else", allowed)


def make_room(folder: Path) -> None:
    """Make the folders above one, and see that it could be made, before a long run relies on it.

    Raises:
        InputError: it could not.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent):
            pass
    except (OSError, ValueError) as error:
        found = f"`{folder}` ({error})"
        raise InputError(Problem("--save", "", found, "a folder that can be written")) from None


def _differences(found: Facts, wanted: Facts, source: str, field: str) -> Iterator[Problem]:
    for name in sorted({*found, *wanted}):
        before, after = found.get(name, "nothing"), wanted.get(name, "nothing")
        if before != after:
            yield Problem(source, f"{field}: {name}", before, f"{after}, as the plan has")
