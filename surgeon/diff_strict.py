"""The last word on "same": two models are walked in step, and the first thing that does not fit is named.

From outputs of the same place and name follows which nodes must stand for one another: each value has one
maker. So nothing is searched or guessed here; alignment (align.py) may be generous, this is not.

1. Inputs and outputs: name, place, type, and what an input holds when it is not given.
2. Paired nodes: operator, attributes by bits, outputs, and each input slot to its partner.
3. Their subgraphs: inputs and outputs by place.
4. Constants by content, whether a node or an initializer holds them.
5. What no output depends on: as many nodes that compute the same on both sides.
6. Functions: inputs, outputs, attributes with defaults, opsets, body.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import onnx_ir as ir

from graphdoc.engine.infer import Facts
from graphdoc.engine.scope import MAIN, enter
from graphdoc.surgeon.align_ops import is_default
from graphdoc.surgeon.diff_attributes import GRAPHS, RankOf, changed_attributes, exact_attributes
from graphdoc.surgeon.diff_weights import content, same_content, tensor_of

Part = ir.Graph | ir.Function

EITHER = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"})
"""Operators of ai.onnx that give the same bits whichever of two inputs comes first."""

OVERRIDABLE_IR = 4
"""From this IR version on an initializer that is also an input can be given another value."""

SMALL = 1024
"""Elements up to which constants are told apart by content before anything is paired."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where two models do not fit.

    kind: operator, attributes, wiring, output, input, unused or function. a, b: nodes, None where it is not
    about nodes. way: of their graph. name: of the output, input or function. details: in words; for kinds
    without nodes, A and B. constants: two whose content differs.
    """

    kind: str
    details: tuple[str, ...]
    a: ir.Node | None = None
    b: ir.Node | None = None
    way: str = ""
    name: str = ""
    constants: tuple[ir.Value, ir.Value] | None = None


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk came to.

    found: what does not fit, none where two models are the same; what follows the first may be its
    consequence. nodes: those that stand for one another, as far as outputs depend on them.
    """

    found: tuple[Mismatch, ...]
    nodes: tuple[tuple[ir.Node, ir.Node], ...]


def walk(a: ir.Model, b: ir.Model, most: int = 20) -> Walked:
    """Return in what two models differ, names of inner values and order of nodes aside.

    most: places at most. Weights are read whole. Raises ModelError for weights that cannot be read.
    """
    walks: list[_Walk] = []
    return Walked(
        tuple(islice(_mismatches(a, b, walks), most)),
        tuple(pair for each in walks for pair in each.nodes.items()),
    )


def _mismatches(a: ir.Model, b: ir.Model, walks: list["_Walk"]) -> Iterator[Mismatch]:
    ranks = ranks_of(a), ranks_of(b)
    yield from _interface(a, b)
    walks.append(_Walk(a.opset_imports, b.opset_imports, ranks, (_overridable(a), _overridable(b))))
    yield from walks[-1].part(a.graph, b.graph, MAIN)
    for key in sorted(a.functions.keys() | b.functions.keys()):
        name = "::".join(part for part in key if part)
        if key not in a.functions or key not in b.functions:
            left, right = ("defined" if key in side.functions else "–" for side in (a, b))
            yield Mismatch("function", (left, right), name=name)
            continue
        yield from _function(a.functions[key], b.functions[key], name, ranks, walks)


def _function(
    a: ir.Function, b: ir.Function, name: str, ranks: tuple[RankOf, RankOf], walks: list["_Walk"]
) -> Iterator[Mismatch]:
    yield from _signatures(a, b, name)
    walks.append(_Walk(a.opset_imports, b.opset_imports, ranks))
    yield from walks[-1].part(a, b, f"{a.name}/")


def ranks_of(model: ir.Model) -> RankOf:
    """Return what tells the rank of a value from inference alone; what the file declares is not believed."""
    facts = Facts(model, claims=False)

    def rank(value: ir.Value | None) -> int | None:
        shape = facts.of(value).shape
        return None if shape is None else len(shape)

    return rank


