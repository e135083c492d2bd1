"""Pairs the nodes of two graphs, the surest first; each pair makes its neighbours surer.

Candidates lie around paired values: those who read them, those who make them, and a few steps further where
one side has nodes that the other lacks. A candidate's score is the share of its evidence that speaks for it.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from graphdoc.surgeon.align_ops import COMMUTATIVE
from graphdoc.surgeon.align_side import NONE, Item, Side
from graphdoc.surgeon.align_weights import ALIKE

SAMPLED = 64
"""Elements from which on two weights that are alike tell something about the nodes that read them."""

LEAST = 0.55
"""Score from which on two nodes are paired."""

UNSUPPORTED = 0.3
"""Score of two nodes that look alike and have no neighbour in common."""

CLIMB = 8
"""Steps through unpaired nodes that are looked at, each way."""

VISITED = 24
"""Values that are looked at on such a way."""

CROSS = 64
"""Pairs of readers of one pair of values that are tried each; with more, only readers in the same place."""

ROUNDS = 12
"""How often the search across unpaired nodes is repeated, since each round gives the next one footholds."""


_WHERE = ("pads", "auto_pad", "axis", "axes", "perm")
"""Parameters that tell which form of a value a node reads: a padded one, or one with other axes."""


@dataclass(slots=True)
class Half:
    """One side, and what is paired of it: item → item, value → value (−1: nothing yet), scope → scope."""

    side: Side
    items: list[int]
    values: dict[int, int]
    scopes: dict[int, int]
    score: list[float]
    ahead: list[int]
    same: dict[int, int]

    def reads(self, item: Item, slot: int) -> int:
        """Return the class that an item reads at a slot of its operator class, −1 for nothing."""
        order = item.slots
        place = slot if order is None else (order[slot] if slot < len(order) else len(item.inputs))
        if place >= len(item.inputs):
            return NONE
        value = item.inputs[place]
        return self.same.get(value, value)

    def makers(self, value: int) -> tuple[int, int] | None:
        """Return the item and slot that make a class."""
        return self.side.producer.get(value)

    def arity(self, item: Item) -> int:
        """Return the number of inputs in the order of the operator class."""
        return len(item.inputs) if item.slots is None else len(item.slots)


def look_ahead(side: Side, depth: int = 4) -> list[int]:
    """Return a number per item that tells what follows it, ``depth`` steps far."""
    table: dict[object, int] = {}
    now = [table.setdefault(item.kind, len(table)) for item in side.items]
    for _ in range(depth):
        after: list[object] = []
        for number, item in enumerate(side.items):
            readers = [now[reader] for value in item.outputs for reader, _ in side.consumers.get(value, ())]
            after.append((now[number], tuple(sorted(readers))))
        now = [hash(key) for key in after]
    return now


def _spread(half: "Half", value: int, step: Callable[[int], Iterable[int]]) -> set[int]:
    """Return the nearest paired values that ``step`` leads to from a value, level by level."""
    found: set[int] = set()
    level, seen = [value], {value}
    for _ in range(CLIMB):
        following = []
        for current in level:
            if current in half.values:
                found.add(current)
                continue
            for other in step(current):
                other = half.same.get(other, other)
                if other not in seen:
                    seen.add(other)
                    following.append(other)
        if not following or len(seen) > VISITED:
            break
        level = following
    return found


class Matcher:
    """The state of the search. Values are classes (align_side.py), of equal ones on one side the first."""

    def __init__(self, a: Half, b: Half) -> None:
        self.a = a
        self.b = b
        self._heap: list[tuple[float, int, int]] = []
        self._tried: set[tuple[int, int]] = set()
        self._worth: dict[int, float] = {}
        self.telling: set[int] = set()
        """Constants of A whose content no other constant of A or B has, but one of B."""
        self.support: dict[int, int] = {}
        """How many paired nodes read a value of A and its partner at the same place."""

    # Evidence

    def score(self, x: int, y: int) -> float:
        """Return how well two unpaired items fit, 0 to 1."""
        left, right = self.a.side.items[x], self.b.side.items[y]
        if left.kind != right.kind or not self.scopes_fit(left.scope, right.scope):
            return 0.0
        same = left.node.op_type == right.node.op_type
        total, gained = 1.0, 1.0 if same else 0.85
        total, gained = total + 0.5, gained + 0.5 * _agreement(left, right, same=same)
        known, fits = self._inputs(left, right)
        out_known, out_fits = self._outputs(left, right)
        known, fits = known + out_known, fits + out_fits
        gained, total = gained + fits, total + known
        if left.node.name and left.node.name == right.node.name:
            gained, total = gained + 0.3, total + 0.3
        if self.a.ahead[x] == self.b.ahead[y]:
            gained, total = gained + 0.2, total + 0.2
        result = gained / total
        return result if fits > 0.5 else min(result, UNSUPPORTED)

    def _inputs(self, left: Item, right: Item) -> tuple[float, float]:
        """Return the weight of what is known about the inputs, and how much of it speaks for the pair."""
        count = max(self.a.arity(left), self.b.arity(right))
        if count > 64:
            count = 64
        pairs = [(self.a.reads(left, slot), self.b.reads(right, slot)) for slot in range(count)]
        straight = self._sum(pairs)
        if left.node.op_type in COMMUTATIVE and len(pairs) == 2:
            crossed = self._sum([(pairs[0][0], pairs[1][1]), (pairs[1][0], pairs[0][1])])
            return max(straight, crossed, key=lambda row: row[1])
        return straight

    def _sum(self, pairs: list[tuple[int, int]]) -> tuple[float, float]:
        known = fits = 0.0
        for p, q in pairs:
            weight, fit = self._pair(p, q)
            known, fits = known + weight, fits + weight * fit
        return known, fits

    def _pair(self, p: int, q: int) -> tuple[float, float]:
        """Return weight and fit (−1..1) of two inputs in the same place."""
        if p == NONE or q == NONE:
            return (0.0, 0.0) if p == q else (0.2, 0.0)
        first, second = self.a.side.weights.get(p), self.b.side.weights.get(q)
        if first is not None and second is not None:
            if self.a.values.get(p) == q or first.key == second.key:
                return (1.5, 1.0) if p in self.telling else (0.3, 1.0)
            if first.alike(second) >= ALIKE:
                return (1.5, 0.95) if first.size >= SAMPLED else (0.3, 0.95)
            return (0.6, 0.2) if first.shape == second.shape else (0.6, -0.6)
        if first is not None or second is not None:
            return 0.4, -0.5
        if self.a.values.get(p, NONE) == q:
            return 1.5, 1.0
        return self._from_afar(self.frontier(self.a, p), self.frontier(self.b, q))

    def _from_afar(self, left: set[int], right: set[int]) -> tuple[float, float]:
        """Return weight and fit of two values by the paired values that lie around them."""
        if not left or not right:
            return 0.3, 0.0
        mates = {self.a.values[value] for value in left}
        if mates == right:
            return 1.5, 0.7
        return (1.5, 0.45) if mates & right else (1.5, -1.0)

    def _outputs(self, left: Item, right: Item) -> tuple[float, float]:
        if not left.outputs or not right.outputs:
            return 0.0, 0.0
        p, q = left.outputs[0], right.outputs[0]
        if self.a.values.get(p, NONE) == q:
            return 1.5, 1.5
        weight, fit = self._from_afar(self.beyond(self.a, p), self.beyond(self.b, q))
        return weight * 0.7, weight * 0.7 * fit

    def beyond(self, half: Half, value: int) -> set[int]:
        """Return the paired values that a value leads to through unpaired nodes."""

        def onward(current: int) -> Iterator[int]:
            for reader, _ in half.side.consumers.get(current, ()):
                yield from half.side.items[reader].outputs[:1]

        return _spread(half, value, onward)

    def frontier(self, half: Half, value: int) -> set[int]:
        """Return the paired values that a value comes from through unpaired nodes; empty when too far."""

        def back(current: int) -> Iterable[int]:
            maker = half.makers(current)
            return () if maker is None else half.side.data(half.side.items[maker[0]])

        return _spread(half, value, back)

    def scopes_fit(self, left: int, right: int) -> bool:
        """Whether two scopes are paired, or would be if branches of If stood in the graph around them."""
        if self.a.scopes.get(left, NONE) == right:
            return True
        return self.a.scopes.get(_outside_if(self.a, left), NONE - 1) == _outside_if(self.b, right)

    # Search

    def push(self, x: int, y: int, penalty: float = 0.0) -> bool:
        """Queue a pair of items if it is good enough as things stand."""
        if self.a.items[x] != NONE or self.b.items[y] != NONE:
            return False
        score = self.score(x, y) - penalty
        if score < LEAST:
            return False
        heapq.heappush(self._heap, (-score, x, y))
        return True

    def run(self) -> None:
        """Pair until nothing more is found."""
        self._drain()
        for _ in range(ROUNDS):
            if not self._search_across():
                return
            self._drain()

    def _drain(self) -> None:
        while self._heap:
            negative, x, y = heapq.heappop(self._heap)
            if self.a.items[x] != NONE or self.b.items[y] != NONE:
                continue
            score = self.score(x, y)
            if score < -negative - 0.3 or score < LEAST:
                continue
            if score < -negative - 0.02:
                heapq.heappush(self._heap, (-score, x, y))
                continue
            self.accept(x, y, score)

    def settle(self, x: int, y: int) -> None:
        """Pair two items at once, if nothing speaks against it."""
        if self.a.items[x] == NONE and self.b.items[y] == NONE:
            score = self.score(x, y)
            if score >= LEAST:
                self.accept(x, y, score, spread=False)

    def accept(self, x: int, y: int, score: float, *, spread: bool = True) -> None:
        """Pair two items, what they read and make, and queue their neighbours."""
        self.a.items[x], self.b.items[y] = y, x
        self.a.score[x] = self.b.score[y] = score
        left, right = self.a.side.items[x], self.b.side.items[y]
        fresh = [*self._pair_inputs(left, right, score)]
        for p, q in zip(left.outputs, right.outputs, strict=False):
            if self.pair_values(p, q, score):
                fresh.append((p, q))
        fresh += self._pair_bodies(left, right, score)
        for p, q in fresh if spread else ():
            self.around(p, q)

    def _pair_inputs(self, left: Item, right: Item, score: float) -> Iterator[tuple[int, int]]:
        count = max(self.a.arity(left), self.b.arity(right))
        pairs = [(self.a.reads(left, slot), self.b.reads(right, slot)) for slot in range(count)]
        if left.node.op_type in COMMUTATIVE and len(pairs) == 2:
            crossed = [(pairs[0][0], pairs[1][1]), (pairs[1][0], pairs[0][1])]
            if self._sum(crossed)[1] > self._sum(pairs)[1]:
                pairs = crossed
        alike = all(left.parameters.get(name) == right.parameters.get(name) for name in _WHERE)
        for p, q in pairs:
            if p == NONE or q == NONE or (p in self.a.side.weights) != (q in self.b.side.weights):
                continue
            if not alike and self.a.values.get(p, NONE) != q and self.b.values.get(q, NONE) != p:
                continue
            if self._moved(p, q) and self.pair_values(p, q, score):
                yield p, q
            if self.a.values.get(p, NONE) == q:
                self.support[p] = self.support.get(p, 0) + 1

    def _moved(self, p: int, q: int) -> bool:
        """Free two values whose partners nobody else reads: who reads a value knows best what it holds."""
        if self.a.values.get(p, NONE) == q or p in self.a.side.weights:
            return p not in self.a.values and q not in self.b.values
        holders = [
            value for value in (p, self.b.values.get(q, NONE)) if self.a.values.get(value, NONE) != NONE
        ]
        if any(self.support.get(value, 0) for value in holders):
            return False
        for value in holders:
            del self.b.values[self.a.values.pop(value)]
        return True

    def pair_values(self, p: int, q: int, score: float) -> bool:
        """Pair two free values; return whether that was possible."""
        p, q = self.a.same.get(p, p), self.b.same.get(q, q)
        if p in self.a.values or q in self.b.values:
            return False
        self.a.values[p], self.b.values[q] = q, p
        self._worth[p] = score
        return True

    def _pair_bodies(self, left: Item, right: Item, score: float) -> list[tuple[int, int]]:
        fresh = []
        for first, second in zip(left.bodies, right.bodies, strict=False):
            self.a.scopes[first.scope], self.b.scopes[second.scope] = second.scope, first.scope
            for p, q in zip(first.inputs, second.inputs, strict=False):
                if self.pair_values(p, q, score):
                    fresh.append((p, q))
            for p, q in zip(first.outputs, second.outputs, strict=False):
                fixed = p in self.a.side.weights or q in self.b.side.weights
                if not fixed and self.pair_values(p, q, score):
                    fresh.append((p, q))
        return fresh

    def around(self, p: int, q: int) -> None:
        """Queue the readers and makers of two paired values."""
        maker_a, maker_b = self.a.makers(p), self.b.makers(q)
        if maker_a is not None and maker_b is not None:
            self.push(maker_a[0], maker_b[0])
        left = [row for row in self.readers(self.a, p) if self.a.items[row[0]] == NONE]
        right = [row for row in self.readers(self.b, q) if self.b.items[row[0]] == NONE]
        if len(left) * len(right) <= CROSS:
            for x, _ in left:
                for y, _ in right:
                    self.push(x, y)
        else:
            self._in_places(left, right)

    def readers(self, half: Half, value: int) -> list[tuple[int, int]]:
        """Return who reads a class, or one with the same content."""
        return half.side.consumers.get(value, [])

    def _in_places(self, left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
        groups: dict[tuple[str, int], list[int]] = {}
        for y, slot in right:
            groups.setdefault((self.b.side.items[y].kind, slot), []).append(y)
        taken: dict[tuple[str, int], int] = {}
        for x, slot in left:
            key = (self.a.side.items[x].kind, slot)
            place = taken.get(key, 0)
            taken[key] = place + 1
            for y in groups.get(key, [])[max(0, place - 2) : place + 3]:
                self.push(x, y)

    def _search_across(self) -> bool:
        """Queue pairs that lie a few unpaired nodes away from paired values, forwards and backwards."""
        found = False
        for p, q in sorted(self.a.values.items()):
            if p in self.a.side.weights:
                continue
            for step in (self.onward, self.backward):
                left, right = step(self.a, p), step(self.b, q)
                if left and right:
                    found |= self._queue_across(left, right)
        return found

    def _queue_across(self, left: dict[int, int], right: dict[int, int]) -> bool:
        found = False
        kinds: dict[str, list[int]] = {}
        for y in right:
            kinds.setdefault(self.b.side.items[y].kind, []).append(y)
        for x, steps in left.items():
            for y in kinds.get(self.a.side.items[x].kind, ()):
                if (x, y) not in self._tried or steps + right[y] == 0:
                    found |= self.push(x, y, 0.01 * (steps + right[y]))
                    self._tried.add((x, y))
        return found

    def onward(self, half: Half, value: int) -> dict[int, int]:
        """Return the unpaired items that follow a value through unpaired items, and how many steps away."""
        found: dict[int, int] = {}
        level = [value]
        for step in range(CLIMB):
            items = [
                x for v in level for x, _ in self.readers(half, v) if half.items[x] == NONE and x not in found
            ]
            for x in items:
                found[x] = step
            if not items or len(found) > VISITED:
                break
            level = [v for x in dict.fromkeys(items) for v in half.side.items[x].outputs]
        return found

    def backward(self, half: Half, value: int) -> dict[int, int]:
        """Return the unpaired items that lead to a value through unpaired items."""
        found: dict[int, int] = {}
        level = [value]
        for step in range(CLIMB):
            makers = [half.makers(v) for v in level]
            items = [m[0] for m in makers if m is not None and half.items[m[0]] == NONE and m[0] not in found]
            for x in items:
                found[x] = step
            if not items or len(found) > VISITED:
                break
            level = [v for x in dict.fromkeys(items) for v in half.side.data(half.side.items[x])]
        return found

    def worth(self, value: int) -> float:
        """Return the score under which a value of A was paired."""
        return self._worth.get(value, 0.0)


def _outside_if(half: Half, scope: int) -> int:
    scopes = half.side.scopes
    while scopes[scope].holder == "If" and scope not in half.scopes:
        scope = scopes[scope].outer
    return scope


def _agreement(left: Item, right: Item, *, same: bool) -> float:
    """Return the share of parameters that are equal; those of another operator of the class do not count."""
    if left.frozen == right.frozen:
        return 1.0
    names = left.parameters.keys() | right.parameters.keys()
    if not same:
        names = left.parameters.keys() & right.parameters.keys()
    equal = sum(left.parameters.get(name) == right.parameters.get(name) for name in names)
    return equal / len(names) if names else 1.0
