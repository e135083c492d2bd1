"""What changed between two models: versions, interface, nodes, weights. Names inside need not agree."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.inliner
import onnx_ir as ir

from graphdoc.engine.scope import MAIN
from graphdoc.surgeon.align import align, align_functions
from graphdoc.surgeon.alignment import Alignment, Alone, NodePair
from graphdoc.surgeon.diff_attributes import RankOf, changed_attributes, exact_attributes
from graphdoc.surgeon.diff_strict import OVERRIDABLE_IR, Walked, operator, plain_opsets, ranks_of, walk
from graphdoc.surgeon.diff_weights import WeightChange, alone, compare_weights, is_constant
from graphdoc.surgeon.model import Loadable, Source, open_source
from graphdoc.surgeon.pieces import read_opsets
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.stubs import refuse_stripped
from graphdoc.surgeon.types import ValueType, value_type

SCHEMA = "graphdoc.diff/1"

UNSURE = 0.7
"""Pairs of nodes below this confidence are counted as unsure."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A property of the whole model. a, b: in words, "" where a side does not have it."""

    field: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class InterfaceChange:
    """An input or output. kind: added, removed, renamed, type, shape, default, source (another node makes
    it) or order; a, b: in words.
    """

    kind: str
    role: str
    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node that differs.

    kind: removed, added, operator, attributes or wiring. a, b: names with the way to their graph, "" where
    only the other side has the node. details: what changed, or what became of it.
    """

    kind: str
    a_op: str
    a: str
    b_op: str
    b: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One side at a glance. bytes: of the model, its external data included."""

    name: str
    bytes: int
    nodes: int
    weights: int
    opsets: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDiff:
    """All that differs. Truthy when nothing does, names of inner nodes and values aside.

    same_nodes, same_weights: how many are equal. renamed: paired nodes whose outputs have other names.
    unsure: node pairs that structure alone does not settle. inlined: functions had to be inlined first.
    """

    a: Head
    b: Head
    fields: tuple[FieldChange, ...]
    interface: tuple[InterfaceChange, ...]
    nodes: tuple[NodeChange, ...]
    weights: tuple[WeightChange, ...]
    same_nodes: int
    same_weights: int
    renamed: int
    unsure: int
    inlined: bool = False

    def __bool__(self) -> bool:
        return not (self.fields or self.interface or self.nodes or self.weights)

    def of_kind(self, kind: str) -> tuple[NodeChange, ...]:
        """Return the node changes of one kind."""
        return tuple(change for change in self.nodes if change.kind == kind)


def diff_models(a: Loadable | Source, b: Loadable | Source) -> ModelDiff:
    """Return what changed from model a to model b; nothing is run. Weights are read, in bounded pieces.

    Functions that both models define are compared body by body; when one side lacks some, both are inlined.

    Raises ModelError when a model cannot be read, is not sound, or is stripped of its weights.
    """
    first, second = open_source(a), open_source(b)
    left, right = first.model, second.model
    for source in (first, second):
        refuse_stripped(source.model, f"a comparison of '{source.name}'")
    inlined = set(left.functions) != set(right.functions)
    if inlined:
        left, right = _inlined(first), _inlined(second)
    walked = walk(left, right)
    fields = [*_fields(first.proto, second.proto), *_functions(first.model, second.model)]
    interface = list(_interface(first.proto, second.proto))
    heads = _head(first, left), _head(second, right)
    if walked.found:
        inner = _aligned(left, right)
        if not (inner.nodes or inner.weights or fields or interface):
            _last_word(walked, inner, fields, interface)
    else:
        renamed = sum(_name(n) != _name(m) for n, m in walked.nodes)
        inner = _Inner(same_nodes=heads[0].nodes, same_weights=heads[0].weights, renamed=renamed)
    return ModelDiff(
        a=heads[0],
        b=heads[1],
        fields=tuple(fields),
        interface=tuple(interface),
        nodes=tuple(inner.nodes),
        weights=tuple(sorted(inner.weights, key=_rank)),
        same_nodes=inner.same_nodes,
        same_weights=inner.same_weights,
        renamed=inner.renamed,
        unsure=inner.unsure,
        inlined=inlined,
    )


@dataclass(slots=True)
class _Inner:
    """What is said of nodes and weights."""

    nodes: list[NodeChange] = field(default_factory=list)
    weights: list[WeightChange] = field(default_factory=list)
    same_nodes: int = 0
    same_weights: int = 0
    renamed: int = 0
    unsure: int = 0


