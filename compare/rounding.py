"""How far B may lie from A where B computes on codes: what rounding to their steps alone does.

A layer of B reaches from values that A has too to the next one. On that way inputs, weights and results are
rounded to grids; the error of rounding to steps of s is s ÷ √12, however good the quantisation is.

1. Inputs: A's own layer runs on A's inputs rounded to B's steps, without an end to the range. What that
   changes is what rounding does; what B changes beyond it is a fault, or a range that cuts values off.
2. Weights: a sum over K products of x and weights that are off by s ÷ √12 is off by √K · RMS(x) · s ÷ √12.
3. Results that B rounds on the way count with s ÷ √12 themselves.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from graphdoc.compare.findings import Finding
from graphdoc.compare.metrics import MismatchError, distance, epsilon
from graphdoc.compare.numbers import group, number
from graphdoc.compare.result import Limit
from graphdoc.compare.runner import Run
from graphdoc.compare.scales import (
    CODES,
    DYNAMIC,
    INNER_DYNAMIC,
    QUANTISE,
    RESULT_SCALES,
    WEIGHT_SCALES,
    Grid,
    Scales,
)
from graphdoc.compare.target import Feeding, Target
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter, Watch

UNIFORM = 1 / math.sqrt(12)
"""RMS of rounding to steps of 1."""

MARGIN = 3.0
"""Own error may be this many times what rounding is expected to do."""

HALF = 0.51
"""Steps that rounding takes a weight from where it was at most."""

COARSEST = 0.5
"""No quantisation may be off by more of a value than this, however coarse its steps are."""


@dataclass(frozen=True, slots=True)
class Region:
    """A layer of B: the nodes from paired values to the next one.

    inputs: paired values that are rounded on the way. results: steps of what is rounded in between.
    weights: (step, name of what they are multiplied with, terms of the sum). ops: operators on the way.
    """

    inputs: Mapping[str, Grid]
    results: tuple[float, ...] = ()
    weights: tuple[tuple[float, str, int], ...] = ()
    ops: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.results or self.weights)


class Rounding:
    """Widens the own limits of findings by what quantisation does; used as an observer of groups.

    feeding: of B's layers.
    """

    def __init__(
        self, ref: Target, test: Target, feeding: Mapping[str, Feeding], feeds: Mapping[str, Any]
    ) -> None:
        self._ref = ref
        self._scales = Scales(test.proto, str(test.source.folder or ""))
        self._feeding = feeding
        self._feeds = feeds

    @cached_property
    def is_needed(self) -> bool:
        """Whether B quantises anything."""
        ops = {node.op_type for node in self._scales.graph.node}
        return bool(ops & ROUNDS)

    @cached_property
    def _feeding_a(self) -> Mapping[str, Feeding]:
        return self._ref.feeding(self._feeding.keys())

    @cached_property
    def _engine(self) -> Interpreter:
        return Interpreter(self._ref.model)

    def observe(self, found: Sequence[Finding], run_a: Run, run_b: Run) -> None:
        """Set steps and limits of a group of findings whose values are at hand."""
        del run_b
        values = {**self._feeds, **run_a.values}
        regions = {f.point.key: self.region(f.point.key) for f in found if not f.point.scope}
        moved = self._moved({k: r for k, r in regions.items() if r.inputs}, values)
        for finding in found:
            key = finding.point.key
            grid = self._scales.grid(key) if key in regions else None
            if grid is not None and isinstance(values.get(key), np.ndarray):
                finding.step = _step(grid, values[key])
            if regions.get(key):
                _widen(finding, regions[key], moved.get(key, 0.0), values)
                if finding.own is not None and finding.own > finding.own_limit.value:
                    finding.notes += self._weights_apart(key)

    def region(self, key: str) -> Region:
        """Return what is rounded on the way to a value of B; nothing where A rounds there, too."""
        feeding = self._feeding[key]
        if any(self._ops_a.get(name) in ROUNDS for name in (key, *self._feeding_a[key].between)):
            return Region({})
        nodes = {id(n): n for name in (*feeding.between, key) if (n := self._scales.makers.get(name))}
        inputs: dict[str, Grid] = {}
        results: list[float] = []
        for node in nodes.values():
            source = node.input[0] if node.input else ""
            grid = self._quantised(node)
            if grid is None or source in self._scales.constants:
                continue
            if source in feeding.sources:
                inputs[source] = grid
            elif grid.step:
                results.append(grid.step)
        found = tuple(self._weights(list(nodes.values()), feeding))
        return Region(inputs, tuple(results), found, tuple(node.op_type for node in nodes.values()))

    def _quantised(self, node: onnx.NodeProto) -> Grid | None:
        """Return the grid that a node rounds to, None where it does not."""
        if node.op_type in INNER_DYNAMIC:
            return DYNAMIC
        if node.op_type in QUANTISE:
            return self._scales.grid(node.input[0])
        place = RESULT_SCALES.get(node.op_type)
        scale = None if place is None else self._scales.array(node.input[place])
        return None if scale is None else Grid(float(scale.reshape(-1)[0]))

    def _weights(self, nodes: Sequence[onnx.NodeProto], feeding: Feeding) -> Iterator[tuple[float, str, int]]:
        for node in nodes:
            step = self._scales.weight_step(node) or self._factor(node, nodes)
            if step is None:
                continue
            for reader in self._uses(node, nodes):
                data = next((self._source(n, feeding) for n in reader.input[:1]), "")
                yield step, data, self._terms(reader)

    def _factor(self, node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> float | None:
        """Return the step of the weights of a product of codes: a later factor beside that of the data."""
        if node.op_type not in INTEGER:
            return None
        data = {n.output[1] for n in nodes if n.op_type == "DynamicQuantizeLinear" and len(n.output) > 1}
        for other in (n for n in nodes if n.op_type == "Mul" and data & set(n.input)):
            step = next((self._scales.step(name) for name in other.input if name not in data), None)
            if step is not None:
                return step
        return None

    def _weights_apart(self, key: str) -> Iterator[str]:
        """Yield which of B's weights are further from A's than rounding takes them."""
        names = [name for made in (key, *self._feeding_a[key].between) for name in self._makers_a[made]]
        originals = [array for name in names if (array := self._scales_a.array(name)) is not None]
        for made in (key, *self._feeding[key].between):
            node = self._scales.makers.get(made)
            if node is None or node.op_type != "DequantizeLinear":
                continue
            codes = self._scales.decoded(node)
            scale = None if codes is None else self._scales.scale_along(node, codes.shape)
            alike = [
                a for a in originals if codes is not None and a.shape == codes.shape and a.dtype.kind == "f"
            ]
            if codes is None or scale is None or len(alike) != 1:
                continue
            off = np.abs(codes - alike[0] / scale)
            if (count := int(np.count_nonzero(off > HALF))) > 0:
                which = f"{group(count)} of {group(off.size)} weights in {node.input[0]}"
                yield f"{which} are more than half a step from A's, {number(float(off.max()))} at most"

    @cached_property
    def _scales_a(self) -> Scales:
        return Scales(self._ref.proto, str(self._ref.source.folder or ""))

    def _uses(self, node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Return who works with a node's weights: the node, or the readers of what it makes of them."""
        if node.op_type not in (*QUANTISE, "DequantizeLinear"):
            return [node]
        readers = [n for n in nodes if n is not node and node.output[0] in n.input]
        decoders = [n for n in readers if n.op_type == "DequantizeLinear"]
        return [use for n in decoders for use in self._uses(n, nodes)] or readers or [node]

    def _source(self, name: str, feeding: Feeding) -> str:
        """Return the paired value that a value of the region was made of."""
        while name in feeding.between and (maker := self._scales.makers.get(name)) and maker.input:
            name = maker.input[0]
        return name

    def _terms(self, node: onnx.NodeProto) -> int:
        """Return how many products with weights an element of the node's result sums; 0 for no product."""
        place = _WEIGHT_PLACE.get(node.op_type)
        shape = self._scales.shape(node.input[place]) if place is not None else None
        if not shape:
            return 1 if node.op_type == "Mul" else 0
        if node.op_type in ("Conv", "QLinearConv", "ConvInteger"):
            return math.prod(shape[1:])
        if node.op_type == "ConvTranspose":
            return math.prod(shape) // max(shape[1], 1)
        if node.op_type in ("Gemm", "QGemm"):
            turned = any(a.name == "transB" and a.i for a in node.attribute)
            return shape[1 if turned else 0]
        if node.op_type == "MatMulNBits":
            return next((a.i for a in node.attribute if a.name == "K"), 1)
        return shape[-2] if len(shape) > 1 else 1

    def _moved(self, regions: Mapping[str, Region], values: Mapping[str, Any]) -> dict[str, float]:
        """Return by how much (RMS) A's layers move when their inputs are rounded to B's steps.

        Where codes pass by a value that A has, A computes that value again.
        """
        grids = {name: grid for region in regions.values() for name, grid in region.inputs.items()}
        given = {**values, **{n: _rounded(values[n], g) for n, g in grids.items() if n in values}}
        plain = {k: v for k, v in self._feeding_a.items() if k in regions}
        around = {k: self._way(k) for k, r in regions.items() if r.inputs.keys() - {*plain[k].sources}}
        direct = {k: v.between for k, v in plain.items() if k not in around}
        return self._run(direct, values, given) | self._run(around, values, given)

    @cached_property
    def _ops_a(self) -> Mapping[str, str]:
        return {point.key: point.op for point in self._ref.points}

    def _way(self, key: str) -> tuple[str, ...]:
        """Return A's values between B's sources of a layer and the layer."""
        stops, found, left = {*self._feeding[key].sources}, dict[str, None](), list(self._makers_a[key])
        while left and len(found) < LONGEST:
            name = left.pop()
            if name not in stops and name in self._makers_a and name not in found:
                found[name] = None
                left.extend(self._makers_a[name])
        return tuple(found)

    @cached_property
    def _makers_a(self) -> Mapping[str, tuple[str, ...]]:
        return {point.key: point.inputs for point in self._ref.points}

    def _run(
        self, ways: Mapping[str, Sequence[str]], values: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, float]:
        """Return how far layers, computed from given values along their ways, lie from A's."""
        needed = {k: {*ways[k], k} for k in ways}
        keys = [
            k
            for k, way in needed.items()
            if all(n in given or n in way for w in way for n in self._makers_a[w] if n in self._makers_a)
        ]
        found: dict[str, float] = {}

        def note(key: str, value: Any) -> None:
            with suppress(MismatchError, KeyError):
                found[key] = distance(values[key], value)[0]

        passed = {name for key in keys for name in ways[key]}
        given = {name: value for name, value in given.items() if name not in passed}
        if keys:
            feeds = {name: given.get(name, value) for name, value in self._feeds.items()}
            only = frozenset(name for key in keys for name in needed[key])
            with suppress(RunnerError):  # a layer that cannot be run so keeps the limit that it has
                self._engine.run(feeds, watch=Watch(frozenset(keys), given, only, sink=note))
        return found


