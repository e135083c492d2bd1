"""Reductions, ArgMax and ArgMin, cumulative sums and products."""

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engine.rows import assert_close, assert_equal, on_engine, on_ort, sample

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
INTS = (np.int32, np.int64, np.uint32, np.uint64)


def _log_sum_exp(x: Any, **options: Any) -> Any:
    return np.log(np.sum(np.exp(x), **options))


REDUCTIONS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceL1": lambda x, **options: np.sum(np.abs(x), **options),
    "ReduceL2": lambda x, **options: np.sqrt(np.sum(x * x, **options)),
    "ReduceSumSquare": lambda x, **options: np.sum(x * x, **options),
    "ReduceLogSum": lambda x, **options: np.log(np.sum(x, **options)),
    "ReduceLogSumExp": _log_sum_exp,
}
AXES: list[list[int] | None] = [None, [0], [1], [-1], [0, 2], [-1, -2], [0, 1, 2, 3]]


def _by_input(name: str, x: Any, axes: list[int] | None, **attributes: Any) -> Any:
    given = [x] if axes is None else [x, np.array(axes, np.int64)]
    return on_engine(name, given, 13 if name == "ReduceSum" else 18, **attributes)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_is_the_rounded_float64_result(name: str, dtype: type) -> None:
    """Narrow floats accumulate in float32; float32 itself loses a few units over 48 terms."""
    x = sample(1, dtype, (2, 3, 4, 2), 0.5, 2)
    units = 1 if np.dtype(dtype).itemsize == 2 else 8
    for axes in AXES:
        for keepdims in (0, 1):
            options = {"axis": None if axes is None else tuple(axes), "keepdims": bool(keepdims)}
            want = np.asarray(REDUCTIONS[name](x.astype(np.float64), **options)).astype(dtype)
            old = {} if axes is None else {"axes": axes}
            assert_close(_by_input(name, x, axes, keepdims=keepdims), want, units=units)
            assert_close(on_engine(name, [x], 11, keepdims=keepdims, **old), want, units=units)


@pytest.mark.parametrize("dtype", INTS, ids=lambda t: t.__name__)
@pytest.mark.parametrize("name", [n for n in REDUCTIONS if "Log" not in n])
def test_reduction_of_integers(name: str, dtype: type) -> None:
    """Means and roots truncate toward zero."""
    x = sample(1, dtype, (3, 5), -9, 9)
    want = np.trunc(REDUCTIONS[name](x.astype(np.float64), axis=1, keepdims=True)).astype(dtype)

    assert_equal(_by_input(name, x, [1]), want)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_agrees_with_onnx_runtime(name: str) -> None:
    x = sample(1, np.float32, (2, 3, 4), 0.5, 2)
    version = 13 if name == "ReduceSum" else 18
    for axes in ([0], [-1], [0, 2]):
        want = on_ort(name, [x, np.array(axes, np.int64)], version, keepdims=0)
        assert_close(_by_input(name, x, axes, keepdims=0), want, units=8)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_no_axes_mean_all_or_none(name: str) -> None:
    """With noop_with_empty_axes only the element-wise part is left: ReduceSumSquare squares."""
    x = sample(1, np.float32, (2, 3), 0.5, 2)
    elementwise = {
        "ReduceL1": np.abs,
        "ReduceL2": np.abs,
        "ReduceSumSquare": np.square,
        "ReduceLogSum": np.log,
    }.get(name, np.positive)

    assert _by_input(name, x, []).shape == (1, 1)
    assert_close(_by_input(name, x, [], noop_with_empty_axes=1), elementwise(x), units=4)
    assert_close(_by_input(name, x, None, noop_with_empty_axes=1), elementwise(x), units=4)


@pytest.mark.parametrize(
    ("name", "nothing"),
    [
        ("ReduceSum", 0),
        ("ReduceL1", 0),
        ("ReduceL2", 0),
        ("ReduceSumSquare", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -math.inf),
        ("ReduceMin", math.inf),
        ("ReduceLogSum", -math.inf),
        ("ReduceLogSumExp", -math.inf),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: np.dtype(t).name)
def test_reduction_over_nothing(name: str, nothing: float, dtype: type) -> None:
    """The values that the specification gives for an empty set."""
    x = np.zeros((2, 0, 3), dtype)

    assert_equal(_by_input(name, x, [1]), np.full((2, 1, 3), nothing, dtype))
    assert_equal(_by_input(name, x, [1], keepdims=0), np.full((2, 3), nothing, dtype))
    assert _by_input(name, x, [0]).shape == (1, 0, 3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, bool])
def test_extremes_over_nothing_of_integers(dtype: type) -> None:
    x = np.zeros((0, 2), dtype)
    low, high = (False, True) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)

    assert _by_input("ReduceMax", x, [0], keepdims=0).tolist() == [low, low]
    assert _by_input("ReduceMin", x, [0], keepdims=0).tolist() == [high, high]


def test_bools_are_ordered() -> None:
    x = np.array([[True, False], [False, False]])

    assert on_engine("ReduceMax", [x, np.array([1])], 20, keepdims=0).tolist() == [True, False]
    assert on_engine("ReduceMin", [x, np.array([1])], 20, keepdims=0).tolist() == [False, False]


def test_nan_wins_and_scalars_reduce_to_themselves() -> None:
    x = np.array([1.0, math.nan, math.inf], np.float32)

    for name in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp"):
        assert math.isnan(_by_input(name, x, None, keepdims=0))
    assert _by_input("ReduceSum", np.array(2.5, np.float32), None) == 2.5
    assert _by_input("ReduceMax", np.array(2.5, np.float32), [0]) == 2.5


