"""Activation functions, element by element. Each takes (xp, x, attributes); see elementwise.unary."""

from typing import Any

from graphdoc.engine.ops.arithmetic import aligned
from graphdoc.engine.ops.dtypes import single
from graphdoc.engine.ops.elementwise import unary
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.special import erf
from graphdoc.engine.ops.table import Array, Call, op


@op("Relu", 1, 6, 13, 14, infer=same_as_first)
def relu(call: Call, x: Array, *, consumed_inputs: Any = None) -> Array:
    """max(x, 0); NaN stays NaN (ONNX Relu-14)."""
    return call.xp.maximum(x, call.xp.zeros((), x.dtype))


@unary("LeakyRelu", 1, 6, 16)
def leaky_relu(xp: Any, x: Array, *, alpha: float = single(0.01)) -> Array:
    """x, or alpha·x below 0 (ONNX LeakyRelu-16)."""
    if 0 < alpha <= 1:
        return xp.maximum(x, x * alpha)
    return xp.where(x < 0, x * alpha, x)


@op("PRelu", 7, 9, 16, infer=same_as_first)
def prelu(call: Call, x: Array, slope: Array) -> Array:
    """x, or slope·x below 0; slope broadcasts to x (ONNX PRelu-16)."""
    return call.xp.where(x < 0, call.xp.multiply(x, slope), x)


@op("PRelu", 1, 6, infer=same_as_first)
def prelu_old(call: Call, x: Array, slope: Array, *, consumed_inputs: Any = None) -> Array:
    """PRelu with one slope, or one per channel, axis 1 (ONNX PRelu-6)."""
    return prelu(call, x, aligned(x, slope, broadcast=1, axis=1 if x.ndim > slope.ndim else None))


@unary("ThresholdedRelu", 10, 22)
def thresholded_relu(xp: Any, x: Array, *, alpha: float = 1.0) -> Array:
    """x above alpha, else 0 (ONNX ThresholdedRelu-22)."""
    return xp.where(x > alpha, x, xp.zeros((), x.dtype))


@unary("Elu", 1, 6, 22)
def elu(xp: Any, x: Array, *, alpha: float = 1.0) -> Array:
    """x, or alpha·(exp(x) − 1) below 0 (ONNX Elu-22)."""
    return xp.where(x < 0, alpha * xp.expm1(xp.minimum(x, 0)), x)


def selu(xp: Any, x: Array, *, alpha: float, gamma: float) -> Array:
    """gamma·x, or gamma·alpha·(exp(x) − 1) at and below 0 (ONNX Selu-22)."""
    return gamma * xp.where(x <= 0, alpha * xp.expm1(xp.minimum(x, 0)), x)


@unary("Selu", 6, 22)
def selu_6(
    xp: Any,
    x: Array,
    *,
    alpha: float = single(1.67326319217681884765625),
    gamma: float = single(1.0507009873554805),
) -> Array:
    """Selu with the constants of self-normalising networks (ONNX Selu-22)."""
    return selu(xp, x, alpha=alpha, gamma=gamma)


@unary("Selu", 1)
def selu_1(xp: Any, x: Array, *, alpha: float = single(1.6732), gamma: float = single(1.0507)) -> Array:
    """Selu with constants of four digits (ONNX Selu-1)."""
    return selu(xp, x, alpha=alpha, gamma=gamma)


@unary("Celu", 12, 28)
def celu(xp: Any, x: Array, *, alpha: float = 1.0) -> Array:
    """max(0, x) + min(0, alpha·(exp(x ÷ alpha) − 1)) (ONNX Celu-28)."""
    return xp.maximum(x, 0) + xp.minimum(alpha * xp.expm1(x / alpha), 0)


@unary("Sigmoid", 1, 6, 13)
def sigmoid(xp: Any, x: Array) -> Array:
    """1 ÷ (1 + exp(−x)) (ONNX Sigmoid-13)."""
    result = xp.exp(xp.negative(x))
    return xp.reciprocal(result + 1)


@unary("HardSigmoid", 1, 6, 22)
def hard_sigmoid(xp: Any, x: Array, *, alpha: float = single(0.2), beta: float = 0.5) -> Array:
    """max(0, min(1, alpha·x + beta)) (ONNX HardSigmoid-22)."""
    return xp.maximum(xp.minimum(x * alpha + beta, 1), 0)


@unary("HardSwish", 14, 22)
def hard_swish(xp: Any, x: Array) -> Array:
    """x·max(0, min(1, x ÷ 6 + 0.5)) (ONNX HardSwish-22)."""
    return x * hard_sigmoid(xp, x, alpha=1 / 6)


@unary("Softplus", 1, 22)
def softplus(xp: Any, x: Array) -> Array:
    """ln(exp(x) + 1), without overflow (ONNX Softplus-22)."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(xp.negative(xp.absolute(x))))


@unary("Softsign", 1, 22)
def softsign(xp: Any, x: Array) -> Array:
    """x ÷ (1 + |x|) (ONNX Softsign-22)."""
    return x / (1 + xp.absolute(x))


@unary("Mish", 18, 22)
def mish(xp: Any, x: Array) -> Array:
    """x·tanh(softplus(x)) (ONNX Mish-22)."""
    return x * xp.tanh(softplus(xp, x))


@unary("Swish", 24)
def swish(xp: Any, x: Array, *, alpha: float = 1.0) -> Array:
    """x·sigmoid(alpha·x) (ONNX Swish-24)."""
    return x * sigmoid(xp, x if alpha == 1 else x * alpha)


@op("SwiGLU", 28, infer=same_as_first)
def swiglu(call: Call, a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """swish(a)·b, rounded once; a and b have one shape (ONNX SwiGLU-28)."""
    if a.shape != b.shape:
        raise ValueError(f"SwiGLU does not broadcast: shapes {a.shape} and {b.shape}")
    return narrow(swish(call.xp, wide(a), alpha=alpha) * wide(b), a.dtype)


_SQRT_HALF = 0.7071067811865476
_SQRT_2_OVER_PI = 0.7978845608028654


@unary("Gelu", 20)
def gelu(xp: Any, x: Array, *, approximate: str = "none") -> Array:
    """0.5·x·(1 + erf(x ÷ √2)), or its tanh form (ONNX Gelu-20)."""
    if approximate == "tanh":
        inner = _SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1 + xp.tanh(inner))
    return 0.5 * x * (1 + erf(xp, x * _SQRT_HALF))


@op("Shrink", 9, infer=same_as_first)
def shrink(call: Call, x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """x + bias below −lambd, x − bias above lambd, else (NaN too) 0; integers truncate (ONNX Shrink-9)."""
    xp, full = call.xp, wide(x)
    outside = xp.where(full < -lambd, full + bias, full - bias)
    return narrow(xp.where((full < -lambd) | (full > lambd), outside, xp.zeros((), full.dtype)), x.dtype)
