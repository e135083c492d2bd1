"""Kinds of faults that can be planted into a model: what tests/bench/faults.py plants, and tests do.

A kind is a function (Scene, Rng) → Fault: it changes the scene's model at one place chosen by chance, or
returns None where the model has no such place.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from graphdoc.engine.scope import MAIN, enter, qualified

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Place:
    """A node, the graph it stands in, and the scope of that graph."""

    node: onnx.NodeProto
    graph: onnx.GraphProto
    scope: str

    @property
    def keys(self) -> list[str]:
        """Tap names of what the node computes."""
        return [qualified(self.scope, name) for name in self.node.output if name]


@dataclass(frozen=True, slots=True)
class Fault:
    """What was planted: the kind, in words, and the tap names of the nodes that may be named for it."""

    kind: str
    text: str
    guilty: tuple[str, ...]


@dataclass(slots=True)
class Scene:
    """A model to plant in: its places, opset, and the dtypes and sizes of what it computes."""

    proto: onnx.ModelProto
    values: dict[str, Any]

    @property
    def opset(self) -> int:
        """Version of the default domain."""
        return max((o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx")), default=1)

    def places(self) -> list[Place]:
        """Return the nodes that ran, those of subgraphs included."""
        found = [p for p in _places(self.proto.graph, MAIN) if p.node.op_type != "Constant"]
        return [p for p in found if any(key in self.values for key in p.keys)]

    def is_float(self, place: Place) -> bool:
        """Whether the node's first output is a float tensor with something in it."""
        value = last(self.values.get(place.keys[0])) if place.keys else None
        return isinstance(value, np.ndarray) and value.dtype == np.float32 and value.size > 0


def last(value: Any) -> Any:
    """Return a value, the last one where there are several."""
    return value[-1] if isinstance(value, list) and value else value


def _places(graph: onnx.GraphProto, scope: str) -> Iterator[Place]:
    for node in graph.node:
        yield Place(node, graph, scope)
        first = next((name for name in node.output if name), "")
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _places(attribute.g, enter(scope, first, attribute.name))


def weights(scene: Scene, rng: Rng) -> Fault | None:
    """Change a float weight: scaled, one element, a channel left out, two channels swapped."""
    return _change_weight(scene, rng, "weights", WEIGHT_CHANGES)


def nan(scene: Scene, rng: Rng) -> Fault | None:
    """Put NaN or infinity into a weight."""
    return _change_weight(scene, rng, "nan", {"NaN": _put(np.nan), "infinity": _put(np.inf)})


def _scaled(array: Any, rng: Rng) -> Any:
    return array * np.float32(rng.choice([0.9, 0.99, 1.001, 1.01, 2.0, -1.0]))


def _one_element(array: Any, rng: Rng) -> Any:
    array.reshape(-1)[rng.integers(array.size)] += np.float32(rng.choice([0.1, 1.0, 10.0]))
    return array


def _channel_lost(array: Any, rng: Rng) -> Any:
    if array.ndim:
        array[rng.integers(array.shape[0])] = 0
    return array


def _channels_swapped(array: Any, rng: Rng) -> Any:
    return np.roll(array, 1, 0) if array.ndim and array.shape[0] > 1 else array * 2


def _put(number: float) -> Callable[[Any, Rng], Any]:
    def change(array: Any, rng: Rng) -> Any:
        array.reshape(-1)[rng.integers(array.size)] = number
        return array

    return change


WEIGHT_CHANGES = {
    "scaled": _scaled,
    "one element": _one_element,
    "a channel left out": _channel_lost,
    "channels rolled": _channels_swapped,
}


def _change_weight(
    scene: Scene, rng: Rng, kind: str, changes: dict[str, Callable[[Any, Rng], Any]]
) -> Fault | None:
    tensors = list(_weights(scene))
    if not tensors:
        return None
    tensor, guilty = tensors[rng.integers(len(tensors))]
    word = str(rng.choice(sorted(changes)))
    array = np.array(numpy_helper.to_array(tensor))
    changed = changes[word](array, rng)
    tensor.CopyFrom(
        numpy_helper.from_array(np.ascontiguousarray(changed, np.float32).reshape(tensor.dims), tensor.name)
    )
    return Fault(kind, f"{tensor.name or guilty[0]} {word}", guilty)


