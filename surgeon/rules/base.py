"""What a rewrite rule is, and the graph it edits.

A rule is tried at one node, its root. It looks around through a :class:`Context`, and either leaves the graph
as it is (None: not concerned; :class:`Refusal`: it almost matched, and why not) or edits it through the
context and returns an :class:`Edit`. Check first, then edit: after the first edit a rule must not refuse.

A rule holds in every run, for every input: what it does not know of shapes, types or contents it must not
assume. ``Context.facts`` tells what is known.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from graphdoc.engine.attributes import decode
from graphdoc.engine.infer import Facts
from graphdoc.engine.ops.table import TensorType, canonical_domain
from graphdoc.surgeon.names import Names
from graphdoc.surgeon.tensors import renamable


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule that almost matched: why it did not (``--explain`` shows it)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the graph, in words."""

    text: str


class Rule(Protocol):
    """One rewrite.

    name: what ``--only`` and ``--skip`` take. group: the family, for the report and for ``--only`` too.
    ops: operators at which it is tried, "Conv" or "com.microsoft::Gelu"; (): at every node.
    default: False for rules that run on request only.
    """

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def ops(self) -> tuple[str, ...]: ...
    @property
    def default(self) -> bool: ...

    def apply(self, node: ir.Node, context: "Context") -> Edit | Refusal | None:
        """Try the rule at a node; edits the graph in place when it matches."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionRule:
    """A rule whose whole meaning is one function; see :func:`rule`."""

    name: str
    group: str
    ops: tuple[str, ...]
    function: Callable[[ir.Node, "Context"], Edit | Refusal | None]
    default: bool = True

    def apply(self, node: ir.Node, context: "Context") -> Edit | Refusal | None:
        """Call the function."""
        return self.function(node, context)


Apply = Callable[[ir.Node, "Context"], Edit | Refusal | None]


def rule(name: str, group: str, *ops: str, default: bool = True) -> Callable[[Apply], FunctionRule]:
    """Make the decorated function a rule."""
    return lambda function: FunctionRule(name, group, ops, function, default)


def operator_name(node: ir.Node) -> str:
    """Return the name of a node's operator as rules spell it: "Conv", "com.microsoft::Gelu"."""
    domain = canonical_domain(node.domain)
    return f"{domain}::{node.op_type}" if domain else node.op_type


def has_references(node: ir.Node) -> bool:
    """Whether an attribute of the node refers to a parameter of the function around it."""
    return any(attribute.is_ref() for attribute in node.attributes.data.values())


