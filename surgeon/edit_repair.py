"""A fixed size of an input changes: what inside the model knew the old one, and how it learns the new one.

Shapes before and after are compared node by node, in order. Where a node holds the old size as a constant, it
is given the new one, or the size is read from a value that has it:

1. Reshape: the target's entry that the changed dim falls into becomes 0 (copied), -1, or is computed.
2. Expand: an entry that equals the old dim becomes 1, which keeps whatever size comes in.
3. Concat and elementwise operators: an operand of the old size, the same in every slice, is expanded.
4. LSTM, GRU, RNN: initial states are expanded to the new batch.
5. Resize: an entry of ``sizes`` that equals the old dim is read from the input.

What cannot be repaired is listed; nothing is assumed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.infer import Facts
from graphdoc.engine.ops.table import Dim, canonical_domain
from graphdoc.surgeon.edit_find import Index, Place, subgraphs
from graphdoc.surgeon.edit_flow import drop_unused, title_of
from graphdoc.surgeon.edit_new import constant, new_tensor
from graphdoc.surgeon.edit_types import downstream, refresh
from graphdoc.surgeon.names import Names

Shape = tuple[Dim, ...] | None


@dataclass(slots=True)
class Repairs:
    """What became of a model whose sizes changed: a line for each node.

    done: repaired. left: known to need the old size still. A model with such nodes fails on other sizes.
    """

    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def extend(self, other: "Repairs") -> None:
        """Take over the lines of another."""
        self.done += other.done
        self.left += other.left


@dataclass(frozen=True, slots=True)
class _Size:
    """A size that is read when the model runs: ``factor`` × dim ``axis`` of ``value``."""

    value: ir.Value
    axis: int
    factor: int = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """An element that is read when the model runs: number ``position`` of a vector."""

    value: ir.Value
    position: int


Piece = int | _Size | _Entry


@dataclass(slots=True)
class _Work:
    """A model under repair: shapes before the change, and what is known now."""

    model: ir.Model
    names: Names
    before: dict[ir.Value, Shape]
    facts: Facts
    places: dict[ir.Graph, Place]
    repairs: Repairs = field(default_factory=Repairs)
    replaced: list[ir.Value] = field(default_factory=list)

    def now(self, value: ir.Value) -> Shape:
        """Return what is known of a value's shape after the change."""
        return self.facts.of(value).shape

    def changed(self, value: ir.Value | None) -> list[int]:
        """Return the axes of a value whose fixed size changed; none where the shapes are not known."""
        old, new = (None, None) if value is None else (self.before.get(value), self.now(value))
        if old is None or new is None or len(old) != len(new):
            return []
        return [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b and isinstance(a, int)]

    def size(self, value: ir.Value, axis: int, factor: int = 1) -> Piece:
        """Return what to write for a size: a number where it is one now."""
        dim = (self.now(value) or ())[axis]
        return dim * factor if isinstance(dim, int) else _Size(value, axis, factor)

    def swap(self, node: ir.Node, position: int, value: ir.Value, text: str) -> None:
        """Let a node read another value, and note the repair."""
        old = node.inputs[position]
        node.replace_input_with(position, value)
        self.facts.forget(*node.outputs)
        if old is not None:
            self.replaced.append(old)
        self.repairs.done.append(f"{title_of(node)}: {text}")

    def leave(self, node: ir.Node, text: str) -> None:
        """Note a node that still needs the old size."""
        self.repairs.left.append(f"{title_of(node)}: {text}")

    def store(self, node: ir.Node, array: np.ndarray[Any, Any], title: str) -> ir.Value:
        """Return a new constant in the graph of ``node``."""
        place = self.places[node.graph] if node.graph is not None else next(iter(self.places.values()))
        return constant(self.model, place, new_tensor(array), self.names.value(title), self.names)

    def add(self, before: ir.Node, op: str, inputs: Sequence[ir.Value], **attributes: int) -> ir.Value:
        """Return the result of a new node that is put before another."""
        title = f"{before.outputs[0].name}_{op}"
        attrs = [ir.AttrInt64(name, value) for name, value in attributes.items()]
        node = ir.Node("", op, inputs, attrs, num_outputs=1, name=self.names.node(title))
        node.outputs[0].name = self.names.value(title)
        if before.graph is not None:
            before.graph.insert_before(before, node)
        return node.outputs[0]

    def vector(self, node: ir.Node, pieces: Sequence[Piece]) -> ir.Value:
        """Return an int64 vector for ``node`` to read: a constant, or what reads sizes at run time."""
        runs: list[Any] = []
        for piece in pieces:
            if isinstance(piece, int) and runs and isinstance(runs[-1], list):
                runs[-1].append(piece)
            else:
                runs.append([piece] if isinstance(piece, int) else piece)
        parts = [self._part(node, run) for run in runs]
        return parts[0] if len(parts) == 1 else self.add(node, "Concat", parts, axis=0)

    def _part(self, node: ir.Node, run: "list[int] | _Size | _Entry") -> ir.Value:
        title = f"{node.outputs[0].name}_sizes"
        if isinstance(run, list):
            return self.store(node, np.array(run, np.int64), title)
        source = self.add(node, "Shape", [run.value]) if isinstance(run, _Size) else run.value
        at = run.axis if isinstance(run, _Size) else run.position
        found = self.add(node, "Gather", [source, self.store(node, np.array([at], np.int64), title)], axis=0)
        if isinstance(run, _Size) and run.factor != 1:
            return self.add(node, "Mul", [found, self.store(node, np.array([run.factor], np.int64), title)])
        return found


