"""How far B lies from A, value by value: all figures in one walk over blocks that stay in the cache.

Everything is computed in float64. Elements that are NaN on both sides, or the same infinity, agree and
count as no difference; elements where only one side is NaN or infinite make the error infinite.

The walk is written here in NumPy, which serves every dtype and machine. Where a lot of floats is to be
measured, :mod:`graphdoc.compare.metrics_native` walks the stretches without NaN and Inf some ten times as
fast; both give the same figures to the rounding of sums.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from graphdoc.compare.masks import SUSPICIOUS_RMS, without_ends, without_mask
from graphdoc.compare.metrics_native import TILE, WORKSHOP, Figures, Kernel, Limits
from graphdoc.compare.result import Metrics

Array = np.ndarray[Any, Any]

BLOCK = 1 << 13
"""Elements walked at a time: a handful of float64 temporaries of this size stay in the L2 cache, and
BLAS does not start threads for a dot product of this length (measured: 7 µs against 1 100 µs at four
times the length on a busy machine)."""


class MismatchError(Exception):
    """The two values cannot be compared element by element; the text says why."""


def pairs(a: Any, b: Any) -> Iterator[tuple[Array, Array]]:
    """Yield the arrays of two values side by side: sequences, maps and occurrences element by element.

    Raises MismatchError when they differ in kind, length, keys or shape.
    """
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            raise MismatchError(f"A has {len(a)} elements, B {len(b)}")
        for x, y in zip(a, b, strict=True):
            yield from pairs(x, y)
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        if list(a) != list(b):
            raise MismatchError("A and B have different keys")
        yield np.asarray(list(a.values())), np.asarray(list(b.values()))
    elif a is None or b is None:
        if a is not b:
            raise MismatchError("one side is an empty optional")
    else:
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape:
            raise MismatchError(f"A has shape {_shape(x)}, B {_shape(y)}")
        yield x, y


def _shape(x: Array) -> str:
    return "×".join(map(str, x.shape)) or "scalar"


def distance(a: Any, b: Any) -> tuple[float, float]:
    """Return (RMS(B − A), RMS(A)); the first is inf where NaN or Inf disagree. See :func:`measure`."""
    found = list(pairs(a, b))
    if _are_equal_sizes(found):
        return 0.0, _plain_rms(found[0][0])
    whole = _brief(found).outcome()
    if whole[1] <= SUSPICIOUS_RMS:
        return whole
    ends = [without_ends(x, y) for x, y in found]
    if any(x is not z for (x, _), (z, _) in zip(found, ends, strict=True)):
        whole, found = _brief(ends).outcome(), ends
    ordinary = _brief([without_mask(x, y) for x, y in found]).outcome()
    return max(whole, ordinary, key=lambda outcome: ratio(*outcome))


def _brief(found: list[tuple[Array, Array]]) -> "_Tally":
    tally = _Tally(0.0, Tolerance())
    for x, y in found:
        tally.add_brief(x, y)
    return tally


def ratio(difference: float, scale: float) -> float:
    """Return difference ÷ scale; 0 when there is none, inf when only the scale is 0 or both overflowed."""
    if difference == 0:
        return 0.0
    if math.isinf(difference):
        return math.inf
    return difference / scale if scale > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element agrees when |B − A| ≤ absolute + relative · |A| + of_rms · RMS(A)."""

    relative: float = 0.0
    absolute: float = 0.0
    of_rms: float = 0.0


def measure(a: Any, b: Any, tolerance: Tolerance = Tolerance()) -> Metrics:
    """Compare two values.

    a, b: arrays of one shape, or lists or dicts of them; dtypes may differ.
    tolerance: decides which elements count as ``outside``.

    Raises MismatchError when there is nothing to hold side by side.
    """
    found = list(pairs(a, b))
    texts = [(x, y) for x, y in found if x.dtype == object or y.dtype == object]
    if texts:
        return _measure_texts(texts)
    if _are_equal_sizes(found):
        return _equal_sizes(found[0][0])
    whole = _measure(found, tolerance)
    if whole.rms_a <= SUSPICIOUS_RMS:
        return whole
    ends = [without_ends(x, y) for x, y in found]
    if any(x is not z for (x, _), (z, _) in zip(found, ends, strict=True)):
        whole, found = _measure(ends, tolerance), ends
    ordinary = _measure([without_mask(x, y) for x, y in found], tolerance)
    return max(whole, ordinary, key=lambda metrics: metrics.error)


