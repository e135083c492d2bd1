"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from typing import Any

import ml_dtypes
import numpy as np

from graphdoc.engine.ops.constants import to_dtype
from graphdoc.engine.ops.host import axis_of
from graphdoc.engine.ops.shapes import same_shape
from graphdoc.engine.ops.table import Array, Call, TensorType, op

UINT8 = np.dtype(np.uint8)
_NARROW_INTS = frozenset(
    np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)
)


def is_integer(dtype: Any) -> bool:
    """Whether a quantised dtype holds integers (else it is a small float)."""
    return dtype in _NARROW_INTS or dtype.kind in "iu"


def bounds(dtype: Any) -> tuple[float, float]:
    """Return the least and the largest finite value of a quantised dtype."""
    info: Any = (ml_dtypes.iinfo if is_integer(dtype) else ml_dtypes.finfo)(dtype)
    return float(info.min), float(info.max)


def spread(xp: Any, x: Array, scale: Array, axis: int, block_size: int) -> Array:
    """Return a scale or zero point in a shape that broadcasts with ``x``.

    Per tensor: one element. Per axis: [x.shape[axis]]. Blocked: the shape of x, with x.shape[axis] /
    block_size (rounded up) on the axis. Raises ValueError when it is none of these.
    """
    if scale.size == 1 and not block_size:
        return scale.reshape(())
    axis = 0 if x.ndim == 1 else axis_of(axis, x.ndim)
    if block_size:
        wide = xp.repeat(scale, block_size, axis=axis)[(slice(None),) * axis + (slice(x.shape[axis]),)]
        if wide.shape == x.shape and (scale.shape[axis] - 1) * block_size < x.shape[axis]:
            return wide
    elif scale.shape == (x.shape[axis],):
        return scale.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    raise ValueError(
        f"scale {list(scale.shape)} does not fit input {list(x.shape)}, axis {axis}, block size {block_size}"
    )


def _clipped(xp: Any, q: Array, least: float, largest: float) -> Array:
    """Clip floats in place; NaN becomes the least value, as in ONNX Runtime."""
    if q.size and bool(xp.isnan(q.max())):
        q[xp.isnan(q)] = least
    return xp.clip(q, least, largest, out=q)


def quantized(
    xp: Any, x: Array, scale: Array, zero: Array | None, dtype: Any, precision: Any, saturate: int = 1
) -> Array:
    """Return saturate(round(x / scale) + zero) with the division in ``precision``.

    scale, zero: shaped to broadcast with x. Rounding is to nearest even and for integers only.
    """
    q = xp.asarray(xp.divide(x.astype(precision, copy=False), scale.astype(precision, copy=False)))
    q = q.astype(np.float32 if q.dtype.itemsize < 4 else q.dtype, copy=False)
    if is_integer(dtype):
        xp.rint(q, out=q)
    if zero is not None:
        xp.add(q, zero.astype(q.dtype), out=q)
    least, largest = bounds(dtype)
    if not is_integer(dtype):
        return (xp.clip(q, least, largest, out=q) if saturate else q).astype(dtype)
    q = _clipped(xp, q, least, largest)
    return q.astype(np.int8).astype(dtype) if dtype in _NARROW_INTS else q.astype(dtype)


def _quantize_type(
    call: Call,
    x: TensorType,
    scale: TensorType,
    zero: TensorType | None = None,
    *,
    output_dtype: int = 0,
    **options: Any,
) -> TensorType:
    if zero is not None:
        return TensorType(zero.dtype, x.shape)
    return TensorType(to_dtype(call, output_dtype) if output_dtype else UINT8, x.shape)


