"""Two operators in a row that one does, or none."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops.table import Dim
from graphdoc.surgeon.rules.base import Context, Edit, Refusal, rule, use_count
from graphdoc.surgeon.rules.identity import known_equal, slice_bounds
from graphdoc.surgeon.rules.shapes import FLEXIBLE, reshape_target

MAX_CHAIN = 16
"""Operators that are looked back through for a shape that was there before."""


# ---- transposes


def permutation(node: ir.Node, context: Context) -> list[int] | None:
    """Return the axes of a Transpose; None when they are left out and the rank is not known."""
    perm = context.attribute(node, "perm")
    if perm is not None:
        return list(perm)
    shape = context.type_of(node.inputs[0]).shape
    return None if shape is None else list(range(len(shape)))[::-1]


@rule("transpose-transpose", "chain", "Transpose")
def transpose_transpose(node: ir.Node, context: Context) -> Edit | None:
    """Transpose(Transpose(x)) → Transpose(x), or x."""
    first = context.producer(node.inputs[0], "Transpose")
    if first is None:
        return None
    inner, outer = permutation(first, context), permutation(node, context)
    source = first.inputs[0]
    if inner is None or outer is None or len(inner) != len(outer) or source is None:
        return None
    both = [inner[axis] for axis in outer]
    if both == sorted(both):
        context.replace(node.outputs[0], source)
        return Edit("the two cancel")
    context.set_input(node, 0, source)
    context.set_attribute(node, "perm", both)
    return Edit("made the two one")


# ---- reshapes


def _sources(node: ir.Node, context: Context) -> list[ir.Value]:
    """Return what goes into a chain of operators that only reshape, the nearest first."""
    found: list[ir.Value] = []
    maker: ir.Node | None = node
    while maker is not None and len(found) < MAX_CHAIN:
        value = maker.inputs[0]
        if value is None:
            break
        found.append(value)
        maker = context.producer(value, *FLEXIBLE)
    return found


@rule("reshape-back", "chain", *FLEXIBLE)
def reshape_back(node: ir.Node, context: Context) -> Edit | None:
    """A chain of reshapes that ends in a shape it had before: x."""
    shape = context.type_of(node.outputs[0]).shape
    for place, value in enumerate(_sources(node, context)[1:]):
        if known_equal(shape, context.type_of(value).shape) or (place == 0 and _undoes(node, context)):
            context.replace(node.outputs[0], value)
            return Edit(f"has the shape of '{value.name}' again")
    return None


def _undoes(node: ir.Node, context: Context) -> bool:
    """Whether an Unsqueeze puts back the axes that a Squeeze just took, or the other way round."""
    first = context.producer(node.inputs[0], "Squeeze", "Unsqueeze")
    if first is None or {node.op_type, first.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    taken, put = (item.attributes.get("axes") for item in (first, node))
    if taken is not None and put is not None:
        return list(taken.value) == list(put.value)
    same = len(node.inputs) == len(first.inputs) == 2 and node.inputs[1] is first.inputs[1]
    return same and node.inputs[1] is not None


@rule("reshape-reshape", "chain", *FLEXIBLE)
def reshape_reshape(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """Two reshapes in a row → one Reshape to the second's shape."""
    first = context.producer(node.inputs[0], *FLEXIBLE)
    if first is None or context.opset() < 5:
        return None
    source = first.inputs[0]
    if source is None or not _worth_it(node, first, context):
        return None
    shape, before = context.type_of(node.outputs[0]).shape, context.type_of(source).shape
    target = None if shape is None else reshape_target(shape, before, zero_copies=True)
    if target is None:
        return Refusal("more than one size of the result is open")
    value = context.constant(np.array(target, np.int64), node, name=f"{node.outputs[0].name}_shape")
    made = context.node("Reshape", [source, value], like=node)[0]
    context.replace(node.outputs[0], made)
    return Edit(f"one Reshape to {target}")


def _worth_it(node: ir.Node, first: ir.Node, context: Context) -> bool:
    """Whether the first reshape goes: nothing else reads it, or only reshapes do."""
    value = first.outputs[0]
    if context.single_use(value):
        return True
    outside = [usage.node for usage in value.uses() if usage.node.op_type not in FLEXIBLE or usage.idx != 0]
    return not outside and not value.is_graph_output() and not context.kept(value)