def _overridable(model: ir.Model) -> frozenset[ir.Value]:
    """Return the initializers that a caller may replace."""
    if (model.ir_version or OVERRIDABLE_IR) < OVERRIDABLE_IR:
        return frozenset()
    return frozenset(value for value in model.graph.inputs if value.const_value is not None)


# Interface


def _interface(a: ir.Model, b: ir.Model) -> Iterator[Mismatch]:
    for role in ("input", "output"):
        left, right = _ports(a, role), _ports(b, role)
        for place in range(max(len(left), len(right))):
            row = [side[place] if place < len(side) else None for side in (left, right)]
            words = [_port(value) for value in row]
            if words[0] != words[1]:
                yield Mismatch(role, (words[0], words[1]), name=f"{role} {place}")


def _ports(model: ir.Model, role: str) -> Sequence[ir.Value]:
    if role == "output":
        return model.graph.outputs
    kept = _overridable(model)
    return [value for value in model.graph.inputs if value.const_value is None or value in kept]


def _port(value: ir.Value | None) -> str:
    if value is None:
        return "–"
    default = ", with a default" if value.is_graph_input() and value.const_value is not None else ""
    shape = "" if value.shape is None else str([None if d is None else str(d) for d in _dims(value.shape)])
    return f"{value.name}: {value.type}{shape}{default}"


def _dims(shape: ir.Shape) -> Iterator[int | str | None]:
    for dim in shape:
        yield dim if isinstance(dim, int) else dim.value


def _signatures(a: ir.Function, b: ir.Function, name: str) -> Iterator[Mismatch]:
    rows = {
        "inputs": (str(len(a.inputs)), str(len(b.inputs))),
        "outputs": (str(len(a.outputs)), str(len(b.outputs))),
        "opsets": (_opsets(a), _opsets(b)),
    }
    for field, (left, right) in rows.items():
        if left != right:
            yield Mismatch("function", (left, right), name=f"{name} {field}")
    defaults = [exact_attributes(_holder(side), None, lambda value: None) for side in (a, b)]
    for text in changed_attributes(*defaults).values():
        left, _, right = text.partition(" → ")
        attribute, _, value = left.partition(" ")
        yield Mismatch("function", (value, right), name=f"{name} attribute {attribute}")


def _holder(function: ir.Function) -> ir.Node:
    """Return a node that holds a function's attributes with their defaults."""
    return ir.Node("", "", [], attributes=list(function.attributes.values()))


def _opsets(function: ir.Function) -> str:
    plain = {"ai.onnx" if is_default(domain) else domain: v for domain, v in function.opset_imports.items()}
    return ", ".join(f"{domain} {version}" for domain, version in sorted(plain.items()))


# The walk


