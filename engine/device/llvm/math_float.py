"""Functions of floats as LLVM IR: polynomials on vectors of float32, the C library lane by lane for the rest.

The C library serves float64, and of float32 tan, asin, acos, atan, sinh, cosh, fmod, and sin and cos of
numbers beyond 10^6. The coefficients are our own minimax fits (Lawson's weights over Chebyshev points, of
values with 40 digits); their relative errors, below 2^-25, hide behind the rounding of float32. NaN passes
through everything; infinities, -0.0 and subnormal numbers give what the C library gives.
"""

import math
from collections.abc import Callable
from functools import wraps
from math import inf, nan

from graphdoc.engine.device.llvm.builder import Value
from graphdoc.engine.device.llvm.lanes import Lanes, width

Function1 = Callable[[Lanes, Value], Value]


def libm(name: str) -> Callable[..., Value]:
    """Return the rule of a function of the C library, on float64, called once a lane."""

    def rule(v: Lanes, *args: Value) -> Value:
        wide = [a if width(a.type) == 64 else v.convert("fpext", a, "double") for a in args]
        result = v.each(lambda *scalars: v.fn.call(name, "double", *scalars), "double", *wide)
        return result if wide[0] is args[0] else v.convert("fptrunc", result, "float")

    return rule


def _single(function: Function1) -> Function1:
    """Let the C library's function of the same name serve float64."""
    wide = libm(function.__name__)

    @wraps(function)
    def rule(v: Lanes, x: Value) -> Value:
        return wide(v, x) if width(x.type) == 64 else function(v, x)

    return rule


# ---- comparisons ---------------------------------------------------------------------------------------


def maximum(v: Lanes, a: Value, b: Value) -> Value:
    """Return the larger; NaN if either is."""
    if _is_constant(b):
        a, b = b, a
    larger = v.larger(a, b)
    return larger if _is_constant(a) else v.select(v.compare("uno", a, a), a, larger)


def minimum(v: Lanes, a: Value, b: Value) -> Value:
    """Return the smaller; NaN if either is."""
    if _is_constant(b):
        a, b = b, a
    smaller = v.smaller(a, b)
    return smaller if _is_constant(a) else v.select(v.compare("uno", a, a), a, smaller)


def divide(v: Lanes, a: Value, b: Value) -> Value:
    """Return a ÷ b; by a constant power of 2 as a product, which is the same."""
    bits = 0 if b.name.startswith("%") else _bits(b)
    normal = 1 - 126 <= ((bits >> 52) & 0x7FF) - 1023 <= 126
    if bits & ((1 << 52) - 1) or not normal:
        return v.fn.binary("fdiv", a, b)
    return v.mul(a, math.copysign(2.0 ** (1023 - ((bits >> 52) & 0x7FF)), -(bits >> 63) + 0.5))


def sign(v: Lanes, a: Value) -> Value:
    """Return -1, 0 or 1; NaN of NaN."""
    zero = v.select(v.compare("oeq", a, 0.0), 0.0, a)
    return v.select(v.compare("ogt", a, 0.0), 1.0, v.select(v.compare("olt", a, 0.0), -1.0, zero))


def _is_constant(a: Value) -> bool:
    """Return whether a value is a number, and not NaN."""
    return not a.name.startswith("%") and not _is_nan(a)


def _is_nan(a: Value) -> bool:
    return _bits(a) & ((1 << 63) - 1) > 0x7FF << 52


def _bits(a: Value) -> int:
    """Return the bits, as float64, of a constant of float32 or float64."""
    return int(a.name.removeprefix("splat (").removesuffix(")").split()[-1][2:], 16)


# ---- remainders ----------------------------------------------------------------------------------------

remainder = libm("fmod")


def modulo(v: Lanes, a: Value, b: Value) -> Value:
    """Return what remains of a ÷ b, with the sign of b."""
    rest = remainder(v, a, b)
    other = v.op("xor", v.compare("olt", rest, 0.0), v.compare("olt", b, 0.0))
    moved = v.select(other, v.add(rest, b), rest)
    return v.select(v.compare("oeq", rest, 0.0), v.with_sign(v.number(0.0, a.type), b), moved)


# ---- exponentials --------------------------------------------------------------------------------------

_MAGIC = 1.5 * 2.0**23
"""Added to a float32 it rounds to a whole number, which then stands in the last bits."""

_ONE = 0x3F800000
_EXP = (
    0.0013813142368128382,
    0.008369419043619531,
    0.04166845683309901,
    0.16666514789117093,
    0.4999999305049203,
    1.0,
    1.0,
)
_EXPM1 = (
    0.0001984595722546974,
    0.0013941652929020006,
    0.008333391640386885,
    0.041666348703482334,
    0.16666666352372334,
    0.5000000046822062,
)

