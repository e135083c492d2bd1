"""Pooling over regions of interest: RoiAlign, MaxRoiPool."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op

# ---- RoiAlign ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Samples:
    """Sampling points along one axis of one region, two neighbours each.

    low, high: indices of the neighbours, shape (bins · per_bin,). low_weight, high_weight: their weights,
    both 0 for a point outside the image.
    """

    bins: int
    per_bin: int
    low: Any
    high: Any
    low_weight: Any
    high_weight: Any


def _samples(start: float, length: float, bins: int, ratio: int, size: int) -> Samples:
    """Return the points of one axis: ``ratio`` per bin, or as many as a bin has elements when ratio is 0."""
    per_bin = ratio if ratio > 0 else max(0, int(np.ceil(length / bins)))
    at = start + (np.arange(bins)[:, None] + (np.arange(per_bin) + 0.5) / max(1, per_bin)) * (length / bins)
    at = at.ravel()
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    fraction = at - low
    high = np.minimum(low + 1, size - 1)
    return Samples(bins, per_bin, low, high, inside * (1 - fraction), inside * fraction)


def _average(xp: Any, image: Array, rows: Samples, columns: Samples) -> Array:
    """Return the mean of the samples of each bin: image (C, H, W) → (C, row bins, column bins).

    Interpolation and mean are linear and separable: each axis is one product with a small matrix over
    the elements that the region touches.
    """
    (top, by_row), (left, by_column) = _matrix(rows), _matrix(columns)
    part = image[:, top : top + by_row.shape[1], left : left + by_column.shape[1]]
    row_matrix = xp.asarray(by_row.astype(image.dtype))
    return xp.matmul(xp.matmul(row_matrix, part), xp.asarray(by_column.astype(image.dtype)).T)


def _matrix(points: Samples) -> tuple[int, Any]:
    """Return (first element, matrix (bins, elements)) that averages the samples of each bin."""
    if not points.low.size:
        return 0, np.zeros((points.bins, 1))
    first = int(points.low.min())
    matrix = np.zeros((points.bins, int(points.high.max()) - first + 1))
    numbers = np.repeat(np.arange(points.bins), points.per_bin)
    np.add.at(matrix, (numbers, points.low - first), points.low_weight / points.per_bin)
    np.add.at(matrix, (numbers, points.high - first), points.high_weight / points.per_bin)
    return first, matrix


def _largest(xp: Any, image: Array, rows: Samples, columns: Samples) -> Array:
    """Return, per bin, the largest of its samples' weighted neighbours (not of the interpolated samples)."""
    if not rows.per_bin or not columns.per_bin:
        return xp.zeros((image.shape[0], rows.bins, columns.bins), image.dtype)
    best = None
    for row, row_weight in ((rows.low, rows.low_weight), (rows.high, rows.high_weight)):
        for column, column_weight in ((columns.low, columns.low_weight), (columns.high, columns.high_weight)):
            weights = xp.asarray(np.outer(row_weight, column_weight).astype(image.dtype))
            values = image[:, xp.asarray(row)[:, None], xp.asarray(column)] * weights
            best = values if best is None else xp.maximum(best, values)
    shape = (image.shape[0], rows.bins, rows.per_bin, columns.bins, columns.per_bin)
    return xp.asarray(best).reshape(shape).max(axis=(2, 4))


_MODES: dict[str, Callable[..., Array]] = {"avg": _average, "max": _largest}


def infer_roi_align(
    call: Call,
    X: TensorType,
    rois: TensorType,
    *rest: TensorType,
    output_height: int = 1,
    output_width: int = 1,
    **_: Any,
) -> TensorType:
    """dtype of X; (regions, C, output_height, output_width)."""
    count: Dim = rois.shape[0] if rois.shape else None
    channels: Dim = X.shape[1] if X.shape else None
    return TensorType(X.dtype, (count, channels, output_height, output_width))


