"""The outer space: pipeline depth, mesh of a stage, order of axes in the machine, micro-batches.

A stage's mesh has up to two axes, in both logical orders; its axes and the pipeline may lie in any
order in the machine. Orders with equal prices (an NVLink node does not care which axis is inner)
are one candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from autoplan.cost import Pricer
from autoplan.ir.layout import Mesh
from autoplan.ir.machine import Hardware, name_axes

PRICED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@dataclass(frozen=True)
class Shape:
    """A candidate of the outer space.

    Attributes:
        stages: pipeline depth.
        mesh: of the first stage.
        stage_stride: devices between the origins of neighbouring stages.
        micro_batches: per step.
        schedule: family.
    """

    stages: int
    mesh: Mesh
    stage_stride: int
    micro_batches: int
    schedule: str

    def meshes(self) -> list[Mesh]:
        """The mesh of every stage."""
        return [Mesh(self.mesh.axes, s * self.stage_stride) for s in range(self.stages)]

    def __str__(self) -> str:
        return f"{self.stages} stages of {self.mesh}, {self.micro_batches} micro-batches"


def divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def factorisations(n: int) -> list[tuple[int, ...]]:
    """`n` as up to two axes larger than one, in both orders."""
    if n == 1:
        return [()]
    return [(n,), *((d, n // d) for d in divisors(n) if 1 < d < n)]


def arrangements(
    hardware: Hardware, sizes: Sequence[int], stages: int
) -> Iterator[tuple[Mesh, int]]:
    """(mesh of the first stage, stride between stages) for every order in the machine."""
    items = [*range(len(sizes)), *(["stages"] if stages > 1 else [])]
    for order in permutations(items):  # innermost first
        stride, strides = 1, dict[object, int]()
        for item in order:
            strides[item] = stride
            stride *= sizes[item] if isinstance(item, int) else stages
        grid = [(size, strides[i]) for i, size in enumerate(sizes)]
        yield Mesh(name_axes(hardware, grid)), strides.get("stages", 0)


def distinct_arrangements(
    pricer: Pricer, sizes: Sequence[int], stages: int
) -> list[tuple[Mesh, int]]:
    """Arrangements with different prices; of equal ones the one with the stages outermost."""
    table: dict[tuple[object, ...], tuple[Mesh, int]] = {}
    every = sorted(
        arrangements(pricer.hardware, sizes, stages),
        key=lambda a: (-a[1], [-axis.stride for axis in a[0].axes]),
    )
    for mesh, stride in every:
        axes = range(len(sizes))
        subsets = [(i,) for i in axes] + ([tuple(axes)] if len(sizes) > 1 else [])
        prices = [pricer.mesh_terms(kind, subset, mesh) for kind in PRICED for subset in subsets]
        first = mesh.devices()
        nearby = [device + stride for device in first]
        hop = pricer.exchange_seconds(1 << 20, first, nearby) if stages > 1 else 0.0
        table.setdefault((*prices, hop), (mesh, stride))
    return list(table.values())


def refinements(hardware: Hardware, mesh: Mesh) -> list[Mesh]:
    """The mesh with one axis cut in two: at a level of the machine where it runs over several, else
    in the middle; both halves keep their place in the machine and in the order of splits.
    """
    meshes = []
    for position, axis in enumerate(mesh.axes):
        inside = [span // axis.stride for span in hardware.spans if span % axis.stride == 0]
        cuts = [cut for cut in inside if 1 < cut < axis.size and axis.size % cut == 0]
        middle = [d for d in divisors(axis.size) if 1 < d < axis.size]
        cuts = cuts or middle[len(middle) // 2 : len(middle) // 2 + 1]
        for inner in cuts:
            grid = [(other.size, other.stride) for other in mesh.axes]
            grid[position : position + 1] = [
                (axis.size // inner, axis.stride * inner), (inner, axis.stride),
            ]  # fmt: skip
            meshes.append(Mesh(name_axes(hardware, grid), mesh.offset))
    return meshes