class _Walk:
    """The main graph or a function of both sides, walked from the outputs; ``part`` is called once."""

    def __init__(
        self,
        opsets_a: Mapping[str, int],
        opsets_b: Mapping[str, int],
        ranks: tuple[RankOf, RankOf],
        kept: tuple[frozenset[ir.Value], frozenset[ir.Value]] = (frozenset(), frozenset()),
    ) -> None:
        self.opsets = plain_opsets(opsets_a), plain_opsets(opsets_b)
        self.values: dict[ir.Value, ir.Value] = {}
        self.taken: set[ir.Value] = set()
        self.nodes: dict[ir.Node, ir.Node] = {}
        self.graphs: dict[ir.Graph, tuple[ir.Graph, str]] = {}
        self.equal: dict[tuple[int, int], bool] = {}
        table: dict[Any, int] = {}
        self.a = Numbers(table, self.opsets[0], ranks[0], kept[0])
        self.b = Numbers(table, self.opsets[1], ranks[1], kept[1])
        self.pending: list[tuple[ir.Node, ir.Node]] = []

    def part(self, a: Part, b: Part, way: str) -> Iterator[Mismatch]:
        """Yield what does not fit in two graphs or functions."""
        self.a.read(a)
        self.b.read(b)
        yield from self._enter(_graph(a), _graph(b), way)
        for place, (p, q) in enumerate(zip(a.outputs, b.outputs, strict=False)):
            if not self._pair(p, q):
                words = _made(p), _made(q)
                yield Mismatch("output", words, name=f"{way}{p.name or place}")
        while self.pending:
            yield from self._node(*self.pending.pop())
        for first, (second, inner) in self.graphs.items():
            yield from self._unused(first, second, inner)
        pairs = [(first, second) for first, (second, _) in self.graphs.items()]
        counts = [sum(len(_constants(graph)) for graph in side) for side in zip(*pairs, strict=True)]
        if counts[0] != counts[1]:
            yield Mismatch("unused", (str(counts[0]), str(counts[1])), name=f"{way}number of constants")

    def _enter(self, a: ir.Graph, b: ir.Graph, way: str) -> Iterator[Mismatch]:
        """Take two graphs for one another, and their inputs by place."""
        self.graphs[a] = b, way
        left, right = self.a.inputs(a), self.b.inputs(b)
        if len(left) != len(right):
            yield Mismatch("input", (str(len(left)), str(len(right))), name=f"{way}inputs")
        for p, q in zip(left, right, strict=False):
            self._join(p, q)
            first, second = p.const_value, q.const_value
            if first is not None and second is not None and not self._same(first, second):
                yield Mismatch("input", ("a default", "another default"), name=f"{way}{p.name}")

    def _join(self, p: ir.Value, q: ir.Value) -> bool:
        """Take two values for one another; return whether neither has another partner."""
        if p in self.values or q in self.taken:
            return self.values.get(p) is q
        self.values[p] = q
        self.taken.add(q)
        return True

    def _pair(self, p: ir.Value | None, q: ir.Value | None) -> bool:
        """Whether two values stand for one another; their makers are looked at later."""
        if p is None or q is None:
            return p is q
        if p in self.values or q in self.taken:
            return self.values.get(p) is q
        first, second = tensor_of(p), tensor_of(q)
        if first is not None or second is not None:
            return first is not None and second is not None and self._same(first, second)
        n, m = p.producer(), q.producer()
        if n is None or m is None or p.index() != q.index() or n in self.nodes:
            return False
        held = None if n.graph is None else self.graphs.get(_graph(n.graph))
        if held is None or m.graph is None or held[0] is not _graph(m.graph):
            return False
        self.nodes[n] = m
        self.pending.append((n, m))
        joined = [self._join(r, s) for r, s in zip(n.outputs, m.outputs, strict=False)]
        return all(joined)

    def _same(self, first: ir.TensorProtocol, second: ir.TensorProtocol) -> bool:
        key = id(first), id(second)
        if key not in self.equal:
            self.equal[key] = same_content(first, second)
        return self.equal[key]

    def _node(self, n: ir.Node, m: ir.Node) -> Iterator[Mismatch]:
        way = self.graphs[_graph(n.graph)][1]  # type: ignore[arg-type]
        if operator(n) != operator(m):
            yield Mismatch("operator", (), n, m, way)
            return
        changed = changed_attributes(self.a.attributes(n), self.b.attributes(m))
        if changed:
            yield Mismatch("attributes", tuple(changed.values()), n, m, way)
        left, right = _named(n), _named(m)
        if left != right:
            yield Mismatch("wiring", (f"outputs {left} → {right}",), n, m, way)
        yield from self._sources(n, m, way)
        yield from self._bodies(n, m, way)

    def _sources(self, n: ir.Node, m: ir.Node, way: str) -> Iterator[Mismatch]:
        left, right = _sources(n), _sources(m)
        if len(left) == len(right) == 2 and is_default(n.domain) and n.op_type in EITHER:
            numbers = [self.a.of(v) for v in left], [self.b.of(v) for v in right]
            if numbers[0] != numbers[1] and numbers[0] == numbers[1][::-1]:
                right = right[::-1]
        for slot in range(max(len(left), len(right))):
            p, q = (side[slot] if slot < len(side) else None for side in (left, right))
            if not self._pair(p, q):
                text = f"input {slot}: {_label(p)} → {_label(q)}"
                yield Mismatch("wiring", (text,), n, m, way, constants=_both_constant(p, q))

    def _bodies(self, n: ir.Node, m: ir.Node, way: str) -> Iterator[Mismatch]:
        left, right = dict(bodies(n)), dict(bodies(m))
        if left.keys() != right.keys():
            yield Mismatch("attributes", ("another set of subgraphs",), n, m, way)
        for name in sorted(left.keys() & right.keys()):
            first, second = left[name], right[name]
            inner = enter(way, next((v.name for v in n.outputs if v.name), "") or n.op_type, name)
            yield from self._enter(first, second, inner)
            if len(first.outputs) != len(second.outputs):
                yield Mismatch("wiring", (f"another number of outputs of {name}",), n, m, way)
            for place, (p, q) in enumerate(zip(first.outputs, second.outputs, strict=False)):
                if not self._pair(p, q):
                    text = f"output {place} of {name}: {_made(p)} → {_made(q)}"
                    yield Mismatch("wiring", (text,), n, m, way)

    def _unused(self, a: ir.Graph, b: ir.Graph, way: str) -> Iterator[Mismatch]:
        """Count what no output depends on, by what it computes."""
        taken = set(self.nodes.values())
        left = [n for n in a if n not in self.nodes and not _is_constant(n)]
        right = [m for m in b if m not in taken and not _is_constant(m)]
        counts = _tally(self.a, left), _tally(self.b, right)
        only = [_words(x - y, nodes) for x, y, nodes in ((*counts, left), (*counts[::-1], right))]
        if counts[0] != counts[1]:
            yield Mismatch("unused", (only[0], only[1]), name=f"{way}unused nodes".strip())
        held = [Counter(content(t) for t in _idle(graph)) for graph in (a, b)]
        if held[0] != held[1]:
            words = [str(sum(count.values())) for count in held]
            yield Mismatch("unused", (words[0], words[1]), name=f"{way}unused constants".strip())


