"""Element-wise arithmetic: one, two and many inputs.

Binary operators broadcast by NumPy's rule since opset 7; before, an attribute ``broadcast`` allowed the
second input to be stretched to the first.
"""

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

import numpy as np

from graphdoc.engine.ops import content
from graphdoc.engine.ops.dtypes import FLOAT64, is_float, limits, single
from graphdoc.engine.ops.elementwise import plain, unary
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import broadcast, broadcast_old, broadcast_shapes, same_as_first
from graphdoc.engine.ops.special import erf
from graphdoc.engine.ops.table import Array, Call, TensorType, op

_NAMED = (
    ("Abs", "absolute", 1, 6, 13),
    ("Neg", "negative", 1, 6, 13),
    ("Sqrt", "sqrt", 1, 6, 13),
    ("Reciprocal", "reciprocal", 1, 6, 13),
    ("Exp", "exp", 1, 6, 13),
    ("Log", "log", 1, 6, 13),
    ("Sign", "sign", 9, 13),
    ("Ceil", "ceil", 1, 6, 13),
    ("Floor", "floor", 1, 6, 13),
    ("Round", "rint", 11, 22),
    ("Sin", "sin", 7, 22),
    ("Cos", "cos", 7, 22),
    ("Tan", "tan", 7, 22),
    ("Asin", "arcsin", 7, 22),
    ("Acos", "arccos", 7, 22),
    ("Atan", "arctan", 7, 22),
    ("Sinh", "sinh", 9, 22),
    ("Cosh", "cosh", 9, 22),
    ("Tanh", "tanh", 1, 6, 13),
    ("Asinh", "arcsinh", 9, 22),
    ("Acosh", "arccosh", 9, 22),
    ("Atanh", "arctanh", 9, 22),
)
_FOLLOWED = {"Abs": content.absolute_type, "Neg": content.negative_type}
for _name, _function, *_since in _NAMED:
    plain(_name, _function, *_since, infer=_FOLLOWED.get(_name, same_as_first))

unary("Erf", 9, 13)(erf)


# ---- two inputs ---------------------------------------------------------------------------------------


def aligned(a: Array, b: Array, *, broadcast: int, axis: int | None) -> Array:
    """Return b shaped so that NumPy broadcasts it to a, by the rule of opsets 1 and 6.

    Raises ValueError when the shapes differ without ``broadcast``, or b does not fit a at ``axis``.
    """
    if a.shape == b.shape:
        return b
    if not broadcast:
        raise ValueError(f"shapes {a.shape} and {b.shape} differ and the node does not ask for broadcast")
    if b.size == 1:
        return b.reshape(())
    start = a.ndim - b.ndim if axis is None else axis + a.ndim * (axis < 0)
    part = a.shape[start : start + b.ndim] if start >= 0 else ()
    if len(part) != b.ndim or any(n not in (1, m) for m, n in zip(part, b.shape, strict=True)):
        raise ValueError(f"shape {b.shape} is not a part of {a.shape} at axis {start}")
    return b.reshape(b.shape + (1,) * (a.ndim - start - b.ndim))


def one_sided(evaluate: Callable[..., Array]) -> Callable[..., Array]:
    """Return the operator with the attributes ``broadcast`` and ``axis`` of opsets 1 and 6."""

    @wraps(evaluate)
    def old(
        call: Call,
        a: Array,
        b: Array,
        *,
        broadcast: int = 0,
        axis: int | None = None,
        consumed_inputs: Any = None,
    ) -> Array:
        return evaluate(call, a, aligned(a, b, broadcast=broadcast, axis=axis))

    return old


@op("Add", 7, 13, 14, infer=content.add_type)
def add(call: Call, a: Array, b: Array) -> Array:
    """a + b; integers wrap (ONNX Add-14)."""
    return call.xp.add(a, b)


@op("Sub", 7, 13, 14, infer=content.subtract_type)
def sub(call: Call, a: Array, b: Array) -> Array:
    """a − b; integers wrap (ONNX Sub-14)."""
    return call.xp.subtract(a, b)


@op("Mul", 7, 13, 14, infer=content.multiply_type)
def mul(call: Call, a: Array, b: Array) -> Array:
    """a · b; integers wrap (ONNX Mul-14)."""
    return call.xp.multiply(a, b)


@op("Div", 7, 13, 14, infer=content.divide_type)
def div(call: Call, a: Array, b: Array) -> Array:
    """a ÷ b; integers truncate toward zero, and an integer ÷ 0 is 0 (undefined in ONNX Div-14)."""
    xp = call.xp
    if is_float(a.dtype):
        return xp.divide(a, b)
    return xp.floor_divide(a if a.dtype.kind == "u" else xp.subtract(a, xp.fmod(a, b)), b)


def _pow_type(call: Call, x: TensorType, y: TensorType) -> TensorType:
    return TensorType(x.dtype, broadcast_shapes((x.shape, y.shape)))


