"""Constants, and what depends on a shape alone."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops.content import entries, entry_count, single_entry, sizes_as_content, with_entries
from graphdoc.engine.ops.dims import add, ceil_divide, maximum, subtract
from graphdoc.engine.ops.host import ints, scalar, strings
from graphdoc.engine.ops.shapes import INT64, multiply_dims
from graphdoc.engine.ops.table import Array, Call, TensorType, op

_FORMS: dict[str, Callable[[Any], Array]] = {
    "value": lambda x: x,
    "sparse_value": lambda x: x,
    "value_float": lambda x: np.asarray(x, np.float32),
    "value_floats": lambda x: np.asarray(x, np.float32),
    "value_int": lambda x: np.asarray(x, np.int64),
    "value_ints": lambda x: np.asarray(x, np.int64),
    "value_string": lambda x: strings([x], ()),
    "value_strings": lambda x: strings(x, (len(x),)),
}


def to_dtype(call: Call, number: int) -> np.dtype[Any]:
    """Return the dtype of a TensorProto.DataType number (promoted in truth mode)."""
    return call.real(ir.DataType(number).numpy())


def _constant_type(call: Call, **form: Any) -> TensorType:
    value = constant(call, **form)
    return TensorType(call.real(value.dtype), tuple(value.shape), value)


@op("Constant", 1, 9, 11, 12, 13, 19, 21, 23, 24, 25, infer=_constant_type)
def constant(call: Call, **form: Any) -> Array:
    """The value of the one attribute that is given (ONNX Constant-1…25).

    Raises ValueError when none or several are given.
    """
    if len(form) != 1:
        raise ValueError(f"Constant needs one value attribute, not {len(form)}")
    [(name, value)] = form.items()
    return _FORMS[name](value)


def _filled_type(call: Call, shape: TensorType, *, value: Array | None = None) -> TensorType:
    dtype = call.real(np.float32 if value is None else value.dtype)
    return TensorType(dtype, entries(shape))


@op("ConstantOfShape", 9, 20, 21, 23, 24, 25, infer=_filled_type)
def constant_of_shape(call: Call, shape: Array, *, value: Array | None = None) -> Array:
    """A tensor of the given shape, filled with the one element of ``value`` (default float32 0) (ONNX
    ConstantOfShape-25)."""
    dims = tuple(ints(shape))
    if value is None:
        return call.xp.zeros(dims, dtype=call.real(np.float32))
    dtype = call.real(value.dtype)
    xp = np if dtype.kind == "O" else call.xp
    return xp.full(dims, value.reshape(-1)[0], dtype=dtype)


def _shape_type(call: Call, data: TensorType, *, start: int = 0, end: int | None = None) -> TensorType:
    return TensorType(INT64, (None,)) if data.shape is None else sizes_as_content(data.shape[start:end])


@op("Shape", 1, 13, 15, 19, 21, 23, 24, 25, infer=_shape_type)
def shape_(call: Call, data: Array, *, start: int = 0, end: int | None = None) -> Array:
    """The sizes of axes start … end − 1 as int64; both may be negative and are clamped to the rank (ONNX
    Shape-25)."""
    return call.xp.asarray(data.shape[start:end], dtype="int64")


def _size_type(call: Call, data: TensorType) -> TensorType:
    count = None if data.shape is None else multiply_dims(data.shape)
    return with_entries(TensorType(INT64, ()), [count])


@op("Size", 1, 13, 19, 21, 23, 24, 25, infer=_size_type)
def size(call: Call, data: Array) -> Array:
    """The number of elements, int64 [] (ONNX Size-25)."""
    return call.xp.asarray(prod(data.shape), dtype="int64")


def _range_type(
    call: Call, start: TensorType, limit: TensorType, delta: TensorType, *, stash_type: int = 1
) -> TensorType:
    first, end, step = (single_entry(known) for known in (start, limit, delta))
    if not isinstance(step, int) or step == 0:
        return TensorType(start.dtype, (None,))
    span = subtract(end, first) if step > 0 else subtract(first, end)
    count = maximum(ceil_divide(span, abs(step)), 0)
    known = TensorType(start.dtype, (count,))
    places = range(entry_count(known) or 0)
    return with_entries(known, [add(first, step * place) for place in places])


@op("Range", 11, 27, infer=_range_type)
def range_(call: Call, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    """start + i·delta for 0 ≤ i < max(⌈(limit − start) / delta⌉, 0) (ONNX Range-27).

    The count of floats is taken in float64, from the difference in the dtype of the inputs, as ONNX
    Runtime does; float16 and bfloat16 are computed in float32 and rounded once. Raises ValueError for
    delta 0.
    """
    dtype = start.dtype
    count = _range_count(dtype, scalar(start), scalar(limit), scalar(delta))
    wide = dtype if dtype.kind in "iu" or dtype.itemsize > 2 else np.dtype(np.float32)
    index = call.xp.arange(count, dtype="int64").astype(wide)
    return (start.astype(wide).reshape(()) + index * delta.astype(wide).reshape(())).astype(dtype)


def _range_count(dtype: Any, start: Any, limit: Any, delta: Any) -> int:
    if delta == 0:
        raise ValueError("Range with delta 0 does not end")
    if dtype.kind in "iu":
        return max(-(-(int(limit) - int(start)) // int(delta)), 0)
    span = float(np.asarray(limit, dtype) - np.asarray(start, dtype))
    return max(int(np.ceil(span / float(delta))), 0)


def _eye_type(call: Call, x: TensorType, *, dtype: int | None = None, k: int = 0) -> TensorType:
    return TensorType(x.dtype if dtype is None else to_dtype(call, dtype), x.shape)


@op("EyeLike", 9, 22, infer=_eye_type)
def eye_like(call: Call, x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    """Ones on the k-th diagonal of zeros in the shape of ``x`` (rank 2) (ONNX EyeLike-22)."""
    if x.ndim != 2:
        raise ValueError(f"EyeLike takes a matrix, not rank {x.ndim}")
    rows, columns = x.shape
    ones = call.xp.eye(rows, columns, k=max(-rows, min(k, columns)), dtype="bool")
    return ones.astype(x.dtype if dtype is None else to_dtype(call, dtype))