def repair(model: ir.Model, value: ir.Value, shape: ir.Shape) -> Repairs:
    """Give an input another shape and repair what knew the old one.

    The types of all that follows are inferred anew.
    """
    index = Index(model)
    facts = Facts(model)
    before = {each: facts.of(each).shape for each in index.home}
    value.shape = shape
    for each in downstream(index, [value]):
        each.shape = None
    places = {place.graph: place for place in index.places}
    work = _Work(model, Names(model), before, Facts(model, claims=False), places)
    _walk(work, model.graph)
    drop_unused(model, work.replaced)
    refresh(model, [value])
    return work.repairs


def _walk(work: _Work, graph: ir.Graph) -> None:
    for node in list(graph):
        for _, inner in subgraphs(node):
            _walk(work, inner)
        rule = _RULES.get(node.op_type)
        if rule is not None and not canonical_domain(node.domain):
            rule(work, node)


def _entries(work: _Work, vector: ir.Value | None) -> tuple[Dim, ...] | None:
    """Return what is known of a short integer vector's elements."""
    if vector is None:
        return None
    fact = work.facts.of(vector)
    array = work.facts.constant(vector)
    if array is not None:
        return tuple(int(item) for item in array.ravel())
    return fact.elements


def _reshape(work: _Work, node: ir.Node) -> None:
    data = node.inputs[0]
    axes = work.changed(data)
    target = node.inputs[1] if len(node.inputs) > 1 else None
    if data is None or not axes:
        return
    entries = _entries(work, target)
    old_in, old_out = work.before.get(data), work.before.get(node.outputs[0])
    if entries is None or target is None or old_in is None or old_out is None:
        if target is None:
            work.leave(node, "its target is an attribute (opset below 5)")
        return
    pieces: list[Piece] = [e if isinstance(e, int) else _Entry(target, i) for i, e in enumerate(entries)]
    plain = not node.attributes.get_int("allowzero", 0)
    moved = False
    for axis in axes:
        place = falls_into(old_in, old_out, axis)
        if place is None:
            work.leave(
                node, f"cannot tell which dim of {_words(old_out)} follows dim {axis} of {_words(old_in)}"
            )
            return
        follows = not isinstance(pieces[place], int) or pieces[place] == -1
        if follows or (pieces[place] == 0 and plain):
            continue
        pieces[place] = _target(work, data, axis, place, pieces, (old_in, old_out), plain)
        moved = True
    if moved:
        work.swap(node, 1, work.vector(node, pieces), f"target {_words(entries)} → {_words(pieces)}")


def _target(
    work: _Work,
    data: ir.Value,
    axis: int,
    place: int,
    pieces: Sequence[Piece],
    shapes: tuple[tuple[Dim, ...], tuple[Dim, ...]],
    plain: bool,
) -> Piece:
    """Return what a Reshape's entry becomes: the size if it is fixed, else 0 (copied), -1 or computed."""
    old, new = shapes[0][axis], shapes[1][place]
    factor = new // old if isinstance(old, int) and isinstance(new, int) and old and new % old == 0 else 1
    size = work.size(data, axis, factor)
    if isinstance(size, int):
        return size
    if place == axis and factor == 1 and plain:
        return 0
    return size if -1 in pieces or factor * (old if isinstance(old, int) else 0) != new else -1


