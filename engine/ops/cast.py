"""Cast, CastLike, BitCast: every dtype of ONNX into every other."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops import content
from graphdoc.engine.ops.dtypes import FLOAT8, FLOAT32, FLOAT64, STRING, DType, from_code, is_float, limits
from graphdoc.engine.ops.host import strings, to_host
from graphdoc.engine.ops.precision import narrow
from graphdoc.engine.ops.table import MAX_ELEMENTS, Array, Call, TensorType, op

_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_INT64 = np.dtype(np.int64)
_TINY_INTEGERS = {
    np.dtype(tiny): np.dtype(byte)
    for tiny, byte in (
        (ml_dtypes.int2, np.int8),
        (ml_dtypes.int4, np.int8),
        (ml_dtypes.uint2, np.uint8),
        (ml_dtypes.uint4, np.uint8),
    )
}
_TINY_FLOATS = {
    *FLOAT8,
    _E8M0,
    *map(np.dtype, (ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)),
}
_ROUNDED_BY_SINGLE = {np.dtype(ml_dtypes.bfloat16), *_TINY_FLOATS}
"""Dtypes that are reached through float32: ml_dtypes before 0.7 rounds float64 twice on that way."""


def convert(xp: Any, x: Array, dtype: DType, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """Return the elements of x in another dtype, as ONNX Cast-28 converts them.

    * Floats to integers truncate toward zero; outside the range the result is the machine's (undefined).
    * Integers to narrower integers keep the low bits; to floats they round to nearest, ties to even.
    * float8 results stop at the largest finite number when ``saturate`` holds, else become NaN or Inf.
    * float8e8m0 holds powers of two: ``round_mode`` is up, down or nearest (ties up); NaN for x < 0.
    * Strings are read as numbers, "INF", "-INF" and "NaN" in any case; floats are written with eight
      significant digits, bool as 0 and 1.

    Raises ValueError for a text that is not a number.
    """
    if x.dtype == dtype:
        return x
    if x.dtype == STRING:
        return xp.asarray(_read(x, dtype))
    if dtype == STRING:
        return _write(to_host(x))
    x = _plain(x)
    if dtype == _E8M0:
        return _powers_of_two(xp, _single(xp, x), saturate, round_mode)
    if dtype in FLOAT8 and saturate:
        limit = float(limits(dtype)[1])
        return xp.minimum(xp.maximum(_single(xp, x), -limit), limit).astype(dtype)
    with np.errstate(invalid="ignore"):  # numbers out of range, as above
        return (_single(xp, x) if dtype in _ROUNDED_BY_SINGLE else x).astype(dtype)


def _plain(x: Array) -> Array:
    """Return dtypes that ml_dtypes converts in its own ways as one NumPy knows, without loss."""
    if x.dtype in _TINY_INTEGERS:
        return x.astype(_TINY_INTEGERS[x.dtype])
    return x.astype(FLOAT32) if x.dtype in _ROUNDED_BY_SINGLE else x


# ---- rounding -----------------------------------------------------------------------------------------


def _single(xp: Any, x: Array) -> Array:
    """Return x in float32, rounded to odd, so that one more rounding to fewer bits is still right.

    Rounding to odd cuts off toward zero and sets the last bit when something was cut off.
    """
    if x.dtype.itemsize < FLOAT32.itemsize or x.dtype == FLOAT32:
        return narrow(x, FLOAT32)
    exact = x.astype(FLOAT64)
    near = exact.astype(FLOAT32)
    back = near.astype(FLOAT64)
    bits = near.view("uint32") - (xp.absolute(back) > xp.absolute(exact)).astype("uint32")
    return (bits | (back != exact).astype("uint32")).view(FLOAT32)


_CARRIES: dict[str, Callable[[Array], Array]] = {
    "up": lambda fraction: fraction > 0,
    "down": lambda fraction: fraction < 0,
    "nearest": lambda fraction: fraction >= 0x400000,
}
"""Whether the exponent grows, by the 23 bits behind the leading one."""


def _powers_of_two(xp: Any, x: Array, saturate: bool, round_mode: str) -> Array:
    """Return float32 as float8e8m0: the byte c stands for 2^(c − 127), 255 for NaN."""
    if round_mode not in _CARRIES:
        raise ValueError(f"round_mode is one of {', '.join(_CARRIES)}, not {round_mode!r}")
    # A factor of 2^24 makes the numbers below 2^-126 normal, so that exponent and fraction can be read off.
    small = xp.absolute(x) < 2.0**-100
    bits = xp.where(small, x * np.float32(2.0**24), x).view("uint32")
    exponent = ((bits >> 23) & 0xFF).astype("int32") - 24 * small
    code = exponent + _CARRIES[round_mode](bits & 0x7FFFFF)
    low, high = x < 2.0**-127, (code > 254) | xp.isinf(x)
    code = xp.where(low, 0 if saturate else 255, xp.where(high, 254 if saturate else 255, code))
    return xp.where(xp.isnan(x) | (x < 0), 255, code).astype("uint8").view(_E8M0)


# ---- strings ------------------------------------------------------------------------------------------


def _number(text: str, whole: bool) -> float | int:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        return int(float(text)) if whole else _refuse(text)


def _refuse(text: str) -> float:
    raise ValueError(f"the text {text!r} is not a number")


def _read(x: Array, dtype: DType) -> np.ndarray[Any, Any]:
    """Return texts as numbers."""
    whole = not (is_float(dtype) or dtype in _TINY_FLOATS)
    numbers = [_number(text, whole) for text in x.reshape(-1)]
    if not whole:
        return np.asarray(convert(np, np.array(numbers, dtype=FLOAT64), dtype)).reshape(x.shape)
    if dtype.kind == "b":
        return np.array([number != 0 for number in numbers], dtype=dtype).reshape(x.shape)
    wrapped = np.array([number & 0xFFFFFFFFFFFFFFFF for number in map(int, numbers)], dtype=np.uint64)
    return np.asarray(convert(np, wrapped.view(_INT64), dtype)).reshape(x.shape)


_SPECIAL = {"inf": "INF", "-inf": "-INF", "nan": "NaN", "-nan": "NaN"}


def _write(x: Array) -> Array:
    """Return numbers as texts."""
    if x.dtype.kind == "b" or x.dtype in _TINY_INTEGERS:
        x = x.astype(np.int8)
    if x.dtype.kind in "iu":
        return strings([str(item) for item in x.reshape(-1).tolist()], x.shape)
    texts = (f"{item:.8g}" for item in x.astype(FLOAT64).reshape(-1).tolist())
    return strings([_SPECIAL.get(text, text) for text in texts], x.shape)


# ---- operators ----------------------------------------------------------------------------------------


def _cast_type(call: Call, x: TensorType, *, to: int | str, **_: Any) -> TensorType:
    code = ir.DataType[to.upper()] if isinstance(to, str) else to
    return content.cast_type(x, TensorType(call.real(from_code(code)), x.shape))


def _bits_type(call: Call, x: TensorType, *, to: int) -> TensorType:
    return TensorType(call.real(from_code(to)), x.shape)


def _cast_like_type(
    call: Call, x: TensorType, like: TensorType, *, saturate: int = 1, round_mode: str = "up"
) -> TensorType:
    if x.value is not None and like.dtype is not None and x.value.size <= MAX_ELEMENTS:
        dtype = call.real(like.dtype)
        made = convert(np, x.value, dtype, saturate=bool(saturate), round_mode=round_mode)
        return TensorType(like.dtype, x.shape, np.asarray(made))
    return content.cast_type(x, TensorType(like.dtype, x.shape))


@op("Cast", 6, 9, 13, 19, 21, 23, 24, 25, 28, infer=_cast_type)
def cast(call: Call, x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in the dtype of a TensorProto code, by the rules of :func:`convert` (ONNX Cast-28)."""
    dtype = call.real(from_code(to))
    return convert(call.xp, x, dtype, saturate=bool(saturate), round_mode=round_mode)


