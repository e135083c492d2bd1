"""Finds a pattern at a node.

Two steps. *Fit*: is there the structure, each part by itself, whichever way inputs are swapped? It is asked
once of each pair (part of the pattern, value), so swapping costs no more than looking, and it tells how much
of the pattern is there, and what is wrong first. *Solve*: do the variables fit together? It follows only what
fits. Both look no deeper than the pattern is, and stop after a number of steps: time is linear in the graph.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops.table import TensorType
from graphdoc.surgeon import pattern_attributes as attributes
from graphdoc.surgeon.pattern import (
    COMMUTATIVE,
    AnyOf,
    Constant,
    Element,
    NodePattern,
    Output,
    Pattern,
    Variable,
    leaves,
)
from graphdoc.surgeon.rules.base import Context, Refusal, has_references, operator_name

STEPS = 20_000
"""Steps at one node, after which a pattern that fits in very many ways is given up."""

_SWAPPED = 3
"""The largest number of inputs of a commutative operator that are tried in all orders."""

_USERS = 64
"""How many readers of a value are looked at for a second output of the pattern."""

_COMPARED = 1 << 20
"""Bytes up to which two constants are compared by content."""

_NEAR = 0.85
"""The share of a pattern's nodes that must be there for what is wrong to be worth a word."""

_CONSTANT, _OTHER_CONSTANT = 0.02, 0.01
"""What a constant counts beside nodes: it only tells which way of looking comes nearer."""

Pair: TypeAlias = tuple[Element | None, Any]
"""A part of the pattern and the value it stands for (None: no input; a tuple for a variadic variable)."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a part of the pattern fits a value, variables aside.

    score: nodes that are there, and a little for each constant. reason: what is wrong. wanted: nodes that the
    form of the pattern has which comes nearest, one that is read twice counted twice.
    """

    ok: bool
    score: float = 0.0
    reason: str = ""
    wanted: int = 0


@dataclass(slots=True)
class Found:
    """What is bound so far: variables, captured attributes, nodes."""

    values: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    nodes: dict[NodePattern, ir.Node] = field(default_factory=dict)

    def copy(self) -> "Found":
        """Return a copy that can be bound further by itself."""
        return Found(dict(self.values), dict(self.attributes), dict(self.nodes))

    def made(self, part: Element) -> ir.Value:
        """Return the value of an element that is made by a bound node."""
        leaf = next(leaf for leaf in leaves(part) if leaf.node in self.nodes)
        return self.nodes[leaf.node].outputs[leaf.index]


