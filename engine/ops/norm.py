"""Normalisations: batch, instance, layer, group, RMS, local response, Lp, mean and variance.

Statistics of float16 and bfloat16 are taken in float32, those of other dtypes in their own.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import onnx_ir as ir

from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import per_channel, positive_axes, same_as_first, with_dims
from graphdoc.engine.ops.table import Array, Call, TensorType, op

Axes = Sequence[int]


def _moments(x: Array, axes: Axes) -> tuple[Array, Array, Array]:
    """Return (mean, population variance, x − mean) over axes, which stay with size 1."""
    where = tuple(axes)
    count = x.dtype.type(max(1, _count(x, where)))
    mean = x.sum(axis=where, keepdims=True) / count
    centred = x - mean
    return mean, (centred * centred).sum(axis=where, keepdims=True) / count, centred


def _count(x: Array, axes: Axes) -> int:
    """Return how many elements a reduction over axes folds into one."""
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


# ---- BatchNormalization --------------------------------------------------------------------------------


def _scale_and_shift(
    xp: Any, epsilon: float, x: Array, scale: Array, b: Array, mean: Array, var: Array
) -> Array:
    """Return (x − mean) / √(var + ε) · scale + b, computed in x's dtype."""
    y = x - mean
    y *= scale / xp.sqrt(var + x.dtype.type(epsilon))
    y += b
    return y


def _batch(
    call: Call, X: Array, scale: Array, B: Array, mean: Array, var: Array, epsilon: float, spatial: int = 1
) -> Array:
    """Normalise with given statistics, one per channel, or one per feature when not spatial."""
    x = wide(X)
    given = [wide(a).astype(x.dtype, copy=False) for a in (scale, B, mean, var)]
    if spatial and X.ndim > 1:
        given = [per_channel(a, X.shape) for a in given]
    return narrow(_scale_and_shift(call.xp, epsilon, x, *given), X.dtype)


def _running(old: Array, new: Array, momentum: float) -> Array:
    """Return the running statistic after one batch, in the dtype of the old one."""
    return narrow(wide(old) * momentum + new.reshape(old.shape) * (1 - momentum), old.dtype)


def _train(
    call: Call, X: Array, scale: Array, B: Array, mean: Array, var: Array, epsilon: float, momentum: float
) -> tuple[Array, Array, Array, Array, Array]:
    """Normalise with the batch's statistics: (Y, running mean, running variance, mean, variance)."""
    axes = (0, *range(2, X.ndim))
    now_mean, now_var, _ = _moments(wide(X), axes)
    now_mean, now_var = now_mean.reshape(-1), now_var.reshape(-1)
    y = _batch(call, X, scale, B, now_mean, now_var, epsilon)
    return y, _running(mean, now_mean, momentum), _running(var, now_var, momentum), now_mean, now_var


def infer_batch(
    call: Call, X: TensorType, scale: TensorType, B: TensorType, mean: TensorType, var: TensorType, **_: Any
) -> tuple[TensorType, ...]:
    """Y like X; the running statistics like those given."""
    return TensorType(X.dtype, X.shape), TensorType(mean.dtype, mean.shape), TensorType(var.dtype, var.shape)


@op("BatchNormalization", 14, 15, infer=infer_batch)
def batch_normalization(
    call: Call,
    X: Array,
    scale: Array,
    B: Array,
    input_mean: Array,
    input_var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Array, ...]:
    """(X − mean) / √(var + ε) · scale + B per channel of X (N, C, …); with training_mode, by the batch's own
    mean and population variance, and with the running statistics as further outputs.
    """
    if training_mode:
        return _train(call, X, scale, B, input_mean, input_var, epsilon, momentum)[:3]
    return (_batch(call, X, scale, B, input_mean, input_var, epsilon),)


