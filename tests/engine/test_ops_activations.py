"""Activations and the softmax family against float64 formulas and ONNX Runtime."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphdoc.engine.ops.elementwise import BLOCK
from tests.engine.rows import assert_close, assert_equal, on_engine, on_ort, sample

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 20.0, -20.0, 88.0, -87.0]


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Any) -> Any:
    return np.logaddexp(x, 0)


def _hard(x: Any) -> Any:
    return np.clip(x / 6 + 0.5, 0, 1)


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[float])(x)


F02, F001 = float(np.float32(0.2)), float(np.float32(0.01))
ALPHA, GAMMA = float(np.float32(1.6732632423543772)), float(np.float32(1.0507009873554805))

FORMULAS: dict[str, tuple[int, dict[str, Any], Callable[[Any], Any]]] = {
    "Relu": (14, {}, lambda x: np.maximum(x, 0)),
    "LeakyRelu": (16, {}, lambda x: np.where(x < 0, F001 * x, x)),
    "LeakyRelu alpha": (16, {"alpha": 0.25}, lambda x: np.where(x < 0, 0.25 * x, x)),
    "LeakyRelu steep": (16, {"alpha": -2.0}, lambda x: np.where(x < 0, -2 * x, x)),
    "ThresholdedRelu": (22, {}, lambda x: np.where(x > 1, x, 0)),
    "Elu": (22, {"alpha": 2.0}, lambda x: np.where(x < 0, 2 * np.expm1(x), x)),
    "Selu": (22, {}, lambda x: GAMMA * np.where(x <= 0, ALPHA * np.expm1(x), x)),
    "Celu": (28, {"alpha": 0.5}, lambda x: np.where(x < 0, 0.5 * np.expm1(x / 0.5), x)),
    "Sigmoid": (13, {}, _logistic),
    "HardSigmoid": (22, {}, lambda x: np.clip(F02 * x + 0.5, 0, 1)),
    "HardSwish": (22, {}, lambda x: x * _hard(x)),
    "Softplus": (22, {}, _softplus),
    "Softsign": (22, {}, lambda x: x / (1 + np.abs(x))),
    "Mish": (22, {}, lambda x: x * np.tanh(_softplus(x))),
    "Swish": (24, {"alpha": 0.5}, lambda x: x * _logistic(0.5 * x)),
    "Gelu": (20, {}, lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))),
    "Gelu tanh": (
        20,
        {"approximate": "tanh"},
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "Shrink": (
        9,
        {"lambd": 1.0, "bias": 0.5},
        lambda x: np.where(x < -1, x + 0.5, np.where(x > 1, x - 0.5, 0)),
    ),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("case", FORMULAS)
def test_formula_rounded_once(case: str, dtype: type) -> None:
    """Narrow floats lie within one unit of the rounded float64 result: they round once.

    float32 and float64 may lose some units where a formula cancels, as in 1 + erf(x).
    """
    version, attributes, formula = FORMULAS[case]
    x = np.concatenate([sample(1, dtype, (200,)), np.array(SPECIAL, dtype)])
    with np.errstate(all="ignore"):
        want = np.asarray(formula(x.astype(np.float64))).astype(dtype)
    units = 1 if np.dtype(dtype).itemsize == 2 else 32

    assert_close(on_engine(case.split()[0], [x], version, **attributes), want, units=units)


@pytest.mark.parametrize("case", FORMULAS)
def test_agrees_with_onnx_runtime(case: str) -> None:
    """ONNX Runtime's Sigmoid and what follows from it are right to 1e-7 of the largest value only."""
    version, attributes, _ = FORMULAS[case]
    x = sample(1, np.float32, (3, 40))
    want = on_ort(case.split()[0], [x], min(version, 24), **attributes)

    if want is None:
        pytest.skip("this ONNX Runtime lacks the operator")
    np.testing.assert_allclose(
        on_engine(case.split()[0], [x], version, **attributes), want, rtol=2e-6, atol=1e-6
    )


