"""Pooling against ONNX Runtime and the specification's own definitions."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engine.layer_oracle import assert_agrees, complaint, draws, on_engine, on_ort, sample

FLOAT = np.float32


def drawn(seed: int, *, dilated: bool) -> tuple[list[int], dict[str, Any]]:
    """Draw spatial sizes and a window; ONNX Runtime's SAME ignores dilations and shifts by negative pads."""
    draw = draws(seed)
    rank = draw.choice([1, 2, 2, 3])
    kernel = [draw.randint(1, 4) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw.randint(1, k) for k in kernel]}
    if draw.random() < 0.3:
        attributes["auto_pad"] = draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    else:
        attributes["pads"] = [draw.randint(0, k - 1) for k in kernel] * 2
        if dilated:
            attributes["dilations"] = [draw.randint(1, 2) for _ in kernel]
    return [draw.randint(7, 11) for _ in range(rank)], attributes


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint8], ids=lambda t: t.__name__)
@pytest.mark.parametrize("seed", range(8))
def test_max_pool_agrees_with_onnx_runtime(seed: int, dtype: Any) -> None:
    spatial, attributes = drawn(seed, dilated=True)
    x = sample(seed, dtype, (2, 3, *spatial), -100, 100)
    assert_agrees("MaxPool", [x], 12, ceil_mode=seed % 2, **attributes)


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("seed", range(8))
def test_max_pool_indices_agree_with_onnx_runtime(seed: int, storage_order: int) -> None:
    spatial, attributes = drawn(seed, dilated=True)
    # Few different values: of equal ones the first must win.
    x = np.round(sample(seed, FLOAT, (2, 2, *spatial)))
    assert_agrees(
        "MaxPool", [x], 12, outputs=2, storage_order=storage_order, ceil_mode=seed % 2, **attributes
    )


@pytest.mark.parametrize("outputs", [1, 2])
def test_max_pool_keeps_nan_and_minus_infinity(outputs: int) -> None:
    x = np.array([[[1, np.nan, -2, -np.inf, -np.inf, 3]]], FLOAT)
    values = on_engine("MaxPool", [x], 12, outputs=outputs, kernel_shape=[2], strides=[2])[0]
    np.testing.assert_array_equal(values, np.array([[[np.nan, -2, 3]]], FLOAT))


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("seed", range(10))
def test_average_pool_agrees_with_onnx_runtime(seed: int, include: int) -> None:
    spatial, attributes = drawn(seed, dilated=True)
    x = sample(seed, FLOAT, (2, 3, *spatial))
    assert_agrees("AveragePool", [x], 22, ceil_mode=seed % 2, count_include_pad=include, **attributes)


def test_average_pool_under_a_kernel_larger_than_the_input() -> None:
    x = sample(1, FLOAT, (1, 2, 7, 7))
    (got,) = on_engine("AveragePool", [x], 20, kernel_shape=[90, 90], strides=[90, 90], ceil_mode=1)
    np.testing.assert_allclose(got[..., 0, 0], x.mean(axis=(2, 3)), rtol=1e-5)
    with pytest.raises(ValueError, match="extent 90 is larger"):
        on_engine("AveragePool", [x], 20, kernel_shape=[90, 90])


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_lp_pool_agrees_with_onnx_runtime(seed: int, p: int) -> None:
    spatial, attributes = drawn(seed, dilated=True)
    x = sample(seed, FLOAT, (2, 3, *spatial))
    assert_agrees("LpPool", [x], 22, p=p, ceil_mode=seed % 2, **attributes)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 4, 2), (2, 3, 1, 1)])
@pytest.mark.parametrize("name", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools_agree_with_onnx_runtime(name: str, shape: tuple[int, ...]) -> None:
    assert_agrees(name, [sample(1, FLOAT, shape)], 2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_means_of_half_precision_do_not_stall(dtype: Any) -> None:
    """Summed in half precision, 4096 ones would stop at 2048 or 256."""
    x = np.ones((1, 1, 64, 64), dtype)
    assert float(on_engine("GlobalAveragePool", [x], 22)[0].item()) == 1
    assert float(on_engine("AveragePool", [x], 22, kernel_shape=[64, 64])[0].item()) == 1
    assert float(on_engine("LpPool", [x], 22, kernel_shape=[64, 64])[0].item()) == 64


@pytest.mark.parametrize("version", [1, 2])
def test_global_lp_pool_of_both_attribute_types(version: int) -> None:
    p = 3.0 if version == 1 else 3
    x = sample(1, np.float64, (1, 2, 3, 4))
    (got,) = on_engine("GlobalLpPool", [x], version, p=p)
    want = (np.abs(x) ** 3).sum(axis=(2, 3), keepdims=True) ** (1 / 3)
    assert complaint(got, want) is None


def test_max_unpool_takes_back_max_pool() -> None:
    x, attributes = sample(1, FLOAT, (2, 3, 6, 8)), {"kernel_shape": [2, 2], "strides": [2, 2]}
    pooled = on_ort("MaxPool", [x], 12, outputs=2, **attributes)
    assert_agrees("MaxUnpool", pooled, 11, **attributes)
    shape = np.array([2, 3, 7, 9])
    (placed,) = on_engine("MaxUnpool", [*pooled, shape], 11, **attributes)
    (plain,) = on_engine("MaxUnpool", pooled, 11, **attributes)
    np.testing.assert_array_equal(placed[:, :, :6, :8], plain)
    assert placed.shape == tuple(shape)
    assert np.count_nonzero(placed) == pooled[0].size


def test_refusals() -> None:
    with pytest.raises(ValueError, match="rank 2"):
        on_engine("MaxPool", [np.zeros((2, 3), FLOAT)], 12, kernel_shape=[1])
    with pytest.raises(ValueError, match="kernel_shape has 1 entries"):
        on_engine("MaxPool", [np.zeros((1, 1, 3, 3), FLOAT)], 12, kernel_shape=[1])
