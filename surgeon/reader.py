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

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.external import ExternalWeights, WeightFiles

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


@dataclass(frozen=True, slots=True)
class SparseTensor:
    """A sparse tensor (SparseTensorProto): ``values`` at ``indices``, linear or one row of coordinates each."""

    dims: tuple[int, ...]
    values: ir.TensorProtocol
    indices: ir.TensorProtocol
    proto: onnx.SparseTensorProto

    def dense(self) -> ir.Tensor:
        """Return the tensor with its zeros written out."""
        values = self.values.numpy()
        array = np.zeros(self.dims, dtype=values.dtype)
        indices = self.indices.numpy()
        if indices.ndim == 1:
            array.reshape(-1)[indices] = values
        else:
            array[tuple(indices.T)] = values
        return ir.Tensor(array, dtype=self.values.dtype, name=self.values.name)


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
        infos = {info.name: info for info in proto.value_info}
        inputs = [read_value(info) for info in proto.input]
        scope.values.update((str(value.name), value) for value in inputs)
        initializers = self._initializers(proto, scope)
        self._declare(proto.node, scope)
        for name, info in infos.items():
            if name in scope.values and not scope.values[name].is_graph_input():
                describe(scope.values[name], info)
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
        values = [self._initializer(t.name, self.tensor(t), scope) for t in proto.initializer if t.name]
        for sparse in proto.sparse_initializer:
            if sparse.values.name:
                values.append(self._initializer(sparse.values.name, self._densified(sparse), scope))
        return values

    def _initializer(self, name: str, tensor: ir.TensorProtocol, scope: _Scope) -> ir.Value:
        value = scope.values.get(name)
        if value is None:
            shape = ir.Shape(tensor.shape.numpy(), frozen=True)
            value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)
            scope.values[name] = value
        value.const_value = tensor
        return value

    def _densified(self, proto: onnx.SparseTensorProto) -> ir.LazyTensor:
        sparse = self.sparse(proto)
        return ir.LazyTensor(
            sparse.dense,
            dtype=sparse.values.dtype,
            shape=ir.Shape(sparse.dims),
            cache=True,
            name=proto.values.name,
        )

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

    def tensor(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """Return a tensor; its bytes stay in the message or in their file."""
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return ExternalWeights(proto, self._files)
        return ir.serde.deserialize_tensor(proto)

    def sparse(self, proto: onnx.SparseTensorProto) -> SparseTensor:
        """Return a sparse tensor."""
        return SparseTensor(tuple(proto.dims), self.tensor(proto.values), self.tensor(proto.indices), proto)

    def attribute(self, proto: onnx.AttributeProto, scope: _Scope) -> ir.Attr:
        """Return an attribute, its subgraphs read in ``scope``."""
        kind = ir.AttributeType(proto.type or _guess(proto))
        doc = proto.doc_string or None
        if proto.ref_attr_name:
            return ir.RefAttr(proto.name, proto.ref_attr_name, kind, doc_string=doc)
        read = _ATTRIBUTES.get(kind)
        return ir.Attr(proto.name, kind, read(self, proto, scope) if read else None, doc_string=doc)


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


_T = ir.AttributeType
_ATTRIBUTES: dict[ir.AttributeType, Any] = {
    _T.FLOAT: lambda reader, a, scope: a.f,
    _T.INT: lambda reader, a, scope: a.i,
    _T.STRING: lambda reader, a, scope: _text(a.s),
    _T.FLOATS: lambda reader, a, scope: a.floats,
    _T.INTS: lambda reader, a, scope: a.ints,
    _T.STRINGS: lambda reader, a, scope: [_text(s) for s in a.strings],
    _T.TENSOR: lambda reader, a, scope: reader.tensor(a.t),
    _T.TENSORS: lambda reader, a, scope: [reader.tensor(t) for t in a.tensors],
    _T.GRAPH: lambda reader, a, scope: reader.graph(a.g, scope),
    _T.GRAPHS: lambda reader, a, scope: [reader.graph(g, scope) for g in a.graphs],
    _T.SPARSE_TENSOR: lambda reader, a, scope: reader.sparse(a.sparse_tensor),
    _T.SPARSE_TENSORS: lambda reader, a, scope: [reader.sparse(s) for s in a.sparse_tensors],
    _T.TYPE_PROTO: lambda reader, a, scope: ir.TypeAndShape(*read_type(a.tp)),
    _T.TYPE_PROTOS: lambda reader, a, scope: [ir.TypeAndShape(*read_type(t)) for t in a.type_protos],
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
    """Set type, shape and documentation of a value as declared."""
    value.type, value.shape = read_type(info.type)
    value.doc_string = info.doc_string or None
    if info.metadata_props:
        value.metadata_props.update(read_pairs(info.metadata_props) or {})


_WRAPPED = {"sequence_type": ir.SequenceType, "optional_type": ir.OptionalType}
_PLAIN = {"tensor_type": ir.TensorType, "sparse_tensor_type": ir.SparseTensorType}


def read_type(proto: onnx.TypeProto) -> tuple[Any, ir.Shape | None]:
    """Return type and shape (that of the elements, for sequences); None where unknown or a map."""
    field = proto.WhichOneof("value")
    denotation = proto.denotation or None
    if field in _PLAIN:
        leaf = getattr(proto, field)
        shape = read_shape(leaf.shape) if leaf.HasField("shape") else None
        try:
            dtype = ir.DataType(leaf.elem_type)
        except ValueError:
            return None, shape
        return _PLAIN[field](dtype, denotation=denotation), shape
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
