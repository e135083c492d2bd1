"""Reading by index: Gather, GatherElements, GatherND."""

from typing import Any

from graphdoc.engine.ops.host import axis_of, beside, namespace
from graphdoc.engine.ops.shapes import first_dtype
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op


def check_bounds(xp: Any, indices: Array, size: int) -> None:
    """Raise IndexError unless all indices lie in [-size, size − 1]; CuPy would wrap them silently."""
    if indices.size and (int(indices.min()) < -size or int(indices.max()) >= size):
        raise IndexError(
            f"index {int(indices.min())} … {int(indices.max())} is out of bounds for size {size}"
        )


def _gather_type(call: Call, data: TensorType, indices: TensorType, *, axis: int = 0) -> TensorType:
    if data.shape is None or indices.shape is None:
        return TensorType(data.dtype)
    at = axis % len(data.shape)
    return TensorType(data.dtype, (*data.shape[:at], *indices.shape, *data.shape[at + 1 :]))


@op("Gather", 1, 11, 13, infer=_gather_type)
def gather(call: Call, data: Array, indices: Array, *, axis: int = 0) -> Array:
    """The slices of ``data`` along ``axis`` at ``indices``, whose axes stand in the axis' place (ONNX
    Gather-13).

    Negative indices count from the end. Raises IndexError when one is out of bounds. A single index gives
    a view.
    """
    before = (slice(None),) * axis_of(axis, data.ndim)
    if indices.ndim == 0:
        return data[(*before, int(indices), ...)]
    xp, indices = namespace(call, data), beside(data, indices)
    if xp.__name__ != "numpy":
        check_bounds(xp, indices, data.shape[axis])
    if data.flags.c_contiguous:
        return xp.take(data, indices, axis=axis)
    return data[(*before, indices)]  # take would first copy all of a strided array


def _gather_elements_type(call: Call, data: TensorType, indices: TensorType, *, axis: int = 0) -> TensorType:
    return TensorType(data.dtype, indices.shape)


def element_index(call: Call, indices: Array, axis: int) -> tuple[Array, ...]:
    """Return the index tuple that puts ``indices`` on one axis and each element's own place on the others."""
    xp = namespace(call, indices)
    grid = list(xp.ogrid[tuple(slice(size) for size in indices.shape)])
    grid[axis] = indices
    return tuple(grid)


def check_elements(data: Array, indices: Array, axis: int) -> None:
    """Raise ValueError unless indices have the rank of data and no longer axes (``axis`` aside)."""
    along = axis_of(axis, data.ndim)
    fits = data.ndim == indices.ndim and all(
        n <= m or a == along for a, (n, m) in enumerate(zip(indices.shape, data.shape, strict=True))
    )
    if not fits:
        raise ValueError(f"indices {list(indices.shape)} do not fit data {list(data.shape)} on axis {axis}")


@op("GatherElements", 11, 13, infer=_gather_elements_type)
def gather_elements(call: Call, data: Array, indices: Array, *, axis: int = 0) -> Array:
    """One element of ``data`` per index: its own place, with ``axis`` replaced by the index (ONNX
    GatherElements-13).

    Raises ValueError for indices that do not fit the data, IndexError out of bounds.
    """
    check_elements(data, indices, axis)
    if namespace(call, data).__name__ != "numpy":
        check_bounds(call.xp, indices, data.shape[axis])
    return data[element_index(call, beside(data, indices), axis)]


def _gather_nd_type(call: Call, data: TensorType, indices: TensorType, *, batch_dims: int = 0) -> TensorType:
    if data.shape is None or not indices.shape or not isinstance(indices.shape[-1], int):
        return TensorType(data.dtype)
    rest: tuple[Dim, ...] = data.shape[batch_dims + indices.shape[-1] :]
    return TensorType(first_dtype([data]), (*indices.shape[:-1], *rest))


@op("GatherND", 11, 12, 13, infer=_gather_nd_type)
def gather_nd(call: Call, data: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """The slices of ``data`` at the index tuples on the last axis of ``indices`` (ONNX GatherND-13).

    The first ``batch_dims`` axes of both are the same batch. Raises ValueError when shapes do not fit,
    IndexError when an index is out of bounds.
    """
    depth = indices.shape[-1]
    if data.shape[:batch_dims] != indices.shape[:batch_dims] or not 1 <= depth <= data.ndim - batch_dims:
        raise ValueError(f"GatherND indices {list(indices.shape)} do not fit data {list(data.shape)}")
    xp, indices = namespace(call, data), beside(data, indices)
    if xp.__name__ != "numpy":
        for place in range(depth):
            check_bounds(xp, indices[..., place], data.shape[batch_dims + place])
    own = [
        xp.arange(size).reshape((-1,) + (1,) * (indices.ndim - 2 - axis))
        for axis, size in enumerate(data.shape[:batch_dims])
    ]
    return data[(*own, *(indices[..., place] for place in range(depth)))]