_EXP_MINUS = tuple(c * (-1) ** i for i, c in enumerate(_EXP))
_TANH = (
    0.001388245336866805,
    0.008366846905842436,
    0.04166721046539448,
    0.1666654119137938,
    0.4999999809893172,
)
"""(e^x - 1 - x) ÷ x² to 2^-26."""


def _split(v: Lanes, x: Value, low: float, high: float, sign: float = 1.0) -> tuple[Value, Value]:
    """Return k and r of x held between low and high, ± x = k · ln 2 ± r with the given sign.

    k: the last bits of an integer. ln 2 is taken off in two parts, of which the first times k is exact.
    """
    x = v.smaller(high, v.larger(low, x))
    t = v.fma(x, sign * 1.4426950408889634, _MAGIC)
    k = v.sub(t, _MAGIC)
    r = v.fma(k, -1.428606765330187e-06 * sign, v.fma(k, -0.693145751953125 * sign, x))
    return v.bits(t), r


@_single
def exp(v: Lanes, x: Value) -> Value:
    """Return e to the power x. 2^k is multiplied in two halves: the whole may exceed float32."""
    k, r = _split(v, x, -104.0, 89.0)
    half = v.op("shl", v.op("lshr", k, 1), 23)
    rest = v.sub(v.op("shl", k, 23), half)
    near = v.mul(v.polynomial(r, _EXP), v.real(v.add(half, _ONE)))
    return v.mul(near, v.real(v.add(rest, _ONE)))


def _grown(v: Lanes, x: Value, low: float, high: float) -> Value:
    """Return e to the power x, less 1; not of -0.0, nor of subnormal numbers."""
    k, r = _split(v, x, low, high)
    half = v.real(v.add(v.op("shl", k, 23), _ONE - (1 << 23)))
    part = v.fma(v.mul(r, r), v.polynomial(r, _EXPM1), r)
    result = v.fma(half, part, v.sub(half, 0.5))
    return v.add(result, result)


def _unless_small(v: Lanes, x: Value, result: Value) -> Value:
    """Return the result of a function that is the identity near 0; there, x."""
    return v.select(v.compare("olt", v.magnitude(x), 2.0**-25), x, result)


@_single
def expm1(v: Lanes, x: Value) -> Value:
    """Return e to the power x, less 1."""
    return _unless_small(v, x, _grown(v, x, -20.0, 89.0))


def sigmoid(v: Lanes, x: Value) -> Value:
    """Return 1 ÷ (1 + e^-x). Half of e^-x is computed, up to half of infinity."""
    if width(x.type) == 64:
        return v.div(1.0, v.add(libm("exp")(v, v.negated(x)), 1.0))
    k, r = _split(v, x, -89.0, 80.0, -1.0)
    half = v.mul(v.polynomial(r, _EXP_MINUS), v.real(v.add(v.op("shl", k, 23), _ONE - (1 << 23))))
    return v.div(1.0, v.fma(half, 2.0, 1.0))


# ---- logarithms ----------------------------------------------------------------------------------------

_LOG = (
    -0.07634429836892177,
    0.12761550337277672,
    -0.13160195067982755,
    0.14201762470553733,
    -0.16623356478224607,
    0.20001226667333072,
    -0.2500082105624746,
    0.33333331709694514,
)
_ROOT = 0x3F3504F3
"""The bits of the root of ½."""


def _log_of_normal(v: Lanes, x: Value, shift: Value | None = None) -> Value:
    """Return the logarithm of a positive number that is not subnormal, plus ``shift``."""
    bits = v.bits(x)
    exponent = v.op("ashr", v.sub(bits, _ROOT), 23)
    f = v.sub(v.real(v.sub(bits, v.op("shl", exponent, 23))), 1.0)
    k = v.convert("sitofp", exponent, "float")
    square = v.mul(f, f)
    small = v.fma(v.mul(square, f), v.polynomial(f, _LOG), v.mul(k, 1.428606765330187e-06))
    small = small if shift is None else v.add(small, shift)
    return v.fma(k, 0.693145751953125, v.add(f, v.fma(square, -0.5, small)))


@_single
def log(v: Lanes, x: Value) -> Value:
    """Return the natural logarithm."""
    tiny = v.compare("olt", x, 2.0**-126)
    near = _log_of_normal(v, v.select(tiny, v.mul(x, 2.0**24), x))
    near = v.sub(near, v.select(tiny, v.number(16.635532333438686, x.type), 0.0))
    near = v.select(v.compare("olt", x, inf), near, x)
    near = v.select(v.compare("olt", x, 0.0), nan, near)
    return v.select(v.compare("oeq", x, 0.0), -inf, near)


