"""Placements, layouts, meshes: where the pieces of a tensor lie.

Notation: `S(m)` split along dim m, `B` a full copy, `P` partial sums, `P(softmax)` partial
(log-sum-exp, value) pairs. A `Layout` has one placement per mesh axis, outermost axis first; when
two axes split one dim, the outer axis splits first, so shards lie in mesh order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from autoplan.errors import Refusal


@dataclass(frozen=True, slots=True)
class Placement:
    """What one mesh axis does to a tensor; build with `S(dim)`, `B` or `P(reduction)`.

    Attributes:
        kind: "S", "B" or "P".
        name: the dim of a split, the reduction of a partial (`sum`, `softmax`), "" otherwise.
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        if self.kind == "S":
            return f"S({self.name})"
        return "P" if self == P() else (f"P({self.name})" if self.kind == "P" else "B")

    __repr__ = __str__


Layout = tuple[Placement, ...]

B = Placement("B")


def S(dim: str) -> Placement:  # noqa: N802 - the notation of the field
    """Split along `dim`."""
    return Placement("S", dim)


def P(reduction: str = "sum") -> Placement:  # noqa: N802
    """Partial: the true value is the `reduction` of all pieces."""
    return Placement("P", reduction)


_PLACEMENT = re.compile(r"^(?:(S)\((\w+)\)|(B)|(P)(?:\((\w+)\))?)$")


def parse_placement(text: str) -> Placement:
    """The inverse of `str`.

    Raises:
        ValueError: the text is none of `S(dim)`, `B`, `P`, `P(reduction)`.
    """
    match = _PLACEMENT.match(text.strip())
    if not match:
        raise ValueError(f"`{text}` is not a placement: S(dim), B, P or P(reduction)")
    split, dim, broadcast, _, reduction = match.groups()
    if split:
        return S(dim)
    return B if broadcast else P(reduction or "sum")


def format_layout(layout: Layout) -> str:
    """`[S(b), B]`."""
    return f"[{', '.join(map(str, layout))}]"


def parse_layout(text: str) -> Layout:
    """The inverse of `format_layout`; raises ValueError on anything else."""
    stripped = text.strip()
    if not (stripped.startswith("[") and stripped.endswith("]")):
        raise ValueError(f"`{text}` is not a layout such as [S(b), B]")
    inner = stripped[1:-1].strip()
    return tuple(parse_placement(part) for part in inner.split(",")) if inner else ()


@dataclass(frozen=True, slots=True)
class Axis:
    """One mesh axis.

    Attributes:
        name: named after the hardware levels it runs over (`gpu`, `node`, `gpu.1`).
        size: ranks along it, at least 2.
        stride: distance, in devices of the machine, between neighbours along it.
    """

    name: str
    size: int
    stride: int

    def __str__(self) -> str:
        return f"{self.name}:{self.size}@{self.stride}"


@dataclass(frozen=True)
class Mesh:
    """The devices of one stage as a grid: device = offset + sum(coordinate * stride).

    Attributes:
        axes: outermost first; empty for one device.
        offset: device at the origin.
    """

    axes: tuple[Axis, ...]
    offset: int = 0

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return prod(axis.size for axis in self.axes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Ranks along each axis."""
        return tuple(axis.size for axis in self.axes)

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """All coordinates in row-major order (outermost axis slowest)."""
        return product(*(range(axis.size) for axis in self.axes))

    def device(self, coordinate: Sequence[int]) -> int:
        """The device at a coordinate."""
        return self.offset + sum(
            c * axis.stride for c, axis in zip(coordinate, self.axes, strict=True)
        )

    def devices(self) -> tuple[int, ...]:
        """All devices in the order of `coordinates`."""
        return self._devices

    @cached_property
    def _devices(self) -> tuple[int, ...]:
        devices = [self.offset]
        for axis in self.axes:
            steps = range(0, axis.size * axis.stride, axis.stride)
            devices = [device + step for device in devices for step in steps]
        return tuple(devices)

    def group(self, coordinate: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
        """Devices that share this coordinate but for `axes` (indices), in mesh order."""
        ranges = [
            range(axis.size) if i in axes else (coordinate[i],) for i, axis in enumerate(self.axes)
        ]
        return tuple(self.device(c) for c in product(*ranges))

    def __str__(self) -> str:
        grid = " x ".join(map(str, self.axes)) or "1 device"
        return f"{grid} +{self.offset}"


def reachable(source: Layout, target: Layout) -> bool:
    """Whether a tensor can move between two layouts: nothing becomes partial that was not."""
    return all(t.kind != "P" or s == t for s, t in zip(source, target, strict=True))


def split_factor(dim: str, layout: Layout, sizes: Sequence[int]) -> int:
    """Into how many parts the layout cuts `dim`; `sizes` are the ranks per axis."""
    factor = 1
    for placement, size in zip(layout, sizes, strict=True):
        if placement.kind == "S" and placement.name == dim:
            factor *= size
    return factor


def local_shape(
    dims: Sequence[str], layout: Layout, sizes: Sequence[int], extent: Mapping[str, int]
) -> tuple[int, ...]:
    """Shape of one rank's piece of a tensor with `dims`.

    Args:
        dims: dim names in storage order.
        layout: one placement per mesh axis.
        sizes: ranks per mesh axis.
        extent: global size of every dim.

    Raises:
        Refusal: a dim does not divide, or a split names a dim that the tensor lacks.
    """
    shape = [extent[dim] for dim in dims]
    for placement, size in zip(layout, sizes, strict=True):
        if placement.kind != "S":
            continue
        if placement.name not in dims:
            raise Refusal(f"no dim {placement.name} among ({' '.join(dims)})")
        index = dims.index(placement.name)
        if shape[index] % size:
            whole = extent[placement.name]
            raise Refusal(
                f"{placement.name}={whole} does not divide by "
                f"{whole // shape[index] * size if shape[index] else size}"
            )
        shape[index] //= size
    return tuple(shape)


def shard_index(dim: str, layout: Layout, sizes: Sequence[int], coordinate: Sequence[int]) -> int:
    """Which shard of `dim` the rank at `coordinate` holds (outer axis first)."""
    index = 0
    for placement, size, c in zip(layout, sizes, coordinate, strict=True):
        if placement.kind == "S" and placement.name == dim:
            index = index * size + c
    return index