class Match:
    """A pattern found in a graph: what its names stand for.

    anchor: the node of the first output. outputs: the values that a rewrite replaces. nodes: all that
    matched, each once.
    """

    def __init__(self, pattern: Pattern, found: Found, anchor: ir.Node, context: Context) -> None:
        self._found = found
        self.anchor = anchor
        self.context = context
        self.outputs = tuple(found.made(output) for output in pattern.outputs)
        self.nodes = tuple(dict.fromkeys(found.nodes.values()))
        self.names: dict[str, Any] = {
            **dict.fromkeys(pattern.variables),
            **found.values,
            **found.attributes,
        }

    def __getitem__(self, name: str) -> Any:
        """Return a variable's value (``ir.Value``; None when absent), or a captured attribute."""
        return self.names[name]

    def node(self, name: str) -> ir.Node | None:
        """Return the node that the pattern calls ``_name=name``; None in a form that lacks it."""
        named = (node for pattern, node in self._found.nodes.items() if pattern.name == name)
        return next(named, None)

    def type(self, name: str) -> TensorType:
        """Return what is known of a variable: dtype, shape, content."""
        return self.context.type_of(self.names[name])

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the content of a variable that is constant; None otherwise."""
        return self.context.array(self.names[name])

    def scalar(self, name: str) -> float:
        """Return the content of a constant of one element.

        Raises ValueError when the variable is none.
        """
        array = self.array(name)
        if array is None or array.size != 1:
            raise ValueError(f"{name} is no constant of one element")
        return float(array.reshape(-1)[0])


class _TooManyError(Exception):
    """The pattern fits in so many ways that looking has to stop."""


class Matcher:
    """A search for one pattern at one node.

    nearest: after the search, why the nearest miss is none; None when nothing was near.
    """

    def __init__(self, pattern: Pattern, node: ir.Node, context: Context) -> None:
        self.pattern = pattern
        self.anchor = node
        self.context = context
        self.nearest: Refusal | None = None
        self._best = 0.0
        self._steps = 0
        self._memo: dict[tuple[Element, ir.Value | None], Fit] = {}

    def matches(self) -> Iterator[Match]:
        """Yield the ways in which the pattern matches with the node as its anchor."""
        root = self.pattern.outputs[0]
        if not self._promising(root):
            return
        try:
            for index in dict.fromkeys(leaf.index for leaf in leaves(root)):
                if index < len(self.anchor.outputs):
                    yield from self._from(root, self.anchor.outputs[index])
        except _TooManyError:
            self.nearest = Refusal(f"the pattern fits in too many ways; gave up after {STEPS} steps")

    def _promising(self, root: Element) -> bool:
        """Whether what makes the anchor's inputs can be near a match: a quick look before the long one."""
        made = {
            operator_name(maker)
            for value in self.anchor.inputs
            if value is not None and (maker := value.producer())
        }
        own = operator_name(self.anchor)
        return any(
            leaf.node.operator == own and all(not made.isdisjoint(ops) for ops in _needed(leaf.node))
            for leaf in leaves(root)
        )

    def _from(self, root: Element, value: ir.Value) -> Iterator[Match]:
        fit = self.fit(root, value)
        if not fit.ok:
            self._miss(fit.score, fit.reason, fit.wanted)
            return
        others = [(output, _SEARCH) for output in self.pattern.outputs[1:]]
        for found in self._solve(((root, value), *others), Found()):
            reason = self._outside(found)
            if reason:
                self.refuse(reason)
            else:
                yield Match(self.pattern, found, self.anchor, self.context)

    def refuse(self, reason: str) -> None:
        """Note why what matches in structure is no match."""
        self._best, self.nearest = float("inf"), Refusal(reason)

    def _miss(self, score: float, reason: str, wanted: int) -> None:
        if score > self._best and int(score) >= _NEAR * wanted:
            self._best, self.nearest = score, Refusal(reason)

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > STEPS:
            raise _TooManyError

    # ---- fit: each part by itself

    def fit(self, part: Element, value: ir.Value | None) -> Fit:
        """Return how a part of the pattern fits a value, consistency of variables aside."""
        key = (part, value)
        if key not in self._memo:
            self._spend()
            self._memo[key] = self._fit(part, value)
        return self._memo[key]

    def _fit(self, part: Element, value: ir.Value | None) -> Fit:
        if isinstance(part, AnyOf):
            return max((self.fit(each, value) for each in part.choices), key=_nearness)
        if value is None:
            variable = part.variable if isinstance(part, Constant) else part
            optional = isinstance(variable, Variable) and variable.optional
            return Fit(optional, reason="" if optional else " lacks an input that the pattern has")
        if isinstance(part, Constant):
            return self._fit_constant(part, value)
        return self._fit_output(part, value) if isinstance(part, Output) else Fit(ok=True)

    def _fit_constant(self, part: Constant, value: ir.Value) -> Fit:
        shape = self.context.type_of(value).shape
        if part.scalar and shape is not None and any(dim != 1 for dim in shape):
            return Fit(ok=False, reason=f" reads '{value.name}', which is no constant of one element")
        array = self.context.array(value)
        if array is None:
            return Fit(ok=False, reason=f" reads '{value.name}', which is not constant")
        reason = constant_fault(part, array)
        return Fit(ok=not reason, score=_OTHER_CONSTANT if reason else _CONSTANT, reason=reason)

    def _fit_output(self, part: Output, value: ir.Value) -> Fit:
        node, wanted = value.producer(), part.node
        if node is None or operator_name(node) != wanted.operator:
            return Fit(False, 0, f" reads {_made_by(value)}, the pattern wants {wanted.op}", _size(part))
        if node.graph is not self.anchor.graph:
            return Fit(False, 0, f" reads '{value.name}', which is made outside this subgraph", _size(part))
        reason = self._node_fault(part, value, node)
        fits = [self._fit_inputs(order, node) for order in orders(wanted, node)]
        best = max(fits, key=_nearness, default=Fit(ok=False))
        return Fit(best.ok and not reason, 1 + best.score, reason or best.reason, 1 + best.wanted)

    def _node_fault(self, part: Output, value: ir.Value, node: ir.Node) -> str:
        """Return why a node of the right operator is not the pattern's, its inputs aside."""
        wanted = part.node
        if value.index() != part.index:
            return f"{label(node)}: output {value.index()} is read, the pattern wants output {part.index}"
        if has_references(node):
            return f"{label(node)} has attributes that are parameters of the function around it"
        since = attributes.since_version(node, self.context)
        if since < wanted.since:
            return f"{label(node)} is version {since} of the operator, the pattern wants {wanted.since}"
        if not orders(wanted, node):
            return f"{label(node)} has {len(node.inputs)} inputs, the pattern has {len(wanted.inputs)}"
        reason = attributes.fault(wanted, node, self.context)
        return f"{label(node)}{reason}" if reason else ""

    def _fit_inputs(self, order: Sequence[Pair], node: ir.Node) -> Fit:
        score, reason, ok, wanted = 0.0, "", True, 0
        for part, value in order:
            if part is None or (isinstance(part, Variable) and part.many):
                continue
            fit = self.fit(part, value)
            score, ok, wanted = score + fit.score, ok and fit.ok, wanted + fit.wanted
            if not fit.ok and not reason:
                reason = fit.reason if fit.score >= 1 else f"{label(node)}{fit.reason}"
        return Fit(ok, score, reason, wanted)

    # ---- solve: all parts together

    def _solve(self, goals: tuple[Pair, ...], found: Found) -> Iterator[Found]:
        while goals:
            self._spend()
            (part, value), goals = goals[0], goals[1:]
            options = self._expand(part, value, found)
            if not options:
                return
            for option in options[:-1]:
                yield from self._solve(option + goals, found.copy())
            goals = options[-1] + goals
        yield found

    def _expand(self, part: Element | None, value: Any, found: Found) -> list[tuple[Pair, ...]]:
        """Bind what follows from one goal; return the ways to go on, each a list of further goals."""
        if part is None:
            return [()]
        if value is _SEARCH:
            return self._search(part, found)
        if isinstance(part, AnyOf):
            return [((choice, value),) for choice in part.choices if self.fit(choice, value).ok]
        if isinstance(part, Output):
            return self._enter(part.node, value.producer(), found)
        variable = part.variable if isinstance(part, Constant) else part
        return [()] if variable is None or self._bind(variable, value, found) else []

    def _enter(self, wanted: NodePattern, node: ir.Node, found: Found) -> list[tuple[Pair, ...]]:
        known = found.nodes.get(wanted)
        if known is not None:
            if known is not node:
                self._miss(len(found.nodes), f"{label(known)} and {label(node)} are two nodes, not one", 0)
            return [()] if known is node else []
        for name, value in attributes.captured(wanted, node, self.context).items():
            if not attributes.same(found.attributes.setdefault(name, value), value):
                reason = f"{label(node)}: {name} is {value} here, {found.attributes[name]} elsewhere"
                self._miss(len(found.nodes) + 1, reason, 0)
                return []
        found.nodes[wanted] = node
        return [order for order in orders(wanted, node) if self._fit_inputs(order, node).ok]

    def _bind(self, variable: Variable, value: Any, found: Found) -> bool:
        known = found.values.setdefault(variable.name, value)
        if known is value or (variable.many and known == value):
            return True
        if known is not None and value is not None and not variable.many and self._equal(known, value):
            return True
        reason = f"{variable.name} is {_named(known)} in one place and {_named(value)} in another"
        self._miss(len(found.nodes), reason, 0)
        return False

    def _equal(self, a: ir.Value, b: ir.Value) -> bool:
        """Whether two values are constants of the same content."""
        left, right = self.context.array(a), self.context.array(b)
        if left is None or right is None or left.nbytes > _COMPARED:
            return False
        same_kind = left.dtype == right.dtype and left.shape == right.shape and left.dtype != object
        return same_kind and left.tobytes() == right.tobytes()

    def _search(self, part: Element, found: Found) -> list[tuple[Pair, ...]]:
        """Return the ways to bind a further output of the pattern, from the values that are bound."""
        options: list[tuple[Pair, ...]] = []
        for leaf in leaves(part):
            if leaf.node in found.nodes:
                return [()]
            for node in self._candidates(leaf.node, found):
                fresh = node not in found.nodes.values() and leaf.index < len(node.outputs)
                if fresh and self.fit(leaf, node.outputs[leaf.index]).ok:
                    options.append(((leaf, node.outputs[leaf.index]),))
        if not options:
            wanted = sum(_size(output) for output in self.pattern.outputs)
            self._miss(len(found.nodes), "the pattern's other output is not there", wanted)
        return options

    def _candidates(self, wanted: NodePattern, found: Found) -> list[ir.Node]:
        """Return the nodes that may be a pattern's, reached from its bound inputs through their readers."""
        if wanted in found.nodes:
            return [found.nodes[wanted]]
        reached: dict[ir.Node, None] = {}
        for part in wanted.inputs:
            for value in self._bound(part, found):
                for usage in list(value.uses())[:_USERS]:
                    if operator_name(usage.node) == wanted.operator and usage.node.graph is self.anchor.graph:
                        reached[usage.node] = None
        return list(reached)

    def _bound(self, part: Element | None, found: Found) -> list[ir.Value]:
        if isinstance(part, Variable):
            value = found.values.get(part.name)
            return [value] if isinstance(value, ir.Value) else []
        return [
            node.outputs[leaf.index]
            for leaf in (leaves(part) if part is not None else [])
            for node in self._candidates(leaf.node, found)
            if leaf.index < len(node.outputs)
        ]

    # ---- uses

    def _outside(self, found: Found) -> str:
        """Return why values inside the match are needed outside; "" when they are not."""
        inside = list(found.nodes.values())
        results = {found.made(output) for output in self.pattern.outputs}
        for pattern, node in found.nodes.items():
            for value in node.outputs:
                if value in results or pattern.shared or not self.context.used_outside(value, inside):
                    continue
                return f"'{value.name}' of {label(node)} {self._reader(value, set(inside))}"
        return ""

    def _reader(self, value: ir.Value, inside: set[ir.Node]) -> str:
        if value.is_graph_output():
            return "is an output of the graph"
        readers = [usage.node for usage in value.uses() if usage.node not in inside]
        return f"is read by {label(readers[0])} too" if readers else "is to be kept"