FEW = 64
"""Whole numbers up to which two values are first looked at for being the same: shapes, axes, indices."""


def _are_equal_sizes(found: list[tuple[Array, Array]]) -> bool:
    """Whether there is one pair of few whole numbers, the same on both sides: half of an exported graph."""
    if len(found) != 1:
        return False
    a, b = found[0]
    return a.dtype.kind in "iu" and a.dtype == b.dtype and 0 < a.size <= FEW and bool((a == b).all())


def _plain_rms(values: Array) -> float:
    wide = values.astype(np.float64).ravel()
    return math.sqrt(float(wide @ wide) / wide.size)


def _equal_sizes(values: Array) -> Metrics:
    low, high, zeros = float(values.min()), float(values.max()), int(np.count_nonzero(values == 0))
    rms = _plain_rms(values)
    return Metrics(
        size=values.size,
        cosine=1.0 if rms else None,
        a_min=low,
        a_max=high,
        b_min=low,
        b_max=high,
        rms_a=rms,
        rms_b=rms,
        zero_a=zeros,
        zero_b=zeros,
    )


def _measure(found: list[tuple[Array, Array]], tolerance: Tolerance) -> Metrics:
    tally = _Tally(_rms_of([x for x, _ in found]), tolerance)
    for x, y in found:
        tally.add(x, y)
    return tally.metrics()


def _rms_of(arrays: list[Array]) -> float:
    """Return the RMS over the finite elements of all arrays."""
    tally = _brief([(array, array) for array in arrays])
    return tally.rms(tally.aa)


