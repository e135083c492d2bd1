"""Quantisation against ONNX Runtime and by hand: ranges, ties, axes, blocks, small floats."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphdoc.engine.errors import RunnerError
from tests.engine.single import agree, engine, model, run, same

X = np.concatenate([np.arange(-300, 300, 7) / 2, [np.inf, -np.inf, 0.5, 1.5, -2.5, -0.0]]).astype(np.float32)
MATRIX = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32) * 50
SCALES = np.asarray([0.5, 1, 2, 4], np.float32)


def zero(value: float, dtype: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.int4, ml_dtypes.uint4])
def test_per_tensor(dtype: Any) -> None:
    """Half rounds to even, and what is too large is clipped, Inf too."""
    point = zero(3, dtype)
    proto, feeds = model("QuantizeLinear", X, np.float32(1), point)
    (got,) = engine(proto, feeds)
    info: Any = ml_dtypes.iinfo(dtype)

    assert got.dtype == dtype
    want = np.clip(np.rint(X) + 3, int(info.min), int(info.max))
    np.testing.assert_array_equal(got.astype(np.int64), want.astype(np.int64))
    if np.dtype(dtype).kind in "iu" and dtype not in (ml_dtypes.int4, ml_dtypes.uint4):
        agree("QuantizeLinear", X, np.float32(0.37), point)
        agree("DequantizeLinear", got, np.float32(0.37), point)


def test_nan_quantises_as_in_onnx_runtime() -> None:
    """The specification is silent about NaN; it becomes the least value."""
    for dtype in (np.uint8, np.int8):
        agree("QuantizeLinear", np.full(40, np.nan, np.float32), np.float32(1), zero(3, dtype))


@pytest.mark.parametrize("axis", [0, -2])
def test_per_axis(axis: int) -> None:
    points = np.asarray([0, 10, -10, 3], np.int8)

    agree("QuantizeLinear", MATRIX, SCALES, points, axis=axis)
    agree("DequantizeLinear", np.rint(MATRIX).astype(np.int8), SCALES, points, axis=axis)


@pytest.mark.parametrize(("block", "count"), [(2, 3), (4, 2)])
def test_blocked(block: int, count: int) -> None:
    """Each scale serves a block; the last block may be short."""
    scales = np.random.default_rng(2).uniform(0.5, 2, (4, count)).astype(np.float32)
    points = np.zeros((4, count), np.int8)

    agree("QuantizeLinear", MATRIX, scales, points, axis=1, block_size=block)
    agree("DequantizeLinear", np.rint(MATRIX).astype(np.int8), scales, points, axis=1, block_size=block)


def test_default_and_named_output_dtype() -> None:
    """uint8 without a zero point, else output_dtype."""
    agree("QuantizeLinear", X, np.float32(1))
    assert run("QuantizeLinear", X, np.float32(1), output_dtype=3).dtype == np.int8
    small = MATRIX.astype(np.int8)
    half = run("DequantizeLinear", small, np.float32(1), opset=23, output_dtype=10)
    assert half.dtype == np.float16


def test_scale_of_one_element_is_per_tensor() -> None:
    """[1] is accepted for a scalar, whatever the axis."""
    agree("QuantizeLinear", MATRIX, np.ones(1, np.float32), np.zeros(1, np.int8))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_division_in_the_dtype_of_the_scale(dtype: Any) -> None:
    """Half precision divides in half precision; ``precision`` raises it."""
    x, scale = (MATRIX * 20).astype(dtype), np.asarray(0.3).astype(dtype)
    exact = np.rint((x.astype(np.float64) / scale.astype(np.float64)).astype(np.float32))

    got = run("QuantizeLinear", x, scale, np.zeros((), np.int16), opset=23)
    precise = run("QuantizeLinear", x, scale, np.zeros((), np.int16), opset=23, precision=1)

    np.testing.assert_array_equal(got, np.rint((x / scale).astype(np.float32)).astype(np.int16))
    np.testing.assert_array_equal(precise, exact.astype(np.int16))
    assert (got != precise).any()


@pytest.mark.parametrize(
    "dtype",
    [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz],
)
def test_float8(dtype: Any) -> None:
    """No rounding to integers; saturation is a choice; dequantising gives the value back."""
    x = np.asarray([0.3, 1e9, -1e9, np.inf, 3], np.float32)
    largest = float(ml_dtypes.finfo(dtype).max)

    clipped = run("QuantizeLinear", x, np.float32(1), zero(0, dtype), opset=19).astype(np.float32)
    loose = run("QuantizeLinear", x, np.float32(1), zero(0, dtype), opset=19, saturate=0).astype(np.float32)

    assert clipped[1:4].tolist() == [largest, -largest, largest]
    assert not np.isfinite(loose[1:4]).any()
    assert clipped[0] == loose[0] == np.float32(dtype(0.3))
    same(
        run("DequantizeLinear", x[[0, 4]].astype(dtype), np.float32(2)),
        x[[0, 4]].astype(dtype).astype(np.float32) * 2,
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_dequantise_rounds_once(dtype: Any) -> None:
    """A 16-bit difference does not fit half precision, yet the product is rounded only at the end."""
    x, scale = np.asarray([-32768, 32767, 2049], np.int16), np.asarray(1e-3).astype(dtype)

    got = run("DequantizeLinear", x, scale, np.int16(100))

    want = ((x.astype(np.float32) - 100) * scale.astype(np.float32)).astype(dtype)
    same(got, want)


def test_dequantise_int32() -> None:
    agree("DequantizeLinear", np.asarray([2**31 - 1, -(2**31), 16777217], np.int32), np.float32(0.5))


def test_truth_mode_keeps_float64() -> None:
    """In truth mode the real numbers are float64, the quantised ones what they are."""
    proto, feeds = model("DequantizeLinear", X[:3].astype(np.int8), np.float32(0.1))

    assert engine(proto, feeds, truth=True)[0].dtype == np.float64


def test_scale_that_fits_nothing() -> None:
    with pytest.raises(RunnerError, match=r"scale \[5\] does not fit input \[4, 6\], axis 0"):
        run("QuantizeLinear", MATRIX, np.ones(5, np.float32), axis=0)


def test_block_size_that_fits_nothing() -> None:
    """Three scales for an axis of 6 mean blocks of 2; larger blocks would leave a scale unused."""
    with pytest.raises(RunnerError, match="block size 3"):
        run("QuantizeLinear", MATRIX, np.ones((4, 3), np.float32), axis=1, block_size=3)
    with pytest.raises(RunnerError, match="axis 2 does not fit rank 2"):
        run("QuantizeLinear", MATRIX, np.ones(4, np.float32), axis=2)


@pytest.mark.parametrize("x", [MATRIX, np.abs(MATRIX), -np.abs(MATRIX), np.zeros((2, 2), np.float32)])
def test_dynamic(x: Any) -> None:
    """The range always holds 0; all zeros have scale 1."""
    proto, feeds = model("DynamicQuantizeLinear", x, outputs=3, opset=11)

    agree("DynamicQuantizeLinear", x, outputs=3, opset=11)
    assert [value.dtype for value in engine(proto, feeds)] == [np.uint8, np.float32, np.uint8]
