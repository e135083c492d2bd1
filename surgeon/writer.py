"""onnx_ir.Model → ModelProto; whatever was not edited comes out as it was read.

Each part is written anew, and where it still means what its origin meant (surgeon/reader.py) the original
spelling is kept: fields set to their default, entries listed twice, the order of nodes, sparse weights,
value_info of values that do not exist, types that onnx_ir lacks.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.declarations import Declarations
from graphdoc.surgeon.pieces import read_opsets, read_pairs
from graphdoc.surgeon.reader import ORIGIN, QUANTIZATION, Origin
from graphdoc.surgeon.tensors import Densified

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_MODEL_FIELDS = ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string")
_FUNCTION_VALUE_INFO = 10
"""The IR version from which functions may declare the types of their values."""


def write_model(model: ir.Model, placed: Mapping[int, onnx.TensorProto] | None = None) -> onnx.ModelProto:
    """Return the model as protobuf.

    placed: id of a tensor → the message to write in its place (weights that move to a file).

    Raises ModelError when an initializer has no data.
    """
    return _Writer(model.ir_version, placed or {}).model(model)


def attribute_proto(name: str, attribute: ir.Attr) -> onnx.AttributeProto:
    """Return the message of an attribute under a name; onnx_ir writes no sparse tensors and no bytes."""
    proto = onnx.AttributeProto()
    _Writer(0, {}).attribute(proto, attribute, None)
    proto.name = name
    return proto


def origin_of(part: Any) -> Origin | None:
    """Return what a graph, node or model was loaded from, or None for a new one."""
    origin: Origin | None = part.meta.get(ORIGIN)
    return origin


class _Writer:
    def __init__(self, ir_version: int, placed: Mapping[int, onnx.TensorProto]) -> None:
        self._ir_version = ir_version
        self._placed = placed

    def model(self, model: ir.Model) -> onnx.ModelProto:
        proto = onnx.ModelProto()
        origin = origin_of(model)
        for field in (
            "ir_version",
            "producer_name",
            "producer_version",
            "domain",
            "model_version",
            "doc_string",
        ):
            if getattr(model, field):
                setattr(proto, field, getattr(model, field))
        self.graph(proto.graph, model.graph)
        for function in model.functions.values():
            self.function(proto.functions.add(), function)
        _opsets(proto.opset_import, model.opset_imports, origin.proto.opset_import if origin else ())
        _pairs(proto.metadata_props, model.metadata_props, origin.proto.metadata_props if origin else ())
        for item in model.device_configurations:
            proto.configuration.append(ir.serde.serialize_model_configuration(item))
        if origin:
            proto.training_info.extend(origin.proto.training_info)
            keep_defaults(proto, origin.proto)
        return proto

    def graph(self, into: onnx.GraphProto, graph: ir.Graph) -> None:
        origin = origin_of(graph)
        source = origin.proto if origin and isinstance(origin.proto, onnx.GraphProto) else onnx.GraphProto()
        if graph.name:
            into.name = graph.name
        if graph.doc_string:
            into.doc_string = graph.doc_string
        values = Declarations(graph, source, origin.names if origin else frozenset())
        values.listed(into.input, graph.inputs, source.input)
        values.listed(into.output, graph.outputs, source.output)
        values.inner(into.value_info)
        self._initializers(into, graph, source)
        self._nodes(into.node, graph, origin)
        _annotations(into.quantization_annotation, values, source.quantization_annotation)
        _pairs(into.metadata_props, graph.metadata_props, source.metadata_props)
        keep_defaults(into, source)

    def _initializers(self, into: onnx.GraphProto, graph: ir.Graph, source: onnx.GraphProto) -> None:
        left = dict(graph.initializers)
        for sparse in source.sparse_initializer:
            tensor = left[sparse.values.name].const_value if sparse.values.name in left else None
            if isinstance(tensor, Densified) and tensor.sparse is sparse:
                self.sparse(into.sparse_initializer.add(), left.pop(sparse.values.name), tensor)
        last = {proto.name: proto for proto in source.initializer}
        for proto in source.initializer:
            if not proto.name or (last[proto.name] is not proto and _holds(left, last[proto.name])):
                into.initializer.add().CopyFrom(proto)  # nameless, or overridden by a later one
            elif proto.name in left and last[proto.name] is proto:
                self.tensor(into.initializer.add(), left.pop(proto.name))
        for value in left.values():
            if isinstance(value.const_value, Densified):  # renamed, or from another graph
                self.sparse(into.sparse_initializer.add(), value, value.const_value)
            else:
                self.tensor(into.initializer.add(), value)

    def sparse(self, into: onnx.SparseTensorProto, value: ir.Value, tensor: Densified) -> None:
        """Write a sparse weight as it was loaded, under the value's name; its parts may have moved."""
        into.CopyFrom(tensor.sparse)
        for part, message in zip(tensor.parts, (into.values, into.indices), strict=True):
            if id(part) in self._placed:
                message.CopyFrom(self._placed[id(part)])
        into.values.name = str(value.name)

    def tensor(self, into: onnx.TensorProto, value: ir.Value) -> None:
        """Write the tensor of an initializer under the value's name."""
        tensor = value.const_value
        if tensor is None:
            raise ModelError(
                f"initializer '{value.name}' has no data",
                next_step="set its const_value, or make it an input",
            )
        write_tensor(into, tensor, self._placed)
        if into.name != value.name:
            into.name = str(value.name)

    def _nodes(self, into: Any, graph: Iterable[ir.Node], origin: Origin | None) -> None:
        for node in _file_order(list(graph), origin):
            self.node(into.add(), node)

    def node(self, into: onnx.NodeProto, node: ir.Node) -> None:
        origin = origin_of(node)
        source = origin.proto if origin else onnx.NodeProto()
        into.op_type = node.op_type
        into.input.extend(_name(value) for value in node.inputs)
        outputs = [_name(value) for value in node.outputs]
        while not origin and outputs and not outputs[-1]:
            outputs.pop()
        into.output.extend(outputs)
        domain = source.domain if source.domain == "ai.onnx" and not node.domain else node.domain
        for field, text in (("name", node.name), ("domain", domain), ("overload", node.overload)):
            if text:
                setattr(into, field, text)
        if node.doc_string:
            into.doc_string = node.doc_string
        for attribute, proto in _attributes(node, origin):
            self.attribute(into.attribute.add(), attribute, proto)
        if node.metadata_props or source.metadata_props:
            _pairs(into.metadata_props, node.metadata_props, source.metadata_props)
        for item in node.device_configurations:
            into.device_configurations.append(_device(item))
        keep_defaults(into, source)

    def attribute(
        self, into: onnx.AttributeProto, attribute: ir.Attr, source: onnx.AttributeProto | None
    ) -> None:
        """Write an attribute; ``source`` is its message when it is one that was loaded."""
        same_name = source is not None and source.name == attribute.name
        if source is not None and same_name and (attribute.is_ref() or attribute.type not in _GRAPHS):
            into.CopyFrom(source)
            return
        if attribute.is_ref() or attribute.type not in {*_OWN, *_GRAPHS}:
            into.CopyFrom(_serialized(attribute))
            return
        into.name = attribute.name
        into.type = cast("onnx.AttributeProto.AttributeType", attribute.type.value)
        if attribute.doc_string:
            into.doc_string = attribute.doc_string
        self._attribute_value(into, attribute)
        if source is not None:
            keep_defaults(into, source)
            if not source.HasField("type"):
                into.ClearField("type")

    def _attribute_value(self, into: onnx.AttributeProto, attribute: ir.Attr) -> None:
        if attribute.type == ir.AttributeType.GRAPH:
            self.graph(into.g, attribute.value)
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.value:
                self.graph(into.graphs.add(), graph)
        else:
            _OWN[attribute.type](into, attribute.value)

    def function(self, into: onnx.FunctionProto, function: ir.Function) -> None:
        origin = origin_of(function.graph)
        source = origin.proto if origin else onnx.FunctionProto()
        for field in ("name", "domain", "overload", "doc_string"):
            if getattr(function, field):
                setattr(into, field, getattr(function, field))
        into.input.extend(_name(value) for value in function.inputs)
        into.output.extend(_name(value) for value in function.outputs)
        known = {proto.name: proto for proto in source.attribute_proto}
        for attribute in function.attributes.values():
            if attribute.value is None and not attribute.is_ref():
                into.attribute.append(attribute.name)
            else:
                self.attribute(into.attribute_proto.add(), attribute, known.get(attribute.name))
        _opsets(into.opset_import, function.opset_imports, source.opset_import)
        self._nodes(into.node, function, origin)
        if self._ir_version >= _FUNCTION_VALUE_INFO or source.value_info:
            Declarations(function.graph, source, origin.names if origin else frozenset()).inner(
                into.value_info
            )
        _pairs(into.metadata_props, function.metadata_props, source.metadata_props)
        keep_defaults(into, source)


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def _holds(left: Mapping[str, ir.Value], proto: onnx.TensorProto) -> bool:
    """Whether the initializer of that name is still the one that was loaded."""
    value = left.get(proto.name)
    return value is not None and getattr(value.const_value, "proto", None) is proto