_SEARCH = object()
"""Stands for a value that is yet to be found."""


def _nearness(fit: Fit) -> tuple[bool, float, float]:
    """Return what to rank ways of looking by: the share of nodes that are there, then their number."""
    return fit.ok, fit.score / (fit.wanted or 1), fit.score


def orders(wanted: NodePattern, node: ir.Node) -> list[tuple[Pair, ...]]:
    """Return the ways to lay a pattern's inputs over a node's; none when their numbers differ."""
    parts, values = list(wanted.inputs), list(node.inputs)
    if parts and isinstance(parts[-1], Variable) and parts[-1].many:
        rest = (parts.pop(), tuple(values[len(parts) :]))
        values += [None] * (len(parts) - len(values))
        return [(*zip(parts, values, strict=False), rest)]
    if any(value is not None for value in values[len(parts) :]):
        return []
    values = (values + [None] * len(parts))[: len(parts)]
    if any(part is None and value is not None for part, value in zip(parts, values, strict=True)):
        return []
    if wanted.domain or wanted.op not in COMMUTATIVE or not 1 < len(parts) <= _SWAPPED:
        return [tuple(zip(parts, values, strict=True))]
    return [tuple(zip(parts, order, strict=True)) for order in permutations(values)]


def constant_fault(part: Constant, array: np.ndarray[Any, Any]) -> str:
    """Return why a constant is not what the pattern wants; "" when it is."""
    if part.scalar and array.size != 1:
        return f"'s constant has {array.size} elements, the pattern wants one"
    if part.value is None or (array.size and _holds(array, part.value, part.rtol)):
        return ""
    found = f"{array.reshape(-1)[0]:.8g}" if array.size == 1 else f"of shape {list(array.shape)}"
    return f"'s constant is {found}, the pattern wants {part.value:.8g}"