@op("Cast", 1, infer=_cast_type)
def cast_1(call: Call, x: Array, *, to: str) -> Array:
    """Cast whose target is the name of a dtype, such as FLOAT (ONNX Cast-1)."""
    return cast(call, x, to=ir.DataType[to.upper()])


@op("CastLike", 15, 19, 21, 23, 24, 25, infer=_cast_like_type)
def cast_like(call: Call, x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in the dtype of another tensor, by the rules of :func:`convert` (ONNX CastLike-25)."""
    return convert(call.xp, x, like.dtype, saturate=bool(saturate), round_mode=round_mode)


@op("BitCast", 26, infer=_bits_type)
def bit_cast(call: Call, x: Array, *, to: int) -> Array:
    """The bits of x read as another dtype of the same width (ONNX BitCast-26).

    In truth mode float32 is held as float64: its bits are those of the float32 it stands for.
    Raises ValueError when the widths differ, or for 16 bits in truth mode, where it is not known whether
    the model has float16 or bfloat16.
    """
    target = ir.DataType(to)
    if STRING in (x.dtype, target.numpy()):
        raise ValueError("strings have no bits to cast")
    if call.truth and x.dtype == FLOAT64 and target.bitwidth == FLOAT32.itemsize * 8:
        x = x.astype(FLOAT32)
    if ir.DataType.from_numpy(x.dtype).bitwidth != target.bitwidth:
        raise ValueError(f"{x.dtype} and {target.numpy()} do not have the same width")
    return call.xp.ascontiguousarray(x).reshape(x.shape).view(target.numpy())
