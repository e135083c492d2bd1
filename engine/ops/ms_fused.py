"""Fused operators of com.microsoft (version 1): products, convolutions and activations in one node.

ONNX Runtime's optimiser writes most of them. Each computes what its parts compute; float16 and bfloat16 go
through the whole node in float32 and are rounded once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops import ms_infer
from graphdoc.engine.ops.activations import gelu, hard_sigmoid, leaky_relu, sigmoid
from graphdoc.engine.ops.conv import conv, infer_conv
from graphdoc.engine.ops.matmul import gemm, product
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import broadcast, same_as_first
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op

MS = "com.microsoft"
QUICK = 1.702

Activation = Callable[..., Array]


# ---- activations by name ------------------------------------------------------------------------------


def _unchanged(xp: Any, x: Array) -> Array:
    return x


def _relu(xp: Any, x: Array) -> Array:
    return xp.maximum(x, 0)


def _tanh(xp: Any, x: Array) -> Array:
    return xp.tanh(x)


def _leaky(xp: Any, x: Array, alpha: float = 0.01) -> Array:
    return leaky_relu(xp, x, alpha=alpha)


def _clip(xp: Any, x: Array, low: float = float("-inf"), high: float = float("inf")) -> Array:
    return xp.clip(x, x.dtype.type(low), x.dtype.type(high))


def _hard(xp: Any, x: Array, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return hard_sigmoid(xp, x, alpha=alpha, beta=beta)


ACTIVATIONS: Mapping[str, Activation] = {
    "": _unchanged,
    "Relu": _relu,
    "Tanh": _tanh,
    "Sigmoid": sigmoid,
    "LeakyRelu": _leaky,
    "Clip": _clip,
    "HardSigmoid": _hard,
}


def activated(xp: Any, x: Array, name: str, parameters: Sequence[float] = ()) -> Array:
    """Return the activation of x. Raises ValueError for a name no fused operator has."""
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation '{name}'")
    return ACTIVATIONS[name](xp, x, *parameters)


def _given(*values: float | None) -> list[float]:
    return [value for value in values if value is not None]


# ---- products -----------------------------------------------------------------------------------------


def _batch_first(x: Array) -> Array:
    """Return [M, batch…, K] as [batch…, M, K]."""
    return x.transpose(*range(1, x.ndim - 1), 0, x.ndim - 1)


def _operand(x: Array, transpose: int, transpose_batch: int) -> Array:
    if x.ndim < 2:
        return x
    x = _batch_first(x) if transpose_batch else x
    return x.swapaxes(-1, -2) if transpose else x


@op("FusedMatMul", 1, domain=MS, infer=ms_infer.fused_product)
def fused_matmul(
    call: Call,
    A: Array,
    B: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Array:
    """alpha · A·B by numpy.matmul's rules, the operands transposed first, com.microsoft version 1.

    transBatch: [M, batch…, K] is read as [batch…, M, K]. A vector is not transposed.
    """
    left, right = _operand(wide(A), transA, transBatchA), _operand(wide(B), transB, transBatchB)
    result = product(call.xp, left, right)
    return narrow(result if alpha == 1 else result * result.dtype.type(alpha), A.dtype)


@op("TransposeMatMul", 1, domain=MS, infer=ms_infer.fused_product)
def transpose_matmul(
    call: Call, A: Array, B: Array, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Array:
    """FusedMatMul under its older name, com.microsoft version 1."""
    result: Array = fused_matmul(call, A, B, alpha=alpha, transA=transA, transB=transB)
    return result


@op("FusedMatMulActivation", 1, domain=MS, infer=ms_infer.fused_product)
def fused_matmul_activation(
    call: Call,
    A: Array,
    B: Array,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    activation_axis: int = 0,
    **attributes: Any,
) -> Array:
    """FusedMatMul and an activation, com.microsoft version 1."""
    result = fused_matmul(call, wide(A), wide(B), **attributes)
    parameters = _given(activation_alpha, activation_beta, activation_gamma)
    return narrow(activated(call.xp, result, activation, parameters), A.dtype)


def _infer_gemm(
    call: Call, a: TensorType, b: TensorType, *rest: Any, transA: int = 0, transB: int = 0, **_: Any
) -> TensorType:
    if a.shape is None or b.shape is None or len(a.shape) != 2 or len(b.shape) != 2:
        return TensorType(a.dtype)
    return TensorType(a.dtype, (a.shape[1 if transA else 0], b.shape[0 if transB else 1]))


@op("FusedGemm", 1, domain=MS, infer=_infer_gemm)
def fused_gemm(
    call: Call,
    A: Array,
    B: Array,
    C: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **attributes: Any,
) -> Array:
    """Gemm and an activation, com.microsoft version 1. Attributes alpha, beta, transA, transB as Gemm has."""
    result = gemm(call, wide(A), wide(B), None if C is None else wide(C), **attributes)
    parameters = _given(activation_alpha, activation_beta, activation_gamma)
    return narrow(activated(call.xp, result, activation, parameters), A.dtype)


@op("GemmFastGelu", 1, domain=MS, infer=ms_infer.fused_product)
def gemm_fast_gelu(call: Call, X: Array, W: Array, bias: Array | None = None) -> Array:
    """FastGelu of X·W + bias, com.microsoft version 1. X: [..., K], W: [K, N], bias: [N]."""
    result = product(call.xp, wide(X), wide(W))
    result = result if bias is None else result + wide(bias)
    return narrow(gelu(call.xp, result, approximate="tanh"), X.dtype)


# ---- convolutions -------------------------------------------------------------------------------------


@op("FusedConv", 1, domain=MS, infer=infer_conv)
def fused_conv(
    call: Call,
    X: Array,
    W: Array,
    B: Array | None = None,
    Z: Array | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **attributes: Any,
) -> Array:
    """activation(Conv(X, W) + B + Z), com.microsoft version 1. Further attributes as Conv has."""
    y = conv(call, wide(X), wide(W), B if B is None else wide(B), **attributes)
    y = y if Z is None else y + wide(Z)
    return narrow(activated(call.xp, y, activation, activation_params), X.dtype)


def channels_first(x: Array) -> Array:
    """Return [N, spatial…, C] as [N, C, spatial…]."""
    return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


def channels_last(x: Array) -> Array:
    """Return [N, C, spatial…] as [N, spatial…, C]."""
    return x.transpose(0, *range(2, x.ndim), 1)


@op("NhwcFusedConv", 1, domain=MS, infer=ms_infer.nhwc_conv)
@op("NhwcConv", 1, domain=MS, infer=ms_infer.nhwc_conv)
def nhwc_conv(
    call: Call, X: Array, W: Array, B: Array | None = None, Z: Array | None = None, **attributes: Any
) -> Array:
    """FusedConv over X [N, spatial…, C] with W [M, spatial…, C/group], com.microsoft version 1."""
    z = None if Z is None else channels_first(Z)
    y = fused_conv(call, channels_first(X), channels_first(W), B, z, **attributes)
    return channels_last(y)


# ---- activations as operators -------------------------------------------------------------------------


@op("Gelu", 1, domain=MS, infer=same_as_first)
def ms_gelu(call: Call, X: Array) -> Array:
    """x · Φ(x), com.microsoft version 1."""
    return narrow(gelu(call.xp, wide(X)), X.dtype)


@op("BiasGelu", 1, domain=MS, infer=broadcast)
def bias_gelu(call: Call, A: Array, B: Array) -> Array:
    """Gelu of A + B, com.microsoft version 1. B: [last axis of A]."""
    return narrow(gelu(call.xp, wide(A) + wide(B)), A.dtype)


@op("FastGelu", 1, domain=MS, infer=same_as_first)
def fast_gelu(call: Call, X: Array, bias: Array | None = None) -> Array:
    """Gelu's tanh approximation of X + bias, com.microsoft version 1. bias: [last axis of X]."""
    x = wide(X) if bias is None else wide(X) + wide(bias)
    return narrow(gelu(call.xp, x, approximate="tanh"), X.dtype)


