"""Sizes that the weights of a model demand of its inputs."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import onnx_ir as ir

from graphdoc.compare.inputs_facts import Facts
from graphdoc.compare.inputs_tabular import attribute, widths
from graphdoc.compare.inputs_uses import Use, Walker

Demand: TypeAlias = tuple[int, int]
"""An axis of the value an operator reads (negative: from the end), and the size it must have."""

Rule: TypeAlias = Callable[[Walker, ir.Node], list[Demand]]


def size_hints(facts: Facts) -> dict[int, list[int]]:
    """Return for the input's axes the sizes that operators ask for, the nearest operator's first."""
    found: dict[int, list[int]] = {}
    for use in facts.uses:
        for axis, size in _demands(facts.walker, use):
            if size > 0 and size not in found.setdefault(axis, []):
                found[axis].append(size)
    if facts.rank and (columns := widths(facts)):
        found.setdefault(facts.rank - 1, []).extend(columns)
    return found


def _demands(walker: Walker, use: Use) -> Iterator[Demand]:
    """Yield the demands of one use, told as axes of the input."""
    axes, part = use.path.axes, use.path.part
    if part is not None and part.indices and use.op not in ("Scaler", "Imputer"):
        yield part.axis, max(part.indices) + 1
    rule = _RULES.get(use.at)
    if rule is None or axes is None:
        return
    for axis, size in rule(walker, use.node):
        source = axes[axis] if -len(axes) <= axis < len(axes) else None
        if source is not None and (part is None or part.axis != source):
            yield source, size


def _size(walker: Walker, node: ir.Node, slot: int, axis: int) -> int | None:
    shape = walker.shape(node.inputs[slot]) if slot < len(node.inputs) else None
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else None


def _as(axis: int, slot: int, other: int) -> Rule:
    """Return a rule: the value's axis must have the size of another input's axis."""

    def rule(walker: Walker, node: ir.Node) -> list[Demand]:
        size = _size(walker, node, slot, other)
        return [] if size is None else [(axis, size)]

    return rule


def _channels(slot: int) -> Rule:
    def rule(walker: Walker, node: ir.Node) -> list[Demand]:
        size = _size(walker, node, slot, 1)
        return [] if size is None else [(1, size * int(attribute(node, "group") or 1))]

    return rule


def _gemm(slot: int) -> Rule:
    """Gemm: the inner axis of one matrix is that of the other."""
    mine, its = ("transA", "transB") if slot == 0 else ("transB", "transA")

    def rule(walker: Walker, node: ir.Node) -> list[Demand]:
        inner_last = slot == 0
        own = -1 if inner_last != bool(attribute(node, mine)) else -2
        other = 0 if inner_last != bool(attribute(node, its)) else 1
        size = _size(walker, node, 1 - slot, other)
        return [] if size is None else [(own, size)]

    return rule


def _state(walker: Walker, node: ir.Node) -> list[Demand]:
    directions, hidden = _size(walker, node, 2, 0), _size(walker, node, 2, 2)
    return [(axis, size) for axis, size in ((0, directions), (2, hidden)) if size is not None]


def _broadcast(slot: int) -> Rule:
    """Element-wise with a constant: where the constant is not 1, the value most likely has its size."""

    def rule(walker: Walker, node: ir.Node) -> list[Demand]:
        other = node.inputs[1 - slot]
        if other is None or not walker.is_constant(other):
            return []
        shape = walker.full_shape(other) or ()
        return [(axis - len(shape), size) for axis, size in enumerate(shape) if size > 1]

    return rule


def _quantized_k(_walker: Walker, node: ir.Node) -> list[Demand]:
    size = attribute(node, "K")
    return [(-1, int(size))] if size else []


def _squeezed(walker: Walker, node: ir.Node) -> list[Demand]:
    axes = attribute(node, "axes") or (walker.ints(node.inputs[1]) if len(node.inputs) > 1 else None)
    return [(int(axis), 1) for axis in axes or ()]


_RULES: dict[tuple[str, int], Rule] = {
    **{(name, 0): _channels(1) for name in ("Conv", "ConvInteger", "FusedConv")},
    ("QLinearConv", 0): _channels(3),
    ("ConvTranspose", 0): _as(1, 1, 0),
    **{
        (name, 0): _as(-1, 1, -2)
        for name in ("MatMul", "MatMulInteger", "FusedMatMul", "DynamicQuantizeMatMul")
    },
    **{(name, 1): _as(-2, 0, -1) for name in ("MatMul", "MatMulInteger", "FusedMatMul")},
    ("QLinearMatMul", 0): _as(-1, 3, -2),
    ("MatMulNBits", 0): _quantized_k,
    ("Gemm", 0): _gemm(0),
    ("Gemm", 1): _gemm(1),
    **{(name, 0): _as(2, 1, 2) for name in ("LSTM", "GRU", "RNN")},
    **{(name, slot): _state for name in ("LSTM", "GRU", "RNN") for slot in (5, 6)},
    **{(name, 0): _as(-1, 1, -1) for name in ("LayerNormalization", "RMSNormalization", "Attention")},
    ("SimplifiedLayerNormalization", 0): _as(-1, 1, -1),
    ("SkipLayerNormalization", 0): _as(-1, 2, -1),
    ("SkipLayerNormalization", 1): _as(-1, 2, -1),
    **{
        (name, 0): _as(1, 1, 0)
        for name in ("BatchNormalization", "InstanceNormalization", "GroupNormalization")
    },
    **{(name, slot): _broadcast(slot) for name in ("Add", "Sub", "Mul", "Div") for slot in (0, 1)},
    ("Squeeze", 0): _squeezed,
}
"""(operator, slot) → what it demands of the value there."""
