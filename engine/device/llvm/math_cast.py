"""Conversions between dtypes in registers, and between registers and memory.

In a register a bool is an i1, and float16 and bfloat16 are held as a float of that very value: an operation
computes in float32 and then rounds (:func:`rounded`).

Floats become integers toward zero. What lies outside is given the result of the usual x86 instructions, as
NumPy and ONNX Runtime give it there, but on every processor: the smallest int32 (int64) for int32 (int64),
its low bits for int8, int16, uint8 and uint16; for uint32 and uint64 numbers from the middle of the range on
are converted with the middle taken off, then its bit is set or cleared. NaN is outside.
"""

import numpy as np

from graphdoc.engine.device.llvm.builder import Value, integer, mangled, parts, scalar, vector
from graphdoc.engine.device.llvm.lanes import Lanes, is_float, width
from graphdoc.engine.expr import BF16, BOOL, F16, Dtype

_IN_REGISTER = {"bool": "i1", "float16": "float", "bfloat16": "float"}


def register(dtype: Dtype) -> str:
    """Return the type that one element of the dtype has in a register."""
    return _IN_REGISTER.get(dtype.name) or scalar(dtype)


def is_signed(dtype: Dtype) -> bool:
    """Return whether an integer dtype has a sign."""
    return dtype.kind == "i"


# ---- memory ⇄ register ---------------------------------------------------------------------------------


def from_memory(v: Lanes, a: Value, dtype: Dtype, native: bool) -> Value:
    """Return what was loaded as it is held in a register; what is one already stays.

    native: whether the processor converts float16.
    """
    if parts(a.type)[0] == register(dtype):
        return a
    if dtype == BOOL:
        return v.compare("ne", a, 0)
    if dtype == BF16:
        wide = v.convert("zext", v.bits(a), "i32")
        return v.real(v.op("shl", wide, 16))
    return v.convert("fpext", a, "float") if native else _from_half(v, v.convert("zext", v.bits(a), "i32"))


def to_memory(v: Lanes, a: Value, dtype: Dtype, native: bool) -> Value:
    """Return a register's value as memory holds it."""
    if parts(a.type)[0] == scalar(dtype):
        return a
    if dtype == BOOL:
        return v.convert("zext", a, "i8")
    if dtype == F16 and native:
        return v.convert("fptrunc", a, "half")
    bits = v.op("lshr", v.bits(a), 16) if dtype == BF16 else _to_half(v, a)
    return v.convert("bitcast", v.convert("trunc", bits, "i16"), scalar(dtype))


def _from_half(v: Lanes, bits: Value) -> Value:
    """Return the float of float16's bits (as i32): shifted, it lacks a factor of 2^112."""
    magnitude = v.op("and", bits, 0x7FFF)
    value = v.mul(v.real(v.op("shl", magnitude, 13)), 2.0**112)
    special = v.op("or", v.bits(value), 0x7F800000)
    value = v.select(v.compare("sge", magnitude, 0x7C00), v.real(special), value)
    sign = v.op("shl", v.op("and", bits, 0x8000), 16)
    return v.real(v.op("or", v.bits(value), sign))


def _to_half(v: Lanes, a: Value) -> Value:
    """Return float16's bits (as i32) of a float that is a float16 already."""
    bits = v.bits(a)
    size = v.op("and", bits, 0x7FFFFFFF)
    normal = v.sub(v.op("lshr", size, 13), 112 << 10)
    tiny = v.sub(v.bits(v.add(v.real(size), 0.5)), 0x3F000000)
    special = v.op("or", v.op("and", v.op("lshr", size, 13), 0x3FF), 0x7C00)
    code = v.select(v.compare("slt", size, 0x38800000), tiny, normal)
    code = v.select(v.compare("sge", size, 0x7F800000), special, code)
    return v.op("or", code, v.op("and", v.op("lshr", bits, 16), 0x8000))


# ---- rounding ------------------------------------------------------------------------------------------


def rounded(v: Lanes, a: Value, dtype: Dtype, native: bool) -> Value:
    """Return a float32 rounded to float16 or bfloat16, ties to even, still held as a float32."""
    if dtype == F16 and native:
        return v.convert("fpext", v.convert("fptrunc", a, "half"), "float")
    return _rounded_half(v, a) if dtype == F16 else _cut(v, a, 16)


def _cut(v: Lanes, a: Value, low: int) -> Value:
    """Return a float rounded to nearest even at its bit ``low``; NaN stays."""
    bits = v.bits(a)
    odd = v.op("and", v.op("lshr", bits, low), 1)
    near = v.add(v.add(bits, (1 << (low - 1)) - 1), odd)
    near = v.op("and", near, -(1 << low))
    return v.real(v.select(v.compare("uno", a, a), v.op("or", bits, 1 << 22), near))


def _rounded_half(v: Lanes, a: Value) -> Value:
    size = v.magnitude(a)
    tiny = v.with_sign(v.sub(v.add(size, 0.5), 0.5), a)  # 0.5 has its last place where float16 has its last
    normal = v.select(v.compare("olt", size, 2.0**-14), tiny, _cut(v, a, 13))
    infinite = v.with_sign(v.number(float("inf"), a.type), a)
    return v.select(v.compare("oge", size, 65520.0), infinite, normal)