@op("BatchNormalization", 7, 9, infer=infer_batch)
def batch_normalization_7(
    call: Call,
    X: Array,
    scale: Array,
    B: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> tuple[Array, ...]:
    """As version 14; listing more than one output asks for training. spatial 0: statistics per feature."""
    if call.outputs > 1:
        if not spatial:
            raise ValueError("training with spatial=0 is not defined by this version")
        return _train(call, X, scale, B, mean, var, epsilon, momentum)
    return (_batch(call, X, scale, B, mean, var, epsilon, spatial),)


@op("BatchNormalization", 1, 6, infer=infer_batch)
def batch_normalization_1(
    call: Call,
    X: Array,
    scale: Array,
    B: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 0,
    consumed_inputs: list[int] | None = None,
) -> tuple[Array, ...]:
    """As version 7; training unless is_test, or unless only Y is listed."""
    if not is_test and call.outputs > 1:
        return _train(call, X, scale, B, mean, var, epsilon, momentum)
    return (_batch(call, X, scale, B, mean, var, epsilon, spatial),)


# ---- statistics per instance or group ------------------------------------------------------------------


@op("InstanceNormalization", 1, 6, 22, infer=same_as_first)
def instance_normalization(
    call: Call,
    input: Array,
    scale: Array,
    B: Array,
    *,
    epsilon: float = 1e-5,
    consumed_inputs: list[int] | None = None,
) -> Array:
    """scale · (x − mean) / √(var + ε) + B, statistics per instance and channel of (N, C, *spatial)."""
    x = wide(input)
    _, var, y = _moments(x, range(2, x.ndim))
    y *= per_channel(wide(scale), x.shape) / call.xp.sqrt(var + x.dtype.type(epsilon))
    y += per_channel(wide(B), x.shape)
    return narrow(y, input.dtype)


def _group_standardised(call: Call, X: Array, num_groups: int, epsilon: float) -> Array:
    """Return X (N, C, …) with zero mean and unit variance per instance and group, in the wide dtype."""
    if X.shape[1] % num_groups:
        raise ValueError(f"{X.shape[1]} channels do not divide into {num_groups} groups")
    grouped = wide(X).reshape(X.shape[0], num_groups, prod(X.shape[1:]) // num_groups)
    _, var, y = _moments(grouped, [2])
    y /= call.xp.sqrt(var + y.dtype.type(epsilon))
    return y


@op("GroupNormalization", 21, infer=same_as_first)
def group_normalization(
    call: Call,
    X: Array,
    scale: Array,
    bias: Array,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Array:
    """Standardise per instance and group, round to X's dtype, then scale and shift per channel (C)."""
    y = narrow(_group_standardised(call, X, num_groups, epsilon).reshape(X.shape), X.dtype)
    return y * per_channel(scale, X.shape) + per_channel(bias, X.shape)


@op("GroupNormalization", 18, infer=same_as_first)
def group_normalization_18(
    call: Call, X: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5
) -> Array:
    """As version 21, but scale and bias hold one entry per group."""
    y = narrow(_group_standardised(call, X, num_groups, epsilon), X.dtype)
    return (y * scale[:, None] + bias[:, None]).reshape(X.shape)


# ---- statistics over the last axes ---------------------------------------------------------------------


def _last_axes(x: Array, axis: int) -> range:
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis {axis} is out of range for rank {x.ndim}")
    return range(axis % x.ndim, x.ndim)


def infer_layer(
    call: Call, X: TensorType, *rest: TensorType | None, axis: int = -1, stash_type: int = 1, **_: Any
) -> tuple[TensorType, ...]:
    """Y like X; mean and inverse deviation in the stash type, with size 1 from ``axis`` on."""
    reduced = None
    if X.shape is not None:
        first = positive_axes([axis], len(X.shape))[0]
        reduced = with_dims(X.shape, dict.fromkeys(range(first, len(X.shape)), 1))
    statistic = TensorType(_stash(call, stash_type), reduced)
    return TensorType(X.dtype, X.shape), statistic, statistic


def infer_rms(
    call: Call, X: TensorType, scale: TensorType, **attributes: Any
) -> tuple[TensorType, TensorType]:
    """Y with the dtype of scale and the shape of X; the inverse root mean square as infer_layer has it."""
    return TensorType(scale.dtype, X.shape), infer_layer(call, X, **attributes)[1]


@op("LayerNormalization", 1, 17, infer=infer_layer)
def layer_normalization(
    call: Call,
    X: Array,
    Scale: Array,
    B: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Array, Array, Array]:
    """Standardise over the axes from ``axis`` on, round to X's dtype, then · Scale + B in that dtype.

    Mean and inverse standard deviation are stored in the stash type. A float64 X is standardised in
    float64 although stash_type says float32: nothing is gained by rounding it first. Version 1 is no version
    of ONNX, but what ONNX Runtime's optimiser writes into models of older opsets.
    """
    mean, var, y = _moments(wide(X), _last_axes(X, axis))
    inverse = 1 / call.xp.sqrt(var + y.dtype.type(epsilon))
    y *= inverse
    y = narrow(y, X.dtype) * Scale
    stash = _stash(call, stash_type)
    return y if B is None else y + B, narrow(mean, stash), narrow(inverse, stash)


def _stash(call: Call, stash_type: int) -> Any:
    """Return the dtype of saved statistics, promoted in truth mode."""
    return call.real(ir.DataType(stash_type).numpy())


def _rms(call: Call, X: Array, axis: int, epsilon: float) -> tuple[Array, Array]:
    """Return X over its root mean square over the axes from ``axis`` on, and the inverse of that root."""
    x = wide(X)
    axes = tuple(_last_axes(X, axis))
    mean = (x * x).sum(axis=axes, keepdims=True) / x.dtype.type(max(1, _count(x, axes)))
    inverse = 1 / call.xp.sqrt(mean + x.dtype.type(epsilon))
    return x * inverse, inverse


@op("RMSNormalization", 23, infer=infer_rms)
def rms_normalization(
    call: Call, X: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """X / √(mean(X²) + ε) over the axes from ``axis`` on, rounded to X's dtype, · scale in scale's dtype."""
    normalised, _ = _rms(call, X, axis, epsilon)
    return narrow(normalised, X.dtype).astype(scale.dtype, copy=False) * scale


@op("SimplifiedLayerNormalization", 1, infer=infer_rms)
def simplified_layer_normalization(
    call: Call, X: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Array, Array]:
    """RMSNormalization before it was standardised: no operator of ONNX, but one that ONNX Runtime accepts.

    The second output is the inverse root mean square in the stash type.
    """
    normalised, inverse = _rms(call, X, axis, epsilon)
    y = narrow(normalised, X.dtype).astype(scale.dtype, copy=False) * scale
    return y, narrow(inverse, _stash(call, stash_type))


# ---- other normalisations ------------------------------------------------------------------------------


@op("LRN", 1, 13, infer=same_as_first)
def lrn(
    call: Call, X: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Array:
    """X / (bias + alpha/size · Σ X²)^beta, the sum over ``size`` neighbouring channels of (N, C, …)."""
    x = wide(X)
    squares = x * x
    total = squares.copy()
    channels = x.shape[1]
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    for shift in range(1, max(before, after) + 1):
        if shift <= before:
            total[:, shift:] += squares[:, : max(0, channels - shift)]
        if shift <= after:
            total[:, : max(0, channels - shift)] += squares[:, shift:]
    kind = x.dtype.type
    return narrow(x / (kind(bias) + kind(alpha / size) * total) ** kind(beta), X.dtype)


@op("LpNormalization", 1, 22, infer=same_as_first)
def lp_normalization(call: Call, input: Array, *, axis: int = -1, p: int = 2) -> Array:
    """input / its p-norm (1 or 2) along axis; 0 where the norm is 0."""
    if p not in (1, 2):
        raise ValueError(f"p is {p}; the specification allows 1 and 2")
    x, xp = wide(input), call.xp
    norm = (
        xp.abs(x).sum(axis=axis, keepdims=True) if p == 1 else xp.sqrt((x * x).sum(axis=axis, keepdims=True))
    )
    zero = norm == 0
    y = xp.where(zero, x.dtype.type(0), x / xp.where(zero, x.dtype.type(1), norm))
    return narrow(y, input.dtype)


@op("MeanVarianceNormalization", 9, 13, infer=same_as_first)
def mean_variance_normalization(call: Call, X: Array, *, axes: Axes = (0, 2, 3)) -> Array:
    """(X − mean) / (√var + 1e-9) over axes; the constant is the one in the operator's function body."""
    x = wide(X)
    _, var, y = _moments(x, positive_axes(axes, X.ndim))
    y /= call.xp.sqrt(var) + x.dtype.type(1e-9)
    return narrow(y, X.dtype)
