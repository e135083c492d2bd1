"""Convolutions → contractions over windows of a padded image whose channels lie innermost.

A depthwise convolution, one channel a group, is a sum over windows instead (Rows).
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from graphdoc.engine.expr import Expr, apply, cast, load, stage
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.lower import NotLowered, Site, lowering
from graphdoc.engine.lower_elementwise import wide
from graphdoc.engine.lower_layout import fill_borders, interior
from graphdoc.engine.lower_pool import reach, windows
from graphdoc.engine.lower_products import Epilogue, contract, the_sum
from graphdoc.engine.lower_rows import floats_only
from graphdoc.engine.ops.conv_transpose import transposed_window
from graphdoc.engine.ops.window import sliding
from graphdoc.engine.program import View


def channels_last(view: View) -> View:
    """Return (N, C, *spatial) as (N, *spatial, C)."""
    return view.permuted([0, *range(2, len(view.shape)), 1])


def channels_first(view: View) -> View:
    """Return (N, *spatial, C) as (N, C, *spatial)."""
    rank = len(view.shape)
    return view.permuted([0, rank - 1, *range(1, rank - 1)])


def image(at: Site, x: View, before: Sequence[int], after: Sequence[int], value: Any = 0) -> View:
    """Return x (N, C, *spatial) as (N, *spatial, C), padded, its channels innermost in memory."""
    last = channels_last(x)
    if not any(before) and not any(after) and (last.strides[-1] == 1 or last.shape[-1] == 1):
        return last
    sizes = [b + n + a for b, n, a in zip(before, last.shape[1:-1], after, strict=True)]
    result = at.fresh((last.shape[0], *sizes, last.shape[-1]), x.dtype)
    fill_borders(at, result, [0, *before, 0], [0, *after, 0], value)
    at.copy(last, interior(result, [0, *before, 0], last.shape))
    return result


@lowering("Conv")
def conv(
    at: Site,
    x: View,
    w: View,
    bias: View | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **attributes: Any,
) -> View:
    """Cross-correlation of x (N, C, *spatial) with w (M, C/group, *kernel), plus bias (M)."""
    return convolution(at, x, w, [] if bias is None else [bias], group, kernel_shape, attributes)


def convolution(
    at: Site,
    x: View,
    w: View,
    bias: Sequence[View],
    group: int,
    kernel_shape: Sequence[int] | None,
    attributes: dict[str, Any],
    finish: Epilogue = the_sum,
    added: Sequence[View] = (),
) -> View:
    """Add a convolution; ``finish`` computes of the sum with bias, and of views added (N, M, *out)."""
    floats_only(x, w, *bias)
    channels, kernel = x.shape[1], w.shape[2:]
    if len(x.shape) < 3 or len(x.shape) != len(w.shape) or x.dtype != w.dtype:
        raise NotLowered("ranks or dtypes differ")
    if (
        channels != w.shape[1] * group
        or w.shape[0] % group
        or (kernel_shape and tuple(kernel_shape) != kernel)
    ):
        raise ValueError(f"weights {w.shape} in {group} groups do not fit {channels} channels")
    window = sliding(x.shape[2:], kernel, **attributes)
    if not prod(window.out):
        raise NotLowered("no windows")
    patches = windows(image(at, x, *reach(window, x.shape[2:])), window, 1)
    out = at.fresh((x.shape[0], *window.out, w.shape[0]), x.dtype)
    extra = [*bias, *map(channels_last, added)]

    def epilogue(total: Expr, *rest: Expr) -> Expr:
        for term in rest[: len(bias)]:
            total = apply("add", total, term)
        return finish(total, *rest[len(bias) :])

    if group > 1 and w.shape[1] == 1:
        _depthwise(at, patches, w, out, group, epilogue, extra)
    else:
        _grouped(at, patches, w, out, group, epilogue, extra)
    return channels_first(out)


def _split(view: View, axis: int, parts: int) -> View:
    """Return the view with an axis of parts · n as two axes."""
    shape, strides = list(view.shape), list(view.strides)
    size = shape[axis] // parts
    shape[axis : axis + 1] = [parts, size]
    strides[axis : axis + 1] = [strides[axis] * size, strides[axis]]
    return View(view.buffer, tuple(shape), tuple(strides), view.offset)


def _grouped(
    at: Site, patches: View, w: View, out: View, group: int, finish: Epilogue, extra: Sequence[View]
) -> None:
    """Contract (n, *out, c, *kernel) with w (M, C/group, *kernel) into (n, *out, M)."""
    rank = len(w.shape) - 2
    rows, taps = list(range(1 + rank)), list(range(rank + 2, 2 * rank + 2))
    if group == 1:
        a = patches.permuted([*rows, *taps, rank + 1])
        b = w.permuted([*range(2, 2 + rank), 1, 0])
        contract(at, (0, 1 + rank, 1 + rank), a, b, out, finish, extra)
        return
    a = _split(patches, rank + 1, group).permuted([rank + 1, *rows, *(t + 1 for t in taps), rank + 2])
    b = _split(w, 0, group).permuted([0, *range(3, 3 + rank), 2, 1])
    turned = [rank + 1, *rows, rank + 2]
    target = _split(out, rank + 1, group).permuted(turned)
    spread = [_split(view.broadcast(out.shape), rank + 1, group).permuted(turned) for view in extra]
    contract(at, (1, 1 + rank, 1 + rank), a, b, target, finish, spread)


def _depthwise(
    at: Site, patches: View, w: View, out: View, group: int, finish: Epilogue, extra: Sequence[View]
) -> None:
    """Sum windows times weights per channel: rows (n, *out, channel, multiplier), reduced over the kernel."""
    rank = len(w.shape) - 2
    times = w.shape[0] // group
    rows = [*out.shape[: 1 + rank], group, times]
    domain = (*rows, *w.shape[2:])
    x = View(
        patches.buffer,
        domain,
        (*patches.strides[: rank + 2], 0, *patches.strides[rank + 2 :]),
        patches.offset,
    )
    weights = View(
        w.buffer,
        domain,
        (*(0,) * (rank + 1), w.strides[0] * times, w.strides[0], *w.strides[2:]),
        w.offset,
    )
    total = Reduction("sum", apply("mul", wide(load(0, x.dtype)), wide(load(1, w.dtype))))
    beside = [_split(view.broadcast(out.shape), rank + 1, group) for view in extra]
    grown = [View(v.buffer, domain, (*v.strides, *(0,) * rank), v.offset) for v in beside]
    kind = total.expr.dtype
    terms = [cast(load(2 + k, view.dtype), kind) for k, view in enumerate(grown)]
    result = cast(finish(stage(0, kind), *terms), out.dtype)
    spec = Rows(rank, (total,), (Output(result, full=False),))
    at.step(spec, [x, weights, *grown], [_split(out, rank + 1, group)])


# ---- transposed ---------------------------------------------------------------------------------------


@lowering("ConvTranspose")
def conv_transpose(
    at: Site,
    x: View,
    w: View,
    bias: View | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **attributes: Any,
) -> View:
    """The transposed convolution, by phases: outputs a stride apart are one convolution of x each."""
    floats_only(x, w, bias)
    if len(x.shape) < 3 or len(x.shape) != len(w.shape) or x.dtype != w.dtype:
        raise NotLowered("ranks or dtypes differ")
    window = transposed_window(x.shape[2:], w.shape[2:], **attributes)
    raise NotLowered("transposed")