def _holds(array: np.ndarray[Any, Any], value: float, rtol: float | None) -> bool:
    """Whether every element is a number: exactly if the dtype can hold it, else one of the nearest."""
    if array.dtype == object:
        return False
    if array.dtype.kind in "iub":
        return bool((array == value).all())
    wide = array.astype(np.float64)
    stored = float(np.asarray(value, array.dtype))
    if rtol is None:
        eps = ml_dtypes.finfo(array.dtype).eps  # type: ignore[no-untyped-call]
        rtol = 0.0 if stored == value else float(eps)
    return bool((np.abs(wide - value) <= rtol * abs(value)).all())


@cache
def _size(part: Element | None) -> int:
    """Return how many nodes the smallest form of a part has, one that is read twice counted twice."""
    if isinstance(part, AnyOf):
        return min(_size(choice) for choice in part.choices)
    return 1 + sum(map(_size, part.node.inputs)) if isinstance(part, Output) else 0


@cache
def _needed(wanted: NodePattern) -> tuple[frozenset[str], ...]:
    """Return the operators that must make a node's inputs, those aside that a near miss may lack."""
    spare = (1 - _NEAR) * (1 + sum(map(_size, wanted.inputs)))
    large = [part for part in wanted.inputs if part is not None and _size(part) > spare]
    return tuple(
        frozenset(leaf.node.operator for leaf in leaves(part)) for part in large if _always_made(part)
    )


def _always_made(part: Element) -> bool:
    """Whether every form of a part is made by a node."""
    return all(map(_always_made, part.choices)) if isinstance(part, AnyOf) else isinstance(part, Output)


def label(node: ir.Node) -> str:
    """Return how reasons call a node: by operator and name."""
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    return f"{node.op_type} {name}".rstrip()


def _named(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} inputs"
    return "absent" if value is None else f"'{value.name}'"


def _made_by(value: ir.Value) -> str:
    maker = value.producer()
    if maker is not None:
        return f"what {label(maker)} makes"
    return f"'{value.name}', " + ("a weight" if value.is_initializer() else "an input of the graph")
