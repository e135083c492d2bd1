"""What is known of every value of a model before it runs: dtype, shape, content.

:class:`Facts` asks the operator table (``infer`` of each row) from a value's producer back to the inputs,
only for what somebody asks, and remembers the answers. It states only what holds in every run. What the file
declares of inner values is a claim: it fills in what was not inferred, and is dropped where it contradicts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine import infer_control as control
from graphdoc.engine.attributes import decode, to_array
from graphdoc.engine.body import bound_attributes, listed_outputs, resolved, version_of
from graphdoc.engine.functions import static_body
from graphdoc.engine.infer_types import MAX_CONTENT, UNKNOWN, bind, claimed, declared_type, small
from graphdoc.engine.ops.content import moved
from graphdoc.engine.ops.table import Call, Operator, TensorType, canonical_domain, find

_LEGACY_IR = 4
"""Below this IR version every initializer is listed as an input, and means a constant all the same."""

_RNG = np.random.default_rng(0)
"""For the signature only: random operators are not computed."""

_GRAPHS = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})

_ABSENT = TensorType()
"""Stands for an input that a function call leaves out."""


class Facts:
    """What is known of the values of a model, of its subgraphs and functions.

    model: may be edited meanwhile; then :meth:`forget` what changed. New nodes may be asked for at once.
    shapes: sizes of inputs by name, in place of the declared ones; a symbol that gets a size there has it
        everywhere. Raises InputError when they do not fit what the model declares.
    claims: whether declared types of inner values fill in what was not inferred.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        shapes: Mapping[str, Sequence[int | str]] | None = None,
        claims: bool = True,
    ) -> None:
        self.model = model
        self.claims = claims
        bound = bind(model.graph.inputs, shapes or {})
        self._given = {value: known for value, known in bound.items() if self.held(value) is None}
        self._owners: dict[ir.Graph, tuple[ir.Node | None, ir.Graph]] = {}
        self._frames: dict[ir.Graph, Frame] = {}
        self._main = Frame(self, model.graph, model.opset_imports, self._given)

    def of(self, value: ir.Value | None) -> TensorType:
        """Return what is known of a value; TensorType() when nothing is, a ContainerType for sequences."""
        return UNKNOWN if value is None else self._frame(value.graph).of(value)

    def constant(self, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """Return the content of a value that is the same in every run, else None.

        Initializers that no input overrides and Constant nodes of any size, without a copy (external data
        stays mapped); computed values of at most MAX_CONTENT elements.
        """
        if value is None:
            return None
        tensor = self.held(value)
        if tensor is not None:
            return to_array(tensor)
        known = self.of(value).value
        if known is None and (node := value.producer()) is not None and _is_constant(node):
            return self._frame(value.graph).constant_node(node)
        return known

    def held(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the tensor of an initializer that no input overrides, else None."""
        if value.producer() is not None or value.const_value is None:
            return None
        overridable = value.is_graph_input() and (self.model.ir_version or _LEGACY_IR) >= _LEGACY_IR
        return None if overridable else value.const_value

    def forget(self, *values: ir.Value | None) -> None:
        """Forget these values and all that was derived from them; they are inferred anew when asked for."""
        pending = [value for value in values if value is not None]
        while pending:
            value = pending.pop()
            self._drop(value)
            pending += [found for found in self._derived(value) if self._known(found)]

    def assume(self, value: ir.Value, known: TensorType) -> None:
        """Take something for known of a value from now on; of these facts nothing was asked before."""
        self._frame(value.graph).memo[value] = known

    def forget_all(self) -> None:
        """Forget everything but the sizes that were given."""
        self._owners.clear()
        self._frames.clear()
        self._main = Frame(self, self.model.graph, self.model.opset_imports, self._given)

    # ---- where a value belongs ------------------------------------------------------------------------

    def owner(self, graph: ir.Graph) -> ir.Node | None:
        """Return the node that holds a subgraph, None for the main graph and functions."""
        return self._place(graph)[0]

    def _find(self, graph: ir.Graph) -> tuple[ir.Node | None, ir.Graph] | None:
        found = self._owners.get(graph)
        if found is None or not _holds(found[0], graph):
            self._owners = dict(_subgraphs(self.model))
            found = self._owners.get(graph)
        return found

    def _place(self, graph: ir.Graph) -> tuple[ir.Node | None, ir.Graph]:
        return self._find(graph) or (None, self.model.graph)

    def _frame(self, graph: ir.Graph | None) -> "Frame":
        if graph is None or graph is self.model.graph:
            return self._main
        root = self._place(graph)[1]
        if root is self.model.graph:
            return self._main
        if root not in self._frames:
            self._frames[root] = self._called_frame(root)
        return self._frames[root]

    def _called_frame(self, root: ir.Graph) -> "Frame":
        """Return the frame of a function: what holds in all its calls."""
        function = next(f for f in self.model.functions.values() if f.graph is root)
        self._frames[root] = Frame(self, root, function.opset_imports, dict.fromkeys(root.inputs, UNKNOWN))
        calls = [node for node in _all_nodes(self.model) if node.op_identifier() == function.identifier()]
        types = [[self.of(value) for value in node.inputs] for node in calls]
        given = {
            value: control.joined([row[place] if place < len(row) else UNKNOWN for row in types])
            for place, value in enumerate(function.inputs)
        }
        arguments, differing = _common([bound_attributes(function, node, {}) for node in calls])
        return Frame(self, root, function.opset_imports, given, arguments, differing)

    # ---- forgetting -----------------------------------------------------------------------------------

    def _known(self, value: ir.Value) -> bool:
        return value in self._frame(value.graph).memo

    def _drop(self, value: ir.Value) -> None:
        self._frame(value.graph).memo.pop(value, None)

    def _derived(self, value: ir.Value) -> Iterator[ir.Value]:
        """Yield what is derived from a value in one step."""
        for node in value.consumers():
            yield from node.outputs
            for graph in control.bodies(node).values():
                yield from _values(graph)
            function = self.model.functions.get(node.op_identifier())
            if function is not None:
                self._frames.pop(function.graph, None)
        if value.is_graph_output() and value.graph not in (None, self.model.graph):
            owner = self.owner(value.graph)
            if owner is not None:
                yield from owner.outputs
                for graph in control.bodies(owner).values():
                    yield from _values(graph)
            else:
                self._frames.clear()


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and canonical_domain(node.domain) == ""


def _holds(node: ir.Node | None, graph: ir.Graph) -> bool:
    return node is None or (node.graph is not None and graph in control.bodies(node).values())


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _subgraphs(model: ir.Model) -> Iterator[tuple[ir.Graph, tuple[ir.Node | None, ir.Graph]]]:
    """Yield every graph with the node that holds it and the main graph or function around it."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        yield root, (None, root)
        for node in root.all_nodes():
            for graph in control.bodies(node).values():
                yield graph, (node, root)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield inputs and computed values of a graph and the graphs inside it."""
    yield from graph.inputs
    for node in graph.all_nodes():
        yield from node.outputs
        for inner in control.bodies(node).values():
            yield from inner.inputs


def _common(calls: Sequence[Mapping[str, ir.Attr]]) -> tuple[dict[str, ir.Attr], frozenset[str]]:
    """Return the attributes that all calls give the same value, and the names of the others."""
    names = {name for call in calls for name in call}
    same = {
        name: calls[0][name]
        for name in names
        if all(name in call and _equal(call[name], calls[0].get(name)) for call in calls)
    }
    return same, frozenset(names - set(same))


_COMPARED = frozenset({ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING})
_COMPARED_LISTS = frozenset({ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS})


def _equal(a: ir.Attr, b: ir.Attr | None) -> bool:
    if b is None or a.type != b.type:
        return False
    if a.type in _COMPARED_LISTS:
        return list(a.value) == list(b.value)
    return bool(a is b or (a.type in _COMPARED and a.value == b.value))


class Frame:
    """One graph with its subgraphs: the main graph, a function for all its calls, or one call of it.

    memo: what is known so far. given: the types of the graph's inputs. arguments: attributes of the call.
    differing: names of attributes that are not the same in all calls.
    """

    def __init__(
        self,
        facts: Facts,
        root: ir.Graph,
        opsets: Mapping[str, int],
        given: Mapping[ir.Value, TensorType],
        arguments: Mapping[str, ir.Attr] | None = None,
        differing: frozenset[str] = frozenset(),
    ) -> None:
        self.facts = facts
        self.root = root
        self.opsets = opsets
        self.arguments = arguments or {}
        self._differing = differing
        self._rows: dict[tuple[str, str], tuple[Operator | None, int]] = {}
        self.memo: dict[ir.Value, TensorType] = dict(given)

    def of(self, value: ir.Value | None) -> TensorType:
        """Return what is known of a value of this graph or a subgraph."""
        if value is None:
            return UNKNOWN
        found = self.memo.get(value)
        return self._infer(value) if found is None else found

    def _infer(self, value: ir.Value) -> TensorType:
        """Infer a value after all that it needs, without recursion: chains may be long."""
        pending, opened = [value], set()
        while pending:
            top = pending[-1]
            missing = () if top in self.memo else [v for v in self._needs(top) if v not in self.memo]
            if missing and top not in opened:
                opened.add(top)
                pending += missing
                continue
            for lost in missing:  # still missing: the graph runs in a circle
                self.memo[lost] = UNKNOWN
            if top not in self.memo:
                self._state(top)
            pending.pop()
        return self.memo[value]

    def _needs(self, value: ir.Value) -> Iterable[ir.Value]:
        node = value.producer()
        if node is not None:
            return control.needs(node, self)
        owner = self._owner(value)
        return () if owner is None else [v for v in owner.inputs if v is not None]

    def _owner(self, value: ir.Value) -> ir.Node | None:
        """Return the node whose subgraph has this value as an input."""
        graph = value.graph
        if graph is None or graph is self.root or not value.is_graph_input():
            return None
        return self.facts.owner(graph)

    def _state(self, value: ir.Value) -> None:
        node = value.producer()
        if node is None:
            self._source(value)
            return
        types = self._node(node)
        for place, output in enumerate(node.outputs):
            known = types[place] if place < len(types) else UNKNOWN
            self.memo[output] = claimed(known, output) if self.facts.claims else known
        self.memo.setdefault(value, UNKNOWN)

    def _source(self, value: ir.Value) -> None:
        """State an initializer, or an input of a graph."""
        tensor = self.facts.held(value)
        if tensor is not None:
            self.memo[value] = small(tensor)
        elif (owner := self._owner(value)) is not None:
            control.enter(self, owner)
            self.memo.setdefault(value, UNKNOWN)
        else:
            self.memo[value] = declared_type(value)

    # ---- one node -------------------------------------------------------------------------------------

    def inputs(self, node: ir.Node) -> list[TensorType | None]:
        """Return the types of a node's inputs, None for omitted ones."""
        types = (None if value is None else self.of(value) for value in node.inputs)
        return [None if known is _ABSENT else known for known in types]

    def constant_node(self, node: ir.Node) -> np.ndarray[Any, Any] | None:
        """Return the content of a Constant node, None when it depends on the call."""
        row = find("", "Constant", version_of(node, self.opsets))
        attributes = self.attributes(node)
        return None if row is None or attributes is None else row.evaluate(Call(), **attributes)

    def attributes(self, node: ir.Node) -> dict[str, Any] | None:
        """Return the plain attributes of a node, None when one is not known: it differs between calls."""
        if self._differing and any(
            attribute.is_ref() and attribute.ref_attr_name in self._differing
            for attribute in node.attributes.values()
        ):
            return None
        return {
            name: decode(attribute)
            for name, attribute in resolved(node, self.arguments)
            if attribute.type not in _GRAPHS
        }

    def _node(self, node: ir.Node) -> tuple[TensorType, ...]:
        functions = self.facts.model.functions
        function = functions.get(node.op_identifier()) if functions else None
        if function is not None:
            return self._call(function, node)
        if control.knows(node):
            return control.outputs(self, node)
        row, version = self._row(node)
        if row is not None:
            return self._by_row(row, node, version)
        body = _body(canonical_domain(node.domain), node.op_type, version)
        return () if body is None else self._call(body, node)

    def _row(self, node: ir.Node) -> tuple[Operator | None, int]:
        """Return the row of the table for a node, and the version of its domain."""
        key = (node.domain, node.op_type)
        found = self._rows.get(key)
        if found is None:
            version = version_of(node, self.opsets)
            found = find(canonical_domain(node.domain), node.op_type, version), version
            self._rows[key] = found
        return found

    def _call(self, function: ir.Function, node: ir.Node) -> tuple[TensorType, ...]:
        """Infer the body of a function for the inputs and attributes of one call."""
        types = self.inputs(node)
        types += [None] * (len(function.inputs) - len(types))
        given = {
            value: _ABSENT if known is None else known
            for value, known in zip(function.inputs, types, strict=False)
        }
        arguments = bound_attributes(function, node, self.arguments)
        frame = Frame(self.facts, function.graph, function.opset_imports, given, arguments)
        return tuple(frame.of(value) for value in function.outputs)

    def _by_row(self, row: Operator, node: ir.Node, version: int) -> tuple[TensorType, ...]:
        attributes = self.attributes(node)
        if attributes is None:
            return ()
        types = self.inputs(node)
        call = Call(np, version, listed_outputs(node), False, _RNG)
        stated = _stated(row, call, types, attributes)
        if any(known is not None and known.elements for known in types):
            stated = _followed(row, call, types, attributes, stated)
        if row.random or not all(known is None or known.value is not None for known in types):
            return stated
        if node.op_type == "Constant" or not all(map(_computable, stated)) or not stated:
            return tuple(map(_without_large, stated))
        return _computed(row, call, types, attributes) or stated


@cache
def _body(domain: str, name: str, version: int) -> ir.Function | None:
    """Return the function body of an operator without a row, made once."""
    return static_body(domain, name, version)


def _stated(
    row: Operator, call: Call, types: Sequence[TensorType | None], attributes: Mapping[str, Any]
) -> tuple[TensorType, ...]:
    """Return what the row says of the outputs; nothing where it cannot make sense of the node."""
    if row.infer is None:
        return ()
    try:
        stated = row.infer(call, *types, **attributes)
    except Exception:  # noqa: BLE001 (a node that a run would refuse states nothing)
        return ()
    listed = stated if isinstance(stated, tuple) else (stated,)
    return tuple(UNKNOWN if known is None else known for known in listed)


def _followed(
    row: Operator,
    call: Call,
    types: Sequence[TensorType | None],
    attributes: Mapping[str, Any],
    stated: tuple[TensorType, ...],
) -> tuple[TensorType, ...]:
    """Return what is stated, with entries that the node moves; without, where it would be refused."""
    try:
        return moved(row, call, types, attributes, stated)
    except Exception:  # noqa: BLE001 (indices that a run would refuse)
        return stated


def _computable(known: TensorType) -> bool:
    sizes = known.shape
    if sizes is None or not all(isinstance(dim, int) for dim in sizes):
        return False
    return prod(dim for dim in sizes if isinstance(dim, int)) <= MAX_CONTENT


def _without_large(known: TensorType) -> TensorType:
    large = known.value is not None and known.value.size > MAX_CONTENT
    return TensorType(known.dtype, known.shape) if large else known


def _computed(
    row: Operator, call: Call, types: Sequence[TensorType | None], attributes: Mapping[str, Any]
) -> tuple[TensorType, ...]:
    """Return the outputs of a node whose inputs are all constants; nothing when it refuses them."""
    try:
        with np.errstate(all="ignore"):
            results = row.evaluate(call, *(None if t is None else t.value for t in types), **attributes)
    except Exception:  # noqa: BLE001 (the node fails in every run; what is stated of it does not matter)
        return ()
    listed = results if isinstance(results, tuple) else (results,)
    return tuple(_content(value) for value in listed)


def _content(value: Any) -> TensorType:
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return UNKNOWN
    return TensorType(value.dtype, value.shape, value)
