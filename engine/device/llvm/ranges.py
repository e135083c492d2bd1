"""What constants tell of an expression: between which numbers it lies, and whether it may be NaN."""

import math
from collections.abc import Sequence

import numpy as np

from graphdoc.engine.expr import BOOL, Dtype, Expr, postorder

Range = tuple[float, float]

_WHOLE = ("rint", "floor", "ceil", "trunc")


def within(node: Expr, dtype: Dtype) -> bool:
    """Return whether an expression, where it is not NaN, surely fits an integer dtype of at most 4 bytes."""
    info = np.iinfo(dtype)
    low, high = bounds(node)
    return info.min <= low and high <= info.max and dtype.itemsize <= 4


def bounds(root: Expr) -> Range:
    """Return between which numbers an expression lies, where it is not NaN, as far as constants tell."""
    known: dict[Expr, Range] = {}
    for node in postorder(root):
        known[node] = _bounds(node, [known[a] for a in node.args])
    return known[root]


def ordered(root: Expr) -> bool:
    """Return whether an expression is surely not NaN."""
    known: dict[Expr, bool] = {}
    for node in postorder(root):
        known[node] = _ordered(node, [known[a] for a in node.args])
    return known[root]


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
    if node.op in _WHOLE:
        return float(np.floor(args[0][0])), float(np.ceil(args[0][1]))
    integers = node.dtype.kind in "iu"
    if integers and node.op == "add":
        return _held(node.dtype, (args[0][0] + args[1][0], args[0][1] + args[1][1]))
    if integers and node.op == "cast":
        return _held(node.dtype, args[0])
    return _all(node.dtype)


def _all(dtype: Dtype) -> Range:
    if dtype.kind in "iu":
        return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    return -math.inf, math.inf


def _held(dtype: Dtype, found: Range) -> Range:
    """Return a range that the integer dtype holds, else all of it: what lies past comes out anywhere."""
    low, high = _all(dtype)
    return found if low <= found[0] and found[1] <= high else (low, high)


def _ordered(node: Expr, args: Sequence[bool]) -> bool:
    if node.dtype.kind in "iub":
        return True
    if node.op == "const":
        return not np.isnan(float(node.value))
    if node.op == "select":
        return args[2] and (args[1] or _larger(node))
    if node.op == "cast":
        return args[0]
    return node.op in (*_WHOLE, "min", "max", "neg", "abs") and all(args)
