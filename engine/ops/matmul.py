"""Matrix products: MatMul, Gemm, their integer and quantised forms; Det.

Narrow floats are multiplied in float32 and rounded once. 8-bit integers are multiplied in float64, which
holds every sum of up to 10¹¹ products exactly.
"""

from typing import Any

import numpy as np

from graphdoc.engine.ops.cast import convert
from graphdoc.engine.ops.dtypes import FLOAT64, is_float
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import matrix_product, matrix_product_as, matrix_product_shape
from graphdoc.engine.ops.table import Array, Call, TensorType, op

INT32 = np.dtype(np.int32)


def contiguous(xp: Any, x: Array) -> Array:
    """Return x so laid out that BLAS takes its matrices, copied only when neither axis is dense."""
    if x.ndim < 2 or x.dtype.itemsize in x.strides[-2:]:
        return x
    return xp.ascontiguousarray(x)


def product(xp: Any, a: Array, b: Array) -> Array:
    """Return numpy.matmul(a, b); a stack times one matrix becomes a single product."""
    a, b = contiguous(xp, a), contiguous(xp, b)
    if a.ndim > 2 and b.ndim == 2 and a.size:
        return xp.matmul(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[1])
    return xp.matmul(a, b)


@op("MatMul", 1, 9, 13, infer=matrix_product)
def matmul(call: Call, a: Array, b: Array) -> Array:
    """The matrix product by the rules of numpy.matmul (ONNX MatMul-13)."""
    return narrow(product(call.xp, wide(a), wide(b)), a.dtype)


# ---- Gemm ---------------------------------------------------------------------------------------------


def _gemm_type(
    call: Call,
    a: TensorType,
    b: TensorType,
    c: TensorType | None = None,
    *,
    transA: int = 0,
    transB: int = 0,
    **_: Any,
) -> TensorType:
    if a.shape is None or b.shape is None or len(a.shape) != 2 or len(b.shape) != 2:
        return TensorType(a.dtype, None)
    return TensorType(a.dtype, (a.shape[1 if transA else 0], b.shape[0 if transB else 1]))


def _scaled(x: Array, factor: float) -> Array:
    if factor == 1:
        return x
    return narrow(x * factor, x.dtype)


@op("Gemm", 7, 9, 11, 13, infer=_gemm_type)
def gemm(
    call: Call,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # the names are the specification's
    transB: int = 0,
) -> Array:
    """alpha·A·B + beta·C for matrices, C broadcast to the product; narrow floats round once (ONNX Gemm-13).

    Integers scaled by a fraction truncate. Raises ValueError when A or B is not a matrix or C does not fit.
    """
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"Gemm multiplies matrices, not shapes {a.shape} and {b.shape}")
    left, right = (a.T if transA else a), (b.T if transB else b)
    result = _scaled(product(call.xp, wide(left), wide(right)), alpha)
    if c is not None and beta != 0:
        result = result + _scaled(wide(c), beta)
        if result.shape != (left.shape[0], right.shape[1]):
            raise ValueError(f"C of shape {c.shape} does not broadcast to the product")
    return narrow(result, a.dtype)


@op("Gemm", 1, 6, infer=_gemm_type)
def gemm_old(call: Call, a: Array, b: Array, c: Array, *, broadcast: int = 0, **attributes: Any) -> Array:
    """Gemm whose C must have the shape of the product unless ``broadcast`` is set (ONNX Gemm-6)."""
    result = gemm(call, a, b, c, **attributes)
    if not broadcast and c.shape != result.shape:
        raise ValueError(
            f"C of shape {c.shape} is not {result.shape} and the node does not ask for broadcast"
        )
    return result


# ---- integers -----------------------------------------------------------------------------------------


def _shifted(x: Array, zero_point: Array | None, *, rows: bool) -> Array:
    """Return x − zero point in float64; a vector holds one zero point per row, or per column."""
    real = x.astype(FLOAT64)
    if zero_point is None:
        return real
    return real - _per_line(zero_point, rows=rows).astype(FLOAT64)


def _per_line(parameter: Array, *, rows: bool) -> Array:
    """Return a quantisation parameter shaped to broadcast over the matrix it belongs to."""
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter[:, None] if rows and parameter.ndim == 1 else parameter


def _integer_product(xp: Any, a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    return product(xp, _shifted(a, a_zero, rows=True), _shifted(b, b_zero, rows=False))


@op("MatMulInteger", 10, infer=matrix_product_as(INT32))
def matmul_integer(
    call: Call, a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
) -> Array:
    """(a − a_zero_point) · (b − b_zero_point) in int32, which wraps (ONNX MatMulInteger-10)."""
    return _integer_product(call.xp, a, b, a_zero_point, b_zero_point).astype("int64").astype(INT32)


def _quantised(call: Call, real: Array, zero_point: Array) -> Array:
    """Return round(real) + zero point, saturated to the dtype of the zero point."""
    xp, offset = call.xp, zero_point.astype(real.dtype)
    if is_float(zero_point.dtype):
        return convert(xp, real + offset, zero_point.dtype)
    limits = np.iinfo(zero_point.dtype)
    return xp.clip(xp.rint(real) + offset, limits.min, limits.max).astype(zero_point.dtype)


def _quantised_type(
    call: Call,
    a: TensorType,
    a_scale: TensorType,
    a_zero: TensorType,
    b: TensorType,
    b_scale: TensorType,
    b_zero: TensorType,
    y_scale: TensorType,
    y_zero: TensorType,
) -> TensorType:
    return TensorType(y_zero.dtype, matrix_product_shape(a.shape, b.shape))


@op("QLinearMatMul", 10, 21, infer=_quantised_type)
def qlinear_matmul(
    call: Call,
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """The product of quantised matrices, quantised: scales per tensor, or per row of a and column of b.

    The sums are exact; they are scaled in the dtype of the scales, at least float32, and rounded half to
    even, then saturated (ONNX QLinearMatMul-21).
    """
    sums = _integer_product(call.xp, a, b, a_zero_point, b_zero_point)
    left, right = _per_line(wide(a_scale), rows=True), _per_line(wide(b_scale), rows=False)
    scale = left * right / _per_line(wide(y_scale), rows=True)
    return _quantised(call, sums.astype(scale.dtype) * scale, _per_line(y_zero_point, rows=True))


# ---- Det ----------------------------------------------------------------------------------------------


def _det_type(call: Call, x: TensorType) -> TensorType:
    return TensorType(x.dtype, None if x.shape is None else x.shape[:-2])


@op("Det", 11, 22, infer=_det_type)
def det(call: Call, x: Array) -> Array:
    """The determinants of a stack of square matrices [*, M, M] → [*] (ONNX Det-22)."""
    return narrow(call.xp.asarray(call.xp.linalg.det(wide(x))), x.dtype)
