"""Cast, CastLike and BitCast: rounding against a search among all values, the rest against ONNX Runtime."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from tests.engine.rows import assert_equal, on_engine, on_ort, sample

F8 = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
HALVES = (np.float16, ml_dtypes.bfloat16)
SMALL_FLOATS = (*F8, ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)
E8M0 = ml_dtypes.float8_e8m0fnu
WIDE = (
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64, bool),
)
NAMES = [d for d in ir.DataType if d.name not in ("UNDEFINED", "COMPLEX64", "COMPLEX128")]


pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in cast:RuntimeWarning")
"""The oracles cast numbers out of range, too."""


def code(dtype: Any) -> int:
    return int(ir.DataType.from_numpy(np.dtype(dtype)))


def cast(x: Any, dtype: Any, **attributes: Any) -> Any:
    return on_engine("Cast", [x], 25, to=code(dtype), **attributes)


# ---- rounding -----------------------------------------------------------------------------------------


def _values(dtype: Any) -> tuple[Any, Any]:
    """Return all finite values of a dtype, ascending, and the code of each; −0 left out."""
    bits = np.dtype(dtype).itemsize * 8
    codes = np.arange(2 ** int(ir.DataType.from_numpy(np.dtype(dtype)).bitwidth), dtype=f"uint{bits}")
    values = codes.view(dtype).astype(np.float64)
    keep = np.isfinite(values) & ~((values == 0) & np.signbit(values))
    order = np.argsort(values[keep], kind="stable")
    return values[keep][order], codes[keep][order].astype(int)


def _nearest(x: Any, dtype: Any) -> Any:
    """Round to the nearest value, ties to the even code, by looking at the two neighbours."""
    values, codes = _values(dtype)
    above = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    low, high = values[above - 1], values[above]
    to_high = (high - x < x - low) | ((high - x == x - low) & (codes[above] % 2 == 0))
    return np.where(to_high, high, low)


@pytest.mark.parametrize("dtype", [*HALVES, *SMALL_FLOATS], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("source", [np.float64, np.float32, np.float16])
def test_floats_round_once_to_nearest_even(source: type, dtype: type) -> None:
    """Among the samples are ties and, in float64, numbers so near a tie that float32 would make them one."""
    values, _ = _values(dtype)
    values = values[np.abs(values) < 2.0**15]
    ties = ((values[1:] + values[:-1]) / 2)[:: max(1, len(values) // 500)]
    x = np.concatenate([values[::7], ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40)]).astype(source)

    assert_equal(cast(x, dtype).astype(np.float64), _nearest(x.astype(np.float64), dtype))


def test_float64_beyond_single_precision_goes_to_bfloat16() -> None:
    x = np.array([1e300, -1e300, math.inf, -math.inf, math.nan, 1e-300, 3.39e38])

    got = cast(x, ml_dtypes.bfloat16).astype(np.float64)

    assert_equal(got[:6], np.array([math.inf, -math.inf, math.inf, -math.inf, math.nan, 0]))
    assert got[6] == pytest.approx(3.39e38, rel=2**-8)


@pytest.mark.parametrize("dtype", F8, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("source", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_float8_at_its_ends(source: type, dtype: type) -> None:
    """The two tables of ONNX Cast-28."""
    largest = float(ml_dtypes.finfo(dtype).max)
    x = np.array([math.nan, math.inf, -math.inf, 2 * largest, -2 * largest, largest, -0.0]).astype(source)
    infinite = math.inf if dtype == ml_dtypes.float8_e5m2 else math.nan

    saturated, plain = (cast(x, dtype, saturate=s).astype(np.float64) for s in (1, 0))

    assert_equal(saturated, np.array([math.nan, largest, -largest, largest, -largest, largest, 0]))
    assert_equal(plain, np.array([math.nan, infinite, -infinite, infinite, -infinite, largest, 0]))
    assert np.signbit(saturated[-1]) == (dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))


TINY = 2.0**-127
SCALES = [3.0, 1.0, 0.75, 1.5, 1.25, TINY, TINY / 99, 0.0, 1.25 * TINY, 1.5 * TINY, 3e38, math.inf, math.nan]


@pytest.mark.parametrize(
    ("mode", "saturate", "want"),
    [
        ("up", 1, [4, 1, 1, 2, 2, -127, -127, -127, -126, -126, 127, 127, None]),
        ("down", 1, [2, 1, 0.5, 1, 1, -127, -127, -127, -127, -127, 127, 127, None]),
        ("nearest", 1, [4, 1, 1, 2, 1, -127, -127, -127, -127, -126, 127, 127, None]),
        ("nearest", 0, [4, 1, 1, 2, 1, -127, None, None, -127, -126, None, None, None]),
    ],
)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_powers_of_two(source: type, mode: str, saturate: int, want: list[float | None]) -> None:
    """From the sixth on, and where below 0, the list holds exponents; None is NaN."""
    values = [math.nan if w is None else (w if i < 5 else 2.0**w) for i, w in enumerate(want)]

    got = cast(np.array(SCALES, source), E8M0, round_mode=mode, saturate=saturate)

    assert_equal(got.astype(np.float64), np.array(values))


def test_powers_of_two_refuse_an_unknown_mode_and_mark_negatives() -> None:
    assert np.isnan(cast(np.float32([-1.0]), E8M0).astype(np.float32)).all()
    with pytest.raises(ValueError, match="round_mode is one of up, down, nearest"):
        cast(np.float32([1.0]), E8M0, round_mode="even")


# ---- between all dtypes -------------------------------------------------------------------------------


@pytest.mark.parametrize("source", NAMES, ids=lambda d: d.name)
def test_one_and_zero_survive_every_pair(source: ir.DataType) -> None:
    """float8e8m0 has no zero: it becomes the smallest power of two."""
    x = cast(np.array([[1, 0, 1]], np.float32), source.numpy())
    for target in NAMES:
        got = cast(x, target.numpy())
        assert got.dtype == target.numpy()
        back = cast(got, np.float32)
        assert back[0, ::2].tolist() == [1, 1], target
        assert back[0, 1] == 0 or ir.DataType.FLOAT8E8M0 in (source, target), target
        assert_equal(on_engine("CastLike", [x, np.zeros(1, target.numpy())], 25), got)


@pytest.mark.parametrize("source", WIDE, ids=lambda t: t.__name__)
def test_numbers_agree_with_onnx_runtime(source: type) -> None:
    """Integers wrap, floats truncate. Floats out of an integer's range are undefined and left out."""
    for target in WIDE:
        x = sample(1, source, (50,), -300, 300)
        if np.dtype(source).kind == "f" and np.dtype(target).kind in "iu":
            limits = np.iinfo(target)
            x = np.clip(x, max(limits.min, -300), min(limits.max, 300))
        assert_equal(cast(x, target), on_ort("Cast", [x], 13, to=code(target)))