def _file_order(nodes: list[ir.Node], origin: Origin | None) -> list[ir.Node]:
    """Return the nodes in the order of the file, if sorting them at load is all that changed it."""
    if not origin or not origin.order:
        return nodes
    places = [found.index if (found := origin_of(node)) else -1 for node in nodes]
    present = set(places)
    if [place for place in origin.order if place in present] != places:
        return nodes
    return [node for _, node in sorted(zip(places, nodes, strict=True), key=lambda pair: pair[0])]


def _attributes(node: ir.Node, origin: Origin | None) -> list[tuple[ir.Attr, onnx.AttributeProto | None]]:
    """Return the attributes with the messages they were loaded from."""
    current = list(node.attributes.values())
    if origin is None:
        return [(attribute, None) for attribute in current]
    loaded = list(zip(origin.parts, origin.proto.attribute, strict=True))
    last = {attribute.name: attribute for attribute in origin.parts}
    if {id(attribute) for attribute in current} == {id(attribute) for attribute in last.values()}:
        return loaded
    known = {id(attribute): proto for attribute, proto in loaded}
    return [(attribute, known.get(id(attribute))) for attribute in current]


def write_tensor(
    into: onnx.TensorProto, tensor: Any, placed: Mapping[int, onnx.TensorProto] | None = None
) -> None:
    """Write a tensor as it was loaded, or as raw bytes (strings: as strings)."""
    source = (placed or {}).get(id(tensor)) or getattr(tensor, "proto", None)
    if source is None:
        ir.serde.serialize_tensor_into(into, tensor)
        return
    into.CopyFrom(source)
    if (read_pairs(into.metadata_props) or {}) != (tensor.metadata_props or {}):
        into.ClearField("metadata_props")
        _pairs(into.metadata_props, tensor.metadata_props, ())


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8")


