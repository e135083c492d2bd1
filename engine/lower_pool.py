"""Pooling → Rows over windows, which are views of the padded input."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.expr import DTYPES, Dtype, Expr, apply, cast, const, load, stage
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.lower import NotLowered, Site, constant, lowering, memory_order
from graphdoc.engine.lower_elementwise import wide
from graphdoc.engine.lower_layout import padded
from graphdoc.engine.lower_rows import floats_only, run_rows
from graphdoc.engine.ops.pool import divisors_of
from graphdoc.engine.ops.window import Window, sliding
from graphdoc.engine.program import View

_GROWTH = 16
"""Times that an image may grow by padding; level 0 looks at no more than there is."""


def windows(x: View, window: Window, first: int) -> View:
    """Return every window of a padded view: spatial axes, from ``first`` on, become positions; the axes of
    the kernel stand behind all."""
    shape, strides = list(x.shape[:first]), list(x.strides[:first])
    steps = x.strides[first : first + len(window.out)]
    shape += [*window.out, *x.shape[first + len(window.out) :], *window.kernel]
    strides += [s * by for s, by in zip(steps, window.strides, strict=True)]
    strides += x.strides[first + len(window.out) :]
    strides += [s * by for s, by in zip(steps, window.dilations, strict=True)]
    return View(x.buffer, tuple(shape), tuple(strides), x.offset)


def reach(window: Window, spatial: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after that lets every window lie inside."""
    after = []
    for axis, size in enumerate(spatial):
        extent = (window.kernel[axis] - 1) * window.dilations[axis] + 1
        last = (window.out[axis] - 1) * window.strides[axis] + extent
        after.append(max(0, last - size - window.begin[axis]))
    return list(window.begin), after


def _pooled(
    at: Site, x: View, window: Window, neutral: Any, fold: Reduction, result: Expr, extra: Sequence[View] = ()
) -> View:
    """Add the fold over every window; ``extra`` inputs have the shape of the output or broadcast to it."""
    rank = len(window.out)
    x, window = _trimmed(x, window)
    before, after = reach(window, x.shape[2:])
    sizes = [b + n + a for b, n, a in zip(before, x.shape[2:], after, strict=True)]
    if prod(sizes) > _GROWTH * prod(x.shape[2:]):
        raise NotLowered("nearly all of its windows is padding")
    source = windows(padded(at, x, [0, 0, *before], [0, 0, *after], neutral), window, 2)
    out = at.fresh((*x.shape[:2], *window.out), result.dtype, x)
    order = memory_order(x)
    inner = list(range(2 + rank, 2 + 2 * rank))
    beside = [v.broadcast(out.shape) for v in extra]
    inputs = [source.permuted([*order, *inner])]
    for view in beside:
        grown = View(view.buffer, (*view.shape, *window.kernel), (*view.strides, *(0,) * rank), view.offset)
        inputs.append(grown.permuted([*order, *inner]))
    at.step(Rows(rank, (fold,), (Output(result, full=False),)), inputs, [out.permuted(order)])
    return out


def _trimmed(x: View, window: Window) -> tuple[View, Window]:
    """Return the image and the window without what lies outside the other, along axes of one position.

    Padding adds nothing to a sum or a maximum, and exporters write a global pool as a kernel of any size.
    """
    kernel, begin = list(window.kernel), list(window.begin)
    for axis, (count, dilation) in enumerate(zip(window.out, window.dilations, strict=True)):
        stop = min(x.shape[2 + axis], kernel[axis] - begin[axis])
        if count == 1 and dilation == 1 and stop > 0:
            x = x.sliced(2 + axis, 0, stop)
            kernel[axis], begin[axis] = stop, 0
    return x, replace(window, kernel=tuple(kernel), begin=tuple(begin))


def _window(x: View, kernel_shape: Sequence[int], attributes: dict[str, Any]) -> Window:
    if len(x.shape) < 3:
        raise NotLowered("no spatial axes")
    found = sliding(x.shape[2:], kernel_shape, **attributes)
    if not prod(found.out):
        raise NotLowered("no windows")
    return found


def _lowest(dtype: Dtype) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


@lowering("MaxPool")
def max_pool(
    at: Site, x: View, *, kernel_shape: Sequence[int], storage_order: int = 0, **attributes: Any
) -> View:
    """Largest element of each window; padding never wins."""
    if at.outputs > 1:
        raise NotLowered("the indices are asked for")
    if x.dtype not in DTYPES[1:]:
        raise NotLowered(f"dtype {x.dtype}")
    for window in _split(x, _window(x, kernel_shape, attributes)):
        fold = Reduction("max", load(0, x.dtype))
        x = _pooled(at, x, window, _lowest(x.dtype), fold, stage(0, x.dtype))
    return x


def _split(x: View, window: Window) -> list[Window]:
    """Return the window, or one over all spatial axes but the last and one over the last, where that is less.

    The largest of the largest is the largest. Counted are reads, comparisons and writes.
    """
    across, along = prod(window.kernel[:-1]), window.kernel[-1]
    ends, width = prod(window.out), prod(window.out[:-1]) * x.shape[-1]
    direct = ends * 2 * across * along
    apart = width * (2 * across + 1) + ends * (2 * along + 2)
    if min(across, along) == 1 or apart > 0.8 * direct:
        return [window]
    ones, none = (1,) * (len(window.out) - 1), (0,) * (len(window.out) - 1)
    return [
        Window(
            (*window.kernel[:-1], 1),
            (*window.strides[:-1], 1),
            (*window.dilations[:-1], 1),
            (*window.begin[:-1], 0),
            (*window.end[:-1], 0),
            (*window.out[:-1], x.shape[-1]),
        ),
        Window(
            (*ones, along),
            (*ones, window.strides[-1]),
            (*ones, window.dilations[-1]),
            (*none, window.begin[-1]),
            (*none, window.end[-1]),
            window.out,
        ),
    ]


@lowering("AveragePool")
def average_pool(
    at: Site, x: View, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **attributes: Any
) -> View:
    """Mean of each window."""
    floats_only(x)
    window = _window(x, kernel_shape, attributes)
    total = Reduction("sum", wide(load(0, x.dtype)))
    kind = total.expr.dtype
    counts = divisors_of(np, window, x.shape[2:], include_pad=bool(count_include_pad), dtype=kind)
    if counts.min() == counts.max():
        mean = apply("div", stage(0, kind), const(counts.min(), kind))
        return _pooled(at, x, window, 0, total, cast(mean, x.dtype))
    mean = apply("div", stage(0, kind), load(1, kind))
    return _pooled(at, x, window, 0, total, cast(mean, x.dtype), [constant(counts, at.name)])


@lowering("GlobalAveragePool")
def global_average_pool(at: Site, x: View) -> View:
    """Mean over the spatial axes."""
    floats_only(x)
    total = Reduction("sum", wide(load(0, x.dtype)))
    kind = total.expr.dtype
    mean = apply("div", stage(0, kind), const(prod(x.shape[2:]), kind))
    return _over_space(at, x, total, cast(mean, x.dtype))


@lowering("GlobalMaxPool")
def global_max_pool(at: Site, x: View) -> View:
    """Largest element over the spatial axes."""
    return _over_space(at, x, Reduction("max", load(0, x.dtype)), stage(0, x.dtype))


def _over_space(at: Site, x: View, fold: Reduction, result: Expr) -> View:
    axes = list(range(2, len(x.shape)))
    if not axes:
        raise NotLowered("no spatial axes")
    (row,) = run_rows(at, [x], axes, [fold], [(result, False)])
    return row
