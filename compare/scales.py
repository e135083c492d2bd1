"""What the quantised values of a model mean: the scale, zero point and axis behind each.

A code q stands for (q − zero) · scale. Both are constants, except behind DynamicQuantizeLinear.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphdoc.compare.target import Constants, is_constant, own_constants

Array = np.ndarray[Any, Any]

QUANTISE = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})

INNER_DYNAMIC = frozenset({"DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
"""Operators that quantise their first input by its own range."""

RESULT_SCALES: Mapping[str, int] = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), 6),
    **dict.fromkeys(("QGemm", "QLinearWhere"), 7),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean"), 3),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), 3),
    "QLinearConcat": 0,
}
"""Operator on codes → which input is the scale of its result; the zero point is the one after it."""

WEIGHT_SCALES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), (3, 4)),
    "MatMulIntegerToFloat": (1, 3),
    "DynamicQuantizeMatMul": (1, 2),
    "MatMulNBits": (1, 2),
    "GatherBlockQuantized": (0, 2),
    "DequantizeLinear": (0, 1),
}
"""Operator → which input holds codes of weights, and which their scale."""

MOVES = frozenset(
    {
        *(
            "Reshape",
            "Flatten",
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "Slice",
            "Gather",
            "MaxPool",
            "Identity",
        ),
        *("Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Split", "Pad", "Resize"),
    }
)
"""Operators that hand codes on: the result has the scale of the first input."""


_KEEPING = QUANTISE | {"DequantizeLinear", "Identity"}
"""Operators that keep the shape of weights."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Names of scale and zero point ("" for none), and how they lie along the value.

    domain: of the QuantizeLinear and DequantizeLinear that go with it.
    """

    scale: str
    zero: str = ""
    axis: int | None = None
    block: int | None = None
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """The real numbers that a value can take: step between neighbours (RMS over channels), lowest, highest.

    low and high are −inf and inf where they differ by channel or follow from the data. step: None where it
    follows from the data.
    """

    step: float | None
    low: float = -math.inf
    high: float = math.inf


DYNAMIC = Grid(None)

CODES = 255
"""Steps of a range that follows from the data."""


class Scales:
    """Scales of the main graph of a model."""

    def __init__(self, proto: onnx.ModelProto, folder: str = "") -> None:
        self.graph = proto.graph
        self._folder = folder

    @cached_property
    def constants(self) -> Constants:
        """Initializers and Constant nodes."""
        return own_constants(self.graph)

    @cached_property
    def makers(self) -> Mapping[str, onnx.NodeProto]:
        """Node by what it computes."""
        return {n: node for node in self.graph.node if not is_constant(node) for n in node.output if n}

    @cached_property
    def readers(self) -> Mapping[str, list[onnx.NodeProto]]:
        """Nodes by what they read."""
        found: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for name in dict.fromkeys(node.input):
                found.setdefault(name, []).append(node)
        return found

    def of_codes(self, name: str) -> Scale | None:
        """Return the scale behind a value that holds codes; None where it cannot be told."""
        names = list(self._origin(name))
        maker = self.makers.get(names[-1])
        if maker is not None and maker.op_type == "DynamicQuantizeLinear" and len(maker.output) == 3:
            return Scale(maker.output[1], maker.output[2])
        if maker is not None and maker.op_type == "QuantizeLinear":
            return _pair(maker)
        place = RESULT_SCALES.get(maker.op_type) if maker is not None else None
        if maker is not None and place is not None and len(maker.input) > place:
            return Scale(maker.input[place], _input(maker, place + 1))
        return next((found for n in reversed(names) if (found := self._as_read(n))), None)

    def _origin(self, name: str) -> Iterator[str]:
        """Yield a value and those that it was made of by mere moves."""
        yield name
        while (maker := self.makers.get(name)) is not None and maker.op_type in MOVES and maker.input:
            name = maker.input[0]
            yield name

    def _as_read(self, name: str) -> Scale | None:
        """Return the scale that a reader of codes names: it stands behind them, the zero point behind it."""
        for node in self.readers.get(name, ()):
            if node.op_type == "DequantizeLinear" and node.input[0] == name:
                return _pair(node)
            if node.op_type in RESULT_SCALES:
                place = list(node.input).index(name)
                return Scale(_input(node, place + 1), _input(node, place + 2))
        return None

    def grid(self, name: str) -> Grid | None:
        """Return the grid that a value is rounded to next, or lies on; None where it is not quantised."""
        for node in self.readers.get(name, ()):
            if node.op_type == "DynamicQuantizeLinear":
                return DYNAMIC
            if node.op_type == "QuantizeLinear" and node.input[0] == name:
                return self._grid(_pair(node), node)
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] not in self.constants:
            return self._grid(_pair(maker), maker)
        return None

    def weight_step(self, node: onnx.NodeProto) -> float | None:
        """Return the step of a node's quantised weights (RMS over channels); None where it has none."""
        if node.op_type in QUANTISE:
            return self._made_of(node)
        places = WEIGHT_SCALES.get(node.op_type)
        if places is None or max(places) >= len(node.input):
            return None
        if [*self._origin(node.input[places[0]])][-1] not in self.constants:
            return None
        return self.step(node.input[places[1]])

    def decoded(self, node: onnx.NodeProto) -> Array | None:
        """Return the weights that a DequantizeLinear of constants gives, in steps from their zero point.

        None where scale or codes are not constant.
        """
        codes, scale = self.array(node.input[0]), self.array(node.input[1])
        if codes is None or scale is None:
            return None
        used = _pair(node)
        zero = self.array(used.zero)
        whole = codes.astype(np.float64)
        return whole if zero is None else whole - _along(zero, whole.shape, used)

    def scale_along(self, node: onnx.NodeProto, shape: tuple[int, ...]) -> Array | None:
        """Return the scale of a DequantizeLinear so that it broadcasts over weights of that shape."""
        scale = self.array(node.input[1])
        return None if scale is None else _along(scale, shape, _pair(node))

    def _made_of(self, node: onnx.NodeProto) -> float | None:
        """Return the step of weights that are quantised at run time."""
        weights = self.array(node.input[0])
        if weights is None or not weights.size:
            return None
        if node.op_type == "QuantizeLinear":
            return self.step(node.input[1])
        return (max(0.0, float(weights.max())) - min(0.0, float(weights.min()))) / CODES

    def step(self, name: str) -> float | None:
        """Return a constant scale, its RMS where there are several; None where it is not constant."""
        scale = self.array(name)
        return None if scale is None or not np.issubdtype(scale.dtype, np.floating) else _rms(scale)

    def array(self, name: str) -> Array | None:
        """Return a constant's content."""
        found = self.constants.get(name)
        if isinstance(found, onnx.NodeProto):
            found = next((a.t for a in found.attribute if a.name == "value"), None)
        return None if found is None else numpy_helper.to_array(found, self._folder)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of weights: of a constant, or of what is decoded of one."""
        while (maker := self.makers.get(name)) is not None and maker.op_type in _KEEPING:
            name = maker.input[0]
        found = self.constants.get(name)
        if isinstance(found, onnx.NodeProto):
            found = next((a.t for a in found.attribute if a.name == "value"), None)
        return None if found is None else tuple(found.dims)

    def _grid(self, used: Scale, node: onnx.NodeProto) -> Grid | None:
        scale, zero = self.array(used.scale), self.array(used.zero)
        if scale is None:
            return DYNAMIC
        step = _rms(scale)
        if scale.size != 1 or zero is None or not np.issubdtype(zero.dtype, np.integer):
            return Grid(step)
        range_, offset = np.iinfo(zero.dtype), float(zero.reshape(-1)[0])
        return Grid(step, (range_.min - offset) * step, (range_.max - offset) * step)


def _rms(values: Array) -> float:
    wide = values.astype(np.float64)
    return math.sqrt(float(np.mean(wide * wide))) if wide.size else 0.0


def _along(values: Array, shape: tuple[int, ...], used: Scale) -> Array:
    """Return values of each channel or block so that they broadcast; one value for all as it is."""
    wide = values.astype(np.float64)
    axis = 1 if used.axis is None else used.axis
    if values.size == 1:
        return wide.reshape(())
    if used.block:
        return np.repeat(wide, used.block, axis).take(range(shape[axis]), axis)
    sizes = [1] * len(shape)
    sizes[axis] = -1
    return wide.reshape(sizes)


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""


def _pair(node: onnx.NodeProto) -> Scale:
    numbers = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    return Scale(node.input[1], _input(node, 2), numbers.get("axis"), numbers.get("block_size"), node.domain)