@_single
def log1p(v: Lanes, x: Value) -> Value:
    """Return the logarithm of 1 + x; what the sum rounds off is added, divided by the sum."""
    total = v.add(x, 1.0)
    lost = v.div(v.sub(x, v.sub(total, 1.0)), total)
    near = _log_of_normal(v, total, lost)
    near = v.select(v.compare("olt", v.magnitude(x), 2.0**-24), x, near)
    near = v.select(v.compare("olt", x, inf), near, x)
    near = v.select(v.compare("olt", x, -1.0), nan, near)
    return v.select(v.compare("oeq", x, -1.0), -inf, near)


# ---- powers --------------------------------------------------------------------------------------------

_LOG2 = (
    0.28291007852919625,
    0.3199050028329131,
    0.41220926933631863,
    0.5770779421963715,
    0.9617966941139161,
    2.88539008177785,
)
_EXP2 = (
    1.5201916469489984e-05,
    0.00015469291100565254,
    0.001333392258608488,
    0.009618027253823144,
    0.05550410353419739,
    0.24022651198156136,
    0.6931471807284568,
    0.9999999999616823,
)
_WIDE_MAGIC = 1.5 * 2.0**52
_WIDE_ONE = 0x3FF << 52
_WIDE_ROOT = 0x3FE6A09E667F3BCD
"""The bits of the root of ½ in float64."""


def power(v: Lanes, a: Value, b: Value) -> Value:
    """Return a to the power b as C's ``pow`` does; float32 by logarithms in float64."""
    if width(a.type) == 64:
        return libm("pow")(v, a, b)
    size, exponent = v.convert("fpext", v.magnitude(a), "double"), v.convert("fpext", b, "double")
    near = v.convert("fptrunc", _exp2(v, _times(v, exponent, _log2(v, size))), "float")
    whole = v.compare("oeq", v.intrinsic("rint", b), b)
    half = v.mul(b, 0.5)
    odd = v.op("and", whole, v.compare("one", v.intrinsic("rint", half), half))
    negative = v.op("and", v.compare("slt", v.bits(a), 0), odd)
    near = v.select(negative, v.negated(near), near)
    below = v.op("and", v.compare("olt", a, 0.0), v.compare("ogt", a, -inf))
    return v.select(v.op("and", below, v.op("xor", whole, -1)), nan, near)


def power_of(v: Lanes, a: Value, b: float, register: Value) -> Value:
    """Return a to a power that is known; ``register`` holds it."""
    if b not in _POWERS:
        return power(v, a, register)
    return _POWERS[b](v, a)


def _root(v: Lanes, a: Value) -> Value:
    """Return the square root as a power: 0.0 of -0.0, and infinity of either infinity."""
    root = v.add(v.intrinsic("sqrt", a), 0.0)
    return v.select(v.compare("oeq", a, -inf), inf, root)


_POWERS: dict[float, Function1] = {
    0.0: lambda v, a: v.number(1.0, a.type),
    1.0: lambda v, a: a,
    2.0: lambda v, a: v.mul(a, a),
    3.0: lambda v, a: v.mul(v.mul(a, a), a),
    0.5: _root,
    -0.5: lambda v, a: v.div(1.0, _root(v, a)),
    -1.0: lambda v, a: v.div(1.0, a),
}


def _times(v: Lanes, exponent: Value, logarithm: Value) -> Value:
    """Return their product; 0 if either is, for anything to the power 0, and 1 to any power, are 1."""
    none = v.op("or", v.compare("oeq", exponent, 0.0), v.compare("oeq", logarithm, 0.0))
    return v.select(none, 0.0, v.mul(exponent, logarithm))


def _log2(v: Lanes, x: Value) -> Value:
    """Return the binary logarithm of a float64 >= 0 that is not subnormal, to 2^-43."""
    bits = v.bits(x)
    raised = v.op("lshr", v.add(bits, _WIDE_ONE - _WIDE_ROOT), 52)
    m = v.real(v.add(v.sub(bits, v.op("shl", raised, 52)), _WIDE_ONE))
    k = v.sub(v.real(v.op("or", raised, 0x433 << 52)), 2.0**52 + 1023)
    s = v.div(v.sub(m, 1.0), v.add(m, 1.0))
    near = v.fma(s, v.polynomial(v.mul(s, s), _LOG2), k)
    near = v.select(v.compare("olt", x, inf), near, x)
    return v.select(v.compare("oeq", x, 0.0), -inf, near)


def _exp2(v: Lanes, x: Value) -> Value:
    """Return 2 to the power x of a float64, to 2^-34; right where float32 has numbers."""
    x = v.smaller(160.0, v.larger(-200.0, x))
    t = v.add(x, _WIDE_MAGIC)
    near = v.polynomial(v.sub(x, v.sub(t, _WIDE_MAGIC)), _EXP2)
    return v.mul(near, v.real(v.add(v.op("shl", v.bits(t), 52), _WIDE_ONE)))


