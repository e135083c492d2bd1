"""Seeded operands for tests of com.microsoft."""

from typing import Any

import numpy as np

from tests.engine.domains import MS, engine

FLOATS = [np.float32, np.float16]
RNG = np.random.default_rng(0)


def f(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Seeded normal numbers."""
    return RNG.standard_normal(shape).astype(dtype)


def q(dtype: Any, *shape: int, low: int | None = None, high: int | None = None) -> np.ndarray[Any, Any]:
    """Seeded integers over the dtype's range, or low … high."""
    info = np.iinfo(dtype)
    bounds = info.min if low is None else low, info.max if high is None else high
    return RNG.integers(*bounds, shape, endpoint=True).astype(dtype)


def weights(*shape: int) -> np.ndarray[Any, Any]:
    """int8 within ±63: without VNNI, ONNX Runtime's uint8 × int8 products saturate above."""
    return q(np.int8, *shape, low=-63, high=63)


def s(value: float) -> np.ndarray[Any, Any]:
    return np.asarray(value, np.float32)


def i32(*items: Any) -> np.ndarray[Any, Any]:
    return np.array(items, np.int32)


def ms(op: str, *inputs: Any, **options: Any) -> Any:
    """Return the first output of an operator on level 0."""
    return engine(op, *inputs, domain=MS, **options)[0]
