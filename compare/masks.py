"""Mask values: −10 000, −65 504, −1e9 or −3.4e38 where attention must not look.

A few of them make up the whole RMS of a tensor, and an error of everything else would drown in it. Where a
tensor falls apart into huge values and ordinary ones with nothing in between, and both sides have the huge
ones in the same places, the error is measured a second time with these set to 0, and the larger one counts.
"""

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

SUSPICIOUS_RMS = 1e2
"""No mask value is below 1e4, nor rarer than one element in 10 000, in a tensor whose RMS is less."""

LEAST_MASK = 1e4
HUGE = 0.05
"""Share of the largest magnitude from which on a value belongs to the mask."""

ORDINARY = 1e-3
"""Share of the largest magnitude below which a value does not."""


END = 0.99
"""Share of the largest finite number of a dtype from which on a value stands for the end of its range."""


def without_ends(a: Array, b: Array) -> tuple[Array, Array]:
    """Return both arrays with 0 where both hold the largest number of their own, different dtypes.

    −3.4e38 of a model in float32 is −65 504 in its float16 version: both say "not here". The same arrays
    where the dtypes are equal, or one side alone has such a number somewhere.
    """
    ends = [largest(x.dtype) for x in (a, b)]
    if a.dtype == b.dtype or a.size == 0 or a.shape != b.shape or not all(ends):
        return a, b
    sizes = (np.abs(x.astype(np.float64)) for x in (a, b))
    at_a, at_b = ((size >= END * end) & (size <= end) for size, end in zip(sizes, ends, strict=True))
    if not (at_a.any() and np.array_equal(at_a, at_b)):
        return a, b
    return np.where(at_a, a.dtype.type(0), a), np.where(at_b, b.dtype.type(0), b)


def largest(dtype: np.dtype[Any]) -> float:
    """Return the largest finite number of a float dtype, 0 for others."""
    try:
        return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    except ValueError:
        return 0.0


def smallest(dtype: np.dtype[Any]) -> float:
    """Return the smallest number of a float dtype above 0."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)  # type: ignore[no-untyped-call]


def without_mask(a: Array, b: Array) -> tuple[Array, Array]:
    """Return both arrays with their common mask values set to 0; the same arrays when there are none."""
    if a.dtype.kind not in "fV" or a.size == 0 or a.shape != b.shape:
        return a, b
    size_a, size_b = (np.abs(x.astype(np.float64)) for x in (a, b))
    largest = float(size_a.max())
    if not LEAST_MASK <= largest < np.inf:
        return a, b
    huge = size_a >= HUGE * largest
    apart = huge | (size_a <= ORDINARY * largest)
    same = huge == (size_b >= HUGE * largest)
    if not (apart.all() and same.all()) or huge.all():
        return a, b
    return np.where(huge, a.dtype.type(0), a), np.where(huge, b.dtype.type(0), b)