@op("RoiAlign", 16, 22, infer=infer_roi_align)
def roi_align(
    call: Call,
    X: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """Pool X (N, C, H, W) over regions (R, 4: x1, y1, x2, y2): (R, C, output_height, output_width).

    Each bin pools linearly interpolated samples: their mean, or with mode max the largest weighted
    neighbour. half_pixel moves regions by half an element; output_half_pixel does not, and makes every
    region at least one element large.
    """
    if mode not in _MODES:
        raise ValueError(f"mode '{mode}' is unknown, expected avg or max")
    half = coordinate_transformation_mode == "half_pixel"
    pool, x = _MODES[mode], wide(X)
    y = call.xp.zeros((rois.shape[0], X.shape[1], output_height, output_width), x.dtype)
    scaled = wide(rois).astype(np.float64) * spatial_scale - (0.5 if half else 0.0)
    regions = zip(batch_indices.tolist(), scaled.tolist(), strict=True)
    for number, (image, (left, top, right, bottom)) in enumerate(regions):
        height, width = (
            (bottom - top, right - left) if half else (max(bottom - top, 1.0), max(right - left, 1.0))
        )
        rows = _samples(top, height, output_height, sampling_ratio, X.shape[2])
        columns = _samples(left, width, output_width, sampling_ratio, X.shape[3])
        y[number] = pool(call.xp, x[image], rows, columns)
    return narrow(y, X.dtype)


@op("RoiAlign", 10, infer=infer_roi_align)
def roi_align_10(call: Call, X: Array, rois: Array, batch_indices: Array, **attributes: Any) -> Array:
    """As version 16 with coordinate_transformation_mode output_half_pixel."""
    return roi_align(
        call, X, rois, batch_indices, coordinate_transformation_mode="output_half_pixel", **attributes
    )


# ---- MaxRoiPool ----------------------------------------------------------------------------------------


def infer_max_roi_pool(
    call: Call, X: TensorType, rois: TensorType, *, pooled_shape: list[int], **_: Any
) -> TensorType:
    """dtype of X; (regions, C, *pooled_shape)."""
    count: Dim = rois.shape[0] if rois.shape else None
    return TensorType(X.dtype, (count, X.shape[1] if X.shape else None, *pooled_shape))


def _half_away(x: float) -> int:
    """Return x rounded, halves away from zero."""
    return int(np.trunc(x + np.copysign(0.5, x)))


def _bins(first: float, last: float, bins: int, size: int) -> list[slice]:
    """Return the elements of each bin of one axis, cut to the image."""
    start, end = _half_away(first), _half_away(last)
    length = max(end - start + 1, 1)
    edges = np.arange(bins + 1) * (length / bins)
    low = np.clip(np.floor(edges[:-1]).astype(int) + start, 0, size)
    high = np.clip(np.ceil(edges[1:]).astype(int) + start, 0, size)
    return [slice(int(a), int(b)) for a, b in zip(low, high, strict=True)]


@op("MaxRoiPool", 1, 22, infer=infer_max_roi_pool)
def max_roi_pool(
    call: Call, X: Array, rois: Array, *, pooled_shape: list[int], spatial_scale: float = 1.0
) -> Array:
    """Largest element of each bin of X (N, C, H, W) over regions (R, 5: image, x1, y1, x2, y2).

    Corners are scaled, rounded and inclusive; a bin without elements gives 0. Returns (R, C, *pooled_shape).
    """
    y = call.xp.zeros((rois.shape[0], X.shape[1], *pooled_shape), X.dtype)
    for number, (image, left, top, right, bottom) in enumerate(wide(rois).tolist()):
        corners = [corner * spatial_scale for corner in (top, bottom, left, right)]
        columns = _bins(corners[2], corners[3], pooled_shape[1], X.shape[3])
        for r, row in enumerate(_bins(corners[0], corners[1], pooled_shape[0], X.shape[2])):
            for c, column in enumerate(columns):
                part = X[int(image), :, row, column]
                if part.size:
                    y[number, :, r, c] = part.max(axis=(1, 2))
    return y
