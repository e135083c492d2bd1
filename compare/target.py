"""A model under comparison: its graph with functions inlined, and every value that can be tapped."""

import graphlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx.inliner
import onnx_ir as ir

from graphdoc.engine.scope import MAIN, enter, qualified
from graphdoc.surgeon.model import Source
from graphdoc.surgeon.reader import read_model

Constants = dict[str, onnx.TensorProto | onnx.NodeProto]
"""Initializers and Constant nodes by name."""

BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
"""Operators whose subgraphs are looked into, and the attributes that hold them."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value that a node computes.

    key: its tap name (engine/scope.py). inputs: keys of the values the node reads, those that its
    subgraphs capture included; an omitted optional input is "".
    """

    key: str
    node: str
    op: str
    domain: str
    scope: str
    inputs: tuple[str, ...]
    slot: int
    is_output: bool


@dataclass(frozen=True, slots=True)
class Feeding:
    """Where a layer's inputs come from: values known on both sides, and values computed in between.

    op: the layer's own operator.
    """

    sources: tuple[str, ...]
    between: tuple[str, ...]
    op: str


class Target:
    """A source made ready for runners."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model with its functions inlined; external data stays in its files."""
        proto = self.source.checked
        return onnx.inliner.inline_local_functions(proto) if proto.functions else proto

    @cached_property
    def model(self) -> ir.Model:
        """The same for the engine."""
        if not self.source.has_functions:
            return self.source.model
        return read_model(self.proto, self.source.folder)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every value in execution order; what a subgraph computes comes before its node's outputs."""
        return tuple(_walk(self.proto.graph, MAIN, {}, {o.name for o in self.proto.graph.output}))

    @cached_property
    def constants(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of initializers and Constant nodes, by key."""
        return dict(_constants(self.proto.graph, MAIN))

    def feeding(self, paired: Collection[str]) -> dict[str, "Feeding"]:
        """Return, for each value of ``paired``, what must be known to compute it alone.

        A value is reached from the nearest paired values; values in between are computed on the way.
        """
        makers = {point.key: point for point in self.points}
        return {key: _feeding(point, makers, paired) for key, point in makers.items() if key in paired}

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that have no initializer."""
        initializers = {tensor.name for tensor in self.proto.graph.initializer}
        return [value.name for value in self.proto.graph.input if value.name not in initializers]

    @property
    def outputs(self) -> list[str]:
        """Names of the model's outputs."""
        return [output.name for output in self.proto.graph.output]


def _feeding(point: Point, makers: Mapping[str, Point], paired: Collection[str]) -> Feeding:
    sources: dict[str, None] = {}
    between: dict[str, None] = {}
    left = list(point.inputs)
    while left:
        name = left.pop()
        maker = makers.get(name)
        if maker is None or name in paired:
            sources[name] = None
        elif name not in between:
            between[name] = None
            left.extend(maker.inputs)
    return Feeding(tuple(sources), tuple(between), point.op)


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is a literal rather than a layer."""
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def own_constants(graph: onnx.GraphProto) -> Constants:
    """Return the initializers and Constant nodes of a graph by name."""
    found: Constants = {tensor.name: tensor for tensor in graph.initializer}
    found.update((node.output[0], node) for node in graph.node if is_constant(node))
    return found


def first_output(node: onnx.NodeProto) -> str:
    """Return the output that stands for the node in scopes, as the engine chooses it."""
    return next((name for name in node.output if name), None) or node.name or node.op_type


def bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield (attribute name, graph) of a control-flow node."""
    if node.domain in ("", "ai.onnx"):
        wanted = BODIES.get(node.op_type, ())
        yield from ((a.name, a.g) for a in node.attribute if a.name in wanted)


def ordered(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes so that each stands after those it reads; the file's order where that holds."""
    nodes = list(graph.node)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = [[maker[n] for n in reads(node) if n in maker] for node in nodes]
    if all(need < i for i, row in enumerate(needs) for need in row):
        return nodes
    order = graphlib.TopologicalSorter(dict(enumerate(needs)))
    return [nodes[i] for i in order.static_order()]


def reads(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, those that its subgraphs capture included."""
    inner = [n for a in node.attribute for g in [a.g, *a.graphs] if g.node or g.output for n in captures(g)]
    return [name for name in [*node.input, *inner] if name]


def captures(graph: onnx.GraphProto) -> list[str]:
    """Return the names that a graph reads from its surroundings, in order of first use."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {s.values.name for s in graph.sparse_initializer}
    found: dict[str, None] = {}
    for node in graph.node:
        inner = [
            n for a in node.attribute for g in [a.g, *a.graphs] if g.node or g.output for n in captures(g)
        ]
        found.update((name, None) for name in [*node.input, *inner] if name and name not in own)
        own.update(node.output)
    found.update((o.name, None) for o in graph.output if o.name not in own)
    return list(found)


def _walk(graph: onnx.GraphProto, scope: str, outer: Mapping[str, str], outputs: set[str]) -> Iterator[Point]:
    names = dict(outer)
    names.update((name, qualified(scope, name)) for name in _defined(graph))
    for node in ordered(graph):
        if is_constant(node):
            continue
        inner_names: list[str] = []
        for attribute, body in bodies(node):
            yield from _walk(body, enter(scope, first_output(node), attribute), names, set())
            inner_names += captures(body)
        reads = (*node.input, *dict.fromkeys(n for n in inner_names if n not in node.input))
        inputs = tuple(names.get(name, name) for name in reads)
        for slot, name in enumerate(node.output):
            if name:
                label = node.name or name
                key = qualified(scope, name)
                yield Point(key, label, node.op_type, node.domain, scope, inputs, slot, name in outputs)


def _defined(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        yield from (name for name in node.output if name)


def _constants(graph: onnx.GraphProto, scope: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((qualified(scope, t.name), tuple(t.dims)) for t in graph.initializer)
    for node in graph.node:
        if is_constant(node):
            shape = next((tuple(a.t.dims) for a in node.attribute if a.name == "value"), ())
            yield qualified(scope, node.output[0]), shape
        for attribute, body in bodies(node):
            yield from _constants(body, enter(scope, first_output(node), attribute))
