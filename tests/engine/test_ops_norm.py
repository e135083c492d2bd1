"""Normalisations against ONNX Runtime, float64 and the specification's formulas."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engine.layer_oracle import assert_agrees, complaint, on_engine, sample

FLOAT = np.float32
HALF = [np.float16, ml_dtypes.bfloat16]


def channels(count: int, dtype: Any = FLOAT) -> list[Any]:
    """scale, bias, mean and a positive variance."""
    return [sample(s, dtype, (count,)) for s in (1, 2, 3)] + [sample(4, dtype, (count,), 0.1, 2)]


@pytest.mark.parametrize("version", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 2, 2)])
def test_batch_normalization_agrees_with_onnx_runtime(shape: tuple[int, ...], version: int) -> None:
    assert_agrees("BatchNormalization", [sample(0, FLOAT, shape), *channels(3)], version, epsilon=1e-3)


def test_batch_normalization_in_training_agrees_with_onnx_runtime() -> None:
    x = sample(0, FLOAT, (3, 4, 5))
    assert_agrees("BatchNormalization", [x, *channels(4)], 15, outputs=3, training_mode=1, momentum=0.7)


@pytest.mark.parametrize(("version", "attributes"), [(1, {}), (6, {}), (7, {}), (9, {})])
def test_old_batch_normalization_trains_when_it_lists_statistics(version: int, attributes: Any) -> None:
    x, parameters = sample(0, np.float64, (3, 4, 5)), channels(4, np.float64)
    old = on_engine("BatchNormalization", [x, *parameters], version, outputs=5, **attributes)
    new = on_engine("BatchNormalization", [x, *parameters], 15, outputs=3, training_mode=1)
    for got, want in zip(old, new, strict=False):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(old[3], x.mean(axis=(0, 2)))
    np.testing.assert_allclose(old[4], x.var(axis=(0, 2)))


def test_batch_normalization_per_feature() -> None:
    x = sample(0, np.float64, (3, 2, 4))
    scale, b, mean = (sample(s, np.float64, (2, 4)) for s in (1, 2, 3))
    var = sample(4, np.float64, (2, 4), 0.1, 2)
    (got,) = on_engine("BatchNormalization", [x, scale, b, mean, var], 7, spatial=0, epsilon=0.5)
    assert complaint(got, (x - mean) / np.sqrt(var + 0.5) * scale + b) is None


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 3, 1, 1)])
def test_instance_normalization_agrees_with_onnx_runtime(shape: tuple[int, ...]) -> None:
    inputs = [sample(0, FLOAT, shape), *channels(3)[:2]]
    assert_agrees("InstanceNormalization", inputs, 6, epsilon=1e-2)


@pytest.mark.parametrize("axis", [-1, 1, 2, -3])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization_agrees_with_onnx_runtime(axis: int, bias: bool) -> None:
    x = sample(0, FLOAT, (2, 3, 4, 5))
    shape = x.shape[axis % 4 :]
    inputs = [x, sample(1, FLOAT, shape), *([sample(2, FLOAT, shape)] if bias else [])]
    assert_agrees("LayerNormalization", inputs, 17, outputs=3, axis=axis)


@pytest.mark.parametrize("name", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_rms_normalization_agrees_with_onnx_runtime(name: str) -> None:
    inputs = [sample(0, FLOAT, (2, 3, 8)), sample(1, FLOAT, (8,))]
    assert_agrees(name, inputs, 23 if name == "RMSNormalization" else 17, epsilon=1e-4)


@pytest.mark.parametrize("version", [18, 21])
def test_group_normalization_agrees_with_onnx_runtime(version: int) -> None:
    size = 2 if version == 18 else 6
    inputs = [sample(0, FLOAT, (2, 6, 3, 4)), sample(1, FLOAT, (size,)), sample(2, FLOAT, (size,))]
    assert_agrees("GroupNormalization", inputs, version, num_groups=2)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_lrn_by_its_definition(size: int) -> None:
    x = sample(0, np.float64, (2, 6, 3))
    before, after = (size - 1) // 2, -(-(size - 1) // 2)
    sums = [np.square(x[:, max(0, c - before) : c + after + 1]).sum(axis=1) for c in range(6)]
    want = x / (1.5 + 0.3 / size * np.stack(sums, axis=1)) ** 0.75
    (got,) = on_engine("LRN", [x], 13, size=size, alpha=0.3, bias=1.5)
    assert complaint(got, want) is None


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization_agrees_with_onnx_runtime(axis: int, p: int) -> None:
    x = sample(0, FLOAT, (3, 4, 5))
    x[1] = 0
    assert_agrees("LpNormalization", [x], 1, axis=axis, p=p)


def test_mean_variance_normalization_agrees_with_onnx_runtime() -> None:
    assert_agrees("MeanVarianceNormalization", [sample(0, FLOAT, (2, 3, 4, 5))], 13)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["LayerNormalization", "RMSNormalization", "InstanceNormalization"])
def test_half_precision_survives_large_values(name: str, dtype: Any) -> None:
    """300² overflows float16: statistics are taken in float32."""
    x = sample(0, dtype, (2, 4, 64), 200, 300)
    size = 4 if name == "InstanceNormalization" else 64
    inputs = [x, np.ones(size, dtype), *([np.zeros(size, dtype)] if name != "RMSNormalization" else [])]
    (got,) = on_engine(name, inputs, 23)
    (exact,) = on_engine(name, [a.astype(np.float64) for a in inputs], 23)
    assert got.dtype == dtype
    # One rounding of the result, and in float32 the cancellation of x − mean.
    assert complaint(got.astype(np.float64), exact, float(ml_dtypes.finfo(dtype).eps)) is None


def test_statistics_of_layer_normalization_are_stashed_as_float32() -> None:
    x = sample(0, np.float16, (2, 8))
    _, mean, inverse = on_engine("LayerNormalization", [x, np.ones(8, np.float16)], 17, outputs=3)
    assert mean.dtype == inverse.dtype == FLOAT
    wide = [x.astype(np.float64), np.ones(8)]
    _, mean, _ = on_engine("LayerNormalization", wide, 17, outputs=3, truth=True)
    assert mean.dtype == np.float64


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "complains"),
    [
        (
            "GroupNormalization",
            [np.zeros((1, 4, 2)), np.ones(4), np.ones(4)],
            {"num_groups": 3},
            "4 channels",
        ),
        ("LayerNormalization", [np.zeros((2, 3)), np.ones(3)], {"axis": 2}, "axis 2 is out of range"),
        ("LpNormalization", [np.zeros((2, 3))], {"p": 3}, "p is 3"),
    ],
)
def test_refusals(name: str, inputs: list[Any], attributes: dict[str, Any], complains: str) -> None:
    with pytest.raises(ValueError, match=complains):
        on_engine(name, inputs, 22, **attributes)


def test_old_training_per_feature_is_refused() -> None:
    inputs = [np.zeros((2, 3)), *[np.ones(3)] * 4]
    with pytest.raises(ValueError, match="spatial=0"):
        on_engine("BatchNormalization", inputs, 7, outputs=5, spatial=0)
