"""If with a constant condition, loops of a known number of trips, values that a Loop carries for nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.attributes import to_array
from graphdoc.engine.infer import Facts
from graphdoc.engine.ops.table import TensorType
from graphdoc.surgeon.rules.base import (
    Context,
    Edit,
    Refusal,
    captured,
    counts,
    operator_name,
    rule,
    subgraphs,
    use_count,
    walk,
)

MAX_TRIPS = 64
"""Trips up to which a loop is unrolled on request."""

MAX_COPIES = 4096
"""Nodes that unrolling a loop may make."""


def branch(node: ir.Node, name: str) -> ir.Graph:
    """Return a subgraph by the name of its attribute; reading refuses a node that lacks one."""
    return node.attributes[name].as_graph()


# ---- If


@rule("constant-if", "control", "If")
def constant_if(node: ir.Node, context: Context) -> Edit | None:
    """If with a constant condition → the nodes of the branch taken."""
    condition = context.array(node.inputs[0])
    if condition is None or condition.size != 1:
        return None
    name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    _take(node, name, context)
    return Edit(f"the condition is constant: took {name}")


def _take(node: ir.Node, name: str, context: Context) -> None:
    """Put the nodes of one branch in place of an If."""
    results = move_into(node, branch(node, name), context)
    context.facts.forget(*node.outputs)
    _hand_over(node, results, context)


_RANKS = {"Gemm": 2, "GRU": 3, "LSTM": 3, "RNN": 3}
"""Operators that take a first input of one rank alone, and fail on others."""


@rule("impossible-branch", "control", "If")
def impossible_branch(node: ir.Node, context: Context) -> Edit | None:
    """If, one of whose branches gives a value that an operator after it must fail on → the other branch.

    Both are looked through with the condition and the outputs that they would have. Only nodes of the same
    graph count: they run whenever the If does. A run that takes the other branch then fails as it did before,
    or gives a result where there was none.
    """
    readers = [item for item in node.graph or () if operator_name(item) in _RANKS]
    if not readers or not _ranks_differ(node, context):
        return None
    failing = [name for name in _BRANCHES if _fails(node, name, readers, context)]
    if len(failing) != 1:
        return None
    [name] = {*_BRANCHES} - {*failing}
    _take(node, name, context)
    return Edit(f"nothing could follow {failing[0]}: took {name}")


_BRANCHES = ("then_branch", "else_branch")


def _ranks_differ(node: ir.Node, context: Context) -> bool:
    """Whether an output has different known ranks in the two branches."""
    rows = zip(*(branch(node, name).outputs for name in _BRANCHES), strict=True)
    shapes = [[context.type_of(value).shape for value in row] for row in rows]
    return any(a is not None and b is not None and len(a) != len(b) for a, b in shapes)


def _fails(node: ir.Node, name: str, readers: Sequence[ir.Node], context: Context) -> bool:
    """Whether an operator after an If gets an input of the wrong rank when this branch is taken."""
    facts = Facts(context.model, claims=False)
    condition = node.inputs[0]
    shape = context.type_of(condition).shape
    if condition is not None and shape == ():
        facts.assume(condition, TensorType(np.dtype(bool), (), np.array(name == "then_branch")))
    for output, result in zip(node.outputs, branch(node, name).outputs, strict=True):
        facts.assume(output, facts.of(result))
    shapes = [(item.op_type, facts.of(item.inputs[0]).shape) for item in readers]
    return any(shape is not None and len(shape) != _RANKS[op] for op, shape in shapes)


def move_into(node: ir.Node, graph: ir.Graph, context: Context) -> list[ir.Value]:
    """Move nodes and constants of a subgraph in front of a node; return what the subgraph's outputs were.

    Names that another graph of the model has too become new ones.
    """
    outer = node.graph
    if outer is None:
        raise ValueError(f"'{node.name}' lies in no graph")
    results = list(graph.outputs)
    graph.outputs.clear()
    for old, new in _moved_constants(node, graph, outer, context):
        results = [new if result is old else result for result in results]
    for inner in list(graph):
        graph.remove(inner)
        _rename(inner, context)
        outer.insert_before(node, inner)
        context.touch(inner)
    context.touch(*results)
    return results


def _moved_constants(
    node: ir.Node, graph: ir.Graph, outer: ir.Graph, context: Context
) -> list[tuple[ir.Value, ir.Value]]:
    """Move the constants of a subgraph; return pairs of old and new where they are not the same."""
    pairs: list[tuple[ir.Value, ir.Value]] = []
    for value in list(graph.initializers.values()):
        del graph.initializers[str(value.name)]
        value.name = context.names.moved(str(value.name))
        if isinstance(context.root, ir.Function):
            if value.const_value is None:
                raise ValueError(f"'{value.name}' has no data")
            new = context.constant(to_array(value.const_value), node, name=str(value.name))
            context.replace(value, new)
            pairs.append((value, new))
        else:
            outer.initializers.add(value)
    return pairs


def _rename(node: ir.Node, context: Context) -> None:
    if node.name:
        node.name = context.names.moved_node(node.name)
    for value in node.outputs:
        if value.name:
            value.name = context.names.moved(value.name)
    for graph in subgraphs(node):
        for value in (*graph.inputs, *graph.initializers.values()):
            value.name = context.names.moved(str(value.name))
        for inner in graph:
            _rename(inner, context)


def _hand_over(node: ir.Node, results: Sequence[ir.Value], context: Context) -> None:
    """Let what read a node's outputs read the results instead."""
    for old, new in zip(node.outputs, results, strict=True):
        if use_count(old) or old.is_graph_output():
            context.replace(old, new)
    context.touch(node)


