"""The outer space of a question: which candidates there are, and in which order they are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from math import inf

from autoplan.cost import Pricer
from autoplan.ir.layout import Mesh
from autoplan.search.candidates import (
    Shape,
    distinct_arrangements,
    divisors,
    factorisations,
    refinements,
)
from autoplan.search.engine import Freedom
from autoplan.search.freedom import Degrees, freedoms, outer_pins
from autoplan.search.ideal import ideal_seconds
from autoplan.search.result import Request

EXHAUSTIVE = 8
"""Devices up to which every mesh is tried for every depth and batch."""
WIDENED = 3
"""(depth, micro-batches) pairs whose every mesh is tried on larger machines."""
REFINED = 2
"""Candidates whose mesh gets a third axis, of those with the best estimates."""
FINER = 3
"""Meshes with a third axis that are tried."""
FINE_ENOUGH = 64
"""Devices up to which two axes are as fine as the levels of a machine."""
AXES = 3
"""Most axes of a stage's mesh."""

Group = tuple[float, Sequence[Shape]]
"""(bound, meshes) of a depth and a number of micro-batches."""


class Outline:
    """Candidates, but for what is decided inside them.

    Args:
        request: the question.
        pricer: tells which orders of axes in the machine differ.
    """

    def __init__(self, request: Request, pricer: Pricer) -> None:
        self.request, self.pricer = request, pricer
        self.ideal = ideal_seconds(request)
        self.every = request.hardware.count <= EXHAUSTIVE
        self._orders: dict[tuple[tuple[int, ...], int], list[tuple[Mesh, int]]] = {}

    def bound(self, stages: int, micro_batches: int) -> float:
        """No candidate of this depth and so many micro-batches is estimated faster, however unequal
        its stages: the slowest of them takes at least the mean, in the closed form of `step`.
        """
        return self.ideal * (micro_batches + stages - 1) / micro_batches

    def groups(
        self, incumbent: float, computing: Callable[[Shape, Freedom], float]
    ) -> list[Group]:  # fmt: skip
        """Every depth and number of micro-batches, with every mesh on small machines and a few that
        follow the levels of large ones; the least bound first.

        Args:
            incumbent: seconds; where matrix products alone take as long, that is the bound.
            computing: seconds that a candidate computes alone, the bound of all others.
        """
        pins = outer_pins(self.request)
        count, batch = self.request.hardware.count, self.request.workload.global_batch_size
        groups = []
        for stages, micro_batches in product(divisors(count), divisors(batch)):
            if not (pins.stages(stages) and pins.micro_batches(micro_batches)):
                continue
            shapes = self.shapes(stages, micro_batches, self.every)
            bound = self.bound(stages, micro_batches)
            if bound < incumbent:
                every = (computing(*one) for one in self.candidates(shapes))
                legal = [seconds for seconds in every if seconds < inf]
                bound = max(bound, min(legal, default=bound))
            groups.append((bound, shapes))
        return sorted(groups, key=lambda group: group[0])

    def candidates(self, shapes: Iterable[Shape]) -> Iterator[tuple[Shape, Freedom]]:
        """Every way in which the axes of meshes can play the pinned roles."""
        for shape in shapes:
            degrees = Degrees(shape.stages, shape.mesh.sizes, shape.micro_batches, shape.schedule)
            for freedom in freedoms(self.request, degrees):
                yield shape, freedom

    def shapes(self, stages: int, micro_batches: int, every: bool) -> list[Shape]:
        """Meshes for a depth: every one, or the few that follow the machine's levels."""
        hardware = self.request.hardware
        devices = hardware.count // stages
        inner = min(devices, hardware.devices_per_node)
        natural = {(devices,), (devices // inner, inner), (2, devices // 2), (devices // 2, 2)}
        shapes = []
        for sizes in factorisations(devices):
            if not every and sizes not in natural and sizes != ():
                continue
            orders = self._arrangements(sizes, stages)
            for mesh, stride in orders if every else orders[:1]:
                for schedule in outer_pins(self.request).schedules:
                    shapes.append(Shape(stages, mesh, stride, micro_batches, schedule))
        return shapes

    def _arrangements(self, sizes: tuple[int, ...], stages: int) -> list[tuple[Mesh, int]]:
        key = (sizes, stages)
        if key not in self._orders:
            self._orders[key] = distinct_arrangements(self.pricer, sizes, stages)
        return self._orders[key]

    def wider(self, ahead: Sequence[Shape]) -> Iterator[list[Shape]]:
        """Every mesh and order of the first few depths and numbers of micro-batches; none where
        they have been tried.
        """
        pairs = dict.fromkeys((shape.stages, shape.micro_batches) for shape in ahead)
        for pair in islice(pairs, 0 if self.every else WIDENED):
            yield self.shapes(*pair, every=True)

    def finer(self, ahead: Sequence[Shape]) -> list[Shape]:
        """The first few meshes with one axis more; none where that would be finer than levels."""
        if self.request.hardware.count <= FINE_ENOUGH:
            return []
        shapes = [
            replace(shape, mesh=mesh)
            for shape in ahead[:REFINED]
            for mesh in refinements(self.request.hardware, shape.mesh)
            if len(mesh.axes) <= AXES
        ]
        return list(dict.fromkeys(shapes))[:FINER]
