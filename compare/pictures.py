"""Two values → the figures of their drawings: histograms, powers of two, reach, heat map of the difference.

Memory is bounded: histograms look at SAMPLE elements at most, the heat map walks the tensor in blocks.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from graphdoc.compare.masks import without_mask
from graphdoc.compare.metrics import MismatchError, pairs
from graphdoc.compare.picture import (
    APART,
    CELLS,
    EQUAL,
    LETTERS_PER_DECADE,
    LEVELS,
    HeatMap,
    Histogram,
    Magnitudes,
    Picture,
    Reach,
)

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]

BINS = 48
SAMPLE = 1 << 18
"""Elements of a tensor that histograms look at, at most."""

BLOCK = 1 << 18
"""Elements of the heat map that are held in float64 at a time."""

MOST_POWERS = 320
"""All powers of two of float32, subnormal ones included, are 277."""

SMALL_PLANE = 16
"""A plane of the last two axes with fewer elements says less than the two longest axes do."""

NEAR = 4
"""Powers of two that count as near an end of a dtype."""


def picture(a: Any, b: Any) -> Picture | None:
    """Return the drawings of two values; None where they are text, empty, or not of the same shapes."""
    try:
        found = [(x, y) for x, y in pairs(a, b) if x.size and object not in (x.dtype, y.dtype)]
    except MismatchError:
        return None
    if not found:
        return None
    left, right = (np.concatenate(side) for side in zip(*_samples(found), strict=True))
    finite = np.isfinite(left) & np.isfinite(right)
    left, right = left[finite], right[finite]
    powers = _powers(left), _powers(right)
    return Picture(
        histogram=_histogram(left, right),
        magnitudes=_magnitudes(*powers),
        reach_a=_reach(found[0][0].dtype, left, powers[0]),
        reach_b=_reach(found[0][1].dtype, right, powers[1]),
        heat=_heat(found),
    )


def _real(values: Array) -> Array:
    """Return complex numbers with their two parts as one more axis, all others as they are."""
    if values.dtype.kind != "c":
        return values
    parts = np.ascontiguousarray(values).view(values.real.dtype)
    return parts.reshape(*values.shape, 2)


# Histograms


def _samples(found: Sequence[Pair]) -> Iterator[Pair]:
    """Yield elements of each pair as float64, SAMPLE of all pairs together at most."""
    share = max(1, SAMPLE // len(found))
    for x, y in found[:SAMPLE]:
        step = _stride(x.shape, share)
        yield _taken(x, step), _taken(y, step)


def _taken(values: Array, step: int) -> Array:
    taken: Array = _real(values).reshape(-1)[::step].astype(np.float64)
    return taken


def _stride(shape: tuple[int, ...], most: int) -> int:
    """Return the step that takes ``most`` elements at most and does not beat with the length of an axis."""
    step = -(-math.prod(shape) // most)
    while any(math.gcd(step, size) > 1 for size in shape):
        step += 1
    return step


def _histogram(left: Array, right: Array) -> Histogram | None:
    counted = left.size
    masked = 0
    if counted:
        plain, _ = without_mask(left, right)
        kept = (plain != 0) | (left == 0)
        masked = counted - int(np.count_nonzero(kept))
        left, right = left[kept], right[kept]
    if not left.size:
        return None
    low, high = float(min(left.min(), right.min())), float(max(left.max(), right.max()))
    return Histogram(
        low=low,
        high=high,
        counted=counted,
        masked=masked,
        a=_counts(left, low, high),
        b=_counts(right, low, high),
    )


def _counts(values: Array, low: float, high: float) -> tuple[int, ...]:
    if high == low:
        return (values.size,)
    places = (values / 2 - low / 2) * (BINS / (high / 2 - low / 2))  # halves: the range itself may overflow
    found = np.bincount(np.clip(places, 0, BINS - 1).astype(np.intp), minlength=BINS)
    return tuple(found.tolist())


def _powers(values: Array) -> Array:
    """Return ⌊log₂|x|⌋ of the elements that are not 0; −1023 for those below 2^−1022."""
    bits = values[values != 0].view(np.int64)
    powers: Array = ((bits >> 52) & 0x7FF) - 1023
    return powers


def _magnitudes(a: Array, b: Array) -> Magnitudes | None:
    if not a.size + b.size:
        return None
    low = min(int(x.min()) for x in (a, b) if x.size)
    high = max(int(x.max()) for x in (a, b) if x.size)
    low = max(low, high - MOST_POWERS + 1)
    count = high - low + 1
    rows = [tuple(np.bincount(np.maximum(x - low, 0), minlength=count).tolist()) for x in (a, b)]
    return Magnitudes(low=low, a=rows[0], b=rows[1])


def _reach(dtype: "np.dtype[Any]", values: Array, powers: Array) -> Reach | None:
    """Return how close sampled values come to the ends of their dtype; None for truth values."""
    if dtype == np.bool_ or not values.size:
        return None
    if dtype.kind in "iu" or dtype.name in ("int2", "uint2", "int4", "uint4"):
        ends: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        at_end = (values <= float(ends.min)) & (ends.min < 0) | (values >= float(ends.max))
        counts = [int(np.count_nonzero(at_end)), 0, 0]
    else:
        info: Any = ml_dtypes.finfo(dtype.type(0).real.dtype)  # type: ignore[no-untyped-call]
        top, bottom = (math.frexp(float(x))[1] - 1 for x in (info.max, info.smallest_normal))
        near_bottom = (powers >= bottom) & (powers < bottom + NEAR)
        masks = (powers > top - NEAR, near_bottom, powers < bottom)
        counts = [int(np.count_nonzero(mask)) for mask in masks]
    over, under, subnormal = (count / values.size for count in counts)
    return Reach(dtype=dtype.name, near_overflow=over, near_underflow=under, subnormal=subnormal)


# Heat map


def _heat(found: Sequence[Pair]) -> HeatMap | None:
    """Return where the values differ; occurrences of one shape count as one more axis."""
    first = 0
    if len(found) > 1 and len({x.shape for x, _ in found}) == 1:
        x, y = (np.stack(side) for side in zip(*found, strict=True))
        first = -1
    else:
        x, y = max(found, key=lambda pair: pair[0].size)
    left, right = _real(x), _real(y)
    down, across = _plane(left.shape)
    views = [_as_plane(values, down, across) for values in (left, right)]
    cells = _cells(*views)
    axes = tuple(None if axis is None else axis + first for axis in (down, across))
    finite = cells[np.isfinite(cells)]
    largest = float(finite.max(initial=0.0))
    return HeatMap(
        axes=(axes[0], axes[1]),
        shape=(views[0].shape[1], views[0].shape[2]),
        largest=largest,
        cells=tuple(_letters(row, largest) for row in cells.tolist()),
    )


def _plane(shape: tuple[int, ...]) -> tuple[int | None, int | None]:
    """Return the axes that run down and across: the last two that are longer than 1, or the longest two."""
    long = [axis for axis, size in enumerate(shape) if size > 1]
    if len(long) > 2 and shape[long[-1]] * shape[long[-2]] < SMALL_PLANE:
        long = sorted(sorted(long, key=lambda axis: -shape[axis])[:2])
    chosen: list[int | None] = [None, None, *long]
    return chosen[-2], chosen[-1]


def _as_plane(values: Array, down: int | None, across: int | None) -> Array:
    """Return a view of rank 3: all other axes, then the two."""
    named = [axis for axis in (down, across) if axis is not None]
    sizes = [1 if axis is None else values.shape[axis] for axis in (down, across)]
    moved = np.moveaxis(values, named, range(-len(named), 0)) if named else values
    return moved.reshape(-1, *sizes)


def _cells(x: Array, y: Array) -> Array:
    """Return the largest difference of each cell; inf where one side alone is not finite."""
    others, height, width = x.shape
    rows, columns = _edges(height), _edges(width)
    cells = np.zeros((len(rows) - 1, len(columns) - 1))
    for i in range(len(rows) - 1):
        for start, stop in _runs(columns, others * (rows[i + 1] - rows[i])):
            place = (slice(None), slice(rows[i], rows[i + 1]), slice(columns[start], columns[stop]))
            line = _apart(x[place], y[place])
            cells[i, start:stop] = np.maximum.reduceat(line, columns[start:stop] - columns[start])
    return cells


def _edges(size: int) -> Array:
    """Return where the cells of an axis begin, and its end."""
    count = min(size, CELLS)
    return np.arange(count + 1) * size // count


def _runs(columns: Array, deep: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of cells that hold BLOCK elements at most, a cell at least."""
    count = len(columns) - 1
    pieces = min(count, max(1, -(-deep * int(columns[-1]) // BLOCK)))
    step = -(-count // pieces)
    for start in range(0, count, step):
        yield start, min(count, start + step)


def _apart(x: Array, y: Array) -> Array:
    """Return the largest |y − x| over the first two axes."""
    left, right = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        d = np.abs(right - left)
    odd = ~np.isfinite(d)
    if odd.any():
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        d[odd] = np.where(same[odd], 0.0, np.inf)
    largest: Array = d.max(axis=(0, 1))
    return largest


def _letters(row: Sequence[float], largest: float) -> str:
    return "".join(_letter(value, largest) for value in row)


def _letter(value: float, largest: float) -> str:
    if value == 0:
        return EQUAL
    if not math.isfinite(value):
        return APART
    below = math.ceil(LETTERS_PER_DECADE * math.log10(largest / value) - 0.5)
    return LEVELS[max(0, len(LEVELS) - 1 - below)]