@op("Pow", 7, 12, 13, 15, infer=_pow_type)
def pow_(call: Call, x: Array, y: Array) -> Array:
    """x to the power y, in the dtype of x whatever the dtype of y (ONNX Pow-15).

    Integers are exact and wrap; a negative exponent of an integer gives the truncated quotient.
    """
    xp = call.xp
    if y.size == 1 and x.size > 1 and (power := float(y.reshape(()))) in (2.0, 3.0):
        return _small_power(xp, x, int(power)).reshape(np.broadcast_shapes(x.shape, y.shape))
    if is_float(x.dtype):
        base, exponent = (wide(x), wide(y)) if x.dtype == y.dtype else (x, y)
        same = base.dtype == exponent.dtype
        result = xp.power(base, exponent) if same else xp.power(x.astype(FLOAT64), y.astype(FLOAT64))
        return narrow(result, x.dtype)
    return narrow(_integer_power(xp, x, y), x.dtype)


def _small_power(xp: Any, x: Array, power: int) -> Array:
    """Return x² or x³ by multiplication: within one rounding of pow, and many times faster."""
    base = wide(x)
    square = xp.multiply(base, base)
    return narrow(square if power == 2 else xp.multiply(square, base), x.dtype)


def _integer_power(xp: Any, x: Array, y: Array) -> Array:
    if is_float(y.dtype) or (y.dtype.kind == "i" and y.size and bool((y < 0).any())):
        return xp.power(x.astype(FLOAT64), y.astype(FLOAT64))
    return xp.power(x, y.astype(x.dtype)) if y.dtype.kind == "u" else xp.power(x.astype("int64"), y)


@op("Mod", 10, 13, 28, infer=content.modulo_type)
def mod(call: Call, a: Array, b: Array, *, fmod: int = 0) -> Array:
    """The remainder, with the sign of b, or with ``fmod`` the sign of a (ONNX Mod-28).

    An integer modulo 0 is 0 (undefined in ONNX).
    """
    remainder = call.xp.fmod if fmod else call.xp.remainder
    return narrow(remainder(wide(a), wide(b)), a.dtype)


for _name, _evaluate in (("Add", add), ("Sub", sub), ("Mul", mul), ("Div", div)):
    op(_name, 1, 6, infer=broadcast_old)(one_sided(_evaluate))
op("Pow", 1, infer=broadcast_old)(one_sided(pow_))


# ---- many inputs --------------------------------------------------------------------------------------


@op("Max", 1, 6, 8, 12, 13, infer=content.max_type)
def max_(call: Call, *inputs: Array, consumed_inputs: Any = None) -> Array:
    """The largest of the inputs; NaN wins (ONNX Max-13)."""
    return reduce(call.xp.maximum, inputs)


@op("Min", 1, 6, 8, 12, 13, infer=content.min_type)
def min_(call: Call, *inputs: Array, consumed_inputs: Any = None) -> Array:
    """The smallest of the inputs; NaN wins (ONNX Min-13)."""
    return reduce(call.xp.minimum, inputs)


@op("Sum", 1, 6, 8, 13, infer=content.sum_type)
def sum_(call: Call, *inputs: Array, consumed_inputs: Any = None) -> Array:
    """The sum of the inputs from left to right; narrow floats round once (ONNX Sum-13)."""
    return narrow(reduce(call.xp.add, map(wide, inputs)), inputs[0].dtype)


@op("Mean", 1, 6, 8, 13, infer=broadcast)
def mean(call: Call, *inputs: Array, consumed_inputs: Any = None) -> Array:
    """The mean of the inputs; narrow floats round once (ONNX Mean-13)."""
    return narrow(reduce(call.xp.add, map(wide, inputs)) / len(inputs), inputs[0].dtype)


# ---- Clip ---------------------------------------------------------------------------------------------


@op("Clip", 11, 12, 13, infer=same_as_first)
def clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """min(max(x, low), high), so ``high`` wins where low > high; NaN stays NaN (ONNX Clip-13).

    A missing bound is the lowest or the largest finite number of the dtype, so that ±Inf become finite.
    """
    xp = call.xp
    low, high = (
        xp.asarray(limit, dtype=x.dtype) if bound is None else bound.reshape(())
        for bound, limit in zip((low, high), limits(x.dtype), strict=True)
    )
    return xp.minimum(xp.maximum(x, low), high)


@op("Clip", 1, 6, infer=same_as_first)
def clip_old(
    call: Call,
    x: Array,
    *,
    min: float = single(-3.40282347e38),
    max: float = single(3.40282347e38),
    consumed_inputs: Any = None,
) -> Array:
    """Clip with the bounds as attributes (ONNX Clip-6)."""
    low, high = (call.xp.asarray(bound, dtype=x.dtype) for bound in (min, max))
    return clip(call, x, low, high)
