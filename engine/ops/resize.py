"""Resize and Upsample.

Interpolation is separable: each axis gets indices and weights (a few numbers per output element, computed
in float64 on the host), and the axes are resized one after the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from graphdoc.engine.ops.content import entries
from graphdoc.engine.ops.dims import floor_divide, multiply
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import positive_axes, with_dims
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op

Vector = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis to resize.

    number: which axis. size, out: elements before and after. scale: as given, or out / size.
    start, end: the region of interest, in units of the input's length.
    """

    number: int
    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0


# ---- from output positions to input coordinates --------------------------------------------------------


def _over_scale(x: Vector, axis: Axis) -> Vector:
    """Return x / scale.

    A float32 scale that is the rounded ratio of the two sizes stands for that ratio: dividing by it
    exactly keeps coordinates that should be whole from falling to the wrong side of a whole number.
    """
    if axis.size and np.float32(axis.out / axis.size) == np.float32(axis.scale):
        return x * axis.size / axis.out
    return x / axis.scale


def _half_pixel(x: Vector, axis: Axis) -> Vector:
    return _over_scale(x + 0.5, axis) - 0.5


def _half_pixel_symmetric(x: Vector, axis: Axis) -> Vector:
    adjustment = axis.out / (axis.scale * axis.size)
    return axis.size / 2 * (1 - adjustment) + _half_pixel(x, axis)


def _pytorch_half_pixel(x: Vector, axis: Axis) -> Vector:
    return _half_pixel(x, axis) if axis.out > 1 else np.zeros_like(x)


def _align_corners(x: Vector, axis: Axis) -> Vector:
    """The last position maps to the last element; a fractional output length counts as it is."""
    length = axis.scale * axis.size
    if np.float32(axis.out / axis.size) == np.float32(axis.scale):
        length = axis.out
    return np.zeros_like(x) if length == 1 else x * (axis.size - 1) / (length - 1)


def _tf_crop_and_resize(x: Vector, axis: Axis) -> Vector:
    last = axis.size - 1
    if axis.out <= 1:
        return np.full_like(x, 0.5 * (axis.start + axis.end) * last)
    return axis.start * last + x * (axis.end - axis.start) * last / (axis.out - 1)


def _asymmetric(x: Vector, axis: Axis) -> Vector:
    return _over_scale(x, axis)


def _tf_half_pixel_for_nn(x: Vector, axis: Axis) -> Vector:
    return _over_scale(x + 0.5, axis)


_COORDINATES: Mapping[str, Callable[[Vector, Axis], Vector]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
    "tf_crop_and_resize": _tf_crop_and_resize,
}

_NEAREST: Mapping[str, Callable[[Vector, Axis], Vector]] = {
    "round_prefer_floor": lambda x, axis: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x, axis: np.floor(x + 0.5),
    "floor": lambda x, axis: np.floor(x),
    "ceil": lambda x, axis: np.ceil(x),
    # What version 10 left open, as its official cases and ONNX Runtime have it.
    "version 10": lambda x, axis: np.ceil(x) if axis.scale < 1 else np.floor(x),
}


# ---- weights -------------------------------------------------------------------------------------------


def _linear(t: Vector) -> Vector:
    return np.maximum(0.0, 1.0 - np.abs(t))


def _cubic(a: float, t: Vector) -> Vector:
    """Keys' cubic convolution kernel with parameter a."""
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _weights(
    x: Vector,
    axis: Axis,
    kernel: Callable[[Vector], Vector],
    reach: int,
    *,
    antialias: bool,
    exclude_outside: bool,
) -> tuple[Vector, Vector]:
    """Return (indices, weights), both (out, taps); indices outside the axis are moved to its border.

    reach: the kernel is zero from this distance on. antialias stretches the kernel when shrinking.
    """
    stretch = min(axis.scale, 1.0) if antialias else 1.0
    first = int(np.floor(-reach / stretch)) + 1
    at = np.floor(x)[:, None] + np.arange(first, 2 - first)
    weights = kernel((at - x[:, None]) * stretch)
    if exclude_outside:
        weights = np.where((at < 0) | (at > axis.size - 1), 0.0, weights)
    if antialias or exclude_outside:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return _inside(at, axis), weights


