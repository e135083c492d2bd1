"""Convolutions → contractions over windows of a padded image whose channels lie innermost.

A depthwise convolution, one channel a group, is a sum over windows instead (Rows).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np

from graphdoc.engine.expr import I32, Expr, apply, cast, load, stage
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.lower import NotLowered, Site, content, lowering
from graphdoc.engine.lower_elementwise import wide
from graphdoc.engine.lower_layout import fill_borders, interior
from graphdoc.engine.lower_pool import reach, windows
from graphdoc.engine.lower_products import Epilogue, contract, further_operands, the_sum
from graphdoc.engine.lower_rows import floats_only
from graphdoc.engine.ops.conv_transpose import transposed_window
from graphdoc.engine.ops.window import Window, sliding
from graphdoc.engine.program import View


def channels_last(view: View) -> View:
    """Return (N, C, *spatial) as (N, *spatial, C)."""
    return view.permuted([0, *range(2, len(view.shape)), 1])


def channels_first(view: View) -> View:
    """Return (N, *spatial, C) as (N, C, *spatial)."""
    rank = len(view.shape)
    return view.permuted([0, rank - 1, *range(1, rank - 1)])


def image(at: Site, x: View, before: Sequence[int], after: Sequence[int], value: Any = 0) -> View:
    """Return x (N, C, *spatial) as (N, *spatial, C), padded, its channels innermost in memory.

    value: a number, or a scalar view.
    """
    last = channels_last(x)
    if not any(before) and not any(after) and (last.strides[-1] == 1 or last.shape[-1] == 1):
        return last
    sizes = [b + n + a for b, n, a in zip(before, last.shape[1:-1], after, strict=True)]
    result = at.fresh((last.shape[0], *sizes, last.shape[-1]), x.dtype)
    fill_borders(at, result, [0, *before, 0], [0, *after, 0], value)
    at.copy(last, interior(result, [0, *before, 0], last.shape))
    return result


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
    if x.dtype != w.dtype:
        raise NotLowered("two dtypes")
    window = checked_window(x, w, group, kernel_shape, attributes)
    x, w, window = meeting(x, w, window)
    patches = windows(image(at, x, *reach(window, x.shape[2:])), window, 1)
    extra = [*bias, *map(channels_last, added)]

    def epilogue(total: Expr, *rest: Expr) -> Expr:
        for term in rest[: len(bias)]:
            total = apply("add", total, term)
        return finish(total, *rest[len(bias) :])

    out = at.fresh((x.shape[0], *window.out, w.shape[0]), x.dtype)
    if is_depthwise(w, group):
        depthwise(at, patches, w, out, group, multiplied, epilogue, extra)
    else:
        grouped(at, patches, by_group(w, group), out, epilogue, extra)
    return channels_first(out)


def checked_window(
    x: View, w: View, group: int, kernel_shape: Sequence[int] | None, attributes: dict[str, Any]
) -> Window:
    """Return the window of a convolution of x with w. Raises ValueError where they do not fit."""
    if len(x.shape) < 3 or len(x.shape) != len(w.shape):
        raise NotLowered("ranks differ")
    channels, kernel = x.shape[1], w.shape[2:]
    fits = not kernel_shape or tuple(kernel_shape) == kernel
    if channels != w.shape[1] * group or w.shape[0] % group or not fits:
        raise ValueError(f"weights {w.shape} in {group} groups do not fit {channels} channels")
    window = sliding(x.shape[2:], kernel, **attributes)
    if not prod(window.out):
        raise NotLowered("no windows")
    return window


def meeting(x: View, w: View, window: Window) -> tuple[View, View, Window]:
    """Return image, weights and window without the taps at the ends of an axis that only meet padding.

    A kernel dilated by more than a small image is wide (atrous pyramids) has many.
    """
    kernel, begin = list(window.kernel), list(window.begin)
    for axis, size in enumerate(x.shape[2:]):
        meet = [tap for tap in range(kernel[axis]) if _meets(window, axis, tap, size)]
        if not meet or len(meet) == kernel[axis]:
            continue
        first, count = meet[0], meet[-1] + 1 - meet[0]
        if content(w) is None or not np.isfinite(content(w)).all():
            continue  # 0 · ∞ is no number
        skipped = max(0, first * window.dilations[axis] - begin[axis])
        x = x.sliced(2 + axis, skipped, size - skipped)
        begin[axis] = max(0, begin[axis] - first * window.dilations[axis])
        w, kernel[axis] = w.sliced(2 + axis, first, count), count
    return x, w, replace(window, kernel=tuple(kernel), begin=tuple(begin))


def _meets(window: Window, axis: int, tap: int, size: int) -> bool:
    """Return whether a tap lies on the image in any position of the window."""
    start = tap * window.dilations[axis] - window.begin[axis]
    position = max(0, -(start // window.strides[axis]))
    return position < window.out[axis] and start + position * window.strides[axis] < size


def is_depthwise(w: View, group: int) -> bool:
    """Return whether every group has one channel."""
    return group > 1 and w.shape[1] == 1


def multiplied(x: Expr, w: Expr) -> Expr:
    """Return the product of an element and a weight in the dtype to sum in."""
    return apply("mul", wide(x), wide(w))


def _split(view: View, axis: int, parts: int) -> View:
    """Return the view with an axis of parts · n as two axes."""
    shape, strides = list(view.shape), list(view.strides)
    size = shape[axis] // parts
    shape[axis : axis + 1] = [parts, size]
    strides[axis : axis + 1] = [strides[axis] * size, strides[axis]]
    return View(view.buffer, tuple(shape), tuple(strides), view.offset)


def by_group(w: View, group: int) -> View:
    """Return weights (M, C/group, *kernel) as (group, M/group, C/group, *kernel)."""
    return _split(w, 0, group)


def grouped(at: Site, patches: View, w: View, out: View, finish: Epilogue, extra: Sequence[View]) -> None:
    """Contract (n, *out, c, *kernel) with w (group, M/group, C/group, *kernel) into (n, *out, M)."""
    group, rank = w.shape[0], len(w.shape) - 3
    rows, taps = list(range(1 + rank)), list(range(rank + 2, 2 * rank + 2))
    if group == 1:
        a = patches.permuted([*rows, *taps, rank + 1])
        b = w.permuted([*range(3, 3 + rank), 2, 1])
        contract(at, (0, 1 + rank, 1 + rank), a, b, out, finish, extra)
        return
    a = _split(patches, rank + 1, group).permuted([rank + 1, *rows, *(t + 1 for t in taps), rank + 2])
    b = w.permuted([0, *range(3, 3 + rank), 2, 1])
    turned = [rank + 1, *rows, rank + 2]
    target = _split(out, rank + 1, group).permuted(turned)
    spread = [_split(view.broadcast(out.shape), rank + 1, group).permuted(turned) for view in extra]
    contract(at, (1, 1 + rank, 1 + rank), a, b, target, finish, spread)


def depthwise(
    at: Site,
    patches: View,
    w: View,
    out: View,
    group: int,
    term: Callable[[Expr, Expr], Expr],
    finish: Epilogue,
    extra: Sequence[View],
) -> None:
    """Sum windows with weights per channel: rows (n, *out, channel, multiplier), reduced over the kernel.

    term: what is summed, of an element and a weight.
    """
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
    total = Reduction("sum", term(load(0, x.dtype), load(1, w.dtype)))
    terms, extra = further_operands(extra)
    beside = [_split(view.broadcast(out.shape), rank + 1, group) for view in extra]
    grown = [View(v.buffer, domain, (*v.strides, *(0,) * rank), v.offset) for v in beside]
    kind = total.expr.dtype
    terms = terms if kind == I32 else [cast(e, kind) for e in terms]
    result = cast(finish(stage(0, kind), *terms), out.dtype)
    spec = Rows(rank, (total,), (Output(result, full=False),))
    at.step(spec, [x, weights, *grown], [_split(out, rank + 1, group)])


# ---- transposed ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """Outputs of one axis that lie a stride apart: they read the same taps.

    first: the first of them. count: how many. taps: the first tap and the step between taps, and how many.
    start: the element that the first output reads with the first tap; move: to the next tap's element.
    """

    first: int
    count: int
    taps: tuple[int, int, int]
    start: int
    move: int


def _phases(size: int, stride: int, dilation: int, kernel: int, begin: int) -> list[Phase]:
    """Return the phases of an output axis of ``size``: output o reads element (o + begin - tap·dilation) ÷
    stride of x with every tap for which that is whole."""
    found = []
    step = stride // gcd(stride, dilation)
    for first in range(min(stride, size)):
        tap = next((t for t in range(step) if (first + begin - t * dilation) % stride == 0), kernel)
        many = len(range(tap, kernel, step))
        start = (first + begin - tap * dilation) // stride
        count = len(range(first, size, stride))
        found.append(Phase(first, count, (tap, step, many), start, -(step * dilation // stride)))
    return found


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
    """The transposed convolution, phase by phase: outputs a stride apart are one convolution of x."""
    floats_only(x, w, bias)
    if len(x.shape) < 3 or len(x.shape) != len(w.shape) or x.dtype != w.dtype:
        raise NotLowered("ranks or dtypes differ")
    if not np.isfinite(at.known(w, "the weights").astype(np.float32)).all():
        raise NotLowered("weights that are not finite: around the image, 0 times them is no number")
    if x.shape[1] != w.shape[0] or w.shape[0] % group:
        raise ValueError(f"weights {w.shape} in {group} groups do not fit {x.shape}")
    window, sizes = transposed_window(x.shape[2:], w.shape[2:], **attributes)
    out = at.fresh((x.shape[0], *sizes, w.shape[1] * group), x.dtype)
    rows = zip(sizes, window.strides, window.dilations, window.kernel, window.begin, strict=True)
    axes = [_phases(*row) for row in rows]
    before, after = zip(*(_margins(p, n) for p, n in zip(axes, x.shape[2:], strict=True)), strict=True)
    padded = image(at, x, before, after)
    extra = [] if bias is None else [bias]
    for phase in product(*axes):
        _one_phase(at, padded, before, w, out, group, phase, window, extra)
    return channels_first(out)


def _margins(phases: Sequence[Phase], size: int) -> tuple[int, int]:
    """Return the padding before and after an axis of x that all phases need."""
    low, high = 0, size - 1
    for phase in phases:
        if phase.count and phase.taps[2]:
            ends = [phase.start + phase.move * (phase.taps[2] - 1), phase.start + phase.count - 1]
            low, high = min(low, ends[0], phase.start), max(high, ends[1])
    return -low, high - size + 1


def _one_phase(
    at: Site,
    padded: View,
    before: Sequence[int],
    w: View,
    out: View,
    group: int,
    phase: Sequence[Phase],
    window: Window,
    extra: Sequence[View],
) -> None:
    """Add the steps of the outputs of one phase per axis."""
    target, weights = out, w
    offset, strides = padded.offset, padded.strides
    for axis, part in enumerate(phase):
        target = target.sliced(1 + axis, part.first, part.count, window.strides[axis])
        weights = weights.sliced(2 + axis, part.taps[0], part.taps[2], part.taps[1])
        offset += (part.start + before[axis]) * strides[1 + axis]
    if not target.size:
        return
    if not weights.size:
        _only_bias(at, target, extra)
        return
    patches = View(
        padded.buffer,
        (*target.shape[:-1], padded.shape[-1], *weights.shape[2:]),
        (*strides, *(strides[1 + axis] * part.move for axis, part in enumerate(phase))),
        offset,
    )
    parts = _split(weights, 0, group)
    turned = parts.permuted([0, 2, 1, *range(3, len(parts.shape))])

    def epilogue(total: Expr, *rest: Expr) -> Expr:
        return apply("add", total, rest[0]) if rest else total

    grouped(at, patches, turned, target, epilogue, extra)


def _only_bias(at: Site, target: View, extra: Sequence[View]) -> None:
    if extra:
        at.copy(extra[0].broadcast(target.shape), target)
    else:
        at.fill(0, target)
