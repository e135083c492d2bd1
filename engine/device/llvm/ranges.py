"""What constants tell of an expression: between which numbers it lies, and whether it may be NaN."""

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from graphdoc.engine.expr import BOOL, F32, Dtype, Expr, postorder

Range = tuple[float, float]

_WHOLE = ("rint", "floor", "ceil", "trunc")

_INTERVALS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}

_KNOWN: WeakKeyDictionary[Expr, tuple[Range, bool]] = WeakKeyDictionary()
"""What was found out of expressions, for as long as they live."""

_EXACT = float(1 << 24)
"""Whole numbers up to here are float32 numbers."""


def within(node: Expr, dtype: Dtype) -> bool:
    """Return whether an expression, where it is not NaN, surely fits an integer dtype of at most 4 bytes."""
    info = np.iinfo(dtype)
    low, high = bounds(node)
    return info.min <= low and high <= info.max and dtype.itemsize <= 4


def bounds(root: Expr) -> Range:
    """Return between which numbers an expression lies, where it is not NaN, as far as constants tell."""
    return _facts(root)[0]


def ordered(root: Expr) -> bool:
    """Return whether an expression is surely not NaN."""
    return _facts(root)[1]


def _facts(root: Expr) -> tuple[Range, bool]:
    """Return the bounds of an expression, and whether it is ordered; each part is looked at once."""
    known = _KNOWN.get(root)
    if known is not None:
        return known
    for node in postorder(root, _KNOWN):
        args = [_KNOWN[a] for a in node.args]
        found = _bounds(node, [range_ for range_, _ in args])
        finite = node.op in _INTERVALS and all(map(math.isfinite, found))
        _KNOWN[node] = found, _ordered(node, [sure for _, sure in args], finite)
    return _KNOWN[root]


def _larger(node: Expr) -> bool:
    """Return whether a node is the larger of two numbers, the second where either is NaN."""
    condition = node.args[0] if node.op == "select" else node
    return condition.op == "lt" and condition.args == (node.args[2], node.args[1])


def _bounds(node: Expr, args: Sequence[Range]) -> Range:
    if node.op == "const" and node.dtype != BOOL and not np.isnan(float(node.value)):
        return float(node.value), float(node.value)
    if node.op in ("min", "max"):
        choose = min if node.op == "min" else max
        return choose(low for low, _ in args), choose(high for _, high in args)
    if node.op == "select":
        values = args[1:]
        low = (max if _larger(node) else min)(low for low, _ in values)
        return low, max(high for _, high in values)
    if node.op == "rint":
        return float(np.rint(args[0][0])), float(np.rint(args[0][1]))
    if node.op in _WHOLE:
        return float(np.floor(args[0][0])), float(np.ceil(args[0][1]))
    if node.dtype == F32 and node.op in _INTERVALS:
        return _computed(node.op, args)
    if node.dtype == F32 and node.op == "cast" and node.args[0].dtype.kind in "iu":
        return args[0] if max(map(abs, args[0])) <= _EXACT else _all(node.dtype)
    integers = node.dtype.kind in "iu"
    if integers and node.op == "add":
        return _held(node.dtype, (args[0][0] + args[1][0], args[0][1] + args[1][1]))
    if integers and node.op == "cast":
        return _held(node.dtype, args[0])
    return _all(node.dtype)


def _computed(op: str, args: Sequence[Range]) -> Range:
    """Return the range of a float32 operation: it is monotone in each argument, and so is rounding."""
    if not all(math.isfinite(end) for pair in args for end in pair) or (op == "div" and min(args[1]) <= 0):
        return -math.inf, math.inf
    with np.errstate(all="ignore"):
        ends = [_INTERVALS[op](np.float32(a), np.float32(b)) for a in args[0] for b in args[1]]
    return float(min(ends)), float(max(ends))


def _all(dtype: Dtype) -> Range:
    if dtype.kind in "iu":
        return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    return -math.inf, math.inf


def _held(dtype: Dtype, found: Range) -> Range:
    """Return a range that the integer dtype holds, else all of it: what lies past comes out anywhere."""
    low, high = _all(dtype)
    return found if low <= found[0] and found[1] <= high else (low, high)


def _ordered(node: Expr, args: Sequence[bool], finite: bool) -> bool:
    if node.dtype.kind in "iub":
        return True
    if node.op == "const":
        return not np.isnan(float(node.value))
    if node.op == "select":
        return args[2] and (args[1] or _larger(node))
    if node.op == "cast":
        return args[0]
    return (finite or node.op in (*_WHOLE, "min", "max", "neg", "abs")) and all(args)


def rounded_from(node: Expr) -> tuple[Expr, int] | None:
    """Return (y, shift) where a float32 is rint(y) + shift, having been an integer in between; None if not.

    What was only narrowed to a code and widened again need not have been.
    """
    whole = _widened(node.args[0]) if node.op == "cast" and node.dtype == F32 else None
    if whole is None or max(map(abs, bounds(whole))) > _EXACT:
        return None
    shift = 0
    if whole.op == "add" and whole.args[1].op == "const":
        whole, shift = whole.args[0], int(whole.args[1].value)
    y = whole.args[0] if whole.op == "cast" else whole
    if y.op != "rint" or y.dtype != F32 or not within(y, whole.dtype) or not ordered(y):
        return None
    return y.args[0], shift


def _widened(node: Expr) -> Expr | None:
    """Return the integer that a narrower one was made of without a loss; None of what is no integer."""
    while node.op == "cast" and node.args[0].dtype.kind in "iu" and within(node.args[0], node.dtype):
        node = node.args[0]
    return node if node.dtype.kind in "iu" else None


def moderate(divisor: Expr) -> bool:
    """Return whether a float32 divisor is a constant whose reciprocal is far from over- and underflow."""
    return divisor.op == "const" and divisor.dtype == F32 and 2.0**-60 < abs(float(divisor.value)) < 2.0**60


def constant_of(node: Expr) -> float | None:
    """Return the number that an expression always is, None where it is not seen."""
    node = node.args[0] if node.op == "cast" else node
    return float(node.value) if node.op == "const" and node.dtype != BOOL else None
