"""What differs between two nodes that compute the same value in two models: operator, attributes, weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphdoc.compare.numbers import number
from graphdoc.compare.target import Constants, Target, bodies, first_output, own_constants
from graphdoc.engine.scope import MAIN, enter, qualified

MOST = 3
"""Differences that are told; a node that was replaced has more than anyone reads."""

LARGEST = 1 << 24
"""Elements of a weight up to which it is read."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node, and the constants it can see."""

    node: onnx.NodeProto
    constants: Constants


class Changes:
    """Tells the nodes of two models apart."""

    def __init__(self, ref: Target, test: Target) -> None:
        self._folders = tuple(str(t.source.folder or "") for t in (ref, test))
        self._places = tuple(dict(_places(t.proto.graph, MAIN, {})) for t in (ref, test))

    def at(self, key: str) -> str:
        """Return what B does differently at the node that computes ``key``; "" when that is not seen."""
        a, b = (places.get(key) for places in self._places)
        if a is None or b is None:
            return ""
        return "; ".join(list(self._differences(a, b))[:MOST])

    def _differences(self, a: Place, b: Place) -> Iterator[str]:
        if (a.node.op_type, a.node.domain) != (b.node.op_type, b.node.domain):
            yield f"{a.node.op_type} in A is {b.node.op_type} in B"
        else:
            yield from _attributes(a.node, b.node)
        for name_a, name_b in zip(a.node.input, b.node.input, strict=False):
            yield from self._input(a, b, name_a, name_b)

    def _input(self, a: Place, b: Place, name_a: str, name_b: str) -> Iterator[str]:
        constant_a, constant_b = a.constants.get(name_a), b.constants.get(name_b)
        if constant_a is None or constant_b is None:
            if name_a != name_b and constant_a is constant_b:
                yield f"A reads {name_a or 'nothing'} where B reads {name_b or 'nothing'}"
            return
        left, right = _array(constant_a, self._folders[0]), _array(constant_b, self._folders[1])
        if left is not None and right is not None:
            yield from _weights(name_b, left, right)


def _places(graph: onnx.GraphProto, scope: str, outer: Constants) -> Iterator[tuple[str, Place]]:
    constants = {**outer, **own_constants(graph)}
    for node in graph.node:
        yield from ((qualified(scope, name), Place(node, constants)) for name in node.output if name)
        for attribute, body in bodies(node):
            yield from _places(body, enter(scope, first_output(node), attribute), constants)


def _attributes(a: onnx.NodeProto, b: onnx.NodeProto) -> Iterator[str]:
    left, right = _plain(a), _plain(b)
    for name in sorted({*left, *right}):
        if left.get(name) != right.get(name):
            yield f"{name} is {_short(left.get(name))} in A, {_short(right.get(name))} in B"


def _plain(node: onnx.NodeProto) -> Mapping[str, Any]:
    """Return the attributes that fit a line: no tensors, no graphs."""
    kinds = onnx.AttributeProto
    skipped = (kinds.TENSOR, kinds.GRAPH, kinds.TENSORS, kinds.GRAPHS, kinds.SPARSE_TENSOR, kinds.TYPE_PROTO)
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type not in skipped}


def _short(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _array(constant: onnx.TensorProto | onnx.NodeProto, folder: str) -> np.ndarray[Any, Any] | None:
    tensor = constant if isinstance(constant, onnx.TensorProto) else _literal(constant)
    if tensor is None or tensor.data_type == onnx.TensorProto.STRING or np.prod(tensor.dims) > LARGEST:
        return None
    return numpy_helper.to_array(tensor, folder)


def _literal(node: onnx.NodeProto) -> onnx.TensorProto | None:
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _weights(name: str, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Iterator[str]:
    if a.shape != b.shape:
        yield f"{name} has shape {list(a.shape)} in A, {list(b.shape)} in B"
        return
    x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    if np.array_equal(x, y, equal_nan=True) or not x.size:
        return
    lost = int(np.count_nonzero(np.isfinite(x) & ~np.isfinite(y)))
    if lost or not (np.isfinite(x).all() and np.isfinite(y).all()):
        yield f"{name} of B is NaN or infinite in {lost} of {x.size} elements where A's is finite"
        return
    norm = float(np.linalg.norm(x))
    factor = float(x @ y) / norm**2 if norm else 0.0
    if x.size == 1:
        yield f"{name} is {number(float(x[0]), 6)} in A, {number(float(y[0]), 6)} in B"
    elif norm and np.linalg.norm(y - factor * x) <= 1e-5 * norm:
        yield f"{name} of B is {number(factor, 6)} × A's"
    else:
        changed = int(np.count_nonzero(x != y))
        apart = number(float(np.linalg.norm(y - x)) / norm if norm else float("inf"))
        yield f"{name} of B is {apart} of its norm from A's, in {changed} of {x.size} elements"