@rule("transpose-reshape", "chain", "Transpose")
def transpose_reshape(node: ir.Node, context: Context) -> Edit | None:
    """A Transpose that moves axes of size one alone, beside a reshape → a Reshape that joins it."""
    source = node.inputs[0]
    before, after = context.type_of(source).shape, context.type_of(node.outputs[0]).shape
    order = permutation(node, context)
    if context.opset() < 5 or before is None or after is None or order is None or len(order) != len(before):
        return None
    moved = [axis for axis in order if before[axis] != 1]
    if moved != sorted(moved) or not _beside_reshape(node, context):
        return None
    target = reshape_target(after, before, zero_copies=True)
    if target is None:
        return None
    value = context.constant(np.array(target, np.int64), node, name=f"{node.outputs[0].name}_shape")
    context.replace(node.outputs[0], context.node("Reshape", [source, value], like=node)[0])
    return Edit("it moves axes of size one: a Reshape does")


def _beside_reshape(node: ir.Node, context: Context) -> bool:
    """Whether a reshape before or after the node will become one with it."""
    before = context.producer(node.inputs[0], *FLEXIBLE)
    if before is not None and context.single_use(before.outputs[0]):
        return True
    value = node.outputs[0]
    if not context.single_use(value):
        return False
    [usage] = value.uses()
    return usage.idx == 0 and usage.node.op_type in FLEXIBLE


# ---- casts

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_EXACT: dict[str, tuple[str, ...]] = {
    "bool": ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", *_FLOATS),
    "int8": ("int16", "int32", "int64", *_FLOATS),
    "uint8": ("int16", "uint16", "int32", "uint32", "int64", "uint64", *_FLOATS),
    "int16": ("int32", "int64", "float32", "float64"),
    "uint16": ("int32", "uint32", "int64", "uint64", "float32", "float64"),
    "int32": ("int64", "float64"),
    "uint32": ("int64", "uint64", "float64"),
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
}
"""Casts that keep every value."""


def _safe_chain(a: str, b: str, c: str) -> str | None:
    """Return why a → b → c is not a → c, None when it is.

    a → b must keep every value. Then b → c must do to the value what a → c does: rounding and truncation do,
    whatever type they start from; from an integer through a float into a narrower integer it is left open
    what happens to values that do not fit, while integers wrap.
    """
    if b not in _EXACT.get(a, ()):
        return f"{a} → {b} loses values"
    if c == "object":
        return "the text of a number depends on its type"
    if b in _FLOATS and a not in _FLOATS and c not in _FLOATS and c not in (a, "bool") and a != "bool":
        return None if c in _EXACT.get(a, ()) else f"{a} → {c} wraps where {b} → {c} does not"
    return None


