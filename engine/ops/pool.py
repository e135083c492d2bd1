"""Pooling: MaxPool, AveragePool, LpPool, their global forms, MaxUnpool.

Maxima and sums are taken axis by axis, one shifted view per tap, without a padded copy of the input.
"""

from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.ops.content import entries
from graphdoc.engine.ops.dims import add, multiply, subtract
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import INT64
from graphdoc.engine.ops.table import Array, Call, TensorType, op
from graphdoc.engine.ops.window import Ints, Window, axis_taps, counts, infer_sizes, recalled, sliding, taps

# ---- shapes --------------------------------------------------------------------------------------------


def _window(x: Array, kernel_shape: Ints, **attributes: Any) -> Window:
    if x.ndim < 3:
        raise ValueError(f"pooling needs a batch, a channel and spatial axes, got rank {x.ndim}")
    return sliding(x.shape[2:], kernel_shape, **attributes)


def _recalled(call: Call, x: Array, attributes: dict[str, Any]) -> Window:
    return recalled(call, x.shape, attributes, lambda: _window(x, **attributes))


def infer_pool(call: Call, X: TensorType, *, kernel_shape: Ints, **attributes: Any) -> TensorType:
    """dtype, batch and channels of X, spatial sizes by the window."""
    if X.shape is None:
        return TensorType(X.dtype)
    return TensorType(X.dtype, (*X.shape[:2], *infer_sizes(X.shape[2:], kernel_shape, **attributes)))


def infer_max_pool(call: Call, X: TensorType, **attributes: Any) -> tuple[TensorType, TensorType]:
    """The pooled values and, int64 of the same shape, their indices."""
    pooled = infer_pool(call, X, **attributes)
    return pooled, TensorType(INT64, pooled.shape)


def infer_global(call: Call, X: TensorType, **attributes: Any) -> TensorType:
    """dtype, batch and channels of X, every spatial size 1."""
    if X.shape is None:
        return TensorType(X.dtype)
    return TensorType(X.dtype, (*X.shape[:2], *(1,) * (len(X.shape) - 2)))


# ---- reductions over windows ---------------------------------------------------------------------------


def _lowest(dtype: Any) -> Any:
    """Return the identity of the maximum in a dtype."""
    dtype = np.dtype(dtype)
    return np.iinfo(dtype).min if dtype.kind in "iu" else np.array(-np.inf).astype(dtype)[()]


def _slide(xp: Any, x: Array, window: Window, combine: Any, identity: Any) -> Array:
    """Return ``combine`` over every window of x (N, C, *spatial), one axis after the other."""
    for axis, size in enumerate(x.shape[2:]):
        if window.kernel[axis] == window.strides[axis] == 1 and window.out[axis] == size:
            continue
        lead = (slice(None),) * (axis + 2)
        y = xp.full((*x.shape[: axis + 2], window.out[axis], *x.shape[axis + 3 :]), identity, x.dtype)
        for pair in axis_taps(window, axis, size):
            if pair is not None:
                target = y[(*lead, pair[0])]
                combine(target, x[(*lead, pair[1])], out=target)
        x = y
    return x


def divisors_of(xp: Any, window: Window, spatial: Ints, *, include_pad: bool, dtype: Any) -> Array:
    """Return how many elements each window averages, broadcastable over (*out)."""
    per_axis = counts(window, spatial, include_pad=include_pad)
    total = np.ones((), dtype)
    for count in per_axis:
        total = total[..., None] * count.astype(dtype)
    return xp.asarray(total)


# ---- MaxPool -------------------------------------------------------------------------------------------


@op("MaxPool", 1, 8, 10, 11, 12, 22, infer=infer_max_pool)
def max_pool(
    call: Call, X: Array, *, kernel_shape: Ints, storage_order: int = 0, **attributes: Any
) -> tuple[Array, ...]:
    """Largest element of each window of X (N, C, *spatial), and its index (int64) in the flattened X.

    Further attributes: strides, dilations, pads, auto_pad, ceil_mode. Padding never wins. Of equal elements
    the first counts; NaN wins. storage_order 1 numbers the spatial axes column first.
    """
    window = _recalled(call, X, {"kernel_shape": kernel_shape, **attributes})
    if call.outputs < 2:
        return (_slide(call.xp, X, window, call.xp.maximum, _lowest(X.dtype)),)
    return _max_with_indices(call.xp, X, window, storage_order)


def _max_with_indices(xp: Any, x: Array, window: Window, storage_order: int) -> tuple[Array, Array]:
    spatial = x.shape[2:]
    numbers = np.arange(prod(spatial), dtype=np.int64)
    order = spatial if storage_order == 0 else spatial[::-1]
    grid = xp.asarray(numbers.reshape(order) if storage_order == 0 else numbers.reshape(order).T)
    best = xp.full((*x.shape[:2], *window.out), _lowest(x.dtype), x.dtype)
    index = xp.full(best.shape, -1, np.int64)
    for _, positions, elements in taps(window, spatial):
        value, held, at = x[(..., *elements)], best[(..., *positions)], index[(..., *positions)]
        # NaN alone differs from itself.
        better = (value > held) | (value != value) | (at < 0)
        xp.copyto(held, value, where=better)
        xp.copyto(at, grid[elements], where=better)
    planes = xp.arange(x.shape[0] * x.shape[1], dtype=np.int64) * prod(spatial)
    return best, index + planes.reshape(*x.shape[:2], *(1,) * len(spatial))


