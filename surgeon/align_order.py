"""Keeps the pairs of an alignment in an order that both graphs allow: no two pairs may cross."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graphdoc.surgeon.align_side import NONE, Side

Pairs = dict[int, int]

_PATIENCE = 40
"""Crossings that are resolved one pair at a time; what crosses then is dropped together."""


@dataclass(slots=True)
class Crossed:
    """What had to be given up: values and items of A."""

    values: list[int]
    items: list[int]


def drop_crossings(
    a: Side, b: Side, values: Pairs, items: Pairs, worth: dict[int, float], score: list[float]
) -> Crossed:
    """Remove the weakest pairs until merging all pairs leaves a graph without cycles.

    values, items: A → B, changed in place. worth, score: confidence of value pairs and of item pairs.
    """
    dropped = Crossed([], [])
    for turn in range(2 * _PATIENCE):
        knots = [list(_ranked(knot, values, items, worth, score)) for knot in _knots(a, b, values, items)]
        if not knots:
            return dropped
        for ranked in knots:
            for _, kind, number in ranked[: 1 if turn < _PATIENCE else None]:
                (values if kind else items).pop(number)
                (dropped.values if kind else dropped.items).append(number)
    return dropped


def _ranked(
    knot: list[int], values: Pairs, items: Pairs, worth: dict[int, float], score: list[float]
) -> list[tuple[float, int, int]]:
    rows = [(score[x], 0, x) for x in knot if x >= 0 and x in items]
    rows += [(worth.get(~x, 0.0), 1, ~x) for x in knot if x < 0 and ~x in values]
    return sorted(rows)


def _knots(a: Side, b: Side, values: Pairs, items: Pairs) -> list[list[int]]:
    """Return the groups of vertices of A that lie on cycles: items n as n, classes v as ~v."""
    back = {("v", q): ("a", ~p) for p, q in values.items()}
    back |= {("i", y): ("a", x) for x, y in items.items()}
    edges: dict[tuple[str, int], list[tuple[str, int]]] = {}
    degree: dict[tuple[str, int], int] = {}
    for source, target in _edges(a):
        _link(edges, degree, ("a", source), ("a", target))
    for source, target in _edges(b):
        _link(edges, degree, _merged(back, source), _merged(back, target))
    ready = [vertex for vertex, count in degree.items() if not count]
    while ready:
        first = ready.pop()
        del degree[first]
        for after in edges.get(first, ()):
            degree[after] -= 1
            if not degree[after]:
                ready.append(after)
    return [[n for side, n in knot if side == "a"] for knot in _components(degree, edges)]


def _components(
    vertices: Iterable[tuple[str, int]], edges: dict[tuple[str, int], list[tuple[str, int]]]
) -> Iterator[list[tuple[str, int]]]:
    """Yield the strongly connected components of more than one vertex (Tarjan, without recursion)."""
    index: dict[tuple[str, int], int] = {}
    low: dict[tuple[str, int], int] = {}
    stack: list[tuple[str, int]] = []
    inside: set[tuple[str, int]] = set()
    for start in vertices:
        if start in index:
            continue
        work = [(start, iter(edges.get(start, ())))]
        index[start] = low[start] = len(index)
        stack.append(start)
        inside.add(start)
        while work:
            vertex, targets = work[-1]
            target = next((t for t in targets if t not in index or t in inside), None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == index[vertex]:
                    place = stack.index(vertex)
                    found, stack[place:] = stack[place:], []
                    inside.difference_update(found)
                    if len(found) > 1:
                        yield found
            elif target in index:
                low[vertex] = min(low[vertex], index[target])
            else:
                index[target] = low[target] = len(index)
                stack.append(target)
                inside.add(target)
                work.append((target, iter(edges.get(target, ()))))


def _link(
    edges: dict[tuple[str, int], list[tuple[str, int]]],
    degree: dict[tuple[str, int], int],
    source: tuple[str, int],
    target: tuple[str, int],
) -> None:
    edges.setdefault(source, []).append(target)
    degree.setdefault(source, 0)
    degree[target] = degree.get(target, 0) + 1


def _merged(back: dict[tuple[str, int], tuple[str, int]], vertex: int) -> tuple[str, int]:
    key = ("i", vertex) if vertex >= 0 else ("v", ~vertex)
    return back.get(key, ("b", vertex))


def _edges(side: Side) -> Iterator[tuple[int, int]]:
    """Yield what comes before what: items as n, classes as ~v; constants have no place in the order."""
    for number, item in enumerate(side.items):
        for value in item.inputs:
            if value != NONE and value not in side.weights:
                yield ~value, number
        for value in item.outputs:
            yield number, ~value
        for body in item.bodies:
            yield from _body_edges(side, number, body.inputs, body.outputs)


def _body_edges(
    side: Side, holder: int, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    for value in outputs:
        if value not in side.weights:
            yield ~value, holder
    for inner in inputs:
        for value in side.items[holder].inputs:
            if value != NONE and value not in side.weights and value != inner:
                yield ~value, ~inner
