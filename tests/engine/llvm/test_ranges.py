"""What constants tell of expressions, and the shorter code that follows from it: the same numbers."""

import math
from typing import Any

import numpy as np
import pytest

from graphdoc.engine.device.llvm.compiler import host_target
from graphdoc.engine.device.llvm.ranges import bounds, ordered, rounded_from, within
from graphdoc.engine.expr import F32, I8, I32, U8, Expr, apply, cast, const, evaluate, load
from graphdoc.engine.lower_quantize import dequantised, quantised, rescaled
from tests.engine.llvm.test_scalar import PLAIN, SPECIAL, compute

X = load(0, F32)
CODES = [np.dtype(t) for t in (np.uint8, np.int8, np.uint16, np.int16)]


def f(value: float) -> Expr:
    return const(value, F32)


def clamped(low: float, high: float) -> Expr:
    """Return x between two numbers, the lower one for NaN."""
    larger = apply("select", apply("lt", f(low), X), X, f(low))
    return apply("min", larger, f(high))


def test_arithmetic_of_bounded_numbers_is_bounded() -> None:
    """As float32 rounds it; what might be infinite or NaN is not told."""
    y = clamped(-2, 3)
    assert bounds(apply("mul", y, f(-0.5))) == (-1.5, 1)
    assert bounds(apply("sub", y, y)) == (-5, 5)
    assert bounds(apply("add", y, f(0.1))) == (
        float(np.float32(-2) + np.float32(0.1)),
        float(np.float32(3.1)),
    )
    assert bounds(apply("div", y, f(0.3)))[1] == float(np.float32(3) / np.float32(0.3))
    assert bounds(apply("div", y, y)) == (-math.inf, math.inf)
    assert bounds(apply("add", y, X)) == (-math.inf, math.inf)
    assert bounds(apply("mul", clamped(0, 3e38), f(9))) == (0, math.inf)


def test_integers_keep_their_bounds_while_they_hold() -> None:
    """A sum that might wrap may be anything, and so may what does not fit."""
    q = cast(apply("rint", clamped(-9.4, 300)), I32)
    assert bounds(q) == (-9, 300)
    assert bounds(apply("add", q, const(9, I32))) == (0, 309)
    assert bounds(apply("add", q, const(2**31 - 100, I32))) == (-(2**31), 2**31 - 1)
    assert bounds(cast(q, U8)) == (0, 255)
    assert bounds(cast(load(0, I8), F32)) == (-128, 127)
    assert within(q, np.dtype(np.int16))
    assert not within(q, U8)


def test_what_is_surely_a_number() -> None:
    y = clamped(-2, 3)
    assert ordered(y)
    assert ordered(apply("div", apply("mul", y, f(7)), f(3)))
    assert not ordered(apply("min", X, f(3)))
    assert not ordered(apply("select", apply("lt", X, f(3)), X, f(3)).args[1])
    assert not ordered(apply("sub", clamped(0, math.inf), clamped(0, math.inf)))
    assert not ordered(apply("div", y, y))


def test_what_was_an_integer_only_in_between() -> None:
    """A shift that the narrow dtype holds is seen through; one that it does not hold is none."""
    q = apply("add", cast(apply("rint", clamped(-100, 155)), I32), const(100, I32))
    assert rounded_from(cast(cast(q, U8), F32)) == (clamped(-100, 155), 100)
    assert rounded_from(cast(cast(q, I8), F32)) is None
    assert rounded_from(cast(load(0, U8), F32)) is None
    assert rounded_from(cast(cast(apply("rint", X), I32), F32)) is None


def around(numbers: Any) -> Any:
    """Return float32 numbers and their neighbours."""
    found = [np.asarray(numbers, np.float32)]
    for way in (np.float32(-np.inf), np.float32(np.inf)):
        x = found[0]
        for _ in range(5):
            x = np.nextafter(x, way)
            found.append(x)
    return np.concatenate(found)


@pytest.mark.parametrize("target", [host_target(), PLAIN], ids=["host", "plain"])
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(
    "scale", [0.1, 1 / 3, 0.0235, 7.77e-5, 1.9999999, 1.0000001, 0.5, 2.0**-61, 3e-39, 123.456, 1e30]
)
def test_quantised_by_constants(scale: float, dtype: Any, target: Any) -> None:
    """Every number next to where two codes meet, and those past the ends, NaN and infinities."""
    info = np.iinfo(dtype)
    middles = (
        np.arange(-300.5, 300)
        if dtype.itemsize == 1
        else np.linspace(-70_000.5, 69_999.5, 1001).round() + 0.5
    )
    s = np.float32(scale)
    with np.errstate(all="ignore"):
        x = np.concatenate([around(middles.astype(np.float32) * s), SPECIAL.astype(np.float32)])
        for zero in (info.min, (info.min + info.max) // 2, info.max):
            codes = np.clip(np.rint(x / s) + np.float32(zero), info.min, info.max)
            wanted = np.where(np.isnan(x), info.min, codes).astype(dtype)
            root = quantised(X, f(scale), const(zero, dtype), dtype)
            np.testing.assert_array_equal(evaluate([root], {0: x}, x.shape)[0], wanted)
            (got,) = compute([root], [x], 8, target, target if target is PLAIN else None)
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("constant", [False, True])
def test_codes_that_are_floats_again_at_once(dtype: Any, constant: bool) -> None:
    """No code need be made in between; zeros are +0, as those of integers."""
    info = np.iinfo(dtype)
    x = np.concatenate([np.linspace(-9, 9, 999), SPECIAL]).astype(np.float32)
    for zero in (info.min, (info.min + info.max) // 2, info.max):
        z = const(zero, dtype) if constant else load(1, dtype)
        code = quantised(X, f(0.07), z, dtype)
        root = dequantised(code, f(0.07), z, F32)
        inputs = [x] if constant else [x, np.full(x.shape, zero, dtype)]
        with np.errstate(all="ignore"):
            (wanted,) = evaluate([root], dict(enumerate(inputs)), x.shape)
        (got,) = compute([root], inputs, 8, host_target())
        np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))


def test_rescaled_saturates_at_both_ends() -> None:
    """Numbers far outside, and the least code for NaN."""
    x = np.float32([-1e30, -128.5, -127.5, 0.5, 1.5, 127.49, 127.5, 1e30, np.nan, np.inf, -np.inf])
    root = rescaled(X, const(0, np.dtype(np.int8)), np.dtype(np.int8))
    (got,) = compute([root], [x], 8, host_target())
    np.testing.assert_array_equal(got, [-128, -128, -128, 0, 2, 127, 127, 127, -128, 127, -128])
