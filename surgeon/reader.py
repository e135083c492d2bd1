"""ModelProto → onnx_ir.Model, without losing what onnx_ir has no place for.

Every part remembers the message it came from (``meta["graphdoc.origin"]``), so that surgeon/writer.py can
give back exactly what was there wherever nothing was edited. Differences to ``onnx_ir.serde``:

1. Sparse initializers become dense ones, computed when they are read.
2. Attributes may be sparse tensors, bytes that are not UTF-8, or untyped as in the first models.
3. Types that onnx_ir lacks (maps) are left unknown in memory.
4. Nodes out of order are sorted in memory.
5. External data goes through surgeon/external.py.

What is not sound is refused on the way (surgeon/checks.py): a walk of its own would cost as much again.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon import checks
from graphdoc.surgeon.external import WeightFiles
from graphdoc.surgeon.pieces import (
    PLAIN,
    TENSORS,
    attribute_type,
    describe,
    read_opsets,
    read_pairs,
    read_value,
)
from graphdoc.surgeon.schemas import Signature
from graphdoc.surgeon.schemas import signature as find_signature
from graphdoc.surgeon.scopes import Scope
from graphdoc.surgeon.storage import check_sparse, check_tensor
from graphdoc.surgeon.tensors import Densified, read_tensor
from graphdoc.surgeon.texts import check_texts, require_text

ORIGIN = "graphdoc.origin"
QUANTIZATION = "quant_parameter_tensor_names"
"""Where onnx_ir keeps quantization annotations in ``meta``."""


def annotation_names(graph: ir.Graph) -> set[str]:
    """Return the names of what annotations are about, and of the scales and zero points that they name."""
    values = (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs))
    found = {str(value.name): value.meta[QUANTIZATION] for value in values if QUANTIZATION in value.meta}
    return {*found, *(name for pairs in found.values() for name in pairs.values())}


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


def read_model(proto: onnx.ModelProto, folder: Path | None, *, external: bool = True) -> ir.Model:
    """Return the model in memory; weights stay where they lie.

    folder: where external data lies; None: nowhere. external: check that the data is there; without that,
    what is missing fails when it is read.

    Raises ModelError when the model is not sound (surgeon/checks.py) or its external data is missing.
    """
    checks.check_model(proto)
    files = WeightFiles(folder)
    try:
        with _collector_paused():
            model = _Reader(proto, files).model(proto)
        if external:
            files.check()
    except (TypeError, UnicodeDecodeError):
        check_texts(proto)  # bytes among the names are by far the likeliest reason
        raise
    return model


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking the growing graph again and again: a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Reader:
    def __init__(self, proto: onnx.ModelProto, files: WeightFiles) -> None:
        self._files = files
        self._functions = checks.check_functions(proto.functions)
        self._calls: dict[checks.FunctionId, set[checks.FunctionId]] = {}
        self._caller: checks.FunctionId | None = None
        self._default_version = 1 if proto.ir_version < 3 else 0

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        require_text((proto.producer_name, proto.producer_version, proto.domain, proto.doc_string))
        opsets = read_opsets(proto.opset_import)
        graph = self.graph(proto.graph, Scope(None, opsets, checks.graph_label(proto.graph)))
        graph.opset_imports.update(opsets)
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
        checks.check_recursion(self._calls)
        model.meta[ORIGIN] = Origin(proto)
        return model

    def graph(self, proto: onnx.GraphProto, scope: Scope) -> ir.Graph:
        if scope.depth() > checks.DEEPEST:
            raise ModelError(f"more than {checks.DEEPEST} subgraphs lie in one another")
        inputs = [read_value(info) for info in proto.input]
        self._define(inputs, scope)
        initializers = self._initializers(proto, scope)
        self._declare(proto.node, scope)
        given = {value.name for value in inputs}
        for info in proto.value_info:
            if info.name in scope.values and info.name not in given:
                describe(scope.values[info.name], info)
        require_text((*scope.values, proto.name, proto.doc_string))
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

    def _define(self, inputs: list[ir.Value], scope: Scope) -> None:
        for value in inputs:
            if value.name in scope.values and value.name:
                raise checks.two_inputs(value.name, scope.where())
            scope.values[value.name or ""] = value

    def _finish(self, graph: ir.Graph, proto: Any, scope: Scope) -> None:
        """Sort the nodes where needed and remember the origin."""
        order: tuple[int, ...] = ()
        if scope.unsorted:
            try:
                graph.sort()
            except ValueError as error:
                raise checks.cycle(graph, scope.where()) from error
            order = tuple(node.meta[ORIGIN].index for node in graph)
        graph.meta[ORIGIN] = Origin(proto, order=order, names=frozenset(scope.values))

    def _initializers(self, proto: onnx.GraphProto, scope: Scope) -> list[ir.Value]:
        for tensor in proto.initializer:
            check_tensor(tensor, "initializer", scope.where)
        for sparse in proto.sparse_initializer:
            check_sparse(sparse, scope.where)
        tensors = [(t.name, read_tensor(t, self._files)) for t in proto.initializer]
        tensors += [(s.values.name, Densified(s, self._files)) for s in proto.sparse_initializer]
        return [self._initializer(name, tensor, scope) for name, tensor in tensors if name]

    def _initializer(self, name: str, tensor: ir.TensorProtocol, scope: Scope) -> ir.Value:
        value = scope.values.get(name)
        if value is None:
            shape = ir.Shape(tensor.shape.numpy(), frozen=True)
            value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)
            scope.values[name] = value
        value.const_value = tensor
        return value

    def _declare(self, nodes: Iterable[onnx.NodeProto], scope: Scope) -> None:
        """Make the values of all nodes first: nodes may be out of order."""
        values = scope.values
        for node in nodes:
            for name in node.output:
                if name in values and name:
                    raise checks.two_producers(name, nodes, scope.where())
                if name:
                    values[name] = ir.Value(name=name)
                    scope.pending.add(name)

    def _output(self, info: onnx.ValueInfoProto, scope: Scope) -> ir.Value:
        value = scope.find(info.name) if info.name else ir.Value(name="")
        if value is None:
            what = f"output '{info.name}' is"
            raise checks.never_produced(what, info.name, scope.names(), scope.where())
        describe(value, info)
        return value

    def _node(self, proto: onnx.NodeProto, index: int, scope: Scope) -> ir.Node:
        scope.node = (proto, index)
        name, op, domain, doc, overload = (
            proto.name,
            proto.op_type,
            proto.domain,
            proto.doc_string,
            proto.overload,
        )
        require_text((name, op, domain, doc, overload))
        inputs = [scope.find(item) if item else None for item in proto.input]
        names = list(proto.output)
        if None in inputs:
            _check_found(inputs, proto, scope)
        found = self._signature(domain, op, overload, scope)
        if found is not None:
            wrong = checks.misfit(found, proto, len(inputs), len(names))
            if wrong:
                raise ModelError(wrong, where=scope.here(), next_step=checks.EXPORT)
        attributes = tuple([self._attribute(item, found, scope) for item in proto.attribute])
        node = ir.Node(
            domain,
            op,
            inputs,
            attributes,
            overload=overload,
            outputs=[scope.values[item] if item else ir.Value(name="") for item in names],
            name=name,
            doc_string=doc or None,
            metadata_props=read_pairs(proto.metadata_props),
        )
        if proto.device_configurations:
            node.device_configurations = self._devices(proto, scope)
        scope.pending.difference_update(names)
        scope.node = None
        node.meta[ORIGIN] = Origin(proto, index, attributes)
        return node

    def _signature(self, domain: str, op: str, overload: str, scope: Scope) -> Signature | None:
        """Return what the schema of an operator asks for; functions of the model go first."""
        if self._functions:
            called = (checks.plain_domain(domain), op, overload)
            if called in self._functions:
                if called[0] not in scope.opsets and not self._default_version:
                    raise checks.not_imported(called[0], scope.here())
                if self._caller is not None:
                    self._calls.setdefault(self._caller, set()).add(called)
                return None
        key = (domain, op)
        if key not in scope.signatures:
            plain = checks.plain_domain(domain)
            version = scope.opsets.get(plain, self._default_version)
            if version == 0:
                raise checks.not_imported(plain, scope.here())
            scope.signatures[key] = find_signature(plain, op, version)
        return scope.signatures[key]

    def _devices(self, proto: onnx.NodeProto, scope: Scope) -> tuple[Any, ...]:
        visible: dict[str, ir.Value] = {}
        level: Scope | None = scope
        while level is not None:
            visible = {**level.values, **visible}
            level = level.outer
        return tuple(
            ir.serde.deserialize_node_device_configuration(item, visible)
            for item in proto.device_configurations
        )

    def function(self, proto: onnx.FunctionProto) -> ir.Function:
        self._caller = (checks.plain_domain(proto.domain), proto.name, proto.overload)
        opsets = read_opsets(proto.opset_import)
        scope = Scope(None, opsets, f"function {proto.domain}::{proto.name}")
        inputs = [ir.Value(name=name) for name in proto.input]
        self._define(inputs, scope)
        self._declare(proto.node, scope)
        for info in proto.value_info:
            if info.name in scope.values:
                describe(scope.values[info.name], info)
        require_text((*scope.values, proto.name, proto.domain, proto.overload, proto.doc_string))
        nodes = [self._node(node, index, scope) for index, node in enumerate(proto.node)]
        outputs = [self._output(onnx.ValueInfoProto(name=name), scope) for name in proto.output]
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            doc_string=proto.doc_string or None,
            opset_imports=opsets,
            name=proto.name,
            metadata_props=read_pairs(proto.metadata_props),
        )
        self._finish(graph, proto, scope)
        attributes = [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in proto.attribute]
        attributes += [self._attribute(item, None, scope) for item in proto.attribute_proto]
        return ir.Function(proto.domain, proto.name, proto.overload, graph=graph, attributes=attributes)

    def _attribute(self, item: onnx.AttributeProto, found: Signature | None, scope: Scope) -> ir.Attr:
        """Return an attribute, its subgraphs read in ``scope``; ``found`` is the operator's schema."""
        name, doc, reference = item.name, item.doc_string, item.ref_attr_name
        require_text((name, doc, reference))
        kind = attribute_type(item)
        if found is not None and found.attributes.get(name, kind) != kind:
            raise checks.wrong_type(item, found, scope.here())
        if reference:
            return ir.RefAttr(name, reference, kind, doc_string=doc or None)
        return ir.Attr(name, kind, self._value(item, kind, scope), doc_string=doc or None)

    def _value(self, item: onnx.AttributeProto, kind: ir.AttributeType, scope: Scope) -> Any:
        if kind in PLAIN:
            return PLAIN[kind](item)
        if kind in TENSORS:
            if kind == ir.AttributeType.TENSOR:
                check_tensor(item.t, "attribute", scope.here)
            return TENSORS[kind](item, self._files)
        if kind == ir.AttributeType.GRAPH:
            return self._subgraph(item.g, item.name, scope)
        if kind == ir.AttributeType.GRAPHS:
            return [self._subgraph(graph, item.name, scope) for graph in item.graphs]
        return None

    def _subgraph(self, proto: onnx.GraphProto, attribute: str, scope: Scope) -> ir.Graph:
        if scope.node is not None:
            checks.check_branch(attribute, proto, scope.node[0], scope.here())
        return self.graph(proto, Scope(scope, scope.opsets, attribute))


def _check_found(inputs: list[ir.Value | None], proto: onnx.NodeProto, scope: Scope) -> None:
    """Raise ModelError for the first input that has a name but no value."""
    for name, value in zip(proto.input, inputs, strict=True):
        if name and value is None:
            raise checks.never_produced(f"'{name}' is used but", name, scope.names(), scope.here())
