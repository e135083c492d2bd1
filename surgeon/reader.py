"""ModelProto → onnx_ir.Model, without losing what onnx_ir has no place for.

Every part remembers the message it came from (``meta["graphdoc.origin"]``), so that surgeon/writer.py can
give back exactly what was there wherever nothing was edited. Differences to ``onnx_ir.serde``:

1. Sparse initializers become dense ones, computed when they are read.
2. Attributes may be sparse tensors, bytes that are not UTF-8, or untyped as in the first models.
3. Types that onnx_ir lacks (maps) are left unknown in memory.
4. Nodes out of order are sorted in memory.
5. External data goes through surgeon/external.py.

The protobuf is taken to be sound: surgeon/validate.py comes first.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.external import WeightFiles
from graphdoc.surgeon.tensors import Densified, read_sparse, read_tensor

ORIGIN = "graphdoc.origin"
QUANTIZATION = "quant_parameter_tensor_names"
"""Where onnx_ir keeps quantization annotations in ``meta``."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a part of the model was when it was loaded.

    proto: its message. index: a node's place in the file. parts: the attributes of a node, as loaded.
    order: the places of a graph's nodes in memory, when they were sorted. names: a graph's own values.
    """

    proto: Any
    index: int = -1
    parts: Any = ()
    order: tuple[int, ...] = ()
    names: frozenset[str] = frozenset()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Origin":
        return self


class _Scope:
    """The values of one graph by name, and the graph around it.

    pending: outputs of nodes that have not been read yet.
    """

    __slots__ = ("outer", "pending", "unsorted", "values")

    def __init__(self, outer: "_Scope | None") -> None:
        self.outer = outer
        self.values: dict[str, ir.Value] = {}
        self.pending: set[str] = set()
        self.unsorted = False

    def find(self, name: str) -> ir.Value | None:
        if not name:
            return None
        scope: _Scope | None = self
        while scope is not None:
            value = scope.values.get(name)
            if value is not None:
                if name in scope.pending:
                    scope.unsorted = True
                return value
            scope = scope.outer
        value = self.values[name] = ir.Value(name=name)
        return value


def read_model(proto: onnx.ModelProto, folder: Path | None) -> ir.Model:
    """Return the model in memory.

    folder: where external data lies; None refuses it when it is read.
    """
    return _Reader(WeightFiles(folder)).model(proto)


class _Reader:
    def __init__(self, files: WeightFiles) -> None:
        self._files = files

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        graph = self.graph(proto.graph, None)
        graph.opset_imports.update(read_opsets(proto.opset_import))
        model = ir.Model(
            graph,
            ir_version=proto.ir_version,
            producer_name=proto.producer_name or None,
            producer_version=proto.producer_version or None,
            domain=proto.domain or None,
            model_version=proto.model_version or None,
            doc_string=proto.doc_string or None,
            functions=[self.function(function) for function in proto.functions],
            metadata_props=read_pairs(proto.metadata_props),
            device_configurations=tuple(
                ir.serde.deserialize_model_configuration(item) for item in proto.configuration
            ),
        )
        model.meta[ORIGIN] = Origin(proto)
        return model

    def graph(self, proto: onnx.GraphProto, outer: _Scope | None) -> ir.Graph:
        scope = _Scope(outer)
        inputs = [read_value(info) for info in proto.input]
        scope.values.update((str(value.name), value) for value in inputs)
        initializers = self._initializers(proto, scope)
        self._declare(proto.node, scope)
        given = {info.name for info in proto.input}
        for info in proto.value_info:
            if info.name in scope.values and info.name not in given:
                describe(scope.values[info.name], info)
        nodes = [self._node(node, index, scope) for index, node in enumerate(proto.node)]
        outputs = [self._output(info, scope) for info in proto.output]
        for annotation in proto.quantization_annotation:
            if annotation.tensor_name in scope.values:
                pairs = read_pairs(annotation.quant_parameter_tensor_names)
                scope.values[annotation.tensor_name].meta[QUANTIZATION] = pairs or {}
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            doc_string=proto.doc_string or None,
            name=proto.name or None,
            metadata_props=read_pairs(proto.metadata_props),
        )
        self._finish(graph, proto, scope)
        return graph

    def _finish(self, graph: ir.Graph, proto: Any, scope: _Scope) -> None:
        """Sort the nodes where needed and remember the origin."""
        order: tuple[int, ...] = ()
        if scope.unsorted:
            try:
                graph.sort()
            except ValueError as error:
                raise ModelError(f"graph '{proto.name}' has a cycle", where=str(error)) from error
            order = tuple(node.meta[ORIGIN].index for node in graph)
        graph.meta[ORIGIN] = Origin(proto, order=order, names=frozenset(scope.values))

    def _initializers(self, proto: onnx.GraphProto, scope: _Scope) -> list[ir.Value]:
        tensors = [(t.name, read_tensor(t, self._files)) for t in proto.initializer]
        tensors += [(s.values.name, Densified(s, self._files)) for s in proto.sparse_initializer]
        return [self._initializer(name, tensor, scope) for name, tensor in tensors if name]

    def _initializer(self, name: str, tensor: ir.TensorProtocol, scope: _Scope) -> ir.Value:
        value = scope.values.get(name)
        if value is None:
            shape = ir.Shape(tensor.shape.numpy(), frozen=True)
            value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)
            scope.values[name] = value
        value.const_value = tensor
        return value

    def _declare(self, nodes: Iterable[onnx.NodeProto], scope: _Scope) -> None:
        """Make the values of all nodes first: nodes may be out of order."""
        for node in nodes:
            for name in node.output:
                if name:
                    scope.values[name] = ir.Value(name=name)
                    scope.pending.add(name)

    def _output(self, info: onnx.ValueInfoProto, scope: _Scope) -> ir.Value:
        value = scope.find(info.name) or ir.Value(name=info.name)
        describe(value, info)
        return value

    def _node(self, proto: onnx.NodeProto, index: int, scope: _Scope) -> ir.Node:
        inputs = [scope.find(name) for name in proto.input]
        attributes = tuple(self.attribute(item, scope) for item in proto.attribute)
        names = list(proto.output)
        node = ir.Node(
            proto.domain,
            proto.op_type,
            inputs,
            attributes,
            overload=proto.overload,
            outputs=[scope.values[name] if name else ir.Value(name="") for name in names],
            name=proto.name,
            doc_string=proto.doc_string or None,
            metadata_props=read_pairs(proto.metadata_props),
        )
        if proto.device_configurations:
            node.device_configurations = self._devices(proto, scope)
        scope.pending.difference_update(names)
        node.meta[ORIGIN] = Origin(proto, index, attributes)
        return node

    def _devices(self, proto: onnx.NodeProto, scope: _Scope) -> tuple[Any, ...]:
        visible: dict[str, ir.Value] = {}
        level: _Scope | None = scope
        while level is not None:
            visible = {**level.values, **visible}
            level = level.outer
        return tuple(
            ir.serde.deserialize_node_device_configuration(item, visible)
            for item in proto.device_configurations
        )

    def function(self, proto: onnx.FunctionProto) -> ir.Function:
        scope = _Scope(None)
        inputs = [ir.Value(name=name) for name in proto.input]
        scope.values.update((str(value.name), value) for value in inputs)
        self._declare(proto.node, scope)
        for info in proto.value_info:
            if info.name in scope.values:
                describe(scope.values[info.name], info)
        nodes = [self._node(node, index, scope) for index, node in enumerate(proto.node)]
        outputs = [scope.find(name) or ir.Value(name=name) for name in proto.output]
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            doc_string=proto.doc_string or None,
            opset_imports=read_opsets(proto.opset_import),
            name=proto.name,
            metadata_props=read_pairs(proto.metadata_props),
        )
        self._finish(graph, proto, scope)
        required = [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in proto.attribute]
        defaults = [self.attribute(item, scope) for item in proto.attribute_proto]
        return ir.Function(
            proto.domain,
            proto.name,
            proto.overload,
            graph=graph,
            attributes=[*required, *defaults],
        )

    def attribute(self, proto: onnx.AttributeProto, scope: _Scope) -> ir.Attr:
        """Return an attribute, its subgraphs read in ``scope``."""
        kind = ir.AttributeType(proto.type or _guess(proto))
        doc = proto.doc_string or None
        if proto.ref_attr_name:
            return ir.RefAttr(proto.name, proto.ref_attr_name, kind, doc_string=doc)
        return ir.Attr(proto.name, kind, self._attribute_value(kind, proto, scope), doc_string=doc)

    def _attribute_value(self, kind: ir.AttributeType, proto: onnx.AttributeProto, scope: _Scope) -> Any:
        if kind in _PLAIN:
            return _PLAIN[kind](proto)
        if kind in _TENSORS:
            return _TENSORS[kind](proto, self._files)
        if kind == _T.GRAPH:
            return self.graph(proto.g, scope)
        return [self.graph(graph, scope) for graph in proto.graphs] if kind == _T.GRAPHS else None


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


_T = ir.AttributeType

_PLAIN: dict[ir.AttributeType, Callable[[Any], Any]] = {
    _T.FLOAT: lambda a: a.f,
    _T.INT: lambda a: a.i,
    _T.STRING: lambda a: _text(a.s),
    _T.FLOATS: lambda a: a.floats,
    _T.INTS: lambda a: a.ints,
    _T.STRINGS: lambda a: [_text(s) for s in a.strings],
    _T.TYPE_PROTO: lambda a: ir.TypeAndShape(*read_type(a.tp)),
    _T.TYPE_PROTOS: lambda a: [ir.TypeAndShape(*read_type(t)) for t in a.type_protos],
}
_TENSORS: dict[ir.AttributeType, Callable[[Any, WeightFiles], Any]] = {
    _T.TENSOR: lambda a, files: read_tensor(a.t, files),
    _T.TENSORS: lambda a, files: [read_tensor(t, files) for t in a.tensors],
    _T.SPARSE_TENSOR: lambda a, files: read_sparse(a.sparse_tensor, files),
    _T.SPARSE_TENSORS: lambda a, files: [read_sparse(s, files) for s in a.sparse_tensors],
}

_FIELDS = {
    "f": _T.FLOAT,
    "i": _T.INT,
    "s": _T.STRING,
    "t": _T.TENSOR,
    "g": _T.GRAPH,
    "sparse_tensor": _T.SPARSE_TENSOR,
    "tp": _T.TYPE_PROTO,
    "floats": _T.FLOATS,
    "ints": _T.INTS,
    "strings": _T.STRINGS,
    "tensors": _T.TENSORS,
    "graphs": _T.GRAPHS,
    "sparse_tensors": _T.SPARSE_TENSORS,
    "type_protos": _T.TYPE_PROTOS,
}


def _guess(proto: onnx.AttributeProto) -> int:
    """Return the type of an attribute that states none (ONNX IR version 1) from the field that is set."""
    present = {field.name for field, _ in proto.ListFields()}
    return next((int(kind) for name, kind in _FIELDS.items() if name in present), 0)


def read_opsets(protos: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return domain → version; the default domain is "". Of several entries the last one holds."""
    return {("" if item.domain == "ai.onnx" else item.domain): item.version for item in protos}