@pytest.mark.parametrize(
    ("dtype", "values", "want"),
    [
        (ml_dtypes.int4, [7, 8, -9, 23], [7, -8, 7, 7]),
        (ml_dtypes.uint4, [15, 16, -1, 33], [15, 0, 15, 1]),
        (ml_dtypes.int2, [1, 2, -3, 5], [1, -2, 1, 1]),
        (ml_dtypes.uint2, [3, 4, -1, 6], [3, 0, 3, 2]),
    ],
)
def test_tiny_integers_keep_the_low_bits(dtype: Any, values: list[int], want: list[int]) -> None:
    for source in (np.int8, np.int32, np.int64):
        assert cast(np.array(values, source), dtype).astype(int).tolist() == want


# ---- strings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", WIDE, ids=lambda t: t.__name__)
def test_numbers_are_written_as_onnx_runtime_does(dtype: type) -> None:
    x = sample(1, dtype, (2, 20), -300, 300)

    assert_equal(cast(x, object), on_ort("Cast", [x], 13, to=ir.DataType.STRING))


def test_floats_are_written_as_onnx_runtime_does() -> None:
    x = np.array([math.nan, math.inf, -math.inf, 1e20, 1e-7, 0.1, -0.0, 16777216, 123456789, 1e5], np.float32)

    assert_equal(cast(x, object), on_ort("Cast", [x], 13, to=ir.DataType.STRING))