def falls_into(old_in: Sequence[Dim], old_out: Sequence[Dim], axis: int) -> int | None:
    """Return the dim of a Reshape's result that a dim of its input goes into, None when that is not clear.

    The dims of both sides are taken from the left in groups of equal size: [1, 12, 64] → [1, 768] has the
    groups 1 → 1 and 12, 64 → 768.
    """
    for ins, outs in _groups(old_in, old_out) or ():
        if axis in ins:
            return outs[0] if len(outs) == 1 else _within(old_in, old_out, axis, (ins, outs))
    return None


def _within(
    old_in: Sequence[Dim], old_out: Sequence[Dim], axis: int, group: tuple[list[int], list[int]]
) -> int | None:
    """Return where in a group a dim goes: outermost to outermost, innermost to innermost, None else."""
    ins = [i for i in group[0] if i == axis or old_in[i] != 1]
    size = old_in[axis]
    outs = group[1] if size == 1 else [o for o in group[1] if old_out[o] != 1]
    for at, end in ((0, outs[0]), (-1, outs[-1])):
        dim = old_out[end]
        if ins[at] == axis and isinstance(size, int) and isinstance(dim, int) and dim % size == 0:
            return end
    return None


def _groups(old_in: Sequence[Dim], old_out: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    groups: list[tuple[list[int], list[int]]] = []
    i = o = 0
    while i < len(old_in) and o < len(old_out):
        a, b = old_in[i], old_out[o]
        ins, outs = [i], [o]
        i, o = i + 1, o + 1
        while a != b:
            if i < len(old_in) and _grows(a, b):
                a, i = _times(a, old_in[i]), i + 1
                ins.append(i - 1)
            elif o < len(old_out) and _grows(b, a):
                b, o = _times(b, old_out[o]), o + 1
                outs.append(o - 1)
            else:
                return None
        groups.append((ins, outs))
    rest = [*old_in[i:], *old_out[o:]]
    if not groups or any(size != 1 for size in rest):
        return None
    groups[-1][0].extend(range(i, len(old_in)))
    groups[-1][1].extend(range(o, len(old_out)))
    return groups


def _grows(size: Dim, goal: Dim) -> bool:
    """Whether more dims must be taken into ``size`` to reach ``goal``."""
    if isinstance(size, int) and isinstance(goal, int):
        return 0 < size < goal
    return size == 1


def _times(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return b if a == 1 else a if b == 1 else None


def _expand(work: _Work, node: ir.Node) -> None:
    data, target = node.inputs[0], node.inputs[1]
    axes = work.changed(data)
    entries = _entries(work, target)
    old = None if data is None else work.before.get(data)
    if entries is None or not axes or old is None or target is None:
        return
    pieces: list[Piece] = [e if isinstance(e, int) else _Entry(target, i) for i, e in enumerate(entries)]
    moved = False
    for axis in axes:
        place = axis + len(entries) - len(old)
        if place >= 0 and pieces[place] == old[axis] and pieces[place] != 1:
            pieces[place], moved = 1, True
    if moved:
        work.swap(node, 1, work.vector(node, pieces), f"target {_words(entries)} → {_words(pieces)}")


def _concat(work: _Work, node: ir.Node) -> None:
    rank = next((len(s) for v in node.inputs if v is not None and (s := work.before.get(v)) is not None), 0)
    joined = node.attributes.get_int("axis", 0) % rank if rank else 0
    for axis in range(rank):
        if axis != joined:
            _even_out(work, node, axis, rank, keep_ones=False)


def _elementwise(work: _Work, node: ir.Node) -> None:
    shapes = [work.before.get(value) for value in node.inputs if value is not None]
    rank = max((len(shape) for shape in shapes if shape is not None), default=0)
    for axis in range(rank - 2 if node.op_type == "MatMul" else rank):
        _even_out(work, node, axis, rank, keep_ones=True)


def _even_out(work: _Work, node: ir.Node, axis: int, rank: int, *, keep_ones: bool) -> None:
    """Where one operand has a new size and another the old one, bring the other to the new size.

    axis: of the result, operands being aligned at their last dims. keep_ones: size 1 broadcasts by itself.
    """
    moved: tuple[ir.Value, int] | None = None
    stayed: list[tuple[int, ir.Value, int]] = []
    for position, value in enumerate(node.inputs):
        shape = None if value is None else work.before.get(value)
        at = axis - rank + (len(shape) if shape is not None else 0)
        if value is None or shape is None or at < 0:
            continue
        if at in work.changed(value):
            moved = moved or (value, at)
        else:
            stayed.append((position, value, at))
    if moved is None:
        return
    old = (work.before[moved[0]] or ())[moved[1]]
    for position, value, at in stayed:
        if (work.now(value) or work.before[value] or ())[at] == old and not (keep_ones and old == 1):
            _spread(work, node, position, at, moved, keep_ones)


def _spread(
    work: _Work, node: ir.Node, position: int, axis: int, source: tuple[ir.Value, int], broadcasts: bool
) -> None:
    """Bring an operand to the size of ``source`` along ``axis``, if all its slices are equal."""
    value = node.inputs[position]
    shape = None if value is None else work.before.get(value)
    if value is None or shape is None:
        return
    title = str(value.name)
    if shape[axis] != 1:
        array = work.facts.constant(value)
        if array is None or not _uniform(array, axis):
            work.leave(node, f"'{title}' is {_words(shape)}, and its parts of the old size differ")
            return
        value = work.store(node, array.take([0], axis=axis), f"{title}_one")
    if not broadcasts:
        sizes: list[Piece] = [work.size(*source) if i == axis else 1 for i in range(len(shape))]
        value = work.add(node, "Expand", [value, work.vector(node, sizes)])
    work.swap(node, position, value, f"'{title}' takes the new size")


def _uniform(array: np.ndarray[Any, Any], axis: int) -> bool:
    return array.shape[axis] > 0 and bool(np.all(array == array.take([0], axis=axis)))


def _recurrent(work: _Work, node: ir.Node) -> None:
    data = node.inputs[0]
    batch = 0 if node.attributes.get_int("layout", 0) else 1
    if data is None or batch not in work.changed(data):
        return
    old = (work.before[data] or ())[batch]
    for position in (5, 6):
        state = node.inputs[position] if len(node.inputs) > position else None
        shape = None if state is None else work.now(state)
        if (
            state is not None
            and shape is not None
            and shape[batch] == old
            and batch not in work.changed(state)
        ):
            _spread(work, node, position, batch, (data, batch), broadcasts=False)


def _resize(work: _Work, node: ir.Node) -> None:
    data, sizes = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
    entries = _entries(work, sizes)
    axes = work.changed(data)
    old = None if data is None else work.before.get(data)
    if data is None or sizes is None or entries is None or not axes or old is None:
        return
    listed = node.attributes.get_ints("axes", None) or range(len(old))
    order = [axis % len(old) for axis in listed]
    pieces: list[Piece] = [e if isinstance(e, int) else _Entry(sizes, i) for i, e in enumerate(entries)]
    for axis in axes:
        if axis in order and pieces[order.index(axis)] == old[axis]:
            pieces[order.index(axis)] = work.size(data, axis)
        elif axis in order and isinstance(pieces[order.index(axis)], int):
            work.leave(node, f"it brings dim {axis} from {old[axis]} to a fixed size")
    if list(entries) != pieces:
        work.swap(node, 3, work.vector(node, pieces), f"sizes {_words(entries)} → {_words(pieces)}")


def _squeeze(work: _Work, node: ir.Node) -> None:
    data = node.inputs[0]
    given = len(node.inputs) > 1 and node.inputs[1] is not None
    old = None if data is None else work.before.get(data)
    named = given or "axes" in node.attributes
    if old is not None and not named and any(old[axis] == 1 for axis in work.changed(data)):
        work.leave(node, "it removes every dim of size 1, and names none")


def _split(work: _Work, node: ir.Node) -> None:
    data = node.inputs[0]
    old = None if data is None else work.before.get(data)
    if old is not None and node.attributes.get_int("axis", 0) % len(old) in work.changed(data):
        work.leave(node, "it splits the dim whose size changed")


def _words(items: Sequence[Any]) -> str:
    words = (
        f"dim {item.axis} of {item.value.name}" + (f" × {item.factor}" if item.factor != 1 else "")
        if isinstance(item, _Size)
        else "as before"
        if isinstance(item, _Entry)
        else "?"
        if item is None
        else str(item)
        for item in items
    )
    return f"[{', '.join(words)}]"


_BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "Less", "Where",
    "GreaterOrEqual", "LessOrEqual", "Min", "Max", "Sum", "Mean", "PRelu", "BitwiseAnd", "BitwiseOr",
    "BitwiseXor", "MatMul",
)  # fmt: skip
_RULES: dict[str, Callable[[_Work, ir.Node], None]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "Concat": _concat,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Resize": _resize,
    "Squeeze": _squeeze,
    "Split": _split,
    **dict.fromkeys(_BROADCASTING, _elementwise),
}
