"""Law 2: a route performed on shards equals cutting the whole tensor anew, for all layout pairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest
import torch

from autoplan.boxing import Step, route, route_table, volume
from autoplan.boxing.routes import STEP_PENALTY
from autoplan.errors import Refusal
from autoplan.ir.layout import Axis, B, Layout, Mesh, P, S, local_shape, parse_layout, reachable
from autoplan.ir.program import Instr
from autoplan.runtime.kernels.collective import local_result
from autoplan.runtime.shards import local_slices

DIMS = ("x", "y")
Pieces = list[torch.Tensor]


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    axes = (Axis(f"a{i}", n, prod(sizes[i + 1 :])) for i, n in enumerate(sizes))
    return Mesh(tuple(axes))


def cut(whole: torch.Tensor, layout: Layout, mesh: Mesh, dims=DIMS) -> Pieces:
    """Every rank's piece; the terms of a partial sum are random and add up."""
    extent = dict(zip(dims, whole.shape, strict=True))
    partial = [i for i, p in enumerate(layout) if p.kind == "P"]
    terms = {}
    generator = torch.Generator().manual_seed(7)
    places = list(product(*(range(mesh.sizes[i]) for i in partial)))
    rest = whole
    for place in places[:-1]:
        terms[place] = torch.randint(-9, 9, whole.shape, generator=generator).double()
        rest = rest - terms[place]
    terms[places[-1]] = rest
    return [
        terms[tuple(c[i] for i in partial)][local_slices(dims, layout, mesh.sizes, c, extent)]
        for c in mesh.coordinates()
    ]


def perform(step: Step, pieces: Pieces, mesh: Mesh, dims=DIMS) -> Pieces:
    """One step on all ranks, with the kernels' definition of every collective."""
    results = []
    for coordinate in mesh.coordinates():
        group = mesh.group(coordinate, step.axes)
        index = group.index(mesh.device(coordinate))
        if step.kind == "slice":
            mine = pieces[mesh.device(coordinate)].chunk(len(group), dims.index(step.dim))[index]
        else:
            at = dims.index(step.dim) if step.dim else -1
            where = (at, dims.index(step.to_dim)) if step.to_dim else at
            attrs = (("dims", (where,)), ("reduction", step.reduction))
            instr = Instr(step.kind, (0,), (1,), attrs)
            (mine,) = local_result(instr, index, [(pieces[rank],) for rank in group])
        results.append(mine)
    return results


def total(steps: tuple[Step, ...], sizes: tuple[int, ...]) -> float:
    return sum(volume(step, sizes) for step in steps)


def legal_layouts(sizes: tuple[int, ...], shape: tuple[int, ...], dims=DIMS) -> list[Layout]:
    states = [*map(S, dims), B, P()]
    found = []
    for layout in product(states, repeat=len(sizes)):
        try:
            local_shape(dims, layout, sizes, dict(zip(dims, shape, strict=True)))
        except Refusal:
            continue
        found.append(layout)
    return found


def check_pair(whole: torch.Tensor, pair: tuple[Layout, Layout], mesh: Mesh) -> None:
    source, target = pair
    shape = tuple(whole.shape)
    if not reachable(source, target):
        with pytest.raises(Refusal):
            route(source, target, DIMS, shape, mesh.sizes)
        return
    pieces = cut(whole, source, mesh)
    layout = source
    for step in route(source, target, DIMS, shape, mesh.sizes):
        assert step.before == layout
        pieces, layout = perform(step, pieces, mesh), step.after
    assert layout == target
    kept = [i for i, p in enumerate(target) if p.kind == "P"]
    sums = {}
    for coordinate, piece in zip(mesh.coordinates(), pieces, strict=True):
        rest = tuple(0 if i in kept else c for i, c in enumerate(coordinate))
        sums[rest] = sums.get(rest, 0) + piece
    whole_target = tuple(B if p.kind == "P" else p for p in target)
    expected = cut(whole, whole_target, mesh)
    for coordinate, wanted in zip(mesh.coordinates(), expected, strict=True):
        rest = tuple(0 if i in kept else c for i, c in enumerate(coordinate))
        assert torch.equal(sums[rest], wanted), f"{source} -> {target}"


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((2,), (2, 2)), ((4,), (4, 4)), ((2, 2), (4, 4)), ((2, 3), (6, 6)), ((2, 3), (6, 4)),
     ((3, 2), (2, 6)), ((), (2, 2))],
)  # fmt: skip
def test_all_pairs(sizes, shape):
    mesh = mesh_of(sizes)
    whole = torch.arange(float(prod(shape)), dtype=torch.float64).view(shape)
    layouts = legal_layouts(sizes, shape)
    for pair in product(layouts, layouts):
        check_pair(whole, pair, mesh)


