"""Comparison, logic, bits, NaN and Inf, Where."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engine.rows import assert_equal, on_engine, on_ort, sample

NUMBERS = (
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, ml_dtypes.bfloat16, np.float32, np.float64),
)
COMPARISONS = {
    "Equal": (19, np.equal),
    "Greater": (13, np.greater),
    "Less": (13, np.less),
    "GreaterOrEqual": (16, np.greater_equal),
    "LessOrEqual": (16, np.less_equal),
}
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
BITS = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}
SHAPES = [((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2,)), ((0, 3), (3,)), ((), ())]


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison(name: str, dtype: type) -> None:
    version, function = COMPARISONS[name]
    for shapes in SHAPES:
        a, b = (sample(i, dtype, shape, -2, 2) for i, shape in enumerate(shapes))
        want = np.asarray(function(a.astype(np.float64), b.astype(np.float64)))
        assert_equal(on_engine(name, [a, b], version), want)


def test_comparison_with_nan_and_signed_zero() -> None:
    a = np.array([math.nan, math.nan, 0.0, math.inf], np.float32)
    b = np.array([math.nan, 1.0, -0.0, math.inf], np.float32)
    for name, (version, _) in COMPARISONS.items():
        assert_equal(on_engine(name, [a, b], version), on_ort(name, [a, b], version))


@pytest.mark.parametrize("shape", [(3,), (), (0,)])
def test_strings_are_equal_or_not(shape: tuple[int, ...]) -> None:
    a = np.full(shape, "ä", dtype=object)
    b = np.array("ä", dtype=object)

    assert_equal(on_engine("Equal", [a, b], 19), np.ones(shape, bool))
    assert_equal(on_engine("Equal", [a, np.array("a", dtype=object)], 19), np.zeros(shape, bool))


@pytest.mark.parametrize("name", LOGIC)
def test_logic(name: str) -> None:
    a, b = np.array([[False], [True]]), np.array([False, True])

    assert_equal(on_engine(name, [a, b], 7), LOGIC[name](a, b))
    assert_equal(on_engine("Not", [a], 1), ~a)


def test_old_comparisons_stretch_the_second_input() -> None:
    a, b = sample(1, np.float32, (2, 3, 4)), sample(2, np.float32, (3,))

    assert_equal(on_engine("Less", [a, b], 1, broadcast=1, axis=1), a < b[:, None])
    with pytest.raises(ValueError, match="does not ask for broadcast"):
        on_engine("Less", [a, b], 1)


@pytest.mark.parametrize("dtype", NUMBERS[:8], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("name", BITS)
def test_bits(name: str, dtype: type) -> None:
    a, b = sample(1, dtype, (3, 4), -99, 99), sample(2, dtype, (4,), -99, 99)

    assert_equal(on_engine(name, [a, b], 18), BITS[name](a, b))
    assert_equal(on_engine("BitwiseNot", [a], 18), np.bitwise_not(a))


def _shift(x: int, y: int, bits: int, *, signed: bool, left: bool) -> int:
    """Shift as ONNX BitShift-28 words it, on Python's unbounded integers."""
    if y < 0 or y >= bits:
        return -1 if not left and x < 0 else 0
    result = (x << y if left else x >> y) & (2**bits - 1)
    return result - 2**bits if signed and result >= 2 ** (bits - 1) else result


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_every_shift_of_eight_bits(dtype: type, direction: str) -> None:
    x = np.arange(256).astype(np.uint8).view(dtype)
    y = np.array([0, 1, 3, 7, 8, 9, 100, -1, -128]).astype(dtype)
    signed = dtype == np.int8
    want = [
        [_shift(a, b, 8, signed=signed, left=direction == "LEFT") for b in y.tolist()] for a in x.tolist()
    ]

    assert_equal(on_engine("BitShift", [x[:, None], y], 28, direction=direction), np.array(want, dtype))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_shift_agrees_with_onnx_runtime(dtype: type) -> None:
    x, y = sample(1, dtype, (20,), 0, 9999), sample(2, dtype, (20,), 0, 31)
    for direction in ("LEFT", "RIGHT"):
        want = on_ort("BitShift", [x, y], 11, direction=direction)
        assert_equal(on_engine("BitShift", [x, y], 11, direction=direction), want)


def test_shift_refuses_another_direction() -> None:
    with pytest.raises(ValueError, match="LEFT or RIGHT"):
        on_engine("BitShift", [np.uint8([1]), np.uint8([1])], 11, direction="UP")


# ---- NaN, Inf, Where ----------------------------------------------------------------------------------

WITH_NAN = (
    *(np.float16, ml_dtypes.bfloat16, np.float32, np.float64),
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz),
)


@pytest.mark.parametrize("dtype", WITH_NAN, ids=lambda t: np.dtype(t).name)
def test_nan_and_infinity_are_found(dtype: type) -> None:
    x = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0], np.float32).astype(dtype)
    wide = x.astype(np.float64)

    assert_equal(on_engine("IsNaN", [x], 20), np.isnan(wide))
    assert_equal(on_engine("IsInf", [x], 20), np.isinf(wide))
    assert_equal(on_engine("IsInf", [x], 20, detect_negative=0), wide == math.inf)
    assert_equal(on_engine("IsInf", [x], 20, detect_positive=0), wide == -math.inf)
    assert not on_engine("IsInf", [x], 20, detect_negative=0, detect_positive=0).any()


@pytest.mark.parametrize("dtype", [bool, *NUMBERS, ml_dtypes.int4, object], ids=lambda t: np.dtype(t).name)
def test_where(dtype: Any) -> None:
    x, y = np.array([[1], [0]]).astype(dtype), np.array([0, 1, 1]).astype(dtype)
    condition = np.array([True, False, True])

    got = on_engine("Where", [condition, x, y], 16)

    assert got.dtype == np.dtype(dtype)
    assert got.astype(int).tolist() == [[1, 1, 1], [0, 1, 0]]
