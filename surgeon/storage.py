"""How TensorProto stores data, and whether that fits its dims (ONNX IR specification, TensorProto)."""

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnx.numpy_helper

from graphdoc.engine.errors import ModelError

_T = onnx.TensorProto
_EXPORT = "export the model again"

BITS: dict[int, int] = {
    _T.FLOAT: 32,
    _T.UINT8: 8,
    _T.INT8: 8,
    _T.UINT16: 16,
    _T.INT16: 16,
    _T.INT32: 32,
    _T.INT64: 64,
    _T.BOOL: 8,
    _T.FLOAT16: 16,
    _T.DOUBLE: 64,
    _T.UINT32: 32,
    _T.UINT64: 64,
    _T.COMPLEX64: 64,
    _T.COMPLEX128: 128,
    _T.BFLOAT16: 16,
    _T.FLOAT8E4M3FN: 8,
    _T.FLOAT8E4M3FNUZ: 8,
    _T.FLOAT8E5M2: 8,
    _T.FLOAT8E5M2FNUZ: 8,
    _T.FLOAT8E8M0: 8,
    _T.UINT4: 4,
    _T.INT4: 4,
    _T.FLOAT4E2M1: 4,
    _T.UINT2: 2,
    _T.INT2: 2,
}
"""Bits per element in raw_data; elements below 8 bits are packed."""

_FIELDS: dict[int, tuple[str, int]] = {
    _T.FLOAT: ("float_data", 1),
    _T.COMPLEX64: ("float_data", 2),
    _T.DOUBLE: ("double_data", 1),
    _T.COMPLEX128: ("double_data", 2),
    _T.INT64: ("int64_data", 1),
    _T.UINT32: ("uint64_data", 1),
    _T.UINT64: ("uint64_data", 1),
    _T.STRING: ("string_data", 1),
}
"""Field and entries per element; everything else lies in int32_data."""


def tensor_bytes(tensor: onnx.TensorProto) -> int | None:
    """Return how many bytes dims and dtype ask for in raw form; None for strings and unknown types."""
    bits = BITS.get(tensor.data_type)
    return None if bits is None else -(-math.prod(tensor.dims) * bits // 8)


def check_tensor(tensor: onnx.TensorProto, role: str, where: Callable[[], str]) -> None:
    """Raise ModelError when type, dims and data of a tensor contradict each other.

    role, where: what the tensor is and where it stands, for messages.
    External data is held against its file by surgeon/external.py.
    """
    bits = BITS.get(tensor.data_type)
    if bits is None and tensor.data_type != _T.STRING:
        raise _error(tensor, role, f"has the unknown data type {tensor.data_type}", where)
    dims = list(tensor.dims)
    if dims and min(dims) < 0:
        raise _error(tensor, role, f"has the negative size {min(dims)}", where)
    if tensor.data_location == _T.EXTERNAL:
        if bits is None:
            raise _error(tensor, role, "holds strings, which cannot be external data", where)
    elif tensor.HasField("raw_data"):
        if bits is None:
            raise _error(tensor, role, "holds strings as raw_data", where)
        needed, found = -(-math.prod(dims) * bits // 8), len(tensor.raw_data)
        if needed != found:
            raise _misfit(tensor, role, needed, found, "bytes", where)
    else:
        needed, found = _entries(tensor, math.prod(dims))
        if needed != found:
            raise _misfit(tensor, role, needed, found, "values", where)


def _error(tensor: onnx.TensorProto, role: str, what: str, where: Callable[[], str]) -> ModelError:
    return ModelError(f"{role} '{tensor.name}' {what}", where=where(), next_step=_EXPORT)


def _misfit(
    tensor: onnx.TensorProto, role: str, needed: int, found: int, unit: str, where: Callable[[], str]
) -> ModelError:
    holds = f"needs {grouped(needed)} {unit} for {_dims(tensor)}, and holds {grouped(found)}"
    return _error(tensor, role, holds, where)


def _entries(tensor: onnx.TensorProto, count: int) -> tuple[int, int]:
    """Return the number of entries needed and found in the typed field."""
    field, each = _FIELDS.get(tensor.data_type, ("int32_data", 1))
    needed = count * each
    if BITS.get(tensor.data_type, 8) < 8:
        needed = -(-count * BITS[tensor.data_type] // 8)
    return needed, len(getattr(tensor, field))


def check_sparse(sparse: onnx.SparseTensorProto, where: Callable[[], str]) -> None:
    """Raise ModelError when values, indices and dims of a sparse initializer contradict each other."""
    check_tensor(sparse.values, "sparse initializer", where)
    check_tensor(sparse.indices, "sparse initializer's indices", where)
    count = math.prod(sparse.values.dims)
    shapes = ([count], [count, len(sparse.dims)])
    if any(dim < 0 for dim in sparse.dims):
        raise _error(sparse.values, "sparse initializer", "has a negative size", where)
    if sparse.indices.data_type != _T.INT64 or list(sparse.indices.dims) not in shapes:
        found = f"has {grouped(count)} values, and indices {_dims(sparse.indices)}"
        raise _error(sparse.values, "sparse initializer", found, where)
    if sparse.indices.data_location != _T.EXTERNAL:
        _check_indices(sparse, where)


def _check_indices(sparse: onnx.SparseTensorProto, where: Callable[[], str]) -> None:
    indices = onnx.numpy_helper.to_array(sparse.indices)
    limits = np.array(sparse.dims if indices.ndim == 2 else [math.prod(sparse.dims)], dtype=object)
    wrong = indices[(indices < 0) | (indices >= limits)]
    if wrong.size:
        what = f"index {wrong[0]} lies outside its {grouped(math.prod(sparse.dims))} elements"
        raise _error(sparse.values, "sparse initializer", what, where)


def _dims(tensor: onnx.TensorProto) -> str:
    name = _T.DataType.Name(tensor.data_type).lower()
    return f"{name} {'×'.join(map(str, tensor.dims)) or 'scalar'}"


def grouped(number: int) -> str:
    """Return a count in groups of three."""
    return f"{number:,}".replace(",", " ")