def test_large_arrays_go_by_blocks_with_the_same_result() -> None:
    x = sample(1, np.float32, (2 * BLOCK + 77,))

    whole = on_engine("Gelu", [x], 20)

    assert_equal(whole[BLOCK - 5 : BLOCK + 5], on_engine("Gelu", [x[BLOCK - 5 : BLOCK + 5]], 20))
    assert_equal(whole[-50:], on_engine("Gelu", [x[-50:]], 20))


def test_prelu_broadcasts_its_slope() -> None:
    x = sample(1, np.float32, (2, 3, 4))
    for shape in ((3, 1), (4,), (1,), (2, 3, 4)):
        slope = sample(2, np.float32, shape)
        assert_equal(on_engine("PRelu", [x, slope], 16), on_ort("PRelu", [x, slope], 16))


def test_old_prelu_has_one_slope_per_channel() -> None:
    x, slope = sample(1, np.float32, (2, 3, 4)), sample(2, np.float32, (3,))

    assert_equal(on_engine("PRelu", [x, slope], 6), np.where(x < 0, x * slope[:, None], x))
    assert_equal(on_engine("PRelu", [x, slope[:1]], 6), np.where(x < 0, x * slope[0], x))


def test_selu_had_other_constants() -> None:
    x = np.array([-1.0], np.float32)

    assert on_engine("Selu", [x], 1)[0] == pytest.approx(1.0507 * 1.6732 * math.expm1(-1), rel=1e-6)


def test_shrink_of_integers_truncates() -> None:
    x = np.array([-5, -1, 0, 1, 5], np.int8)

    assert on_engine("Shrink", [x], 9, lambd=1.5, bias=0.5).tolist() == [-4, 0, 0, 0, 4]


def test_swiglu() -> None:
    a, b = sample(1, np.float16, (5, 6)), sample(2, np.float16, (5, 6))
    x = a.astype(np.float64)

    want = (x * _logistic(2 * x) * b.astype(np.float64)).astype(np.float16)

    assert_close(on_engine("SwiGLU", [a, b], 28, alpha=2.0), want, units=1)
    with pytest.raises(ValueError, match="does not broadcast"):
        on_engine("SwiGLU", [a, b[:1]], 28)


# ---- Softmax, LogSoftmax, Hardmax ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("version", [9, 11, 13])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4), (2, 3, 4, 2), (2, 0), (0, 3)])
def test_softmax_family_agrees_with_onnx_runtime(name: str, version: int, shape: tuple[int, ...]) -> None:
    """Opsets before 13 read the tensor as a matrix; opset 9 knows no negative axis."""
    x = sample(1, np.float32, shape)
    for axis in range(0 if version == 9 else -len(shape), len(shape)):
        want = on_ort(name, [x], version, axis=axis)
        np.testing.assert_allclose(on_engine(name, [x], version, axis=axis), want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: np.dtype(t).name)
def test_softmax_is_the_rounded_float64_result(dtype: type) -> None:
    x = sample(1, dtype, (4, 300), -10, 10)
    wide = np.exp(x.astype(np.float64))
    want = wide / wide.sum(axis=-1, keepdims=True)

    assert_close(on_engine("Softmax", [x], 13), want.astype(dtype), units=8 if dtype == np.float32 else 4)
    assert_close(on_engine("LogSoftmax", [x], 13), np.log(want).astype(dtype), units=4)


def test_softmax_does_not_overflow() -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4], [-math.inf, 0, 0]], np.float32)

    got = on_engine("Softmax", [x], 13)

    np.testing.assert_allclose(got, [[0.7310586, 0.26894143, 0], [0, 0.5, 0.5]], rtol=1e-6)


def test_hardmax_marks_the_first_of_equals() -> None:
    x = np.array([[1, 3, 3], [2, 2, 2]], np.float32)

    assert on_engine("Hardmax", [x], 13).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert on_engine("Hardmax", [x], 13, axis=0).tolist() == [[0, 1, 1], [1, 0, 0]]