def read_pairs(protos: Any) -> dict[str, str] | None:
    """Return key → value, or None when there are none."""
    return {entry.key: entry.value for entry in protos} or None


def read_value(info: onnx.ValueInfoProto) -> ir.Value:
    """Return a new value with the declared type and shape."""
    value = ir.Value(name=info.name)
    describe(value, info)
    return value


def describe(value: ir.Value, info: onnx.ValueInfoProto) -> None:
    """Set type, shape and documentation of a value as declared; what is not stated stays as it is."""
    if info.HasField("type"):
        value.type, value.shape = read_type(info.type)
    if info.doc_string:
        value.doc_string = info.doc_string
    if info.metadata_props:
        value.metadata_props.update(read_pairs(info.metadata_props) or {})


_WRAPPED = {"sequence_type": ir.SequenceType, "optional_type": ir.OptionalType}
_LEAVES = {"tensor_type": ir.TensorType, "sparse_tensor_type": ir.SparseTensorType}


def read_type(proto: onnx.TypeProto) -> tuple[Any, ir.Shape | None]:
    """Return type and shape (that of the elements, for sequences); None where unknown or a map."""
    field = proto.WhichOneof("value")
    denotation = proto.denotation or None
    if field in _LEAVES:
        leaf = getattr(proto, field)
        shape = read_shape(leaf.shape) if leaf.HasField("shape") else None
        try:
            dtype = ir.DataType(leaf.elem_type)
        except ValueError:
            return None, shape
        return _LEAVES[field](dtype, denotation=denotation), shape
    if field in _WRAPPED:
        inner, shape = read_type(getattr(proto, field).elem_type)
        if inner is not None:
            return _WRAPPED[field](inner, denotation=denotation), shape
    return None, None


def read_shape(proto: onnx.TensorShapeProto) -> ir.Shape:
    """Return a shape: int, symbol or unknown per axis."""
    dims: list[Any] = []
    denotations: list[str | None] = []
    for dim in proto.dim:
        field = dim.WhichOneof("value")
        if field == "dim_value":
            dims.append(dim.dim_value)
        else:
            dims.append(ir.SymbolicDim(dim.dim_param if field else None))
        denotations.append(dim.denotation or None)
    return ir.Shape(dims, denotations=denotations, frozen=True)