class Context:
    """The model under the rules: what is known of it, and the ways to edit it.

    facts: shapes, types and contents of values. options: those of :func:`graphdoc.surgeon.simplify.simplify`.
    root: the main graph or function that is worked on. touched: nodes near an edit, to be tried again.
    growth: bytes that folding added. copied: bytes of weights in files that were changed, so that they lie in
    memory now. virtual: results of folding that were too large to be kept; what follows
    from them may be small.
    left_open: values whose content the specification leaves open, and what follows from them.
    stored: constants that rules made, by graph and content: what is equal is stored once.
    """

    def __init__(
        self,
        model: ir.Model,
        facts: Facts,
        options: Any = None,
        kept: Callable[[ir.Value | ir.Node], bool] = lambda part: False,
    ) -> None:
        self.model = model
        self.facts = facts
        self.options = options
        self.kept = kept
        self.root: ir.Graph | ir.Function = model.graph
        self.names = Names(model)
        self.touched: dict[ir.Node, None] = {}
        self.growth = 0
        self.copied = 0
        self.virtual: dict[ir.Value, np.ndarray[Any, Any]] = {}
        self.left_open: set[ir.Value] = set()
        self.stored: dict[Any, ir.Value] = {}
        self._removed = 0

    # ---- looking around

    def opset(self, domain: str = "") -> int:
        """Return the version of a domain in the graph that is worked on; 1 where none is stated."""
        imports = self.root.opset_imports if isinstance(self.root, ir.Function) else self.model.opset_imports
        domain = canonical_domain(domain)
        return imports.get(domain, imports.get("ai.onnx", 1) if domain == "" else 1)

    def type_of(self, value: ir.Value | None) -> TensorType:
        """Return dtype, shape and content as far as they are known."""
        return self.facts.of(value)

    def array(self, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """Return the content of a value that is the same in every run, else None."""
        return None if value is None else self.facts.constant(value)

    def attribute(self, node: ir.Node, name: str, default: Any = None) -> Any:
        """Return an attribute as Python value (strings as str, tensors as arrays), or the default."""
        found = node.attributes.get(name)
        return default if found is None or found.is_ref() else decode(found)

    def producer(self, value: ir.Value | None, *ops: str) -> ir.Node | None:
        """Return the node that makes a value, if it is one of ``ops`` (none given: any operator).

        Nodes whose attributes refer to parameters of a function are no match: their meaning is not known.
        """
        node = None if value is None else value.producer()
        if node is None or has_references(node) or (ops and operator_name(node) not in ops):
            return None
        return node

    def is_output(self, value: ir.Value) -> bool:
        """Whether the value leaves its graph (or subgraph, or function)."""
        return value.is_graph_output()

    def single_use(self, value: ir.Value) -> bool:
        """Whether exactly one node of the same graph reads the value, once, and nothing else needs it."""
        if use_count(value) != 1 or value.is_graph_output() or self.kept(value):
            return False
        return next(iter(value.uses())).node.graph is value.graph

    def used_outside(self, value: ir.Value, nodes: Sequence[ir.Node]) -> bool:
        """Whether anything but ``nodes`` needs the value: other nodes, the graph's outputs, ``--keep``."""
        inside = set(nodes)
        return (
            value.is_graph_output()
            or self.kept(value)
            or any(usage.node not in inside for usage in value.uses())
        )

    def unused(self, node: ir.Node) -> bool:
        """Whether no output of the node is needed."""
        return not any(
            use_count(value) or value.is_graph_output() or self.kept(value) for value in node.outputs
        )

    # ---- editing

    def touch(self, *parts: ir.Node | ir.Value | None) -> None:
        """Have nodes tried again: the nodes given, makers and readers of the values given."""
        for part in parts:
            if isinstance(part, ir.Node):
                self.touched[part] = None
            elif part is not None:
                maker = part.producer()
                if maker is not None:
                    self.touched[maker] = None
                if use_count(part) <= _FEW:  # many readers are no pattern, and would make the work quadratic
                    self.touched.update(dict.fromkeys(usage.node for usage in part.uses()))

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: int = 1,
        domain: str = "",
        *,
        like: ir.Node,
    ) -> list[ir.Value]:
        """Insert a node before ``like``; return its outputs. Documentation and metadata come from ``like``.

        attributes: Python values, or ``ir.Attr``.
        """
        hint = next((str(value.name) for value in like.outputs if value.name), like.op_type)
        made = [ir.Value(name=self.names.value(f"{hint}_{op.lower()}")) for _ in range(outputs)]
        node = ir.Node(
            domain,
            op,
            inputs,
            ir.convenience.convert_attributes(dict(attributes or {})),
            outputs=made,
            name=self.names.node(like.name or hint),
            doc_string=like.doc_string,
            metadata_props=dict(like.metadata_props),
        )
        self._graph_of(like).insert_before(like, node)
        self._removed -= counts(node)
        self.touch(node, *inputs)
        return made

    def constant(
        self, array: np.ndarray[Any, Any], like: ir.Value | ir.Node, name: str | None = None
    ) -> ir.Value:
        """Return a constant in the graph of ``like``: an initializer, in functions a Constant node.

        name: a hint; the name becomes one that is not in use. An equal constant that a rule made in the same
        graph is returned as it is.
        """
        graph = like.graph
        if graph is None:
            raise ValueError(f"'{like.name}' lies in no graph")
        key = (graph, content_key(array))
        known = self.find_stored(key)
        if known is not None:
            return known
        hint = name or (like.name if isinstance(like, ir.Value) else str(like.outputs[0].name)) or "constant"
        name = self.names.value(hint)
        tensor = make_tensor(array, name)
        if isinstance(self.root, ir.Function):
            return self._constant_node(tensor, like, graph)
        return self.initializer(tensor, name, graph, key)

    def initializer(self, tensor: ir.TensorProtocol, name: str, graph: ir.Graph, key: Any = None) -> ir.Value:
        """Add an initializer under a name that is free; ``key`` is its content, to be found again."""
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=renamable(tensor),
        )
        graph.initializers.add(value)
        if key is not None:
            self.stored[key] = value
        return value

    def find_stored(self, key: Any) -> ir.Value | None:
        """Return a constant made before, if it is still there and may stand for another one."""
        known = self.stored.get(key)
        if known is None or not known.is_initializer() or known.is_graph_input():
            return None
        return known

    def has_constant(self, array: np.ndarray[Any, Any], like: ir.Value | ir.Node) -> bool:
        """Whether :meth:`constant` would return one that is there already."""
        return bool(self.stored) and self.find_stored((like.graph, content_key(array))) is not None

    def _constant_node(
        self, tensor: ir.TensorProtocol, like: ir.Value | ir.Node, graph: ir.Graph
    ) -> ir.Value:
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy())
        )
        node = ir.Node(
            "",
            "Constant",
            [],
            [ir.AttrTensor("value", tensor)],
            outputs=[value],
            name=self.names.node(f"{tensor.name}_constant"),
        )
        before = like if isinstance(like, ir.Node) else like.producer()
        if before is None:
            before = next(iter(graph))
        graph.insert_before(before, node)
        return value

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Put ``new`` wherever ``old`` is read, in subgraphs and among the outputs too.

        An output keeps its name and declared type: ``new`` takes them over, or an Identity does where ``new``
        cannot (see :meth:`takes_name`). Nodes that nobody needs any more go when they are visited.
        """
        self.touch(old, new)
        for usage in old.uses():
            usage.node.replace_input_with(usage.idx, new)
            self.touched[usage.node] = None
        if old.is_graph_output():
            self._replace_output(old, new)
        self.touch(new)

    def takes_name(self, old: ir.Value, new: ir.Value) -> bool:
        """Whether ``new`` can stand as a graph output in place of ``old`` without an Identity."""
        if not old.is_graph_output():
            return True
        fixed = new.is_graph_input() or new.is_graph_output() or self.kept(new)
        return not fixed and new.graph is old.graph

    def _replace_output(self, old: ir.Value, new: ir.Value) -> None:
        graph = old.graph
        if graph is None:
            raise ValueError(f"output '{old.name}' lies in no graph")
        name = str(old.name)
        places = [index for index, value in enumerate(graph.outputs) if value is old]
        final = new
        if not self.takes_name(old, new):
            final = ir.Value()
        old.name = self.names.value(name)
        final.name = name
        final.type, final.shape, final.doc_string = old.type, old.shape, old.doc_string
        final.metadata_props.update(old.metadata_props)
        if final is not new:
            self._identity(new, final, old, graph)
        for index in places:
            graph.outputs[index] = final

    def _identity(self, new: ir.Value, final: ir.Value, old: ir.Value, graph: ir.Graph) -> None:
        node = ir.Node("", "Identity", [new], outputs=[final], name=self.names.node(f"{final.name}_identity"))
        maker = old.producer()
        if maker is None:
            graph.append(node)
        else:
            graph.insert_after(maker, node)
        self._removed -= 1
        self.touch(node)

    def set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Let a node read another value.

        What is known of its outputs stays: a rule leaves them equal, whatever it does inside. A rule that
        makes *more* known of a value says so: ``context.facts.forget(value)``.
        """
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        self.touch(node.inputs[index], value, node)
        node.replace_input_with(index, value)

    def set_attribute(self, node: ir.Node, name: str, value: Any) -> None:
        """Set an attribute, or remove it (None)."""
        if value is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = (
                value if isinstance(value, ir.Attr) else ir.convenience.convert_attribute(name, value)
            )
        self.touch(node, *node.outputs)

    def remove(self, node: ir.Node) -> list[ir.Node]:
        """Remove a node that nothing needs; return who made its inputs. They are tried again."""
        inputs = [value for value in node.inputs if value is not None]
        inner: list[ir.Node] = []
        if subgraphs(node):
            inputs += captured(node)
            inner = inner_nodes(node)
        self._graph_of(node).remove(node, safe=True)
        for item in inner:
            for index in range(len(item.inputs)):
                item.replace_input_with(index, None)
            if item.graph is not None:
                item.graph.remove(item)
            self.touched.pop(item, None)
        self.touched.pop(node, None)
        self._removed += sum(map(counts, (node, *inner)))
        self.touch(*inputs)
        return [maker for value in inputs if (maker := value.producer()) is not None]

    def prune(self) -> None:
        """Remove touched nodes that nothing needs, and then what only they needed."""
        left = list(self.touched)
        while left:
            node = left.pop()
            if node.graph is not None and node.outputs and self.unused(node) and not self.kept(node):
                left += self.remove(node)

    def count_added(self, nodes: int) -> None:
        """Note nodes that were added by other means than :meth:`node`."""
        self._removed -= nodes

    def take_count(self) -> int:
        """Return how many nodes that compute fewer there are since the last call."""
        removed, self._removed = self._removed, 0
        return removed

    def _graph_of(self, node: ir.Node) -> ir.Graph:
        if node.graph is None:
            raise ValueError(f"node '{node.name}' lies in no graph")
        return node.graph