def _inside(at: Vector, axis: Axis) -> Vector:
    return np.clip(at, 0, axis.size - 1).astype(np.int64)


def _interpolate(xp: Any, x: Array, number: int, indices: Vector, weights: Vector) -> Array:
    """Return Σ over taps of x taken at the indices along one axis, times the weights."""
    shape = (-1, *(1,) * (x.ndim - 1 - number))
    total = None
    for tap in range(indices.shape[1]):
        part = x.take(xp.asarray(indices[:, tap]), axis=number)
        part *= xp.asarray(weights[:, tap].astype(x.dtype)).reshape(shape)
        total = part if total is None else xp.add(total, part, out=total)
    return total


# ---- the operator --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Method:
    """How to interpolate: the attributes of Resize under their ONNX names."""

    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    antialias: int = 0


def places_of(axes: Sequence[Axis], method: Method) -> dict[Axis, Vector]:
    """Return the input coordinate of every output position, by axis that is resized, in the order to resize.

    Raises ValueError for an unknown transformation, or an empty axis that is to grow.
    """
    transform = _choose(_COORDINATES, method.coordinate_transformation_mode, "coordinate_transformation_mode")
    places = {axis: transform(np.arange(axis.out, dtype=np.float64), axis) for axis in axes}
    places = {axis: at for axis, at in places.items() if not _unchanged(axis, at)}
    # Fewer elements first: along the last axis when growing, along the first when shrinking.
    order = sorted(
        places, key=lambda axis: (axis.out > axis.size, axis.number * (-1 if axis.out > axis.size else 1))
    )
    if any(axis.size == 0 and axis.out for axis in order):
        raise ValueError("an empty axis cannot be enlarged")
    return {axis: places[axis] for axis in order}


def resized(call: Call, x: Array, axes: Sequence[Axis], method: Method) -> Array:
    """Return x with axes resized, one after the other."""
    places = places_of(axes, method)
    step = _nearest if method.mode == "nearest" else _smooth
    y = step(call.xp, x, places, method)
    if method.coordinate_transformation_mode == "tf_crop_and_resize":
        y = _extrapolate(call.xp, y, places, method.extrapolation_value)
    return y


def _unchanged(axis: Axis, at: Vector) -> bool:
    """Whether an axis stays as it is: by its coordinates, or because a scale of 1 never moves anything."""
    whole = (axis.start, axis.end) == (0.0, 1.0)
    return np.array_equal(at, np.arange(axis.size)) or (axis.size == axis.out and axis.scale == 1 and whole)


def _choose(table: Mapping[str, Any], name: str, attribute: str) -> Any:
    if name not in table:
        raise ValueError(f"{attribute} '{name}' is unknown, expected one of {', '.join(table)}")
    return table[name]


def nearest_of(axis: Axis, at: Vector, method: Method) -> Vector:
    """Return the index of the element that each output position takes."""
    return _inside(_choose(_NEAREST, method.nearest_mode, "nearest_mode")(at, axis), axis)


def taps_of(axis: Axis, at: Vector, method: Method) -> tuple[Vector, Vector]:
    """Return the indices and weights, both (out, taps), of the elements that each output position adds up."""
    kernels = {"linear": (_linear, 1), "cubic": (partial(_cubic, method.cubic_coeff_a), 2)}
    kernel, reach = _choose(kernels, method.mode, "mode")
    flags = {"antialias": bool(method.antialias), "exclude_outside": bool(method.exclude_outside)}
    return _weights(at, axis, kernel, reach, **flags)


def _nearest(xp: Any, x: Array, places: Mapping[Axis, Vector], method: Method) -> Array:
    _choose(_NEAREST, method.nearest_mode, "nearest_mode")
    for axis, at in places.items():
        x = x.take(xp.asarray(nearest_of(axis, at, method)), axis=axis.number)
    return x


def _smooth(xp: Any, x: Array, places: Mapping[Axis, Vector], method: Method) -> Array:
    _choose({"linear": 1, "cubic": 1}, method.mode, "mode")
    y = wide(x) if x.dtype.kind not in "iub" else x.astype(np.float64)
    for axis, at in places.items():
        y = _interpolate(xp, y, axis.number, *taps_of(axis, at, method))
    return _store(xp, y, x.dtype)


