"""Nodes that give back their input: removed.

"Gives back" means every bit, for every input. Adding +0.0 is no identity, since it turns −0.0 into +0.0;
adding −0.0 and subtracting +0.0 are. Multiplying by 0 is none either: NaN and infinities stay NaN.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.surgeon.rules.base import Context, Edit, FunctionRule, Refusal, operator_name, rule, use_count
from graphdoc.surgeon.rules.fold import inference_dropout

Outcome = Edit | Refusal | None
Test = Callable[[ir.Node, Context], int | Refusal | None]
"""Returns the place of the input that the node gives back, or why it is no identity."""

UNBOUNDED = 2**31 - 1
"""An end from which on a slice reaches to the end of any axis."""

_RULES: list[FunctionRule] = []


def _identity(name: str, *ops: str) -> Callable[[Test], Test]:
    """Make a test a rule that removes nodes which give back one of their inputs."""

    def register(test: Test) -> Test:
        def apply(node: ir.Node, context: Context) -> Outcome:
            place = test(node, context)
            if place is None or isinstance(place, Refusal):
                return place
            return bypass(node, place, context)

        _RULES.append(FunctionRule(name, "identity", ops, apply))
        return test

    return register


def bypass(node: ir.Node, place: int, context: Context) -> Outcome:
    """Let the readers of a node's first output read one of its inputs."""
    source = node.inputs[place]
    if source is None or _needed_besides(node):
        return None
    if node.op_type == "Identity" and not context.takes_name(node.outputs[0], source):
        return None  # an input or constant that is an output too needs the node
    context.replace(node.outputs[0], source)
    return Edit(f"{node.op_type} gives back its input")


def _needed_besides(node: ir.Node) -> bool:
    return any(use_count(value) or value.is_graph_output() for value in node.outputs[1:])


def known_equal(a: tuple[Any, ...] | None, b: tuple[Any, ...] | None) -> bool:
    """Whether two shapes are known to be the same in every run."""
    return a is not None and a == b and None not in a


def same_type(node: ir.Node, place: int, context: Context) -> bool:
    """Whether an input has the shape of the first output in every run (a scalar operand cannot widen it)."""
    source, result = context.type_of(node.inputs[place]), context.type_of(node.outputs[0])
    return known_equal(source.shape, result.shape)


def constant_input(node: ir.Node, place: int, context: Context) -> np.ndarray[Any, Any] | None:
    """Return a constant input's content; None when it is left out or not constant."""
    return context.array(node.inputs[place]) if place < len(node.inputs) else None


def present(node: ir.Node, place: int) -> bool:
    """Whether the node has an input at that place."""
    return place < len(node.inputs) and node.inputs[place] is not None


# ---- arithmetic


def _filled_with(array: np.ndarray[Any, Any] | None, number: float) -> bool:
    """Whether every element is the number; its sign counts for zero."""
    if array is None or array.dtype == object or not array.size:
        return False
    if not bool((array == number).all()):
        return False
    return array.dtype.kind in "iub" or bool((np.signbit(array) == np.signbit(number)).all())


def _small_constant(node: ir.Node, place: int, context: Context) -> np.ndarray[Any, Any] | None:
    """Return a constant operand, unless it is so large that reading it would cost more than it may save."""
    known = context.type_of(node.inputs[place])
    if known.shape is None or not all(isinstance(d, int) for d in known.shape):
        return None
    if prod(d for d in known.shape if isinstance(d, int)) > 2**16:
        return None
    return context.array(node.inputs[place])


def _neutral(node: ir.Node, place: int, number: float, context: Context) -> bool:
    """Whether the operand beside ``place`` is the neutral element and does not widen the result."""
    return _filled_with(_small_constant(node, 1 - place, context), number) and same_type(node, place, context)


