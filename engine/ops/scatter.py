"""Writing by index into a copy: ScatterElements, ScatterND, TensorScatter."""

from typing import Any

import numpy as np

from graphdoc.engine.ops.gather import check_bounds, check_elements, element_index
from graphdoc.engine.ops.host import axis_of, beside, namespace, on_host
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.table import Array, Call, op

_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _reduce_at(result: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """Combine the updates into ``result``, repeated places in order; half precision is rounded once."""
    wide = np.float32 if result.dtype.itemsize <= 2 and result.dtype.kind not in "iub" else result.dtype
    summed = result.astype(wide)
    _REDUCTIONS[reduction].at(summed, where, updates.astype(wide, copy=False))
    return summed.astype(result.dtype, copy=False)


def _write(call: Call, data: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """Return a copy of data with the updates at ``where``. Raises ValueError for an unknown reduction."""
    if reduction != "none":
        if reduction not in _REDUCTIONS:
            raise ValueError(f"Scatter does not know reduction '{reduction}'")
        count = len(where)

        def combine(data: Array, updates: Array, *parts: Array) -> Array:
            return _reduce_at(data, parts[:count], updates, reduction)

        return on_host(call, combine, data, updates, *where)
    result = data.copy()
    result[where] = updates
    return result


def _check_places(call: Call, data: Array, indices: Array, axis: int) -> None:
    if namespace(call, data).__name__ != "numpy":
        check_bounds(call.xp, indices, data.shape[axis])


@op("ScatterElements", 11, 13, 16, 18, infer=same_as_first)
def scatter_elements(
    call: Call, data: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """A copy of ``data`` in which each update replaces (or is added … to) one element (ONNX
    ScatterElements-18).

    The place is the update's own, with ``axis`` replaced by its index. Of repeated places without
    reduction the last wins. reduction: none, add, mul (version 16), max, min (version 18).
    Raises ValueError for shapes that do not fit, IndexError out of bounds.
    """
    indices = beside(data, indices)
    check_elements(data, indices, axis)
    if indices.shape != updates.shape:
        raise ValueError(f"updates {list(updates.shape)} do not match indices {list(indices.shape)}")
    _check_places(call, data, indices, axis)
    return _write(call, data, element_index(call, indices, axis), updates, reduction)


@op("Scatter", 9, 11, infer=same_as_first)
def scatter(call: Call, data: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    """ScatterElements under its first name, without reduction (ONNX Scatter-11)."""
    return scatter_elements(call, data, indices, updates, axis=axis)


@op("ScatterND", 11, 13, 16, 18, infer=same_as_first)
def scatter_nd(call: Call, data: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """A copy of ``data`` in which slices are replaced (or combined), at index tuples (ONNX ScatterND-18).

    The last axis of ``indices`` holds the tuples; ``updates`` has the remaining axes of indices, then
    those of a slice. Raises ValueError for shapes that do not fit, IndexError out of bounds.
    """
    indices = beside(data, indices)
    depth = indices.shape[-1]
    expected = indices.shape[:-1] + data.shape[depth:]
    if depth > data.ndim or updates.shape != expected:
        raise ValueError(f"ScatterND updates {list(updates.shape)} do not fit, {list(expected)} would")
    places = tuple(indices[..., place] for place in range(depth))
    for axis, place in enumerate(places):
        _check_places(call, data, place, axis)
    return _write(call, data, places, updates, reduction)


@op("TensorScatter", 24, infer=same_as_first)
def tensor_scatter(
    call: Call,
    past_cache: Array,
    update: Array,
    write_indices: Array | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Array:
    """The cache with ``update`` written along ``axis`` from ``write_indices`` [batch] on (default 0) (ONNX
    TensorScatter-24).

    mode circular wraps around the axis; linear raises IndexError past its end.
    """
    xp: Any = namespace(call, past_cache)
    axis = axis_of(axis, past_cache.ndim)
    size, count, batch = past_cache.shape[axis], update.shape[axis], past_cache.shape[0]
    starts = xp.zeros(batch, dtype="int64") if write_indices is None else write_indices
    places = starts[:, None] + xp.arange(count)
    if mode == "circular":
        places %= size
    check_bounds(xp, places, size)
    result = past_cache.copy()
    # The batch axis and the written one come first, so that the two index arrays pair up.
    xp.moveaxis(result, axis, 1)[xp.arange(batch)[:, None], places] = xp.moveaxis(update, axis, 1)
    return result
