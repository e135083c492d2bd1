"""ONNX types in words, and what ONNX shape inference knows of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx
import onnx.shape_inference

Dim = int | str | None
"""A size, a symbol, or unknown."""

KEPT_ELEMENTS = 1024
"""Initializers up to this size keep their data for shape inference: shapes, axes, indices."""

_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


@dataclass(frozen=True, slots=True)
class ValueType:
    """What is known of a value before it is computed.

    dtype: float32, seq(int64), map(string, float32) …; "" when unknown. shape: that of the elements, for
    sequences; None when the rank is unknown.
    """

    dtype: str = ""
    shape: tuple[Dim, ...] | None = None


UNKNOWN = ValueType()


def dtype_name(code: int) -> str:
    """Return the name of a TensorProto.DataType: float32, int64, float8e4m3fn; "" when undefined."""
    if code == 0 or code not in onnx.TensorProto.DataType.values():
        return ""
    name = str(onnx.TensorProto.DataType.Name(code))
    return _NAMES.get(name, name.lower())


def value_type(proto: onnx.TypeProto) -> ValueType:
    """Return a type in words."""
    field = proto.WhichOneof("value")
    if field in ("tensor_type", "sparse_tensor_type"):
        leaf = getattr(proto, field)
        name = dtype_name(leaf.elem_type)
        shape = tuple(_dim(dim) for dim in leaf.shape.dim) if leaf.HasField("shape") else None
        return ValueType(f"sparse({name})" if field.startswith("sparse") else name, shape)
    if field in ("sequence_type", "optional_type"):
        inner = value_type(getattr(proto, field).elem_type)
        return ValueType(f"{field[:3]}({inner.dtype})", inner.shape)
    if field == "map_type":
        inner = value_type(proto.map_type.value_type)
        return ValueType(f"map({dtype_name(proto.map_type.key_type)}, {inner.dtype})", inner.shape)
    return UNKNOWN


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or None


def infer(model: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """Return a copy without large weights, with types and shapes as ONNX shape inference finds them.

    Large initializers become inputs of the copy, so that their types stay known. When inference fails, the
    copy holds what the model declares.

    strict: raise onnx.shape_inference.InferenceError where declared and inferred contradict each other.
    """
    light = without_weights(model)
    try:
        return onnx.shape_inference.infer_shapes(light, strict_mode=strict, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        if strict:
            raise
        return light


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which initializers of more than 1024 elements are inputs."""
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    for field in ("name", "node", "input", "output", "value_info"):
        value = getattr(model.graph, field)
        graph.name = value if field == "name" else graph.name
        if field != "name":
            getattr(graph, field).MergeFrom(value)
    given = {info.name for info in graph.input}
    for tensor in model.graph.initializer:
        if _is_small(tensor):
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    return light


def _is_small(tensor: onnx.TensorProto) -> bool:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count <= KEPT_ELEMENTS and tensor.data_location != onnx.TensorProto.EXTERNAL


def _without(known: ValueType, invented: Callable[[str], bool]) -> ValueType:
    if known.shape is None or not any(isinstance(dim, str) for dim in known.shape):
        return known
    dims = tuple(None if isinstance(dim, str) and invented(dim) else dim for dim in known.shape)
    return ValueType(known.dtype, dims)


def symbols(model: onnx.ModelProto) -> frozenset[str]:
    """Return the symbols that a model itself uses for sizes; shape inference invents more (unk__0 …)."""
    graph = model.graph
    shapes = [value_type(info.type).shape or () for info in (*graph.input, *graph.output, *graph.value_info)]
    return frozenset(dim for shape in shapes for dim in shape if isinstance(dim, str))


def declared_types(
    graph: onnx.GraphProto, invented: Callable[[str], bool] = lambda symbol: False
) -> Mapping[str, ValueType]:
    """Return the types that a graph declares, by name; ``invented`` symbols count as unknown."""
    infos = (*graph.value_info, *graph.input, *graph.output)
    found = {info.name: _without(value_type(info.type), invented) for info in infos}
    for tensor in graph.initializer:
        found.setdefault(tensor.name, ValueType(dtype_name(tensor.data_type), tuple(tensor.dims)))
    return found
