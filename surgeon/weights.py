"""What the weights of a model hold: ranges, zeros, NaN, and what fp16 cannot hold. Read in bounded pieces."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.scope import MAIN, enter

FP16_MAX = 65504.0
FP16_TINY = 2.0**-25
"""Magnitudes at or below this round to zero in fp16 (half of the smallest subnormal, 2⁻²⁴)."""

PIECE = 2**22
"""Elements looked at together."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that the model holds, and the graph it belongs to (engine/scope.py)."""

    name: str
    scope: str
    tensor: ir.TensorProtocol
    constant: bool


@dataclass(frozen=True, slots=True)
class Range:
    """Of the finite elements: smallest, largest, largest magnitude; None when there are none.

    zeros, nan, inf: counts. fp16_over, fp16_zero: non-zero finite elements that become infinity or 0.
    """

    size: int
    minimum: float | None = None
    maximum: float | None = None
    zeros: int = 0
    nan: int = 0
    inf: int = 0
    fp16_over: int = 0
    fp16_zero: int = 0

    @property
    def absmax(self) -> float | None:
        """The largest magnitude."""
        if self.minimum is None or self.maximum is None:
            return None
        return max(abs(self.minimum), abs(self.maximum))


def held_tensors(model: ir.Model) -> Iterator[Held]:
    """Yield initializers and tensors of Constant nodes, in subgraphs and functions too, in file order."""
    yield from _held(model.graph, MAIN)
    for function in model.functions.values():
        yield from _held(function.graph, f"{function.name}/")


def _held(graph: ir.Graph, scope: str) -> Iterator[Held]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield Held(str(value.name), scope, value.const_value, constant=False)
    for node in graph:
        first = next((v.name for v in node.outputs if v.name), None) or node.name or node.op_type
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _held(attribute.value, enter(scope, first, attribute.name))
            elif attribute.type == ir.AttributeType.TENSOR and node.op_type == "Constant":
                yield Held(first, scope, attribute.value, constant=True)


def is_numeric(tensor: ir.TensorProtocol) -> bool:
    """Whether the tensor holds real numbers."""
    return tensor.dtype not in (
        ir.DataType.STRING,
        ir.DataType.UNDEFINED,
        ir.DataType.COMPLEX64,
        ir.DataType.COMPLEX128,
    )


def measure(tensor: ir.TensorProtocol) -> Range:
    """Return what a numeric tensor holds. Raises ModelError when external data cannot be read."""
    array = tensor.numpy().reshape(-1)
    pieces = [_piece(array[start : start + PIECE]) for start in range(0, max(1, array.size), PIECE)]
    low = [piece.minimum for piece in pieces if piece.minimum is not None]
    high = [piece.maximum for piece in pieces if piece.maximum is not None]
    counts = {
        name: sum(getattr(piece, name) for piece in pieces)
        for name in ("size", "zeros", "nan", "inf", "fp16_over", "fp16_zero")
    }
    return Range(minimum=min(low, default=None), maximum=max(high, default=None), **counts)


def _piece(array: np.ndarray[Any, Any]) -> Range:
    if array.dtype.kind in "iub":
        return _integers(array)
    if array.dtype not in (np.float32, np.float64):
        narrow = np.dtype(array.dtype).itemsize
        array = array.astype(np.float32)
        if narrow == 1 and not array.size:
            return Range(0)
    finite = np.isfinite(array)
    nan = int(np.isnan(array).sum())
    values = array if finite.all() else array[finite]
    if not values.size:
        return Range(array.size, nan=nan, inf=array.size - nan)
    size = np.abs(values)
    zeros = int(np.count_nonzero(size == 0))
    return Range(
        array.size,
        minimum=float(values.min()),
        maximum=float(values.max()),
        zeros=zeros,
        nan=nan,
        inf=int(array.size - values.size - nan),
        fp16_over=int(np.count_nonzero(size >= 65520)),
        fp16_zero=int(np.count_nonzero(size <= FP16_TINY)) - zeros,
    )


def _integers(array: np.ndarray[Any, Any]) -> Range:
    if not array.size:
        return Range(0)
    low, high = array.min(), array.max()
    return Range(array.size, float(low), float(high), zeros=int(array.size - np.count_nonzero(array)))
