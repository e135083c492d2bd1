"""Operators that read images at computed, fractional positions: GridSample, AffineGrid, DeformConv.

Samples are sums over the corners of a cell: per corner one gather for all channels, times its weight.
Coordinates count elements from 0 and run in the order of the spatial axes.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.ops.content import entries
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op
from graphdoc.engine.ops.window import Ints, sliding

# ---- sampling ------------------------------------------------------------------------------------------

Corner = tuple[Array, Array | None, Array]
"""Of one axis: element indices inside the axis, where they were inside before (None: everywhere), weights."""


def _linear_corners(xp: Any, at: Array, size: int) -> list[Corner]:
    """Return the two corners around coordinates along one axis; outside lies zero."""
    low = xp.floor(at)
    fraction = at - low
    first = low.astype(np.int64)
    return [_zero_corner(xp, first, size, 1 - fraction), _zero_corner(xp, first + 1, size, fraction)]


def _zero_corner(xp: Any, index: Array, size: int, weight: Array) -> Corner:
    return xp.clip(index, 0, size - 1), (index >= 0) & (index < size), weight


def _flat_corners(
    xp: Any, axes: Sequence[Sequence[Corner]], spatial: Ints
) -> Iterator[tuple[Array, Any, Any]]:
    """Yield (flat index, where inside or None, weight) over all combinations of the axes' corners."""
    steps = [prod(spatial[axis + 1 :]) for axis in range(len(spatial))]
    for corners in product(*axes):
        index: Any = sum(c[0] * step for c, step in zip(corners, steps, strict=True))
        weight: Any = 1
        inside: Any = None
        for _, within, factor in corners:
            weight = weight * factor
            if within is not None:
                inside = within if inside is None else inside & within
        yield index, inside, weight


def sample(xp: Any, x: Array, axes: Sequence[Sequence[Corner]]) -> Array:
    """Return Σ over corners of x (N, C, *spatial) at their indices times weights, both (N, points).

    The result is (N, C, points).
    """
    flat = x.reshape(*x.shape[:2], prod(x.shape[2:]))
    points = axes[0][0][0].shape[1]
    total = xp.zeros((*x.shape[:2], points), x.dtype)
    for index, inside, weight in _flat_corners(xp, axes, x.shape[2:]):
        for n in range(x.shape[0]):
            values = flat[n].take(index[n], axis=1)
            values *= weight[n].astype(x.dtype, copy=False)
            # Outside counts as zero even where the element read in its stead, or a weight, is not finite.
            total[n] += values if inside is None else xp.where(inside[n], values, xp.zeros((), x.dtype))
    return total


# ---- GridSample ----------------------------------------------------------------------------------------

_MODES = {
    "linear": "linear",
    "bilinear": "linear",
    "cubic": "cubic",
    "bicubic": "cubic",
    "nearest": "nearest",
}
_PADDING = ("zeros", "border", "reflection")


def _reflected(xp: Any, at: Array, low: float, high: float) -> Array:
    """Return coordinates mirrored at both ends until they lie inside [low, high]."""
    length = high - low
    if length <= 0:
        return xp.full_like(at, low)
    around = xp.abs(at - low) % (2 * length)
    return xp.where(around > length, 2 * length - around, around) + at.dtype.type(low)


def _ends(size: int, align_corners: int) -> tuple[float, float]:
    return (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)


def _moved_inside(xp: Any, at: Array, size: int, padding: str, ends: tuple[float, float]) -> Array:
    """Return coordinates as the padding mode moves those outside the image."""
    if padding == "zeros":
        return at
    outside = (at < ends[0]) | (at > ends[1])
    moved = xp.clip(at, 0, size - 1) if padding == "border" else _reflected(xp, at, *ends)
    return xp.where(outside, moved, at)


def _pixel(
    xp: Any, index: Array, size: int, padding: str, ends: tuple[float, float], weight: Array
) -> Corner:
    """Return one corner at whole coordinates, by the padding mode."""
    if padding == "zeros":
        return _zero_corner(xp, index.astype(np.int64), size, weight)
    if padding == "reflection":
        index = xp.trunc(_reflected(xp, index, *ends))
    return xp.clip(index, 0, size - 1).astype(np.int64), None, weight


