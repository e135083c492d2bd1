"""Inference of If, Loop, Scan and SequenceMap: what holds in every iteration, and of the node's outputs.

The values inside a body are facts like all others. What a body reads from the node is stated here, when one
of its inputs is first asked for: for a loop, the weakest type that the state keeps through all iterations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.infer_types import UNKNOWN, declared_type
from graphdoc.engine.ops.dims import at_least
from graphdoc.engine.ops.table import ContainerType, Dim, TensorType, canonical_domain

if TYPE_CHECKING:
    from graphdoc.engine.infer import Frame

_BOOL = np.dtype(np.bool_)
_INT64 = np.dtype(np.int64)

_ROUNDS = 12
"""Iterations after which a loop's state that still changes counts as unknown."""


def bodies(node: ir.Node) -> dict[str, ir.Graph]:
    """Return the graphs among a node's attributes."""
    if not node.attributes:
        return {}
    return {
        name: attribute.as_graph()
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref()
    }


def knows(node: ir.Node) -> bool:
    """Return whether a node is one of the operators with bodies."""
    return node.op_type in _OUTPUTS and canonical_domain(node.domain) == ""


def needs(node: ir.Node, frame: "Frame") -> Iterable[ir.Value]:
    """Return the values that must be known before the outputs of a node are."""
    given = [value for value in node.inputs if value is not None]
    if node.op_type != "If" or not knows(node):
        return given
    return [*given, *(value for graph in bodies(node).values() for value in graph.outputs)]


def outputs(frame: "Frame", node: ir.Node) -> tuple[TensorType, ...]:
    """Return the types of the outputs of an operator with bodies."""
    return _OUTPUTS[node.op_type](frame, node)


def enter(frame: "Frame", node: ir.Node) -> None:
    """State the inputs of a node's bodies in the frame's memo."""
    if knows(node) and node.op_type in _ENTERED:
        _ENTERED[node.op_type](frame, node)


# ---- what two types have in common --------------------------------------------------------------------


def join(a: TensorType, b: TensorType) -> TensorType:
    """Return what holds whichever of two types a value has."""
    if a is b:
        return a
    if isinstance(a, ContainerType) or isinstance(b, ContainerType):
        return _join_containers(a, b)
    dtype = a.dtype if a.dtype == b.dtype else None
    shape = _join_dims(a.shape, b.shape)
    if dtype is None or shape is None:
        return TensorType(dtype, shape)
    same = a.value is not None and b.value is not None and _same_content(a.value, b.value)
    return TensorType(dtype, shape, a.value if same else None, _join_dims(a.elements, b.elements))


