"""A graph in the form in which alignment works on it: numbered nodes and values, form changes looked through.

Identity, Dropout, Cast between real types and quantisation hand on what they get, so the values around them
form one class and share one number; everything else is a node. Subgraphs stand in the list before the node
that holds them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from graphdoc.engine.scope import MAIN, enter, qualified
from graphdoc.surgeon import align_ops as ops
from graphdoc.surgeon.align_weights import Scaling, Weight

NONE = -1


@dataclass(slots=True)
class Body:
    """A subgraph of a node: attribute, scope number, its inputs and outputs as values."""

    attribute: str
    scope: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class Item:
    """A node. inputs, outputs: classes of values; an omitted one is −1.

    kind: operator class. slots: inputs in the order of the class, None: as they stand. parameters: how it
    works. frozen: the same, hashable.
    """

    node: ir.Node
    scope: int
    kind: str
    slots: tuple[int, ...] | None
    parameters: Mapping[str, Any]
    frozen: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bodies: tuple[Body, ...] = ()


@dataclass(slots=True)
class Scope:
    """A graph: its name (engine/scope.py), the one around it, and the item that holds it (−1: none)."""

    name: str
    outer: int
    holder: str


@dataclass(slots=True)
class Side:
    """One of the two graphs.

    values, names: every value and its tap name. root: value → first value of its class.
    weights: class → constant content. sources: class of a body input → (item, attribute, place).
    carriers: nodes that are looked through. extras: their further outputs → (class, operator, place).
    coded: values that hold quantised codes. decoded: class → the value that DequantizeLinear makes of it.
    inputs, outputs: of the main graph, as values.
    """

    values: list[ir.Value] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    root: list[int] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    weights: dict[int, Weight] = field(default_factory=dict)
    sources: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    carriers: list[tuple[ir.Node, int]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    coded: set[int] = field(default_factory=set)
    decoded: dict[int, int] = field(default_factory=dict)
    extras: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    number: dict[ir.Value, int] = field(default_factory=dict)
    producer: dict[int, tuple[int, int]] = field(default_factory=dict)
    consumers: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def classes(self) -> Iterator[int]:
        """Yield the first value of each class, in order."""
        yield from (value for value, root in enumerate(self.root) if value == root)

    def data(self, item: Item) -> Iterator[int]:
        """Yield the classes that an item reads and that are no constants."""
        yield from (value for value in item.inputs if value != NONE and value not in self.weights)


def read_side(graph: ir.Graph | ir.Function, opsets: Mapping[str, int]) -> Side:
    """Return a graph or function body, its subgraphs included, ready for alignment."""
    side = Side()
    reader = _Reader(side, {("" if d == "ai.onnx" else d): v for d, v in opsets.items()})
    reader.graph(graph, MAIN, NONE, "")
    for number, item in enumerate(side.items):
        for slot, value in enumerate(item.outputs):
            side.producer[value] = (number, slot)
        for slot, value in enumerate(item.inputs):
            if value != NONE:
                side.consumers.setdefault(value, []).append((number, slot))
        for body in item.bodies:
            for place, value in enumerate(body.inputs):
                side.sources[value] = (number, body.attribute, place)
    side.inputs = [side.number[value] for value in graph.inputs]
    side.outputs = [side.number[value] for value in graph.outputs if value is not None]
    return side


class _Reader:
    def __init__(self, side: Side, opsets: Mapping[str, int]) -> None:
        self.side = side
        self.opsets = opsets
        self.integer: set[int] = set()

    def value(self, value: ir.Value, scope: str) -> int:
        """Return the number of a value; a new one is a class of its own."""
        side = self.side
        found = side.number.get(value)
        if found is None:
            found = side.number[value] = len(side.values)
            side.values.append(value)
            side.names.append(qualified(scope, value.name or ""))
            side.root.append(found)
        return found

    def graph(self, graph: ir.Graph | ir.Function, scope: str, outer: int, holder: str) -> int:
        side = self.side
        place = len(side.scopes)
        side.scopes.append(Scope(scope, outer, holder))
        for value in graph.inputs:
            self.value(value, scope)
        for value in getattr(graph, "initializers", {}).values():
            number = self.value(value, scope)
            if value.const_value is not None:
                side.weights[number] = Weight(value.const_value)
        for node in graph:
            self.node(node, place)
        for value in graph.outputs:
            if value is not None:
                self.value(value, scope)
        return place

    def node(self, node: ir.Node, scope: int) -> None:
        side, way = self.side, self.side.scopes[scope].name
        if ops.is_default(node.domain) and node.op_type == "Constant":
            self.constant(node, way)
            return
        inputs = [NONE if v is None else side.root[self.value(v, way)] for v in node.inputs]
        if self.carries(node, inputs):
            self.carry(node, inputs, scope)
            return
        if self.turns_weight(node, inputs, scope):
            return
        bodies = tuple(self.bodies(node, scope))
        outputs = tuple(self.value(v, way) for v in node.outputs)
        self._note_dtype(node, outputs)
        constants = {slot: side.weights[v] for slot, v in enumerate(inputs) if v in side.weights}
        found = ops.parameters(node, self.opsets.get(node.domain, 1), constants)
        given = ops.PARAMETERS.get(node.op_type, {}) if ops.is_default(node.domain) else {}
        for slot in constants:
            if given.get(slot, "") in found:
                inputs[slot] = NONE  # it counts as an attribute
        kind, slots = ops.kind_of(node)
        frozen = tuple(sorted(found.items()))
        side.items.append(Item(node, scope, kind, slots, found, frozen, tuple(inputs), outputs, bodies))

    def constant(self, node: ir.Node, way: str) -> None:
        number = self.value(node.outputs[0], way)
        for attribute in node.attributes.values():
            tensor = None if attribute.is_ref() else constant_tensor(attribute)
            if tensor is not None:
                self.side.weights[number] = Weight(tensor)

    def turns_weight(self, node: ir.Node, inputs: list[int], scope: int) -> bool:
        """Note a Transpose of a constant as a constant; return whether the node is one."""
        weight = self.side.weights.get(inputs[0]) if inputs else None
        if node.op_type != "Transpose" or weight is None or weight.scaling or not ops.is_default(node.domain):
            return False
        axes = node.attributes.get_ints("perm", None) or range(len(weight.shape))[::-1]
        before = weight.turned or range(len(weight.shape))
        number = self.value(node.outputs[0], self.side.scopes[scope].name)
        self.side.carriers.append((node, scope))
        self.side.weights[number] = Weight(weight.tensor, turned=tuple(before[axis] for axis in axes))
        return True

    def carries(self, node: ir.Node, inputs: list[int]) -> bool:
        """Whether a node is looked through."""
        if not inputs or inputs[0] == NONE:
            return False
        if node.op_type in ops.CARRIERS:
            return ops.is_default(node.domain) or node.domain == "com.microsoft"
        if node.op_type != "Cast" or not ops.is_default(node.domain):
            return False
        to = node.attributes.get_int("to", 0)
        return to in ops.REAL and inputs[0] not in self.integer and self._real(inputs[0])

    def _real(self, value: int) -> bool:
        if value in self.side.weights:
            return self.side.weights[value].floating
        found = self.side.values[value].type
        return not isinstance(found, ir.TensorType) or int(found.dtype) in ops.REAL

    def carry(self, node: ir.Node, inputs: list[int], scope: int) -> None:
        side, way = self.side, self.side.scopes[scope].name
        side.carriers.append((node, scope))
        root = inputs[0]
        first, *others = (self.value(v, way) for v in node.outputs)
        side.root[first] = root
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            side.coded.add(first)
        elif node.op_type == "DequantizeLinear":
            side.decoded.setdefault(root, first)
        elif self._first(node) in side.coded:
            side.coded.add(first)
        if node.op_type == "DequantizeLinear" and root in side.weights:
            side.weights[first] = Weight(side.weights[root].tensor, self._scaling(node, inputs))
            side.root[first] = first  # the real numbers, not their codes
        elif root in side.weights:
            side.weights[first] = side.weights[root]
        for place, value in enumerate(others, 1):
            side.extras[value] = (root, node.op_type, place)

    def _scaling(self, node: ir.Node, inputs: list[int]) -> Scaling | None:
        found = [self.side.weights.get(value) for value in inputs[1:3]]
        if not found or found[0] is None:
            return None
        zero = found[1].tensor.numpy() if len(found) > 1 and found[1] is not None else None
        return Scaling(found[0].tensor.numpy(), zero, node.attributes.get_int("axis", 1) or 0)

    def _first(self, node: ir.Node) -> int:
        """Return the first input as it is read, not its class."""
        value = node.inputs[0] if node.inputs else None
        return NONE if value is None else self.side.number[value]

    def _note_dtype(self, node: ir.Node, outputs: tuple[int, ...]) -> None:
        first = self._first(node)
        if node.op_type.startswith(ops.CODED) or (node.op_type in _KEEPS and first in self.side.coded):
            self.side.coded.update(outputs)
        if node.op_type == "Cast":
            whole = node.attributes.get_int("to", 0) not in ops.REAL
        else:
            kept = node.op_type in _KEEPS and first != NONE and self.side.root[first] in self.integer
            whole = kept or ops.gives_integers(node.op_type)
        if whole:
            self.integer.update(outputs)

    def bodies(self, node: ir.Node, scope: int) -> Iterator[Body]:
        side, way = self.side, self.side.scopes[scope].name
        for attribute in node.attributes.values():
            if attribute.is_ref() or attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                continue
            first = next((v.name for v in node.outputs if v.name), None) or node.name or node.op_type
            graphs = attribute.value if attribute.type == ir.AttributeType.GRAPHS else [attribute.value]
            for graph in graphs:
                inner = self.graph(graph, enter(way, first, attribute.name), scope, node.op_type)
                inputs = tuple(side.number[v] for v in graph.inputs)
                outputs = tuple(side.root[side.number[v]] for v in graph.outputs)
                yield Body(attribute.name, inner, inputs, outputs)


_KEEPS = frozenset(
    {
        "Gather",
        "MaxPool",
        "Pad",
        "Slice",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Concat",
        "Transpose",
        "Expand",
        "Tile",
    }
)
"""Operators whose first output has the dtype of their first input and that integers go through."""


def constant_tensor(attribute: ir.Attr) -> ir.TensorProtocol | None:
    """Return the content of a Constant node's attribute as a tensor; None for sparse ones."""
    makers: dict[str, Any] = {
        "value_float": lambda v: ir.tensor(v, ir.DataType.FLOAT),
        "value_floats": lambda v: ir.tensor(list(v), ir.DataType.FLOAT),
        "value_int": lambda v: ir.tensor(v, ir.DataType.INT64),
        "value_ints": lambda v: ir.tensor(list(v), ir.DataType.INT64),
        "value_string": lambda v: ir.StringTensor([_octets(v)], shape=ir.Shape([])),
        "value_strings": lambda v: ir.StringTensor([_octets(i) for i in v], shape=ir.Shape([len(v)])),
    }
    if attribute.name == "value":
        tensor: ir.TensorProtocol = attribute.value
        return tensor
    if attribute.name in makers:
        made: ir.TensorProtocol = makers[attribute.name](attribute.value)
        return made
    return None


def _octets(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8")
