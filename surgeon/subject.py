"""A model as the rules of surgeon/lint.py see it: its graphs as they stand in the file, types, weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.engine.scope import MAIN, enter
from graphdoc.surgeon.checks import plain_domain
from graphdoc.surgeon.model import Source
from graphdoc.surgeon.pieces import read_opsets
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.texts import check_texts
from graphdoc.surgeon.types import UNKNOWN, ValueType, declared_types, dtype_name, infer, without_weights
from graphdoc.surgeon.weights import Held, Range, held_tensors, is_numeric, measure


@dataclass(frozen=True, slots=True)
class Place:
    """A graph or function body of the file.

    scope: the way to it. opsets: what holds in it. outer: names of the graphs around it. body: whether it is
    the main graph or a function, which nothing captures into.
    """

    graph: Any
    scope: str
    opsets: Mapping[str, int]
    outer: frozenset[str]

    def at(self, node: onnx.NodeProto) -> str:
        """Return how a node is called in findings."""
        name = node.name or next((output for output in node.output if output), "")
        return f"{node.op_type} {self.scope}{name}".rstrip()

    def version(self, node: onnx.NodeProto) -> int:
        """Return the opset version that holds for a node."""
        return self.opsets.get(plain_domain(node.domain), 1)

    @property
    def is_graph(self) -> bool:
        """Whether it declares types and holds initializers, as functions do not."""
        return isinstance(self.graph, onnx.GraphProto)


class Subject:
    """The model and what rules ask of it, each made once.

    Raises ModelError when the model is not sound.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.proto = source.proto
        check_texts(self.proto)
        self.model = read_model(self.proto, source.folder, external=False)

    @cached_property
    def functions(self) -> frozenset[tuple[str, str]]:
        """Domain and name of the model's own functions."""
        return frozenset((plain_domain(f.domain), f.name) for f in self.proto.functions)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The main graph, its subgraphs and the function bodies, in file order."""
        opsets = read_opsets(self.proto.opset_import)
        found = list(_places(self.proto.graph, MAIN, opsets, frozenset()))
        for function in self.proto.functions:
            way = f"{function.name}/"
            found += _places(function, way, read_opsets(function.opset_import), frozenset())
        return tuple(found)

    def nodes(self) -> Iterator[tuple[Place, onnx.NodeProto]]:
        """Yield every node with its graph."""
        for place in self.places:
            for node in place.graph.node:
                yield place, node

    def is_function(self, node: onnx.NodeProto) -> bool:
        """Whether a node calls one of the model's own functions."""
        return (plain_domain(node.domain), node.op_type) in self.functions

    def ir_nodes(self) -> Iterator[ir.Node]:
        """Yield every node of the graph in memory."""
        yield from self.model.graph.all_nodes()
        for function in self.model.functions.values():
            yield from function.all_nodes()

    @cached_property
    def inferred(self) -> Mapping[str, ValueType]:
        """Types of the main graph's values as they follow from inputs and weights alone, by name."""
        light = without_weights(self.proto)
        del light.graph.value_info[:]
        for info in light.graph.output:
            info.ClearField("type")
        return declared_types(infer(light).graph)

    def dtype(self, value: ir.Value | None) -> str:
        """Return the dtype of a value in words, "" when unknown."""
        if value is None:
            return ""
        if isinstance(value.type, ir.TensorType):
            return dtype_name(int(value.type.dtype))
        return self.inferred.get(str(value.name), UNKNOWN).dtype

    @cached_property
    def tensors(self) -> tuple[Held, ...]:
        """All tensors that the model holds."""
        return tuple(held_tensors(self.model))

    @cached_property
    def ranges(self) -> tuple[tuple[Held, Range], ...]:
        """Numeric tensors and what they hold; those that cannot be read are left out."""
        return tuple(self._ranges())

    def _ranges(self) -> Iterator[tuple[Held, Range]]:
        for held in self.tensors:
            if is_numeric(held.tensor):
                try:
                    yield held, measure(held.tensor)
                except ModelError:  # the rule for external data says so
                    continue


def constant(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Return the content of an initializer or Constant node, None when a value is neither or unreadable."""
    tensor = None if value is None else value.const_value or _of_node(value.producer())
    if tensor is None or not is_numeric(tensor):
        return None
    try:
        return tensor.numpy()
    except ModelError:
        return None


def _of_node(node: ir.Node | None) -> ir.TensorProtocol | None:
    if node is None or node.op_type != "Constant" or "value" not in node.attributes:
        return None
    attribute = node.attributes["value"]
    tensor: ir.TensorProtocol | None = None if attribute.is_ref() else attribute.value
    return tensor


def title(node: ir.Node) -> str:
    """Return how a node in memory is called in findings."""
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    return f"{node.op_type} {name}".rstrip()


def _places(graph: Any, scope: str, opsets: Mapping[str, int], outer: frozenset[str]) -> Iterator[Place]:
    yield Place(graph, scope, opsets, outer)
    names = outer | frozenset(defined(graph))
    for node in graph.node:
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            for inner in graphs:
                first = next((name for name in node.output if name), None) or node.name or node.op_type
                yield from _places(inner, enter(scope, first, attribute.name), opsets, names)


def defined(graph: Any) -> Iterator[str]:
    """Yield the names that a graph or function gives to values."""
    if isinstance(graph, onnx.GraphProto):
        yield from (info.name for info in graph.input)
        yield from (tensor.name for tensor in graph.initializer)
        yield from (sparse.values.name for sparse in graph.sparse_initializer)
    else:
        yield from graph.input
    for node in graph.node:
        yield from (name for name in node.output if name)


def used(graph: Any) -> set[str]:
    """Return the names that nodes, subgraphs, outputs and annotations of a graph read."""
    names = {info.name for info in graph.output} if isinstance(graph, onnx.GraphProto) else set(graph.output)
    for annotation in graph.quantization_annotation if isinstance(graph, onnx.GraphProto) else ():
        names.update(pair.value for pair in annotation.quant_parameter_tensor_names)
    for node in graph.node:
        names |= reads(node)
    return names


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node and its subgraphs read, their own inner values included."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
            names |= used(graph)
    return names