@op("QuantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28, infer=_quantize_type)
def quantize_linear(
    call: Call,
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Array:
    """saturate(round(x / y_scale) + y_zero_point), in the dtype of the zero point, of ``output_dtype``,
    or uint8 (ONNX QuantizeLinear-28).

    Per tensor, per axis or blocked. The division is done in the scale's dtype or ``precision``.
    ``saturate`` 0 lets float8 overflow to NaN or Inf.
    """
    zero_dtype = UINT8 if y_zero_point is None else y_zero_point.dtype
    dtype = np.dtype(to_dtype(call, output_dtype)) if output_dtype else zero_dtype
    exact = to_dtype(call, precision) if precision else y_scale.dtype
    scale = spread(call.xp, x, y_scale, axis, block_size)
    zero = None if y_zero_point is None else spread(call.xp, x, y_zero_point, axis, block_size)
    return quantized(call.xp, x, scale, zero, dtype, exact, saturate)


def _dequantize_type(
    call: Call, x: TensorType, scale: TensorType, *rest: TensorType | None, output_dtype: int = 0, **_: Any
) -> TensorType:
    return TensorType(to_dtype(call, output_dtype) if output_dtype else scale.dtype, x.shape)


def _difference(xp: Any, x: Array, zero: Array | None, wide: Any) -> Array:
    """Return x − zero in the dtype ``wide``, exactly for every quantised dtype."""
    if x.dtype.kind == "i" and x.dtype.itemsize >= 4 and zero is not None:
        return (x - zero).astype(wide)
    if zero is None:
        return x.astype(wide)
    if x.dtype.kind in "iu" and x.dtype not in _NARROW_INTS:
        return xp.subtract(x, zero, dtype=wide)
    return x.astype(wide) - zero.astype(wide)


def dequantized(xp: Any, x: Array, scale: Array, zero: Array | None, dtype: Any) -> Array:
    """Return (x − zero) · scale; computed in float32 for narrower results and rounded once."""
    wide = np.float32 if np.dtype(dtype).itemsize < 4 else np.dtype(dtype)
    result = xp.asarray(_difference(xp, x, zero, wide))
    xp.multiply(result, scale.astype(wide, copy=False), out=result)
    return result.astype(dtype, copy=False)


@op("DequantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28, infer=_dequantize_type)
def dequantize_linear(
    call: Call,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    """(x − x_zero_point) · x_scale, in the scale's dtype or ``output_dtype`` (ONNX DequantizeLinear-28). Per
    tensor, axis or block."""
    dtype = to_dtype(call, output_dtype) if output_dtype else x_scale.dtype
    scale = spread(call.xp, x, x_scale, axis, block_size)
    zero = None if x_zero_point is None else spread(call.xp, x, x_zero_point, axis, block_size)
    return dequantized(call.xp, x, scale, zero, dtype)


def _dynamic_type(call: Call, x: TensorType) -> tuple[TensorType, ...]:
    scale = same_shape(np.float32)(call, TensorType(None, ()))
    return TensorType(UINT8, x.shape), scale, TensorType(UINT8, ())


def dynamic_scale(call: Call, x: Array) -> tuple[Array, Array]:
    """Return scale and uint8 zero point (both []) that map the range of x and 0 to 0 … 255.

    Where all of x is zero, or x is empty, the scale is 1, as in ONNX Runtime (the formula gives 0).
    """
    xp = call.xp
    low = xp.minimum(x.min(), 0) if x.size else xp.zeros((), x.dtype)
    high = xp.maximum(x.max(), 0) if x.size else xp.zeros((), x.dtype)
    scale = xp.asarray((high - low) / x.dtype.type(255))
    scale = xp.where(scale == 0, xp.ones((), x.dtype), scale).astype(x.dtype)
    zero = xp.rint(xp.clip(-low / scale, 0, 255)).astype(UINT8)
    return scale, xp.asarray(zero)


@op("DynamicQuantizeLinear", 11, infer=_dynamic_type)
def dynamic_quantize_linear(call: Call, x: Array) -> tuple[Array, Array, Array]:
    """x as uint8 with the scale (float32 []) and zero point (uint8 []) that its own range asks for (ONNX
    DynamicQuantizeLinear-11)."""
    scale, zero = dynamic_scale(call, x)
    return quantized(call.xp, x, scale, zero, UINT8, x.dtype), scale, zero
