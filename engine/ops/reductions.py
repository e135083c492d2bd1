"""Reductions over axes, ArgMax and ArgMin, cumulative sums and products.

The axes are an attribute in old versions and an input in new ones; none means all of them, unless
``noop_with_empty_axes`` asks for a reduction over no axis, which leaves only the element-wise part.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from graphdoc.engine.ops import dims
from graphdoc.engine.ops.content import reduced_entries
from graphdoc.engine.ops.dtypes import FLOAT64, INT64, is_float, limits
from graphdoc.engine.ops.host import ints, scalar
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import arg_reduced, reduced, same_as_first
from graphdoc.engine.ops.table import Array, Call, op

Axes: TypeAlias = tuple[int, ...]
Reduction: TypeAlias = Callable[[Any, Array, Axes, bool], Array]
"""(xp, x in the dtype to accumulate in, axes, keepdims) → result in that dtype."""


_FOLLOWED = {
    "ReduceProd": reduced_entries(dims.product, reduced),
    "ReduceSum": reduced_entries(dims.total, reduced),
    "ReduceMax": reduced_entries(lambda entries: dims.maximum(*entries), reduced),
    "ReduceMin": reduced_entries(lambda entries: dims.minimum(*entries), reduced),
}
"""Reductions that also tell the content: sizes are computed by them."""


def _axes(x: Array, axes: Sequence[int] | None, noop: int) -> Axes:
    """Return the axes to reduce. A tensor of rank 0 has none."""
    if not axes:
        return () if noop else tuple(range(x.ndim))
    return tuple(axes) if x.ndim else ()


def reduction(
    name: str, by_attribute: Sequence[int], by_input: Sequence[int]
) -> Callable[[Reduction], Reduction]:
    """Register a reduction; narrow floats accumulate in float32 and round once."""

    def register(function: Reduction) -> Reduction:
        def evaluate(
            call: Call,
            x: Array,
            axes: Array | None = None,
            *,
            keepdims: int = 1,
            noop_with_empty_axes: int = 0,
        ) -> Array:
            chosen = _axes(x, None if axes is None else ints(axes), noop_with_empty_axes)
            return narrow(function(call.xp, wide(x), chosen, bool(keepdims)), x.dtype)

        def old(call: Call, x: Array, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Array:
            return narrow(function(call.xp, wide(x), _axes(x, axes, 0), bool(keepdims)), x.dtype)

        evaluate.__doc__ = old.__doc__ = function.__doc__
        op(name, *by_input, infer=_FOLLOWED.get(name, reduced))(evaluate)
        op(name, *by_attribute, infer=_FOLLOWED.get(name, reduced))(old)
        return function

    return register


@reduction("ReduceSum", (1, 11), (13,))
def total(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The sum; 0 over nothing; integers wrap; without axes −0 stays −0 (ONNX ReduceSum-13)."""
    return x if not axes else x.sum(axis=axes, keepdims=keepdims, dtype=x.dtype)


