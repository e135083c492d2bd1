"""Which values and nodes of two graphs stand for one another; names need not agree.

1. Inputs and outputs are paired by name, else by place and type.
2. What is computed alike from equal inputs and equal weights is paired for certain (align_numbers.py).
3. From there, and from weights that only one node of each side reads, pairs spread along the edges, the
   surest first (align_match.py); across a few nodes that only one side has, if what lies around them fits.
4. Pairs that would cross are dropped, the weakest first (align_order.py).

Two values are paired when they should hold the same content up to rounding: where nodes were fused, the last
value of the region. Who reads a value decides before who makes it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from graphdoc.engine.infer import Facts
from graphdoc.surgeon.align_match import Half, Matcher, look_ahead
from graphdoc.surgeon.align_numbers import Numbering
from graphdoc.surgeon.align_order import drop_crossings
from graphdoc.surgeon.align_pairs import (
    Shape,
    alone_weights,
    anchors,
    interface,
    layout,
    root,
    scales,
    weight_pairs,
)
from graphdoc.surgeon.align_side import NONE, Item, Side, read_side
from graphdoc.surgeon.align_weights import ALIKE
from graphdoc.surgeon.alignment import Alignment, Alone, NodePair, ValuePair, WeightPair

CERTAIN = 1.0
REWIRED = 0.5

ShapeOf = Callable[[ir.Value], Shape]


def align(a: ir.Model, b: ir.Model) -> Alignment:
    """Return what stands for what in two models; the same models give the same answer.

    Calls of a model's own functions count as operators; inline them to align what is inside. Weights are
    sampled, not read whole.
    """
    facts_a, facts_b = Facts(a), Facts(b)
    sides = read_side(a.graph, a.opset_imports), read_side(b.graph, b.opset_imports)
    return _Aligner(*sides, lambda p: facts_a.of(p).shape, lambda q: facts_b.of(q).shape).result()


def align_functions(a: ir.Function, b: ir.Function) -> Alignment:
    """Return what stands for what in two function bodies, their subgraphs included."""
    sides = read_side(a, a.opset_imports), read_side(b, b.opset_imports)
    return _Aligner(*sides, lambda p: None, lambda q: None).result()


class _Aligner:
    def __init__(self, a: Side, b: Side, shape_a: ShapeOf, shape_b: ShapeOf) -> None:
        self.shape_a = shape_a
        self.shape_b = shape_b
        self.inputs = list(interface(a, b, a.inputs, b.inputs))
        self.sure = set(self.inputs)
        """Inputs, of the graph or of equal subgraphs, that are the same even if nobody reads them."""
        numbers = Numbering()
        label_a: dict[int, Any] = {}
        label_b: dict[int, Any] = {}
        for place, (p, q) in enumerate(self.inputs):
            label_a[p] = label_b[q] = place
        self.values_a, self.items_a = numbers.number(a, label_a)
        self.values_b, self.items_b = numbers.number(b, label_b)
        self.a = _half(a, self.values_a)
        self.b = _half(b, self.values_b)
        self.matcher = Matcher(self.a, self.b)

    def result(self) -> Alignment:
        """Run the steps in their order."""
        self.a.scopes[0] = self.b.scopes[0] = 0
        for p, q in self.inputs:
            self.matcher.pair_values(p, q, CERTAIN)
        self._same_numbers()
        self._outputs()
        self._spread()
        self.matcher.run()
        self._rewired()
        return self._finished()

    def _same_numbers(self) -> None:
        """Pair the items of equal number, in order, those of equal name first."""
        left, right = _grouped(self.items_a), _grouped(self.items_b)
        for number, mine in left.items():
            for x, y in _in_order(mine, right.get(number, []), self._names):
                self._take(x, y)

    def _names(self, x: int, y: int) -> bool:
        first, second = self.a.side.items[x].node, self.b.side.items[y].node
        return bool(first.outputs) and first.outputs[0].name == second.outputs[0].name

    def _take(self, x: int, y: int) -> None:
        a, b = self.a, self.b
        a.items[x], b.items[y] = y, x
        a.score[x] = b.score[y] = CERTAIN
        left, right = a.side.items[x], b.side.items[y]
        for p, q in zip(left.outputs, right.outputs, strict=True):
            self.matcher.pair_values(p, q, CERTAIN)
        for first, second in zip(left.bodies, right.bodies, strict=True):
            a.scopes[first.scope], b.scopes[second.scope] = second.scope, first.scope
            for p, q in zip(first.inputs, second.inputs, strict=False):
                self.matcher.pair_values(p, q, CERTAIN)
                self.sure.add((p, q))

    def _rewired(self) -> None:
        """Pair what is left of one operator with the same result or name: it reads something else."""
        names: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for y, item in enumerate(self.b.side.items):
            if self.b.items[y] == NONE and item.node.name:
                names[item.kind, item.node.name, item.scope].append(y)
        for x, item in enumerate(self.a.side.items):
            if self.a.items[x] == NONE:
                made = self._same_result(item)
                scope = self.a.scopes.get(item.scope, NONE)
                named = names.get((item.kind, item.node.name or "", scope), [])
                for y in (*made, *(named if len(named) == 1 else ())):
                    if self.b.items[y] == NONE and self.b.side.items[y].kind == item.kind:
                        self.a.items[x], self.b.items[y] = y, x
                        self.a.score[x] = self.b.score[y] = REWIRED
                        break

    def _same_result(self, item: Item) -> Iterator[int]:
        for p in item.outputs[:1]:
            maker = self.b.makers(self.a.values.get(p, NONE))
            if maker is not None:
                yield maker[0]

    def _outputs(self) -> None:
        a, b = self.a.side, self.b.side
        for p, q in interface(a, b, a.outputs, b.outputs):
            p, q = a.root[p], b.root[q]
            if p not in a.weights and q not in b.weights:
                self.matcher.pair_values(p, q, 0.95)

    def _spread(self) -> None:
        """Queue what lies around the pairs so far, and the only readers of equal or alike weights."""
        telling = list(anchors(self.a.side, self.b.side))
        self.matcher.telling.update(p for p, _ in telling)
        for p, q in telling:
            self._anchor(p, q)
        for p, q in sorted(self.a.values.items()):
            self.matcher.around(p, q)

    def _anchor(self, p: int, q: int) -> None:
        left, right = self.a.side.consumers.get(p, []), self.b.side.consumers.get(q, [])
        if len(left) == len(right) == 1:
            self.matcher.settle(left[0][0], right[0][0])

    # The answer

    def _finished(self) -> Alignment:
        a, b = self.a, self.b
        values = {p: q for p, q in a.values.items() if p not in a.side.weights and q not in b.side.weights}
        items = {x: y for x, y in enumerate(a.items) if y != NONE}
        self._fit_shapes(values, items)
        worth = {p: self._confidence(p, q) for p, q in values.items()}
        self._drop_crossings(values, items, worth)
        nodes = [self._node_pair(x, y) for x, y in items.items()]
        weights = list(weight_pairs(a.side, b.side, items))
        carried = list(_carriers(a, b, values, worth, weights))
        weights += scales(a.side, b.side, [(node.a, node.b) for node, _ in carried], weights)
        pairs = [*self._value_pairs(values, worth), *_twins(self, items, values)]
        pairs += [pair for _, found in carried for pair in found]
        kept = {pair.a: pair for pair in reversed(pairs)}
        order = a.side.number
        return Alignment(
            values=tuple(sorted(kept.values(), key=lambda pair: order[pair.a])),
            nodes=(*nodes, *(node for node, _ in carried)),
            weights=tuple(weights),
            only_a=tuple(_alone(a, b, values, {id(node.a) for node, _ in carried})),
            only_b=tuple(
                _alone(b, a, {q: p for p, q in values.items()}, {id(node.b) for node, _ in carried})
            ),
            only_a_weights=tuple(alone_weights(a.side, {pair.a for pair in weights})),
            only_b_weights=tuple(alone_weights(b.side, {pair.b for pair in weights})),
            through_a=_through(a.side),
            through_b=_through(b.side),
        )

    def _drop_crossings(self, values: dict[int, int], items: dict[int, int], worth: dict[int, float]) -> None:
        """Give up pairs that cross; what is computed alike from equal inputs cannot."""
        if all(self.a.score[x] == CERTAIN for x in items) and all(row == CERTAIN for row in worth.values()):
            return
        for x in drop_crossings(self.a.side, self.b.side, values, items, worth, self.a.score).items:
            self.b.items[self.a.items[x]] = NONE
            self.a.items[x] = NONE

    def _node_pair(self, x: int, y: int) -> NodePair:
        left, right = self.a.side.items[x], self.b.side.items[y]
        return NodePair(
            left.node,
            right.node,
            self.a.score[x],
            self.a.side.scopes[left.scope].name,
            self.b.side.scopes[right.scope].name,
            left.parameters,
            right.parameters,
        )

    def _fit_shapes(self, values: dict[int, int], items: Mapping[int, int]) -> None:
        """Drop pairs whose sizes differ, and pair what their nodes make instead."""
        wrong = [p for p, q in values.items() if not self._certain(p, q) and self._form(p, q) is None]
        for p in wrong:
            del values[p]
        taken = set(values.values())
        for x, y in items.items() if wrong else ():
            for p, q in zip(self.a.side.items[x].outputs, self.b.side.items[y].outputs, strict=False):
                p, q = self.a.same.get(p, p), self.b.same.get(q, q)
                if p not in values and q not in taken and self._form(p, q) is not None:
                    values[p] = q
                    taken.add(q)

    def _certain(self, p: int, q: int) -> bool:
        return (p, q) in self.sure or self.values_a.get(p, NONE) == self.values_b.get(q, NONE - 1)

    def _form(self, p: int, q: int) -> bool | None:
        """Return whether two values have the same layout; None: they cannot hold the same."""
        return layout(self.shape_a(self.a.side.values[p]), self.shape_b(self.b.side.values[q]))

    def _confidence(self, p: int, q: int) -> float:
        if self._certain(p, q):
            return CERTAIN
        worth = min(self.matcher.worth(p), 0.99)
        made, read = self.a.makers(p), self.b.makers(q)
        together = made is not None and read is not None and self.a.items[made[0]] == read[0]
        supported = self.matcher.support.get(p, 0) > 0 or p in map(
            self.a.side.root.__getitem__, self.a.side.outputs
        )
        if together and supported:
            return max(worth, 0.9)
        if supported:
            return 0.9 * worth
        return 0.8 * worth if together and self._same_weights(made, read) else 0.5 * worth

    def _same_weights(self, made: tuple[int, int] | None, read: tuple[int, int] | None) -> bool:
        if made is None or read is None:
            return False
        left, right = self.a.side.items[made[0]], self.b.side.items[read[0]]
        for p, q in zip(left.inputs, right.inputs, strict=False):
            first, second = self.a.side.weights.get(p), self.b.side.weights.get(q)
            if first and second and first.key != second.key and first.alike(second) < ALIKE:
                return False
        return True

    def _value_pairs(self, values: Mapping[int, int], worth: Mapping[int, float]) -> Iterator[ValuePair]:
        """Yield the outputs of the graph under their own names, then the classes: of codes what they mean."""
        a, b = self.a.side, self.b.side
        for p, q in interface(a, b, a.outputs, b.outputs):
            root = self._class(self.a, p)
            if values.get(root) == self._class(self.b, q):
                yield self._pair(p, q, worth[root])
        for p, q in values.items():
            left = a.decoded.get(p, p) if p in a.coded else p
            right = b.decoded.get(q, q) if q in b.coded else q
            yield self._pair(left, right, worth[p])

    def _class(self, half: Half, value: int) -> int:
        root = half.side.root[value]
        return half.same.get(root, root)

    def _pair(self, p: int, q: int, confidence: float) -> ValuePair:
        form = "same"
        if (p in self.a.side.coded) != (q in self.b.side.coded):
            form = "codes"
        elif confidence < CERTAIN and self._form(p, q) is not True:
            form = "layout"
        return replace(_value_pair(self.a.side, self.b.side, p, q, confidence), form=form)


def _half(side: Side, numbers: Mapping[int, int]) -> Half:
    """Return a side with nothing paired; classes of equal number are one, the first."""
    first: dict[int, int] = {}
    same: dict[int, int] = {}
    for value in side.classes():
        number = numbers.get(value)
        if number is None or value in side.weights:
            continue
        kept = first.setdefault(number, value)
        if kept != value:
            same[value] = kept
            side.consumers.setdefault(kept, []).extend(side.consumers.get(value, ()))
    count = len(side.items)
    return Half(side, [NONE] * count, {}, {}, [0.0] * count, look_ahead(side), same)


def _grouped(numbers: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers):
        groups[number].append(place)
    return groups


def _in_order(
    left: list[int], right: list[int], preferred: Callable[[int, int], bool]
) -> Iterator[tuple[int, int]]:
    """Pair two lists: first what is preferred, then the rest in order."""
    if len(left) == len(right) == 1:
        yield left[0], right[0]
        return
    rest_a, rest_b = [], list(right)
    for x in left:
        found = next((y for y in rest_b if preferred(x, y)), None) if len(rest_b) < 64 else None
        if found is None:
            rest_a.append(x)
        else:
            rest_b.remove(found)
            yield x, found
    yield from zip(rest_a, rest_b, strict=False)


def _through(side: Side) -> dict[ir.Value, ir.Value]:
    return {side.values[value]: side.values[root] for value, root in enumerate(side.root) if value != root}


def _twins(aligner: _Aligner, items: Mapping[int, int], values: Mapping[int, int]) -> Iterator[ValuePair]:
    """Pair the outputs of paired items that hold the same as an earlier value of their side."""
    a, b = aligner.a, aligner.b
    for x, y in items.items():
        for p, q in zip(a.side.items[x].outputs, b.side.items[y].outputs, strict=False):
            if p in a.same and q in b.same and values.get(a.same[p]) == b.same[q]:
                yield _value_pair(a.side, b.side, p, q, CERTAIN)


def _carriers(
    a: Half, b: Half, values: Mapping[int, int], worth: Mapping[int, float], weights: list[WeightPair]
) -> Iterator[tuple[NodePair, tuple[ValuePair, ...]]]:
    """Pair the nodes that are looked through, in the order in which they stand in paired classes."""
    classes = {**values, **{a.side.number[pair.a]: b.side.number[pair.b] for pair in weights}}
    right = _by_class(b, {q: p for p, q in classes.items()})
    for key, mine in _by_class(a, {p: p for p in classes}).items():
        confidence = worth.get(key[0], CERTAIN)
        for first, second in zip(mine, right.get(key, ()), strict=False):
            outputs = zip(first.outputs, second.outputs, strict=False)
            numbers = [(a.side.number[m], b.side.number[n]) for m, n in outputs if m.name and n.name]
            made = tuple(_value_pair(a.side, b.side, m, n, confidence) for m, n in numbers)
            scopes = _scope_of(a.side, first), _scope_of(b.side, second)
            yield NodePair(first, second, confidence, *scopes), made


def _scope_of(side: Side, node: ir.Node) -> str:
    value = node.outputs[0]
    return side.names[side.number[value]].removesuffix(value.name or "")


def _value_pair(a: Side, b: Side, p: int, q: int, confidence: float) -> ValuePair:
    return ValuePair(a.values[p], b.values[q], a.names[p], b.names[q], confidence)


def _by_class(half: Half, label: Mapping[int, int]) -> dict[tuple[int, str, str], list[ir.Node]]:
    """Return the carriers of each paired class, by operator; ``label``: class → number of the pair."""
    found: dict[tuple[int, str, str], list[ir.Node]] = {}
    for node, _ in half.side.carriers:
        origin = root(half.side, node)
        place = label.get(half.same.get(origin, origin))
        if place is not None:
            found.setdefault((place, node.op_type, _target(node)), []).append(node)
    return found


def _target(node: ir.Node) -> str:
    return str(node.attributes.get_int("to", 0)) if node.op_type == "Cast" else ""


def _alone(half: Half, other: Half, values: Mapping[int, int], carried: set[int]) -> Iterator[Alone]:
    side = half.side
    fed = _fed(side)
    for x, item in enumerate(side.items):
        if half.items[x] == NONE:
            yield Alone(item.node, side.scopes[item.scope].name, x not in fed, _into(half, other, values, x))
    for node, scope in side.carriers:
        if id(node) not in carried:
            yield Alone(node, side.scopes[scope].name, root(side, node) in side.weights, None)


def _fed(side: Side) -> set[int]:
    """Return the items that depend on an input of the graph or of a subgraph."""
    live = set(side.inputs) | set(side.sources)
    found = set()
    for x, item in enumerate(side.items):
        inner = [value for body in item.bodies for value in body.outputs]
        if any(value in live for value in (*item.inputs, *inner)):
            found.add(x)
            live.update(item.outputs)
    return found


def _into(half: Half, other: Half, values: Mapping[int, int], x: int) -> ir.Node | None:
    """Return who makes, on the other side, the next paired value after an item."""
    level, seen = [x], {x}
    while level and len(seen) < 32:
        following = []
        for item in level:
            for value in half.side.items[item].outputs:
                value = half.same.get(value, value)
                if value in values:
                    maker = other.makers(values[value])
                    return other.side.items[maker[0]].node if maker else None
                following += [
                    reader for reader, _ in half.side.consumers.get(value, ()) if reader not in seen
                ]
        seen.update(following)
        level = list(dict.fromkeys(following))
    return None