@_identity("add-zero", "Add")
def _add_zero(node: ir.Node, context: Context) -> int | Refusal | None:
    """x + 0 of integers, x + (−0.0) of floats."""
    for place in (0, 1):
        if _neutral(node, place, -0.0, context):
            return place
        if _neutral(node, place, 0.0, context):
            kind = context.type_of(node.outputs[0]).dtype
            if kind is not None and np.dtype(kind).kind in "iu":
                return place
            if _sum_of_products(node.inputs[place], context) or _only_summed(node.outputs[0], context):
                return place
            return Refusal("adding +0.0 turns -0.0 into 0.0")
    return None


_SUMS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")


def _sum_of_products(value: ir.Value | None, context: Context) -> bool:
    """Whether a value is a sum of products, moved about perhaps.

    The sign of such a sum that is zero is not specified: it depends on how a runtime adds up. What adding
    +0.0 would make of it is one of the results that were possible before.
    """
    maker = context.producer(value, *_SUMS, *_MOVES)
    for _ in range(4):
        if maker is None or maker.op_type in _SUMS:
            break
        maker = context.producer(maker.inputs[0], *_SUMS, *_MOVES)
    return maker is not None and maker.op_type in _SUMS


_CARRIES = frozenset({*_MOVES, "Slice", "Concat"})
_FURTHEST = 64
"""Nodes looked at on the way to the sums that a value goes into."""


def _only_summed(value: ir.Value, context: Context) -> bool:
    """Whether a value goes into sums of products alone: the sign of its zeros decides only that of theirs."""
    left, seen = [value], {value}
    while left:
        found = left.pop()
        if found.is_graph_output() or not use_count(found) or len(seen) > _FURTHEST:
            return False
        for usage in found.uses():
            op = operator_name(usage.node)
            if op in _SUMS or op in ("Shape", "Size"):
                continue
            if op not in _CARRIES:
                return False
            left += [made for made in usage.node.outputs if made not in seen]
            seen.update(usage.node.outputs)
    return True


@_identity("subtract-zero", "Sub")
def _subtract_zero(node: ir.Node, context: Context) -> int | Refusal | None:
    """x − 0; of floats, x − (+0.0)."""
    if _neutral(node, 0, 0.0, context):
        return 0
    return Refusal("subtracting -0.0 turns -0.0 into 0.0") if _neutral(node, 0, -0.0, context) else None


@_identity("multiply-one", "Mul")
def _multiply_one(node: ir.Node, context: Context) -> int | None:
    """x · 1."""
    return next((place for place in (0, 1) if _neutral(node, place, 1.0, context)), None)


@_identity("divide-one", "Div", "Pow")
def _divide_one(node: ir.Node, context: Context) -> int | None:
    """x ÷ 1 and x¹."""
    return 0 if _neutral(node, 0, 1.0, context) else None


@_identity("logical-neutral", "And", "Or")
def _logical_neutral(node: ir.Node, context: Context) -> int | None:
    """x and true, x or false."""
    number = 1.0 if node.op_type == "And" else 0.0
    return next((place for place in (0, 1) if _neutral(node, place, number, context)), None)


@_identity("constant-condition", "Where")
def _constant_condition(node: ir.Node, context: Context) -> int | None:
    """Where with a condition that is true everywhere, or nowhere."""
    condition = _small_constant(node, 0, context)
    if condition is None or not condition.size:
        return None
    place = 1 if condition.all() else 2 if not condition.any() else None
    return place if place is not None and same_type(node, place, context) else None


@_identity("unbounded-clip", "Clip")
def _unbounded_clip(node: ir.Node, context: Context) -> int | None:
    """Clip without a bound."""
    bounds = present(node, 1) or present(node, 2) or "min" in node.attributes or "max" in node.attributes
    return None if bounds else 0


# ---- layout