def _tally(numbers: "Numbers", nodes: list[ir.Node]) -> Counter[int]:
    exact = numbers.exactly() if nodes else numbers
    return Counter(exact.node(node) for node in nodes)


def _words(count: Counter[int], nodes: list[ir.Node]) -> str:
    return f"{sum(count.values())} of {len(nodes)}"


def _idle(graph: ir.Graph) -> Iterator[ir.TensorProtocol]:
    """Yield the constants that nobody reads."""
    for value in _constants(graph):
        tensor = tensor_of(value)
        if tensor is not None and not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            yield tensor


def _constants(graph: ir.Graph) -> list[ir.Value]:
    made = [node.outputs[0] for node in graph if _is_constant(node)]
    return [*graph.initializers.values(), *made]


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and bool(node.outputs) and tensor_of(node.outputs[0]) is not None


def plain_opsets(opsets: Mapping[str, int]) -> dict[str, int]:
    """Return domain → version with ONNX's own domain as ""."""
    return {("" if is_default(domain) else domain): version for domain, version in opsets.items()}


def _graph(part: Part) -> ir.Graph:
    return part.graph if isinstance(part, ir.Function) else part


def _sources(node: ir.Node) -> list[ir.Value | None]:
    found = list(node.inputs)
    while found and found[-1] is None:
        found.pop()
    return found


