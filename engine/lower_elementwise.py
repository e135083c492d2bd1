"""Element-wise operators → expressions: each means what its row in ``engine/ops`` computes.

Arithmetic and comparison compute in the dtype of the inputs; functions of one float compute float16 and
bfloat16 in float32 and round once, as level 0 does.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from graphdoc.engine.expr import BF16, BOOL, DTYPES, F16, F32, F64, Dtype, Expr, apply, cast, const
from graphdoc.engine.lower import NotLowered, Site, content, lowering
from graphdoc.engine.ops.dtypes import from_code, limits, single
from graphdoc.engine.program import View

Build: TypeAlias = Callable[..., Expr]

_NARROW = (F16, BF16)
_FLOATS = (F16, BF16, F32, F64)


def wide_dtype(dtype: Dtype) -> Dtype:
    """Return float32 for float16 and bfloat16, every other dtype unchanged."""
    return F32 if dtype in _NARROW else dtype


def wide(x: Expr) -> Expr:
    """Return the expression in the dtype to compute in."""
    return cast(x, wide_dtype(x.dtype))


def like(value: Any, x: Expr) -> Expr:
    """Return a constant of the dtype of an expression."""
    return const(value, x.dtype)


def elementwise(*names: str, since: int = 1, dtypes: Sequence[Dtype] = DTYPES) -> Callable[[Build], Build]:
    """Register ``build(*elements, **attributes)`` for operators, computed in the dtypes of the inputs."""
    return _register(names, since, dtypes, lambda build: build)


def function(*names: str, since: int = 1) -> Callable[[Build], Build]:
    """Register ``build(x, **attributes)`` of one float, computed wide and rounded once."""

    def widened(build: Build) -> Build:
        return lambda x, **attributes: cast(build(wide(x), **attributes), x.dtype)

    return _register(names, since, _FLOATS, widened)


def _register(
    names: Sequence[str], since: int, dtypes: Sequence[Dtype], around: Callable[[Build], Build]
) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        whole = around(build)

        def lower(at: Site, *inputs: View, consumed_inputs: Any = None, **attributes: Any) -> View:
            if any(x.dtype not in dtypes for x in inputs):
                raise NotLowered(f"dtype {inputs[0].dtype}")
            return at.map(lambda *xs: whole(*xs, **attributes), *inputs)

        lowering(*names, since=since)(lower)
        return build

    return register


# ---- operations that have a name of their own ---------------------------------------------------------

_UNARY = {
    "Abs": "abs",
    "Neg": "neg",
    "Sqrt": "sqrt",
    "Exp": "exp",
    "Log": "log",
    "Sign": "sign",
    "Ceil": "ceil",
    "Floor": "floor",
    "Round": "rint",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tanh": "tanh",
}
_ANY_NUMBER = {"Abs", "Neg", "Sign"}
_BINARY = {
    "Add": ("add", 7),
    "Sub": ("sub", 7),
    "Mul": ("mul", 7),
    "Div": ("div", 7),
    "Equal": ("eq", 7),
    "Less": ("lt", 7),
    "LessOrEqual": ("le", 12),
    "And": ("and", 7),
    "Or": ("or", 7),
    "Xor": ("xor", 7),
    "BitwiseAnd": ("and", 18),
    "BitwiseOr": ("or", 18),
    "BitwiseXor": ("xor", 18),
}
_REVERSED = {"Greater": ("lt", 7), "GreaterOrEqual": ("le", 12)}


def _named(operation: str) -> Build:
    return lambda *xs: apply(operation, *xs)


def _swapped(operation: str) -> Build:
    return lambda a, b: apply(operation, b, a)


for _name, _operation in _UNARY.items():
    elementwise(_name, dtypes=DTYPES[1:] if _name in _ANY_NUMBER else _FLOATS)(_named(_operation))
for _name, (_operation, _since) in _BINARY.items():
    elementwise(_name, since=_since)(_named(_operation))
for _name, (_operation, _since) in _REVERSED.items():
    elementwise(_name, since=_since)(_swapped(_operation))
elementwise("Not", dtypes=(BOOL,))(_named("not"))
elementwise("BitwiseNot", dtypes=DTYPES[5:])(_named("not"))
elementwise("IsNaN", dtypes=_FLOATS)(_named("isnan"))
function("Erf")(_named("erf"))


@elementwise("Reciprocal", dtypes=_FLOATS)
def reciprocal(x: Expr) -> Expr:
    """1 ÷ x."""
    return apply("div", like(1, x), x)


@elementwise("IsInf", dtypes=_FLOATS)
def is_inf(x: Expr, *, detect_negative: int = 1, detect_positive: int = 1) -> Expr:
    """Whether x is an infinity of a sign that is asked for."""
    found = apply("isinf", x)
    if not detect_negative:
        found = apply("and", found, apply("lt", like(0, x), x))
    return found if detect_positive else apply("and", found, apply("lt", x, like(0, x)))


@elementwise("Where")
def where(condition: Expr, x: Expr, y: Expr) -> Expr:
    """x where the condition holds, else y."""
    return apply("select", condition, x, y)


@elementwise("BitShift", dtypes=DTYPES[9:])
def bit_shift(x: Expr, y: Expr, *, direction: str) -> Expr:
    """Unsigned x shifted by y bits."""
    return apply({"LEFT": "shl", "RIGHT": "shr"}[direction], x, y)


# ---- arithmetic ---------------------------------------------------------------------------------------


@elementwise("Mod", dtypes=DTYPES[1:])
def mod(a: Expr, b: Expr, *, fmod: int = 0) -> Expr:
    """The remainder, with the sign of b, or with ``fmod`` the sign of a."""
    return cast(apply("fmod" if fmod else "mod", wide(a), wide(b)), a.dtype)


@elementwise("Max", dtypes=DTYPES[1:])
def max_(*xs: Expr) -> Expr:
    """The largest; NaN wins."""
    return reduce(lambda a, b: apply("max", a, b), xs)


@elementwise("Min", dtypes=DTYPES[1:])
def min_(*xs: Expr) -> Expr:
    """The smallest; NaN wins."""
    return reduce(lambda a, b: apply("min", a, b), xs)


@elementwise("Sum", since=8, dtypes=_FLOATS)
def sum_(*xs: Expr) -> Expr:
    """The sum from left to right, rounded once."""
    return cast(reduce(lambda a, b: apply("add", a, b), map(wide, xs)), xs[0].dtype)


@elementwise("Mean", since=8, dtypes=_FLOATS)
def mean(*xs: Expr) -> Expr:
    """The mean, rounded once."""
    total = reduce(lambda a, b: apply("add", a, b), map(wide, xs))
    return cast(apply("div", total, like(len(xs), total)), xs[0].dtype)


@lowering("Pow", since=7)
def pow_(at: Site, x: View, y: View) -> View:
    """x to the power y; squares and cubes by multiplication, as on level 0."""
    power = content(y) if y.size == 1 and x.size > 1 else None
    exponent = None if power is None else float(power.reshape(()))
    if exponent in (2.0, 3.0):
        shape = np.broadcast_shapes(x.shape, y.shape)
        return at.map(lambda a: cast(_small_power(wide(a), int(exponent)), a.dtype), x, shape=shape)
    if x.dtype not in _FLOATS:
        raise NotLowered("integers to a power that is not 2 or 3")
    return at.map(_power, x, y)


def _small_power(x: Expr, exponent: int) -> Expr:
    square = apply("mul", x, x)
    return square if exponent == 2 else apply("mul", square, x)


def _power(x: Expr, y: Expr) -> Expr:
    if x.dtype == y.dtype:
        return cast(apply("pow", wide(x), wide(y)), x.dtype)
    return cast(apply("pow", cast(x, F64), cast(y, F64)), x.dtype)


@lowering("Clip")
def clip(
    at: Site,
    x: View,
    low: View | None = None,
    high: View | None = None,
    consumed_inputs: Any = None,
    **old: Any,
) -> View:
    """min(max(x, low), high); a missing bound is the dtype's lowest or largest finite number."""
    if at.version < 11:
        bounds = [old.get("min", single(-3.40282347e38)), old.get("max", single(3.40282347e38))]
        return at.map(lambda a: _clipped(a, *(like(b, a) for b in bounds)), x)
    ends = [b for b in (low, high) if b is not None]
    defaults = [
        None if b is not None else limit for b, limit in zip((low, high), limits(x.dtype), strict=True)
    ]

    def build(a: Expr, *given: Expr) -> Expr:
        rest = iter(given)
        return _clipped(a, *(next(rest) if d is None else like(d, a) for d in defaults))

    return at.map(build, x, *(at.reshape(b, ()) for b in ends))


