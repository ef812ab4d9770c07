"""Text forms of meshes, layouts and device groups inside plans and programs.

"mesh": {"axes": ["node:4@8", "gpu:8@1"], "offset": 0}      outermost axis first
"[S(b), B]"                                                  a placement per axis
"0-31,64-95"                                                 a device group
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from autoplan.files.hardware import MOST_DEVICES
from autoplan.files.problems import Strict
from autoplan.ir.layout import Axis, Mesh, parse_layout

_AXIS = re.compile(r"([A-Za-z][\w+]*(?:\.\d+)?):([1-9]\d{0,8})@([1-9]\d{0,8})")


def from_text(parse: Callable[[str], Any]) -> BeforeValidator:
    """A field whose text `parse` reads; anything but a text is refused."""

    def read(value: object) -> Any:
        if not isinstance(value, str):
            raise PydanticCustomError("text", "a text")
        return parse(value)

    return BeforeValidator(read)


def parse_axis(text: str) -> Axis:
    """The inverse of `str(axis)`.

    Raises:
        ValueError: not `name:size@stride`, or fewer than 2 ranks.
    """
    match = _AXIS.fullmatch(text)
    if not match or int(match[2]) < 2:
        raise ValueError("an axis `name:size@stride` of at least 2 ranks, such as `gpu:8@1`")
    return Axis(match[1], int(match[2]), int(match[3]))


LayoutText = Annotated[Any, from_text(parse_layout)]
AxisText = Annotated[Any, from_text(parse_axis)]


class MeshFile(Strict):
    """`mesh` of a stage."""

    axes: list[AxisText]
    offset: int = Field(ge=0, le=MOST_DEVICES)


def mesh_devices(mesh: Mesh) -> tuple[int, ...] | None:
    """Devices of a mesh in ascending order, or None where it is no grid of distinct devices."""
    if prod(mesh.sizes) > MOST_DEVICES:
        return None
    devices = sorted(mesh.devices())
    return tuple(devices) if len(set(devices)) == len(devices) else None


def dump_mesh(mesh: Mesh) -> dict[str, Any]:
    """The document of a mesh."""
    return {"axes": [str(axis) for axis in mesh.axes], "offset": mesh.offset}


def build_mesh(file: MeshFile) -> Mesh:
    """The mesh of a document."""
    return Mesh(tuple(file.axes), file.offset)


def format_devices(devices: Iterable[int]) -> str:
    """Device numbers as ranges: `0-31,64`."""
    ranges: list[list[int]] = []
    for device in sorted(devices):
        if ranges and device == ranges[-1][1] + 1:
            ranges[-1][1] = device
        else:
            ranges.append([device, device])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
