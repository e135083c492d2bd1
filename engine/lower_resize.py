"""Resize → steps, axis by axis: repetition where all is taken equally often, else lookups and sums."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from graphdoc.engine.expr import Expr, apply
from graphdoc.engine.lower import NotLowered, Site, constant, content, lowering
from graphdoc.engine.lower_elementwise import wide_dtype
from graphdoc.engine.lower_index import look_up
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.lower_rows import floats_only
from graphdoc.engine.ops.resize import Axis, Method, nearest_of, places_of, planned, simply_planned, taps_of
from graphdoc.engine.program import View


@lowering("Resize", empty=True)
def resize(
    at: Site,
    x: View,
    roi: View | None = None,
    scales: View | None = None,
    sizes: View | None = None,
    *,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    **attributes: Any,
) -> View:
    """x resized by interpolation."""
    if not x.size:
        raise NotLowered("an input is empty")
    if at.version < 11:
        numbers = at.known(roi, "the scales")  # version 10 has no region: the scales stand second
        plan, method = simply_planned(x.shape, numbers.tolist(), attributes.get("mode", "nearest"))
        return _resized(at, x, plan, method)
    if any(v is not None and content(v) is None for v in (roi, scales, sizes)):
        raise NotLowered("the sizes are not constant")
    method = Method(**attributes)
    if method.coordinate_transformation_mode == "tf_crop_and_resize":
        raise NotLowered("a region of interest")
    policy = keep_aspect_ratio_policy
    plan = planned(x.shape, content(roi), content(scales), content(sizes), axes, policy, method)
    return _resized(at, x, plan, method)


@lowering("Upsample", since=7)
def upsample(
    at: Site,
    x: View,
    scales_input: View | None = None,
    *,
    scales: Sequence[float] = (),
    mode: str = "nearest",
) -> View:
    """Resize with coordinates x ÷ scale."""
    numbers = list(scales) if scales_input is None else at.known(scales_input, "the scales").tolist()
    return _resized(at, x, *simply_planned(x.shape, numbers, mode))


def _resized(at: Site, x: View, axes: Sequence[Axis], method: Method) -> View:
    places = places_of(axes, method)
    if method.mode == "nearest":
        return _nearest(at, x, places, method)
    floats_only(x)
    y = at.cast(x, wide_dtype(x.dtype))
    for axis, where in places.items():
        y = _interpolated(at, y, axis.number, *taps_of(axis, where, method))
    return at.cast(y, x.dtype)


def _nearest(at: Site, x: View, places: Mapping[Axis, Any], method: Method) -> View:
    """Take the nearest element along each axis; axes that only repeat are done in one copy."""
    times = [1] * len(x.shape)
    for axis, where in places.items():
        index = nearest_of(axis, where, method)
        factor = axis.out // axis.size if axis.size and axis.out % axis.size == 0 else 0
        if factor and np.array_equal(index, np.arange(axis.out) // factor):
            times[axis.number] = factor
        else:
            x = look_up(at, x, constant(index, at.name), axis.number)
    return x if set(times) == {1} else _repeated(at, x, times)


def _repeated(at: Site, x: View, times: Sequence[int]) -> View:
    """Return every element of an axis so many times, one after the other, in x's memory order."""
    result = at.fresh([n * t for n, t in zip(x.shape, times, strict=True)], x.dtype, x)
    shape = [n for pair in zip(x.shape, times, strict=True) for n in pair]
    strides = [s for stride, t in zip(result.strides, times, strict=True) for s in (stride * t, stride)]
    target = View(result.buffer, tuple(shape), tuple(strides), result.offset)
    source = with_ones(x, range(1, 2 * len(times), 2)).broadcast(shape)
    at.copy(source, target)
    return result


def _interpolated(at: Site, x: View, number: int, indices: Any, weights: Any) -> View:
    """Return Σ over taps of x taken at the indices along one axis, times the weights."""
    kept = range(indices.shape[1])
    parts = [look_up(at, x, constant(np.ascontiguousarray(indices[:, t]), at.name), number) for t in kept]
    after = len(x.shape) - 1 - number
    factors = [
        constant(weights[:, t].astype(x.dtype).reshape(-1, *(1,) * after), f"{at.name}.weights") for t in kept
    ]

    def build(*given: Expr) -> Expr:
        count = len(given) // 2
        terms = [apply("mul", a, b) for a, b in zip(given[:count], given[count:], strict=True)]
        return reduce(lambda a, b: apply("add", a, b), terms)

    return at.map(build, *parts, *factors)
