"""Convolutions: Conv, ConvTranspose, ConvInteger, QLinearConv, Col2Im.

One algorithm serves all ranks and groups: windows are copied into columns, tile by tile, and each tile is
one BLAS product per group. A depthwise convolution is the case of one channel per group.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import first_dtype, per_channel
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op
from graphdoc.engine.ops.window import Ints, Window, infer_sizes, pad, recalled, sliding, view

_TILE_BYTES = 1 << 20
"""Columns copied at once: larger tiles leave the cache, smaller ones make small products."""

_EXACT_FLOAT32 = 1 << 24
"""Integers up to this size are exact in float32."""


# ---- shapes --------------------------------------------------------------------------------------------


def _window(x: Array, w: Array, kernel_shape: Ints | None, **attributes: Any) -> Window:
    """Return the window of a convolution; the kernel's size stands in the weights."""
    kernel = w.shape[2:]
    if kernel_shape and tuple(kernel_shape) != kernel:
        raise ValueError(f"kernel_shape {list(kernel_shape)} does not fit weights {list(w.shape)}")
    return sliding(x.shape[2:], kernel, **attributes)


def _recalled(call: Call, x: Array, w: Array, group: int, attributes: dict[str, Any]) -> Window:
    """Return the window of a node's convolution, checked when shapes change."""

    def make() -> Window:
        _check_groups(x, w, group)
        return _window(x, w, **{"kernel_shape": None, **attributes})

    return recalled(call, (x.shape, w.shape, group), attributes, make)


def _check_groups(x: Array, w: Array, group: int) -> None:
    if x.ndim < 3 or x.ndim != w.ndim:
        raise ValueError(f"x has rank {x.ndim} and the weights {w.ndim}; equal ranks of 3 or more are needed")
    if x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ValueError(f"weights {list(w.shape)} in {group} groups do not fit {x.shape[1]} channels")


def infer_conv(
    call: Call, x: TensorType, w: TensorType, *rest: TensorType | None, group: int = 1, **attributes: Any
) -> TensorType:
    """dtype of x; (N, M, …) from x and w."""
    return TensorType(first_dtype((x, w)), _infer_shape(x, w, attributes))


def _infer_shape(x: TensorType, w: TensorType, attributes: dict[str, Any]) -> tuple[Dim, ...] | None:
    shape, weights = x.shape, w.shape
    kernel = attributes.pop("kernel_shape", None)
    if shape is None or (weights is None and not kernel):
        return None
    sizes = weights[2:] if weights is not None else tuple(kernel)
    return shape[0], weights[0] if weights is not None else None, *infer_sizes(shape[2:], sizes, **attributes)


# ---- the product ---------------------------------------------------------------------------------------


