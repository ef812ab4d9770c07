"""Laws: what `stored_at` splits, `level_of` reads back; stored layouts can be reached and
divide."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from autoplan.ir.layout import B, P, S, local_shape, parse_layout, reachable
from autoplan.ops.storing import LEVELS, level_of, shard_over, splittable_axes, stored_at

DIMS = ("f", "m")
EXTENT = {"f": 12, "m": 8}
USED_AND_RAW = [
    ("[B, B]", "[P, P]"), ("[S(f), B]", "[S(f), P]"), ("[B, S(m)]", "[P, S(m)]"),
    ("[S(f), S(m)]", "[S(f), S(m)]"), ("[B, B]", "[P, B]"), ("[B]", "[P]"), ("[]", "[]"),
    ("[B, S(f), B]", "[P, S(f), P]"),
]  # fmt: skip


def subsets(axes):
    return [chosen for count in range(len(axes) + 1) for chosen in combinations(axes, count)]


def all_cases():
    for (used, raw), level in product(USED_AND_RAW, LEVELS):
        used_layout, raw_layout = parse_layout(used), parse_layout(raw)
        for axes in subsets(splittable_axes(used_layout, raw_layout)):
            yield used_layout, raw_layout, level, axes


@pytest.mark.parametrize("size", [2, 4])
def test_levels_round_trip(size):
    for used, raw, level, axes in all_cases():
        sizes = (size,) * len(used)
        stored = stored_at(level, used, raw, axes, (DIMS, EXTENT, sizes))
        split = shard_over(used, axes, DIMS, EXTENT, sizes) if axes else None
        for axis in range(len(used)):
            expected = level if split is not None and axis in axes else "whole"
            assert level_of(stored, used, raw, axis) == expected


def test_stored_layouts_divide_and_can_be_reached():
    for used, raw, level, axes in all_cases():
        sizes = (2,) * len(used)
        stored = stored_at(level, used, raw, axes, (DIMS, EXTENT, sizes))
        for layout in (stored.parameter, stored.gradient, stored.optimizer):
            local_shape(DIMS, layout, sizes, EXTENT)
        moves = [
            (stored.parameter, used), (raw, stored.gradient),
            (stored.gradient, stored.optimizer), (stored.optimizer, stored.parameter),
        ]  # fmt: skip
        assert all(reachable(source, target) for source, target in moves)
        assert not any(p.kind == "P" for p in (*stored.parameter, *stored.optimizer))


def test_only_axes_with_a_whole_parameter_and_a_partial_gradient_are_splittable():
    used, raw = (B, B, S("f"), B), (P(), B, S("f"), P())
    assert splittable_axes(used, raw) == (0, 3)


def test_the_largest_local_dim_that_divides_is_split():
    assert shard_over((B,), (0,), DIMS, EXTENT, (2,)) == (S("f"),)
    assert shard_over((B,), (0,), DIMS, EXTENT, (8,)) == (S("m"),)
    assert shard_over((B,), (0,), DIMS, EXTENT, (5,)) is None


def test_a_dim_that_an_inner_axis_splits_already_is_avoided():
    """The gather of an outer split alone is not one collective."""
    assert shard_over((B, S("f")), (0,), DIMS, EXTENT, (2, 2)) == (S("m"), S("f"))
    assert shard_over((S("f"), B), (1,), DIMS, EXTENT, (2, 2)) == (S("f"), S("m"))
    assert shard_over((S("m"), B), (1,), DIMS, EXTENT, (2, 2)) == (S("m"), S("f"))


def test_levels_are_ordered_by_what_they_split():
    used, raw, tensor = (B,), (P(),), (DIMS, EXTENT, (2,))
    split = [
        sum(layout != whole for layout, whole in zip(
            (s.parameter, s.gradient, s.optimizer), (used, raw, used), strict=True))
        for s in (stored_at(level, used, raw, (0,), tensor) for level in LEVELS)
    ]  # fmt: skip
    assert split == [0, 1, 2, 3]
