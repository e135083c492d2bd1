"""Small models for the tests of the surgeon."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def text(body: str, opset: int = 18, ir_version: int = 10, extra: str = "") -> onnx.ModelProto:
    """Return a model written in ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}{extra}]>\n{body}')


def value(name: str, shape: Sequence[Any] | None = (2,), dtype: int = FLOAT) -> onnx.ValueInfoProto:
    """Return a declaration of a tensor."""
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name: str, array: Any) -> onnx.TensorProto:
    """Return an initializer, float32 unless the array says otherwise."""
    array = np.asarray(array, np.float32) if not isinstance(array, np.ndarray) else array
    return numpy_helper.from_array(array, name)


def model(
    nodes: Sequence[onnx.NodeProto],
    *,
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[onnx.ValueInfoProto] = (),
    weights: Sequence[onnx.TensorProto] = (),
    opset: int = 18,
    ir_version: int = 10,
    **more: Any,
) -> onnx.ModelProto:
    """Return a model of the given nodes; x → y, both float32 of 2 elements, unless told otherwise."""
    graph = helper.make_graph(
        list(nodes), "g", list(inputs or [value("x")]), list(outputs or [value("y")]), list(weights)
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **more)


def relu() -> onnx.ModelProto:
    """Return the smallest sound model."""
    return model([helper.make_node("Relu", ["x"], ["y"], name="r")])


def add(weights: Any = (1.0, 2.0)) -> onnx.ModelProto:
    """Return y = x + w."""
    return model([helper.make_node("Add", ["x", "w"], ["y"], name="a")], weights=[weight("w", weights)])


def external(
    location: str, offset: int | None = 0, length: int | None = 8, dims: Sequence[int] = (2,)
) -> onnx.ModelProto:
    """Return y = x + w with w in an external file."""
    proto = add()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = dims
    tensor.data_location = TensorProto.EXTERNAL
    for key, number in (("location", location), ("offset", offset), ("length", length)):
        if number is not None:
            tensor.external_data.add(key=key, value=str(number))
    return proto