def convolve(xp: Any, x: Array, w: Array, window: Window, group: int) -> Array:
    """Return the convolution of x (N, C, *spatial) with w (M, C/group, *kernel): (N, M, *out).

    Both have one dtype that BLAS knows; the sum is taken in it.
    """
    count, channels = x.shape[:2]
    grouped = pad(xp, x, window).reshape(count, group, channels // group, *_padded(x, window))
    weights = w.reshape(group, w.shape[0] // group, prod(w.shape[1:]))
    if prod(window.kernel) == 1:
        steps = tuple(slice(None, None, stride) for stride in window.strides)
        columns = grouped[(..., *steps)].reshape(count, group, channels // group, prod(window.out))
        y = xp.matmul(weights, columns)
    else:
        y = xp.empty((count, *weights.shape[:2], prod(window.out)), x.dtype)
        _by_tiles(xp, view(xp, grouped, window), weights, y, window)
    return y.reshape(count, w.shape[0], *window.out)


def _padded(x: Array, window: Window) -> tuple[int, ...]:
    sizes = zip(window.begin, x.shape[2:], window.end, strict=True)
    return tuple(map(sum, sizes))


def _by_tiles(xp: Any, windows: Array, weights: Array, y: Array, window: Window) -> None:
    """Fill y (N, G, M/G, positions) with weights (G, M/G, K) times windows (N, G, C/G, *kernel, *out)."""
    first = 3 + len(window.kernel)
    depth, row = weights.shape[2], prod(window.out[1:])
    if y.size and prod(windows.shape) * y.dtype.itemsize <= _TILE_BYTES:
        xp.matmul(weights, windows.reshape(*windows.shape[:2], depth, y.shape[3]), out=y)
        return
    for images, groups, rows in _tiles(windows.shape[:2], window.out[0], depth * row * y.dtype.itemsize):
        tile = windows[(images, groups) + (slice(None),) * (first - 2) + (rows,)]
        columns = tile.reshape(*tile.shape[:2], depth, tile.shape[first] * row)
        span = slice(rows.start * row, rows.start * row + columns.shape[3])
        xp.matmul(weights[groups], columns, out=y[images, groups, :, span])


def _tiles(lead: tuple[int, int], rows: int, row_bytes: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield (images, groups, rows) so that a tile's columns take about _TILE_BYTES."""
    images, groups = lead
    fit = max(1, _TILE_BYTES // max(1, row_bytes))
    step = min(rows, fit)
    group_step = max(1, min(groups, fit // max(1, rows)))
    image_step = max(1, fit // max(1, rows * groups))
    for n in range(0, images, image_step):
        for g in range(0, groups, group_step):
            for r in range(0, rows, step or 1):
                yield slice(n, n + image_step), slice(g, g + group_step), slice(r, r + step)


# ---- Conv ----------------------------------------------------------------------------------------------


@op("Conv", 1, 11, 22, infer=infer_conv)
def conv(
    call: Call,
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Ints | None = None,
    **attributes: Any,
) -> Array:
    """Cross-correlation of X (N, C, *spatial) with W (M, C/group, *kernel), plus B (M).

    Further attributes: strides, dilations, pads, auto_pad. float16 and bfloat16 are summed in float32 and
    rounded once. Raises ValueError when shapes and attributes do not fit.
    """
    window = _recalled(call, X, W, group, {"kernel_shape": kernel_shape, **attributes})
    y = convolve(call.xp, wide(X), wide(W), window, group)
    if B is not None:
        y += per_channel(wide(B), y.shape)
    return narrow(y, X.dtype)


# ---- integer convolutions ------------------------------------------------------------------------------


def _centred(x: Array, zero_point: Array | None, rank: int) -> Array:
    """Return x minus its zero point, as exact integers in float32.

    zero_point: one, or one per entry of the first axis (weights).
    """
    centred = x.astype(np.float32)
    if zero_point is not None:
        centred -= zero_point.astype(np.float32).reshape(
            -1, *(1,) * (rank - 1) if zero_point.size > 1 else ()
        )
    return centred


def _exact_products(xp: Any, x: Array, w: Array) -> bool:
    """Whether every partial sum of products stays exact in float32."""
    depth = prod(w.shape[1:])
    if depth * 255 * 255 <= _EXACT_FLOAT32 or not x.size or not w.size:
        return True
    largest = xp.abs(w).reshape(w.shape[0], -1).sum(axis=1, dtype=np.float64).max()
    return bool(float(xp.abs(x).max()) * float(largest) <= _EXACT_FLOAT32)


def _integer_sum(
    call: Call,
    x: Array,
    w: Array,
    x_zero_point: Array | None,
    w_zero_point: Array | None,
    group: int,
    **rest: Any,
) -> Array:
    """Return the convolution of centred integers as float32 or float64 holding exact integers."""
    window = _recalled(call, x, w, group, rest)
    values, weights = _centred(x, x_zero_point, x.ndim), _centred(w, w_zero_point, w.ndim)
    if not _exact_products(call.xp, values, weights):
        values, weights = values.astype(np.float64), weights.astype(np.float64)
    return convolve(call.xp, values, weights, window, group)


def infer_conv_integer(
    call: Call, x: TensorType, w: TensorType, *rest: TensorType | None, **attributes: Any
) -> TensorType:
    """int32; (N, M, …) from x and w."""
    return TensorType(np.dtype(np.int32), infer_conv(call, x, w, **attributes).shape)


@op("ConvInteger", 10, infer=infer_conv_integer)
def conv_integer(
    call: Call,
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    group: int = 1,
    **attributes: Any,
) -> Array:
    """int32 convolution of 8-bit x and w, each less its zero point; padding counts as the zero point.

    The products are BLAS products of exact integers, in float64 where float32 could round.
    """
    y = _integer_sum(call, x, w, x_zero_point, w_zero_point, group, **attributes)
    return _wrap32(y)


def _wrap32(y: Array) -> Array:
    """Return exact integers held in a float as int32, wrapping."""
    return y.astype(np.int32) if y.dtype == np.float32 else y.astype(np.int64).astype(np.int32)


def infer_qlinear_conv(call: Call, x: TensorType, *rest: TensorType | None, **attributes: Any) -> TensorType:
    """dtype of the output's zero point; (N, M, …) from x and w."""
    w, zero_point = rest[2], rest[6]
    shape = infer_conv(call, x, w, **attributes).shape if w is not None else None
    return TensorType(None if zero_point is None else zero_point.dtype, shape)


@op("QLinearConv", 10, infer=infer_qlinear_conv)
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
    group: int = 1,
    **attributes: Any,
) -> Array:
    """8-bit convolution: int32 sums (with B, int32) times x_scale · w_scale / y_scale, rounded half to even,
    plus y_zero_point, clamped to its dtype. w_scale and w_zero_point: one, or one per channel M.
    """
    xp = call.xp
    y = _wrap32(_integer_sum(call, x, w, x_zero_point, w_zero_point, group, **attributes))
    if B is not None:
        y += per_channel(B, y.shape)
    scale = x_scale.reshape(()) * w_scale / y_scale.reshape(())
    if scale.size > 1:
        scale = per_channel(scale, y.shape)
    scaled = y.astype(scale.dtype)
    scaled *= scale
    xp.rint(scaled, out=scaled)
    scaled += y_zero_point.astype(scale.dtype)
    limits = np.iinfo(y_zero_point.dtype)
    return xp.clip(scaled, limits.min, limits.max, out=scaled).astype(y_zero_point.dtype)
