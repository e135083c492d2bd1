"""Real numbers where B holds codes, A's layout where B holds another one.

Behind such a value two nodes are put into B: one makes what A holds, the other takes it back for all who
read the value. DequantizeLinear and QuantizeLinear with one scale give the same codes back, two transposes
the same tensor, so B computes what it did; but the value in between can be held against A's, and be replaced
by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import onnx
from onnx import helper

from graphdoc.compare.scales import Scale, Scales
from graphdoc.compare.target import Target
from graphdoc.engine.infer import Facts

REAL = "·real"
"""Ends the name of what a bridge makes of a value, until it is given A's name."""

AGAIN = "·again"
"""Ends the name of what a bridge gives back."""


@dataclass(frozen=True, slots=True)
class Decode:
    """Codes → real numbers → codes. zero_type: of a zero point that has to be made, 0 for none."""

    scale: Scale
    zero_type: int = 0


@dataclass(frozen=True, slots=True)
class Permute:
    """Axes in the order in which A has them."""

    order: tuple[int, ...]


Bridge: TypeAlias = Decode | Permute

CODE_TYPES = {
    name: onnx.TensorProto.DataType.Value(name.upper())
    for name in ("int8", "uint8", "int16", "uint16", "int4", "uint4")
}
"""Types of codes, NumPy's name → ONNX's number."""


class Decoder:
    """Tells which values of a model are codes, and how they are read."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._facts = Facts(target.model)
        self._scales = Scales(target.proto, str(target.source.folder or ""))
        self._values = {str(v.name): v for node in target.model.graph for v in node.outputs if v.name}
        self._opset = target.model.opset_imports.get("", 0)

    def is_codes(self, name: str) -> bool:
        """Whether a value of the main graph holds codes; false where it is not known."""
        dtype = self._dtype(name)
        return dtype in CODE_TYPES or (dtype == "" and self._scales.of_codes(name) is not None)

    def bridge(self, name: str) -> Decode | None:
        """Return how the codes become real numbers; None where that cannot be told, or not be written."""
        used = self._scales.of_codes(name)
        if used is None or (used.axis not in (None, 1) and self._opset < 13):
            return None
        dtype = self._dtype(name) or "uint8"
        if not used.domain and (self._opset < 10 or (dtype not in ("int8", "uint8") and self._opset < 21)):
            used = replace(used, domain="com.microsoft")
        return Decode(used, 0 if used.zero else CODE_TYPES.get(dtype, 0))

    def _dtype(self, name: str) -> str:
        known = self._facts.of(self._values[name]).dtype if name in self._values else None
        return "" if known is None else known.name


def permutation(a: Sequence[object], b: Sequence[object]) -> tuple[int, ...] | None:
    """Return ``order`` with a[i] = b[order[i]] that moves one axis; None where no such order fits.

    Of orders that fit equally the one that moves the channels (axis 1 of A) is taken.
    """
    if len(a) != len(b) or sorted(map(str, a)) != sorted(map(str, b)) or list(a) == list(b):
        return None
    axes = list(range(len(b)))
    moves = [(to, at) for to in axes for at in axes if to != at]
    moves.sort(key=lambda move: (move != (1, len(axes) - 1), move[0] != 1, move))
    for to, at in moves:
        order = [axis for axis in axes if axis != at]
        order.insert(to, at)
        if all(x == b[axis] for x, axis in zip(a, order, strict=True)):
            return tuple(order)
    return None


def insert(model: onnx.ModelProto, bridges: Mapping[str, Bridge]) -> None:
    """Put bridges behind values of the main graph; results are called value + REAL, value + AGAIN."""
    graph = model.graph
    again = {name: name + AGAIN for name in bridges}
    nodes = []
    for node in graph.node:
        _read(node, again)
        nodes.append(node)
        for name in node.output:
            if name in bridges:
                nodes += _nodes(name, bridges[name], graph)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    for output in graph.output:
        if output.name in bridges:
            _declare(output, bridges[output.name])


def _read(node: onnx.NodeProto, again: Mapping[str, str]) -> None:
    for place, name in enumerate(node.input):
        node.input[place] = again.get(name, name)
    for attribute in node.attribute:
        for inner in [attribute.g, *attribute.graphs]:
            for part in inner.node:
                _read(part, again)


def _nodes(name: str, bridge: Bridge, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    if isinstance(bridge, Permute):
        back = [bridge.order.index(axis) for axis in range(len(bridge.order))]
        return [
            helper.make_node("Transpose", [name], [name + REAL], perm=bridge.order),
            helper.make_node("Transpose", [name + REAL], [name + AGAIN], perm=back),
        ]
    used, zero = bridge.scale, bridge.scale.zero
    if bridge.zero_type:
        zero = f"{name}·zero"
        graph.initializer.append(helper.make_tensor(zero, bridge.zero_type, [], [0]))
    how = {"axis": used.axis, "block_size": used.block}
    given: dict[str, Any] = {key: value for key, value in how.items() if value is not None}
    rest = [used.scale, zero] if zero else [used.scale]
    return [
        helper.make_node("DequantizeLinear", [name, *rest], [name + REAL], domain=used.domain, **given),
        helper.make_node("QuantizeLinear", [name + REAL, *rest], [name + AGAIN], domain=used.domain, **given),
    ]


def _declare(output: onnx.ValueInfoProto, bridge: Bridge) -> None:
    """Let a graph output be the real value; its sizes are left to inference."""
    kind = onnx.TensorProto.FLOAT if isinstance(bridge, Decode) else output.type.tensor_type.elem_type
    output.CopyFrom(helper.make_tensor_value_info(output.name + REAL, kind, None))