@rule("unused-branch-outputs", "control", "If")
def unused_branch_outputs(node: ir.Node, context: Context) -> Edit | None:
    """Leave out what both branches of an If make and nobody uses."""
    needed = [place for place, value in enumerate(node.outputs) if _used(value, context)]
    if not needed or len(needed) == len(node.outputs):
        return None
    graphs = {name: branch(node, name) for name in ("then_branch", "else_branch")}
    for graph in graphs.values():
        _keep_places(graph.outputs, needed, context)
    _rebuild(node, list(node.inputs), needed, graphs, context)
    return Edit(f"left out {len(node.outputs) - len(needed)} outputs that nobody uses")


def _used(value: ir.Value, context: Context) -> bool:
    return bool(use_count(value) or value.is_graph_output() or context.kept(value))


def _keep_places(values: Any, places: Sequence[int], context: Context) -> None:
    """Keep only some of a graph's inputs or outputs."""
    left = [values[place] for place in places]
    context.touch(*(value for value in values))
    values[:] = left


def _rebuild(
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[int],
    graphs: Mapping[str, ir.Graph],
    context: Context,
) -> None:
    """Put a node with fewer outputs in place of one, around the same subgraphs."""
    for name in graphs:
        node.attributes.pop(name)
    attributes: dict[str, Any] = dict(node.attributes)
    attributes |= {name: ir.AttrGraph(name, graph) for name, graph in graphs.items()}
    made = context.node(node.op_type, inputs, attributes, len(outputs), node.domain, like=node)
    for place, value in zip(outputs, made, strict=True):
        value.type, value.shape = node.outputs[place].type, node.outputs[place].shape
        context.replace(node.outputs[place], value)
    context.touch(node)


# ---- Loop


def trips(node: ir.Node, body: ir.Graph, context: Context) -> int | None:
    """Return how often a Loop runs, None when that is not the same in every run."""
    limit, condition = (context.array(value) if value is not None else None for value in _heads(node))
    start = _heads(node)[1]
    if condition is not None and condition.size == 1 and not condition.reshape(-1)[0]:
        return 0
    if limit is None or limit.size != 1:
        return None
    count = max(0, int(limit.reshape(-1)[0]))
    if count == 0:
        return 0
    if start is not None and condition is None:
        return None
    return count if count == 1 or _goes_on(body, context) else None


