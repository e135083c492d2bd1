"""A run without the arithmetic: does the model accept inputs of these sizes?

Whatever follows from shapes and small integers is computed with the operator table; of everything else
only dtype and shape are known, from ONNX's own inference. That costs some 50 µs a node, whatever the size
of the tensors, and finds what real runs stumble over: sizes that do not meet, reshapes that do not come
out even, windows larger than the signal, positions past the end of their table.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.compare.inputs_nodes import (
    DEFAULT_DOMAIN,
    Content,
    MisfitError,
    Prepared,
    constant_result,
    declared,
    known,
    operator,
    prepare,
    resolved,
    shape_of,
    tensor_type,
    type_of,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A node that would refuse its inputs; index counts the nodes visited before it."""

    index: int
    node: str
    text: str


@dataclass(frozen=True, slots=True)
class Trial:
    """What one dry run found. Trials order by how far they come: the fewest problems, the latest first."""

    problems: tuple[Problem, ...]
    values: Mapping[ir.Value, Content] = field(default_factory=dict)

    @property
    def score(self) -> tuple[int, int]:
        """Smaller is better."""
        return (len(self.problems), -self.problems[0].index if self.problems else 0)


class DryRun:
    """A model made ready for any number of dry runs.

    visited: nodes looked at so far, over all runs; a measure of the time spent that is the same everywhere.
    """

    def __init__(self, model: ir.Model) -> None:
        self.visited = 0
        self._model = model
        self._prepared: dict[ir.Node, Prepared] = {}
        self._constants: dict[ir.Value, Content] = {}
        self._problems: list[Problem] = []
        self._start = 0
        self._sure = True

    def weight_sizes(self) -> tuple[int, ...]:
        """Return up to 48 sizes of the main graph's weights, the most frequent first."""
        values = self._model.graph.initializers.values()
        shapes = (value.const_value.shape for value in values if value.const_value is not None)
        counts = Counter(size for shape in shapes for size in shape if isinstance(size, int) and size > 1)
        return tuple(size for size, _ in counts.most_common(48))

    def run(self, feeds: Mapping[str, Content]) -> Trial:
        """Return the problems that inputs of this content or type meet.

        Of inputs not named is known what the model declares: dtype, rank, fixed sizes.
        """
        self._problems = []
        frame: dict[ir.Value, Content] = {
            v: feeds.get(str(v.name), declared(v)) for v in self._model.graph.inputs if not v.is_initializer()
        }
        self._start = self.visited
        for node in self._graph_nodes(self._model.graph, frame):
            self._visit(node, frame, self._model.opset_imports, {})
        self._check_outputs(feeds, frame)
        return Trial(tuple(self._problems), frame)

    def constants(self) -> dict[ir.Value, Content]:
        """Return what follows from constants alone: less than ``run({})`` finds, and quicker."""
        frame: dict[ir.Value, Content] = {}
        self._start = self.visited
        for node in self._graph_nodes(self._model.graph, frame):
            if all(value is None or value in frame for value in node.inputs):
                self._visit(node, frame, self._model.opset_imports, {})
        return frame

    def _graph_nodes(
        self, graph: ir.Graph | ir.Function, frame: dict[ir.Value, Content]
    ) -> Iterable[ir.Node]:
        for value in getattr(graph, "initializers", {}).values():
            frame.setdefault(value, self._constant(value, value.const_value))
        return graph

    def _constant(self, value: ir.Value, tensor: Any) -> Content:
        if value not in self._constants:
            self._constants[value] = known(tensor)
        return self._constants[value]

    def _check_outputs(self, feeds: Mapping[str, Content], frame: Mapping[ir.Value, Content]) -> None:
        """Report outputs without elements, unless an input has none either: nothing could be compared."""
        if any(0 in (shape_of(content) or ()) for content in feeds.values()):
            return
        for value in self._model.graph.outputs:
            if 0 in (shape_of(frame.get(value)) or ()):
                self._problems.append(
                    Problem(self.visited - self._start, str(value.name), "the output would be empty")
                )

    def _visit(
        self,
        node: ir.Node,
        frame: dict[ir.Value, Content],
        opsets: Mapping[str, int],
        arguments: Mapping[str, ir.Attr],
    ) -> None:
        """Compute a node's outputs; where its inputs do not fit, note it and go on with unknown values."""
        self.visited += 1
        inputs = [None if v is None else frame.get(v) for v in node.inputs]
        try:
            results = self._node(node, inputs, frame, opsets, arguments)
        except MisfitError as misfit:
            if self._sure:
                name = node.name or next((str(v.name) for v in node.outputs), "")
                self._problems.append(
                    Problem(self.visited - self._start, f"{node.op_type} '{name}'", str(misfit))
                )
            results = []
        for position, value in enumerate(node.outputs):
            frame[value] = results[position] if position < len(results) else None

    def _node(
        self,
        node: ir.Node,
        inputs: list[Content],
        frame: dict[ir.Value, Content],
        opsets: Mapping[str, int],
        arguments: Mapping[str, ir.Attr],
    ) -> Sequence[Content]:
        function = self._model.functions.get(node.op_identifier())
        if function is not None:
            return self._function(function, node, inputs, frame, arguments)
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAIN:
            return [self._constant_node(node, opsets, arguments)]
        prepared = self._prepare(node, opsets, arguments)
        control = _CONTROL.get(node.op_type) if node.domain in DEFAULT_DOMAIN else None
        if control is not None:
            return control(self, prepared, inputs, Scope(frame, opsets, arguments))
        return operator(prepared, inputs)

    def _constant_node(
        self, node: ir.Node, opsets: Mapping[str, int], arguments: Mapping[str, ir.Attr]
    ) -> Content:
        value = node.outputs[0]
        if value not in self._constants:
            tensor = node.attributes.get("value")
            if tensor is not None and tensor.type == ir.AttributeType.TENSOR:
                self._constants[value] = known(tensor.value)
            else:
                self._constants[value] = constant_result(self._prepare(node, opsets, arguments))
        return self._constants[value]

    def _prepare(
        self, node: ir.Node, opsets: Mapping[str, int], arguments: Mapping[str, ir.Attr]
    ) -> Prepared:
        if arguments and any(a.is_ref() for a in node.attributes.values()):
            return prepare(node, opsets, arguments)
        if node not in self._prepared:
            self._prepared[node] = prepare(node, opsets, arguments)
        return self._prepared[node]

    def _function(
        self,
        function: ir.Function,
        node: ir.Node,
        inputs: list[Content],
        frame: dict[ir.Value, Content],
        arguments: Mapping[str, ir.Attr],
    ) -> list[Content]:
        bound = {name: a for name, a in function.attributes.items() if a.value is not None}
        bound.update(resolved(node, arguments))
        frame.update(zip(function.inputs, inputs, strict=False))
        return self.body(function, Scope(frame, function.opset_imports, bound))

    def body(self, graph: ir.Graph | ir.Function, scope: "Scope", *, sure: bool = True) -> list[Content]:
        """Run a graph within the frame of its surroundings; unsure: it might not run, so note no problem."""
        before, self._sure = self._sure, self._sure and sure
        for node in self._graph_nodes(graph, scope.frame):
            self._visit(node, scope.frame, scope.opsets, scope.arguments)
        self._sure = before
        return [scope.frame.get(value) for value in graph.outputs]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a subgraph runs: the values around it, the opsets, the attributes of the calling function."""

    frame: dict[ir.Value, Content]
    opsets: Mapping[str, int]
    arguments: Mapping[str, ir.Attr]


# ---- control flow -------------------------------------------------------------------------------------


def _merge(a: Content, b: Content) -> Content:
    """Return what holds of both."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and _same(a, b):
        return a
    first, second = type_of(a), type_of(b)
    if first is None or second is None or not first.HasField("tensor_type"):
        return None
    if first.tensor_type.elem_type != second.tensor_type.elem_type:
        return None
    x, y = shape_of(first), shape_of(second)
    if x is None or y is None or len(x) != len(y):
        return onnx.helper.make_tensor_type_proto(first.tensor_type.elem_type, None)
    dims = [p if p == q else None for p, q in zip(x, y, strict=True)]
    return onnx.helper.make_tensor_type_proto(first.tensor_type.elem_type, dims)


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)


