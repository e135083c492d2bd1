"""Names and classes of dtypes, shared by the operator families."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

DType = np.dtype[Any]

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INT64 = np.dtype(np.int64)
STRING = np.dtype(object)

FLOAT8 = frozenset(
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
)
_FLOATS = FLOAT8 | {np.dtype(np.float16), BFLOAT16, FLOAT32, FLOAT64}


def from_code(code: int) -> DType:
    """Return the NumPy dtype of a TensorProto.DataType code; object for strings."""
    return ir.DataType(code).numpy()


def is_float(dtype: DType) -> bool:
    """Return whether a value of the dtype may have a fraction (float8 and bfloat16 included)."""
    return dtype in _FLOATS


def limits(dtype: DType) -> tuple[Any, Any]:
    """Return the lowest and the largest finite number of a float or integer dtype."""
    info = ml_dtypes.finfo if is_float(dtype) else ml_dtypes.iinfo
    known = info(dtype)
    return known.min, known.max


def single(value: float) -> float:
    """Return the float32 nearest to a number: the default of an attribute, as the file would store it."""
    return float(np.float32(value))
