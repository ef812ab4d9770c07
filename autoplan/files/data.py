"""Where the bundled models and profiles lie: inside an installed package or in a checkout."""

from __future__ import annotations

from pathlib import Path

from autoplan.errors import InputError, Problem, nearest

_PACKAGE = Path(__file__).resolve().parent.parent


def data_folder(name: str) -> Path:
    """The folder `models` or `hardware_profiles` (or one inside it)."""
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def bundled_names(folder: str) -> tuple[str, ...]:
    """Names of the bundled files of a data folder, sorted."""
    return tuple(sorted(path.stem for path in data_folder(folder).glob("*.json")))


def find_file(spec: str, folder: str, kind: str) -> Path:
    """The file that a path or bundled name means.

    Args:
        spec: a path to a file, or a bundled name.
        folder: data folder of the bundled files.
        kind: `model`, `hardware`, `stack`: for the message.

    Raises:
        InputError: neither a file nor a bundled name; says the nearest one.
    """
    names = bundled_names(folder)
    name = spec.lower()
    if name in names:
        return data_folder(folder) / f"{name}.json"
    path = Path(spec)
    if path.suffix == ".json" or exists(path):
        return path
    allowed = f"a path or one of {', '.join(names)}"
    raise InputError(Problem(kind, "", f"`{spec}`", allowed, nearest(name, names)))


def is_file(path: Path) -> bool:
    """Whether there is such a file; whatever cannot be a path is none."""
    return exists(path) and path.is_file()


def exists(path: Path) -> bool:
    """Whether there is such a path; whatever cannot be one is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
