"""Reading by index → views where the places are known and evenly spaced, else Gather."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.expr import I32, I64
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.lower import NotLowered, Site, content, lowering
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.ops.host import axis_of
from graphdoc.engine.program import View


def look_up(at: Site, data: View, places: View, axis: int) -> View:
    """Return data with an axis replaced by the entries at places, a vector."""
    size, known = data.shape[axis], content(places)
    if known is not None:
        even = _evenly(known, size)
        if even is not None:
            return data.sliced(axis, *even)
    index = places if places.dtype in (I32, I64) else at.cast(places, I64)
    shape = (*data.shape[:axis], index.shape[0], *data.shape[axis + 1 :])
    result = at.fresh(shape, data.dtype, data)
    ones = [a for a in range(len(shape)) if a != axis]
    at.step(
        Gather(axis),
        [data.broadcast(_with(shape, axis, size)), with_ones(index, ones).broadcast(shape)],
        [result],
    )
    return result


def _with(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _evenly(places: Any, size: int) -> tuple[int, int, int] | None:
    """Return (start, count, step) of evenly spaced places, None when they are not or lie outside."""
    if not places.size or places.min() < -size or places.max() >= size:
        return None
    found = np.where(places < 0, places + size, places).astype(np.int64).reshape(-1)
    if found.size == 1:
        return int(found[0]), 1, 1
    step = int(found[1] - found[0])
    even = step != 0 and bool((np.diff(found) == step).all())
    return (int(found[0]), found.size, step) if even else None


@lowering("Gather")
def gather(at: Site, data: View, indices: View, *, axis: int = 0) -> View:
    """The slices of data along an axis at the indices, whose axes stand in the axis' place."""
    axis = axis_of(axis, len(data.shape))
    found = look_up(at, data, at.reshape(indices, (indices.size,)), axis)
    if len(indices.shape) == 1:
        return found
    shape = (*found.shape[:axis], *indices.shape, *found.shape[axis + 1 :])
    return (
        found.permuted([a for a in range(len(found.shape)) if a != axis])
        if not indices.shape
        else at.reshape(found, shape)
    )


@lowering("GatherElements")
def gather_elements(at: Site, data: View, indices: View, *, axis: int = 0) -> View:
    """One element of data per index: its own place, with the axis replaced by the index."""
    axis = axis_of(axis, len(data.shape))
    if len(data.shape) != len(indices.shape):
        raise ValueError("ranks differ")
    for other, size in enumerate(indices.shape):
        if other != axis:
            if size > data.shape[other]:
                raise ValueError(f"indices {indices.shape} do not fit data {data.shape}")
            data = data.sliced(other, 0, size)
    result = at.fresh(indices.shape, data.dtype, data)
    at.step(Gather(axis), [data, indices], [result])
    return result


@lowering("GatherND")
def gather_nd(at: Site, data: View, indices: View, *, batch_dims: int = 0) -> View:
    """The slices of data at index tuples: of one number each, or known ones."""
    if batch_dims or indices.shape[-1] != 1:
        raise NotLowered("tuples of indices, or batches")
    places = at.reshape(indices, (indices.size,))
    return at.reshape(look_up(at, data, places, 0), (*indices.shape[:-1], *data.shape[1:]))