def _keys(t: Array, a: float = -0.75) -> list[Array]:
    """Return Keys' cubic weights of the four elements around a fraction t."""
    near, far = t, 1 - t

    def outer(u: Array) -> Array:
        return ((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a

    def inner(u: Array) -> Array:
        return ((a + 2) * u - (a + 3)) * u * u + 1

    return [outer(near), inner(near), inner(far), outer(far)]


def _grid_corners(xp: Any, at: Array, size: int, mode: str, padding: str, align_corners: int) -> list[Corner]:
    """Return the corners along one axis for normalised coordinates −1 … 1."""
    ends = _ends(size, align_corners)
    at = (at + 1) / 2 * (size - 1) if align_corners else ((at + 1) * size - 1) / 2
    at = xp.rint(at) if mode == "nearest" else at
    # Cubic at the border: each of the four elements is moved inside, the coordinate is not.
    at = at if (mode, padding) == ("cubic", "border") else _moved_inside(xp, at, size, padding, ends)
    if mode == "nearest":
        # Mirrored at half an element, whole coordinates may come out as halves.
        return [_pixel(xp, xp.trunc(at), size, padding, ends, xp.ones_like(at))]
    low = xp.floor(at)
    fraction = at - low
    weights = [1 - fraction, fraction] if mode == "linear" else _keys(fraction)
    first = low if mode == "linear" else low - 1
    return [_pixel(xp, first + shift, size, padding, ends, w) for shift, w in enumerate(weights)]


def infer_grid_sample(call: Call, X: TensorType, grid: TensorType, **_: object) -> TensorType:
    """dtype, batch and channels of X, spatial sizes of the grid."""
    if X.shape is None or grid.shape is None:
        return TensorType(X.dtype)
    return TensorType(X.dtype, (*X.shape[:2], *grid.shape[1:-1]))


@op("GridSample", 16, 20, 22, infer=infer_grid_sample)
def grid_sample(
    call: Call,
    X: Array,
    grid: Array,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
) -> Array:
    """X (N, C, *spatial) at the positions of grid (N, *out, axes): −1 … 1, innermost axis first.

    mode: linear, cubic or nearest (version 16: bilinear, bicubic, nearest); padding_mode: zeros, border,
    reflection. Integers are sampled in float64 and truncated. Returns (N, C, *out).
    """
    if mode not in _MODES or padding_mode not in _PADDING:
        raise ValueError(f"mode '{mode}' with padding_mode '{padding_mode}' is unknown")
    xp, rank = call.xp, X.ndim - 2
    if grid.shape[0] != X.shape[0] or grid.shape[-1] != rank:
        raise ValueError(f"a grid {list(grid.shape)} does not fit an input {list(X.shape)}")
    x = wide(X) if X.dtype.kind not in "iub" else X.astype(np.float64)
    points = wide(grid).reshape(grid.shape[0], prod(grid.shape[1:-1]), rank)
    axes = [
        _grid_corners(xp, points[..., rank - 1 - axis], size, _MODES[mode], padding_mode, align_corners)
        for axis, size in enumerate(X.shape[2:])
    ]
    return narrow(sample(xp, x, axes), X.dtype).reshape(*X.shape[:2], *grid.shape[1:-1])


# ---- AffineGrid ----------------------------------------------------------------------------------------


def infer_affine_grid(call: Call, theta: TensorType, size: TensorType, **_: object) -> TensorType:
    """dtype of theta; (N, *spatial, axes) as far as the size is known."""
    axes = theta.shape[1] if theta.shape else None
    known = entries(size) or ((None,) * (axes + 2) if isinstance(axes, int) else ())
    sizes: tuple[Dim, ...] | None = (known[0], *known[2:], len(known) - 2) if known else None
    return TensorType(theta.dtype, sizes)


@op("AffineGrid", 20, infer=infer_affine_grid)
def affine_grid(call: Call, theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """Positions theta · (x, y[, z], 1) for every element of an output of ``size`` (N, C, *spatial).

    theta (N, 2, 3) or (N, 3, 4). Positions run from −1 to 1: between the outer elements' centres with
    align_corners, else between their outer edges. Returns (N, *spatial, 2 or 3).
    """
    xp, spatial = call.xp, [int(n) for n in size.tolist()[2:]]
    if theta.shape[1:] != (len(spatial), len(spatial) + 1):
        raise ValueError(f"theta {list(theta.shape)} does not fit {len(spatial)} spatial axes")
    lines = [_line(n, align_corners) for n in spatial]
    grid = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(spatial)], axis=-1)
    matrix = wide(theta)
    points = xp.asarray(grid.reshape(-1, len(spatial) + 1).astype(matrix.dtype))
    positions = xp.matmul(points, matrix.swapaxes(1, 2))
    return narrow(positions, theta.dtype).reshape(theta.shape[0], *spatial, len(spatial))


def _line(count: int, align_corners: int) -> Any:
    """Return the positions of one axis; a single element lies in the middle."""
    if align_corners:
        return np.linspace(-1, 1, count) if count > 1 else np.zeros(count)
    return (2 * np.arange(count) + 1) / max(count, 1) - 1


# ---- DeformConv ----------------------------------------------------------------------------------------


def infer_deform_conv(
    call: Call, X: TensorType, W: TensorType, offset: TensorType, *rest: TensorType | None, **_: object
) -> TensorType:
    """dtype of X; batch of X, channels of W, spatial sizes of the offsets."""
    if offset.shape is None or X.shape is None:
        return TensorType(X.dtype)
    return TensorType(X.dtype, (X.shape[0], W.shape[0] if W.shape else None, *offset.shape[2:]))


@op("DeformConv", 19, 22, infer=infer_deform_conv)
def deform_conv(
    call: Call,
    X: Array,
    W: Array,
    offset: Array,
    B: Array | None = None,
    mask: Array | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    kernel_shape: Ints | None = None,
    **attributes: Any,
) -> Array:
    """Convolution of X (N, C, *spatial) with W (M, C/group, *kernel) whose taps are moved by offsets.

    offset (N, offset_group · taps · axes, *out), mask (N, offset_group · taps, *out) scales each tap.
    Samples are linear between elements and zero outside. Further attributes: strides, dilations, pads.
    Raises ValueError when shapes do not fit.
    """
    xp, rank, kernel = call.xp, X.ndim - 2, W.shape[2:]
    window = sliding(X.shape[2:], kernel, **attributes)
    count, tap_count = X.shape[0], prod(kernel)
    fits = offset.shape == (count, offset_group * tap_count * rank, *window.out)
    if not fits or X.shape[1] % offset_group or X.shape[1] != W.shape[1] * group:
        raise ValueError(
            f"offsets {list(offset.shape)} or weights {list(W.shape)} do not fit {list(X.shape)}"
        )
    shape = (count, offset_group, tap_count, rank, *window.out)
    moved = wide(offset).reshape(shape) + xp.asarray(_tap_positions(window), wide(offset).dtype)
    # Offset groups sample their own channels: they join the batch.
    x = wide(X).reshape(count * offset_group, -1, *X.shape[2:])
    points = moved.reshape(count * offset_group, tap_count, rank, -1)
    axes = [_linear_corners(xp, points[:, :, a].reshape(len(x), -1), n) for a, n in enumerate(X.shape[2:])]
    columns = sample(xp, x, axes)
    if mask is not None:
        columns *= wide(mask).reshape(len(x), 1, -1)
    columns = columns.reshape(count, group, -1, prod(window.out))
    y = xp.matmul(wide(W).reshape(group, W.shape[0] // group, -1), columns)
    y = y.reshape(count, W.shape[0], *window.out)
    if B is not None:
        y += wide(B).reshape(-1, *(1,) * rank)
    return narrow(y, X.dtype)


def _tap_positions(window: Any) -> Any:
    """Return the coordinates of every tap at every position without offsets: (taps, axes, *out)."""
    rank = len(window.out)
    inner = np.meshgrid(
        *(np.arange(k) * d for k, d in zip(window.kernel, window.dilations, strict=True)), indexing="ij"
    )
    outer = np.meshgrid(
        *(np.arange(o) * s - b for o, s, b in zip(window.out, window.strides, window.begin, strict=True)),
        indexing="ij",
    )
    taps = np.stack([axis.ravel() for axis in inner], axis=1)
    return taps.reshape(*taps.shape, *(1,) * rank) + np.stack(outer)