@rule("cast-cast", "chain", "Cast")
def cast_cast(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """Cast(Cast(x)) → Cast(x), or x, where the first one keeps every value."""
    first = context.producer(node.inputs[0], "Cast")
    if first is None or first.inputs[0] is None:
        return None
    types = [context.type_of(v).dtype for v in (first.inputs[0], first.outputs[0], node.outputs[0])]
    if any(dtype is None for dtype in types):
        return Refusal("a type is not known")
    a, b, c = (np.dtype(dtype).name if dtype is not None else "" for dtype in types)
    reason = _safe_chain(a, b, c)
    if reason:
        return Refusal(reason)
    if a == c:
        context.replace(node.outputs[0], first.inputs[0])
        return Edit("the two cancel")
    context.set_input(node, 0, first.inputs[0])
    return Edit("made the two one")


# ---- slices


@rule("slice-slice", "chain", "Slice")
def slice_slice(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """Slice(Slice(x)) → Slice(x): axes apart, or the same axis of known size."""
    first = context.producer(node.inputs[0], "Slice")
    if first is None or context.opset() < 10 or not _sliced_only(first.outputs[0], context):
        return None
    shape = context.type_of(first.inputs[0]).shape
    if shape is None:
        return Refusal("the rank is not known")
    bounds = [_by_axis(item, len(shape), context) for item in (first, node)]
    if bounds[0] is None or bounds[1] is None:
        return Refusal("the bounds are not constant")
    merged = dict(bounds[0])
    for axis, bound in bounds[1].items():
        both = bound if axis not in merged else _composed(merged[axis], bound, shape[axis])
        if both is None:
            return Refusal(f"both cut axis {axis}, whose size is not known")
        merged[axis] = both
    if not merged:
        return None  # neither cuts anything
    _put_slice(node, first.inputs[0], merged, context)
    return Edit("made the two one")


def _sliced_only(value: ir.Value, context: Context) -> bool:
    """Whether nothing but Slices reads a value: once they all are merged with it, it goes."""
    if value.is_graph_output() or context.kept(value) or use_count(value) > MAX_CHAIN:
        return False
    return all(usage.idx == 0 and usage.node.op_type == "Slice" for usage in value.uses())


Bound = tuple[int, int, int]


def _by_axis(node: ir.Node, rank: int, context: Context) -> dict[int, Bound] | None:
    starts, ends, steps = slice_bounds(node, context)
    if starts is None or ends is None or steps is None:
        return None
    axes: Sequence[int] = range(len(starts))
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        array = context.array(node.inputs[3])
        if array is None:
            return None
        axes = array.reshape(-1).tolist()
    places = [axis % rank for axis in axes]
    if len(set(places)) != len(places):
        return None
    return {axis: bound for axis, *bound in zip(places, starts, ends, steps, strict=True)}  # type: ignore[misc]


def _composed(first: Sequence[int], second: Sequence[int], size: Dim) -> Bound | None:
    """Return the bound of two cuts of one axis."""
    if not isinstance(size, int):
        return None
    taken = range(size)[_clamped(first)][_clamped(second)]
    if not len(taken):
        return 0, 0, 1
    end = taken[-1] + (1 if taken.step > 0 else -1)
    return taken[0], end if end >= 0 else np.iinfo(np.int64).min, taken.step


def _clamped(bound: Sequence[int]) -> slice:
    """Return a Python slice that means the same: both clamp to the axis, from behind where negative."""
    return slice(*bound)


def _put_slice(node: ir.Node, source: ir.Value | None, bounds: dict[int, Any], context: Context) -> None:
    rows = sorted((axis, *bound) for axis, bound in bounds.items())
    axes, starts, ends, steps = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    name = node.outputs[0].name
    context.set_input(node, 0, source)
    for place, (array, what) in enumerate(
        ((starts, "starts"), (ends, "ends"), (axes, "axes"), (steps, "steps")), start=1
    ):
        context.set_input(node, place, context.constant(array, node, name=f"{name}_{what}"))


# ---- others


@rule("concat-concat", "chain", "Concat")
def concat_concat(node: ir.Node, context: Context) -> Edit | None:
    """Concat(Concat(a, b), c) → Concat(a, b, c) along the same axis."""
    axis = _axis(node, context)
    inner = [_inner_concat(value, axis, context) for value in node.inputs]
    if not any(inner):
        return None
    inputs: list[ir.Value | None] = []
    for value, found in zip(node.inputs, inner, strict=True):
        inputs.extend([value] if found is None else found.inputs)
    made = context.node("Concat", inputs, {"axis": context.attribute(node, "axis", 1)}, like=node)[0]
    context.replace(node.outputs[0], made)
    return Edit("made them one")


def _inner_concat(value: ir.Value | None, axis: int | None, context: Context) -> ir.Node | None:
    found = context.producer(value, "Concat")
    if found is None or value is None or not context.single_use(value):
        return None
    return found if axis is not None and _axis(found, context) == axis else None


def _axis(node: ir.Node, context: Context) -> int | None:
    """Return a Concat's axis counted from the front, None when the rank is needed and not known."""
    axis = int(context.attribute(node, "axis", 1))
    shape = context.type_of(node.outputs[0]).shape
    if axis >= 0:
        return axis
    return None if shape is None else axis + len(shape)


_SELF_INVERSE = ("Not", "Neg", "BitwiseNot")
_IDEMPOTENT = ("Relu", "Abs", "Ceil", "Floor", "Round", "Sign")


@rule("self-inverse", "chain", *_SELF_INVERSE)
def self_inverse(node: ir.Node, context: Context) -> Edit | None:
    """Not(Not(x)) → x, and others that undo themselves."""
    first = context.producer(node.inputs[0], node.op_type)
    if first is None or first.inputs[0] is None:
        return None
    context.replace(node.outputs[0], first.inputs[0])
    return Edit("the two cancel")


@rule("idempotent", "chain", *_IDEMPOTENT)
def idempotent(node: ir.Node, context: Context) -> Edit | None:
    """Relu(Relu(x)) → Relu(x), and others that a second time change nothing."""
    first = context.producer(node.inputs[0], node.op_type)
    if first is None:
        return None
    context.replace(node.outputs[0], first.outputs[0])
    return Edit("a second time it changes nothing")


@rule("transposed-operand", "chain", "Gemm")
def transposed_operand(node: ir.Node, context: Context) -> Edit | None:
    """Gemm of a Transpose → Gemm with transA or transB."""
    for place, name in ((0, "transA"), (1, "transB")):
        value = node.inputs[place]
        turned = context.producer(value, "Transpose")
        if turned is None or permutation(turned, context) != [1, 0]:
            continue
        context.set_input(node, place, turned.inputs[0])
        context.set_attribute(node, name, 1 - int(context.attribute(node, name, 0)))
        return Edit(f"took the Transpose as {name}")
    return None


RULES = (
    transpose_transpose,
    transpose_reshape,
    reshape_back,
    reshape_reshape,
    cast_cast,
    slice_slice,
    concat_concat,
    self_inverse,
    idempotent,
    transposed_operand,
)