def _store(xp: Any, y: Array, dtype: Any) -> Array:
    """Return y in a dtype; integers are rounded half to even and clamped."""
    if np.dtype(dtype).kind not in "iu":
        return narrow(y, dtype)
    limits = np.iinfo(dtype)
    return xp.clip(xp.rint(y), limits.min, limits.max).astype(dtype)


def _extrapolate(xp: Any, y: Array, places: Mapping[Axis, Vector], value: float) -> Array:
    """Return y with ``value`` wherever a coordinate lies outside the input."""
    outside = xp.zeros((1,) * y.ndim, bool)
    for axis, at in places.items():
        flags = (at < 0) | (at > axis.size - 1)
        outside = outside | xp.asarray(flags).reshape(-1, *(1,) * (y.ndim - 1 - axis.number))
    return xp.where(outside, xp.asarray(value).astype(y.dtype), y)


# ---- sizes ---------------------------------------------------------------------------------------------


def _scaled(size: int, scale: float) -> int:
    """Return ⌊size · scale⌋ with the product in float32, the type of scales."""
    return int(np.floor(np.float32(size) * np.float32(scale)))


def _by_scales(shape: Sequence[int], numbers: Sequence[int], scales: Sequence[float]) -> list[Axis]:
    if len(scales) != len(numbers) or min(scales, default=1.0) <= 0:
        raise ValueError(f"scales {list(scales)} do not fit {len(numbers)} axes")
    return [
        Axis(d, shape[d], _scaled(shape[d], s), _decimal(s)) for d, s in zip(numbers, scales, strict=True)
    ]


def _decimal(scale: float) -> float:
    """Return the float64 nearest to the decimal that a float32 scale prints as: 0.6, not 0.60000002.

    Dividing by the latter puts coordinates that should be whole just below a whole number.
    """
    return float(str(np.float32(scale)))


def _by_sizes(shape: Sequence[int], numbers: Sequence[int], sizes: Sequence[int], policy: str) -> list[Axis]:
    if len(sizes) != len(numbers):
        raise ValueError(f"sizes {list(sizes)} do not fit {len(numbers)} axes")
    ratios = [out / shape[d] if shape[d] else 1.0 for d, out in zip(numbers, sizes, strict=True)]
    if policy == "stretch":
        return [Axis(d, shape[d], out, r) for d, out, r in zip(numbers, sizes, ratios, strict=True)]
    limits: Mapping[str, Any] = {"not_larger": min, "not_smaller": max}
    scale = _choose(limits, policy, "keep_aspect_ratio_policy")(ratios)
    return [Axis(d, shape[d], int(np.floor(scale * shape[d] + 0.5)), scale) for d in numbers]


def _with_roi(axes: Sequence[Axis], roi: Array | None, scaled: bool) -> list[Axis]:
    """Return the axes with their regions; a size that follows from a scale shrinks with the region."""
    if roi is None or len(roi) != 2 * len(axes):
        raise ValueError("tf_crop_and_resize needs a roi with a start and an end per axis")
    bounds = zip(axes, roi[: len(axes)].tolist(), roi[len(axes) :].tolist(), strict=True)
    return [
        Axis(
            a.number,
            a.size,
            _scaled(a.size, (end - start) * a.scale) if scaled else a.out,
            a.scale,
            start,
            end,
        )
        for a, start, end in bounds
    ]


def _listed(values: Array | None) -> list[Any]:
    return [] if values is None else values.reshape(-1).tolist()


def infer_resize(
    call: Call,
    X: TensorType,
    roi: TensorType | None = None,
    scales: TensorType | None = None,
    sizes: TensorType | None = None,
    **attributes: Any,
) -> TensorType:
    """dtype of X; the shape when all sizes are constant, else its rank."""
    if X.shape is None:
        return TensorType(X.dtype)
    rank = len(X.shape)
    axes = positive_axes(attributes.get("axes") or range(rank), rank)
    stretch = attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    cropped = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if factors := _constant_floats(scales):
        found: Sequence[Dim] = [
            None if cropped else _scaled_dim(X.shape[axis], factor)
            for axis, factor in zip(axes, factors, strict=True)
        ]
    else:
        found = (entries(sizes) if stretch else None) or (None,) * len(axes)
    return TensorType(X.dtype, with_dims(X.shape, dict(zip(axes, found, strict=True))))