@op("QuickGelu", 1, domain=MS, infer=same_as_first)
def quick_gelu(call: Call, X: Array, *, alpha: float = QUICK) -> Array:
    """x · sigmoid(alpha · x), com.microsoft version 1."""
    x = wide(X)
    return narrow(x * sigmoid(call.xp, x * x.dtype.type(alpha)), X.dtype)


def _infer_split(call: Call, x: TensorType, bias: TensorType) -> TensorType:
    if x.shape is None:
        return TensorType(x.dtype)
    last: Dim = x.shape[-1] // 2 if isinstance(x.shape[-1], int) else None
    return TensorType(x.dtype, (*x.shape[:-1], last))


@op("BiasSplitGelu", 1, domain=MS, infer=_infer_split)
def bias_split_gelu(call: Call, X: Array, bias: Array) -> Array:
    """left · Gelu(right) of the halves of X + bias, com.microsoft version 1. X: [N, S, 2D]."""
    left, right = call.xp.split(wide(X) + wide(bias), 2, axis=-1)
    return narrow(left * gelu(call.xp, right), X.dtype)


@op("BiasAdd", 1, domain=MS, infer=same_as_first)
def bias_add(call: Call, X: Array, bias: Array, skip: Array) -> Array:
    """X + bias + skip, com.microsoft version 1. X, skip: [N, S, C], bias: [C]."""
    return narrow(wide(X) + wide(bias) + wide(skip), X.dtype)


@op("BiasSoftmax", 1, domain=MS, infer=same_as_first)
def bias_softmax(
    call: Call, data: Array, bias: Array, *, axis: int = 1, is_inner_broadcast: int = 1
) -> Array:
    """Softmax of data + bias over all axes from ``axis`` on, com.microsoft version 1.

    bias: broadcasts over the data; without inner broadcast its axes stand first and repeat as blocks.
    """
    x, shift = wide(data), wide(bias)
    if not is_inner_broadcast:
        shift = shift.reshape(*shift.shape, *(1,) * (x.ndim - shift.ndim))
        repeat = [
            have // got if got not in (0, 1) else 1 for have, got in zip(x.shape, shift.shape, strict=True)
        ]
        shift = call.xp.tile(shift, repeat)
    x = x + shift
    split = axis % x.ndim
    rows = x.reshape(int(np.prod(x.shape[:split])), -1)
    rows = call.xp.exp(rows - rows.max(axis=1, keepdims=True)) if rows.size else rows
    return narrow((rows / rows.sum(axis=1, keepdims=True)).reshape(x.shape), data.dtype)


@op("BiasDropout", 1, domain=MS, infer=ms_infer.bias_dropout)
def bias_dropout(
    call: Call,
    data: Array,
    bias: Array,
    residual: Array | None = None,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: int = 0,
) -> tuple[Array, Array]:
    """data + bias (+ residual) and a mask of ones: dropout as inference has it, com.microsoft version 1.

    Raises ValueError in training mode.
    """
    if training_mode is not None and bool(training_mode):
        raise ValueError("BiasDropout in training mode is not deterministic and not implemented")
    y = wide(data) + wide(bias)
    y = y if residual is None else y + wide(residual)
    return narrow(y, data.dtype), call.xp.ones(y.shape, np.bool_)
