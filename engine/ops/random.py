"""Random operators and Dropout.

The specification fixes distributions, not numbers. Unseeded nodes share the generator of the run; a node
with a ``seed`` draws the same numbers at every run.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.cast import convert
from graphdoc.engine.ops.dtypes import FLOAT32, FLOAT64, DType, from_code
from graphdoc.engine.ops.host import to_host
from graphdoc.engine.ops.precision import narrow
from graphdoc.engine.ops.shapes import BOOL
from graphdoc.engine.ops.table import Array, Call, TensorType, op

FLOAT = 1
INT32 = 6


def generator(call: Call, seed: float | None) -> np.random.Generator:
    """Return the generator of a seed (any float32), or the one that unseeded nodes share."""
    if seed is None:
        return call.rng
    return np.random.default_rng(int(np.float32(seed).view(np.uint32)))


def _shaped(call: Call, *, shape: Sequence[int], dtype: int = FLOAT, **_: Any) -> TensorType:
    return TensorType(call.real(from_code(dtype)), tuple(shape))


def _like(call: Call, x: TensorType, *, dtype: int | None = None, **_: Any) -> TensorType:
    return TensorType(x.dtype if dtype is None else call.real(from_code(dtype)), x.shape)


def _dtype(x: Array, code: int | None) -> DType:
    return x.dtype if code is None else from_code(code)


# ---- normal and uniform -------------------------------------------------------------------------------


def _normal(
    call: Call, shape: Sequence[int], dtype: DType, mean: float, scale: float, seed: float | None
) -> Array:
    return call.xp.asarray(generator(call, seed).normal(mean, scale, tuple(shape)).astype(dtype))


def _uniform(
    call: Call, shape: Sequence[int], dtype: DType, low: float, high: float, seed: float | None
) -> Array:
    return call.xp.asarray(generator(call, seed).uniform(low, high, tuple(shape)).astype(dtype))


@op("RandomNormal", 1, 22, infer=_shaped, random=True)
def random_normal(
    call: Call,
    *,
    shape: Sequence[int],
    dtype: int = FLOAT,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    """Normally distributed numbers in the given shape (ONNX RandomNormal-22)."""
    return _normal(call, shape, from_code(dtype), mean, scale, seed)


@op("RandomNormalLike", 1, 22, infer=_like, random=True)
def random_normal_like(
    call: Call,
    x: Array,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    """Normally distributed numbers in the shape of x (ONNX RandomNormalLike-22)."""
    return _normal(call, x.shape, _dtype(x, dtype), mean, scale, seed)


@op("RandomUniform", 1, 22, infer=_shaped, random=True)
def random_uniform(
    call: Call,
    *,
    shape: Sequence[int],
    dtype: int = FLOAT,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> Array:
    """Numbers between low and high in the given shape (ONNX RandomUniform-22)."""
    return _uniform(call, shape, from_code(dtype), low, high, seed)


@op("RandomUniformLike", 1, 22, infer=_like, random=True)
def random_uniform_like(
    call: Call,
    x: Array,
    *,
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> Array:
    """Numbers between low and high in the shape of x (ONNX RandomUniformLike-22)."""
    return _uniform(call, x.shape, _dtype(x, dtype), low, high, seed)


# ---- draws --------------------------------------------------------------------------------------------


@op("Bernoulli", 15, 22, infer=_like, random=True)
def bernoulli(call: Call, x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """1 with the probability that x gives, else 0 (ONNX Bernoulli-22)."""
    drawn = call.xp.asarray(generator(call, seed).random(x.shape))
    return (drawn < x).astype(_dtype(x, dtype))


def _multinomial_type(
    call: Call, x: TensorType, *, dtype: int = INT32, sample_size: int = 1, **_: Any
) -> TensorType:
    return TensorType(from_code(dtype), (x.shape[0], sample_size) if x.shape else None)


@op("Multinomial", 7, 22, infer=_multinomial_type, random=True)
def multinomial(
    call: Call, x: Array, *, dtype: int = INT32, sample_size: int = 1, seed: float | None = None
) -> Array:
    """Classes drawn by their log-probabilities: [batch, class] → [batch, sample] (ONNX Multinomial-22)."""
    logits = to_host(x).astype(np.float64)
    weights = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)
    drawn = generator(call, seed).random((len(weights), sample_size)) * weights[:, -1:]
    rows = [np.searchsorted(row, points, side="right") for row, points in zip(weights, drawn, strict=True)]
    return call.xp.asarray(np.array(rows, dtype=from_code(dtype)).reshape(drawn.shape))


# ---- Dropout ------------------------------------------------------------------------------------------


def _dropout_type(call: Call, x: TensorType, *_: Any, **__: Any) -> tuple[TensorType, TensorType]:
    return TensorType(x.dtype, x.shape), TensorType(BOOL, x.shape)


def _dropout_old_type(call: Call, x: TensorType, *_: Any, **__: Any) -> tuple[TensorType, TensorType]:
    return x, TensorType(x.dtype, x.shape)


def _dropped(call: Call, x: Array, ratio: float, drawn: np.ndarray[Any, Any]) -> tuple[Array, Array]:
    """Return (x ÷ (1 − ratio) where the draw is at least ratio, else 0; the bool mask)."""
    mask = call.xp.asarray(drawn >= ratio)
    full = x if x.dtype == FLOAT64 else x.astype(FLOAT32)
    return convert(call.xp, mask * full * (1 / (1 - ratio)), x.dtype), mask


@op("Dropout", 12, 13, 22, infer=_dropout_type)
def dropout(
    call: Call,
    x: Array,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: int | None = None,
) -> tuple[Array, Array]:
    """(x, mask of True) outside training; in training, elements drop out (ONNX Dropout-22)."""
    chance = 0.5 if ratio is None else float(ratio.reshape(()))
    if chance == 0 or training_mode is None or not bool(training_mode.reshape(())):
        return x, call.xp.ones(x.shape, dtype=bool)
    if seed is None:
        return _dropped(call, x, chance, call.rng.random(x.shape))
    # The specification's own cases draw from NumPy's older generator.
    return _dropped(call, x, chance, np.random.RandomState(seed % 2**32).random(x.shape))


@op("Dropout", 10, infer=_dropout_type)
def dropout_10(call: Call, x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """(x, mask of True): inference only (ONNX Dropout-10)."""
    return x, call.xp.ones(x.shape, dtype=bool)


@op("Dropout", 7, infer=_dropout_old_type)
def dropout_7(call: Call, x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """(x, mask of 1 in the dtype of x): inference only (ONNX Dropout-7)."""
    return x, call.xp.ones(x.shape, dtype=x.dtype)


@op("Dropout", 1, 6, infer=_dropout_old_type, random=True)
def dropout_1(
    call: Call, x: Array, *, is_test: int = 0, ratio: float = 0.5, consumed_inputs: Any = None
) -> tuple[Array, Array]:
    """Dropout in training unless ``is_test``; the mask has the dtype of x (ONNX Dropout-6)."""
    if is_test:
        return x, call.xp.ones(x.shape, dtype=x.dtype)
    result, mask = _dropped(call, x, ratio, call.rng.random(x.shape))
    return result, narrow(mask, x.dtype)
