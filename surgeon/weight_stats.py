"""Statistics of every weight, and equal weights shared. Tensors are read one by one, in bounded pieces."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.reader import annotation_names
from graphdoc.surgeon.stubs import refuse_stripped
from graphdoc.surgeon.types import dtype_name
from graphdoc.surgeon.weights import PIECE, Held, held_tensors, is_numeric, measure

SCHEMA = "graphdoc.weights/1"
INT8_STEPS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStats:
    """A constant of the model.

    minimum … std: of the finite elements; zeros: share that is 0, 0..1; fp16_over, fp16_zero: elements that
    fp16 makes infinite or 0. int8_error: norm of the rounding error of symmetric int8 with one scale ÷ norm.
    equals: name of the first weight with the same content, "" when this is the first. remark: why numbers
    are missing.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    zeros: float | None = None
    nan: int | None = None
    inf: int | None = None
    fp16_over: int | None = None
    fp16_zero: int | None = None
    int8_error: float | None = None
    equals: str = ""
    remark: str = ""


def weight_stats(model: ir.Model) -> Iterator[WeightStats]:
    """Yield the statistics of initializers and Constant nodes, in subgraphs and functions too.

    Raises ModelError for a stripped model.
    """
    refuse_stripped(model, "a look at them")
    first: dict[tuple[Any, ...], str] = {}
    for held in held_tensors(model):
        yield _stats(held, first)


def _stats(held: Held, first: dict[tuple[Any, ...], str]) -> WeightStats:
    tensor, name = held.tensor, f"{held.scope}{held.name}"
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    dtype = dtype_name(int(tensor.dtype))
    if not is_numeric(tensor):
        return WeightStats(name=name, dtype=dtype, shape=shape, bytes=0, remark="no real numbers")
    size = int(tensor.nbytes)
    try:
        array = tensor.numpy().reshape(-1)
        found = measure(tensor)
    except ModelError as error:
        return WeightStats(name=name, dtype=dtype, shape=shape, bytes=size, remark=error.cause)
    kept = first.setdefault((dtype, shape, digest(array)), name)
    real = array.dtype.kind not in "iub"
    mean, std = _moments(array, found.size - found.nan - found.inf)
    return WeightStats(
        name=name,
        dtype=dtype,
        shape=shape,
        bytes=size,
        minimum=found.minimum,
        maximum=found.maximum,
        mean=mean,
        std=std,
        zeros=found.zeros / found.size if found.size else None,
        nan=found.nan,
        inf=found.inf,
        fp16_over=found.fp16_over if real else None,
        fp16_zero=found.fp16_zero if real else None,
        int8_error=_int8_error(array, found.absmax) if real else None,
        equals="" if kept == name else kept,
    )


def _pieces(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the finite elements as float64, piece by piece."""
    for start in range(0, array.size, PIECE):
        wide = array[start : start + PIECE].astype(np.float64)
        yield wide[np.isfinite(wide)]


def _moments(array: np.ndarray[Any, Any], count: int) -> tuple[float | None, float | None]:
    if not count:
        return None, None
    mean = sum(float(piece.sum()) for piece in _pieces(array)) / count
    spread = sum(float(((piece - mean) ** 2).sum()) for piece in _pieces(array)) / count
    return mean, math.sqrt(spread)


def _int8_error(array: np.ndarray[Any, Any], absmax: float | None) -> float | None:
    if not absmax:
        return None
    step = absmax / INT8_STEPS
    gap = size = 0.0
    for piece in _pieces(array):
        error = np.rint(piece / step) * step - piece
        gap, size = gap + float(error @ error), size + float(piece @ piece)
    return math.sqrt(gap / size) if size else None


def digest(array: np.ndarray[Any, Any]) -> bytes:
    """Return a hash of an array's bytes, read in pieces."""
    found = hashlib.blake2b(digest_size=16)
    for start in range(0, array.size, PIECE):
        found.update(np.ascontiguousarray(array[start : start + PIECE]).view(np.uint8).data)
    return found.digest()


@dataclass(frozen=True, slots=True)
class Shared:
    """A weight whose readers now read another one of the same content."""

    name: str
    kept: str
    bytes: int


def dedup(model: ir.Model) -> tuple[Shared, ...]:
    """Let nodes share one initializer where several of a graph have equal dtype, shape and bytes; in place.

    Inputs, outputs and initializers that an input may override stay, and so do Constant nodes and what
    quantization annotations name.

    Raises ModelError for a stripped model.
    """
    refuse_stripped(model, "sharing equal ones")
    done = []
    for graph in model.graphs():
        first: dict[tuple[Any, ...], ir.Value] = {}
        named = annotation_names(graph)
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or not is_numeric(tensor) or value.is_graph_input() or value.is_graph_output():
                continue
            if value.name in named:
                continue
            shape = tuple(int(dim) for dim in tensor.shape.numpy())
            kept = first.setdefault((int(tensor.dtype), shape, digest(tensor.numpy().reshape(-1))), value)
            if kept is not value:
                value.replace_all_uses_with(kept)
                del graph.initializers[str(value.name)]
                done.append(Shared(str(value.name), str(kept.name), int(tensor.nbytes)))
    return tuple(done)