def _both_constant(p: ir.Value | None, q: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    if p is None or q is None or tensor_of(p) is None or tensor_of(q) is None:
        return None
    return p, q


def _named(node: ir.Node) -> list[int]:
    return [place for place, value in enumerate(node.outputs) if value.name]


def _label(value: ir.Value | None) -> str:
    return "–" if value is None else value.name or "–"


def _made(value: ir.Value | None) -> str:
    node = None if value is None else value.producer()
    if value is None or node is None:
        return _label(value)
    place = f", output {value.index()}" if len(node.outputs) > 1 else ""
    return f"{node.op_type} {node.name or value.name}{place}"


def operator(node: ir.Node) -> tuple[str, str, str]:
    """Return what names the operator of a node: domain, type and overload."""
    return "" if is_default(node.domain) else node.domain, node.op_type, node.overload


def bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield the subgraphs of a node under the names of their attributes, numbered where there are several."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref() or attribute.type not in GRAPHS:
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.value
        else:
            yield from ((f"{name}.{place}", graph) for place, graph in enumerate(attribute.value))


class Numbers:
    """Numbers of what is computed, from a table that both sides share: equal numbers, equal computation.

    kept: initializers that a caller may replace. Content of constants counts by a digest; that of large ones
    only if ``exact``: the rest is enough to tell the sides of a sum.
    """

    def __init__(
        self,
        table: dict[Any, int],
        opsets: Mapping[str, int],
        rank: RankOf,
        kept: frozenset[ir.Value],
        *,
        exact: bool = False,
    ) -> None:
        self.table = table
        self.opsets = opsets
        self.rank = rank
        self.kept = kept
        self.exact = exact
        self._values: dict[ir.Value, int] = {}
        self._nodes: dict[ir.Node, int] = {}
        self._attributes: dict[ir.Node, dict[str, Any]] = {}
        self._exact: Numbers | None = None
        self._part: Part | None = None

    def inputs(self, part: Part) -> list[ir.Value]:
        """Return what a caller may give; the weights of IR version 3 stand among the inputs too."""
        return [value for value in part.inputs if value.const_value is None or value in self.kept]

    def read(self, part: Part, depth: int = 0) -> None:
        """Number a graph, its subgraphs included."""
        self._part = self._part or part
        for place, value in enumerate(self.inputs(part)):
            self._values[value] = self._number(("input", depth, place))
        for node in part:
            inner = [(name, self._body(graph, depth + 1)) for name, graph in bodies(node)]
            reads = [self.of(value) for value in _sources(node)]
            if is_default(node.domain) and node.op_type in EITHER:
                reads.sort()
            attributes = tuple(sorted(self.attributes(node).items()))
            key = operator(node), attributes, tuple(reads), tuple(sorted(inner)), tuple(_named(node))
            number = self._nodes[node] = self._number(key)
            for place, value in enumerate(node.outputs):
                self._values[value] = self._number((number, place))

    def _body(self, graph: ir.Graph, depth: int) -> tuple[int, ...]:
        self.read(graph, depth)
        outputs = tuple(self.of(value) for value in graph.outputs)
        held = tuple(sorted(self._nodes[node] for node in graph if not _is_constant(node)))
        return (len(self.inputs(graph)), len(outputs), *outputs, *held)

    def exactly(self) -> "Numbers":
        """Return the numbering in which constants count by all of their content."""
        if self._exact is None:
            self._exact = Numbers(self.table, self.opsets, self.rank, self.kept, exact=True)
            if self._part is not None:
                self._exact.read(self._part)
        return self._exact

    def attributes(self, node: ir.Node) -> dict[str, Any]:
        """Return the attributes of a node by bits."""
        if node not in self._attributes:
            version = self.opsets.get("" if is_default(node.domain) else node.domain)
            self._attributes[node] = exact_attributes(node, version, self.rank)
        return self._attributes[node]

    def node(self, node: ir.Node) -> int:
        """Return the number of a node."""
        return self._nodes[node]

    def of(self, value: ir.Value | None) -> int:
        """Return the number of a value that was met, or of a constant."""
        if value is None:
            return self._number("omitted")
        if value not in self._values:
            tensor = tensor_of(value)
            self._values[value] = self._number(
                ("source", value.name) if tensor is None else self._constant(tensor)
            )
        return self._values[value]

    def _constant(self, tensor: ir.TensorProtocol) -> Any:
        shape = tuple(int(dim) for dim in tensor.shape.numpy())
        whole = self.exact or tensor.size <= SMALL
        return ("constant", *(content(tensor) if whole else (int(tensor.dtype), shape)))

    def _number(self, key: Any) -> int:
        return self.table.setdefault(key, len(self.table))
