"""Special functions that NumPy lacks, vectorised over the array namespace."""

from typing import Any, NamedTuple

from graphdoc.engine.ops.dtypes import FLOAT64
from graphdoc.engine.ops.table import Array


class _Erf(NamedTuple):
    """Coefficients of erf for one precision, highest power first.

    small: erf(x) ÷ x as a polynomial in x², for |x| ≤ 1.
    large: exp(x²)·erfc(x) as a polynomial in (x − centre) ÷ (x + centre), for 1 ≤ x ≤ limit.
    limit: from here on erf rounds to 1.

    Both are Chebyshev fits made with 50 digits; their errors lie below a tenth of the last place.
    """

    limit: float
    centre: float
    small: tuple[float, ...]
    large: tuple[float, ...]


_SINGLE = _Erf(
    limit=4.0,
    centre=2.0,
    small=(
        7.875874871388078e-05,
        -0.000801686430349946,
        0.005189087241888046,
        -0.02685421146452427,
        0.11283594369888306,
        -0.3761262595653534,
        1.1283791065216064,
    ),
    large=(
        -0.0008379754144698381,
        0.006811140105128288,
        0.0037323718424886465,
        -0.07896830886602402,
        0.24165819585323334,
        -0.427185982465744,
        0.25539568066596985,
    ),
)
_DOUBLE = _Erf(
    limit=6.0,
    centre=3.0,
    small=(
        -7.795898827002142e-10,
        1.3720064546777686e-08,
        -1.6208483801871705e-07,
        1.6447424703317362e-06,
        -1.492473690741966e-05,
        0.00012055294904839707,
        -0.0008548325975389692,
        0.0052239776071164225,
        -0.02686617064323777,
        0.11283791670945006,
        -0.37612638903183543,
        1.1283791670955126,
    ),
    large=(
        1.2801900862962662e-06,
        2.023603179641757e-06,
        -8.008021319412685e-06,
        -1.284889451252353e-05,
        6.406182073530546e-05,
        4.525472635483354e-05,
        -0.0005970623517093284,
        0.0007077464443901538,
        0.004269136347508256,
        -0.024392499318273194,
        0.07166583719774874,
        -0.15011593650078744,
        0.24560380171233195,
        -0.32623356004303716,
        0.17900115118138996,
    ),
)


def polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Evaluate a polynomial of degree ≥ 1 by Horner's rule; coefficients from the highest power down."""
    result = x * coefficients[0]
    result += coefficients[1]
    for coefficient in coefficients[2:]:
        result *= x
        result += coefficient
    return result


def erf(xp: Any, x: Array) -> Array:
    """Return the error function of float32 or float64 x, within three units of its last place.

    erf(±0) is ±0, erf(±Inf) is ±1, NaN stays NaN (ONNX Erf-13).
    """
    table = _DOUBLE if x.dtype == FLOAT64 else _SINGLE
    size = xp.minimum(xp.absolute(x), table.limit).reshape(-1)
    square = size * size
    result = polynomial(square, table.small)
    result *= size
    far = xp.flatnonzero(~(size < 1))  # few in most layers, and dearer; NaN is among them
    if far.size:
        result[far] = _far(xp, size[far], square[far], table)
    return xp.copysign(result.reshape(x.shape), x)


def _far(xp: Any, size: Array, square: Array, table: _Erf) -> Array:
    """Return erf from 1 on."""
    tail = polynomial((size - table.centre) / (size + table.centre), table.large)
    tail *= xp.exp(xp.negative(square))
    return 1 - tail
