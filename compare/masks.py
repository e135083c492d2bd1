"""Mask values: −10 000, −65 504, −1e9 or −3.4e38 where attention must not look.

A few of them make up the whole RMS of a tensor, and an error of everything else would drown in it. Where a
tensor falls apart into huge values and ordinary ones with nothing in between, and both sides have the huge
ones in the same places, the error is measured a second time with these set to 0, and the larger one counts.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SUSPICIOUS_RMS = 1e2
"""No mask value is below 1e4, nor rarer than one element in 10 000, in a tensor whose RMS is less."""

LEAST_MASK = 1e4
HUGE = 0.05
"""Share of the largest magnitude from which on a value belongs to the mask."""

ORDINARY = 1e-3
"""Share of the largest magnitude below which a value does not."""


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