LONGEST = 64
"""Nodes of A between two values that B computes from one another."""

_WEIGHT_PLACE = {
    **dict.fromkeys(("Conv", "ConvTranspose", "MatMul", "Gemm", "MatMulNBits"), 1),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulInteger", "ConvInteger"), 1),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), 3),
}
"""Operator → which input holds the weights."""

INTEGER = frozenset({"MatMulInteger", "ConvInteger"})
"""Products of codes that leave the scales to the nodes after them."""

ROUNDS = QUANTISE | INNER_DYNAMIC | RESULT_SCALES.keys() | WEIGHT_SCALES.keys() | INTEGER
"""Operators that work with codes."""


def _step(grid: Grid, value: Any) -> float | None:
    """Return the distance of two codes, which follows from the data where nothing else is said."""
    if grid.step is not None:
        return grid.step
    if not epsilon(value.dtype) or not value.size:
        return None
    low, high = min(0.0, float(value.min())), max(0.0, float(value.max()))
    return (high - low) / CODES if math.isfinite(high - low) and high > low else None


def _rounded(value: Any, grid: Grid) -> Any:
    step = _step(grid, value)
    wide = value.astype(np.float64)
    return (np.rint(wide / step) * step).astype(value.dtype) if step else value


def _rms(value: Any) -> float:
    if not isinstance(value, np.ndarray) or not epsilon(value.dtype) or not value.size:
        return 1.0
    wide = value.astype(np.float64).reshape(-1)
    return math.sqrt(float(wide @ wide) / wide.size)


