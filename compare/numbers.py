"""Numbers as people read them: 2 significant digits for errors, counts exact and in groups of three."""

import math
from decimal import ROUND_HALF_UP, Context, Decimal

UNKNOWN = "–"


def number(value: float | None, digits: int = 2) -> str:
    """Return a value with ``digits`` significant digits: 0.81, 826, 9.8e-4, 0, inf, nan, –.

    Between 1e-3 and 1e5 it is written out, whole numbers in full; a tie is rounded away from zero.
    """
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "nan"
    sign = "−" if value < 0 else ""
    size = abs(value)
    return sign + (_finite(size, digits) if math.isfinite(size) else "inf")


def _finite(size: float, digits: int) -> str:
    if size == 0:
        return "0"
    if size >= 10**digits and size < 1e5:
        return group(int(Decimal(size).to_integral_value(ROUND_HALF_UP)))
    rounded = Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(size))
    exponent = rounded.adjusted()
    if size < 1e-3 or size >= 1e5:
        mantissa = rounded.scaleb(-exponent)
        return f"{mantissa:.{digits - 1}f}e{exponent}"
    return f"{rounded:.{max(0, digits - 1 - exponent)}f}"


def group(count: int) -> str:
    """Return a count in groups of three: 65 504."""
    return f"{count:,}".replace(",", " ")


def times(ratio: float | None) -> str:
    """Return a ratio: 826 ×, 0.88 ×."""
    return UNKNOWN if ratio is None else f"{number(ratio)} ×"