def _to_odd(v: Lanes, a: Value) -> Value:
    """Return a float64 as float32, cut toward zero, the last bit set if that lost anything.

    One more rounding to fewer bits is then the right one.
    """
    near = v.convert("fptrunc", a, "float")
    past = v.compare("ogt", v.magnitude(v.convert("fpext", near, "double")), v.magnitude(a))
    bits = v.sub(v.bits(near), v.convert("zext", past, "i32"))
    lost = v.compare("one", v.convert("fpext", near, "double"), a)
    return v.real(v.op("or", bits, v.convert("zext", lost, "i32")))


# ---- cast ----------------------------------------------------------------------------------------------


def cast(v: Lanes, a: Value, source: Dtype, dtype: Dtype, native: bool) -> Value:
    """Return a register of one dtype in another, as NumPy's ``astype`` converts."""
    if dtype == BOOL:
        return v.compare("une" if is_float(a.type) else "ne", a, 0)
    target = register(dtype)
    if is_float(target):
        return _to_float(v, a, source, dtype, native)
    if is_float(a.type):
        return _to_integer(v, a, dtype)
    return _resized(v, a, target, is_signed(source))


def _resized(v: Lanes, a: Value, element: str, signed: bool) -> Value:
    have, want = width(a.type), width(element)
    if have == want:
        return a
    return v.convert("trunc" if want < have else "sext" if signed else "zext", a, element)


def _to_float(v: Lanes, a: Value, source: Dtype, dtype: Dtype, native: bool) -> Value:
    element = register(dtype)
    narrow = dtype in (F16, BF16)
    if not is_float(a.type):
        value = v.convert("sitofp" if is_signed(source) else "uitofp", a, element)
        fits = width(a.type) <= 8
    elif width(a.type) < width(element):
        return v.convert("fpext", a, element)
    elif width(a.type) > width(element):
        value = _to_odd(v, a) if dtype == F16 else v.convert("fptrunc", a, element)
        fits = False
    else:
        value, fits = a, source == dtype
    return rounded(v, value, dtype, native) if narrow and not fits else value


def within(v: Lanes, a: Value, dtype: Dtype, *, ordered: bool) -> Value:
    """Return a float in the range of the dtype toward zero; what NaN gives as :func:`cast` has it.

    ordered: it is not NaN.
    """
    bits = max(32, 8 * dtype.itemsize)
    known = None if ordered else v.compare("ord", a, a)
    a = a if known is None else v.select(known, a, 0.0)
    name = "fptosi" if dtype.itemsize < 4 or is_signed(dtype) else "fptoui"
    whole = v.convert(name, a, f"i{bits}")
    if dtype.itemsize < 4:
        return v.convert("trunc", whole, register(dtype))
    return whole if known is None else v.select(known, whole, -(1 << (bits - 1)))


def nearest(v: Lanes, a: Value, dtype: Dtype) -> Value:
    """Return a float32 in the range of the dtype, not NaN, as the nearest integer, ties to even."""
    if dtype.itemsize == 4 and not is_signed(dtype):
        return v.convert("fptoui", v.intrinsic("rint", a), "i32")
    kind = v.kind("i32")
    whole = v.fn.call(f"llvm.lrint.{mangled(kind)}.{mangled(a.type)}", kind, a)
    return whole if dtype.itemsize == 4 else narrowed(v, whole, dtype)


def narrowed(v: Lanes, a: Value, dtype: Dtype) -> Value:
    """Return a signed integer in the range of the dtype: with the ends named, LLVM packs by saturation."""
    element = register(dtype)
    if width(a.type) <= width(element):
        return _resized(v, a, element, signed=True)
    info = np.iinfo(dtype)
    for name, end in (("smax", info.min), ("smin", info.max)):
        a = v.intrinsic(name, a, integer(int(end), a.type))
    return v.convert("trunc", a, element)


def _to_integer(v: Lanes, a: Value, dtype: Dtype) -> Value:
    target, bits = register(dtype), 8 * dtype.itemsize
    if bits < 32:
        return v.convert("trunc", _truncated(v, a, 32), target)
    if is_signed(dtype):
        return _truncated(v, a, bits)
    upper = v.compare("oge", a, 2.0 ** (bits - 1))
    low = _truncated(v, v.select(upper, v.sub(a, 2.0 ** (bits - 1)), a), bits)
    return v.op("xor", low, v.select(upper, v.number(-(1 << (bits - 1)), vector(target, v.count)), 0))


def _truncated(v: Lanes, a: Value, bits: int) -> Value:
    """Return a float toward zero as i32 or i64; the smallest number for what does not fit."""
    fits = v.compare("olt", v.magnitude(a), 2.0 ** (bits - 1))
    whole = v.convert("fptosi", v.select(fits, a, 0.0), f"i{bits}")
    return v.select(fits, whole, -(1 << (bits - 1)))