@reduction("ReduceProd", (1, 11, 13), (18,))
def product(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The product; 1 over nothing; integers wrap (ONNX ReduceProd-18)."""
    return x.prod(axis=axes, keepdims=keepdims, dtype=x.dtype)


@reduction("ReduceMean", (1, 11, 13), (18,))
def average(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The mean; integers truncate; undefined over nothing (ONNX ReduceMean-18)."""
    if is_float(x.dtype):
        return total(xp, x, axes, keepdims) / _count(x, axes) if axes else x
    count = _count(x, axes)
    if not count:
        return x.sum(axis=axes, keepdims=keepdims)
    # sums of quotients and of remainders stay in range where the sum of the numbers does not
    whole = (x // count).sum(axis=axes, keepdims=keepdims)
    rest = (x % count).sum(axis=axes, keepdims=keepdims)
    mean = whole + rest // count
    return mean + ((mean < 0) & (rest % count > 0)) if x.dtype.kind == "i" else mean


def _count(x: Array, axes: Axes) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


@reduction("ReduceMax", (1, 11, 12, 13), (18, 20))
def largest(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The maximum, NaN if there is one; over nothing −Inf or the dtype's minimum (ONNX ReduceMax-20)."""
    if not _count(x, axes):
        return _filled(xp, x, axes, keepdims, lowest=True)
    return x.max(axis=axes, keepdims=keepdims)


@reduction("ReduceMin", (1, 11, 12, 13), (18, 20))
def smallest(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The minimum, NaN if there is one; over nothing Inf or the dtype's maximum (ONNX ReduceMin-20)."""
    if not _count(x, axes):
        return _filled(xp, x, axes, keepdims, lowest=False)
    return x.min(axis=axes, keepdims=keepdims)


def _filled(xp: Any, x: Array, axes: Axes, keepdims: bool, *, lowest: bool) -> Array:
    """Return what a maximum (lowest) or minimum over nothing is."""
    shape = xp.zeros(x.shape, dtype=bool).sum(axis=axes, keepdims=keepdims).shape
    if is_float(x.dtype):
        return xp.full(shape, float("-inf" if lowest else "inf"), dtype=x.dtype)
    if x.dtype.kind == "b":
        return xp.full(shape, not lowest, dtype=x.dtype)
    return xp.full(shape, limits(x.dtype)[0 if lowest else 1], dtype=x.dtype)


@reduction("ReduceL1", (1, 11, 13), (18,))
def norm_1(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The sum of |x| (ONNX ReduceL1-18)."""
    return total(xp, xp.absolute(x), axes, keepdims)


@reduction("ReduceSumSquare", (1, 11, 13), (18,))
def sum_of_squares(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The sum of x² (ONNX ReduceSumSquare-18)."""
    return total(xp, xp.multiply(x, x), axes, keepdims)


@reduction("ReduceL2", (1, 11, 13), (18,))
def norm_2(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The root of the sum of x²; integers truncate (ONNX ReduceL2-18)."""
    return narrow(xp.sqrt(sum_of_squares(xp, _real(x), axes, keepdims)), x.dtype)


@reduction("ReduceLogSum", (1, 11, 13), (18, 28))
def log_of_sum(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The logarithm of the sum; −Inf over nothing; integers truncate (ONNX ReduceLogSum-28)."""
    return narrow(xp.log(total(xp, _real(x), axes, keepdims)), x.dtype)


@reduction("ReduceLogSumExp", (1, 11, 13), (18, 28))
def log_of_sum_of_exp(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    """The logarithm of the sum of exp(x), shifted by the maximum (ONNX ReduceLogSumExp-28)."""
    real = _real(x)
    peak = largest(xp, real, axes, True)
    peak = xp.where(xp.isfinite(peak), peak, xp.zeros((), real.dtype))
    sums = xp.log(total(xp, xp.exp(real - peak), axes, keepdims))
    return narrow(sums + peak.reshape(sums.shape), x.dtype)


def _real(x: Array) -> Array:
    """Return integers as float64, floats unchanged."""
    return x if is_float(x.dtype) else x.astype(FLOAT64)


# ---- ArgMax, ArgMin -----------------------------------------------------------------------------------


def _arg(x: Array, which: str, axis: int, keepdims: int, last: int) -> Array:
    if x.size == 0 and 0 in (rest := _without(x.shape, axis, keepdims)):
        return x.astype(INT64).reshape(rest)
    if last:
        flipped = x[
            tuple(slice(None, None, -1) if a == axis % x.ndim else slice(None) for a in range(x.ndim))
        ]
        index = x.shape[axis] - 1 - getattr(flipped, which)(axis=axis, keepdims=bool(keepdims))
    else:
        index = getattr(x, which)(axis=axis, keepdims=bool(keepdims))
    return index.astype(INT64)


def _without(shape: tuple[int, ...], axis: int, keepdims: int) -> tuple[int, ...]:
    """Return a shape with the axis taken out, or of size 1."""
    at = axis % len(shape)
    return (*shape[:at], *((1,) if keepdims else ()), *shape[at + 1 :])


@op("ArgMax", 1, 11, 12, 13, infer=arg_reduced)
def arg_max(call: Call, x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """The index of the first (or last) maximum along the axis, int64 (ONNX ArgMax-13)."""
    return _arg(x, "argmax", axis, keepdims, select_last_index)


@op("ArgMin", 1, 11, 12, 13, infer=arg_reduced)
def arg_min(call: Call, x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """The index of the first (or last) minimum along the axis, int64 (ONNX ArgMin-13)."""
    return _arg(x, "argmin", axis, keepdims, select_last_index)


# ---- cumulative ---------------------------------------------------------------------------------------


_STEPS = {"cumsum": "add", "cumprod": "multiply"}


def _cumulative(
    xp: Any, function: str, start: int, x: Array, axis: int, exclusive: int, reverse: int
) -> Array:
    """Accumulate along the axis; exclusive results begin with ``start`` and leave the last element out."""
    along = xp.moveaxis(wide(x), axis, 0)
    if reverse:
        along = along[::-1]
    if exclusive:
        first = xp.full((min(1, len(along)), *along.shape[1:]), start, dtype=along.dtype)
        along = xp.concatenate((first, along[:-1]))
    if axis % x.ndim == x.ndim - 1:
        result = getattr(xp, function)(along, axis=0, dtype=along.dtype)
    else:
        result = _by_rows(getattr(xp, _STEPS[function]), along)
    return narrow(xp.moveaxis(result[::-1] if reverse else result, 0, axis), x.dtype)


def _by_rows(combine: Callable[[Array, Array], Array], along: Array) -> Array:
    """Accumulate whole rows: many times faster than numpy.cumsum where the axis is not the dense one."""
    result = along.copy()
    for step in range(1, len(result)):
        result[step] = combine(result[step - 1], result[step])
    return result


@op("CumSum", 11, 14, infer=same_as_first)
def cum_sum(call: Call, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """Running sums along the axis, in either direction (ONNX CumSum-14)."""
    return _cumulative(call.xp, "cumsum", 0, x, scalar(axis), exclusive, reverse)


@op("CumProd", 26, infer=same_as_first)
def cum_prod(call: Call, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """Running products along the axis, in either direction (ONNX CumProd-26)."""
    return _cumulative(call.xp, "cumprod", 1, x, scalar(axis), exclusive, reverse)
