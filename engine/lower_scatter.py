"""Writing by index → Scatter."""

from collections.abc import Sequence
from math import prod

from graphdoc.engine.expr import F32, F64, I32, I64, Expr, apply, cast, const
from graphdoc.engine.kernels.scatter import COMBINE, Scatter
from graphdoc.engine.lower import NotLowered, Site, lowering
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.ops.host import axis_of
from graphdoc.engine.program import View


def _checked(data: View, indices: View, reduction: str) -> None:
    if reduction not in COMBINE or indices.dtype not in (I32, I64):
        raise NotLowered(f"reduction {reduction}, or indices of {indices.dtype}")
    if reduction != "none" and data.dtype not in (F32, F64, I32, I64):
        raise NotLowered(f"reduction of {data.dtype}")


@lowering("ScatterElements", "Scatter")
def scatter_elements(
    at: Site, data: View, indices: View, updates: View, *, axis: int = 0, reduction: str = "none"
) -> View:
    """A copy of data, each update at its own place, with the axis replaced by the index."""
    axis = axis_of(axis, len(data.shape))
    _checked(data, indices, reduction)
    larger = [n > m for a, (n, m) in enumerate(zip(indices.shape, data.shape, strict=True)) if a != axis]
    if indices.shape != updates.shape or any(larger) or data.dtype != updates.dtype:
        raise NotLowered(f"updates {updates.shape} at indices {indices.shape} in data {data.shape}")
    out = at.fresh(data.shape, data.dtype)
    at.step(Scatter(axis, reduction), [at.dense(data), indices, updates], [out])
    return out


@lowering("ScatterND")
def scatter_nd(at: Site, data: View, indices: View, updates: View, *, reduction: str = "none") -> View:
    """A copy of data, whole slices of it at the index tuples on the last axis of the indices."""
    depth = indices.shape[-1]
    _checked(data, indices, reduction)
    expected = (*indices.shape[:-1], *data.shape[depth:])
    if not 1 <= depth <= len(data.shape) or updates.shape != expected or data.dtype != updates.dtype:
        raise NotLowered(f"updates {updates.shape} at indices {indices.shape} in data {data.shape}")
    looked_up, slice_ = data.shape[:depth], prod(data.shape[depth:])
    count, rows = prod(indices.shape[:-1]), prod(looked_up)
    parts = [
        View(
            indices.buffer, indices.shape[:-1], indices.strides[:-1], indices.offset + k * indices.strides[-1]
        )
        for k in range(depth)
    ]
    places = at.map(lambda *numbers: _row_major(numbers, looked_up), *parts)
    number = with_ones(at.reshape(places, (count,)), [1]).broadcast((count, slice_))
    out = at.fresh((rows, slice_), data.dtype)
    table = at.reshape(at.dense(data), (rows, slice_))
    at.step(Scatter(0, reduction), [table, number, at.reshape(updates, (count, slice_))], [out])
    return at.reshape(out, data.shape)


def _row_major(numbers: Sequence[Expr], sizes: Sequence[int]) -> Expr:
    """Return the place in a flat table; past its end where one of the numbers lies outside its axis."""
    place: Expr = const(0, I64)
    inside: Expr | None = None
    for number, size in zip(numbers, sizes, strict=True):
        whole = cast(number, I64)
        counted = apply("add", whole, const(size, I64))
        whole = apply("select", apply("lt", whole, const(0, I64)), counted, whole)
        fits = apply("and", apply("le", const(0, I64), whole), apply("lt", whole, const(size, I64)))
        inside = fits if inside is None else apply("and", inside, fits)
        place = apply("add", apply("mul", place, const(size, I64)), whole)
    return place if inside is None else apply("select", inside, place, const(prod(sizes), I64))
