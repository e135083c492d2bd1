"""Comparison, logic, bits, tests for NaN and Inf, and Where."""

from collections.abc import Callable
from typing import Any

import numpy as np

from graphdoc.engine.ops import content
from graphdoc.engine.ops.arithmetic import one_sided
from graphdoc.engine.ops.host import namespace, to_host
from graphdoc.engine.ops.shapes import (
    BOOL,
    broadcast,
    broadcast_bool,
    same_as_first,
    same_shape,
)
from graphdoc.engine.ops.table import Array, Call, Infer, TensorType, op


def _binary(function: str) -> Callable[..., Array]:
    def evaluate(call: Call, a: Array, b: Array) -> Array:
        return getattr(call.xp, function)(a, b)

    evaluate.__doc__ = f"{function} of a and b, element by element."
    return evaluate


def _old_bool(call: Call, a: TensorType, b: TensorType, **attributes: Any) -> TensorType:
    return TensorType(BOOL, a.shape)


_OLD = 1
_BINARY: tuple[tuple[str, str, Infer, tuple[int, ...]], ...] = (
    ("Greater", "greater", content.greater_type, (1, 7, 9, 13)),
    ("Less", "less", content.less_type, (1, 7, 9, 13)),
    ("GreaterOrEqual", "greater_equal", content.greater_equal_type, (12, 16)),
    ("LessOrEqual", "less_equal", content.less_equal_type, (12, 16)),
    ("And", "logical_and", content.and_type, (1, 7)),
    ("Or", "logical_or", content.or_type, (1, 7)),
    ("Xor", "logical_xor", broadcast_bool, (1, 7)),
    ("BitwiseAnd", "bitwise_and", broadcast, (18,)),
    ("BitwiseOr", "bitwise_or", broadcast, (18,)),
    ("BitwiseXor", "bitwise_xor", broadcast, (18,)),
)
for _name, _function, _infer, _since in _BINARY:
    _evaluate = _binary(_function)
    op(_name, *(v for v in _since if v != _OLD), infer=_infer)(_evaluate)
    if _OLD in _since:
        op(_name, _OLD, infer=_old_bool)(one_sided(_evaluate))


@op("Equal", 7, 11, 13, 19, infer=content.equal_type)
def equal(call: Call, a: Array, b: Array) -> Array:
    """a = b, for strings too (ONNX Equal-19)."""
    return namespace(call, a, b).asarray(a == b)


op("Equal", _OLD, infer=_old_bool)(one_sided(equal))


@op("Not", 1, infer=content.not_type)
def not_(call: Call, x: Array) -> Array:
    """The other truth value (ONNX Not-1)."""
    return call.xp.logical_not(x)


@op("BitwiseNot", 18, infer=same_as_first)
def bitwise_not(call: Call, x: Array) -> Array:
    """Every bit flipped (ONNX BitwiseNot-18)."""
    return call.xp.invert(x)


@op("BitShift", 11, 28, infer=broadcast)
def bit_shift(call: Call, x: Array, y: Array, *, direction: str) -> Array:
    """x shifted by y bits LEFT or RIGHT; to the right signed integers keep their sign (ONNX BitShift-28).

    A y that is negative, or as large as the width, shifts everything out: 0, or −1 for a negative x
    shifted right.
    """
    xp = call.xp
    width = 8 * x.dtype.itemsize
    inside = (y >= 0) & (y < width)
    amount = xp.where(inside, y, xp.asarray(width - 1, dtype=y.dtype))
    if direction == "LEFT":
        return xp.where(inside, xp.left_shift(x, amount), xp.zeros((), x.dtype))
    if direction != "RIGHT":
        raise ValueError(f"direction is LEFT or RIGHT, not {direction!r}")
    shifted = xp.right_shift(x, amount)
    return shifted if x.dtype.kind == "i" else xp.where(inside, shifted, xp.zeros((), x.dtype))


@op("IsNaN", 9, 13, 20, infer=same_shape(BOOL))
def is_nan(call: Call, x: Array) -> Array:
    """Whether an element is NaN (ONNX IsNaN-20)."""
    return call.xp.isnan(x)


@op("IsInf", 10, 20, infer=same_shape(BOOL))
def is_inf(call: Call, x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Whether an element is an infinity of a sign that is asked for (ONNX IsInf-20)."""
    xp = call.xp
    found = xp.isinf(x)
    if not detect_negative:
        found = found & ~xp.signbit(x)
    return found if detect_positive else found & xp.signbit(x)


@op("Where", 9, 16, infer=content.where_type)
def where(call: Call, condition: Array, x: Array, y: Array) -> Array:
    """x where the condition holds, else y (ONNX Where-16)."""
    if isinstance(x, np.ndarray):
        return np.where(to_host(condition), x, y)
    return call.xp.where(condition, x, y)
