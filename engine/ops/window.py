"""Sliding windows over spatial axes: sizes, padding, views and taps, shared by convolution and pooling.

A window has one entry per spatial axis in each of its fields. A *tap* is one position inside the kernel.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from graphdoc.engine.ops.dims import add, ceil_divide, floor_divide, maximum, minimum
from graphdoc.engine.ops.table import Array, Call, Dim

Ints = Sequence[int]
Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A kernel laid over padded spatial axes.

    begin, end: padding before and after. out: number of positions the kernel takes along each axis.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]


def sliding(
    spatial: Ints,
    kernel: Ints,
    strides: Ints | None = None,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> Window:
    """Return the window that the attributes of a convolution or pooling describe.

    spatial: sizes of the spatial axes. Raises ValueError when an attribute's length does not fit them, a
    number is not sensible, or the kernel is larger than the padded input.
    """
    rank = len(spatial)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads if pads and auto_pad in ("NOTSET", "") else [0] * 2 * rank
    _check(rank, kernel, strides, dilations, pads, auto_pad)
    rows = zip(spatial, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    sizes = [_axis(auto_pad, ceil_mode, *row) for row in rows]
    begin, end, out = (tuple(column) for column in zip(*sizes, strict=True)) if sizes else ((), (), ())
    return Window(tuple(kernel), tuple(strides), tuple(dilations), begin, end, out)


def recalled(
    call: Call, shapes: tuple[Any, ...], attributes: dict[str, Any], make: Callable[[], Window]
) -> Window:
    """Return the window that ``make`` gives for these shapes and attributes, made anew when they change."""
    key, found = call.memo.get("window", (None, None))
    if key != (shapes, attributes):
        found = make()
        call.memo["window"] = ((shapes, attributes), found)
    return found  # type: ignore[no-any-return]


def _check(rank: int, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, auto_pad: str) -> None:
    for name, values, count in (
        ("kernel_shape", kernel, rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
    ):
        if len(values) != count:
            raise ValueError(f"{name} has {len(values)} entries, {rank} spatial axes need {count}")
        if any(value < (0 if name == "pads" else 1) for value in values):
            raise ValueError(f"{name} {list(values)} is out of range")
    if auto_pad not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad '{auto_pad}' is unknown")


def _axis(
    auto_pad: str, ceil_mode: int, size: int, kernel: int, stride: int, dilation: int, begin: int, end: int
) -> tuple[int, int, int]:
    """Return (padding before, padding after, positions) of one axis."""
    extent = (kernel - 1) * dilation + 1
    if auto_pad.startswith("SAME"):
        out = -(-size // stride)
        total = max(0, (out - 1) * stride + extent - size)
        begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        return begin, total - begin, out
    room = size + begin + end - extent
    # A last, partial window counts in ceil mode unless it would start in the padding behind the input.
    out = -(-room // stride) + 1 if ceil_mode else room // stride + 1
    if ceil_mode and out > 0 and (out - 1) * stride >= size + begin:
        out -= 1
    if size and out < 0:
        raise ValueError(f"a kernel of extent {extent} is larger than the padded input {size + begin + end}")
    return begin, end, max(out, 0)


def infer_sizes(
    spatial: Sequence[Dim],
    kernel: Sequence[Dim],
    *,
    strides: Ints | None = None,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    **rest: Any,
) -> tuple[Dim, ...]:
    """Return the output sizes where they are certain, None elsewhere and for what a run would refuse."""
    rank = len(spatial)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads if pads and auto_pad in ("NOTSET", "") else [0] * 2 * rank
    try:
        rows = zip(spatial, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
        return tuple(_infer_axis(auto_pad, ceil_mode, *row) for row in rows)
    except ValueError:
        return (None,) * rank


def _infer_axis(
    auto_pad: str, ceil_mode: int, size: Dim, kernel: Dim, stride: int, dilation: int, begin: int, end: int
) -> Dim:
    if not isinstance(kernel, int):
        return size if stride == 1 and auto_pad.startswith("SAME") else None
    if isinstance(size, int):
        return _axis(auto_pad, ceil_mode, size, kernel, stride, dilation, begin, end)[2]
    if auto_pad.startswith("SAME"):
        return ceil_divide(size, stride)
    extent = (kernel - 1) * dilation + 1
    room = add(size, begin + end - extent)
    # As many windows fit as start where there is room for a whole one; in ceil mode, as start before the
    # padding behind the input if a part of one is enough. Which of the two is less follows from the numbers.
    last = minimum(add(room, stride - 1), add(size, begin - 1)) if ceil_mode else room
    return maximum(add(floor_divide(last, stride), 1), 0)


def pad(xp: Any, x: Array, window: Window) -> Array:
    """Return x with zeros around its last axes, or x itself when nothing is to be added."""
    if not any(window.begin) and not any(window.end):
        return x
    rank = len(window.out)
    sizes = zip(window.begin, x.shape[-rank:], window.end, strict=True)
    padded = xp.zeros((*x.shape[:-rank], *map(sum, sizes)), x.dtype)
    inner = tuple(slice(b, b + n) for b, n in zip(window.begin, x.shape[-rank:], strict=True))
    padded[(..., *inner)] = x
    return padded


def view(xp: Any, x: Array, window: Window) -> Array:
    """Return every window of a padded x as a view: (…, *spatial) → (…, *kernel, *out).

    The view's elements overlap in memory: it is for reading only.
    """
    rank = len(window.out)
    lead, steps = x.strides[:-rank], x.strides[-rank:]
    inner = tuple(s * d for s, d in zip(steps, window.dilations, strict=True))
    outer = tuple(s * d for s, d in zip(steps, window.strides, strict=True))
    shape = (*x.shape[:-rank], *window.kernel, *window.out)
    return xp.lib.stride_tricks.as_strided(x, shape, (*lead, *inner, *outer))


def axis_taps(window: Window, axis: int, size: int) -> list[tuple[slice, slice] | None]:
    """Return, per tap of one axis, the positions it serves and the input elements it reads there.

    size: the axis' unpadded size. Positions where the tap lies in the padding are left out; None: all do.
    """
    stride, out = window.strides[axis], window.out[axis]
    found: list[tuple[slice, slice] | None] = []
    for tap in range(window.kernel[axis]):
        offset = tap * window.dilations[axis] - window.begin[axis]
        low = max(0, -(offset // stride))
        high = min(out, (size - 1 - offset) // stride + 1)
        first = low * stride + offset
        last = (high - 1) * stride + offset
        found.append((slice(low, high), slice(first, last + 1, stride)) if high > low else None)
    return found


def taps(window: Window, spatial: Ints) -> Iterator[tuple[tuple[int, ...], Slices, Slices]]:
    """Yield (tap, positions, input elements) over all taps in row-major order, as axis_taps has them."""
    per_axis = [list(enumerate(axis_taps(window, axis, size))) for axis, size in enumerate(spatial)]
    for combination in product(*per_axis):
        slices = [pair for _, pair in combination]
        served = [pair for pair in slices if pair is not None]
        if len(served) == len(slices):
            yield (
                tuple(tap for tap, _ in combination),
                tuple(positions for positions, _ in served),
                tuple(elements for _, elements in served),
            )


def counts(window: Window, spatial: Ints, *, include_pad: bool) -> list[Any]:
    """Return, per axis, how many taps of each position lie inside the input (or the padded input).

    Taps past the padding, which a partial last window has in ceil mode, never count.
    """
    found = []
    for axis, size in enumerate(spatial):
        starts = np.arange(window.out[axis]) * window.strides[axis] - window.begin[axis]
        offsets = np.arange(window.kernel[axis]) * window.dilations[axis]
        at = starts[:, None] + offsets
        low, high = (-window.begin[axis], size + window.end[axis]) if include_pad else (0, size)
        found.append(((at >= low) & (at < high)).sum(axis=1))
    return found