_FEW = 8


def use_count(value: ir.Value) -> int:
    """Return how often nodes read a value, without the copy of all uses that ``value.uses()`` makes."""
    return len(value._uses)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs in a node's attributes, in order."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():  # the mapping around it is slow, and this runs everywhere
        kind = attribute.type
        if kind is ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append(attribute.value)
        elif kind is ir.AttributeType.GRAPHS and not attribute.is_ref():
            found.extend(attribute.value)
    return found


def walk(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Yield the nodes of a graph, each followed by those of its subgraphs."""
    for node in graph:
        yield node
        for inner in subgraphs(node):
            yield from walk(inner)


def counts(node: ir.Node) -> bool:
    """Whether a node counts as one: a Constant only holds what could be an initializer."""
    return node.op_type != "Constant" or bool(node.domain)


def inner_nodes(node: ir.Node) -> list[ir.Node]:
    """Return the nodes in a node's subgraphs, nested ones too."""
    return [inner for graph in subgraphs(node) for inner in walk(graph)]


def captured(node: ir.Node) -> list[ir.Value]:
    """Return the values of enclosing graphs that a node's subgraphs read, each once."""
    inner = inner_nodes(node)
    if not inner:
        return []
    own = {value for item in inner for value in item.outputs}
    for graph in (g for item in (node, *inner) for g in subgraphs(item)):
        own.update(graph.inputs, graph.initializers.values())
    found = {value: None for item in inner for value in item.inputs if value is not None and value not in own}
    return list(found)


def content_key(array: np.ndarray[Any, Any]) -> Any:
    """Return what two arrays share exactly if they are equal bit for bit."""
    if array.dtype == object:
        return "string", array.shape, tuple(array.reshape(-1))
    raw = np.ascontiguousarray(array)
    if raw.nbytes <= SHORT:
        return raw.dtype.name, array.shape, raw.tobytes()
    digest = hashlib.sha256(raw.reshape(-1).view(np.uint8).data).digest()
    return raw.dtype.name, array.shape, digest


SHORT = 4096
"""Bytes up to which a content is its own key."""


def tensor_key(tensor: ir.TensorProtocol) -> Any:
    """Return the key of a short tensor's content."""
    return content_key(tensor.numpy())


def make_tensor(array: np.ndarray[Any, Any], name: str) -> ir.TensorProtocol:
    """Return a tensor of the array's own dtype; object arrays of str become string tensors."""
    if array.dtype == object:
        texts = [item.encode("utf-8", "surrogateescape") for item in array.reshape(-1)]
        return ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
