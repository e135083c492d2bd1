"""Where an input ends up: the operators it reaches through operators that only move values about.

Names of inputs tell people what they are for; the graph tells everyone. A token id is what reaches the
indices of a Gather, whether through Cast, Reshape and Unsqueeze, into a branch of an If or a function.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from graphdoc.compare.inputs_nodes import Content, full_shape, shape_of, type_of

STEPS = 20_000
"""Uses after which a walk ends."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some positions of an input along one axis, and where they begin in the value."""

    axis: int
    indices: tuple[int, ...]
    start: int = 0


@dataclass(frozen=True, slots=True)
class Path:
    """How a value came from an input.

    axes: the input's axis behind each axis of the value (None: none, or mixed); None when not known.
    part: the positions it holds, None for all.
    scale, shift: value = scale × input + shift; None when that is not so. spread: where the shift differs
        from element to element (offsets of columns), shift is the largest and shift − spread the smallest.
    bounded: the graph itself keeps the value in range (Clip, Mod), whatever is fed.
    """

    axes: tuple[int | None, ...] | None
    part: Part | None = None
    scale: float | None = 1.0
    shift: float | None = 0.0
    spread: float = 0.0
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """An operator that reads what came from an input, at one of its inputs (slot)."""

    node: ir.Node
    slot: int
    path: Path

    @property
    def op(self) -> str:
        """The operator's name."""
        return self.node.op_type

    @property
    def at(self) -> tuple[str, int]:
        """Operator and slot, as the rule tables spell it."""
        return (self.node.op_type, self.slot)


Known: TypeAlias = Mapping[ir.Value, Content]
"""What a dry run found of each value."""

Step: TypeAlias = tuple[int, Path]
"""An output of a node, and how it came from the input."""


