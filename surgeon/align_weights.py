"""What the weights of two models have in common: content by digest, and alikeness after rounding.

Weights are sampled at evenly spread places, so that aligning two models reads kilobytes of each tensor.
"""

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import ModelError

SAMPLES = 1024
"""Elements of a weight that are looked at."""

ALIKE = 0.98
"""Correlation from which on two samples count as one weight, rounded: int8 keeps 0.999, int4 0.99."""

FEWEST = 8
"""Elements that a weight needs to tell it from others."""

_FLOATS = frozenset(
    map(
        np.dtype,
        (
            np.float16,
            np.float32,
            np.float64,
            ml_dtypes.bfloat16,
            ml_dtypes.float8_e4m3fn,
            ml_dtypes.float8_e4m3fnuz,
            ml_dtypes.float8_e5m2,
            ml_dtypes.float8_e5m2fnuz,
        ),
    )
)


@dataclass(slots=True)
class Scaling:
    """How integers stand for real numbers: (q − zero) × scale along an axis."""

    scale: np.ndarray[Any, Any]
    zero: np.ndarray[Any, Any] | None
    axis: int


@dataclass
class Weight:
    """A constant tensor of one model.

    scaling: when the model reads it through DequantizeLinear. turned: axes of a Transpose it goes through.
    """

    tensor: ir.TensorProtocol
    scaling: Scaling | None = field(default=None)
    turned: tuple[int, ...] | None = field(default=None)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        shape = tuple(int(dim) for dim in self.tensor.shape.numpy())
        return shape if self.turned is None else tuple(shape[axis] for axis in self.turned)

    @cached_property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @cached_property
    def _array(self) -> np.ndarray[Any, Any] | None:
        try:
            array = self.tensor.numpy()
        except ModelError:  # data that is not there: alignment does without
            return None
        return array if self.turned is None else array.transpose(self.turned)

    @cached_property
    def floating(self) -> bool:
        """Whether it stands for real numbers."""
        return self.scaling is not None or (self._array is not None and self._array.dtype in _FLOATS)

    @cached_property
    def sample(self) -> np.ndarray[Any, Any] | None:
        """Some elements as float64, the same places for equal shapes; None for texts and missing data."""
        array = self._array
        if array is None or array.dtype.kind in "OSUc":
            return None
        if array.ndim == 2 and array.shape[0] > array.shape[1]:
            array = array.T  # a weight and its transpose are sampled alike
        places = spread(array.size)
        index = np.unravel_index(places, array.shape) if array.ndim > 1 else (places,)
        values = array[index] if array.ndim else array.reshape(1)
        values = values.astype(np.float64)
        return values if self.scaling is None else self._scaled(values, index)

    def _scaled(self, values: np.ndarray[Any, Any], index: Any) -> np.ndarray[Any, Any]:
        scaling = self.scaling
        if scaling is None or not self.shape:
            return values
        turned = len(self.shape) == 2 and self.shape[0] > self.shape[1]
        axis = scaling.axis % len(self.shape)
        place = index[1 - axis if turned else axis] if scaling.scale.size > 1 else 0
        if scaling.scale.ndim > 1 or (scaling.scale.size > 1 and scaling.scale.size != self.shape[axis]):
            return values  # blocks: the codes themselves have to do
        zero = 0.0 if scaling.zero is None else scaling.zero.astype(np.float64).reshape(-1)[place]
        result: np.ndarray[Any, Any] = (values - zero) * scaling.scale.astype(np.float64).reshape(-1)[place]
        return result

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal content; fp32 and its copy in fp16 have the same key."""
        array = self._array
        if array is None:
            return ("missing", self.shape, self.tensor.name)
        if array.dtype.kind in "OSUc":
            return (
                "text",
                self.shape,
                hashlib.blake2b(repr(array.tolist()).encode(), digest_size=16).digest(),
            )
        values = self.sample if self.sample is not None else np.zeros(0)
        if self.floating:
            with np.errstate(over="ignore"):
                rounded = values.astype(np.float16)
            data, kind = (rounded + np.float16(0)).tobytes(), "real"
        else:
            data, kind = values.tobytes(), array.dtype.kind.replace("u", "i")
        return (kind, self._oriented, hashlib.blake2b(data, digest_size=16).digest())

    @cached_property
    def _oriented(self) -> tuple[int, ...]:
        return tuple(sorted(self.shape)) if len(self.shape) == 2 else self.shape

    @cached_property
    def literal(self) -> Any:
        """The content as Python numbers when it is short (a scalar, or up to 64 in a row), else None."""
        array = self._array
        if array is None or array.size > 64 or array.ndim > 1:
            return None
        found = array.tolist()
        return tuple(found) if isinstance(found, list) else found

    @cached_property
    def _centred(self) -> np.ndarray[Any, Any] | None:
        if self.sample is None or self.sample.size < FEWEST or not np.isfinite(self.sample).all():
            return None
        centred = self.sample - self.sample.mean()
        length = float(np.sqrt((centred * centred).sum()))
        unit: np.ndarray[Any, Any] | None = centred / length if length > 0 else None
        return unit

    def alike(self, other: "Weight") -> float:
        """Return the correlation of two weights of the same shape, -1..1; 0 when it cannot be told."""
        if self._oriented != other._oriented:
            return 0.0
        a, b = self._centred, other._centred
        return 0.0 if a is None or b is None else float(a @ b)


def spread(size: int) -> np.ndarray[Any, Any]:
    """Return up to 1024 places, evenly spread over ``size`` elements, the first and last among them."""
    if size <= SAMPLES:
        return np.arange(size)
    return np.linspace(0, size - 1, SAMPLES).astype(np.int64)
