"""Derivatives of element-wise operators beyond the arithmetic of gradient.py; a rule's form stands there."""

from typing import Any

from graphdoc.engine.ops.dtypes import is_float, single
from graphdoc.engine.ops.gradient import as_input, derivative
from graphdoc.engine.ops.special import erf
from graphdoc.engine.ops.table import Array, Call

TWO_OVER_ROOT_PI = 1.1283791670955126
ROOT_HALF = 0.7071067811865476
OVER_ROOT_TWO_PI = 0.3989422804014327
ROOT_TWO_OVER_PI = 0.7978845608028654
CUBIC = 0.044715
"""Of Gelu's tanh form."""


# ---- one input -----------------------------------------------------------------------------------------


@derivative("Abs")
def absolute(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d|x| = sign(x) dx; 0 at 0."""
    return (dy * call.xp.sign(x),)


@derivative("Reciprocal")
def reciprocal(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(1/x) = −dx / x²."""
    return (-dy * y * y,)


@derivative("Sin")
def sin(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(sin x) = cos x dx."""
    return (dy * call.xp.cos(x),)


@derivative("Cos")
def cos(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(cos x) = −sin x dx."""
    return (-dy * call.xp.sin(x),)


@derivative("Erf")
def error_function(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(erf x) = 2 exp(−x²) / √π dx."""
    return (dy * x.dtype.type(TWO_OVER_ROOT_PI) * call.xp.exp(-x * x),)


@derivative("Gelu")
def gelu(call: Call, dy: Array, x: Array, y: Array, *, approximate: str = "none") -> tuple[Array]:
    """d(x Φ(x)) = (Φ(x) + x φ(x)) dx, or the derivative of the tanh form."""
    xp, kind = call.xp, x.dtype.type
    if approximate == "tanh":
        t = xp.tanh(kind(ROOT_TWO_OVER_PI) * (x + kind(CUBIC) * x * x * x))
        slope = kind(ROOT_TWO_OVER_PI) * (1 + kind(3 * CUBIC) * x * x)
        return (dy * (1 + t + x * (1 - t * t) * slope) / 2,)
    phi = (1 + erf(xp, x * kind(ROOT_HALF))) / 2
    return (dy * (phi + x * kind(OVER_ROOT_TWO_PI) * xp.exp(-x * x / 2)),)


@derivative("Softplus")
def softplus(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d ln(1 + eˣ) = σ(x) dx."""
    return (dy * (1 - call.xp.exp(-y)),)


@derivative("LeakyRelu")
def leaky_relu(
    call: Call, dy: Array, x: Array, y: Array, *, alpha: float = single(0.01), **rest: Any
) -> tuple[Array]:
    """dx, times alpha below 0."""
    return (call.xp.where(x < 0, dy * x.dtype.type(alpha), dy),)


@derivative("HardSigmoid")
def hard_sigmoid(
    call: Call, dy: Array, x: Array, y: Array, *, alpha: float = single(0.2), beta: float = 0.5, **rest: Any
) -> tuple[Array]:
    """alpha dx where the line is not cut off."""
    line = x * x.dtype.type(alpha) + x.dtype.type(beta)
    return (dy * x.dtype.type(alpha) * ((line > 0) & (line < 1)),)


@derivative("HardSwish")
def hard_swish(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """(2x + 3) / 6 dx between −3 and 3, dx above, 0 below."""
    slope = call.xp.where(x >= 3, 1, call.xp.where(x > -3, x / 3 + 0.5, 0))
    return (dy * slope.astype(x.dtype),)


@derivative("Cast", "CastLike")
def cast(call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any) -> tuple[Array | None, ...]:
    """dx between floats; a change to or from whole numbers passes nothing on."""
    through = is_float(x.dtype) and is_float(rest[-1].dtype)
    return (dy.astype(x.dtype) if through else None, *(None,) * (len(rest) - 1))


# ---- several inputs ------------------------------------------------------------------------------------


@derivative("PRelu")
def prelu(call: Call, dy: Array, x: Array, slope: Array, y: Array) -> tuple[Array, Array]:
    """dx, times slope below 0; the slope's is x dy there."""
    below = x < 0
    return call.xp.where(below, dy * slope, dy), as_input(dy * x * below, slope)


@derivative("Clip")
def clip(
    call: Call,
    dy: Array,
    x: Array,
    *rest: Array,
    min: float | None = None,
    max: float | None = None,
    **attributes: Any,
) -> tuple[Array | None, ...]:
    """dx where nothing is cut off; a bound gets what it cut off."""
    low = rest[0] if len(rest) > 1 else min
    high = rest[1] if len(rest) > 2 else max
    over = call.xp.zeros(x.shape, bool) if high is None else x > high
    under = call.xp.zeros(x.shape, bool) if low is None else (x < low) & ~over
    parts = [as_input(dy * cut, bound) if hasattr(bound, "dtype") else None
             for bound, cut in ((low, under), (high, over))]  # fmt: skip
    return dy * ~(over | under), *parts[: len(rest) - 1]


@derivative("Where")
def where(call: Call, dy: Array, condition: Array, a: Array, b: Array, y: Array) -> tuple[Array | None, ...]:
    """Each side gets dy where it was chosen."""
    return None, as_input(dy * condition, a), as_input(dy * ~condition, b)


@derivative("Sum")
def add_all(call: Call, dy: Array, *values: Array, **attributes: Any) -> tuple[Array, ...]:
    """dy for each."""
    return tuple(as_input(dy, x) for x in values[:-1])


@derivative("Mean")
def mean_of_all(call: Call, dy: Array, *values: Array, **attributes: Any) -> tuple[Array, ...]:
    """dy over the number of inputs for each."""
    return tuple(as_input(dy / (len(values) - 1), x) for x in values[:-1])


@derivative("Max", "Min")
def extremum(call: Call, dy: Array, *values: Array, **attributes: Any) -> tuple[Array, ...]:
    """dy for the input that was chosen; equal ones share it."""
    *inputs, y = values
    hits = [x == y for x in inputs]
    count = call.xp.maximum(sum(hit.astype(dy.dtype) for hit in hits), 1)
    return tuple(as_input(dy * hit / count, x) for x, hit in zip(inputs, hits, strict=True))
