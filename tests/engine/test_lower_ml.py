"""Scaling, picking and linear models of ai.onnx.ml on level 1, beside level 0."""

from typing import Any

import numpy as np
import pytest

from graphdoc.engine.errors import RunnerError
from tests.engine.lowered import ODD, check, ints, noise, whole_numbers

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
    """Rows of zeros stay; signs too."""
    x = noise(5, 7)
    x[2] = 0
    x[3] = -abs(x[3])
    for norm in ("MAX", "L1", "L2"):
        ml("Normalizer", x, norm=norm)
        ml("Normalizer", x[0], norm=norm)


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


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_one_set_of_coefficients_for_two_labels(transform: str) -> None:
    """The label by the sign; a score of 0 and no number are the first."""
    x = noise(5, 2)
    x[1], x[2] = 0, np.nan
    options = {"outputs": 2, "coefficients": [0.5, -1.0], "post_transform": transform}
    for labels in ([0, 1], [7, -3]):
        ml("LinearClassifier", x, classlabels_ints=labels, **options)
        ml("LinearClassifier", x, classlabels_ints=labels, intercepts=[0.25], **options)
    ml("LinearClassifier", x, classlabels_strings=["a", "b"], host=True, **options)


def test_feature_vectorizer() -> None:
    """Columns left out, and columns of zeros; vectors; several dtypes."""
    x, y = noise(3, 4), whole_numbers(3, 2)
    ml("FeatureVectorizer", x, inputdimensions=[4])
    ml("FeatureVectorizer", x, x[:, :2], inputdimensions=[3, 4])
    ml("FeatureVectorizer", y, inputdimensions=[2])
    ml("FeatureVectorizer", x[0], inputdimensions=[4])


def test_labels_that_are_strings() -> None:
    """The host looks them up."""
    x, weights = noise(3, 2), [0.5, -1.0]
    ml(
        "LinearClassifier", x, outputs=2, coefficients=weights * 2, classlabels_strings=["a", "b"], host=True
    )  # fmt: skip