def _join_dims(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _join_containers(a: TensorType, b: TensorType) -> TensorType:
    if not isinstance(a, ContainerType) or not isinstance(b, ContainerType) or a.kind != b.kind:
        return UNKNOWN
    # An empty sequence says nothing of its items.
    item = b.item if a.length == 0 else a.item if b.length == 0 else join(a.item, b.item)
    return ContainerType(kind=a.kind, item=item, length=a.length if a.length == b.length else None)


def _same_content(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and (a is b or a.tobytes() == b.tobytes())


def same(a: TensorType, b: TensorType) -> bool:
    """Return whether two types say the same."""
    if isinstance(a, ContainerType) and isinstance(b, ContainerType):
        return a.kind == b.kind and a.length == b.length and same(a.item, b.item)
    if isinstance(a, ContainerType) or isinstance(b, ContainerType):
        return False
    if (a.dtype, a.shape, a.elements) != (b.dtype, b.shape, b.elements):
        return False
    if a.value is None or b.value is None:
        return a.value is b.value
    return _same_content(a.value, b.value)


def joined(types: Sequence[TensorType]) -> TensorType:
    """Return what all types have in common; nothing for none."""
    result = types[0] if types else UNKNOWN
    for other in types[1:]:
        result = join(result, other)
    return result


# ---- If -----------------------------------------------------------------------------------------------


def taken(frame: "Frame", node: ir.Node) -> bool | None:
    """Return which branch of an If runs, None when that depends on the run."""
    value = frame.of(node.inputs[0]).value if node.inputs else None
    return None if value is None or value.size != 1 else bool(value.reshape(()))


def _if(frame: "Frame", node: ir.Node) -> tuple[TensorType, ...]:
    graphs = bodies(node)
    chosen = taken(frame, node)
    names = ["then_branch", "else_branch"] if chosen is None else ["then_branch" if chosen else "else_branch"]
    rows = [[frame.of(value) for value in graphs[name].outputs] for name in names if name in graphs]
    return tuple(joined(list(column)) for column in zip(*rows, strict=False))


# ---- Loop ---------------------------------------------------------------------------------------------


def _settle(
    frame: "Frame",
    body: ir.Graph,
    fixed: Mapping[ir.Value, TensorType],
    states: Sequence[TensorType],
    at: int,
) -> None:
    """State a body's inputs: ``fixed`` ones, and the state, which follows in ``body.inputs[at:]``.

    The state is assumed to be as at the start; as long as an iteration gives something else, what both have
    in common is assumed instead. at: also how many outputs come before the state (Scan: 0, Loop: 1).
    """
    places, results = _state_places(body, len(states), at)
    assumed = list(states)
    for turn in range(_ROUNDS + 1):
        _clear(frame, body)
        frame.memo.update(fixed)
        frame.memo.update(zip(places, assumed, strict=False))
        found = [join(a, frame.of(value)) for a, value in zip(assumed, results, strict=False)]
        if all(same(a, b) for a, b in zip(assumed, found, strict=False)):
            return
        assumed = found if turn < _ROUNDS - 1 else [UNKNOWN] * len(assumed)


def _state_places(body: ir.Graph, count: int, at: int) -> tuple[list[ir.Value], list[ir.Value]]:
    first = 2 * at
    return list(body.inputs[first : first + count]), list(body.outputs[at : at + count])


def _clear(frame: "Frame", body: ir.Graph) -> None:
    """Forget all values of a body and the graphs inside it."""
    for value in body.inputs:
        frame.memo.pop(value, None)
    for node in body.all_nodes():
        for value in node.outputs:
            frame.memo.pop(value, None)
        for inner in bodies(node).values():
            for value in inner.inputs:
                frame.memo.pop(value, None)


def _padded(types: Sequence[TensorType | None], count: int) -> list[TensorType | None]:
    return [*types, *[None] * (count - len(types))]


def _loop_parts(
    frame: "Frame", node: ir.Node
) -> tuple[ir.Graph, TensorType | None, TensorType | None, list[TensorType]]:
    trips, condition, *states = _padded(frame.inputs(node), 2)
    return bodies(node)["body"], trips, condition, [UNKNOWN if t is None else t for t in states]


def _scalar(value: ir.Value, dtype: np.dtype[np.generic]) -> TensorType:
    """Return the type of a body's own input, a scalar in ONNX; runtimes follow a declared rank of 1."""
    shape = declared_type(value).shape
    return TensorType(dtype, () if shape is None or not shape else None)


def _enter_loop(frame: "Frame", node: ir.Node) -> None:
    body, _, _, states = _loop_parts(frame, node)
    kinds = (_INT64, _BOOL)
    fixed = {value: _scalar(value, kind) for value, kind in zip(body.inputs, kinds, strict=False)}
    _settle(frame, body, fixed, states, 1)


def _loop(frame: "Frame", node: ir.Node) -> tuple[TensorType, ...]:
    body, trips, condition, states = _loop_parts(frame, node)
    if any(value not in frame.memo for value in body.inputs):
        _enter_loop(frame, node)
    limit = trips.elements[0] if trips is not None and trips.elements else None
    starts = condition is None or _is_true(condition)
    endless = bool(body.outputs) and _stays_true(frame, body)
    count = limit if starts and endless and at_least(limit, 0) else None
    sure = starts and (trips is None or at_least(limit, 1))
    finals = [frame.of(value) for value in body.inputs[2 : 2 + len(states)]]
    scans = [_stacked(frame, value, count, 0, sure=sure) for value in body.outputs[1 + len(states) :]]
    return (*finals, *scans)


def _is_true(known: TensorType) -> bool:
    return known.value is not None and known.value.size == 1 and bool(known.value.reshape(()))


def _stays_true(frame: "Frame", body: ir.Graph) -> bool:
    """Return whether the body's condition is true in every iteration that runs."""
    value: ir.Value | None = body.outputs[0]
    while value is not None and (node := value.producer()) is not None and node.op_type == "Identity":
        value = node.inputs[0]
    if value is None:
        return False
    return value is body.inputs[1] or _is_true(frame.of(value))


def _stacked(frame: "Frame", value: ir.Value, count: Dim, axis: int, *, sure: bool) -> TensorType:
    """Return the type of scan elements along a new axis.

    sure: at least one iteration runs. Otherwise the output may be the empty tensor of the declared type, so
    only sizes that are declared like that are certain.
    """
    element = frame.of(value)
    declared = declared_type(value)
    dtype = element.dtype
    if element.shape is None:
        return TensorType(dtype)
    dims = list(element.shape)
    if not sure:
        if declared.shape is None or len(declared.shape) != len(dims):
            return TensorType(dtype)
        dims = [
            a if isinstance(a, int) and a == b else None for a, b in zip(dims, declared.shape, strict=True)
        ]
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, count)
    return TensorType(dtype, tuple(dims))


# ---- Scan ---------------------------------------------------------------------------------------------


def _without_axis(known: TensorType, axis: int) -> TensorType:
    if known.shape is None:
        return TensorType(known.dtype)
    at = axis % len(known.shape) if known.shape else 0
    return TensorType(known.dtype, (*known.shape[:at], *known.shape[at + 1 :]))


def _scan_parts(
    frame: "Frame", node: ir.Node
) -> tuple[ir.Graph, list[TensorType], list[TensorType], list[int], list[int]]:
    """Return body, states, scanned inputs, and the axes of scanned inputs and outputs."""
    attributes = frame.attributes(node) or {}
    types = [UNKNOWN if t is None else t for t in frame.inputs(node)]
    count = len(types) - int(attributes.get("num_scan_inputs", 0))
    body = bodies(node)["body"]
    axes = list(attributes.get("scan_input_axes", ())) or [0] * (len(types) - count)
    out_axes = list(attributes.get("scan_output_axes", ())) or [0] * (len(body.outputs) - count)
    return body, types[:count], types[count:], axes, out_axes


def _old_scan(frame: "Frame", node: ir.Node) -> bool:
    """Return whether a node is the Scan of opset 8, with batches and another order of inputs."""
    return frame.opsets.get("", frame.opsets.get("ai.onnx", 9)) < 9


def _enter_scan(frame: "Frame", node: ir.Node) -> None:
    if _old_scan(frame, node):
        body, states, scanned = _old_scan_parts(frame, node)
        slices = [_without_axis(known, 0) for known in scanned]
        _settle(frame, body, dict(zip(body.inputs[len(states) :], slices, strict=False)), states, 0)
        return
    body, states, scanned, axes, _ = _scan_parts(frame, node)
    slices = [_without_axis(known, axis) for known, axis in zip(scanned, axes, strict=False)]
    _settle(frame, body, dict(zip(body.inputs[len(states) :], slices, strict=False)), states, 0)


def _old_scan_parts(frame: "Frame", node: ir.Node) -> tuple[ir.Graph, list[TensorType], list[TensorType]]:
    """Return body, states and scanned inputs of one batch entry (Scan-8)."""
    _, *types = [UNKNOWN if t is None else _without_axis(t, 0) for t in frame.inputs(node)]
    count = len(types) - int((frame.attributes(node) or {}).get("num_scan_inputs", 0))
    return bodies(node)["body"], types[:count], types[count:]


def _scan_8(frame: "Frame", node: ir.Node) -> tuple[TensorType, ...]:
    """Scan over axis 1 of batches: every output gets the batch in front."""
    body, states, scanned = _old_scan_parts(frame, node)
    if any(value not in frame.memo for value in body.inputs):
        _enter_scan(frame, node)
    first = frame.of(node.inputs[1]).shape
    length = scanned[0].shape[0] if scanned and scanned[0].shape else None
    finals = [_shown(frame.of(value)) for value in body.inputs[: len(states)]]
    elements = [
        _stacked(frame, value, length, 0, sure=at_least(length, 1)) for value in body.outputs[len(states) :]
    ]
    return tuple(
        TensorType(known.dtype, None if known.shape is None or not first else (first[0], *known.shape))
        for known in (*finals, *elements)
    )


def _scan(frame: "Frame", node: ir.Node) -> tuple[TensorType, ...]:
    if _old_scan(frame, node):
        return _scan_8(frame, node)
    body, states, scanned, axes, out_axes = _scan_parts(frame, node)
    if any(value not in frame.memo for value in body.inputs):
        _enter_scan(frame, node)
    lengths = [known.shape[axis] for known, axis in zip(scanned, axes, strict=False) if known.shape]
    length = next((dim for kind in (int, str) for dim in lengths if isinstance(dim, kind)), None)
    finals = [frame.of(value) for value in body.inputs[: len(states)]]
    elements = zip(body.outputs[len(states) :], out_axes, strict=False)
    sure = at_least(length, 1)
    return (*finals, *(_stacked(frame, value, length, axis, sure=sure) for value, axis in elements))


# ---- SequenceMap --------------------------------------------------------------------------------------


def _items(frame: "Frame", node: ir.Node) -> list[TensorType]:
    """Return what the body of a SequenceMap gets: an item of each sequence, other inputs whole."""
    types = frame.inputs(node)
    return [
        known.item
        if isinstance(known, ContainerType)
        else (UNKNOWN if place == 0 or known is None else known)
        for place, known in enumerate(types)
    ]


def _enter_map(frame: "Frame", node: ir.Node) -> None:
    frame.memo.update(zip(bodies(node)["body"].inputs, _items(frame, node), strict=False))


def _map(frame: "Frame", node: ir.Node) -> tuple[TensorType, ...]:
    body = bodies(node)["body"]
    if any(value not in frame.memo for value in body.inputs):
        _enter_map(frame, node)
    sequence = frame.inputs(node)[0]
    length = sequence.length if isinstance(sequence, ContainerType) else None
    return tuple(ContainerType(item=_shown(frame.of(value)), length=length) for value in body.outputs)


def _shown(known: TensorType) -> TensorType:
    """Return a type without content: items differ."""
    return known if isinstance(known, ContainerType) else TensorType(known.dtype, known.shape)


_OUTPUTS: Mapping[str, Callable[["Frame", ir.Node], tuple[TensorType, ...]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _map,
}
_ENTERED: Mapping[str, Callable[["Frame", ir.Node], None]] = {
    "Loop": _enter_loop,
    "Scan": _enter_scan,
    "SequenceMap": _enter_map,
}
