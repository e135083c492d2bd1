"""Reading images at computed places → maps for places and weights, rows of channels, a weighted sum."""

from collections.abc import Sequence
from itertools import product

from graphdoc.engine.expr import F32, I64, Expr, apply, cast, const, load
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.lower import NotLowered, Site, lowering
from graphdoc.engine.lower_layout import entry, with_ones
from graphdoc.engine.program import View

_LINEAR = ("linear", "bilinear")

Corner = tuple[Expr, Expr | None, Expr]
"""Of one axis: the element's number as a float, whether it lies inside (None: always), its weight."""


def _number(value: float) -> Expr:
    return const(value, F32)


def _coordinate(grid: Expr, size: int, align_corners: int) -> Expr:
    """Return −1 … 1 in elements."""
    up = apply("add", grid, _number(1))
    if align_corners:
        return apply("mul", apply("div", up, _number(2)), _number(size - 1))
    return apply("div", apply("sub", apply("mul", up, _number(size)), _number(1)), _number(2))


def _within(place: Expr, size: int) -> Expr:
    """Return whether a whole number lies in 0 … size − 1; no number does not."""
    return apply("and", apply("le", _number(0), place), apply("le", place, _number(size - 1)))


def _corners(grid: Expr, size: int, mode: str, padding: str, align_corners: int) -> list[Corner]:
    """Return the corners along one axis."""
    at = _coordinate(grid, size, align_corners)
    at = apply("rint", at) if mode == "nearest" else at
    last, inside = _number(size - 1), padding == "zeros"
    at = at if inside else apply("min", apply("max", at, _number(0)), last)
    if mode == "nearest":
        return [(at, _within(at, size) if inside else None, _number(1))]
    low = apply("floor", at)
    fraction = apply("sub", at, low)
    high = apply("add", low, _number(1))
    rest = apply("sub", _number(1), fraction)
    if inside:
        return [(low, _within(low, size), rest), (high, _within(high, size), fraction)]
    return [(low, None, rest), (apply("min", high, last), None, fraction)]


@lowering("GridSample")
def grid_sample(
    at: Site,
    X: View,
    grid: View,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> View:
    """X (N, C, H, W) at the places of a grid (N, h, w, 2), between elements or at the nearest one."""
    if len(X.shape) != 4 or {X.dtype, grid.dtype} != {F32} or padding_mode not in ("zeros", "border"):
        raise NotLowered("another rank, dtype or padding")
    if mode not in (*_LINEAR, "nearest") or grid.shape[0] != X.shape[0] or grid.shape[3] != 2:
        raise NotLowered(f"mode {mode}")
    batch, channels, height, width = X.shape
    rows = at.reshape(at.dense(X.permuted((0, 2, 3, 1))), (batch, height * width, channels))
    points = grid.shape[1] * grid.shape[2]
    x, y = (load(k, F32) for k in range(2))
    kind = "nearest" if mode == "nearest" else "linear"
    axes = [
        _corners(value, size, kind, padding_mode, align_corners) for value, size in ((y, height), (x, width))
    ]
    corners = [_corner(pair, width) for pair in product(*axes)]
    ends = [entry(grid, 3, k) for k in range(2)]
    shape = (batch, *grid.shape[1:3])
    values, weights = [], []
    for number, weight in corners:
        places, factors = at.fresh(shape, I64), at.fresh(shape, F32)
        at.step(Map((number, weight)), ends, [places, factors])
        values.append(_rows_at(at, rows, at.reshape(places, (batch, points))))
        weights.append(with_ones(at.reshape(factors, (batch, points)), [2]))
    total = at.map(_weighted, *values, *weights)
    result = at.reshape(total, (batch, *grid.shape[1:3], channels))
    return result.permuted((0, 3, 1, 2))


def _corner(pair: Sequence[Corner], width: int) -> tuple[Expr, Expr]:
    """Return the number of a corner's row of channels, and its weight; outside: the first one, and −1."""
    (row, down, by_row), (column, across, by_column) = pair
    inside = apply("and", down, across) if down is not None and across is not None else None
    number = apply("add", apply("mul", cast(row, I64), const(width, I64)), cast(column, I64))
    weight = apply("mul", by_row, by_column)
    if inside is None:
        return number, weight
    return apply("select", inside, number, const(0, I64)), apply("select", inside, weight, _number(-1))


def _rows_at(at: Site, rows: View, places: View) -> View:
    """Return rows (N, H·W, C) at places (N, points): (N, points, C)."""
    shape = (*places.shape, rows.shape[2])
    out = at.fresh(shape, F32)
    at.step(Gather(1), [rows, with_ones(places, [2]).broadcast(shape)], [out])
    return out


def _weighted(*operands: Expr) -> Expr:
    """Return the sum of values times weights; what lies outside, of weight −1, counts as 0."""
    half = len(operands) // 2
    terms = [
        apply("select", apply("lt", w, _number(0)), _number(0), apply("mul", v, w))
        for v, w in zip(operands[:half], operands[half:], strict=True)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = apply("add", total, term)
    return total
