"""A model as protobuf without its larger weights: what is checked and handed on must not hold them twice."""

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from graphdoc.surgeon.tensors import Densified
from graphdoc.surgeon.writer import write_model

SMALLEST_SHARED = 1024
"""Bytes from which on a weight stays out; smaller ones may be shapes, which a model must hold itself."""


@dataclass(frozen=True)
class Light:
    """A model without its weights.

    proto: what is left. given: weights of the main graph that lie in memory and are used, by name.
    folder: where the files of the others lie, "" when there are none.
    """

    proto: onnx.ModelProto
    given: dict[str, ir.TensorProtocol]
    folder: str


def without_weights(model: ir.Model) -> Light:
    """Return the model with weights in files left there, and the larger ones in memory left out."""
    placed: dict[int, onnx.TensorProto] = {}
    given: dict[str, ir.TensorProtocol] = {}
    inner = {id(t) for graph in model.graphs() if graph is not model.graph for t in _tensors(graph).values()}
    folder = _folder(model)
    for name, tensor in _tensors(model.graph).items():
        if id(tensor) not in inner and _is_shared(tensor) and not (folder and _is_external(tensor)):
            placed[id(tensor)] = _elsewhere(name, tensor)
            if _is_used(model.graph, name):
                given[name] = tensor
    for graph in model.graphs():
        for name, tensor in _tensors(graph).items():
            if _is_external(tensor) and not folder and id(tensor) not in placed:
                placed[id(tensor)] = _inline(name, tensor)
    return Light(write_model(model, placed), given, folder)


def _is_external(tensor: ir.TensorProtocol) -> bool:
    return isinstance(tensor, ir.ExternalTensor)


def _folder(model: ir.Model) -> str:
    """Return the folder that all weights in files are relative to, "" when there is not just one."""
    tensors = [tensor for graph in model.graphs() for tensor in _tensors(graph).values()]
    folders = {str(Path(t.base_dir).resolve()) for t in tensors if isinstance(t, ir.ExternalTensor)}
    return folders.pop() if len(folders) == 1 else ""


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
