"""The screens of show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from autoplan.report.screens import print_details
from autoplan.report.tables import table
from autoplan.report.words import pin_words
from autoplan.units import GIB


def print_shown(console: Console, kind: str, document: Mapping[str, Any]) -> None:
    """Anything that `show` shows.

    Args:
        console: where to print.
        kind: `names`, `model`, `hardware`, `stack` or `plan`.
        document: what it says.
    """
    printers = {"names": _names, "model": _fields, "plan": _plan}
    printers.get(kind, _numbers)(console, document)


def _names(console: Console, document: Mapping[str, Any]) -> None:
    made = table("bundled", "kind", "names")
    made.columns[1].justify = "left"
    for kind, names in document.items():
        made.add_row(kind, " ".join(names))
    console.print(made)


def _fields(console: Console, document: Mapping[str, Any]) -> None:
    made = table(str(document["name"]), "field", "value")
    for key, value in document.items():
        text = f"{value:,}" if type(value) is int else str(value)
        made.add_row(key.replace("_", " "), text)
    console.print(made)


def _plan(console: Console, document: Mapping[str, Any]) -> None:
    hardware = document["hardware"]
    console.print(f"{document['model']['reference']} on {hardware['reference']}")
    console.print(pin_words(document["parallel"]))
    stages = table("stages", "stage", "layers", "devices", "mesh")
    for index, stage in enumerate(document["stages"]):
        mesh = " x ".join(stage["mesh"]["axes"]) or "1 device"
        stages.add_row(str(index), str(stage["layers"]), stage["devices"], mesh)
    console.print(stages)
    memory = hardware["embedded"]["device"]["memory_gib"]
    gib = memory["value"] if isinstance(memory, Mapping) else memory
    print_details(console, document["predicted"], round(gib * GIB))


def _numbers(console: Console, document: Mapping[str, Any]) -> None:
    """A profile: every number with where it comes from."""
    made = table(str(document["name"]), "number", "value", "evidence", "spread", "source")
    for column in (2, 4):
        made.columns[column].justify = "left"
    for path, value, origin in _leaves("", document):
        spread = origin.get("spread")
        made.add_row(
            path,
            str(value),
            origin.get("evidence", ""),
            "" if spread is None else f"x{spread:g}",
            origin.get("source", ""),
        )
    console.print(made)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """(path, value, evidence) of everything in a profile."""
    if isinstance(value, Mapping) and "value" in value:
        yield path, value["value"], value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}" if path else key, item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for item in value:
            yield from _leaves(f"{path}.{item.get('name', '')}", item)
    else:
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield path, text, {}
