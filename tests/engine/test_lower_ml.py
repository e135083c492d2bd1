"""Scaling, picking and linear models of ai.onnx.ml on level 1, beside level 0."""

from typing import Any

import numpy as np
import pytest

from graphdoc.engine.errors import RunnerError
from tests.engine.lowered import ODD, check, ints, noise

ML = "ai.onnx.ml"


def ml(op: str, *inputs: Any, **options: Any) -> Any:
    """Check an operator of the domain; return the compiled model."""
    return check(op, *inputs, domain=ML, opset=3, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_scaler(dtype: Any) -> None:
    """One value or one per feature, of every dtype; vectors too."""
    x = noise(3, 4, scale=10).astype(dtype)
    ml("Scaler", x, offset=[1.5], scale=[0.25])
    ml("Scaler", x, offset=[1.0, 2.0, 3.0, 4.0], scale=[2.0, 0.5, -1.0, 0.0])
    ml("Scaler", x[0], scale=[2.0, 0.5, -1.0, 3.0])


def test_normalizer() -> None:
    """Rows of zeros stay; L2, which keeps signs in another way, is left to level 0."""
    x = noise(5, 7)
    x[2] = 0
    x[3] = -abs(x[3])
    for norm in ("MAX", "L1"):
        ml("Normalizer", x, norm=norm)
        ml("Normalizer", x[0], norm=norm)
    ml("Normalizer", x, norm="L2", host=True)


def test_binarizer_and_imputer() -> None:
    """NaN is no more than a threshold; it can be replaced, by column or everywhere."""
    x = ODD.astype(np.float32).reshape(2, 5)
    ml("Binarizer", x, threshold=0.5)
    ml("Imputer", x, imputed_value_floats=[1.0, 2.0, 3.0, 4.0, 5.0], replaced_value_float=float("nan"))
    ml("Imputer", x, imputed_value_floats=[7.0], replaced_value_float=1.5)
    whole = np.arange(6).reshape(2, 3)
    ml("Imputer", whole, imputed_value_int64s=[9, 8, 7], replaced_value_int64=4)


def test_array_feature_extractor() -> None:
    """Known and computed indices; one outside the axis fails as on level 0."""
    x = noise(4, 6)
    ml("ArrayFeatureExtractor", x, ints(5, 0, 3), const=[1])
    ml("ArrayFeatureExtractor", x, ints(2, 2, 1))
    ml("ArrayFeatureExtractor", x[0], ints(4))
    for bad in (-1, 6):
        with pytest.raises((RunnerError, ValueError)):
            ml("ArrayFeatureExtractor", x, ints(bad))


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_models(transform: str) -> None:
    """Labels by the first highest score; labels that are not 0, 1, 2."""
    x, weights = noise(6, 4), [float(w) for w in noise(12, seed=1)]
    for labels in ([0, 1, 2], [7, -3, 5]):
        ml(
            "LinearClassifier", x, outputs=2, coefficients=weights, intercepts=[0.5, -0.25, 0.0],
            classlabels_ints=labels, post_transform=transform,
        )  # fmt: skip
    ml(
        "LinearRegressor",
        x,
        coefficients=weights,
        intercepts=[1.0, 2.0, 3.0],
        targets=3,
        post_transform=transform,
    )
    ml("LinearRegressor", x, coefficients=weights[:4], intercepts=[1.0], targets=1, post_transform=transform)


def test_what_level_0_keeps() -> None:
    """Labels that are strings, and one set of coefficients for two labels."""
    x, weights = noise(3, 2), [0.5, -1.0]
    ml("LinearClassifier", x, outputs=2, coefficients=weights, classlabels_ints=[0, 1], host=True)
    ml(
        "LinearClassifier", x, outputs=2, coefficients=weights * 2, classlabels_strings=["a", "b"], host=True
    )  # fmt: skip