def _clipped(x: Expr, low: Expr, high: Expr) -> Expr:
    return apply("min", apply("max", x, low), high)


# ---- activations --------------------------------------------------------------------------------------


@elementwise("Relu", dtypes=DTYPES[1:])
def relu(x: Expr) -> Expr:
    """max(x, 0)."""
    return apply("max", x, like(0, x))


@function("LeakyRelu")
def leaky_relu(x: Expr, *, alpha: float = single(0.01)) -> Expr:
    """x, or alpha·x below 0."""
    scaled = apply("mul", x, like(alpha, x))
    if 0 < alpha <= 1:
        return apply("max", x, scaled)
    return apply("select", apply("lt", x, like(0, x)), scaled, x)


@elementwise("PRelu", since=7, dtypes=DTYPES[1:])
def prelu(x: Expr, slope: Expr) -> Expr:
    """x, or slope·x below 0."""
    return apply("select", apply("lt", x, like(0, x)), apply("mul", x, slope), x)


@function("ThresholdedRelu")
def thresholded_relu(x: Expr, *, alpha: float = 1.0) -> Expr:
    """x above alpha, else 0."""
    return apply("select", apply("lt", like(alpha, x), x), x, like(0, x))


@function("Elu")
def elu(x: Expr, *, alpha: float = 1.0) -> Expr:
    """x, or alpha·(exp(x) − 1) below 0."""
    return apply("select", apply("lt", x, like(0, x)), apply("mul", like(alpha, x), _expm1_below(x)), x)


