"""NumPy values → ONNX types."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx

T = onnx.TensorProto

EXTENDED_CODES: dict[np.dtype[Any], int] = {
    np.dtype(ml_dtypes.bfloat16): T.BFLOAT16,
    np.dtype(ml_dtypes.float8_e4m3fn): T.FLOAT8E4M3FN,
    np.dtype(ml_dtypes.float8_e4m3fnuz): T.FLOAT8E4M3FNUZ,
    np.dtype(ml_dtypes.float8_e5m2): T.FLOAT8E5M2,
    np.dtype(ml_dtypes.float8_e5m2fnuz): T.FLOAT8E5M2FNUZ,
    np.dtype(ml_dtypes.int4): T.INT4,
    np.dtype(ml_dtypes.uint4): T.UINT4,
    np.dtype(ml_dtypes.float4_e2m1fn): T.FLOAT4E2M1,
}
"""Dtypes that NumPy itself lacks."""

_NUMPY_CODES = {
    "float32": T.FLOAT,
    "float64": T.DOUBLE,
    "float16": T.FLOAT16,
    "int8": T.INT8,
    "int16": T.INT16,
    "int32": T.INT32,
    "int64": T.INT64,
    "uint8": T.UINT8,
    "uint16": T.UINT16,
    "uint32": T.UINT32,
    "uint64": T.UINT64,
    "bool": T.BOOL,
    "object": T.STRING,
    "complex64": T.COMPLEX64,
    "complex128": T.COMPLEX128,
}


def type_of(value: Any) -> onnx.TypeProto | None:
    """Return the ONNX type of a value without its shape; None when the value does not tell (empty lists)."""
    if isinstance(value, list):
        element = type_of(value[0]) if value else None
        if element is None:
            return None
        return onnx.helper.make_sequence_type_proto(element)
    if not isinstance(value, np.ndarray):
        return None
    code = EXTENDED_CODES.get(value.dtype) or _NUMPY_CODES.get(value.dtype.name)
    return None if code is None else onnx.helper.make_tensor_type_proto(code, None)