def test_sums_of_half_precision_do_not_overflow_on_the_way() -> None:
    x = np.full(10, 60000, np.float16)

    assert _by_input("ReduceMean", x, None, keepdims=0) == 60000
    assert _by_input("ReduceL2", np.full(4, 300, np.float16), None, keepdims=0) == 600
    assert _by_input("ReduceLogSumExp", np.array([1e4, 1e4], np.float16), None, keepdims=0) == 1e4
    assert _by_input("ReduceLogSumExp", np.full(2, -math.inf, np.float32), None, keepdims=0) == -math.inf


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda t: np.dtype(t).name)
def test_sums_of_half_precision_go_on_counting(dtype: type) -> None:
    """In bfloat16 256 + 1 is 256 again, in float16 2048 + 1 is 2048."""
    x = np.ones(4096, dtype)

    for name in ("ReduceSum", "ReduceL1", "ReduceSumSquare"):
        assert _by_input(name, x, None, keepdims=0) == 4096
    assert _by_input("ReduceMean", x, None, keepdims=0) == 1
    assert on_engine("CumSum", [x, np.array(0)], 14)[-1] == 4096


def test_integer_sums_wrap() -> None:
    x = np.array([2**31 - 1, 1], np.int32)

    assert _by_input("ReduceSum", x, None, keepdims=0).tolist() == -(2**31)


def test_reduction_refuses_an_axis_out_of_range() -> None:
    with pytest.raises(ValueError, match="out of bounds"):
        _by_input("ReduceSum", np.ones((2, 3), np.float32), [2])


# ---- ArgMax, ArgMin -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_arg_takes_the_first_or_the_last_of_equals(name: str, dtype: type) -> None:
    """Small integers make ties; the oracle is Python's index."""
    x = sample(1, np.int8, (3, 40), -2, 2).astype(dtype)
    pick = max if name == "ArgMax" else min
    rows = x.astype(int).tolist()
    first = [row.index(pick(row)) for row in rows]
    last = [len(row) - 1 - row[::-1].index(pick(row)) for row in rows]

    assert_equal(on_engine(name, [x], 13, axis=1, keepdims=0), np.array(first))
    assert_equal(on_engine(name, [x], 13, axis=-1, select_last_index=1), np.array(last)[:, None])
    assert on_engine(name, [x], 11).shape == (1, 40)


# ---- CumSum, CumProd ----------------------------------------------------------------------------------


def _running(x: Any, axis: int, start: int, combine: Any, *, exclusive: int, reverse: int) -> Any:
    """Accumulate by the definition, line after line, in float64."""
    lines = np.moveaxis(x.astype(np.float64), axis, 0)
    lines = lines[::-1] if reverse else lines
    result, state = [], np.full(lines.shape[1:], float(start))
    for line in lines:
        after = combine(state, line)
        result.append(state if exclusive else after)
        state = after
    stacked = np.array(result).reshape(lines.shape)
    return np.moveaxis(stacked[::-1] if reverse else stacked, 0, axis).astype(x.dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.int64], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize(
    ("name", "version", "start", "combine"),
    [("CumSum", 14, 0, np.add), ("CumProd", 26, 1, np.multiply)],
)
def test_cumulative(name: str, version: int, start: int, combine: Any, dtype: type) -> None:
    x = sample(1, dtype, (3, 4, 5), 1, 3)
    for axis in (0, 1, 2, -1, -3):
        for exclusive in (0, 1):
            for reverse in (0, 1):
                flags = {"exclusive": exclusive, "reverse": reverse}
                got = on_engine(name, [x, np.array(axis)], version, **flags)
                assert_close(got, _running(x, axis, start, combine, **flags), units=4)


@pytest.mark.parametrize("shape", [(1,), (0,), (2, 0), (0, 2)])
def test_cumulative_of_little(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    for exclusive in (0, 1):
        got = on_engine("CumSum", [x, np.array([0])], 14, exclusive=exclusive)
        assert_equal(got, np.zeros(shape, np.float32) if exclusive else x)


def test_exclusive_sums_survive_infinity() -> None:
    """A running sum less its last element would be NaN here."""
    x = np.array([1.0, math.inf, 2.0], np.float32)

    assert on_engine("CumSum", [x, np.array(0)], 14, exclusive=1).tolist() == [0, 1, math.inf]


@pytest.mark.parametrize("dtype", [*INTS, np.int8, np.uint8], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_a_mean_of_integers_is_exact_where_their_sum_overflows(dtype: Any, count: int) -> None:
    """The mean lies between the numbers, so it always fits; it is cut towards zero."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, (20, count), dtype=dtype, endpoint=True)
    x[0], x[1] = info.max, info.min

    got = _by_input("ReduceMean", x, [1], keepdims=0)

    assert got.dtype == dtype
    assert got.tolist() == [math.trunc(Fraction(sum(map(int, row)), count)) for row in x]


@pytest.mark.parametrize("name", ["ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin"])
def test_a_reduction_of_no_axes_gives_back_its_input_to_the_bit(name: str) -> None:
    """A sum that starts at 0 would turn −0 into 0."""
    x = np.array([-0.0, 0.0, np.nan, -np.inf, 3.5], np.float32)

    got = on_engine(
        name, [x, np.array([], np.int64)], 18 if name != "ReduceSum" else 13, noop_with_empty_axes=1
    )

    assert got.tobytes() == x.tobytes()
    np.testing.assert_array_equal(
        np.signbit(on_ort(name, [x, np.array([], np.int64)], 18, noop_with_empty_axes=1)), np.signbit(x)
    )
