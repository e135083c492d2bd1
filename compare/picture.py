"""What reports draw of a layer: plain frozen data, small enough to stand in a result.

A and B are the two sides. Counts are of elements that are finite on both sides.
"""

from dataclasses import dataclass

LEVELS = "abcdefghijklmnopqrstuvwxyz"
"""Cells of a heat map: "z" holds the largest difference, each letter before it stands for a factor of
10^(1/LETTERS_PER_DECADE) less, "a" for everything smaller that is not 0."""

LETTERS_PER_DECADE = 4
CELLS = 64
"""Cells of a heat map down and across at most."""

EQUAL, APART = ".", "!"
"""Cells without a difference, and cells where one side alone is NaN or Inf, or Inf has another sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many elements of each side lie in each of equally wide bins from ``low`` to ``high``.

    counted: elements looked at; fewer than the tensor has where it is large (every n-th is taken).
    masked: among these, elements left out since they are mask values (−65 504 and the like).
    """

    low: float
    high: float
    counted: int
    masked: int
    a: tuple[int, ...]
    b: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """How many elements of each side that are not 0 have which power of two, masks included.

    Entry k counts 2^(low + k) ≤ |x| < 2^(low + k + 1); the first one also all that is smaller.
    """

    low: int
    a: tuple[int, ...]
    b: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How close the values of one side come to the ends of their dtype, as shares from 0 to 1.

    near_overflow: within the four highest powers of two of the dtype; of integers: equal to an end of it.
    near_underflow: normal numbers within the four lowest powers of two. subnormal: below the smallest
    normal number, where digits are lost; 0 itself does not count. Both are 0 for integers.
    """

    dtype: str
    near_overflow: float
    near_underflow: float
    subnormal: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Where a tensor differs: the largest |B − A| of each cell of a plane, over all other axes.

    axes: of the tensor, those that run down and across; −1 is the occurrence (of a loop), None that there
    is no such axis. shape: their lengths. largest: the strongest finite cell. cells: a text per row, a
    character per cell: see LEVELS, EQUAL and APART.
    """

    axes: tuple[int | None, int | None]
    shape: tuple[int, int]
    largest: float
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All drawings of a layer; None where there is nothing to draw."""

    histogram: Histogram | None = None
    magnitudes: Magnitudes | None = None
    reach_a: Reach | None = None
    reach_b: Reach | None = None
    heat: HeatMap | None = None
