"""Choosing elements: NonZero, TopK, Unique, Compress, OneHot, Trilu, ReverseSequence."""

from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.ops.content import single_entry
from graphdoc.engine.ops.host import axis_of, beside, namespace, on_host, scalar
from graphdoc.engine.ops.shapes import INT64, same_as_first, with_dims
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op


def _nonzero_type(call: Call, x: TensorType) -> TensorType:
    return TensorType(INT64, (None if x.shape is None else len(x.shape), None))


@op("NonZero", 9, 13, infer=_nonzero_type)
def nonzero(call: Call, x: Array) -> Array:
    """Indices of the elements that are not zero, int64 [rank, count], in row-major order (ONNX NonZero-13).

    A scalar gives [0, 1] or [0, 0], as the specification asks (NumPy and ONNX Runtime give rank 1).
    """
    xp = namespace(call, x)
    if x.ndim == 0:
        return xp.zeros((0, int(bool(x))), dtype="int64")
    return xp.stack(xp.nonzero(x)).astype("int64", copy=False)


def _compress_type(
    call: Call, x: TensorType, condition: TensorType, *, axis: int | None = None
) -> TensorType:
    return TensorType(x.dtype, (None,) if axis is None else with_dims(x.shape, {axis: None}))


@op("Compress", 9, 11, 28, infer=_compress_type)
def compress(call: Call, x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """The slices along ``axis`` (elements of the flattened input) where the condition, which may be
    shorter than the axis, is true (ONNX Compress-28)."""
    return namespace(call, x).compress(beside(x, condition), x, axis=axis)


# ---- TopK ---------------------------------------------------------------------------------------------


def _topk_type(
    call: Call, x: TensorType, count: TensorType | None = None, *, axis: int = -1, **options: Any
) -> tuple[TensorType, TensorType]:
    size = options["k"] if count is None else single_entry(count)
    shape = with_dims(x.shape, {axis: size})
    return TensorType(x.dtype, shape), TensorType(INT64, shape)


def _order(xp: Any, rows: Array, largest: int) -> Array:
    """Return the stable order of each row; of equal elements the lower index comes first."""
    if not largest:
        return xp.argsort(rows, axis=-1, kind="stable")
    # Sorting the reversed row and reading the order backwards keeps ties in place for every dtype.
    return rows.shape[-1] - 1 - xp.argsort(rows[..., ::-1], axis=-1, kind="stable")[..., ::-1]


def _candidates(row: np.ndarray[Any, Any], k: int, largest: int) -> np.ndarray[Any, Any]:
    """Return, ascending, the indices of a row that can be among its k first."""
    bound = np.partition(row, row.size - k if largest else k - 1)[row.size - k if largest else k - 1]
    return np.flatnonzero(row >= bound if largest else row <= bound)


def _top_indices(xp: Any, rows: Array, k: int, largest: int) -> Array:
    """Return the indices [n, k] of the first k of each row [n, size]."""
    count, size = rows.shape
    short = xp is np and size > 2048 and 0 < 8 * k < size and count < size
    if not short or rows.dtype.kind not in "fiu" or (rows.dtype.kind == "f" and np.isnan(rows).any()):
        return _order(xp, rows, largest)[:, :k]
    found = np.empty((count, k), np.int64)
    for position, row in enumerate(rows):  # few long rows: sorting the candidates alone is far quicker
        few = _candidates(row, k, largest)
        found[position] = few[_order(np, row[few], largest)[:k]]
    return found


def top_k(call: Call, x: Array, k: int, axis: int, largest: int) -> tuple[Array, Array]:
    """Return the k largest (smallest) elements along ``axis``, sorted, and their indices (int64).

    Of equal elements the lower index comes first; NaN counts as larger than every number. Raises
    ValueError when the axis is shorter than k.
    """
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"TopK of {k} from an axis of {x.shape[axis]}")
    xp = namespace(call, x)
    moved = xp.moveaxis(x, axis, -1)
    rows = moved.reshape(prod(moved.shape[:-1]), moved.shape[-1])
    indices = _top_indices(xp, rows, k, largest)
    values = xp.take_along_axis(rows, indices, axis=1)
    shape = (*moved.shape[:-1], k)
    return (
        xp.moveaxis(values.reshape(shape), -1, axis),
        xp.moveaxis(indices.astype("int64", copy=False).reshape(shape), -1, axis),
    )


@op("TopK", 10, 11, 24, infer=_topk_type)
def topk(
    call: Call, x: Array, count: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Array, Array]:
    """The ``count`` largest or smallest elements along an axis, and their indices; always sorted (ONNX
    TopK-24)."""
    return top_k(call, x, int(scalar(count)), axis, largest)


@op("TopK", 1, infer=_topk_type)
def topk_1(call: Call, x: Array, *, k: int, axis: int = -1) -> tuple[Array, Array]:
    """TopK with the count as an attribute (ONNX TopK-1)."""
    return top_k(call, x, k, axis, 1)


# ---- Unique -------------------------------------------------------------------------------------------