def test_texts_are_read() -> None:
    texts = np.array(["3.14", "1e-5", "1E8", "+INF", "inf", "-Inf", "nAn", " 7"], dtype=object)
    want = [3.14, 1e-5, 1e8, math.inf, math.inf, -math.inf, math.nan, 7]

    assert_equal(cast(texts, np.float32), np.array(want, np.float32))
    assert_equal(cast(texts.reshape(2, 4), np.float64), np.array(want).reshape(2, 4))
    whole = np.array(["-3", "100.5", "9223372036854775807"], dtype=object)
    assert_equal(cast(whole, np.int64), np.array([-3, 100, 2**63 - 1]))
    assert cast(np.array(["18446744073709551615"], dtype=object), np.uint64).tolist() == [2**64 - 1]
    assert cast(np.array(["0", "2"], dtype=object), bool).tolist() == [False, True]
    assert cast(np.array("5", dtype=object), ml_dtypes.int4).astype(int).tolist() == 5


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
@pytest.mark.parametrize("text", ["Hello World!", "", "1,5"])
def test_other_texts_are_refused(text: str, dtype: type) -> None:
    with pytest.raises(ValueError, match=r"could not convert|not a number"):
        cast(np.array([text], dtype=object), dtype)


# ---- versions, truth mode, BitCast --------------------------------------------------------------------


def test_the_first_version_names_its_target() -> None:
    x = np.array([1.5, -2.5], np.float32)

    assert_equal(on_engine("Cast", [x], 1, to="INT32"), np.array([1, -2], np.int32))


def test_truth_mode_keeps_float64() -> None:
    x = np.array([0.1, 1e300])

    got = on_engine("Cast", [x], 13, truth=True, to=code(np.float16))

    assert got.dtype == np.float64
    assert got.tolist() == x.tolist()
    assert on_engine("Cast", [x], 13, truth=True, to=code(np.int32)).dtype == np.int32


@pytest.mark.parametrize("source", NAMES, ids=lambda d: d.name)
def test_bits_go_there_and_back(source: ir.DataType) -> None:
    """Of one width they come back the same; of another, or of strings, they are refused."""
    x = cast(np.array([[1, 0, 1]], np.float32), source.numpy())
    for target in NAMES:
        if ir.DataType.STRING not in (source, target) and source.bitwidth == target.bitwidth:
            there = on_engine("BitCast", [x], 26, to=int(target))
            assert there.dtype == target.numpy()
            assert_equal(on_engine("BitCast", [there], 26, to=int(source)), x)
        else:
            with pytest.raises(ValueError, match=r"same width|no bits"):
                on_engine("BitCast", [x], 26, to=int(target))


def test_bits_of_four() -> None:
    x = np.array([-1, -8, 7]).astype(ml_dtypes.int4)

    assert on_engine("BitCast", [x], 26, to=code(ml_dtypes.uint4)).astype(int).tolist() == [15, 8, 7]


def test_bits_in_truth_mode_are_those_of_single_precision() -> None:
    x = np.array([1.0, -2.5])

    got = on_engine("BitCast", [x], 26, truth=True, to=code(np.int32))

    assert_equal(got, x.astype(np.float32).view(np.int32))
    with pytest.raises(ValueError, match="same width"):
        on_engine("BitCast", [x], 26, truth=True, to=code(np.int16))


@pytest.mark.parametrize("shape", [(), (0, 2)])
def test_rank_and_empty_tensors_survive(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    for target in (np.int8, np.float16, ml_dtypes.float8_e4m3fn, E8M0, object, ml_dtypes.bfloat16):
        got = cast(x, target)
        assert got.shape == shape
        assert_equal(cast(got, np.float32), x)
    assert on_engine("BitCast", [x], 26, to=code(np.int32)).shape == shape