def _constant_floats(known: TensorType | None) -> list[float]:
    return [] if known is None or known.value is None else _listed(known.value)


def _scaled_dim(size: Dim, scale: float) -> Dim:
    """Return the size that a scale makes of another one, where float32 computes it exactly."""
    if isinstance(size, int):
        return _scaled(size, scale)
    if float(scale).is_integer():
        return multiply(size, int(scale))
    divisor = 1 / scale if scale else 0.0
    power_of_two = divisor.is_integer() and int(divisor) & (int(divisor) - 1) == 0
    return floor_divide(size, int(divisor)) if power_of_two else None


def _infer_upsample(
    call: Call, X: TensorType, scales: TensorType | Sequence[float] | None = None, **attributes: Any
) -> TensorType:
    """See infer_resize. scales: an input, or in old versions an attribute of the same name."""
    listed = None if scales is None or isinstance(scales, TensorType) else scales
    if "height_scale" in attributes:
        listed = [1.0, 1.0, attributes["height_scale"], attributes["width_scale"]]
    given = scales if isinstance(scales, TensorType) else None
    factors = given if listed is None else TensorType(value=np.asarray(listed, np.float32))
    return infer_resize(call, X, None, factors)


@op("Resize", 11, 13, 18, 19, infer=infer_resize)
def resize(
    call: Call,
    X: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    **attributes: Any,
) -> Array:
    """X resized by interpolation: nearest, linear or cubic; further attributes as in :class:`Method`.

    scales (float32) or sizes (int64), one entry per axis of ``axes`` (all axes by default); roi (starts,
    then ends, relative) for tf_crop_and_resize. Integers are interpolated in float64. Raises ValueError
    unless exactly one of scales and sizes has entries and all fit the axes.
    """
    method = Method(**attributes)
    plan = planned(X.shape, roi, scales, sizes, axes, keep_aspect_ratio_policy, method)
    return resized(call, X, plan, method)


def planned(
    shape: Sequence[int],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    axes: Sequence[int] | None,
    policy: str,
    method: Method,
) -> list[Axis]:
    """Return the axes to resize, from the inputs and attributes of Resize; see there for what is raised."""
    rank = len(shape)
    numbers = [d % rank for d in axes] if axes is not None else list(range(rank))
    factors, targets = _listed(scales), _listed(sizes)
    if bool(factors) == bool(targets) and rank:
        raise ValueError("exactly one of scales and sizes must be given")
    plan = _by_scales(shape, numbers, factors) if factors else _by_sizes(shape, numbers, targets, policy)
    if method.coordinate_transformation_mode == "tf_crop_and_resize":
        return _with_roi(plan, roi, bool(factors))
    return plan


def simply_planned(shape: Sequence[int], scales: Sequence[float], mode: str) -> tuple[list[Axis], Method]:
    """Return axes and method of Upsample and version 10 of Resize: coordinates are x / scale."""
    mode = "linear" if mode == "bilinear" else mode
    method = Method(mode, coordinate_transformation_mode="asymmetric", nearest_mode="version 10")
    return _by_scales(shape, range(len(shape)), scales), method


def _simple(call: Call, X: Array, scales: Sequence[float], mode: str) -> Array:
    return resized(call, X, *simply_planned(X.shape, scales, mode))


@op("Resize", 10, infer=_infer_upsample)
def resize_10(call: Call, X: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """X resized by scales, one per axis; coordinates are x / scale. mode: nearest or linear."""
    return _simple(call, X, _listed(scales), mode)


@op("Upsample", 9, 10, infer=_infer_upsample)
def upsample(call: Call, X: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """Version 10 of Resize under its older name."""
    return _simple(call, X, _listed(scales), mode)


@op("Upsample", 7, infer=_infer_upsample)
def upsample_7(call: Call, X: Array, *, scales: Sequence[float], mode: str = "nearest") -> Array:
    """As version 9, with the scales in an attribute."""
    return _simple(call, X, scales, mode)


@op("Upsample", 1, infer=_infer_upsample)
def upsample_1(
    call: Call, X: Array, *, height_scale: float, width_scale: float, mode: str = "nearest"
) -> Array:
    """As version 7 for X (N, C, H, W). mode: nearest or bilinear."""
    return _simple(call, X, [1.0, 1.0, height_scale, width_scale], mode)
