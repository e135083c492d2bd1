"""Which inputs may be given any value at all, and which not: found by following them through the graph.

A number that says how much is to be made (a shape, a repeat count, the trips of a loop) would fill the memory
or never end. A number that says where to look, or what to divide by, may end the process in a runtime that
does not check it; such inputs get unusual values in the engine only, which raises.
"""

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops.table import canonical_domain


class Hazard(IntEnum):
    """What unusual values of an input can do, the worst last."""

    NONE = 0
    POSITIONS = 1
    SIZES = 2


_RECURRENT = ("RNN", "GRU", "LSTM")

SIZES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Upsample", "CenterCropPad", "AffineGrid", "DFT"), (1,)),
    **dict.fromkeys(("OneHot", "Pad", "TopK", "Split", "SplitToSequence"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    **dict.fromkeys(("Loop",), (0, 1)),
    "Tile": (1, 2),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Col2Im": (1, 2),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
}
"""Operator → inputs that decide how much is computed."""

POSITIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("MaxRoiPool", "MaxUnpool", "GridSample", "ReverseSequence", "BitShift"), (1,)),
    **dict.fromkeys(_RECURRENT, (4,)),
    "RoiAlign": (1, 2),
    "DeformConv": (2,),
}
"""Operator → inputs that say where to read."""

_DIVIDING = ("Div", "Mod")
_BLIND = ("Shape", "Size")
"""Operators whose results do not depend on the values they read."""

FEW_TRIPS = 1 << 14
"""A loop of at most so many trips ends soon whatever its condition says."""


class Hazards:
    """The ways through one model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._owners: dict[ir.Graph | ir.Function, ir.Node] = {}
        for node in _all_nodes(model):
            for graph in _bodies(node):
                self._owners[graph] = node

    def of(self, value: ir.Value) -> Hazard:
        """Return the worst that unusual values of a graph input can do."""
        integer = value.dtype is None or not value.dtype.is_floating_point()
        worst = Hazard.NONE
        reached = {value}
        left = [value]
        while left and worst < Hazard.SIZES:
            for node, slot in left.pop().uses():
                worst = max(worst, self._hazard(node, slot, integer=integer))
                fresh = [v for v in self._after(node, slot) if v not in reached]
                reached.update(fresh)
                left.extend(fresh)
        return worst

    def _hazard(self, node: ir.Node, slot: int, *, integer: bool) -> Hazard:
        """Return what a value can do to the node that reads it; integer: it began as whole numbers."""
        if node.op_identifier() in self._model.functions:
            return Hazard.NONE
        domain, read = canonical_domain(node.domain), node.inputs[slot]
        dtype = None if read is None else read.dtype
        whole = integer if dtype is None else not dtype.is_floating_point()
        if domain not in ("", "ai.onnx.ml"):  # lengths in fused attention are not always checked
            return Hazard.SIZES if whole else Hazard.NONE
        if slot in SIZES.get(node.op_type, ()) or (node.op_type == "Loop" and not _ends(node)):
            return Hazard.SIZES
        divides = node.op_type in _DIVIDING and slot == 1 and whole
        return Hazard.POSITIONS if divides or slot in POSITIONS.get(node.op_type, ()) else Hazard.NONE

    def _after(self, node: ir.Node, slot: int) -> Iterator[ir.Value]:
        """Yield the values that depend on what a node reads at a slot, those around its graph included."""
        if node.op_type in _BLIND:
            return
        yield from node.outputs
        for graph in _bodies(node):
            yield from graph.inputs
        function = self._model.functions.get(node.op_identifier())
        if function is not None and slot < len(function.inputs):
            yield function.inputs[slot]
        owner = self._owners.get(node.graph) if node.graph is not None else None
        while owner is not None:
            yield from owner.outputs
            for graph in _bodies(owner):
                yield from graph.inputs
            owner = self._owners.get(owner.graph) if owner.graph is not None else None


def _ends(loop: ir.Node) -> bool:
    """Whether the number of trips has a known bound that is not large."""
    trips = loop.inputs[0] if loop.inputs else None
    tensor = None if trips is None else ir.convenience.get_const_tensor(trips)
    return tensor is not None and bool(np.all(tensor.numpy() <= FEW_TRIPS))


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()
