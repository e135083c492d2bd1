"""Value numbering over two graphs: equal numbers, equal content.

A number stands for an operator, its parameters and the numbers of what it reads; weights count by content,
inputs by the pairs the interface gives. What has one number on both sides holds the same whatever the names.
"""

from collections.abc import Mapping
from typing import Any

from graphdoc.surgeon.align_ops import COMMUTATIVE
from graphdoc.surgeon.align_side import NONE, Item, Side


class Numbering:
    """Numbers for the values and items of both sides, from one table."""

    def __init__(self) -> None:
        self._table: dict[Any, int] = {}

    def _number(self, key: Any) -> int:
        return self._table.setdefault(key, len(self._table))

    def number(self, side: Side, inputs: Mapping[int, Any]) -> tuple[dict[int, int], list[int]]:
        """Return class → number and the number of each item. inputs: class of an input → its label."""
        found: dict[int, int] = {NONE: self._number("omitted")}
        for value, label in inputs.items():
            found[value] = self._number(("input", label))
        for value, weight in side.weights.items():
            if value not in found:
                found[value] = self._number(("weight", weight.key))
        items = []
        for item in side.items:
            number = self._item(item, side, found)
            items.append(number)
            for slot, value in enumerate(item.outputs):
                found[value] = self._number((number, slot))
        return found, items

    def _item(self, item: Item, side: Side, found: dict[int, int]) -> int:
        reads = [self._read(value, side, found) for value in item.inputs]
        if item.node.op_type in COMMUTATIVE:
            reads.sort()
        bodies = tuple(tuple(self._read(v, side, found) for v in body.outputs) for body in item.bodies)
        return self._number((item.node.domain, item.node.op_type, item.frozen, tuple(reads), bodies))

    def _read(self, value: int, side: Side, found: dict[int, int]) -> int:
        if value not in found:
            found[value] = self._source(value, side, found)
        return found[value]

    def _source(self, value: int, side: Side, found: dict[int, int]) -> int:
        """Number a value that no item makes: a body input, a scale, or something that has no source."""
        if value in side.extras:
            root, op, place = side.extras[value]
            return self._number((op, self._read(root, side, found), place))
        if value not in side.sources:
            return self._number(("source", side.names[value]))
        holder, attribute, place = side.sources[value]
        item = side.items[holder]
        reads = tuple(self._read(v, side, found) for v in item.inputs)
        return self._number((item.node.domain, item.node.op_type, item.frozen, reads, attribute, place))
