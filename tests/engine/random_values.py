"""What random graphs hold: dtypes, contents, and arrays and nodes as protobuf."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float64, np.float16))
SIGNED = tuple(np.dtype(t) for t in (np.int64, np.int32, np.int16, np.int8))
UNSIGNED = tuple(np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
INTEGERS = SIGNED + UNSIGNED
BOOL = np.dtype(bool)
TEXT = np.dtype(object)
DTYPES = (*FLOATS, *INTEGERS, BOOL, TEXT)

F32, F64, F16 = FLOATS
I64, I32 = SIGNED[:2]


# ---- content by kind of dtype -------------------------------------------------------------------------


def kind(dtype: Any) -> str:
    dtype = np.dtype(dtype)
    if dtype == TEXT:
        return "text"
    return dtype.kind if dtype.kind in "iub" else "f"


def _floats(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], tame: bool) -> Any:
    style = rng.integers(8)
    scale = (1.0, 1.0, 1.0, 0.1, 8.0, 1.0, 1.0, 100.0)[style]
    values = rng.standard_normal(shape) * scale
    if style == 5:
        values = np.round(values * 2) / 2
    if not tame and style == 6 and rng.random() < 0.4:
        values = np.full(shape, rng.choice([0.0, 1.0, -0.0, 2.0, -1.0]))
    result = values.astype(dtype)
    if not tame and rng.random() < 0.12:
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, float(ml_dtypes.finfo(dtype).max), 1e-6, -1e-40])
        with np.errstate(over="ignore"):
            chosen = rng.choice(odd, shape).astype(dtype)
        result = np.where(rng.random(shape) < 0.3, chosen, result).astype(dtype)
    return result


def _integers(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], tame: bool) -> Any:
    info = np.iinfo(dtype)
    style = 0 if tame else rng.integers(8)
    if style == 7:
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if style == 6:
        return np.full(shape, rng.choice([0, 1]), dtype=dtype)
    values = rng.integers(max(info.min, -9), 10, shape, dtype=dtype)
    if not tame and style == 5:
        ends = rng.choice(np.array([info.min, info.max, 0, 1], dtype=dtype), shape)
        values = np.where(rng.random(shape) < 0.3, ends, values)
    return values.astype(dtype)


def _bools(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], tame: bool) -> Any:
    return rng.random(shape) < rng.choice([0.5, 0.5, 0.5, 0.0, 1.0])


_WORDS = ("", "a", "b c", "Ab", "é", "12", "a b,c", "xyz", "b")


def _texts(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], tame: bool) -> Any:
    result = np.empty(shape, dtype=object)
    result.flat = [_WORDS[i] for i in rng.integers(0, len(_WORDS), int(np.prod(shape, dtype=int)))]
    return result


CONTENTS: Mapping[str, Any] = {"f": _floats, "i": _integers, "u": _integers, "b": _bools, "text": _texts}


# ---- models -------------------------------------------------------------------------------------------


def from_array(array: Any, name: str = "") -> onnx.TensorProto:
    """Return an array as a tensor; object arrays hold strings."""
    if array.dtype == TEXT:
        return helper.make_tensor(
            name, onnx.TensorProto.STRING, array.shape, [s.encode() for s in array.flat]
        )
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def element_type(dtype: np.dtype[Any]) -> int:
    """Return the TensorProto.DataType of a dtype."""
    return onnx.TensorProto.STRING if dtype == TEXT else int(ir.DataType.from_numpy(dtype))


def info(name: str, value: Any, dims: Sequence[int | str | None] | None = None) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor or a sequence of tensors."""
    if isinstance(value, list):
        code = element_type(value[0].dtype) if value else onnx.TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, code, None)
    return helper.make_tensor_value_info(
        name, element_type(value.dtype), value.shape if dims is None else dims
    )


def captured(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node's bodies read from around."""
    found: set[str] = set()
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found |= _free(attribute.g)
    return found


def _free(graph: onnx.GraphProto) -> set[str]:
    known = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    free: set[str] = set()
    for node in graph.node:
        free |= ({n for n in node.input if n} | captured(node)) - known
        known |= set(node.output)
    return free | ({o.name for o in graph.output} - known)


def lone_node(node: onnx.NodeProto, known: Mapping[str, Any], opset: int) -> onnx.ModelProto:
    """Return a model of one node whose inputs, and what its bodies read, are the model's inputs."""
    names = list(dict.fromkeys([*(n for n in node.input if n), *sorted(captured(node))]))
    inputs = [info(n, known[n]) for n in names]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    graph = helper.make_graph([node], "one", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def elements(shape: Sequence[int]) -> int:
    """Return how many elements a shape has."""
    return math.prod(shape)


def bodies(proto: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes, those of bodies too."""
    for node in proto.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from bodies(attribute.g)