@pytest.mark.parametrize(("sizes", "shape"), [((2, 2, 2), (8, 8)), ((2, 3, 2), (12, 12))])
def test_a_sample_of_pairs_on_three_axes(sizes, shape):
    mesh, rng = mesh_of(sizes), Random(0)
    whole = torch.arange(float(prod(shape)), dtype=torch.float64).view(shape)
    layouts = legal_layouts(sizes, shape)
    for pair in rng.sample(list(product(layouts, layouts)), 250):
        check_pair(whole, pair, mesh)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((2,), (2, 2)), ((4,), (4, 4)), ((2, 2), (4, 4)), ((2, 3), (6, 6)), ((2, 2, 2), (8, 8))],
)
def test_never_dearer_than_through_a_third_layout(sizes, shape):
    layouts = legal_layouts(sizes, shape)
    count = len(layouts)
    volumes, steps = np.full((count, count), np.inf), np.zeros((count, count))
    for i, j in product(range(count), repeat=2):
        if reachable(layouts[i], layouts[j]):
            found = route(layouts[i], layouts[j], DIMS, shape, sizes)
            volumes[i, j], steps[i, j] = total(found, sizes), len(found)
    for k in range(count):
        through = volumes[:, k : k + 1] + volumes[k]
        # Volume that would need more collectives is left on the table, a thousandth for each.
        spared = np.maximum(steps[:, k : k + 1] + steps[k] - steps, 0) * STEP_PENALTY
        assert (volumes <= through + spared + 1e-9).all()


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (2, 3), (2, 2, 2)])
def test_zero_volume_only_where_no_byte_moves(sizes):
    """Without communication a rank can have only what it held: a part of its own piece."""
    shape = (12, 12)
    mesh, extent = mesh_of(sizes), dict(zip(DIMS, shape, strict=True))
    layouts = legal_layouts(sizes, shape)
    for source, target in product(layouts, layouts):
        if not reachable(source, target):
            continue
        partial = [(s, t) for s, t in zip(source, target, strict=True) if s.kind == "P"]
        same_partials = all(s == t for s, t in partial)
        held = same_partials and all(
            a.start <= b.start and b.stop <= a.stop
            for c in mesh.coordinates()
            for a, b in zip(
                local_slices(DIMS, source, sizes, c, extent),
                local_slices(DIMS, target, sizes, c, extent),
                strict=True,
            )
        )
        assert (total(route(source, target, DIMS, shape, sizes), sizes) == 0.0) == held


def test_changing_one_axis_at_a_time_is_wrong():
    """The trap that routes on whole layouts avoid: each axis moved as if it were alone.

    Of the 144 pairs with a whole target 40 go wrong (of all 256, to partial targets too, 48); in
    each, both axes split one dim on the way.
    """
    mesh = mesh_of((2, 2))
    whole = torch.arange(16.0, dtype=torch.float64).view(4, 4)
    layouts = legal_layouts((2, 2), (4, 4))
    wrong = 0
    for source, target in product(layouts, layouts):
        if any(p.kind == "P" for p in target):
            continue
        middle = (source[0], target[1])
        pieces = cut(whole, source, mesh)
        for axis, before, after in ((1, source, middle), (0, middle, target)):
            for step in route((before[axis],), (after[axis],), DIMS, (4, 4), (2,)):
                pieces = perform(replace(step, axes=(axis,)), pieces, mesh)
        expected = cut(whole, target, mesh)
        if any(not torch.equal(a, b) for a, b in zip(pieces, expected, strict=True)):
            wrong += 1
            assert any(p[0] == p[1] and p[0].kind == "S" for p in (source, middle, target))
    assert wrong == 40


def test_softmax_statistics_merge():
    dims, sizes = ("b", "c"), (2,)
    (step,) = route((P("softmax"),), (B,), dims, (4, 2), sizes)
    assert (step.kind, step.reduction) == ("all_reduce", "softmax")
    with pytest.raises(Refusal):
        route((P(),), (P("softmax"),), dims, (4, 2), sizes)


def test_routes_of_four_axes_are_found_quickly():
    """2401 layouts: a table of all pairs would be made of 5.7 million routes."""
    table = route_table(("b", "s", "g", "r", "d"), (16,) * 5, (2,) * 4)
    target = parse_layout("[S(s), B, B, S(b)]")
    assert table.route(parse_layout("[S(b), S(g), S(r), B]"), target)[-1].after == target


def test_fused_axes_move_in_one_collective():
    (step,) = route(parse_layout("[S(x), S(x)]"), parse_layout("[B, B]"), DIMS, (4, 4), (2, 2))
    assert (step.kind, step.axes) == ("all_gather", (0, 1))
    (step,) = route(parse_layout("[P, P]"), parse_layout("[S(y), S(y)]"), DIMS, (4, 4), (2, 2))
    assert (step.kind, step.axes) == ("reduce_scatter", (0, 1))


def test_the_table_of_all_pairs_agrees_with_single_routes():
    table = route_table(DIMS, (4, 4), (2, 2))
    for source, target in product(table.layouts, table.layouts):
        i, j = table.number[source], table.number[target]
        if not reachable(source, target):
            assert table.following[i, j] == -1
            continue
        hops = []
        while i != j:
            i = int(table.following[i, j])
            hops.append(table.layouts[i])
        assert hops == [step.after for step in table.route(source, target)]
