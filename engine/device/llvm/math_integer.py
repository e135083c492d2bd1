"""Integer arithmetic that neither traps nor depends on the processor: division, remainder, powers, shifts.

A division by zero gives 0, as does a remainder; the smallest integer divided by -1 is itself.
"""

from collections.abc import Callable

from graphdoc.engine.device.llvm.builder import Value, parts
from graphdoc.engine.device.llvm.lanes import Lanes, width


def divide(v: Lanes, a: Value, b: Value) -> Value:
    """Return a ÷ b of signed integers, truncated."""
    if _safe(b):
        return v.op("sdiv", a, b)
    zero, wraps = v.compare("eq", b, 0), v.compare("eq", b, -1)
    quotient = _quotient(v, a, v.select(v.op("or", zero, wraps), 1, b), signed=True)
    return v.select(zero, 0, v.select(wraps, v.negated(a), quotient))


def divide_unsigned(v: Lanes, a: Value, b: Value) -> Value:
    """Return a ÷ b of unsigned integers, truncated."""
    if _safe(b):
        return v.op("udiv", a, b)
    zero = v.compare("eq", b, 0)
    return v.select(zero, 0, _quotient(v, a, v.select(zero, 1, b), signed=False))


def remainder(v: Lanes, a: Value, b: Value) -> Value:
    """Return what division leaves, with the sign of a."""
    rest = v.sub(a, v.mul(divide(v, a, b), b))
    return v.select(v.compare("eq", b, 0), 0, rest)


def remainder_unsigned(v: Lanes, a: Value, b: Value) -> Value:
    """Return what division of unsigned integers leaves."""
    rest = v.sub(a, v.mul(divide_unsigned(v, a, b), b))
    return v.select(v.compare("eq", b, 0), 0, rest)


def modulo(v: Lanes, a: Value, b: Value) -> Value:
    """Return the remainder with the sign of b."""
    rest = remainder(v, a, b)
    other = v.compare("slt", v.op("xor", rest, b), 0)
    wrong = v.op("and", other, v.compare("ne", rest, 0))
    return v.select(wrong, v.add(rest, b), rest)


def sign(v: Lanes, a: Value) -> Value:
    """Return -1, 0 or 1."""
    return v.op(
        "or", v.op("ashr", a, width(a.type) - 1), v.convert("zext", v.compare("sgt", a, 0), _element(a))
    )


def sign_unsigned(v: Lanes, a: Value) -> Value:
    """Return 0 or 1."""
    return v.convert("zext", v.compare("ne", a, 0), _element(a))


def power_unsigned(v: Lanes, a: Value, b: Value) -> Value:
    """Return a to the power b >= 0, wrapped, by repeated squaring."""
    one = v.number(1, a.type)
    with v.fn.loop(0, width(a.type), carry=(one, a, b)) as (_, carried):
        result, square, left = carried
        odd = v.compare("ne", v.op("and", left, 1), 0)
        carried[:] = [v.mul(result, v.select(odd, square, 1)), v.mul(square, square), v.op("lshr", left, 1)]
    return carried[0]


def power(v: Lanes, a: Value, b: Value) -> Value:
    """Return a to the power b, wrapped; of b < 0 the truncated quotient, 0 where a is 0."""
    odd = v.select(v.compare("ne", v.op("and", b, 1), 0), a, 1)
    unit = v.compare("ule", v.add(a, 1), 2)  # -1, 0, 1
    below = v.select(unit, v.select(v.compare("eq", a, 0), 0, odd), 0)
    return v.select(v.compare("slt", b, 0), below, power_unsigned(v, a, b))


def shift(name: str) -> Callable[[Lanes, Value, Value], Value]:
    """Return the rule of a shift: 0 where b is not below the width."""

    def shifted(v: Lanes, a: Value, b: Value) -> Value:
        fits = v.compare("ult", b, width(a.type))
        return v.select(fits, v.op(name, a, v.select(fits, b, 0)), 0)

    return shifted


def _element(a: Value) -> str:
    return parts(a.type)[0]


def _safe(b: Value) -> bool:
    """Return whether a divisor is a constant that neither traps nor overflows; LLVM then multiplies."""
    text = b.name.removeprefix("splat (").removesuffix(")").split()[-1]
    return text.lstrip("-").isdigit() and text not in ("0", "-1")


def _quotient(v: Lanes, a: Value, b: Value, *, signed: bool) -> Value:
    """Divide by what neither traps nor overflows; up to 32 bits as floats, many of which are divided at once.

    The quotient of two numbers of n bits lies at least 2^-n of itself below the next integer, which a float
    of more bits does not round away.
    """
    bits = width(a.type)
    if bits == 64 or v.count == 1:
        return v.op("sdiv" if signed else "udiv", a, b)
    real = "float" if bits < 32 else "double"
    up, down = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    quotient = v.convert(down, v.div(v.convert(up, a, real), v.convert(up, b, real)), "i32")
    return quotient if bits == 32 else v.convert("trunc", quotient, _element(a))
