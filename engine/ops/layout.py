"""Shape and order of elements: no value is computed, most results are views of the input."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.ops.content import entries as sizes_of
from graphdoc.engine.ops.dims import at_least, ceil_divide, floor_divide, subtract
from graphdoc.engine.ops.host import axis_of, ints, namespace, scalar
from graphdoc.engine.ops.shapes import (
    Shape,
    broadcast_shapes,
    concatenated,
    constant_ints,
    multiply_dims,
    positive_axes,
    with_dims,
)
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op

# ---- Reshape, Flatten ---------------------------------------------------------------------------------


def _reshaped(shape: Shape | None, target: Sequence[Dim], allowzero: int) -> Shape | None:
    """Return the symbolic shape after Reshape.

    A symbolic size in the target is taken not to be 0 where Reshape would read a 0 as "keep the axis". One
    that is unknown follows from the others, like -1: the number of elements stays.
    """
    kept = dict(enumerate(shape or ())) if not allowzero else {}
    dims = [
        kept.get(axis) if size == 0 and not allowzero else _certain(size) for axis, size in enumerate(target)
    ]
    open_axes = [axis for axis, dim in enumerate(dims) if dim is None or dim == -1]
    if shape is not None and len(open_axes) == 1:
        rest = [dim for axis, dim in enumerate(dims) if axis != open_axes[0]]
        dims[open_axes[0]] = remaining(shape, rest)
    return tuple(None if dim == -1 else dim for dim in dims)


def _certain(size: Dim) -> Dim:
    """Return a size of the target; None where it could be negative, so -1, in some run."""
    return size if isinstance(size, int) or at_least(size, 0) else None


def remaining(whole: Sequence[Dim], parts: Sequence[Dim]) -> Dim:
    """Return the size that makes the product of ``parts`` that of ``whole``, None in doubt."""
    numbers, divisors = list(whole), list(parts)
    for dim in parts:
        if dim is not None and dim != 0 and dim in numbers:
            numbers.remove(dim)
            divisors.remove(dim)
    return floor_divide(multiply_dims(numbers), multiply_dims(divisors))


def _reshape_type(
    call: Call, data: TensorType, shape: TensorType | None = None, *, allowzero: int = 0, **old: Any
) -> TensorType:
    target = old.get("shape") if shape is None else sizes_of(shape)
    if target is None:
        return TensorType(data.dtype)
    return TensorType(data.dtype, _reshaped(data.shape, target, allowzero))


@op("Reshape", 5, 13, 14, 19, 21, 23, 24, 25, infer=_reshape_type)
def reshape(call: Call, data: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """The same elements in another shape: 0 keeps the axis (unless ``allowzero``), -1 takes the rest (ONNX
    Reshape-25).

    Raises ValueError when the number of elements differs, or IndexError when 0 stands past the rank.
    """
    target = ints(shape)
    if min(target, default=0) < -1:
        raise ValueError(f"Reshape to {target}: sizes are at least -1")
    if allowzero and 0 in target and -1 in target:
        raise ValueError("Reshape with allowzero takes no shape that holds both 0 and -1")
    if not allowzero:
        target = [data.shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    return data.reshape(target)


@op("Reshape", 1, infer=_reshape_type)
def reshape_1(
    call: Call, data: Array, *, shape: Sequence[int] = (), consumed_inputs: Sequence[int] = ()
) -> Array:
    """Reshape with the shape as an attribute (ONNX Reshape-1)."""
    return reshape(call, data, np.asarray(shape, np.int64))


def _flatten_type(call: Call, data: TensorType, *, axis: int = 1) -> TensorType:
    if data.shape is None:
        return TensorType(data.dtype, (None, None))
    axis += len(data.shape) if axis < 0 else 0
    return TensorType(data.dtype, (multiply_dims(data.shape[:axis]), multiply_dims(data.shape[axis:])))


@op("Flatten", 1, 9, 11, 13, 21, 23, 24, 25, infer=_flatten_type)
def flatten(call: Call, data: Array, *, axis: int = 1) -> Array:
    """A matrix: the axes before ``axis`` make its rows, the others its columns (ONNX Flatten-25)."""
    if not -data.ndim <= axis <= data.ndim:
        raise ValueError(f"Flatten axis {axis} does not fit rank {data.ndim}")
    axis += data.ndim if axis < 0 else 0
    return data.reshape(prod(data.shape[:axis]), prod(data.shape[axis:]))


# ---- Transpose, Squeeze, Unsqueeze --------------------------------------------------------------------


def _transpose_type(call: Call, data: TensorType, *, perm: Sequence[int] | None = None) -> TensorType:
    if data.shape is None:
        return TensorType(data.dtype, (None,) * len(perm) if perm else None)
    order = perm if perm is not None else range(len(data.shape))[::-1]
    return TensorType(data.dtype, tuple(data.shape[axis] for axis in order))


@op("Transpose", 1, 13, 21, 23, 24, 25, infer=_transpose_type)
def transpose(call: Call, data: Array, *, perm: Sequence[int] | None = None) -> Array:
    """Axis i of the result is axis perm[i] of the input; without ``perm`` the order is reversed (ONNX
    Transpose-25)."""
    return data.transpose(perm)


def _squeeze_type(
    call: Call, data: TensorType, axes_input: TensorType | None = None, *, axes: Sequence[int] | None = None
) -> TensorType:
    if axes_input is not None:
        axes = constant_ints(axes_input)
    unsure = axes is None and (axes_input is not None or None in (data.shape or (None,)))
    if data.shape is None or unsure or (axes is None and any(isinstance(d, str) for d in data.shape)):
        return TensorType(data.dtype)
    every = [axis for axis, dim in enumerate(data.shape) if dim == 1]
    gone = every if axes is None else positive_axes(axes, len(data.shape))
    left = tuple(d for axis, d in enumerate(data.shape) if axis not in gone)
    return TensorType(data.dtype, left)


def _squeezed(data: Array, axes: Sequence[int] | None) -> Array:
    return data.squeeze(None if axes is None else tuple(axes))


@op("Squeeze", 1, 11, infer=_squeeze_type)
def squeeze_1(call: Call, data: Array, *, axes: Sequence[int] | None = None) -> Array:
    """Remove axes of size 1: those listed, or all (ONNX Squeeze-11). Raises ValueError when a listed one is
    longer."""
    return _squeezed(data, axes)


@op("Squeeze", 13, 21, 23, 24, 25, infer=_squeeze_type)
def squeeze(call: Call, data: Array, axes: Array | None = None) -> Array:
    """Squeeze with the axes as an input (ONNX Squeeze-25). An empty list removes nothing."""
    return _squeezed(data, None if axes is None else ints(axes))


def _unsqueeze_type(
    call: Call, data: TensorType, axes_input: TensorType | None = None, *, axes: Sequence[int] | None = None
) -> TensorType:
    found = axes if axes_input is None else constant_ints(axes_input)
    if data.shape is None or found is None:
        return TensorType(data.dtype, _ranked(data.shape, axes_input))
    rank = len(data.shape) + len(found)
    new = positive_axes(found, rank)
    dims = iter(data.shape)
    sizes = tuple(1 if axis in new else next(dims) for axis in range(rank))
    return TensorType(data.dtype, sizes)


def _ranked(shape: Shape | None, axes: TensorType | None) -> Shape | None:
    """Return unknown sizes of the rank that follows when only the number of new axes is known."""
    count = axes.shape[0] if axes is not None and axes.shape else None
    return (None,) * (len(shape) + count) if shape is not None and isinstance(count, int) else None


def _unsqueezed(data: Array, axes: Sequence[int]) -> Array:
    rank = data.ndim + len(axes)
    new = positive_axes(axes, rank)
    if len(set(new)) < len(new) or not all(0 <= axis < rank for axis in new):
        raise ValueError(f"Unsqueeze axes {list(axes)} do not fit rank {rank}")
    sizes = iter(data.shape)
    return data.reshape([1 if axis in new else next(sizes) for axis in range(rank)])


@op("Unsqueeze", 1, 11, infer=_unsqueeze_type)
def unsqueeze_1(call: Call, data: Array, *, axes: Sequence[int]) -> Array:
    """Insert axes of size 1; the axes count in the result (ONNX Unsqueeze-11). Raises ValueError for repeated
    ones."""
    return _unsqueezed(data, axes)


@op("Unsqueeze", 13, 21, 23, 24, 25, infer=_unsqueeze_type)
def unsqueeze(call: Call, data: Array, axes: Array) -> Array:
    """Unsqueeze with the axes as an input (ONNX Unsqueeze-25)."""
    return _unsqueezed(data, ints(axes))


# ---- Expand, Tile, Concat -----------------------------------------------------------------------------


def _expand_type(call: Call, data: TensorType, shape: TensorType) -> TensorType:
    target = sizes_of(shape)
    dims = None if target is None else broadcast_shapes((data.shape, tuple(target)))
    return TensorType(data.dtype, dims)


@op("Expand", 8, 13, infer=_expand_type)
def expand(call: Call, data: Array, shape: Array) -> Array:
    """``data`` broadcast with ``shape`` in both directions (a 1 in the shape keeps the axis); a view (ONNX
    Expand-13)."""
    sizes = tuple(ints(shape))
    if sizes == data.shape:
        return data
    target = np.broadcast_shapes(data.shape, sizes)
    return namespace(call, data).broadcast_to(data, target)


def _tile_type(call: Call, data: TensorType, repeats: TensorType) -> TensorType:
    if data.shape is None:
        return TensorType(data.dtype, sizes_of(repeats) and (None,) * len(sizes_of(repeats) or ()))
    counts = sizes_of(repeats) or (None,) * len(data.shape)
    return TensorType(data.dtype, tuple(map(multiply_dims, zip(data.shape, counts, strict=True))))


@op("Tile", 6, 13, infer=_tile_type)
def tile(call: Call, data: Array, repeats: Array) -> Array:
    """``data`` repeated along each axis (ONNX Tile-13).

    Raises ValueError unless there is one count per axis.
    """
    counts = ints(repeats)
    if len(counts) != data.ndim:
        raise ValueError(f"Tile needs {data.ndim} repeats, not {len(counts)}")
    return namespace(call, data).tile(data, counts)


def _tile_old_type(call: Call, data: TensorType, tiles: TensorType, axis: TensorType) -> TensorType:
    if data.shape is None or tiles.value is None or axis.value is None:
        return TensorType(data.dtype, None if data.shape is None else (None,) * len(data.shape))
    at, count = int(axis.value.reshape(())), int(tiles.value.reshape(()))
    return TensorType(data.dtype, with_dims(data.shape, {at: multiply_dims((data.shape[at], count))}))


@op("Tile", 1, infer=_tile_old_type)
def tile_1(call: Call, data: Array, tiles: Array, axis: Array) -> Array:
    """``data`` repeated ``tiles`` times along one axis; both come as scalars of the data's dtype (ONNX
    Tile-1)."""
    counts = [1] * data.ndim
    counts[int(scalar(axis))] = int(scalar(tiles))
    return namespace(call, data).tile(data, counts)


@op("Concat", 4, 11, 13, infer=concatenated)
def concat(call: Call, *inputs: Array, axis: int) -> Array:
    """The inputs joined along ``axis`` (ONNX Concat-13)."""
    return inputs[0] if len(inputs) == 1 else namespace(call, *inputs).concatenate(inputs, axis=axis)


@op("Concat", 1, infer=concatenated)
def concat_1(call: Call, *inputs: Array, axis: int = 1) -> Array:
    """Concat whose axis defaults to 1 (ONNX Concat-1)."""
    return concat(call, *inputs, axis=axis)


# ---- Split --------------------------------------------------------------------------------------------


def _split_type(
    call: Call,
    data: TensorType,
    split_input: TensorType | None = None,
    *,
    axis: int = 0,
    split: Sequence[int] | None = None,
    num_outputs: int | None = None,
) -> tuple[TensorType, ...]:
    sizes: Sequence[Dim] | None = sizes_of(split_input) if split_input is not None else split
    dim = None if data.shape is None else data.shape[axis]
    if not sizes and split_input is None:
        count = num_outputs or call.outputs
        part = floor_divide(dim, count) if num_outputs is None else ceil_divide(dim, count)
        sizes = [*[part] * (count - 1), subtract(dim, multiply_dims((part, count - 1)))]
        sizes = sizes if num_outputs else [part] * count
    sizes = sizes or [None] * call.outputs
    return tuple(TensorType(data.dtype, with_dims(data.shape, {axis: size})) for size in sizes)


def _even_parts(size: int, count: int) -> list[int]:
    """Return equal part sizes, the last one smaller where the size does not divide."""
    part = -(-size // count)
    return [part] * (count - 1) + [size - part * (count - 1)]


def split_array(data: Array, sizes: Sequence[int], axis: int) -> tuple[Array, ...]:
    """Return views of consecutive parts. Raises ValueError when the sizes do not add up to the axis."""
    axis = axis_of(axis, data.ndim)
    if sum(sizes) != data.shape[axis] or any(size < 0 for size in sizes):
        raise ValueError(f"Split into {list(sizes)} does not fit size {data.shape[axis]} of axis {axis}")
    before = (slice(None),) * axis
    ends = np.cumsum(sizes).tolist()
    return tuple(data[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True))


def _equal_split(call: Call, data: Array, axis: int) -> tuple[Array, ...]:
    size = data.shape[axis]
    if size % call.outputs:
        raise ValueError(f"Split of size {size} into {call.outputs} equal parts")
    return split_array(data, [size // call.outputs] * call.outputs, axis)


@op("Split", 2, 11, infer=_split_type)
def split_2(
    call: Call, data: Array, *, axis: int = 0, split: Sequence[int] | None = None
) -> tuple[Array, ...]:
    """Views of consecutive parts along ``axis``: sizes from the attribute, or equal ones (ONNX Split-11)."""
    return split_array(data, split, axis) if split else _equal_split(call, data, axis)


@op("Split", 1, infer=_split_type)
def split_1(
    call: Call,
    data: Array,
    split_input: Array | None = None,
    *,
    axis: int = 0,
    split: Sequence[int] | None = None,
) -> tuple[Array, ...]:
    """Split whose sizes may come as an attribute or as an input (ONNX Split-1)."""
    sizes = split if split_input is None else ints(split_input)
    return split_array(data, sizes, axis) if sizes else _equal_split(call, data, axis)


@op("Split", 13, 18, infer=_split_type)
def split(
    call: Call, data: Array, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Array, ...]:
    """Views of consecutive parts along ``axis``: sizes from the input, or equal ones (ONNX Split-18).

    With ``num_outputs`` (version 18) the last part may be smaller; raises ValueError when it would be
    negative, or when the sizes do not add up to the axis.
    """
    if split is not None:
        return split_array(data, ints(split), axis)
    if num_outputs is None:
        return _equal_split(call, data, axis)
    return split_array(data, _even_parts(data.shape[axis], num_outputs), axis)