def _if(run: DryRun, prepared: Prepared, inputs: list[Content], scope: Scope) -> list[Content]:
    branches = [prepared.graphs["then_branch"], prepared.graphs["else_branch"]]
    condition = inputs[0]
    if isinstance(condition, np.ndarray) and condition.size == 1:
        return run.body(branches[0 if condition.reshape(-1)[0] else 1], scope)
    then, other = (run.body(branch, scope, sure=False) for branch in branches)
    return [_merge(a, b) for a, b in zip(then, other, strict=True)]


def _loop(run: DryRun, prepared: Prepared, inputs: list[Content], scope: Scope) -> list[Content]:
    """Run the body twice: as in the first iteration, and with what holds of all iterations."""
    body, state = prepared.graphs["body"], list(inputs[2:])
    iteration: Content = np.asarray(0, dtype=np.int64)
    condition: Content = np.asarray(True)
    results: list[Content] = []
    for turn in range(2):
        scope.frame.update(zip(body.inputs, [iteration, condition, *state], strict=False))
        results = run.body(body, scope, sure=turn == 0)
        state = [_merge(a, b) for a, b in zip(state, results[1:], strict=False)]
        iteration = tensor_type(np.dtype(np.int64), ())
        condition = tensor_type(np.dtype(bool), ())
    scanned = results[1 + len(state) :]
    return [*state, *(_stacked(content, None) for content in scanned)]


def _stacked(content: Content, count: int | None) -> Content:
    kind, shape = type_of(content), shape_of(content)
    if kind is None or shape is None:
        return None
    return onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, [count, *shape])


def _scan(run: DryRun, prepared: Prepared, inputs: list[Content], scope: Scope) -> list[Content]:
    """Run the body on slices along axis 0; other axes and version 8 leave the results unknown."""
    attributes, body = prepared.attributes, prepared.graphs["body"]
    axes = [*attributes.get("scan_input_axes", ()), *attributes.get("scan_output_axes", ())]
    if prepared.version < 9 or any(axes):
        return [None] * len(prepared.node.outputs)
    states = len(inputs) - attributes["num_scan_inputs"]
    shapes = [shape_of(content) for content in inputs[states:]]
    count = next((shape[0] for shape in shapes if shape), None)
    state: list[Content] = [type_of(content) for content in inputs[:states]]
    slices = [_sliced(content) for content in inputs[states:]]
    scope.frame.update(zip(body.inputs, [*state, *slices], strict=False))
    results = run.body(body, scope)
    state = [_merge(a, b) for a, b in zip(state, results[:states], strict=True)]
    return [*state, *(_stacked(content, count) for content in results[states:])]


def _sliced(content: Content) -> Content:
    kind, shape = type_of(content), shape_of(content)
    if kind is None or not shape:
        return None
    return onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, shape[1:])


_CONTROL: dict[str, Callable[[DryRun, Prepared, list[Content], Scope], list[Content]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