def _widen(finding: Finding, region: Region, moved: float, values: Mapping[str, Any]) -> None:
    """Allow a layer what rounding to steps does, and say why it may do more."""
    finding.coarse, finding.ops = True, region.ops
    metrics = finding.metrics
    finding.notes = [text for name, grid in region.inputs.items() if (text := _cut(name, grid, values))]
    if metrics is None or not metrics.rms_a or not math.isfinite(moved):
        return
    sums = (s * UNIFORM * (math.sqrt(k) * _rms(values.get(x)) if k else 1.0) for s, x, k in region.weights)
    parts = {
        "inputs": moved / metrics.rms_a,
        "weights": math.hypot(*sums) / metrics.rms_a,
        "result": math.hypot(*(s * UNIFORM for s in region.results)) / metrics.rms_a,
    }
    value = finding.own_limit.value + MARGIN * math.hypot(*parts.values())
    told = ", ".join(f"{name} {number(part)}" for name, part in parts.items() if part)
    reason = f"{MARGIN:.0f} × rounding to the steps of codes: {told}"
    if value > COARSEST:
        value, reason = COARSEST, f"half of the value; rounding to the steps of codes leaves no more: {told}"
        finding.notes.append("the codes are too far apart for the values that they stand for")
    finding.own_limit = Limit(value=value, reason=reason)


def _cut(name: str, grid: Grid, values: Mapping[str, Any]) -> str:
    """Say how many values of A a range cuts off; "" where it holds all, or is not known."""
    value = values.get(name)
    if grid.step is None or not isinstance(value, np.ndarray) or not math.isfinite(grid.high):
        return ""
    wide = value.astype(np.float64)
    outside = int(np.count_nonzero((wide < grid.low - grid.step) | (wide > grid.high + grid.step)))
    if not outside:
        return ""
    count = f"{group(outside)} of {group(value.size)} values of {name}"
    return f"{count} lie outside {number(grid.low, 3)} … {number(grid.high, 3)}, which its codes can hold"


__all__ = ["Region", "Rounding"]