# ---- angles --------------------------------------------------------------------------------------------

_SIN = (-0.00019514630822076943, 0.008332156043872236, -0.16666654536415143, 1.0)
_COS = (2.4437727816974098e-05, -0.0013887361427450916, 0.041666646747229474, -0.5, 1.0)
_FAR = 1.0e6
"""Beyond, the C library serves: π/2 in two parts of float64 is not long enough."""


@_single
def sin(v: Lanes, x: Value) -> Value:
    """Return the sine."""
    return _turned(v, x, "sin", 0)


@_single
def cos(v: Lanes, x: Value) -> Value:
    """Return the cosine."""
    return _turned(v, x, "cos", 1)


def _turned(v: Lanes, x: Value, name: str, quarters: int) -> Value:
    """Return the sine of x and so many quarter turns; whole quarters are taken off in float64."""
    near = _quarter(v, x, quarters)
    far = v.any(v.compare("ogt", v.magnitude(x), _FAR))
    return _either(v, far, lambda: libm(name)(v, x), near)


def _quarter(v: Lanes, x: Value, quarters: int) -> Value:
    wide = v.convert("fpext", x, "double")
    t = v.fma(wide, 0.6366197723675814, _WIDE_MAGIC)
    k = v.sub(t, _WIDE_MAGIC)
    rest = v.fma(k, -6.077100506506192e-11, v.fma(k, -1.57079632673412561417, wide))
    r = v.convert("fptrunc", rest, "float")
    turn = v.add(v.convert("trunc", v.bits(t), "i32"), quarters)
    z = v.mul(r, r)
    sine, cosine = v.mul(r, v.polynomial(z, _SIN)), v.polynomial(z, _COS)
    near = v.select(v.compare("ne", v.op("and", turn, 1), 0), cosine, sine)
    flipped = v.op("shl", v.op("and", turn, 2), 30)
    return v.real(v.op("xor", v.bits(near), flipped))


def _either(v: Lanes, condition: Value, rare: Callable[[], Value], usual: Value) -> Value:
    """Return what ``rare`` appends where a scalar condition holds, without cost else."""
    fn = v.fn
    fn.count += 1
    n, before = fn.count, fn.block
    fn.put(f"br {condition}, label %rare{n}, label %joined{n}")
    fn.label(f"rare{n}")
    value = rare()
    end = fn.block
    fn.put(f"br label %joined{n}")
    fn.label(f"joined{n}")
    return fn.op(f"phi {usual.type} [{value.name}, %{end}], [{usual.name}, %{before}]", usual.type)


# ---- tanh, erf -----------------------------------------------------------------------------------------

_ERF_NEAR = (
    -7.572961534696443e-06,
    0.00010393875490638527,
    -0.0008339569772603944,
    0.005209016298066124,
    -0.026860247527910483,
    0.11283675028912225,
    -0.3761263004455744,
    1.1283791659754352,
)
"""erf(x) ÷ x in x², up to 1.25."""

_ERF_FAR = (
    0.00014049061907840665,
    -0.0006037642919632588,
    0.0034616708495587914,
    0.0026193521091941313,
    0.049831800251457864,
    0.06593308527457446,
    1.0011663234665433,
)
"""(1 - erf(x)) to the power -1/16, from 1.25 on."""


@_single
def tanh(v: Lanes, x: Value) -> Value:
    """Return the hyperbolic tangent, g ÷ (g + 2) with g = e^2x - 1; -0.0 gets its sign back.

    ln 2 in one part serves: where many of it are taken off, the result is 1 but for a little.
    """
    near = v.smaller(10.0, v.larger(-10.0, x))
    t = v.fma(near, 2 * 1.4426950408889634, _MAGIC)
    r = v.fma(v.sub(t, _MAGIC), -0.6931471805599453, v.add(near, near))
    scale = v.real(v.add(v.op("shl", v.bits(t), 23), _ONE))
    part = v.fma(v.mul(r, r), v.polynomial(r, _TANH), r)
    g = v.fma(scale, part, v.sub(scale, 1.0))
    sign = v.op("and", v.bits(x), -(1 << 31))
    return v.real(v.op("or", v.bits(v.div(g, v.add(g, 2.0))), sign))


@_single
def erf(v: Lanes, x: Value) -> Value:
    """Return the error function."""
    size = v.smaller(3.95, v.magnitude(x))
    near = v.mul(size, v.polynomial(v.mul(size, size), _ERF_NEAR))
    power = v.polynomial(size, _ERF_FAR)
    for _ in range(4):
        power = v.mul(power, power)
    far = v.sub(v.number(1.0, x.type), v.div(1.0, power))
    return v.with_sign(v.select(v.compare("ogt", size, 1.25), far, near), x)