def _weights(scene: Scene) -> Iterator[tuple[onnx.TensorProto, tuple[str, ...]]]:
    """Yield float weights and the tap names of all nodes that read them."""
    readers = _readers(scene)
    for name, tensor in _held(scene):
        if tensor.data_type == TensorProto.FLOAT and math.prod(tensor.dims) and name in readers:
            yield tensor, tuple(key for place, _ in readers[name] for key in place.keys)


def _readers(scene: Scene) -> dict[str, list[tuple[Place, int]]]:
    found: dict[str, list[tuple[Place, int]]] = {}
    for place in scene.places():
        for slot, name in enumerate(place.node.input):
            found.setdefault(name, []).append((place, slot))
    return found


def _held(scene: Scene) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the name and the tensor of every initializer and Constant node."""
    graphs = {id(place.graph): place.graph for place in _places(scene.proto.graph, MAIN)}
    for graph in graphs.values():
        yield from ((tensor.name, tensor) for tensor in graph.initializer)
        literals = (node for node in graph.node if node.op_type == "Constant")
        yield from ((n.output[0], a.t) for n in literals for a in n.attribute if a.name == "value")


def _constants(
    scene: Scene, dtype: int, spots: dict[str, tuple[int, ...]]
) -> Iterator[tuple[onnx.TensorProto, tuple[str, ...]]]:
    """Yield constants that operators read in the given slots only, and the tap names of their readers."""
    readers = _readers(scene)
    for name, tensor in _held(scene):
        uses = readers.get(name, [])
        if uses and tensor.data_type == dtype and all(s in spots.get(p.node.op_type, ()) for p, s in uses):
            yield tensor, tuple(key for place, _ in uses for key in place.keys)


def axes(scene: Scene, rng: Rng) -> Fault | None:
    """Let an operator work along another axis, or with other windows."""
    return _change_attribute(scene, rng, "axes", AXES)


def positions(scene: Scene, rng: Rng) -> Fault | None:
    """Change an axis, an index or a bound that an operator reads as a constant."""
    spots = [(t, guilty) for t, guilty in _constants(scene, TensorProto.INT64, POSITIONS) if t.dims != [0]]
    if not spots:
        return None
    tensor, guilty = spots[rng.integers(len(spots))]
    array = np.array(numpy_helper.to_array(tensor))
    before = array.reshape(-1).tolist()
    array.reshape(-1)[rng.integers(array.size)] += rng.choice([-1, 1])
    after = array.reshape(-1).tolist()
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return Fault("axes", f"{tensor.name or guilty[0]} {before[:4]} → {after[:4]}", guilty)


def epsilon(scene: Scene, rng: Rng) -> Fault | None:
    """Change the epsilon or the slope of an operator."""
    return _change_attribute(scene, rng, "epsilon", EPSILONS)


def small_constant(scene: Scene, rng: Rng) -> Fault | None:
    """Change the epsilon that a normalisation written out adds, or a bound that Clip takes."""
    spots = [
        (tensor, guilty)
        for tensor, guilty in _constants(scene, TensorProto.FLOAT, BOUNDS)
        if math.prod(tensor.dims) == 1
    ]
    if not spots:
        return None
    tensor, guilty = spots[rng.integers(len(spots))]
    before = np.array(numpy_helper.to_array(tensor))
    after = before * np.float32(rng.choice([0.0, 10.0, 1000.0])) if abs(before) < SMALL else before / 2
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(after, np.float32), tensor.name))
    text = f"{tensor.name or guilty[0]} {before.item():.3g} → {np.asarray(after).item():.3g}"
    return Fault("epsilon", text, guilty)


def _other_axis(value: int, rng: Rng) -> int:
    return int(rng.choice([a for a in (-2, -1, 0, 1, 2) if a != value]))


def _other_axes(value: Sequence[int], rng: Rng) -> list[int]:
    return [_other_axis(value[0], rng), *value[1:]]


def _swapped(value: Sequence[int], rng: Rng) -> list[int]:
    row = list(value)
    i, j = rng.choice(len(row), 2, replace=False) if len(row) > 1 else (0, 0)
    row[i], row[j] = row[j], row[i]
    return row


def _shifted_pads(value: Sequence[int], rng: Rng) -> list[int]:
    half = len(value) // 2
    return [*(v + 1 for v in value[:half]), *(max(v - 1, 0) for v in value[half:])]


def _flipped(value: int, rng: Rng) -> int:
    return 1 - value


def _far(value: float, rng: Rng) -> float:
    return float(value * rng.choice([0.0, 10.0, 1000.0]))


AXES: dict[str, Any] = {
    "axis": _other_axis,
    "axes": _other_axes,
    "perm": _swapped,
    "pads": _shifted_pads,
    "dilations": lambda value, rng: [v + 1 for v in value],
    "count_include_pad": _flipped,
    "exclude_outside": _flipped,
    "linear_before_reset": _flipped,
    "transB": _flipped,
    "largest": _flipped,
    "group": lambda value, rng: 1 if value > 1 else 2,
}
"""Attribute → what it becomes."""

EPSILONS: dict[str, Any] = {
    "epsilon": _far,
    "alpha": _far,
    "beta": _far,
    "gamma": _far,
    "cubic_coeff_a": _far,
}


POSITIONS = {
    "Slice": (1, 2, 3, 4),
    "Gather": (1,),
    "Unsqueeze": (1,),
    "Squeeze": (1,),
    "ReduceMean": (1,),
    "ReduceSum": (1,),
    "ReduceMax": (1,),
    "CumSum": (1,),
    "Pad": (1,),
    "Trilu": (1,),
    "Range": (0,),
}
"""Operator → inputs that say where it works."""

BOUNDS = {"Add": (0, 1), "Clip": (1, 2), "Pad": (2,), "Max": (0, 1), "Min": (0, 1), "Where": (1, 2)}
"""Operator → inputs that are small constants where they are a single number."""

SMALL = 0.01
"""A number below is an epsilon."""


def _change_attribute(scene: Scene, rng: Rng, kind: str, table: dict[str, Any]) -> Fault | None:
    spots = [(p, a) for p in scene.places() for a in p.node.attribute if a.name in table]
    if not spots:
        return None
    place, attribute = spots[rng.integers(len(spots))]
    before = helper.get_attribute_value(attribute)
    after = table[attribute.name](before, rng)
    attribute.CopyFrom(helper.make_attribute(attribute.name, after))
    return Fault(kind, f"{place.node.op_type} {attribute.name} {before} → {after}", tuple(place.keys))


_SWAPS = """
Add Sub Mul; Sub Add; Mul Add Div; Div Mul; Relu Abs Sigmoid; Sigmoid HardSigmoid Tanh; HardSigmoid
Sigmoid; Tanh Softsign Erf; Erf Tanh; Max Min; Min Max; MaxPool AveragePool; AveragePool MaxPool;
GlobalAveragePool GlobalMaxPool; ReduceMean ReduceSum ReduceMax; ReduceMax ReduceMin; ReduceSum
ReduceMean; ReduceL2 ReduceL1; Floor Ceil Round; Ceil Floor; Round Floor; Greater Less; Less Greater;
Equal Greater; And Or; Or And; ArgMax ArgMin; Sqrt Abs; Exp Softplus; Log Abs; Pow Mul; Neg Identity;
Softmax LogSoftmax; LeakyRelu Elu; Elu LeakyRelu; Sin Cos; Cos Sin; Clip Identity; Abs Neg; Softplus
Exp; HardSwish Relu; Reciprocal Neg; Not Identity
"""
OPERATORS = {row.split()[0]: row.split()[1:] for row in _SWAPS.split(";")}
"""Operator → others that take the same inputs."""


def operator(scene: Scene, rng: Rng) -> Fault | None:
    """Exchange an operator."""
    spots = [p for p in scene.places() if p.node.op_type in OPERATORS and p.node.domain in ("", "ai.onnx")]
    if not spots:
        return None
    place = spots[rng.integers(len(spots))]
    before, after = place.node.op_type, str(rng.choice(OPERATORS[place.node.op_type]))
    place.node.op_type = after
    known = onnx.defs.get_schema(after, scene.opset, "").attributes if onnx.defs.has(after) else {}
    kept = [a for a in place.node.attribute if a.name in known]
    del place.node.attribute[:]
    place.node.attribute.extend(kept)
    if after == "Identity":
        del place.node.input[1:]
    return Fault("operator", f"{before} → {after}", tuple(place.keys))


def dtype(scene: Scene, rng: Rng) -> Fault | None:
    """Round a result to float16 or bfloat16 on its way."""
    to = int(
        rng.choice(
            [TensorProto.FLOAT16, TensorProto.BFLOAT16] if scene.opset >= 13 else [TensorProto.FLOAT16]
        )
    )
    steps = [("Cast", {"to": to}, None), ("Cast", {"to": TensorProto.FLOAT}, None)]
    return _behind(
        scene, rng, "dtype", f"result rounded to {TensorProto.DataType.Name(to)}", lambda value: steps
    )


def saturation(scene: Scene, rng: Rng) -> Fault | None:
    """Let a result stop at a share of its largest value."""
    share = float(rng.choice([0.3, 0.6, 0.9]))
    minimum = "Min"
    return _behind(
        scene, rng, "saturation", f"result stops at {share:.0%}",
        lambda value: [(minimum, {}, np.float32(_top(value) * share))],
    )  # fmt: skip


def nan_inside(scene: Scene, rng: Rng) -> Fault | None:
    """Let a result become NaN where it is negative, or infinite where it is 0."""
    op = str(rng.choice(["Log", "Sqrt", "Reciprocal"]))
    return _behind(scene, rng, "nan", f"result through {op}", lambda value: [(op, {}, None)])


NAMES_SCOPES = ("If", "Loop", "Scan")
"""Renaming their first output would rename every value inside."""


def _top(value: Any) -> float:
    finite = value[np.isfinite(value)]
    return float(finite.max(initial=0.0)) or 1.0


def _behind(scene: Scene, rng: Rng, kind: str, text: str, steps: Callable[[Any], list[Any]]) -> Fault | None:
    """Put operators behind a node's first output, which they take the name of."""
    spots = [p for p in scene.places() if scene.is_float(p) and p.node.op_type not in NAMES_SCOPES]
    if not spots:
        return None
    place = spots[rng.integers(len(spots))]
    if all(o.domain not in ("", "ai.onnx") for o in scene.proto.opset_import):
        scene.proto.opset_import.append(helper.make_opsetid("", 13))
    name = place.node.output[0]
    place.node.output[0] = now = f"{name}·sound"
    nodes = []
    for number, (op, attributes, constant) in enumerate(
        steps(last(scene.values[qualified(place.scope, name)]))
    ):
        extra = []
        if constant is not None:
            extra = [f"{name}·{number}·constant"]
            place.graph.initializer.append(numpy_helper.from_array(np.asarray(constant), extra[0]))
        nodes.append(helper.make_node(op, [now, *extra], [f"{name}·{number}"], **attributes))
        now = f"{name}·{number}"
    nodes[-1].output[0] = name
    at = next(i for i, node in enumerate(place.graph.node) if f"{name}·sound" in node.output)
    rest = list(place.graph.node)
    del place.graph.node[:]
    place.graph.node.extend([*rest[: at + 1], *nodes, *rest[at + 1 :]])
    keys = [qualified(place.scope, n) for n in [name, *place.node.output[1:]] if n]
    return Fault(kind, f"{place.node.op_type} {name}: {text}", tuple(keys))


KINDS: tuple[Callable[[Scene, Rng], Fault | None], ...] = (
    weights, weights, axes, axes, positions, epsilon, epsilon, small_constant, operator, operator,
    dtype, saturation, nan, nan_inside,
)  # fmt: skip
"""Drawn from with equal chances; a kind that stands twice is drawn twice as often."""


def plant(proto: onnx.ModelProto, values: dict[str, Any], seed: int) -> tuple[onnx.ModelProto, Fault]:
    """Return a copy of a model with one fault; kinds that find no place are passed over.

    values: all that the sound model computes, by tap name.
    """
    rng = np.random.default_rng([seed, 17])
    while True:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        del copy.graph.value_info[:]
        fault = KINDS[rng.integers(len(KINDS))](Scene(copy, values), rng)
        if fault is not None:
            return copy, fault