def _flat(array: Array) -> Array:
    """Return all numbers in a row: both parts of complex ones, and small integers as float32, exactly."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind in "biu" and flat.dtype.itemsize <= 2:
        return flat.astype(np.float32)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


class _Tally:
    """Sums over all blocks seen so far."""

    def __init__(self, scale: float, tolerance: Tolerance) -> None:
        self.scale = scale
        self.relative = tolerance.relative
        self.absolute = tolerance.absolute + tolerance.of_rms * scale
        self.eps = 0.0
        self.size = self.finite = self.outside = 0
        self.dd = self.aa = self.bb = self.ab = self.sum_abs = 0.0
        self.max_abs = self.max_rel = 0.0
        self.worst: tuple[int, ...] | None = None
        self.at_worst: tuple[float, float] | None = None
        self.low = [math.inf, math.inf]
        self.high = [-math.inf, -math.inf]
        self.nan, self.inf, self.zero = [0, 0], [0, 0], [0, 0]
        self.nonfinite_differ = 0

    def outcome(self) -> tuple[float, float]:
        """Return (RMS(B − A), RMS(A))."""
        return (math.inf if self.nonfinite_differ else self.rms(self.dd)), self.rms(self.aa)

    def rms(self, total: float) -> float:
        return math.sqrt(total / self.finite) if self.finite else 0.0

    def add_brief(self, a: Array, b: Array) -> None:
        """Count squares only."""
        left, right = _flat(a), _flat(b)
        kernel = WORKSHOP.kernel("distance", left, right)
        if kernel is None:
            self._squares(left, right)
            return
        for start, stop, figures in kernel.walk(left, right):
            if figures is None:
                self._squares(left[start:stop], right[start:stop])
            else:
                self.finite += stop - start
                self.dd += figures["dd"]
                self.aa += figures["aa"]

    def _squares(self, left: Array, right: Array) -> None:
        for start in range(0, left.size, BLOCK):
            x = left[start : start + BLOCK].astype(np.float64)
            y = x if left is right else right[start : start + BLOCK].astype(np.float64)
            x, y, _ = self._finite(x, y)
            d = y - x
            self.dd += float(d @ d)
            self.aa += float(x @ x)
            self.finite += x.size

    def add(self, a: Array, b: Array) -> None:
        """Count everything."""
        self.eps = max(self.eps, epsilon(a.dtype))
        self.size += a.size
        left, right = _flat(a), _flat(b)
        if not left.size:
            return
        shape = (*a.shape, left.size // a.size)
        kernel = WORKSHOP.kernel("measure", left, right)
        if kernel is not None:
            self._add_native(kernel, left, right, shape)
        elif left.dtype == right.dtype and np.array_equal(left, right) and _is_finite(left):
            self._equal(left)
        else:
            self._walk(left, right, shape, 0)

    def _walk(self, left: Array, right: Array, shape: tuple[int, ...], first: int) -> None:
        """Count a stretch from position ``first`` on; ``shape`` ends with 2 for complex numbers, else 1."""
        self._extremes(0, left)
        self._extremes(1, right)
        for start in range(0, left.size, BLOCK):
            x = left[start : start + BLOCK].astype(np.float64)
            y = right[start : start + BLOCK].astype(np.float64)
            x, y, kept = self._finite(x, y)
            if x.size:
                self._block(x, y, shape, first + start, kept)

    def _add_native(self, kernel: Kernel, left: Array, right: Array, shape: tuple[int, ...]) -> None:
        limits = Limits(self.scale, self.relative, self.absolute)
        for start, stop, figures in kernel.walk(left, right, limits):
            if figures is None:
                self._walk(left[start:stop], right[start:stop], shape, start)
            else:
                self.finite += stop - start
                self._take(figures)
                if figures["max_abs"] > self.max_abs:
                    self._place(figures, left[:stop], right[:stop], shape)

    def _take(self, figures: Figures) -> None:
        """Join the figures of a stretch, all but the largest difference."""
        self.dd += figures["dd"]
        self.aa += figures["aa"]
        self.bb += figures["bb"]
        self.ab += figures["ab"]
        self.sum_abs += figures["sum_abs"]
        self.outside += int(figures["outside"])
        if self.scale > 0:
            self.max_rel = max(self.max_rel, figures["max_rel"])
        for side, name in enumerate("ab"):
            self.low[side] = min(self.low[side], figures[f"low_{name}"])
            self.high[side] = max(self.high[side], figures[f"high_{name}"])
            self.zero[side] += int(figures[f"zero_{name}"])

    def _place(self, figures: Figures, left: Array, right: Array, shape: tuple[int, ...]) -> None:
        """Look for the largest difference in the tile that has it; both arrays end where the kernel did."""
        start = int(figures["tile"])
        x = left[start : start + TILE].astype(np.float64)
        y = right[start : start + TILE].astype(np.float64)
        position = int(np.abs(y - x).argmax())
        self.max_abs = figures["max_abs"]
        self.at_worst = (float(x[position]), float(y[position]))
        self.worst = _index(start + position, shape)

    def _equal(self, values: Array) -> None:
        """Count an array that both sides share."""
        blocks = (values[i : i + BLOCK].astype(np.float64) for i in range(0, values.size, BLOCK))
        square = sum(float(block @ block) for block in blocks)
        self.finite += values.size
        self.aa, self.bb, self.ab = self.aa + square, self.bb + square, self.ab + square
        for side in (0, 1):
            self._extremes(side, values)

    def _extremes(self, side: int, values: Array) -> None:
        low, high = float(values.min()), float(values.max())
        if not math.isfinite(low) or not math.isfinite(high):
            wide = values.astype(np.float64)
            wide = wide[np.isfinite(wide)]
            low, high = float(wide.min(initial=math.inf)), float(wide.max(initial=-math.inf))
        self.low[side] = min(self.low[side], low)
        self.high[side] = max(self.high[side], high)
        self.zero[side] += int(np.count_nonzero(values == 0))

    def _finite(self, x: Array, y: Array) -> tuple[Array, Array, Array | None]:
        """Return the elements finite on both sides and their positions (None: all); count the others."""
        probe = float(x @ x) + float(y @ y)
        if math.isfinite(probe):
            return x, y, None
        finite = np.isfinite(x) & np.isfinite(y)
        if finite.all():
            return x, y, None
        for side, values in enumerate((x, y)):
            self.nan[side] += int(np.isnan(values).sum())
            self.inf[side] += int(np.isinf(values).sum())
        same = (np.isnan(x) & np.isnan(y)) | (x == y)
        self.nonfinite_differ += int((~finite & ~same).sum())
        kept = np.flatnonzero(finite)
        return x[kept], y[kept], kept

    def _block(self, x: Array, y: Array, shape: tuple[int, ...], start: int, kept: Array | None) -> None:
        self.finite += x.size
        self.aa += float(x @ x)
        self.bb += float(y @ y)
        self.ab += float(x @ y)
        d = np.abs(y - x)
        position = int(d.argmax())
        largest = float(d[position])
        if largest == 0.0:
            return
        self.dd += float(d @ d)
        self.sum_abs += float(d.sum())
        if largest > self.max_abs:
            self.max_abs = largest
            self.at_worst = (float(x[position]), float(y[position]))
            offset = start + (position if kept is None else int(kept[position]))
            self.worst = _index(offset, shape)
        magnitude = np.abs(x, out=x)
        allowed = self.absolute + self.relative * magnitude if self.relative else self.absolute
        self.outside += int(np.count_nonzero(d > allowed))
        against = np.maximum(magnitude, self.scale, out=magnitude)
        if self.scale > 0:
            self.max_rel = max(self.max_rel, float((d / against).max()))

    def metrics(self) -> Metrics:
        rms, rms_a, rms_b = self.rms(self.dd), self.rms(self.aa), self.rms(self.bb)
        error = math.inf if self.nonfinite_differ else ratio(rms, rms_a)
        norm = math.sqrt(self.aa) * math.sqrt(self.bb)
        known = self.finite > 0
        within = 0 < rms < math.inf and 0 < rms_a < math.inf
        return Metrics(
            size=self.size,
            outside=(self.outside + self.nonfinite_differ) / self.size if self.size else 0.0,
            max_abs=self.max_abs,
            mean_abs=self.sum_abs / self.finite if known else 0.0,
            rms=rms,
            max_rel=self.max_rel,
            error=error,
            cosine=_finite(self.ab / norm) if norm > 0 else None,
            snr_db=20 * math.log10(rms_a / rms) if within else None,
            ulp=self.max_rel / self.eps if self.eps else None,
            worst=self.worst,
            a_worst=self.at_worst[0] if self.at_worst else None,
            b_worst=self.at_worst[1] if self.at_worst else None,
            a_min=_finite(self.low[0]),
            a_max=_finite(self.high[0]),
            b_min=_finite(self.low[1]),
            b_max=_finite(self.high[1]),
            rms_a=rms_a,
            rms_b=rms_b,
            nan_a=self.nan[0],
            nan_b=self.nan[1],
            inf_a=self.inf[0],
            inf_b=self.inf[1],
            zero_a=self.zero[0],
            zero_b=self.zero[1],
            nonfinite_differ=self.nonfinite_differ,
        )


def _is_finite(values: Array) -> bool:
    return values.dtype.kind in "biu" or bool(
        np.isfinite(float(values.max())) and np.isfinite(float(values.min()))
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _index(offset: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of the element at a flat position; the last axis of ``shape`` holds its parts."""
    index = []
    for size in reversed(shape):
        offset, place = divmod(offset, size)
        index.append(place)
    return tuple(reversed(index[1:]))


def _measure_texts(found: list[tuple[Array, Array]]) -> Metrics:
    """Compare strings: the error is the share of elements that differ."""
    size = sum(x.size for x, _ in found)
    differ = [(x, y, x.astype(object) != y.astype(object)) for x, y in found]
    count = sum(int(np.count_nonzero(mask)) for _, _, mask in differ)
    share = count / size if size else 0.0
    for x, y, mask in differ:
        if np.any(mask):
            at = tuple(int(i) for i in np.argwhere(mask)[0])
            return Metrics(
                size=size, outside=share, error=share, worst=at, a_worst=str(x[at]), b_worst=str(y[at])
            )
    return Metrics(size=size)


_EPSILONS = {
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float4_e2m1fn": 2.0**-1,
}


_NORMALS = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}


def smallest_normal(dtype: str) -> float:
    """Return the smallest number of a float dtype that has all its digits; 0 for dtypes without such."""
    return _NORMALS.get(dtype, 0.0)


@cache
def epsilon(dtype: Any) -> float:
    """Return the gap between 1 and the next number of a float dtype; 0 for others, and for ""."""
    return _EPSILONS.get(dtype if isinstance(dtype, str) else np.dtype(dtype).name, 0.0)
