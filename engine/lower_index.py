"""Reading by index → views where the places are known and evenly spaced, else Gather."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.expr import I32, I64, Expr, apply, cast, const, index
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
    numbers = places if places.dtype in (I32, I64) else at.cast(places, I64)
    shape = (*data.shape[:axis], numbers.shape[0], *data.shape[axis + 1 :])
    result = at.fresh(shape, data.dtype, data)
    ones = [a for a in range(len(shape)) if a != axis]
    at.step(
        Gather(axis),
        [data.broadcast(_with(shape, axis, size)), with_ones(numbers, ones).broadcast(shape)],
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
    """The slices of data at the index tuples on the last axis of the indices."""
    depth = indices.shape[-1]
    looked_up = data.shape[: batch_dims + depth]
    if (
        data.shape[:batch_dims] != indices.shape[:batch_dims]
        or not 1 <= depth <= len(data.shape) - batch_dims
    ):
        raise ValueError(f"indices {indices.shape} do not fit data {data.shape}")
    parts = [
        indices.sliced(len(indices.shape) - 1, k, 1).permuted(range(len(indices.shape) - 1))
        for k in range(depth)
    ]
    places = (
        at.map(lambda *numbers: _row_major(numbers, looked_up, batch_dims), *parts)
        if depth + batch_dims > 1
        else parts[0]
    )
    table = at.reshape(data, (prod(looked_up), *data.shape[len(looked_up) :]))
    found = look_up(at, table, at.reshape(places, (places.size,)), 0)
    return at.reshape(found, (*indices.shape[:-1], *data.shape[len(looked_up) :]))


def _row_major(numbers: Sequence[Expr], sizes: Sequence[int], batch_dims: int) -> Expr:
    """Return the place in a flat table; outside of it where one of the numbers lies outside its axis."""
    place: Expr = const(0, I64)
    inside: Expr | None = None
    for axis, size in enumerate(sizes):
        number = index(axis) if axis < batch_dims else cast(numbers[axis - batch_dims], I64)
        if axis >= batch_dims:
            number = apply(
                "select", apply("lt", number, const(0, I64)), apply("add", number, const(size, I64)), number
            )
            fits = apply("and", apply("le", const(0, I64), number), apply("lt", number, const(size, I64)))
            inside = fits if inside is None else apply("and", inside, fits)
        place = apply("add", apply("mul", place, const(size, I64)), number)
    return place if inside is None else apply("select", inside, place, const(prod(sizes), I64))


@lowering("OneHot", since=11)
def one_hot(at: Site, indices: View, depth: View, values: View, *, axis: int = -1) -> View:
    """A new axis, values[1] where it equals the index and values[0] elsewhere."""
    size = int(at.known(depth, "the depth").reshape(()))
    axis = axis_of(axis, len(indices.shape) + 1)
    if indices.dtype not in (I32, I64):
        raise NotLowered("indices that are no int32 or int64")
    shape = (*indices.shape[:axis], size, *indices.shape[axis:])
    off, on = (_entry(values, k) for k in (0, 1))

    def build(place: Expr, cold: Expr, hot: Expr) -> Expr:
        number = cast(place, I64)
        number = apply(
            "select", apply("lt", number, const(0, I64)), apply("add", number, const(size, I64)), number
        )
        return apply("select", apply("eq", number, index(axis)), hot, cold)

    return at.map(build, with_ones(indices, [axis]), off, on, shape=shape)


def _entry(view: View, k: int) -> View:
    """Return an entry of a vector as a scalar."""
    return View(view.buffer, (), (), view.offset + k * view.strides[0])
