"""Which part of a whole tensor a rank holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoplan.ir.layout import Layout, local_shape, shard_index


def local_slices(
    dims: Sequence[str],
    layout: Layout,
    sizes: Sequence[int],
    coordinate: Sequence[int],
    extent: Mapping[str, int],
) -> tuple[slice, ...]:
    """The rank's part of a tensor, one slice per storage dim.

    Args:
        dims: dim names in storage order.
        layout: one placement per mesh axis; a partial piece covers what a full copy covers.
        sizes: ranks per mesh axis.
        coordinate: of the rank in the mesh.
        extent: global size of every dim.

    Raises:
        Refusal: as `ir.layout.local_shape`.
    """
    shape = local_shape(dims, layout, sizes, extent)
    starts = (
        shard_index(dim, layout, sizes, coordinate) * size
        for dim, size in zip(dims, shape, strict=True)
    )
    return tuple(slice(start, start + size) for start, size in zip(starts, shape, strict=True))
