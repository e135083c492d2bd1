"""A model as protobuf without its larger weights: what is checked and handed on must not hold them twice."""

import onnx
import onnx_ir as ir

from graphdoc.surgeon.tensors import Densified
from graphdoc.surgeon.writer import write_model

SMALLEST_SHARED = 1024
"""Bytes from which on a weight stays out; smaller ones may be shapes, which a model must hold itself."""


def without_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Return the model without the larger weights of its main graph, and the used ones of them by name."""
    placed: dict[int, onnx.TensorProto] = {}
    left_out: dict[str, ir.TensorProtocol] = {}
    inner = {id(t) for graph in model.graphs() if graph is not model.graph for t in _tensors(graph).values()}
    for name, tensor in _tensors(model.graph).items():
        if id(tensor) not in inner and _is_shared(tensor):
            placed[id(tensor)] = _elsewhere(name, tensor)
            if _is_used(model.graph, name):
                left_out[name] = tensor
    for graph in model.graphs():
        for name, tensor in _tensors(graph).items():
            if isinstance(tensor, ir.ExternalTensor) and id(tensor) not in placed:
                placed[id(tensor)] = _inline(name, tensor)
    return write_model(model, placed), left_out


def _tensors(graph: ir.Graph) -> dict[str, ir.TensorProtocol]:
    values = graph.initializers.items()
    return {name: value.const_value for name, value in values if value.const_value is not None}


def _is_shared(tensor: ir.TensorProtocol) -> bool:
    plain = tensor.dtype != ir.DataType.STRING and not isinstance(tensor, Densified)
    return plain and tensor.dtype.bitwidth >= 8 and tensor.nbytes >= SMALLEST_SHARED


def _is_used(graph: ir.Graph, name: str) -> bool:
    """Whether anything reads an initializer: ONNX Runtime drops the others before it is given any."""
    value = graph.initializers[name]
    return bool(value.uses()) or value.is_graph_output()


def _elsewhere(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """Return a message that says of the data only that it lies elsewhere."""
    proto = onnx.TensorProto(name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", "memory"), ("offset", "0"), ("length", str(tensor.nbytes))):
        proto.external_data.add(key=key, value=text)
    return proto


def _inline(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    return onnx.TensorProto(
        name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy(), raw_data=tensor.tobytes()
    )
