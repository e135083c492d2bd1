"""What a name means in a model: values and nodes, in subgraphs and functions too.

Values of the main graph go by their name, values inside subgraphs by the way to them
(engine/scope.py: ``<first output of the node>.<attribute>/<value>``), values of functions as
``<function>/<value>``. An inner name that occurs once in the model needs no way. A node goes by its own
name or by that of one of its outputs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TypeAlias, TypeVar

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.engine.scope import MAIN, enter, qualified

ValueLike: TypeAlias = ir.Value | str
NodeLike: TypeAlias = ir.Node | str
T = TypeVar("T")

LOOK = "graphdoc inspect MODEL --layers"
"""The command that lists the names."""

_MANY = 50_000
"""Names among which a nearest one is still looked for."""


@dataclass(frozen=True, slots=True)
class Place:
    """A graph of the model.

    scope: the way to it. outer: the graphs around it, the nearest last. owner: the node that holds it.
    function: whether it is the body of a function, which holds no initializers.
    """

    graph: ir.Graph
    scope: str
    outer: tuple[ir.Graph, ...] = ()
    owner: ir.Node | None = None
    function: bool = False

    @property
    def title(self) -> str:
        """How the graph is called in messages."""
        return self.scope.rstrip("/") or "the main graph"


def places(model: ir.Model) -> Iterator[Place]:
    """Yield the main graph, the function bodies, and every subgraph after the graph around it."""
    yield from _places(Place(model.graph, MAIN))
    for function in model.functions.values():
        yield from _places(Place(function.graph, f"{function.name}/", function=True))


def main_places(model: ir.Model) -> Iterator[Place]:
    """Yield the main graph and its subgraphs, functions aside: they have names of their own."""
    yield from _places(Place(model.graph, MAIN))


def _places(place: Place) -> Iterator[Place]:
    yield place
    graph, scope, outer = place.graph, place.scope, (*place.outer, place.graph)
    for node in graph:
        if not node.attributes.data:  # the mapping around it is slow, and this runs at every edit
            continue
        for name, inner in subgraphs(node):
            first = next((v.name for v in node.outputs if v.name), None) or node.name or node.op_type
            yield from _places(Place(inner, enter(scope, first, name), outer, node))


def subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield the graphs that a node holds, with the names of their attributes."""
    for name, attribute in node.attributes.data.items():
        if attribute.type not in _GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        else:
            yield from ((name, graph) for graph in attribute.as_graphs())


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def defined_in(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that a graph defines, each once: inputs, initializers, outputs of nodes."""
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from (value for value in node.outputs if value.name)


class Index:
    """The names of a model as it is now; made anew after an edit."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.places = tuple(places(model))
        self.home: dict[ir.Value, Place] = {}
        for place in self.places:
            self.home.update((value, place) for value in defined_in(place.graph))

    @cached_property
    def _values(self) -> dict[str, list[ir.Value]]:
        rows = (((p.scope, v.name or ""), v) for v, p in self.home.items())
        return _by_name(rows)

    @cached_property
    def _nodes(self) -> dict[str, list[ir.Node]]:
        named = (((p.scope, n.name), n) for p in self.places for n in p.graph if n.name)
        return _by_name(named)

    def value(self, name: ValueLike, option: str = "") -> ir.Value:
        """Return the value that a name means.

        option: where the name was given, for messages.

        Raises UsageError when no value has the name, or several do.
        """
        if isinstance(name, ir.Value):
            return self._own(name, name in self.home, f"value '{name.name}'")
        found = self._values.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            ways = [self.key(value) for value in found]
            raise _ambiguous(f"{len(found)} values are named '{name}'", ways, option)
        raise unknown("value", name, self._values, option)

    def node(self, name: NodeLike, option: str = "") -> ir.Node:
        """Return the node with a name, or the one that makes the value of that name.

        Raises UsageError when there is none, or several have the name.
        """
        if isinstance(name, ir.Node):
            known = any(name.graph is place.graph for place in self.places)
            return self._own(name, known, f"node '{name.name}'")
        found = self._nodes.get(name, [])
        if len(found) > 1:
            ways = [self.key(node.outputs[0]) for node in found]
            raise _ambiguous(f"{len(found)} nodes are named '{name}'", ways, option)
        if found:
            return found[0]
        values = self._values.get(name, [])
        maker = values[0].producer() if len(values) == 1 else None
        if maker is None:
            raise unknown("node", name, {**self._nodes, **self._values}, option)
        return maker

    def has_value(self, name: str) -> bool:
        """Whether exactly one value goes by a name."""
        return len(self._values.get(name, ())) == 1

    def has_node(self, name: str) -> bool:
        """Whether a node or value goes by a name."""
        return name in self._nodes or name in self._values

    def key(self, value: ir.Value) -> str:
        """Return the name that means a value wherever it lies."""
        return qualified(self.home[value].scope, value.name or "")

    def place(self, graph: ir.Graph | None) -> Place:
        """Return the place of a graph of the model."""
        return next(place for place in self.places if place.graph is graph)

    def _own(self, part: T, known: bool, title: str) -> T:
        if not known:
            raise UsageError(f"{title} does not belong to this model", next_step="give its name")
        return part


def unknown(kind: str, name: str, names: Iterable[str], option: str = "", look: str = LOOK) -> UsageError:
    """Return the error for a name that nothing has; the nearest names are offered."""
    close = nearest(name, list(names))
    hint = f"; nearest: {', '.join(repr(each) for each in close)}" if close else ""
    return UsageError(f"no {kind} is named '{name}'{hint}", where=option or None, next_step=look)


def nearest(name: str, known: list[str], count: int = 3) -> list[str]:
    """Return names like one that nothing has: those that hold it, shortest first, and similar ones.

    Exporters put long ways before names, so that a name typed short lies far from all by its letters. Where
    nothing is alike, those that start with the same part of the way are offered.
    """
    if not known or len(known) > _MANY:
        return []
    part = name.lower().strip("/")
    holding = [each for each in known if part and part in each.lower()]
    alike = get_close_matches(name, known, n=count, cutoff=0.6)
    if not holding and not alike:
        beside = [each for each in known if "/" in name and each.startswith(name.partition("/")[0] + "/")]
        alike = get_close_matches(name, beside, n=count, cutoff=0.3)
    return list(dict.fromkeys([*sorted(holding, key=lambda each: (len(each), each)), *alike]))[:count]


def _by_name(rows: Iterable[tuple[tuple[str, str], T]]) -> dict[str, list[T]]:
    """Return what a name means: with the way to it first; without it, what lies inside, too."""
    exact: dict[str, list[T]] = {}
    inner: dict[str, list[T]] = {}
    for (scope, name), part in rows:
        if name:
            exact.setdefault(qualified(scope, name), []).append(part)
            if scope != MAIN:
                inner.setdefault(name, []).append(part)
    return {**inner, **exact}


def _ambiguous(cause: str, ways: list[str], option: str) -> UsageError:
    return UsageError(cause, where=option or None, next_step=f"name one of {', '.join(ways[:5])}")


def split_at(text: str, separator: str, known: Callable[[str], bool]) -> tuple[str, str] | None:
    """Return what stands left and right of a separator, names holding the separator taken into account.

    known: whether the left side means something. Of several ways the one with a known left side is taken,
    else the first; None when there is no separator.
    """
    cuts = [index for index in range(len(text)) if text.startswith(separator, index)]
    ways = [(text[:cut], text[cut + len(separator) :]) for cut in cuts]
    if len(ways) == 1:
        return ways[0]
    return next((way for way in ways if known(way[0].strip())), ways[0] if ways else None)
