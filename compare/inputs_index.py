"""Inputs that are indices, and the tables they index."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor

import numpy as np
import onnx_ir as ir

from graphdoc.compare.inputs_facts import Facts
from graphdoc.compare.inputs_uses import Part, Use, Walker


@dataclass(frozen=True, slots=True)
class Limit:
    """The values an input, or a part of it, may take: low ≤ value < high.

    table: what is indexed, in words. exact: False where the graph changes the index in a way that is not
    followed, so that the limit is that of the changed index.
    """

    part: Part | None
    low: int
    high: int
    table: str
    exact: bool


def limits(facts: Facts) -> list[Limit]:
    """Return a limit per indexed table, exact ones first; empty for inputs that index nothing."""
    found = [limit for use in facts.uses if (limit := _limit(facts.walker, use)) is not None]
    return sorted(found, key=lambda limit: (not limit.exact, limit.high))


def indexes(facts: Facts) -> bool:
    """Whether the input ends up as an index, of a table of known length or not."""
    sure = (use for use in facts.uses if use.at in TABLES and use.op != "Equal")
    return any(not use.path.bounded for use in sure) or bool(limits(facts))


def _limit(walker: Walker, use: Use) -> Limit | None:
    rule = TABLES.get(use.at)
    found = rule(walker, use.node) if rule is not None and not use.path.bounded else None
    if found is None:
        return None
    rows, table = found
    scale, shift = use.path.scale, use.path.shift
    if scale is None or shift is None or scale <= 0:
        return Limit(use.path.part, 0, max(rows, 1), table, exact=False)
    low = ceil(max(0.0, use.path.spread - shift) / scale)
    high = floor((rows - 1 - shift) / scale) + 1
    return Limit(use.path.part, low, max(high, low + 1), table, exact=True)


Found = tuple[int, str] | None
"""How many rows the table has, and what it is."""


def _axis(node: ir.Node, default: int) -> int:
    attribute = node.attributes.get("axis")
    return default if attribute is None or attribute.is_ref() else int(attribute.value)


def _rows_of(data: int, axis: int | None = None, default: int = 0) -> Callable[[Walker, ir.Node], Found]:
    """Return a rule: the size of an input of the node along an axis (None: along its axis attribute)."""

    def rule(walker: Walker, node: ir.Node) -> Found:
        value = node.inputs[data] if data < len(node.inputs) else None
        shape = walker.shape(value)
        where = _axis(node, default) if axis is None else axis
        if value is None or not shape or not -len(shape) <= where < len(shape):
            return None
        rows = shape[where]
        return None if rows is None else (rows, f"rows of {value.name}")

    return rule


def _least(walker: Walker, node: ir.Node) -> Found:
    """GatherND, ScatterND: the smallest of the indexed axes is safe for every component of an index."""
    shape, indices = walker.full_shape(node.inputs[0]), walker.shape(node.inputs[1])
    if not shape or node.inputs[0] is None:
        return None
    depth = indices[-1] if indices else None
    return min(shape[:depth] or shape), f"positions of {node.inputs[0].name}"


def _depth(walker: Walker, node: ir.Node) -> Found:
    depth = walker.ints(node.inputs[1])
    constant = walker.constant(node.inputs[1])
    if not depth and constant is not None and constant.size:
        depth = [int(constant.reshape(-1)[0])]
    return (depth[0], "depth of the one-hot code") if depth else None


def _one_hot(walker: Walker, node: ir.Node) -> Found:
    """Equal with 0, 1, 2 … : a one-hot code spelled out."""
    for value in node.inputs:
        numbers = walker.constant(value)
        if numbers is not None and numbers.size > 2 and numbers.dtype.kind in "iuf":
            flat = numbers.reshape(-1)
            if np.array_equal(flat, np.arange(flat.size)):
                return flat.size, "length of the one-hot code"
    return None


def _rotary(walker: Walker, node: ir.Node) -> Found:
    """RotaryEmbedding: com.microsoft takes the positions first, ONNX last."""
    return _rows_of(2 if node.domain == "com.microsoft" else 1, 0)(walker, node)


TABLES: dict[tuple[str, int], Callable[[Walker, ir.Node], Found]] = {
    ("Gather", 1): _rows_of(0),
    ("GatherElements", 1): _rows_of(0),
    ("GatherBlockQuantized", 1): _rows_of(0, default=0),
    ("GatherND", 1): _least,
    ("ScatterElements", 1): _rows_of(0),
    ("Scatter", 1): _rows_of(0),
    ("ScatterND", 1): _least,
    ("OneHot", 0): _depth,
    ("Equal", 0): _one_hot,
    ("Equal", 1): _one_hot,
    ("ArrayFeatureExtractor", 1): _rows_of(0, -1),
    ("EmbedLayerNormalization", 0): _rows_of(2, 0),
    ("EmbedLayerNormalization", 1): _rows_of(4, 0),
    ("EmbedLayerNormalization", 6): _rows_of(3, 0),
    ("QEmbedLayerNormalization", 0): _rows_of(2, 0),
    ("QEmbedLayerNormalization", 1): _rows_of(4, 0),
    ("RotaryEmbedding", 1): _rotary,
    ("RotaryEmbedding", 3): _rotary,
    ("NegativeLogLikelihoodLoss", 1): _rows_of(0, 1),
    ("SoftmaxCrossEntropyLoss", 1): _rows_of(0, 1),
    ("WordConvEmbedding", 0): _rows_of(3, 0),
}
"""(operator, slot) of an index → the table's rows."""