def _aligned(a: ir.Model, b: ir.Model) -> _Inner:
    """Return what differs as far as two models can be aligned; the functions of both are the same ones."""
    ranks = ranks_of(a), ranks_of(b)
    parts = [_Part(align(a, b), MAIN, _Exact.of(a, b, ranks))]
    for name, function in a.functions.items():
        other = b.functions[name]
        exact = _Exact.of(function, other, ranks)
        parts.append(_Part(align_functions(function, other), f"{function.name}/", exact))
    nodes = [change for part in parts for change in part.changes()]
    pairs = [pair for part in parts for pair in part.alignment.nodes]
    weights = [change for part in parts for change in part.weights()]
    paired_weights = sum(len(part.alignment.weights) for part in parts)
    differing = {change.a for change in nodes if change.a and change.b}
    return _Inner(
        nodes,
        weights,
        same_nodes=len(pairs) - len(differing),
        same_weights=paired_weights - sum(change.kind == "changed" for change in weights),
        renamed=sum(_name(pair.a) != _name(pair.b) for pair in pairs),
        unsure=sum(pair.confidence < UNSURE for pair in pairs),
    )


def _inlined(source: Source) -> ir.Model:
    if not source.checked.functions:
        return source.model
    return read_model(onnx.inliner.inline_local_functions(source.proto), source.folder)


def _rank(change: WeightChange) -> tuple[float, str]:
    """Return the place in the list: the largest relative change first."""
    return (-(change.relative if change.relative is not None else 0.0), change.a or change.b)


def _head(source: Source, model: ir.Model) -> Head:
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    nodes = [node for graph in graphs for node in graph.all_nodes()]
    constants = sum(node.op_type == "Constant" and not node.domain for node in nodes)
    held = sum(len(graph.initializers) for graph in model.graphs())
    return Head(
        name=source.name,
        bytes=source.size,
        nodes=len(nodes) - constants,
        weights=held + constants,
        opsets=read_opsets(source.proto.opset_import),
    )


def _last_word(
    walked: Walked, inner: _Inner, fields: list[FieldChange], interface: list[InterfaceChange]
) -> None:
    """Add what the walk found to what seems the same; what follows from that is left out."""
    causes = [row for row in walked.found if row.kind != "unused"] or list(walked.found)
    for row in causes:
        if row.constants is not None:
            change = compare_weights(*row.constants, *(str(value.name) for value in row.constants))
            inner.weights += [] if change is None or change in inner.weights else [change]
            inner.same_weights = max(inner.same_weights - 1, 0)
        elif row.a is not None and row.b is not None:
            names = f"{row.way}{_called(row.a)}", f"{row.way}{_called(row.b)}"
            inner.nodes.append(NodeChange(row.kind, _op(row.a), names[0], _op(row.b), names[1], row.details))
        elif row.kind == "output":
            interface.append(InterfaceChange("source", "output", row.name, *row.details[:2]))
        else:
            fields.append(FieldChange(f"{row.kind} {row.name}".removeprefix("unused "), *row.details[:2]))
    changed = {row.a for row in inner.nodes}
    inner.same_nodes = max(inner.same_nodes - len(changed), 0)


def _functions(a: ir.Model, b: ir.Model) -> Iterator[FieldChange]:
    for key in sorted(a.functions.keys() ^ b.functions.keys()):
        name = "::".join(part for part in key if part)
        words = ["defined" if key in side.functions else "" for side in (a, b)]
        yield FieldChange(f"function {name}", *words)


# The model as a whole


def _fields(a: onnx.ModelProto, b: onnx.ModelProto) -> Iterator[FieldChange]:
    rows: dict[str, Callable[[onnx.ModelProto], str]] = {
        "IR version": lambda m: str(m.ir_version),
        "producer": lambda m: " ".join(part for part in (m.producer_name, m.producer_version) if part),
        "domain": lambda m: str(m.domain),
        "model version": lambda m: str(m.model_version or ""),
        "doc string": lambda m: str(m.doc_string),
        "graph name": lambda m: str(m.graph.name),
    }
    for name, read in rows.items():
        yield from _field(name, read(a), read(b))
    mappings: dict[str, Any] = {
        "opset": lambda m: {k or "ai.onnx": str(v) for k, v in read_opsets(m.opset_import).items()},
        "metadata": lambda m: {entry.key: entry.value for entry in m.metadata_props},
    }
    for name, pairs in mappings.items():
        first, second = pairs(a), pairs(b)
        for key in dict.fromkeys((*first, *second)):
            yield from _field(f"{name} {key}", first.get(key, ""), second.get(key, ""))


