"""Random operators. The stream is NumPy's; a node with ``seed`` draws the same numbers at every run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.dtypes import from_code
from graphdoc.engine.ops.table import Array, Call, op


def generator(call: Call, seed: float | None) -> np.random.Generator:
    """Return the generator of a seed, or the one all unseeded nodes share."""
    if seed is None:
        return call.rng
    return np.random.default_rng(int(np.float32(seed).view(np.uint32)))


def _normal(
    call: Call, shape: Sequence[int], dtype: Any, mean: float, scale: float, seed: float | None
) -> Array:
    return call.xp.asarray(generator(call, seed).normal(mean, scale, tuple(shape)).astype(dtype))


@op("RandomNormal", 1, 22, random=True)
def random_normal(
    call: Call,
    *,
    shape: list[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    """A tensor of normally distributed numbers (ONNX RandomNormal-22)."""
    return _normal(call, shape, from_code(dtype), mean, scale, seed)


@op("RandomNormalLike", 1, 22, random=True)
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
    return _normal(call, x.shape, x.dtype if dtype is None else from_code(dtype), mean, scale, seed)


@op("Dropout", 7, 10, 12, 13, 22)
def dropout(
    call: Call,
    x: Array,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: int | None = None,
) -> tuple[Array, Array]:
    """x (ONNX Dropout-22)."""
    return x, call.xp.ones(x.shape, dtype=bool)