def _ranks(flat: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Return first occurrence, inverse and counts of the sorted unique elements."""
    # NaN stays apart from NaN, as elements that are not equal.
    return np.unique(flat, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)[1:]


def _unique(x: np.ndarray[Any, Any], axis: int | None, ordered: int) -> tuple[np.ndarray[Any, Any], ...]:
    flat = x.reshape(-1)
    if axis is not None:
        # Slices are compared through the ranks of their elements, which any dtype has, strings too.
        codes = _ranks(flat)[1].reshape(x.shape)
        moved = np.moveaxis(codes, axis, 0)
        rows = moved.reshape(len(moved), prod(moved.shape[1:]))
        _, first, inverse, counts = np.unique(
            rows, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
    else:
        first, inverse, counts = _ranks(flat)
    if not ordered:
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        first, inverse, counts = first[order], place[inverse.reshape(-1)], counts[order]
    values = flat[first] if axis is None else np.take(x, first, axis=axis)
    return values, *(part.reshape(-1).astype(np.int64) for part in (first, inverse, counts))


def _unique_type(
    call: Call, x: TensorType, *, axis: int | None = None, sorted: int = 1
) -> tuple[TensorType, ...]:
    shape = (None,) if axis is None else with_dims(x.shape, {axis: None})
    return TensorType(x.dtype, shape), *(TensorType(INT64, (None,)) for _ in range(3))


@op("Unique", 11, 28, infer=_unique_type)
def unique(call: Call, x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, ...]:
    """Unique elements (slices along ``axis``), first occurrences, inverse indices, counts (ONNX Unique-28).

    Sorted, or in the order of first occurrence. Each NaN counts as an element of its own.
    """
    result: tuple[Array, ...] = on_host(call, _unique, x, axis=axis, ordered=sorted)
    return result


# ---- OneHot, Trilu, ReverseSequence -------------------------------------------------------------------


def _depth(depth: TensorType) -> Dim:
    """Return the number of classes; a depth of a float dtype is cut off."""
    return single_entry(depth) if depth.value is None else int(depth.value.reshape(()))


def _one_hot_type(
    call: Call, indices: TensorType, depth: TensorType, values: TensorType, *, axis: int = -1
) -> TensorType:
    if indices.shape is None:
        return TensorType(values.dtype)
    at = axis % (len(indices.shape) + 1)
    size = _depth(depth)
    return TensorType(values.dtype, (*indices.shape[:at], size, *indices.shape[at:]))


@op("OneHot", 9, 11, 28, infer=_one_hot_type)
def one_hot(call: Call, indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """A new axis of size ``depth``, values[1] where it equals the index and values[0] elsewhere (ONNX
    OneHot-28).

    Indices and depth of a float dtype are cast to int64; an index outside [-depth, depth − 1] gives
    values[0] alone.
    """
    size = int(scalar(depth))
    xp = namespace(call, values)
    axis = axis_of(axis, indices.ndim + 1)
    index = xp.expand_dims(indices.astype("int64"), axis)
    places = xp.arange(size).reshape((-1,) + (1,) * (indices.ndim - axis))
    hot = xp.where(index < 0, index + size, index) == places
    return xp.where(hot, values[1], values[0]).astype(values.dtype, copy=False)


@op("Trilu", 14, infer=same_as_first)
def trilu(call: Call, x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """The upper (lower) triangle of the last two axes from the k-th diagonal on; zeros elsewhere (ONNX
    Trilu-14)."""
    if x.ndim < 2:
        raise ValueError(f"Trilu takes rank 2 and more, not rank {x.ndim}")
    rows, columns = x.shape[-2:]
    diagonal = 0 if k is None else max(-rows - 1, min(int(scalar(k)), columns + 1))
    return call.xp.triu(x, diagonal) if upper else call.xp.tril(x, diagonal)


@op("ReverseSequence", 10, 28, infer=same_as_first)
def reverse_sequence(
    call: Call, x: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0
) -> Array:
    """The first sequence_lens[b] steps of each batch entry in reverse order, the others as they are (ONNX
    ReverseSequence-28).

    Raises ValueError unless the axes are 0 and 1, in either order, or a length exceeds the time axis.
    """
    if {batch_axis, time_axis} != {0, 1}:
        raise ValueError(f"ReverseSequence axes {batch_axis} and {time_axis} are not 0 and 1")
    steps = x.shape[time_axis]
    if sequence_lens.size and (int(sequence_lens.max()) > steps or int(sequence_lens.min()) < 0):
        raise ValueError(f"ReverseSequence lengths do not fit {steps} steps")
    xp, sequence_lens = namespace(call, x), beside(x, sequence_lens)
    time, lengths = xp.arange(steps)[:, None], sequence_lens[None, :]
    source = xp.where(time < lengths, lengths - 1 - time, time)
    batch = xp.arange(x.shape[batch_axis])[None, :]
    return x[(source, batch)] if time_axis == 0 else x[(batch.T, source.T)]