# ---- AveragePool, LpPool -------------------------------------------------------------------------------


@op("AveragePool", 1, 7, 10, 11, 19, 22, infer=infer_pool)
def average_pool(
    call: Call, X: Array, *, kernel_shape: Ints, count_include_pad: int = 0, **attributes: Any
) -> Array:
    """Mean of each window of X (N, C, *spatial); float16 and bfloat16 are summed in float32.

    Further attributes: strides, dilations, pads, auto_pad, ceil_mode. count_include_pad 1 divides by the
    elements inside the padded input, 0 by those inside the input.
    """
    window = _recalled(call, X, {"kernel_shape": kernel_shape, **attributes})
    x = wide(X)
    total = _slide(call.xp, x, window, call.xp.add, 0)
    divisors = divisors_of(call.xp, window, X.shape[2:], include_pad=bool(count_include_pad), dtype=x.dtype)
    return narrow(total / divisors, X.dtype)


def _powers(xp: Any, x: Array, p: float) -> Array:
    """Return |x| ** p."""
    if p == 2:
        return x * x
    return xp.abs(x) if p == 1 else xp.abs(x) ** p


def _root(xp: Any, total: Array, p: float) -> Array:
    """Return total ** (1/p)."""
    if p == 2:
        return xp.sqrt(total)
    return total if p == 1 else total ** (1.0 / p)


@op("LpPool", 1, 2, 11, 18, 22, infer=infer_pool)
def lp_pool(call: Call, X: Array, *, kernel_shape: Ints, p: float = 2, **attributes: Any) -> Array:
    """p-norm of each window of X (N, C, *spatial); float16 and bfloat16 are summed in float32.

    Further attributes: strides, dilations, pads, auto_pad, ceil_mode.
    """
    window = _recalled(call, X, {"kernel_shape": kernel_shape, **attributes})
    total = _slide(call.xp, _powers(call.xp, wide(X), p), window, call.xp.add, 0)
    return narrow(_root(call.xp, total, p), X.dtype)


# ---- global pooling ------------------------------------------------------------------------------------


def _flat(x: Array) -> tuple[Array, tuple[int, ...]]:
    """Return x as (N, C, elements), and the shape (N, C, 1, …) of a global pooling's result."""
    return x.reshape(*x.shape[:2], prod(x.shape[2:])), (*x.shape[:2], *(1,) * (x.ndim - 2))


@op("GlobalAveragePool", 1, 22, infer=infer_global)
def global_average_pool(call: Call, X: Array) -> Array:
    """Mean over the spatial axes; float16 and bfloat16 are summed in float32."""
    flat, shape = _flat(wide(X))
    return narrow((flat.sum(axis=2) / flat.dtype.type(flat.shape[2])).reshape(shape), X.dtype)


@op("GlobalMaxPool", 1, 22, infer=infer_global)
def global_max_pool(call: Call, X: Array) -> Array:
    """Largest element over the spatial axes; NaN wins."""
    flat, shape = _flat(X)
    return call.xp.max(flat, axis=2).reshape(shape)


@op("GlobalLpPool", 1, 2, 22, infer=infer_global)
def global_lp_pool(call: Call, X: Array, *, p: float = 2) -> Array:
    """p-norm over the spatial axes; float16 and bfloat16 are summed in float32."""
    flat, shape = _flat(wide(X))
    total = _powers(call.xp, flat, p).sum(axis=2)
    return narrow(_root(call.xp, total, p).reshape(shape), X.dtype)


# ---- MaxUnpool -----------------------------------------------------------------------------------------


def infer_max_unpool(
    call: Call,
    X: TensorType,
    indices: TensorType,
    output_shape: TensorType | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> TensorType:
    """dtype of X; the output shape where it is given, else batch and channels of X and what windows cover."""
    if X.shape is None or output_shape is not None:
        rank = 0 if X.shape is None else len(X.shape)
        return TensorType(X.dtype, entries(output_shape) or ((None,) * rank or None))
    rank = len(X.shape) - 2
    pads, strides = pads or [0] * 2 * rank, strides or [1] * rank
    rows = zip(X.shape[2:], kernel_shape, strides, pads[:rank], pads[rank:], strict=True)
    sizes = (add(multiply(subtract(n, 1), s), k - b - e) for n, k, s, b, e in rows)
    return TensorType(X.dtype, (*X.shape[:2], *sizes))


@op("MaxUnpool", 9, 11, 22, infer=infer_max_unpool)
def max_unpool(
    call: Call,
    X: Array,
    I: Array,  # noqa: E741 (the specification's name)
    output_shape: Array | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Zeros with the elements of X (N, C, *spatial) at the flat indices I that MaxPool gave.

    The indices count in the shape that follows from the attributes; output_shape places that shape in the
    corner of a larger one.
    """
    rank = X.ndim - 2
    pads, strides = pads or [0] * 2 * rank, strides or [1] * rank
    rows = zip(X.shape[2:], kernel_shape, strides, pads[:rank], pads[rank:], strict=True)
    natural = (*X.shape[:2], *((n - 1) * s + k - b - e for n, k, s, b, e in rows))
    flat = call.xp.zeros(prod(natural), X.dtype)
    flat[I.reshape(-1)] = X.reshape(-1)
    y = flat.reshape(natural)
    shape = natural if output_shape is None else tuple(int(n) for n in output_shape.tolist())
    if shape == natural:
        return y
    placed = call.xp.zeros(shape, X.dtype)
    placed[tuple(slice(n) for n in natural)] = y
    return placed
