"""In which dtype sums are accumulated."""

from typing import Any

import ml_dtypes
import numpy as np

from graphdoc.engine.ops.table import Array

_HALF = frozenset(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16))


def wide_dtype(dtype: Any) -> np.dtype[Any]:
    """Return float32 for float16 and bfloat16, every other dtype unchanged."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype in _HALF else dtype


def wide(x: Array) -> Array:
    """Return x as the dtype to accumulate in; x itself when that is its own."""
    if x.dtype.itemsize != 2:  # most of them, and quicker told than by the table
        return x
    return x.astype(wide_dtype(x.dtype), copy=False)


def narrow(x: Array, dtype: Any) -> Array:
    """Return x rounded to dtype; x itself when it has it."""
    return x if x.dtype is dtype else x.astype(dtype, copy=False)