class Walker:
    """Follows inputs through a model.

    known: contents of a dry run without inputs: constants and what follows from them.
    """

    def __init__(self, model: ir.Model, known: Known) -> None:
        self.known = known
        self._functions = model.functions
        self._leads_to: dict[ir.Value, list[ir.Value]] = {}
        self._comes_from: dict[ir.Value, ir.Value] = {}
        graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
        for graph in graphs:
            for node in ir.traversal.RecursiveGraphIterator(graph):
                self._link(node)

    def _link(self, node: ir.Node) -> None:
        """Note where the results of a node's bodies come out, and where what it reads goes in."""
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                body = attribute.as_graph()
                skip = 1 if node.op_type == "Loop" else 0
                self._pairs(body.outputs[skip:], node.outputs)
                self._pairs(node.inputs[2:] if skip else node.inputs, body.inputs[2 * skip :])
        function = self._functions.get(node.op_identifier())
        if function is not None:
            self._pairs(function.outputs, node.outputs)
            self._pairs(node.inputs, function.inputs)

    def _pairs(self, sources: Iterable[ir.Value | None], targets: Iterable[ir.Value | None]) -> None:
        for source, target in zip(sources, targets, strict=False):
            if source is not None and target is not None:
                self._leads_to.setdefault(source, []).append(target)
                self._comes_from.setdefault(target, source)

    def uses(self, value: ir.Value) -> tuple[Use, ...]:
        """Return every use of an input, near ones first."""
        rank = None if value.shape is None else len(value.shape)
        start = Path(None if rank is None else tuple(range(rank)))
        return tuple(self._walk(value, start))

    def _walk(self, value: ir.Value, path: Path) -> Iterator[Use]:
        queue: deque[tuple[ir.Value, Path]] = deque([(value, path)])
        seen = {(value, path)}
        steps = 0
        while queue and steps < STEPS:
            value, path = queue.popleft()
            found: list[tuple[ir.Value, Path]] = [
                (target, _sliced(path, target)) for target in self._leads_to.get(value, ())
            ]
            for usage in value.uses():
                steps += 1
                use = Use(usage.node, usage.idx, path)
                yield use
                found += self._moves(use)
            for item in found:
                if item not in seen:
                    seen.add(item)
                    queue.append(item)

    def _moves(self, use: Use) -> list[tuple[ir.Value, Path]]:
        move, outputs = _MOVES.get(use.op), use.node.outputs
        if move is None or use.node.domain not in _DOMAINS:
            return []
        return [(outputs[k], path) for k, path in move(self, use) if k < len(outputs)]

    def constant(self, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """Return a value that does not depend on any input, if it is small."""
        content = None if value is None else self.known.get(value)
        return content if isinstance(content, np.ndarray) else None

    def origin(self, value: ir.Value | None) -> ir.Value | None:
        """Return what a value is a copy or a slice of: outside the body it enters, before Identity."""
        for _ in range(32):
            producer = None if value is None else value.producer()
            if value in self._comes_from and producer is None:
                value = self._comes_from[value]
            elif producer is not None and producer.op_type == "Identity":
                value = producer.inputs[0]
            else:
                break
        return value

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether a value is a constant of any size."""
        if value is None or self.constant(value) is not None or value.is_initializer():
            return True
        node = value.producer()
        if node is None or node.op_type not in _KEEPS_CONSTANT:
            return False
        return all(v is None or self.is_constant(v) for v in node.inputs)

    def is_index(self, value: ir.Value | None) -> bool:
        """Whether a value is of int32 or int64, the types of indices."""
        if value is None:
            return False
        content = type_of(self.known.get(value))
        code = content.tensor_type.elem_type if content is not None else int(value.dtype or 0)
        return code in (int(ir.DataType.INT32), int(ir.DataType.INT64))

    def ints(self, value: ir.Value | None) -> list[int] | None:
        """Return a constant as a flat list of integers."""
        found = self.constant(value)
        return None if found is None or found.dtype.kind not in "iu" else [int(i) for i in found.reshape(-1)]

    def shape(self, value: ir.Value | None) -> tuple[int | None, ...] | None:
        """Return the shape of a value as far as it is known."""
        return None if value is None else shape_of(self.known.get(value))

    def full_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a value if all of it is known."""
        return None if value is None else full_shape(self.known.get(value))


_KEEPS_CONSTANT = frozenset({"Constant", "Identity", "Cast", "Transpose", "Reshape", "DequantizeLinear"})

_DOMAINS = ("", "ai.onnx", "com.microsoft", "ai.onnx.ml")


def _sliced(path: Path, target: ir.Value) -> Path:
    """Return the path into a body or out of it: axes hold while the rank does."""
    producer = target.producer()
    if target.shape is None and producer is not None and producer.op_type in ("Loop", "Scan"):
        return replace(path, axes=None)
    if path.axes is None or target.shape is None or len(target.shape) == len(path.axes):
        return path
    if len(target.shape) == len(path.axes) - 1:
        return replace(path, axes=path.axes[1:])
    return replace(path, axes=None)


# ---- how operators move values ------------------------------------------------------------------------


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.value


def _operand(walker: Walker, node: ir.Node, slot: int, name: str) -> list[int] | None:
    """Return integers that are an attribute in old versions and an input in new ones."""
    if name in node.attributes:
        value = _attribute(node, name, [])
        return [int(i) for i in value] if isinstance(value, list | tuple) else [int(value)]
    return walker.ints(node.inputs[slot]) if len(node.inputs) > slot else None


def _only(*slots: int, change: Callable[[Path], Path] = lambda path: path) -> "Move":
    """Return a move that takes the first output from one of the slots."""

    def move(_walker: Walker, use: Use) -> list[Step]:
        return [(0, change(use.path))] if use.slot in slots else []

    return move


def _bounded(path: Path) -> Path:
    return replace(path, bounded=True)


def _bent(path: Path) -> Path:
    return replace(path, scale=None, shift=None)


def _lost(path: Path) -> Path:
    return replace(path, axes=None)


def _affine(walker: Walker, use: Use) -> list[Step]:
    """Add, Sub, Mul, Div with a constant.

    With something else the value is no longer the input's; integers are followed all the same, for so are
    negative indices wrapped and columns told apart.
    """
    node, slot, path = use.node, use.slot, use.path
    other = node.inputs[1 - slot]
    if not walker.is_constant(other):
        return [(0, _bent(_lost(path)))] if walker.is_index(node.inputs[slot]) else []
    constant = walker.constant(other)
    path = replace(path, axes=_broadcast(path.axes, len(walker.shape(other) or ())))
    if constant is None or not constant.size or constant.dtype.kind not in "iuf" or path.scale is None:
        return [(0, _bent(path))]
    if constant.size > 1:
        return [(0, _spread(path, constant) if node.op_type == "Add" else _bent(path))]
    number = float(constant.reshape(-1)[0])
    change = _AFFINE.get(use.at)
    if change is None or path.shift is None or (number == 0 and node.op_type in ("Mul", "Div")):
        return [(0, _bent(path))]
    scale, shift = change(path.scale, path.shift, number)
    return [(0, replace(path, scale=scale, shift=shift))]


_AFFINE: dict[tuple[str, int], Callable[[float, float, float], tuple[float, float]]] = {
    ("Add", 0): lambda a, b, c: (a, b + c),
    ("Add", 1): lambda a, b, c: (a, b + c),
    ("Sub", 0): lambda a, b, c: (a, b - c),
    ("Sub", 1): lambda a, b, c: (-a, c - b),
    ("Mul", 0): lambda a, b, c: (a * c, b * c),
    ("Mul", 1): lambda a, b, c: (a * c, b * c),
    ("Div", 0): lambda a, b, c: (a / c, b / c),
}


def _spread(path: Path, offsets: np.ndarray[Any, Any]) -> Path:
    """Return the path after different offsets were added to different elements."""
    low, high = float(offsets.min()), float(offsets.max())
    shift = None if path.shift is None else path.shift + high
    return replace(path, shift=shift, spread=path.spread + high - low)


def _broadcast(axes: tuple[int | None, ...] | None, rank: int) -> tuple[int | None, ...] | None:
    return None if axes is None else (None,) * (rank - len(axes)) + axes


def _unsqueeze(walker: Walker, use: Use) -> list[Step]:
    node, slot, path = use.node, use.slot, use.path
    added = _operand(walker, node, 1, "axes")
    if slot or path.axes is None or added is None:
        return [] if slot else [(0, _lost(path))]
    rank = len(path.axes) + len(added)
    places = {axis % rank for axis in added}
    rest = iter(path.axes)
    return [(0, replace(path, axes=tuple(None if i in places else next(rest, None) for i in range(rank))))]


def _squeeze(walker: Walker, use: Use) -> list[Step]:
    node, slot, path = use.node, use.slot, use.path
    gone = _operand(walker, node, 1, "axes")
    if slot or not path.axes or gone is None:
        return [] if slot else [(0, _lost(path))]
    places = {axis % len(path.axes) for axis in gone}
    return [(0, replace(path, axes=tuple(a for i, a in enumerate(path.axes) if i not in places)))]


def _transpose(_walker: Walker, use: Use) -> list[Step]:
    node, path = use.node, use.path
    if path.axes is None:
        return [(0, path)]
    order = _attribute(node, "perm", None) or list(range(len(path.axes)))[::-1]
    return [(0, replace(path, axes=tuple(path.axes[i] for i in order if i < len(path.axes))))]


def _taken(path: Path, axis: int, indices: Iterable[int]) -> Path:
    """Return the path after positions along one of the value's axes were taken."""
    source = None if path.axes is None else path.axes[axis]
    if source is None or (path.part is not None and path.part.axis != source):
        return path
    wanted = tuple(indices)
    if path.part is None:
        return replace(path, part=Part(source, wanted))
    old = path.part
    inside = [i - old.start for i in wanted if 0 <= i - old.start < len(old.indices)]
    return replace(path, part=Part(source, tuple(old.indices[i] for i in inside)))


def _gather(walker: Walker, use: Use) -> list[Step]:
    """Gather as a selection by constant indices from the input itself."""
    node, slot, path = use.node, use.slot, use.path
    if slot:
        return []
    indices, axis = walker.ints(node.inputs[1]), int(_attribute(node, "axis", 0))
    rank = walker.shape(node.inputs[1])
    if path.axes is None or not path.axes or rank is None:
        return [(0, _lost(path))]
    axis %= len(path.axes)
    if indices is not None and min(indices, default=0) >= 0:
        path = _taken(path, axis, indices)
    axes = path.axes or ()
    kept = (axes[axis],) if len(rank) == 1 else (None,) * len(rank)
    return [(0, replace(path, axes=axes[:axis] + kept + axes[axis + 1 :]))]


def _slice(walker: Walker, use: Use) -> list[Step]:
    node, slot, path = use.node, use.slot, use.path
    if slot:
        return []
    starts, ends = (_operand(walker, node, k, name) for k, name in ((1, "starts"), (2, "ends")))
    axes = _operand(walker, node, 3, "axes")
    steps = walker.ints(node.inputs[4]) if len(node.inputs) > 4 else [1]
    if not starts or not ends or not path.axes or len(starts) != 1 or steps != [1]:
        return [(0, path)]
    axis = (axes or [0])[0] % len(path.axes)
    return [(0, _window(path, axis, starts[0], ends[0]))]


def _window(path: Path, axis: int, start: int, end: int) -> Path:
    if start < 0 or end < 0 or end - start > 4096:
        return path
    return _taken(path, axis, range(start, end))


def _split(walker: Walker, use: Use) -> list[Step]:
    node, slot, path = use.node, use.slot, use.path
    sizes = _operand(walker, node, 1, "split")
    if slot:
        return []
    if not path.axes or not sizes:
        return [(k, path) for k in range(len(node.outputs))]
    axis = int(_attribute(node, "axis", 0)) % len(path.axes)
    ends = np.cumsum(sizes).tolist()
    return [(k, _window(path, axis, e - s, e)) for k, (s, e) in enumerate(zip(sizes, ends, strict=True))]


def _concat(walker: Walker, use: Use) -> list[Step]:
    """Concat: positions along its axis begin after those of the inputs before."""
    node, slot, path = use.node, use.slot, use.path
    if not path.axes:
        return [(0, path)]
    axis = int(_attribute(node, "axis", 1)) % len(path.axes)
    source = path.axes[axis]
    sizes = [_size(walker, v, axis) for v in node.inputs[:slot]]
    own = _size(walker, node.inputs[slot], axis)
    if source is None or None in sizes or own is None:
        return [(0, replace(path, axes=_without(path.axes, axis)))]
    before = sum(size for size in sizes if size is not None)
    part = path.part or Part(source, tuple(range(own)))
    if part.axis != source:
        return [(0, path)]
    return [(0, replace(path, part=replace(part, start=part.start + before)))]


def _without(axes: tuple[int | None, ...], axis: int) -> tuple[int | None, ...]:
    return tuple(None if i == axis else a for i, a in enumerate(axes))


def _size(walker: Walker, value: ir.Value | None, axis: int) -> int | None:
    """Return a size from the dry run, else as the model declares it."""
    shape = walker.shape(value)
    if shape is not None and axis < len(shape) and shape[axis] is not None:
        return shape[axis]
    declared = value.shape if value is not None else None
    dim = declared[axis] if declared is not None and axis < len(declared) else None
    return dim if isinstance(dim, int) and dim >= 0 else None


def _expand(walker: Walker, use: Use) -> list[Step]:
    node, slot, path = use.node, use.slot, use.path
    target = walker.shape(node.inputs[1])
    if slot:
        return []
    rank = target[0] if target else None
    axes = _broadcast(path.axes, rank) if rank is not None else None
    return [(0, replace(path, axes=axes))]


def _reshape(walker: Walker, use: Use) -> list[Step]:
    """Reshape: leading axes copied by 0 stay known."""
    node, slot, path = use.node, use.slot, use.path
    if slot:
        return []
    target = _operand(walker, node, 1, "shape")
    if target is None or path.axes is None:
        return [(0, _lost(path))]
    kept = 0
    while kept < min(len(target), len(path.axes)) and target[kept] == 0:
        kept += 1
    return [(0, replace(path, axes=path.axes[:kept] + (None,) * (len(target) - kept)))]


Move: TypeAlias = Callable[[Walker, Use], list[Step]]

_MOVES: dict[str, Move] = {
    **dict.fromkeys(["Identity", "Cast", "CastLike", "Dropout", "Pad", "Trilu"], _only(0)),
    **dict.fromkeys(["Optional", "OptionalGetElement", "SequenceConstruct"], _only(0, 1, 2, 3)),
    **dict.fromkeys(["SequenceAt", "SplitToSequence", "ConcatFromSequence", "SequenceInsert"], _only(0, 1)),
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Imputer"], _only(0)),
    **dict.fromkeys(["Relu", "Abs", "Floor", "Ceil", "Round", "Sqrt", "Log", "Exp"], _only(0, change=_bent)),
    **dict.fromkeys(["Clip", "Mod", "BitwiseAnd"], _only(0, change=_bounded)),
    **dict.fromkeys(["Max", "Min"], _only(0, 1, change=_bounded)),
    **dict.fromkeys(["Flatten", "Tile", "Resize", "Upsample"], _only(0, change=_lost)),
    **dict.fromkeys(["Add", "Sub", "Mul", "Div"], _affine),
    "Where": _only(1, 2, change=_lost),
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Expand": _expand,
    "Reshape": _reshape,
    "FeatureVectorizer": _concat,
    "ArrayFeatureExtractor": _only(0, change=_lost),
}