@_identity("noop-reshape", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile")
def _noop_reshape(node: ir.Node, context: Context) -> int | None:
    """Operators that keep every element in order, when the shape stays the same."""
    if same_type(node, 0, context):
        return 0
    return 0 if node.op_type == "Reshape" and _copies_all_but_one(node, context) else None


def _copies_all_but_one(node: ir.Node, context: Context) -> bool:
    """Whether a Reshape keeps all sizes but one, which is −1 and so must be what it was."""
    target = constant_input(node, 1, context)
    shape = context.type_of(node.inputs[0]).shape
    if target is None or shape is None or len(shape) != target.size:
        return False
    zero_copies = not context.attribute(node, "allowzero", 0)
    differ = [
        entry
        for entry, size in zip(target.tolist(), shape, strict=True)
        if not ((entry == 0 and zero_copies) or (entry > 0 and entry == size))
    ]
    return differ in ([], [-1])


@_identity("noop-transpose", "Transpose")
def _noop_transpose(node: ir.Node, context: Context) -> int | None:
    """Transpose that leaves the axes where they are."""
    perm = context.attribute(node, "perm")
    if perm is None:
        shape = context.type_of(node.inputs[0]).shape
        return 0 if shape is not None and len(shape) < 2 else None
    return 0 if list(perm) == list(range(len(perm))) else None


@_identity("noop-cast", "Cast", "CastLike")
def _noop_cast(node: ir.Node, context: Context) -> int | None:
    """Cast to the type that the input has."""
    source, result = context.type_of(node.inputs[0]).dtype, context.type_of(node.outputs[0]).dtype
    return 0 if source is not None and source == result else None


@_identity("noop-slice", "Slice")
def _noop_slice(node: ir.Node, context: Context) -> int | None:
    """Slice that takes everything, in order."""
    starts, ends, steps = slice_bounds(node, context)
    if steps is None or any(step < 1 for step in steps):
        return None
    if same_type(node, 0, context):
        return 0
    if starts is None or ends is None:
        return None
    whole = all(a == 0 and b >= UNBOUNDED for a, b in zip(starts, ends, strict=True))
    return 0 if whole and all(step == 1 for step in steps) else None


def slice_bounds(
    node: ir.Node, context: Context
) -> tuple[list[int] | None, list[int] | None, list[int] | None]:
    """Return starts, ends and steps of a Slice; None for what is not constant. Steps left out are 1."""
    if context.opset() < 10:
        starts, ends = context.attribute(node, "starts"), context.attribute(node, "ends")
        return list(starts), list(ends), [1] * len(starts)
    found = [constant_input(node, place, context) for place in (1, 2, 4)]
    lists = [None if array is None else [int(n) for n in array.reshape(-1)] for array in found]
    starts, ends, steps = lists
    if not present(node, 4):
        steps = [1]
        if starts is not None:
            steps = [1] * len(starts)
    return starts, ends, steps


@_identity("noop-pad", "Pad")
def _noop_pad(node: ir.Node, context: Context) -> int | None:
    """Pad by nothing."""
    pads = context.attribute(node, "pads", context.attribute(node, "paddings"))
    if context.opset() >= 11:
        array = constant_input(node, 1, context)
        pads = None if array is None else array.tolist()
    return 0 if pads is not None and not any(pads) else None


_EXACT_AT_ONE = frozenset({"half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"})


@_identity("noop-resize", "Resize", "Upsample")
def _noop_resize(node: ir.Node, context: Context) -> int | None:
    """Resize by a factor of one, in modes that then hit every pixel."""
    if context.attribute(node, "mode", "nearest") not in ("nearest", "linear"):
        return None
    if context.attribute(node, "coordinate_transformation_mode", "half_pixel") not in _EXACT_AT_ONE:
        return None
    scales = context.attribute(node, "scales")
    if scales is None:
        array = constant_input(node, 1 if _early_resize(node, context) else 2, context)
        scales = None if array is None or not array.size else array.tolist()
    if scales is not None:
        return 0 if all(scale == 1 for scale in scales) else None
    return 0 if present(node, 3) and same_type(node, 0, context) else None


def _early_resize(node: ir.Node, context: Context) -> bool:
    return node.op_type == "Upsample" or context.opset() < 11


@_identity("single-input", "Concat", "Sum", "Max", "Min", "Mean", "Split")
def _single_input(node: ir.Node, context: Context) -> int | None:
    """Operators on several inputs (or into several outputs) that have but one."""
    if node.op_type == "Split":
        return 0 if len(node.outputs) == 1 and same_type(node, 0, context) else None
    return 0 if len(node.inputs) == 1 else None


@_identity("noop-reduce", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
def _noop_reduce(node: ir.Node, context: Context) -> int | None:
    """Reductions over axes of size one that stay."""
    if not context.attribute(node, "keepdims", 1):
        return None
    shape = context.type_of(node.inputs[0]).shape
    return 0 if shape is not None and _reduces_ones(node, shape, context) else None


def _reduces_ones(node: ir.Node, shape: tuple[Any, ...], context: Context) -> bool:
    axes = context.attribute(node, "axes")
    if axes is None and present(node, 1):
        array = constant_input(node, 1, context)
        if array is None:
            return False
        axes = array.tolist()
    if axes is None or not len(axes):
        axes = () if context.attribute(node, "noop_with_empty_axes", 0) else range(len(shape))
    return all(shape[axis] == 1 for axis in axes)


@_identity("noop-pool", "MaxPool", "AveragePool")
def _noop_pool(node: ir.Node, context: Context) -> int | None:
    """Pooling over single elements."""
    kernel = context.attribute(node, "kernel_shape", ())
    moves = [*context.attribute(node, "strides", ()), *kernel]
    if any(step != 1 for step in moves) or any(context.attribute(node, "pads", ())):
        return None
    return 0


# ---- copies


@_identity("identity", "Identity")
def _copy(node: ir.Node, context: Context) -> int:
    """Identity; it stays where an input or a constant is an output of the graph."""
    return 0


@_identity("inference-dropout", "Dropout")
def _dropout(node: ir.Node, context: Context) -> int | Refusal | None:
    """Dropout outside training, if nobody wants its mask."""
    if not inference_dropout(node, context):
        return Refusal("it may be in training mode")
    return Refusal("its mask is used") if _needed_besides(node) else 0


@rule("empty-concat", "identity", "Concat")
def empty_concat(node: ir.Node, context: Context) -> Edit | None:
    """Leave out inputs of a Concat that are empty along its axis."""
    axis = context.attribute(node, "axis", 1)
    shapes = [context.type_of(value).shape for value in node.inputs]
    full = [
        value
        for value, shape in zip(node.inputs, shapes, strict=True)
        if shape is None or not -len(shape) <= axis < len(shape) or shape[axis] != 0
    ]
    if not full or len(full) == len(node.inputs):
        return None
    made = context.node("Concat", full, {"axis": axis}, like=node)[0]
    context.replace(node.outputs[0], made)
    return Edit(f"left out {len(node.inputs) - len(full)} empty inputs")


_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Inputs with the state that a recurrent operator starts from; left out, it is zero."""


@rule("zero-state", "identity", *_STATES)
def zero_state(node: ir.Node, context: Context) -> Edit | None:
    """Leave out an initial state of zeros, which is what a recurrent operator starts from anyway."""
    places = [place for place in _STATES[node.op_type] if _is_zero(node, place, context)]
    for place in places:
        context.set_input(node, place, None)
    return Edit("it starts from zeros anyway") if places else None


_REARRANGE = ("Expand", "Tile", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Slice", "Gather", "Transpose")


def _is_zero(node: ir.Node, place: int, context: Context) -> bool:
    """Whether an input is +0.0 throughout, whatever its size."""
    if not present(node, place):
        return False
    value = node.inputs[place]
    while (maker := context.producer(value, *_REARRANGE)) is not None:
        value = maker.inputs[0]
    filled = context.producer(value, "ConstantOfShape")
    if filled is not None:
        fill = context.attribute(filled, "value")
        return fill is None or _filled_with(np.asarray(fill), 0.0)
    return value is not None and _filled_with(context.array(value), 0.0)


RULES = (*_RULES, empty_concat, zero_state)