def _heads(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the trip count and the condition that a Loop starts with."""
    padded = (*node.inputs, None, None)
    return padded[0], padded[1]


def _goes_on(body: ir.Graph, context: Context) -> bool:
    """Whether the condition that a body gives is true whenever the one it got was."""
    condition = body.outputs[0]
    while (maker := context.producer(condition, "Identity")) is not None and maker.inputs[0] is not None:
        condition = maker.inputs[0]
    if condition is body.inputs[1]:
        return True
    array = context.array(condition)
    return array is not None and array.size == 1 and bool(array.reshape(-1)[0])


@rule("single-trip", "control", "Loop")
def single_trip(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """A Loop that runs never or once → its inputs, or the nodes of its body."""
    body = branch(node, "body")
    count = trips(node, body, context)
    if count is None or count > 1:
        return None
    return unroll(node, body, count, context)


@rule("unroll-loops", "control", "Loop", default=False)
def unroll_loops(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """A Loop with a known number of trips → that many copies of its body."""
    body = branch(node, "body")
    count = trips(node, body, context)
    if count is None:
        return Refusal("how often it runs is not known")
    if count > MAX_TRIPS or count * sum(1 for _ in walk(body)) > MAX_COPIES:
        return Refusal(f"{count} copies of its body are too many")
    return unroll(node, body, count, context)


def unroll(node: ir.Node, body: ir.Graph, count: int, context: Context) -> Edit | Refusal:
    """Put ``count`` copies of a Loop's body in its place."""
    carried = len(body.inputs) - 2
    scans = node.outputs[carried:]
    if count == 0 and any(_used(value, context) for value in scans):
        return Refusal("it never runs, and the type of what it collects is not known")
    state: list[ir.Value | None] = list(node.inputs[2:])
    if None in state:
        return Refusal("a value it starts with is left out")
    if any(value.shape is not None and len(value.shape) for value in body.inputs[:2]):
        return Refusal("its body takes the number of the trip, or the condition, as a tensor with axes")
    collected: list[list[ir.Value]] = [[] for _ in scans]
    for trip in range(count):
        results = _copy_body(node, body, trip, state, context)
        state = list(results[1 : 1 + carried])
        for rows, value in zip(collected, results[1 + carried :], strict=True):
            rows.append(value)
    results = [value for value in state if value is not None]
    results += [
        _stacked(node, rows, context) if _used(value, context) else value
        for rows, value in zip(collected, scans, strict=True)
    ]
    context.facts.forget(*node.outputs)
    for old, new in zip(node.outputs, results, strict=True):
        if old is not new and _used(old, context):
            context.replace(old, new)
    context.touch(node)
    return Edit(f"ran its body {count} times in place" if count else "it never runs")


def _copy_body(
    node: ir.Node, body: ir.Graph, trip: int, state: Sequence[ir.Value | None], context: Context
) -> list[ir.Value]:
    """Insert one copy of a body before the node; return its outputs."""
    copy = body.clone(allow_outer_scope_values=True)
    context.names.count(copy)
    counter = context.constant(np.array(trip, np.int64), node, name=f"{node.outputs[0].name}_trip")
    going_on = context.constant(np.array(True), node, name=f"{node.outputs[0].name}_going_on")
    actual = [counter, going_on, *(value for value in state if value is not None)]
    given = dict(zip(copy.inputs, actual, strict=True))
    for formal, value in given.items():
        for usage in formal.uses():
            usage.node.replace_input_with(usage.idx, value)
    outputs = [given.get(value, value) for value in copy.outputs]
    direct = {index: value for index, value in enumerate(outputs) if copy.outputs[index] in given}
    moved = move_into(node, copy, context)
    context.count_added(sum(map(counts, walk(body))))
    return [direct.get(index, value) for index, value in enumerate(moved)]


def _stacked(node: ir.Node, rows: Sequence[ir.Value], context: Context) -> ir.Value:
    """Return the values of all trips along a new first axis."""
    slices = [_unsqueezed(node, value, context) for value in rows]
    return slices[0] if len(slices) == 1 else context.node("Concat", slices, {"axis": 0}, like=node)[0]


def _unsqueezed(node: ir.Node, value: ir.Value, context: Context) -> ir.Value:
    if context.opset() < 13:
        return context.node("Unsqueeze", [value], {"axes": [0]}, like=node)[0]
    axes = context.constant(np.array([0], np.int64), node, name=f"{value.name}_axes")
    return context.node("Unsqueeze", [value, axes], like=node)[0]


# ---- what a Loop carries


@rule("loop-invariants", "control", "Loop")
def loop_invariants(node: ir.Node, context: Context) -> Edit | None:
    """A value that a Loop hands on unchanged is read from outside."""
    body = branch(node, "body")
    for place, formal in enumerate(body.inputs[2:]):
        start = node.inputs[2 + place]
        if start is None or not _handed_on(formal, body.outputs[1 + place], context):
            continue
        if not use_count(formal) and not _used(node.outputs[place], context):
            continue
        inside = [use for use in formal.uses() if use.node.op_type != "Identity" or not _is_end(use, body)]
        if not inside and not _used(node.outputs[place], context):
            continue
        for usage in inside:
            usage.node.replace_input_with(usage.idx, start)
            context.touch(usage.node)
        if _used(node.outputs[place], context):
            context.replace(node.outputs[place], start)
        return Edit(f"'{formal.name}' is the same in every trip")
    return None


def _is_end(usage: Any, body: ir.Graph) -> bool:
    """Whether a use is the Identity that hands a value on."""
    return any(value is output for value in usage.node.outputs for output in body.outputs)


def _handed_on(formal: ir.Value, result: ir.Value, context: Context) -> bool:
    if result is formal:
        return True
    maker = context.producer(result, "Identity")
    return maker is not None and maker.inputs[0] is formal


@rule("loop-dead-values", "control", "Loop")
def loop_dead_values(node: ir.Node, context: Context) -> Edit | None:
    """Leave out what a Loop carries or collects and nobody uses."""
    body = branch(node, "body")
    carried = len(body.inputs) - 2
    places = _needed_places(node, body, carried, context)
    if len(places) == len(node.outputs) or not places:
        return None
    names = ", ".join(f"'{v.name}'" for place, v in enumerate(node.outputs) if place not in places)
    kept_inputs = [place for place in places if place < carried]
    inputs = [*_heads(node), *(node.inputs[2 + place] for place in kept_inputs)]
    _keep_places(body.outputs, [0, *(1 + place for place in places)], context)
    _keep_places(body.inputs, [0, 1, *(2 + place for place in kept_inputs)], context)
    _rebuild(node, inputs, places, {"body": body}, context)
    for inner in body:
        context.touch(inner)
    return Edit(f"left out {names}")


def _needed_places(node: ir.Node, body: ir.Graph, carried: int, context: Context) -> list[int]:
    """Return the places of outputs that are used, or that used ones depend on in a later trip."""
    needed = {place for place, value in enumerate(node.outputs) if _used(value, context)}
    while True:
        reached = _reached([body.outputs[0], *(body.outputs[1 + place] for place in needed)])
        more = {place for place in range(carried) if body.inputs[2 + place] in reached} - needed
        if not more:
            return sorted(needed)
        needed |= more


def _reached(values: Sequence[ir.Value]) -> set[ir.Value]:
    """Return all values that the given ones are computed from, themselves included."""
    seen, left = set(values), list(values)
    while left:
        maker = left.pop().producer()
        if maker is None:
            continue
        for value in (*maker.inputs, *captured(maker)):
            if value is not None and value not in seen:
                seen.add(value)
                left.append(value)
    return seen


RULES = (
    constant_if,
    single_trip,
    unroll_loops,
    loop_invariants,
    loop_dead_values,
    unused_branch_outputs,
    impossible_branch,
)
