"""NumPy arrays ↔ ONNX Runtime values, also for the dtypes that its Python bindings do not convert."""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort

from graphdoc.compare.types import EXTENDED_CODES

T = onnx.TensorProto

UNBRIDGED = {code: dtype for dtype, code in EXTENDED_CODES.items()}
"""Element types that ONNX Runtime gives as raw memory only, and what they are in NumPy."""

_PACKED = frozenset({T.INT4, T.UINT4, T.FLOAT4E2M1})
_UNBRIDGED_WORDS = ("bfloat16", "float8", "int4", "float4")


def is_unbridged(type_text: str) -> bool:
    """Whether a session's type text, such as ``tensor(bfloat16)``, needs :func:`from_ort`."""
    return any(f"({word}" in type_text or f"(u{word}" in type_text for word in _UNBRIDGED_WORDS)


def to_ort(value: Any) -> Any:
    """Return what ``InferenceSession.run`` takes for a value: itself, or an OrtValue over its bytes."""
    if isinstance(value, np.generic):  # what NumPy's functions make of arrays of rank 0
        value = np.asarray(value)
    code = EXTENDED_CODES.get(value.dtype) if isinstance(value, np.ndarray) else None
    if code is None:
        return np.ascontiguousarray(value) if isinstance(value, np.ndarray) and value.ndim else value
    result = ort.OrtValue.ortvalue_from_shape_and_type(list(value.shape), code)
    raw = _pack(value) if code in _PACKED else np.ascontiguousarray(value).tobytes()
    if raw:
        ctypes.memmove(result.data_ptr(), raw, len(raw))
    return result


def from_ort(value: Any) -> Any:
    """Return an OrtValue as a NumPy array with its true dtype."""
    dtype = UNBRIDGED.get(value.element_type()) if value.is_tensor() else None
    if dtype is None:
        return value.numpy()
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if value.element_type() in _PACKED:
        return _unpack(ctypes.string_at(value.data_ptr(), (count + 1) // 2), count, dtype).reshape(shape)
    raw = ctypes.string_at(value.data_ptr(), count * dtype.itemsize)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


def _pack(value: np.ndarray[Any, Any]) -> bytes:
    nibbles = np.append(value.reshape(-1).view(np.uint8) & 0xF, np.zeros(value.size % 2, np.uint8))
    packed: np.ndarray[Any, Any] = nibbles[::2] | (nibbles[1::2] << 4)
    return packed.astype(np.uint8).tobytes()


def _unpack(raw: bytes, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    octets = np.frombuffer(raw, dtype=np.uint8)
    nibbles = np.stack([octets & 0xF, octets >> 4], axis=-1).reshape(-1)[:count]
    if dtype == np.dtype(ml_dtypes.int4):
        return ((nibbles.astype(np.int8) ^ 8) - 8).astype(dtype)
    return nibbles.astype(dtype) if dtype == np.dtype(ml_dtypes.uint4) else nibbles.view(dtype)
