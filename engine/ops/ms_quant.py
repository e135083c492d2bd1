"""Quantised operators of com.microsoft (version 1): element-wise, pooling, products.

A quantised tensor is its integers with a scale and a zero point, (x − zero) · scale. Inputs go through
float32 (truth mode: float64) and results through :func:`requantised`: round half to even, then clamp.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops import ms_infer
from graphdoc.engine.ops.activations import leaky_relu, sigmoid
from graphdoc.engine.ops.conv import qlinear_conv as default_qlinear_conv
from graphdoc.engine.ops.matmul import product
from graphdoc.engine.ops.ms_fused import channels_first, channels_last
from graphdoc.engine.ops.pool import average_pool, max_pool
from graphdoc.engine.ops.quantize import bounds, dequantized, dynamic_scale, quantized, spread
from graphdoc.engine.ops.shapes import broadcast_shapes, same_as_first
from graphdoc.engine.ops.table import Array, Call, TensorType, op

MS = "com.microsoft"


# ---- between integers and floats ----------------------------------------------------------------------


def _float(call: Call, x: Array, scale: Array, zero: Array | None) -> Array:
    """Return (x − zero) · scale for one scale, in the dtype of the scale."""
    return dequantized(call.xp, x, scale.reshape(()), None if zero is None else zero.reshape(()), scale.dtype)


def requantised(xp: Any, x: Array, zero: Array | None, dtype: Any = np.uint8) -> Array:
    """Return x (in units of the output's scale) rounded, shifted by the zero point and clamped.

    dtype: of the result when there is no zero point.
    """
    target = np.dtype(dtype) if zero is None else zero.dtype
    least, largest = bounds(target)
    shifted = xp.rint(x) if zero is None else xp.rint(x) + zero.astype(x.dtype).reshape(())
    return xp.clip(shifted, least, largest).astype(target)


def _quantised(call: Call, y: Array, scale: Array, zero: Array | None, dtype: Any) -> Array:
    """Return floats quantised by division; without a zero point in ``dtype``."""
    target = dtype if zero is None else zero.dtype
    shift = None if zero is None else zero.reshape(())
    return quantized(call.xp, y, scale.reshape(()), shift, target, y.dtype)


def _infer_binary(call: Call, a: TensorType, *rest: TensorType | None, **attributes: Any) -> TensorType:
    b = rest[2]
    shapes = [a.shape, None if b is None else b.shape]
    return TensorType(a.dtype, broadcast_shapes(shapes))


# ---- element-wise -------------------------------------------------------------------------------------


@op("QLinearAdd", 1, domain=MS, infer=_infer_binary)
def qlinear_add(
    call: Call,
    A: Array,
    A_scale: Array,
    A_zero_point: Array | None,
    B: Array,
    B_scale: Array,
    B_zero_point: Array | None,
    C_scale: Array,
    C_zero_point: Array | None = None,
) -> Array:
    """A + B of quantised tensors with broadcasting, com.microsoft version 1.

    As ONNX Runtime does it: sa/sc · A + (sb/sc · B + shift), each step a multiply-add that rounds once,
    which is a sum in float64 rounded to float32.
    """
    left, right = A_scale.reshape(()) / C_scale.reshape(()), B_scale.reshape(()) / C_scale.reshape(())
    shift = _zero(C_zero_point, left) - (left * _zero(A_zero_point, left) + right * _zero(B_zero_point, left))
    part = (B * right.astype(np.float64) + shift).astype(left.dtype)
    total = (A * left.astype(np.float64) + part).astype(left.dtype)
    return requantised(call.xp, total, None, A.dtype)


def _zero(zero: Array | None, like: Array) -> Array:
    return like.dtype.type(0) if zero is None else zero.reshape(()).astype(like.dtype)


@op("QLinearMul", 1, domain=MS, infer=_infer_binary)
def qlinear_mul(
    call: Call,
    A: Array,
    A_scale: Array,
    A_zero_point: Array | None,
    B: Array,
    B_scale: Array,
    B_zero_point: Array | None,
    C_scale: Array,
    C_zero_point: Array | None = None,
) -> Array:
    """A · B of quantised tensors with broadcasting, com.microsoft version 1."""
    scale = A_scale.reshape(()) * B_scale.reshape(()) / C_scale.reshape(())
    left = A.astype(scale.dtype) - _zero(A_zero_point, scale)
    right = B.astype(scale.dtype) - _zero(B_zero_point, scale)
    return requantised(call.xp, left * right * scale, C_zero_point, A.dtype)


def _element_wise(
    call: Call,
    function: Callable[[Array], Array],
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array | None,
) -> Array:
    y = function(_float(call, X, X_scale, X_zero_point))
    return _quantised(call, y, Y_scale, Y_zero_point, X.dtype)


@op("QLinearSigmoid", 1, domain=MS, infer=same_as_first)
def qlinear_sigmoid(
    call: Call,
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array | None = None,
) -> Array:
    """Sigmoid of a quantised tensor, com.microsoft version 1."""

    def function(x: Array) -> Array:
        return sigmoid(call.xp, x)

    return _element_wise(call, function, X, X_scale, X_zero_point, Y_scale, Y_zero_point)


@op("QLinearLeakyRelu", 1, domain=MS, infer=same_as_first)
def qlinear_leaky_relu(
    call: Call,
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    """LeakyRelu of a quantised tensor, com.microsoft version 1."""

    def function(x: Array) -> Array:
        return leaky_relu(call.xp, x, alpha=alpha)

    return _element_wise(call, function, X, X_scale, X_zero_point, Y_scale, Y_zero_point)


@op("QLinearSoftmax", 1, domain=MS, infer=same_as_first)
def qlinear_softmax(
    call: Call,
    X: Array,
    X_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = -1,
    opset: int,
) -> Array:
    """Softmax of a quantised tensor along ``axis`` (before opset 13 over all axes from it on), version 1."""
    if not X.size:
        return X
    x = (X.astype(X_scale.dtype)) * X_scale.reshape(())
    split = axis % X.ndim
    flat = x.reshape(*X.shape[:split], -1) if opset < 13 else call.xp.moveaxis(x, axis, -1)
    powers = call.xp.exp(flat - flat.max(axis=-1, keepdims=True))
    shares = powers / powers.sum(axis=-1, keepdims=True)
    y = shares.reshape(X.shape) if opset < 13 else call.xp.moveaxis(shares, -1, axis)
    return _quantised(call, y, y_scale, y_zero_point, X.dtype)


@op("QLinearConcat", 1, domain=MS, infer=ms_infer.qlinear_concat)
def qlinear_concat(call: Call, Y_scale: Array, Y_zero_point: Array, *inputs: Array, axis: int) -> Array:
    """Join quantised tensors in the output's scale, com.microsoft version 1.

    inputs: a tensor, its scale and its zero point in turn. One that has the output's scale and zero point
    is copied.
    """
    if len(inputs) % 3:
        raise ValueError(f"{len(inputs)} inputs are not triples of tensor, scale and zero point")
    parts = [
        _rescaled(call, *inputs[i : i + 3], Y_scale, Y_zero_point)  # type: ignore[call-arg]
        for i in range(0, len(inputs), 3)
    ]
    return call.xp.concatenate(parts, axis=axis)


def _rescaled(call: Call, x: Array, scale: Array, zero: Array, to_scale: Array, to_zero: Array) -> Array:
    if bool(scale.reshape(()) == to_scale.reshape(())) and bool(zero.reshape(()) == to_zero.reshape(())):
        return x
    return _quantised(call, _float(call, x, scale, zero), to_scale, to_zero, x.dtype)


@op("QLinearWhere", 1, domain=MS, infer=ms_infer.qlinear_where)
def qlinear_where(
    call: Call,
    condition: Array,
    X: Array,
    x_scale: Array,
    x_zero_point: Array,
    Y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
) -> Array:
    """Elements of X where the condition holds, else of Y, in the output's scale, com.microsoft version 1."""
    left = _rescaled(call, X, x_scale, x_zero_point, z_scale, z_zero_point)
    right = _rescaled(call, Y, y_scale, y_zero_point, z_scale, z_zero_point)
    return call.xp.where(condition, left, right)


# ---- reductions and pooling ---------------------------------------------------------------------------


@op("QLinearReduceMean", 1, domain=MS, infer=ms_infer.qlinear_mean)
def qlinear_reduce_mean(
    call: Call,
    data: Array,
    data_scale: Array,
    data_zero_point: Array | None,
    reduced_scale: Array,
    reduced_zero_point: Array | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Array:
    """Mean over axes of a quantised tensor, com.microsoft version 1."""
    mean = _float(call, data, data_scale, data_zero_point).mean(axis=tuple(axes), keepdims=bool(keepdims))
    return _quantised(call, call.xp.asarray(mean), reduced_scale, reduced_zero_point, data.dtype)


@op("QLinearAveragePool", 1, domain=MS, infer=ms_infer.qlinear_pool)
def qlinear_average_pool(
    call: Call,
    X: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    channels_last: int = 0,
    **attributes: Any,
) -> Array:
    """AveragePool of a quantised tensor, com.microsoft version 1; attributes as AveragePool has.

    X: [N, C, spatial…], or [N, spatial…, C] with channels_last.
    """
    x = channels_first(X) if channels_last else X
    y = average_pool(call, _float(call, x, x_scale, x_zero_point), **attributes)
    return _quantised(call, _layout(y, channels_last), y_scale, y_zero_point, X.dtype)


def _layout(y: Array, last: int) -> Array:
    return channels_last(y) if last else y


@op("QLinearGlobalAveragePool", 1, domain=MS, infer=ms_infer.qlinear_global_pool)
def qlinear_global_average_pool(
    call: Call,
    X: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    channels_last: int = 0,
) -> Array:
    """Mean over the spatial axes of a quantised tensor, com.microsoft version 1.

    X: [N, C, spatial…], or [N, spatial…, C] with channels_last. The sums are exact integers.
    """
    axes = tuple(range(1, X.ndim - 1)) if channels_last else tuple(range(2, X.ndim))
    count = int(np.prod([X.shape[axis] for axis in axes]))
    total = X.sum(axis=axes, keepdims=True, dtype=np.int64) - count * x_zero_point.astype(np.int64).reshape(
        ()
    )
    scale = x_scale.reshape(()) / (y_scale.reshape(()) * x_scale.dtype.type(count))
    return requantised(call.xp, total.astype(scale.dtype) * scale, y_zero_point)


@op("NhwcMaxPool", 1, domain=MS, infer=ms_infer.nhwc_pool)
def nhwc_max_pool(call: Call, x: Array, **attributes: Any) -> Array:
    """MaxPool of x [N, spatial…, C], com.microsoft version 1; attributes as MaxPool has."""
    pooled = max_pool(call, channels_first(x), **attributes)
    return channels_last(pooled[0] if isinstance(pooled, tuple) else pooled)


@op("QLinearConv", 1, domain=MS, infer=ms_infer.qlinear_conv)
def qlinear_conv(
    call: Call,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    B: Array | None = None,
    *,
    channels_last: int = 0,
    **attributes: Any,
) -> Array:
    """QLinearConv of the default domain, com.microsoft version 1.

    x: [N, C, spatial…], or [N, spatial…, C] with channels_last.
    """
    source = channels_first(x) if channels_last else x
    rest = (x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B)
    return _layout(default_qlinear_conv(call, source, *rest, **attributes), channels_last)


# ---- QuantizeLinear, DequantizeLinear -----------------------------------------------------------------


@op("QuantizeLinear", 1, domain=MS, infer=ms_infer.quantize)
def quantize_linear(
    call: Call, x: Array, y_scale: Array, y_zero_point: Array | None = None, *, axis: int = 1
) -> Array:
    """round(x / y_scale) + y_zero_point, clamped, com.microsoft version 1: per tensor or per axis."""
    scale = spread(call.xp, x, y_scale, axis, 0)
    zero = None if y_zero_point is None else spread(call.xp, x, y_zero_point, axis, 0)
    dtype = np.dtype(np.uint8) if y_zero_point is None else y_zero_point.dtype
    return quantized(call.xp, x, scale, zero, dtype, y_scale.dtype)


@op("DequantizeLinear", 1, domain=MS, infer=ms_infer.dequantize)
def dequantize_linear(
    call: Call, x: Array, x_scale: Array, x_zero_point: Array | None = None, *, axis: int = 1
) -> Array:
    """(x − x_zero_point) · x_scale, com.microsoft version 1: per tensor or per axis."""
    scale = spread(call.xp, x, x_scale, axis, 0)
    zero = None if x_zero_point is None else spread(call.xp, x, x_zero_point, axis, 0)
    return dequantized(call.xp, x, scale, zero, x_scale.dtype)


# ---- products -----------------------------------------------------------------------------------------


def _shifted(x: Array, zero: Array | None) -> Array:
    """Return x − zero as exact integers in float64; a vector of zero points is one per column."""
    whole = x.astype(np.float64)
    if zero is None:
        return whole
    return whole - (zero.astype(np.float64) if zero.size > 1 else zero.astype(np.float64).reshape(()))


def integer_product(call: Call, a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    """Return (a − a_zero)·(b − b_zero), exact integers in float64 (each below 2⁵³)."""
    return product(call.xp, _shifted(a, a_zero), _shifted(b, b_zero))


def _infer_to_float(call: Call, a: TensorType, b: TensorType, *rest: Any, **attributes: Any) -> TensorType:
    if a.shape is None or b.shape is None or len(a.shape) < 2 or len(b.shape) != 2:
        return TensorType(None)
    return TensorType(None, (*a.shape[:-1], b.shape[1]))


@op("MatMulIntegerToFloat", 1, domain=MS, infer=_infer_to_float)
def matmul_integer_to_float(
    call: Call,
    A: Array,
    B: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """(A − a_zero)·(B − b_zero) · a_scale · b_scale + bias, com.microsoft version 1.

    A, B: 8-bit; b_scale, b_zero_point: one, or one per column. Returns the dtype of the scales.
    """
    total = integer_product(call, A, B, a_zero_point, b_zero_point).astype(a_scale.dtype)
    y = total * (a_scale.reshape(()) * (b_scale if b_scale.size > 1 else b_scale.reshape(())))
    return y if bias is None else y + bias


@op("DynamicQuantizeMatMul", 1, domain=MS, infer=_infer_to_float)
def dynamic_quantize_matmul(
    call: Call,
    A: Array,
    B: Array,
    b_scale: Array,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """A·((B − b_zero) · b_scale) + bias, A quantised to uint8 by its range first, com.microsoft version 1."""
    quantised, scale, zero = dynamically_quantised(call, A)
    result: Array = matmul_integer_to_float(call, quantised, B, scale, b_scale, zero, b_zero_point, bias)
    return result


def dynamically_quantised(call: Call, x: Array) -> tuple[Array, Array, Array]:
    """Return x as uint8 over its range (0 included), the scale and the zero point."""
    scale, zero = dynamic_scale(call, x)
    return quantized(call.xp, x, scale, zero, zero.dtype, x.dtype), scale, zero


def _infer_qgemm(
    call: Call, a: TensorType, *rest: TensorType | None, transA: int = 0, transB: int = 0, **_: Any
) -> TensorType:
    b = rest[2]
    zero = rest[7] if len(rest) > 7 else None
    dtype = call.real(np.float32) if zero is None else zero.dtype
    if a.shape is None or b is None or b.shape is None:
        return TensorType(dtype)
    return TensorType(dtype, (a.shape[1 if transA else 0], b.shape[0 if transB else 1]))


@op("QGemm", 1, domain=MS, infer=_infer_qgemm)
def qgemm(
    call: Call,
    A: Array,
    a_scale: Array,
    a_zero_point: Array,
    B: Array,
    b_scale: Array,
    b_zero_point: Array,
    C: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Gemm of 8-bit matrices, com.microsoft version 1.

    C: int32 in units of alpha · a_scale · b_scale. Without y_scale the result is float, else 8-bit.
    b_scale, b_zero_point: one, or one per column.
    """
    a, b = (A.T if transA else A), (B.T if transB else B)
    total = integer_product(call, a, b, a_zero_point, b_zero_point)
    total = total if C is None else total + C
    scale = (
        a_scale.dtype.type(alpha)
        * a_scale.reshape(())
        * (b_scale if b_scale.size > 1 else b_scale.reshape(()))
    )
    if y_scale is None:
        return total.astype(scale.dtype) * scale
    return requantised(call.xp, total.astype(scale.dtype) * (scale / y_scale.reshape(())), y_zero_point)


@op("MatMulInteger16", 1, domain=MS, infer=ms_infer.integer_product)
def matmul_integer16(call: Call, A: Array, B: Array) -> Array:
    """A·B of 16-bit integers in int32 (uint32 for unsigned A and B), which wraps, com.microsoft version 1."""
    total = call.xp.matmul(A.astype(np.int64), B.astype(np.int64))
    return total.astype(np.uint32 if A.dtype.kind == B.dtype.kind == "u" else np.int32)


@op("MulInteger", 1, domain=MS, infer=ms_infer.mul_integer)
def mul_integer(
    call: Call,
    A: Array,
    A_zero_point: Array | None,
    B: Array,
    B_zero_point: Array | None = None,
) -> Array:
    """(A − A_zero_point) · (B − B_zero_point) of 8-bit tensors in int32, com.microsoft version 1."""
    left = A.astype(np.int32) - (0 if A_zero_point is None else A_zero_point.astype(np.int32).reshape(()))
    right = B.astype(np.int32) - (0 if B_zero_point is None else B_zero_point.astype(np.int32).reshape(()))
    return left * right


@op("ReduceSumInteger", 1, domain=MS, infer=ms_infer.sum_integer)
def reduce_sum_integer(call: Call, data: Array, *, axes: Sequence[int], keepdims: int = 1) -> Array:
    """Sum over axes of 8-bit integers in int32 (uint32 for uint8), com.microsoft version 1."""
    dtype = np.uint32 if data.dtype.kind == "u" else np.int32
    return call.xp.asarray(data.sum(axis=tuple(axes), keepdims=bool(keepdims), dtype=dtype))