def _write_tensors(into: Any, tensors: Iterable[Any]) -> None:
    for tensor in tensors:
        write_tensor(into.add(), tensor)


_T = ir.AttributeType
_OWN: dict[ir.AttributeType, Callable[[Any, Any], object]] = {
    _T.STRING: lambda into, value: setattr(into, "s", _bytes(value)),
    _T.STRINGS: lambda into, value: into.strings.extend(_bytes(item) for item in value),
    _T.SPARSE_TENSOR: lambda into, value: into.sparse_tensor.CopyFrom(value.proto),
    _T.SPARSE_TENSORS: lambda into, value: into.sparse_tensors.extend(item.proto for item in value),
    _T.TENSOR: lambda into, value: write_tensor(into.t, value),
    _T.TENSORS: lambda into, value: _write_tensors(into.tensors, value),
}
"""Attributes that onnx_ir cannot write, or writes without the origin of what they hold."""


def _serialized(attribute: ir.Attr) -> onnx.AttributeProto:
    if attribute.is_ref():
        return ir.serde.serialize_reference_attribute(attribute)
    return ir.serde.serialize_attribute(attribute)


def _device(item: Any) -> onnx.NodeDeviceConfigurationProto:
    try:
        return ir.serde.serialize_node_device_configuration(item)
    except ValueError as error:
        raise ModelError(f"a device configuration cannot be written: {error}") from error


def keep_defaults(into: Any, source: Any) -> None:
    """Set the fields that ``source`` sets to their default and ``into`` leaves out."""
    for field, value in source.ListFields():
        if (
            not value
            and not field.is_repeated
            and field.message_type is None
            and not into.HasField(field.name)
        ):
            setattr(into, field.name, value)


def _pairs(into: Any, pairs: Mapping[str, str], source: Iterable[onnx.StringStringEntryProto]) -> None:
    """Write key → value, in the order and number of ``source`` when that means the same."""
    if (read_pairs(source) or {}) == dict(pairs):
        into.extend(source)
        return
    for key, value in pairs.items():
        into.add(key=key, value=value)


def _opsets(into: Any, versions: Mapping[str, int], source: Iterable[onnx.OperatorSetIdProto]) -> None:
    """Write domain → version, spelled as in ``source`` when that means the same."""
    if read_opsets(source) == dict(versions):
        into.extend(source)
        return
    for domain, version in versions.items():
        into.add(domain=domain, version=version)


def _annotations(into: Any, values: Declarations, source: Iterable[onnx.TensorAnnotation]) -> None:
    """Write the quantization annotations; those of values that never existed are kept."""
    now = {
        name: value.meta[QUANTIZATION] for name, value in values.alive.items() if QUANTIZATION in value.meta
    }
    then = {item.tensor_name: read_pairs(item.quant_parameter_tensor_names) or {} for item in source}
    for item in source:
        name = item.tensor_name
        if name not in values.known or (name in now and now[name] == then[name]):
            into.add().CopyFrom(item)
    for name, pairs in now.items():
        if pairs != then.get(name):
            _pairs(into.add(tensor_name=name).quant_parameter_tensor_names, pairs, ())
