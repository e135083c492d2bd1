"""Random operators: dtype, shape, seeds and distribution; Dropout in and out of training."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphdoc.engine.ops.table import operators
from tests.engine.rows import assert_equal, on_engine

FLOAT16, DOUBLE, INT64, BOOL, BFLOAT16 = 10, 11, 7, 9, 16
SIZE = 40_000


def test_random_rows_say_so() -> None:
    """Constant folding relies on it."""
    drawn = {row.name for row in operators() if row.domain == "" and row.random}

    assert {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"} <= drawn
    assert {"Bernoulli", "Multinomial"} <= drawn


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(1, np.float32), (FLOAT16, np.float16), (DOUBLE, np.float64), (BFLOAT16, ml_dtypes.bfloat16)],
)
def test_normal_has_its_mean_and_deviation(code: int, dtype: type) -> None:
    got = on_engine("RandomNormal", [], 22, shape=[200, 200], dtype=code, mean=3.0, scale=0.5, seed=1.5)

    assert (got.dtype, got.shape) == (np.dtype(dtype), (200, 200))
    # Five standard errors of the mean and of the deviation.
    assert abs(got.astype(float).mean() - 3) < 5 * 0.5 / SIZE**0.5
    assert abs(got.astype(float).std() - 0.5) < 5 * 0.5 / (2 * SIZE) ** 0.5


def test_uniform_fills_its_range() -> None:
    got = on_engine("RandomUniform", [], 1, shape=[SIZE], low=-2.0, high=6.0, seed=2.0)

    assert -2 <= got.min() < -1.99
    assert 5.99 < got.max() <= 6
    assert abs(got.mean() - 2) < 5 * 8 / (12 * SIZE) ** 0.5


@pytest.mark.parametrize("name", ["RandomNormalLike", "RandomUniformLike"])
def test_like_copies_shape_and_dtype(name: str) -> None:
    x = np.zeros((2, 3), np.float16)

    assert on_engine(name, [x], 22).dtype == np.float16
    assert on_engine(name, [x.astype(np.int8)], 22, dtype=DOUBLE).dtype == np.float64


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("RandomNormal", [], {"shape": [9]}),
        ("RandomUniformLike", [np.zeros(9, np.float32)], {}),
        ("Bernoulli", [np.full(40, 0.5, np.float32)], {}),
        ("Multinomial", [np.zeros((2, 50), np.float32)], {"sample_size": 9}),
    ],
)
def test_a_seed_fixes_the_numbers(name: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    first, again, other = (on_engine(name, inputs, 22, seed=s, **attributes) for s in (0.25, 0.25, 0.5))

    assert_equal(first, again)
    assert not np.array_equal(first, other)


def test_bernoulli_follows_the_probabilities() -> None:
    x = np.repeat(np.float32([0, 0.25, 1]), SIZE)

    got = on_engine("Bernoulli", [x], 22, seed=3.0, dtype=INT64).reshape(3, SIZE).mean(axis=1)

    assert got[[0, 2]].tolist() == [0, 1]
    assert abs(got[1] - 0.25) < 5 * (0.25 * 0.75 / SIZE) ** 0.5
    assert on_engine("Bernoulli", [x[:3]], 15, dtype=BOOL).dtype == bool


def test_multinomial_follows_the_log_probabilities() -> None:
    x = np.log(np.float64([[1, 2, 1], [0, 0, 5]]) + 1e-300) + 7

    got = on_engine("Multinomial", [x], 22, sample_size=SIZE, seed=4.0)

    assert (got.dtype, got.shape) == (np.dtype(np.int32), (2, SIZE))
    shares = np.bincount(got[0], minlength=3) / SIZE
    assert np.abs(shares - [0.25, 0.5, 0.25]).max() < 5 * 0.5 / SIZE**0.5
    assert (got[1] == 2).all()


# ---- Dropout ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [[], [0.9], [0.9, False], [0.0, True]])
def test_dropout_outside_training_copies(inputs: list[Any]) -> None:
    x = np.array([1.0, np.nan, np.inf], np.float32)
    more = [np.asarray(value, np.float32 if i == 0 else bool) for i, value in enumerate(inputs)]

    result, mask = on_engine("Dropout", [x, *more], 13, outputs=2)

    assert_equal(result, x)
    assert_equal(mask, np.ones(3, bool))


@pytest.mark.parametrize("seed", [None, 5, -1])
def test_dropout_in_training_scales_what_is_left(seed: int | None) -> None:
    x = np.full(SIZE, 3.0, np.float16)
    attributes = {} if seed is None else {"seed": seed}

    result, mask = on_engine("Dropout", [x, np.float32(0.25), np.array(True)], 22, outputs=2, **attributes)

    assert_equal(result, np.where(mask, 4, 0).astype(np.float16))
    assert abs(mask.mean() - 0.75) < 5 * (0.25 * 0.75 / SIZE) ** 0.5


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.float64])
def test_dropout_keeps_every_dtype(dtype: type) -> None:
    x = np.full(50, 300.0).astype(dtype)

    result = on_engine("Dropout", [x, np.float32(0.5), np.array(True)], 22, seed=1)

    assert result.dtype == x.dtype
    assert set(result.astype(float)) == {0.0, 448.0 if dtype == ml_dtypes.float8_e4m3fn else float(x[0]) * 2}


def test_old_dropout() -> None:
    """The mask has the dtype of the data until opset 10; opsets 1 and 6 train unless told not to."""
    x = np.full(SIZE, 3.0, np.float32)

    assert on_engine("Dropout", [x], 7, outputs=2)[1].dtype == np.float32
    assert on_engine("Dropout", [x], 10, outputs=2)[1].dtype == bool
    assert_equal(on_engine("Dropout", [x], 6, is_test=1, ratio=0.5), x)
    result, mask = on_engine("Dropout", [x], 6, outputs=2, ratio=0.5)
    assert set(result.tolist()) == {0, 6}
    assert_equal(result, mask * 6)
