"""What two graphs have in common before any search: interface, weights, shapes."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from graphdoc.surgeon.align_side import NONE, Item, Side
from graphdoc.surgeon.align_weights import ALIKE, FEWEST
from graphdoc.surgeon.alignment import WeightPair

Shape = tuple[int | str | None, ...] | None


def interface(a: Side, b: Side, left: list[int], right: list[int]) -> Iterator[tuple[int, int]]:
    """Pair inputs or outputs by name, the others by place if types allow; weights are no inputs."""
    left = [v for v in dict.fromkeys(left) if v not in a.weights]
    right = [v for v in dict.fromkeys(right) if v not in b.weights]
    names = {b.values[q].name: q for q in right}
    named = {p: names[a.values[p].name] for p in left if a.values[p].name in names}
    yield from named.items()
    taken = set(named.values())
    rest_a, rest_b = [p for p in left if p not in named], [q for q in right if q not in taken]
    if len(rest_a) == len(rest_b):
        yield from (
            (p, q) for p, q in zip(rest_a, rest_b, strict=True) if _compatible(a.values[p], b.values[q])
        )
        return
    for p in rest_a:
        fitting = [q for q in rest_b if q not in taken and _compatible(a.values[p], b.values[q])]
        if len(fitting) == 1:
            taken.add(fitting[0])
            yield p, fitting[0]


def _compatible(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values may hold the same as far as rank and sizes tell."""
    if a.shape is None or b.shape is None:
        return True
    first, second = list(a.shape), list(b.shape)
    if len(first) != len(second):
        return False
    return all(
        x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in zip(first, second, strict=True)
    )


def anchors(a: Side, b: Side) -> Iterator[tuple[int, int]]:
    """Yield weights that only one class of each side has the content of, then those that are alike."""
    left, right = _by_key(a), _by_key(b)
    done_a, done_b = set(), set()
    for key, mine in left.items():
        others = right.get(key, [])
        if len(mine) == len(others) == 1:
            done_a.add(mine[0])
            done_b.add(others[0])
            yield mine[0], others[0]
    shapes: dict[Any, list[int]] = defaultdict(list)
    for q, weight in b.weights.items():
        if q not in done_b and weight.size >= 64:
            shapes[tuple(sorted(weight.shape))].append(q)
    for p, weight in a.weights.items():
        if p not in done_a and weight.size >= 64:
            yield from _alike(a, b, p, shapes.get(tuple(sorted(weight.shape)), []))


def _by_key(side: Side) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for value, weight in side.weights.items():
        if weight.size >= FEWEST and side.consumers.get(value):
            found[weight.key].append(value)
    return found


def _alike(a: Side, b: Side, p: int, candidates: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the one weight of B that is a rounded form of weight p of A, if there is just one."""
    if len(candidates) > 256:
        return
    found = [q for q in candidates if a.weights[p].alike(b.weights[q]) >= ALIKE]
    if len(found) == 1:
        yield p, found[0]


def weight_pairs(a: Side, b: Side, items: Mapping[int, int]) -> Iterator[WeightPair]:
    taken_a: set[int] = set()
    taken_b: set[int] = set()
    for p, q in _weight_candidates(a, b, items):
        if p not in taken_a and q not in taken_b:
            taken_a.add(p)
            taken_b.add(q)
            yield WeightPair(a.values[p], b.values[q], a.names[p], b.names[q])


def _weight_candidates(a: Side, b: Side, items: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield constants in the same place of paired nodes, equal ones first; then equal content anywhere."""
    places = [(p, q) for x, y in items.items() for p, q in _constants(a.items[x], b.items[y], a, b)]
    yield from (pair for pair in places if a.weights[pair[0]].key == b.weights[pair[1]].key)
    yield from places
    groups: dict[Any, list[int]] = defaultdict(list)
    for q, weight in b.weights.items():
        groups[weight.key].append(q)
    for p, weight in a.weights.items():
        yield from ((p, q) for q in groups.get(weight.key, ())[:64])


def _constants(left: Item, right: Item, a: Side, b: Side) -> Iterator[tuple[int, int]]:
    order_a = left.slots or range(len(left.inputs))
    order_b = right.slots or range(len(right.inputs))
    for first, second in zip(order_a, order_b, strict=False):
        if first < len(left.inputs) and second < len(right.inputs):
            p, q = left.inputs[first], right.inputs[second]
            if p in a.weights and q in b.weights:
                yield p, q


def scales(
    a: Side, b: Side, carriers: Sequence[tuple[ir.Node, ir.Node]], known: Sequence[WeightPair]
) -> list[WeightPair]:
    """Pair the constants by which paired nodes scale: scales, zero points, rates."""
    taken_a, taken_b = {pair.a for pair in known}, {pair.b for pair in known}
    found = []
    for n, m in carriers:
        for v, w in zip(n.inputs[1:], m.inputs[1:], strict=False):
            if v is None or w is None or v in taken_a or w in taken_b:
                continue
            p, q = a.number[v], b.number[w]
            if p in a.weights and q in b.weights:
                taken_a.add(v)
                taken_b.add(w)
                found.append(WeightPair(v, w, a.names[p], b.names[q]))
    return found


def alone_weights(side: Side, paired: set[ir.Value]) -> Iterator[tuple[ir.Value, str]]:
    through = {root(side, node) for node, _ in side.carriers}
    for number in side.weights:
        value = side.values[number]
        node = value.producer()
        own = value.const_value is not None or (node is not None and not node.inputs)
        acts = value.uses() and not side.consumers.get(number)
        if own and value not in paired and not acts and number not in through:
            yield value, side.names[number]


def layout(a: Shape, b: Shape) -> bool | None:
    """Return whether two shapes may be the same one, or a different one of the same elements, else None."""
    if a is None or b is None:
        return True
    if len(a) == len(b) and all(
        x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in zip(a, b, strict=True)
    ):
        return True
    known_a, known_b = [d for d in a if isinstance(d, int)], [d for d in b if isinstance(d, int)]
    if len(known_a) < len(a) or len(known_b) < len(b):
        return False
    return False if math.prod(known_a) == math.prod(known_b) else None


def root(side: Side, node: ir.Node) -> int:
    value = node.inputs[0]
    return NONE if value is None else side.root[side.number[value]]