def _field(name: str, a: str, b: str) -> Iterator[FieldChange]:
    if a != b:
        yield FieldChange(name, a, b)


def _interface(a: onnx.ModelProto, b: onnx.ModelProto) -> Iterator[InterfaceChange]:
    for role in ("input", "output"):
        yield from _ports(role, _declared(a, role), _declared(b, role))
    left, right = _held(a), _held(b)
    for name in _declared(a, "input"):
        if (name in left) != (name in right):
            words = ["may be left out" if name in held else "must be given" for held in (left, right)]
            yield InterfaceChange("default", "input", name, *words)


def _declared(model: onnx.ModelProto, role: str) -> dict[str, ValueType]:
    """Return name → type; weights count as inputs where a caller may give others in their place."""
    hidden = _held(model) if role == "input" and model.ir_version < OVERRIDABLE_IR else frozenset()
    ports = getattr(model.graph, role)
    return {info.name: value_type(info.type) for info in ports if info.name not in hidden}


def _held(model: onnx.ModelProto) -> frozenset[str]:
    sparse = (tensor.values.name for tensor in model.graph.sparse_initializer)
    return frozenset((*(tensor.name for tensor in model.graph.initializer), *sparse))


def _ports(role: str, a: dict[str, ValueType], b: dict[str, ValueType]) -> Iterator[InterfaceChange]:
    gone, new = [name for name in a if name not in b], [name for name in b if name not in a]
    if len(gone) == len(new) and [list(a).index(n) for n in gone] == [list(b).index(n) for n in new]:
        for old, name in zip(gone, new, strict=True):
            yield InterfaceChange("renamed", role, name, old, name)
            yield from _types(role, name, a[old], b[name])
    else:
        yield from (InterfaceChange("removed", role, name, _words(a[name]), "") for name in gone)
        yield from (InterfaceChange("added", role, name, "", _words(b[name])) for name in new)
    both = [name for name in a if name in b]
    for name in both:
        yield from _types(role, name, a[name], b[name])
    order = [name for name in b if name in a]
    if both != order:
        yield InterfaceChange("order", role, "", ", ".join(both), ", ".join(order))


def _types(role: str, name: str, a: ValueType, b: ValueType) -> Iterator[InterfaceChange]:
    if a.dtype != b.dtype:
        yield InterfaceChange("type", role, name, _words(a), _words(b))
    elif a.shape != b.shape:
        yield InterfaceChange("shape", role, name, _words(a), _words(b))


def _words(known: ValueType) -> str:
    if known.shape is None:
        return known.dtype or "–"
    dims = " × ".join("?" if dim is None else str(dim) for dim in known.shape) or "scalar"
    return f"{known.dtype} {dims}".strip()


# Nodes and weights


def _name(node: ir.Node) -> str:
    """Return what a node is called: what it makes, since names of nodes are often missing."""
    return next((str(value.name) for value in node.outputs if value.name), "") or node.name or ""


def _called(node: ir.Node) -> str:
    return node.name or _name(node)


