"""Gradient (ai.onnx.preview.training) as a function body: the graph from xs to y again, then backwards.

The attributes name values of the graph around the node; its inputs are the values they take. So the nodes
between are copied, fed with these inputs, and followed by one node of :mod:`graphdoc.engine.ops.gradient`
per operator, in reverse. Every value on the way can be tapped.
"""

from collections.abc import Sequence

import onnx_ir as ir

from graphdoc.engine.errors import GraphdocError, ModelError, UnsupportedOperatorError
from graphdoc.engine.ops.gradient import DOMAIN, SEED, TOTAL, ZERO
from graphdoc.engine.ops.table import canonical_domain, find

TRAINING = "ai.onnx.preview.training"


def gradient_body(node: ir.Node) -> ir.Function | None:
    """Return the function that stands in for a Gradient node, None for any other node.

    Raises ModelError when the names in xs, zs and y do not fit the graph, UnsupportedOperatorError for an
    operator between them that has no derivative.
    """
    if (node.domain, node.op_type) != (TRAINING, "Gradient"):
        return None
    xs, names = _names(node, "xs"), [*_names(node, "xs"), *_names(node, "zs")]
    if not isinstance(node.graph, ir.Graph) or len(names) != len(node.inputs):
        raise _wrong(node, f"{len(names)} values are named, the node has {len(node.inputs)} inputs")
    inputs = [ir.Value(name=name) for name in names]
    copy = _Copy(node, node.graph, dict(zip(names, inputs, strict=True)))
    y = copy.value(node.attributes["y"].as_string())
    outputs = _Backwards(node, list(copy.nodes), copy.nodes).run(y, inputs[: len(xs)])
    imports = {**node.graph.opset_imports, DOMAIN: _version(node)}
    graph = ir.Graph(inputs, outputs, nodes=copy.nodes, opset_imports=imports, name="gradient")
    return ir.Function(TRAINING, "Gradient", graph=graph, attributes=[])


def _version(node: ir.Node) -> int:
    """Return the version of the operators whose derivatives are asked for: some changed their meaning."""
    imports = node.graph.opset_imports if isinstance(node.graph, ir.Graph) else {}
    return imports.get("", imports.get("ai.onnx", 1))


def _names(node: ir.Node, attribute: str) -> Sequence[str]:
    return node.attributes[attribute].as_strings() if attribute in node.attributes else []


def _wrong(node: ir.Node, cause: str, kind: type[GraphdocError] = ModelError) -> GraphdocError:
    label = node.name or next((value.name for value in node.outputs if value.name), "")
    return kind(f"Gradient '{label}': {cause}")


class _Copy:
    """Copies of the nodes that compute a value from the inputs, in the order of the graph."""

    def __init__(self, gradient: ir.Node, graph: ir.Graph, values: dict[str, ir.Value]) -> None:
        self.gradient = gradient
        self.weights = graph.initializers
        self.makers = {str(value.name): node for node in graph for value in node.outputs}
        self.places = {node: place for place, node in enumerate(graph)}
        self.values = values
        self.nodes: list[ir.Node] = []

    def value(self, name: str) -> ir.Value:
        """Return the copy of a value, with all that it needs."""
        for node in sorted(self._needed(name), key=self.places.__getitem__):
            self._copy(node)
        return self._known(name)

    def _needed(self, name: str) -> set[ir.Node]:
        found: set[ir.Node] = set()
        waiting = [name]
        while waiting:
            current = waiting.pop()
            node = self.makers.get(current)
            if current not in self.values and node is not None and node not in found:
                found.add(node)
                waiting += [str(value.name) for value in node.inputs if value is not None]
        return found

    def _copy(self, node: ir.Node) -> None:
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            raise _wrong(self.gradient, f"no derivative of {node.op_type}", UnsupportedOperatorError)
        inputs = [None if value is None else self._known(str(value.name)) for value in node.inputs]
        outputs = [ir.Value(name=value.name) for value in node.outputs]
        attributes = node.attributes.values()
        self.nodes.append(ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs))
        for value in outputs:
            self.values.setdefault(str(value.name), value)

    def _known(self, name: str) -> ir.Value:
        if name not in self.values:
            self.values[name] = self._constant(name)
        return self.values[name]

    def _constant(self, name: str) -> ir.Value:
        weight = self.weights.get(name)
        if weight is None or weight.const_value is None:
            raise _wrong(self.gradient, f"y depends on '{name}', which is neither in xs nor in zs")
        content = ir.Attr("value", ir.AttributeType.TENSOR, weight.const_value)
        node = ir.Node("", "Constant", [], [content], outputs=[ir.Value(name=name)])
        self.nodes.append(node)
        return node.outputs[0]


class _Backwards:
    """Appends the derivatives of copied nodes, from the last to the first.

    parts: what reaches each value, one derivative per way.
    """

    def __init__(self, gradient: ir.Node, forward: Sequence[ir.Node], nodes: list[ir.Node]) -> None:
        self.gradient = gradient
        self.forward = forward
        self.nodes = nodes
        self.parts: dict[ir.Value, list[ir.Value]] = {}

    def run(self, y: ir.Value, xs: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the derivative of the sum of y by each of xs; zeros where y does not depend on it."""
        active = self._dependent(xs)
        self.parts[y] = self._add(SEED, [y], [f"d_{y.name}"])
        for node in reversed(self.forward):
            if node.outputs[0] in self.parts and not active.isdisjoint(node.inputs):
                self._derive(node, active)
        return [self._total(x) if x in self.parts else self._add(ZERO, [x], [f"d_{x.name}"])[0] for x in xs]

    def _dependent(self, xs: Sequence[ir.Value]) -> set[ir.Value | None]:
        active: set[ir.Value | None] = set(xs)
        for node in self.forward:
            if not active.isdisjoint(node.inputs):
                active.update(node.outputs)
        return active

    def _derive(self, node: ir.Node, active: set[ir.Value | None]) -> None:
        known = find(DOMAIN, node.op_type, _version(self.gradient)) is not None
        if canonical_domain(node.domain) or not known or len(node.outputs) > 1:
            raise _wrong(self.gradient, f"no derivative of {node.op_type}", UnsupportedOperatorError)
        values = [self._total(node.outputs[0]), *node.inputs, node.outputs[0]]
        names = [
            f"d_{node.outputs[0].name}_{place}" if value in active else None
            for place, value in enumerate(node.inputs)
        ]
        made = self._add(node.op_type, values, names, list(node.attributes.values()))
        for value, part in zip(node.inputs, made, strict=True):
            if value is not None and value in active:
                self.parts.setdefault(value, []).append(part)

    def _total(self, value: ir.Value) -> ir.Value:
        parts = self.parts[value]
        if len(parts) > 1:
            parts = self.parts[value] = self._add(TOTAL, parts, [f"d_{value.name}"])
        return parts[0]

    def _add(
        self,
        name: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[str | None],
        attributes: Sequence[ir.Attr] = (),
    ) -> list[ir.Value]:
        made = [ir.Value(name=output) for output in outputs]
        self.nodes.append(ir.Node(DOMAIN, name, inputs, attributes, outputs=made))
        return made
