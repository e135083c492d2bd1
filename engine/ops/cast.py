"""Cast, CastLike, BitCast: every dtype of ONNX into every other."""

from typing import Any

import numpy as np

from graphdoc.engine.ops.dtypes import from_code
from graphdoc.engine.ops.table import Array, Call, TensorType, op


def convert(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return the elements of x in another dtype."""
    return x if x.dtype == dtype else x.astype(dtype)


def _cast_type(call: Call, x: TensorType, *, to: int, **_: Any) -> TensorType:
    return TensorType(call.real(from_code(to)), x.shape)


@op("Cast", 6, 9, 13, 19, 21, 23, 24, 25, 28, infer=_cast_type)
def cast(call: Call, x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in the dtype of a TensorProto code (ONNX Cast-28)."""
    return convert(x, call.real(from_code(to)))


@op("CastLike", 15, 19, 21, 23, 24, 25)
def cast_like(call: Call, x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in the dtype of another tensor (ONNX CastLike-25)."""
    return convert(x, like.dtype)
