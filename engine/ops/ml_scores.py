"""What the classifiers and regressors of ai.onnx.ml share: post transforms, labels, rows of features.

The specification names the transforms and leaves their formulas open; these are the ones ONNX Runtime
and onnx.reference agree on.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.host import strings, to_host
from graphdoc.engine.ops.table import Array, Call, TensorType


def rows(x: Array) -> Array:
    """Return features as [N, F]; a vector is one row.

    Raises ValueError when the rank is neither 1 nor 2.
    """
    if x.ndim not in (1, 2):
        raise ValueError(f"expected features of rank 1 or 2, got rank {x.ndim}")
    return x if x.ndim == 2 else x[None]


def texts(values: Sequence[str]) -> Array:
    """Return strings as an object array of rank 1."""
    return strings(list(values), (len(values),))


def label_table(xp: Any, integers: Sequence[int] | None, strings: Sequence[str] | None) -> Array:
    """Return the class labels as an array: strings (object, on the host) or int64."""
    if strings:
        return texts(strings)
    return xp.asarray(list(integers or ()), dtype=np.int64)


def pick(labels: Array, index: Array) -> Array:
    """Return labels[index]; labels of strings stay on the host."""
    return labels[to_host(index) if labels.dtype == object else index]


def label_type(integers: Sequence[int] | None, strings: Sequence[str] | None) -> np.dtype[Any]:
    """Return the dtype of the labels: object for strings, else int64."""
    return np.dtype(object if strings else np.int64)


def classified(
    call: Call,
    x: TensorType,
    integers: Sequence[int] | None,
    strings: Sequence[str] | None,
    columns: int | None,
) -> tuple[TensorType, TensorType]:
    """Return the types of (labels [N], scores [N, columns])."""
    batch = None if x.shape is None else (x.shape[0] if len(x.shape) == 2 else 1)
    labels = TensorType(label_type(integers, strings), (batch,))
    return labels, TensorType(call.real(np.float32), (batch, columns))


def logistic(xp: Any, z: Array) -> Array:
    """1 / (1 + e^-z), without overflow and exact for large negative z."""
    small = xp.exp(-xp.abs(z))
    return xp.where(z < 0, small, z.dtype.type(1)) / (1 + small)


def softmax(xp: Any, z: Array) -> Array:
    """e^z over its sum, along the last axis."""
    if not z.size:
        return z
    powers = xp.exp(z - z.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def softmax_zero(xp: Any, z: Array) -> Array:
    """Softmax over the scores that are not (nearly) zero; those that are stay (nearly) zero."""
    if not z.size:
        return z
    top = z.max(axis=-1, keepdims=True)
    counted = xp.abs(z) > z.dtype.type(1e-7)
    powers = xp.where(counted, xp.exp(z - top), 0)
    return xp.where(counted, powers, z * xp.exp(-top)) / powers.sum(axis=-1, keepdims=True)


def probit(xp: Any, z: Array) -> Array:
    """Inverse of the normal distribution function, by Winitzki's approximation of erf⁻¹ (a = 0.147).

    Both ONNX Runtime and onnx.reference use this approximation with these rounded constants.
    """
    y = 2 * z - 1
    log = xp.log((1 - y) * (1 + y))
    half = z.dtype.type(2 / (3.14159 * 0.147)) + log / 2
    root = xp.sqrt(xp.sqrt(half * half - log * z.dtype.type(1 / 0.147)) - half)
    return z.dtype.type(1.41421356) * xp.where(y < 0, -root, root)


def _unchanged(xp: Any, z: Array) -> Array:
    return z


TRANSFORMS = {
    "NONE": _unchanged,
    "LOGISTIC": logistic,
    "SOFTMAX": softmax,
    "SOFTMAX_ZERO": softmax_zero,
    "PROBIT": probit,
}


def transform(xp: Any, scores: Array, post_transform: str) -> Array:
    """Apply a post transform to scores [N, C], C ≥ 2.

    Raises ValueError for a name the specification does not list.
    """
    if post_transform not in TRANSFORMS:
        raise ValueError(f"unknown post_transform '{post_transform}'")
    result: Array = TRANSFORMS[post_transform](xp, scores)
    return result


def transform_single(xp: Any, scores: Array, post_transform: str) -> Array:
    """Apply a post transform to one column of scores: of a lone score only PROBIT changes anything."""
    return transform(xp, scores, post_transform) if post_transform == "PROBIT" else scores


def second_class(xp: Any, score: Array, post_transform: str, *, complement: bool) -> Array:
    """Return [N, 2] scores of (negative, positive) from the positive class's score [N].

    complement: the score is a share of 1, otherwise a signed margin. Only LOGISTIC is applied.
    """
    if post_transform == "LOGISTIC":
        return xp.stack([logistic(xp, -score), logistic(xp, score)], axis=-1)
    return xp.stack([1 - score if complement else -score, score], axis=-1)
