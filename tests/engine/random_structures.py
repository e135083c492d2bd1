"""Recipes of more than one node: bodies of If, Loop and Scan, sequences, and food for a simplifier."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from tests.engine.random_builder import Builder, RejectedError, Value
from tests.engine.random_recipes import RECIPES, recipe
from tests.engine.random_values import (
    BOOL,
    F32,
    FLOATS,
    I64,
    INTEGERS,
    TEXT,
    element_type,
    elements,
    from_array,
    info,
)

# ---- bodies -------------------------------------------------------------------------------------------


def _body(g: Builder, name: str, outer: Sequence[Value]) -> Builder:
    g.made += 1
    return Builder(g.rng, g.opset, f"{g.prefix}{g.made}{name}_", outer, inputs_allowed=False)


def grow(g: Builder, count: int, *, inner: bool) -> None:
    """Add nodes by recipes that hold in this opset until there are ``count``, or nothing fits."""
    fitting = [r for r in RECIPES if r.first <= g.opset <= r.last and (r.inner or not inner)]
    wanted = len(g.nodes) + count
    for _ in range(4 * count):
        if len(g.nodes) >= wanted:
            return
        chosen = g.choose(fitting)
        try:
            chosen.build(g, chosen.op)
        except RejectedError:
            continue


def _graph(
    body: Builder, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    weights = [from_array(a, n) for n, a in body.initializers.items()]
    return helper.make_graph(body.nodes, f"body_{body.prefix}", inputs, outputs, initializer=weights)


def _output(body: Builder, dtype: np.dtype, shape: tuple[int, ...] | None = None) -> Value:
    """Return a value that the body makes, of a dtype and perhaps a shape; cast and shaped where needed."""
    names = {n for node in body.nodes for n in node.output}
    own = [v for v in body.pool if isinstance(v.array, np.ndarray) and v.name in names and v.dtype != TEXT]
    found = [v for v in own if v.dtype == dtype and shape in (None, v.shape)]
    if found:
        return body.choose(found)  # type: ignore[no-any-return]
    if shape is None and own and dtype != TEXT:
        return body.add("Cast", [body.choose(own)], to=element_type(dtype))
    return body.add("Identity", [body.fresh(dtype, shape or ())])


@recipe("If", first=11)
def branch(g: Builder, op: str) -> None:
    """Two branches with outputs of the same dtypes, not always shapes; the condition may be constant."""
    condition = g.find(lambda v: v.dtype == BOOL and v.rank == 0) if g.chance(0.3) else None
    condition = condition or g.source(np.array(g.chance(0.5)), constant=g.chance(0.4))
    outer = g.values()
    dtypes = [g.choose([F32, F32, I64, FLOATS[1], BOOL]) for _ in range(g.number(1, 2))]
    branches = {}
    for name in ("then_branch", "else_branch"):
        body = _body(g, name[0], outer)
        grow(body, g.number(1, 3), inner=False)
        found = [body.add("Identity", [_output(body, dtype)]) for dtype in dtypes]
        loose = [info(v.name, v.array, [None] * v.rank) for v in found]
        branches[name] = _graph(
            body,
            [],
            [helper.make_tensor_value_info(i.name, i.type.tensor_type.elem_type, None) for i in loose],
        )
    g.add_many(op, [condition], len(dtypes), **branches)


@recipe("Loop", first=11)
def loop(g: Builder, op: str) -> None:
    """A loop that runs 0–3 times; one value carried with constant shape, one collected."""
    start = g.find(lambda v: v.dtype == F32 and 0 not in v.shape) or g.fresh(F32, g.shape(0, 2, empty=0))
    body = _body(g, "l", g.values())
    turn, go, carried = (
        Value(body.name(), np.array(0)),
        Value(body.name(), np.array(True)),
        Value(body.name(), start.array),
    )
    body.pool += [turn, go, carried]
    grow(body, g.number(1, 3), inner=True)
    step = body.add("Add", [carried, body.fresh(F32, (1,) * start.rank, tame=True)])
    keep = body.add("Identity", [go])
    collected = body.add("Identity", [_output(body, F32)])
    inputs = [info(v.name, v.array) for v in (turn, go)] + [info(carried.name, carried.array)]
    outputs = [info(v.name, v.array) for v in (keep, step)] + [info(collected.name, collected.array)]
    trips = g.parameter(np.array(g.number(0, 3), dtype=I64))
    condition = g.source(np.array(g.chance(0.9))) if g.chance(0.6) else None
    g.add_many(op, [trips, condition, start], 2, body=_graph(body, inputs, outputs))


@recipe("Scan", first=11)
def scan(g: Builder, op: str) -> None:
    """A scan over the first axis of one value, with one state."""
    x = g.find(lambda v: v.dtype == F32 and v.rank >= 1 and 0 not in v.shape) or g.fresh(
        F32, (3, 2), tame=True
    )
    state = g.fresh(F32, x.shape[1:], tame=True)
    body = _body(g, "s", g.values())
    inner = [Value(body.name(), state.array), Value(body.name(), x.array[0])]
    body.pool += inner
    grow(body, g.number(1, 2), inner=True)
    outputs = [body.add(g.choose(["Add", "Mul", "Sub"]), inner), body.add("Identity", [_output(body, F32)])]
    declared = [[info(v.name, v.array) for v in vs] for vs in (inner, outputs)]
    more = {n: [g.number(0, 1)] for n in ("scan_input_directions", "scan_output_directions") if g.chance(0.3)}
    g.add_many(op, [state, x], 2, num_scan_inputs=1, body=_graph(body, *declared), **more)


# ---- sequences and optionals --------------------------------------------------------------------------


@recipe("SequenceConstruct", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength", first=11)
def sequence(g: Builder, op: str) -> None:
    x = g.pick("Identity", within=(*FLOATS[:2], *INTEGERS, BOOL, TEXT))
    items = [x, *(g.like(x, g.shape(x.rank, x.rank)) for _ in range(g.number(0, 2)))]
    made = g.add("SequenceConstruct", items)
    count = len(items)
    if op == "SequenceInsert":
        at = g.parameter(np.array(g.number(-count, count), dtype=I64)) if g.chance(0.7) else None
        made = g.add(op, [made, x, at])
        count += 1
    if op == "SequenceErase":
        made = g.add(
            op,
            [made, g.parameter(np.array(g.number(-count, count - 1), dtype=I64)) if g.chance(0.7) else None],
        )
        count -= 1
    g.add("SequenceLength", [made])
    if count:
        g.add("SequenceAt", [made, g.parameter(np.array(g.number(-count, count - 1), dtype=np.int32))])


@recipe("SequenceEmpty", first=11)
def empty_sequence(g: Builder, op: str) -> None:
    x = g.pick("Identity", within=(F32, I64))
    made = g.add(op, [], dtype=element_type(x.dtype))
    g.hidden.add(made.name)
    g.add("SequenceAt", [g.add("SequenceInsert", [made, x]), g.parameter(np.array(0, dtype=I64))])


@recipe("SplitToSequence", "ConcatFromSequence", first=11)
def split_to_sequence(g: Builder, op: str) -> None:
    x = g.pick("SplitToSequence", rank=(1, 3), test=lambda v: 0 not in v.shape)
    axis = g.axis(x.rank)
    sizes = g.parameter(np.array(g.number(1, x.shape[axis]), dtype=I64)) if g.chance(0.6) else None
    parts = g.add("SplitToSequence", [x, sizes], axis=axis, keepdims=1 if sizes or g.chance(0.5) else 0)
    rank = min(a.ndim for a in parts.array)
    if rank:
        same = {a.shape for a in parts.array}
        new = len(same) == 1 and g.chance(0.4)
        g.add(
            "ConcatFromSequence",
            [parts],
            axis=g.choose([0, -1]) if new or len(same) == 1 else axis,
            new_axis=int(new),
        )


@recipe("Optional", "OptionalGetElement", "OptionalHasElement", first=15)
def optional(g: Builder, op: str) -> None:
    x = g.pick("Identity", within=(F32, I64))
    made = g.add("Optional", [x])
    g.hidden.add(made.name)
    g.add("OptionalHasElement", [made])
    g.add("OptionalGetElement", [made])


# ---- what a simplifier looks for ----------------------------------------------------------------------


@recipe("Reshape", "Reshape", first=5)
def shape_arithmetic(g: Builder, op: str) -> None:
    """Shape → Gather → (Mul) → Concat → Reshape, the way exporters flatten."""
    x = g.pick("Reshape", rank=(2, 4), within=(*FLOATS, *INTEGERS), test=lambda v: 0 not in v.shape)
    shape = g.add("Shape", [x])
    axis = g.number(0, x.rank - 1)
    dim = g.add("Gather", [shape, g.parameter(np.array(axis, dtype=I64))], axis=0)
    if g.chance(0.3) and x.rank > 2:
        other = g.add("Gather", [shape, g.parameter(np.array((axis + 1) % x.rank, dtype=I64))], axis=0)
        dim = g.add("Mul", [dim, other])
    one = g.add("Unsqueeze", [dim, g.ints([0])]) if g.opset >= 13 else g.add("Unsqueeze", [dim], axes=[0])
    parts = [one, g.ints([-1])]
    g.rng.shuffle(parts)
    g.add("Reshape", [x, g.add("Concat", parts, axis=0)])


@recipe("Expand", "Slice", first=10)
def shape_driven(g: Builder, op: str) -> None:
    """A constant expanded to another value's shape; a slice up to another value's size."""
    x = g.pick("Identity", rank=(1, 4), within=(*FLOATS, *INTEGERS))
    shape = g.add("Shape", [x])
    if op == "Expand":
        g.add(op, [g.fresh(x.dtype, (1,) * g.number(0, x.rank)), shape])
    else:
        end = g.add("Slice", [shape, g.ints([0]), g.ints([1])])
        g.add(op, [x, g.ints([0]), end, g.ints([0])])


_ONES = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}


@recipe(*_ONES, first=7, inner=True)
def neutral(g: Builder, op: str) -> None:
    """x + 0, x − 0, x · 1, x ÷ 1, x¹: a constant that changes nothing but perhaps the shape."""
    x = g.pick(op)
    shape = g.choose([(), (1,), (1,) * x.rank, x.shape, (1,) * (x.rank + 1)])
    other = g.source(np.full(shape, _ONES[op], dtype=x.dtype), constant=True)
    g.add(op, [other, x] if op in ("Add", "Mul") and g.chance(0.3) else [x, other])


@recipe("Transpose", "Reshape", "Slice", "Pad", "Cast", "Tile", "Expand", first=13)
def no_op(g: Builder, op: str) -> None:
    """An operator that gives back its input, or nearly so."""
    x = g.pick(op, rank=(1, 4), within=(*FLOATS, *INTEGERS))
    if op == "Transpose":
        g.add(op, [x], perm=list(range(x.rank)))
    elif op == "Reshape" and 0 not in x.shape:
        g.add(op, [x, g.ints(x.shape)])
    elif op == "Slice":
        g.add(op, [x, g.ints([0]), g.ints([2**63 - 1]), g.ints([g.axis(x.rank)])])
    elif op == "Pad":
        g.add(op, [x, g.ints([0] * 2 * x.rank)])
    elif op == "Tile":
        g.add(op, [x, g.ints([1] * x.rank)])
    elif op == "Expand":
        g.add(op, [x, g.ints(g.choose([x.shape, (1,) * x.rank]))])
    elif op == "Cast":
        g.add(op, [x], to=element_type(x.dtype))


@recipe(
    "Transpose",
    "Cast",
    "Reshape",
    "Concat",
    "Slice",
    "Squeeze",
    "Identity",
    "Relu",
    "Clip",
    first=13,
    inner=True,
)
def chain(g: Builder, op: str) -> None:
    """Two of a kind in a row, so that they can be merged or cancel out."""
    x = g.pick(op, rank=(1, 4), within=(*FLOATS, *INTEGERS), test=lambda v: 0 not in v.shape)
    for _ in range(2):
        x = _link(g, op, x)


def _link(g: Builder, op: str, x: Value) -> Value:
    if op == "Transpose":
        return g.add(op, [x], perm=g.rng.sample(range(x.rank), x.rank))
    if op == "Cast":
        return g.add(op, [x], to=element_type(F32 if x.dtype.kind in "iu" else FLOATS[1]))
    if op == "Reshape":
        return g.add(op, [x, g.ints(g.choose([[-1], [1, -1], [elements(x.shape)], [0, -1]]))])
    if op == "Concat":
        return g.add(op, [x, x], axis=0)
    if op == "Slice":
        return g.add(op, [x, g.ints([g.number(0, 1)]), g.ints([g.number(2, 9)]), g.ints([0])])
    if op == "Squeeze":
        up = g.add("Unsqueeze", [x, g.ints([0])])
        return g.add(op, [up, g.ints([0])])
    if op == "Clip":
        low, high = (g.parameter(np.array(n).astype(x.dtype)) for n in (0, g.number(1, 6)))
        return g.add(op, [x, low, high])
    return g.add(op, [x])


@recipe("Add", "Mul", "Neg", "Exp", "Transpose", "Shape", first=7, inner=True)
def duplicated(g: Builder, op: str) -> None:
    """The same node twice, and a third that reads both."""
    x = g.pick(op, within=(F32,), rank=(1, 3))
    inputs = [x, x] if op in ("Add", "Mul") else [x]
    twins = [g.add(op, inputs) for _ in range(2)]
    g.add("Sub" if g.chance(0.5) else "Add", twins)


@recipe("Add", "Mul", "Concat", "Sqrt", "Transpose", "Cast", "Where", first=9)
def constant_expression(g: Builder, op: str) -> None:
    """A subexpression of constants alone, then an operator that mixes it with something else."""
    x = g.pick("Add", within=FLOATS[:2], rank=(0, 3))
    a, b = (g.source(g.content(x.dtype, g.broadcastable(x.shape)), constant=True) for _ in range(2))
    if op == "Concat":
        made = g.add("Concat", [g.source(g.content(x.dtype, (n,)), constant=True) for n in (1, 2)], axis=0)
        g.add("Add", [made, g.add("ReduceMax", [x], keepdims=0)])
        return
    made = g.add("Mul", [a, b])
    if op in ("Sqrt", "Transpose"):
        made = g.add(op, [g.add("Abs", [made])])
    if op == "Where":
        made = g.add(op, [g.source(np.array(g.chance(0.5)), constant=True), made, made])
    if op == "Cast":
        made = g.add(op, [made], to=element_type(x.dtype))
    if op != "Transpose" or made.rank < 2:
        g.add("Add" if op != "Mul" else op, [x, made])


@recipe("Conv", "Gemm", "MatMul", first=9)
def linear_chain(g: Builder, op: str) -> None:
    """A linear layer with what folds into it: batch norm, a bias, a scale."""
    if op == "Conv":
        x = g.pick(
            op, within=(F32,), rank=(4, 4), test=lambda v: 0 not in v.shape, shape=lambda: (1, 2, 4, 4)
        )
        w = g.source(g.content(F32, (2, x.shape[1], 1, 1), tame=True), constant=True)
        y = g.add(op, [x, w])
        if g.chance(0.5):
            scale, bias, mean = (g.source(g.content(F32, (2,), tame=True), constant=True) for _ in range(3))
            g.add("BatchNormalization", [y, scale, bias, mean, g.source(np.ones(2, F32), constant=True)])
            return
        bias = g.source(g.content(F32, (2, 1, 1), tame=True), constant=True)
        g.add("Relu", [g.add("Add", [y, bias])])
        return
    x = g.pick(op, within=(F32,), rank=(2, 2), test=lambda v: 0 not in v.shape)
    w = g.source(g.content(F32, (x.shape[1], 3), tame=True), constant=True)
    bias = g.source(g.content(F32, (3,), tame=True), constant=True)
    y = g.add(op, [x, w, bias]) if op == "Gemm" else g.add("Add", [g.add(op, [x, w]), bias])
    g.add("Mul", [y, g.source(np.array(2, F32), constant=True)])