def _expm1_below(x: Expr) -> Expr:
    return apply("expm1", apply("min", x, like(0, x)))


_SELU = {1: (1.6732, 1.0507), 6: (1.67326319217681884765625, 1.0507009873554805)}


@lowering("Selu")
def selu(
    at: Site, x: View, *, alpha: float | None = None, gamma: float | None = None, consumed_inputs: Any = None
) -> View:
    """gamma·x, or gamma·alpha·(exp(x) − 1) at and below 0."""
    defaults = _SELU[1 if at.version < 6 else 6]
    a = single(defaults[0]) if alpha is None else alpha
    g = single(defaults[1]) if gamma is None else gamma

    def build(element: Expr) -> Expr:
        e = wide(element)
        below = apply("mul", like(a, e), _expm1_below(e))
        inner = apply("select", apply("le", e, like(0, e)), below, e)
        return cast(apply("mul", like(g, e), inner), element.dtype)

    return at.map(build, x)


@function("Sigmoid")
def sigmoid(x: Expr) -> Expr:
    """1 ÷ (1 + exp(−x))."""
    return apply("sigmoid", x)


@function("HardSigmoid")
def hard_sigmoid(x: Expr, *, alpha: float = single(0.2), beta: float = 0.5) -> Expr:
    """max(0, min(1, alpha·x + beta))."""
    line = apply("add", apply("mul", x, like(alpha, x)), like(beta, x))
    return apply("max", apply("min", line, like(1, x)), like(0, x))


@function("HardSwish")
def hard_swish(x: Expr) -> Expr:
    """x·max(0, min(1, x ÷ 6 + 0.5))."""
    return apply("mul", x, hard_sigmoid(x, alpha=1 / 6))


@function("Softplus")
def softplus(x: Expr) -> Expr:
    """ln(exp(x) + 1), without overflow."""
    rest = apply("log1p", apply("exp", apply("neg", apply("abs", x))))
    return apply("add", apply("max", x, like(0, x)), rest)


@function("Softsign")
def softsign(x: Expr) -> Expr:
    """x ÷ (1 + |x|)."""
    return apply("div", x, apply("add", like(1, x), apply("abs", x)))


@function("Mish")
def mish(x: Expr) -> Expr:
    """x·tanh(softplus(x))."""
    return apply("mul", x, apply("tanh", softplus(x)))


@function("Swish")
def swish(x: Expr, *, alpha: float = 1.0) -> Expr:
    """x·sigmoid(alpha·x)."""
    return apply("mul", x, sigmoid(x if alpha == 1 else apply("mul", x, like(alpha, x))))


_SQRT_HALF = 0.7071067811865476
_SQRT_2_OVER_PI = 0.7978845608028654


@function("Gelu")
def gelu(x: Expr, *, approximate: str = "none") -> Expr:
    """0.5·x·(1 + erf(x ÷ √2)), or its tanh form."""
    if approximate == "tanh":
        cube = apply("mul", apply("mul", x, x), x)
        inner = apply("add", x, apply("mul", like(0.044715, x), cube))
        curve = apply("tanh", apply("mul", like(_SQRT_2_OVER_PI, x), inner))
    else:
        curve = apply("erf", apply("mul", x, like(_SQRT_HALF, x)))
    return apply("mul", apply("mul", like(0.5, x), x), apply("add", like(1, x), curve))


# ---- dtypes -------------------------------------------------------------------------------------------


def _converted(at: Site, x: View, dtype: Dtype) -> View:
    if dtype not in DTYPES:
        raise NotLowered(f"dtype {dtype}")
    if dtype == BF16 and x.dtype not in (*_NARROW, F32, BOOL, DTYPES[5], DTYPES[6], DTYPES[9], DTYPES[10]):
        raise NotLowered("bfloat16 of what float32 cannot hold would be rounded twice")
    return at.cast(x, dtype)


@lowering("Cast")
def cast_(at: Site, x: View, *, to: int | str, saturate: int = 1, round_mode: str = "up") -> View:
    """x in another dtype."""
    if isinstance(to, str):
        raise NotLowered("Cast of opset 1")
    return _converted(at, x, from_code(to))


@lowering("CastLike")
def cast_like(at: Site, x: View, other: View, *, saturate: int = 1, round_mode: str = "up") -> View:
    """x in the dtype of another tensor."""
    return _converted(at, x, other.dtype)