def _op(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


@dataclass(frozen=True, slots=True)
class _Exact:
    """Attributes by bits, for nodes whose operators have the same version on both sides."""

    opsets: tuple[Mapping[str, int], Mapping[str, int]]
    ranks: tuple[RankOf, RankOf]

    @classmethod
    def of(
        cls, a: ir.Model | ir.Function, b: ir.Model | ir.Function, ranks: tuple[RankOf, RankOf]
    ) -> "_Exact":
        return cls((plain_opsets(a.opset_imports), plain_opsets(b.opset_imports)), ranks)

    def attributes(self, a: ir.Node, b: ir.Node) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the attributes of two nodes; nothing where they cannot be held against one another."""
        domain = operator(a)[0]
        versions = [opsets.get(domain) for opsets in self.opsets]
        if operator(a) != operator(b) or versions[0] != versions[1]:
            return {}, {}
        left, right = (
            exact_attributes(node, versions[0], rank) for node, rank in zip((a, b), self.ranks, strict=True)
        )
        return left, right


class _Part:
    """The main graph or a function body, aligned."""

    def __init__(self, alignment: Alignment, way: str, exact: _Exact) -> None:
        self.alignment = alignment
        self.way = way
        self.exact = exact
        self._mates: dict[ir.Value, ir.Value] = {pair.a: pair.b for pair in alignment.values}
        self._mates.update((pair.a, pair.b) for pair in alignment.weights)
        self._paired_b = set(self._mates.values())
        folded = (row.node for row in (*alignment.only_a, *alignment.only_b) if row.constant)
        self._folded = {value for node in folded for value in node.outputs}

    def changes(self) -> Iterator[NodeChange]:
        """Yield the changes of nodes: in execution order of A, then what only B has."""
        for pair in self.alignment.nodes:
            yield from self._pair(pair)
        yield from (self._alone("removed", row) for row in self.alignment.only_a)
        yield from (self._alone("added", row) for row in self.alignment.only_b)

    def _pair(self, pair: NodePair) -> Iterator[NodeChange]:
        a = f"{self.way}{pair.a_scope}{_called(pair.a)}"
        b = f"{self.way}{pair.b_scope}{_called(pair.b)}"
        kind, details = "attributes", list(_parameters(pair, self.exact))
        if _op(pair.a) != _op(pair.b):
            kind, details = "operator", []
        wiring = list(self._wiring(pair))
        if details or wiring or kind == "operator":
            kind = kind if details or kind == "operator" else "wiring"
            yield NodeChange(kind, _op(pair.a), a, _op(pair.b), b, (*details, *wiring))

    def _wiring(self, pair: NodePair) -> Iterator[str]:
        if pair.a.op_type != pair.b.op_type:
            return
        left, right = (
            self._sources(pair.a, self.alignment.through_a),
            self._sources(pair.b, self.alignment.through_b),
        )
        mates = [None if v is None else self._mates.get(v) for v in left]
        if mates == right or (len(mates) == 2 and mates[::-1] == right and pair.a.op_type in _EITHER):
            return
        for slot in range(max(len(left), len(right))):
            p = left[slot] if slot < len(left) else None
            q = right[slot] if slot < len(right) else None
            yield from self._slot(slot, p, q)

    def _sources(self, node: ir.Node, through: Mapping[ir.Value, ir.Value]) -> list[ir.Value | None]:
        found = [None if v is None else through.get(v, v) for v in node.inputs]
        while found and found[-1] is None:
            found.pop()
        return found

    def _slot(self, slot: int, p: ir.Value | None, q: ir.Value | None) -> Iterator[str]:
        mate = None if p is None else self._mates.get(p)
        if (p is None and q is None) or (mate is not None and mate is q):
            return
        if p is not None and q is not None and self._fixed(p) and self._fixed(q):
            return  # weights are compared by content, and folding is not wiring
        if p is None or q is None:
            yield f"input {slot} {'added: ' if p is None else 'dropped: '}{(q if p is None else p).name}"  # type: ignore[union-attr]
        elif mate is not None or q in self._paired_b:
            yield f"input {slot}: {p.name} → {q.name}"

    def _fixed(self, value: ir.Value) -> bool:
        return value in self._folded or is_constant(value)

    def _alone(self, kind: str, row: Alone) -> NodeChange:
        name = f"{self.way}{row.scope}{_called(row.node)}"
        fate: tuple[str, ...] = ()
        if row.constant:
            fate = ("depends on constants alone",)
        elif row.into is not None:
            fate = (
                f"{'merged into' if kind == 'removed' else 'split from'} {_op(row.into)} {_called(row.into)}",
            )
        if kind == "removed":
            return NodeChange(kind, _op(row.node), name, "", "", fate)
        return NodeChange(kind, "", "", _op(row.node), name, fate)

    def weights(self) -> Iterator[WeightChange]:
        """Yield the constants that differ or that one side alone has."""
        for pair in self.alignment.weights:
            change = compare_weights(pair.a, pair.b, self.way + pair.a_name, self.way + pair.b_name)
            if change is not None:
                yield change
        yield from (alone("removed", value, self.way + name) for value, name in self.alignment.only_a_weights)
        yield from (alone("added", value, self.way + name) for value, name in self.alignment.only_b_weights)


_EITHER = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Min", "Max"})


def _parameters(pair: NodePair, exact: _Exact) -> Iterator[str]:
    """Yield what differs in how two nodes work; what one version of an operator lacks does not count."""
    a, b = pair.a_parameters, pair.b_parameters
    left, right = exact.attributes(pair.a, pair.b)
    yield from changed_attributes(left, right).values()
    for name in sorted((a.keys() | b.keys()) - (left.keys() | right.keys())):
        if a.get(name) != b.get(name):
            yield f"{name} {_shown(a.get(name))} → {_shown(b.get(name))}"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, tuple) and any(isinstance(item, bytes) for item in value):
        return "a tensor"
    text = f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
