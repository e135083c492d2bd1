"""A run without the arithmetic: does the model accept inputs of these sizes?

Whatever follows from shapes and small integers is computed with the operator table; of everything else
only dtype and shape are known, from ONNX's own inference. That costs some 50 µs a node, whatever the size
of the tensors, and finds what real runs stumble over: sizes that do not meet, reshapes that do not come
out even, windows larger than the signal, positions past the end of their table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from graphdoc.engine.attributes import decode, to_array
from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.ops.table import Call, Operator, TensorType, canonical_domain, find

Content: TypeAlias = np.ndarray[Any, Any] | onnx.TypeProto | None
"""An array where the content is known, a type where only that is known, None where nothing is."""

Shape: TypeAlias = tuple[int | None, ...]

LIMIT = 4096
"""Elements up to which a tensor's content is computed."""

_DEFAULT = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Problem:
    """A node that would refuse its inputs; index is its position in the main graph."""

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


class Misfit(Exception):
    """The inputs of a node do not fit each other."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A node made ready: everything that does not depend on its inputs."""

    node: ir.Node
    domain: str
    version: int
    attributes: dict[str, Any]
    graphs: dict[str, ir.Graph]
    proto: onnx.NodeProto
    schema: Any
    row: Operator | None


def tensor_type(dtype: np.dtype[Any], shape: Iterable[int | None]) -> onnx.TypeProto:
    """Return the type of a tensor whose content is not known."""
    code = ir.DataType.STRING if dtype == object else ir.DataType.from_numpy(dtype)
    return onnx.helper.make_tensor_type_proto(int(code), list(shape))


def shape_of(content: Content) -> Shape | None:
    """Return the shape of a tensor, None per unknown size, None for an unknown rank or no tensor."""
    if isinstance(content, np.ndarray):
        return content.shape
    if content is None or not content.HasField("tensor_type") or not content.tensor_type.HasField("shape"):
        return None
    dims = content.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)


def full_shape(content: Content) -> tuple[int, ...] | None:
    """Return the shape if every size is known."""
    shape = shape_of(content)
    return None if shape is None or None in shape else tuple(d for d in shape if d is not None)


def type_of(content: Content) -> onnx.TypeProto | None:
    """Return the type of a content."""
    return tensor_type(content.dtype, content.shape) if isinstance(content, np.ndarray) else content


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
        self._index = 0
        self._sure = True

    def run(self, feeds: Mapping[str, Content]) -> Trial:
        """Return the problems that inputs of this content or type meet; inputs not named are unknown."""
        self._problems = []
        frame: dict[ir.Value, Content] = {
            v: feeds[str(v.name)] for v in self._model.graph.inputs if str(v.name) in feeds
        }
        for self._index, node in enumerate(self._graph_nodes(self._model.graph, frame)):
            self._visit(node, frame, self._model.opset_imports, {})
        self._check_outputs(feeds, frame)
        return Trial(tuple(self._problems), frame)

    def _graph_nodes(
        self, graph: ir.Graph | ir.Function, frame: dict[ir.Value, Content]
    ) -> Iterable[ir.Node]:
        for value in getattr(graph, "initializers", {}).values():
            frame.setdefault(value, self._constant(value, value.const_value))
        return graph

    def _constant(self, value: ir.Value, tensor: Any) -> Content:
        if value not in self._constants:
            self._constants[value] = _known(tensor)
        return self._constants[value]

    def _check_outputs(self, feeds: Mapping[str, Content], frame: Mapping[ir.Value, Content]) -> None:
        """Report outputs without elements, unless an input has none either: nothing could be compared."""
        if any(0 in (shape_of(content) or ()) for content in feeds.values()):
            return
        for value in self._model.graph.outputs:
            if 0 in (shape_of(frame.get(value)) or ()):
                self._problems.append(Problem(self._index, str(value.name), "the output would be empty"))

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
        except Misfit as misfit:
            if self._sure:
                name = node.name or next((str(v.name) for v in node.outputs), "")
                self._problems.append(Problem(self._index, f"{node.op_type} '{name}'", str(misfit)))
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
        prepared = self._prepare(node, opsets, arguments)
        control = _CONTROL.get(node.op_type) if node.domain in _DEFAULT else None
        if control is not None:
            return control(self, prepared, inputs, Scope(frame, opsets, arguments))
        if node.op_type == "Constant" and node.domain in _DEFAULT:
            return [self._constant_node(prepared)]
        return _operator(prepared, inputs)

    def _constant_node(self, prepared: Prepared) -> Content:
        value = prepared.node.outputs[0]
        if value not in self._constants:
            self._constants[value] = _constant_result(prepared)
        return self._constants[value]

    def _prepare(
        self, node: ir.Node, opsets: Mapping[str, int], arguments: Mapping[str, ir.Attr]
    ) -> Prepared:
        if arguments and any(a.is_ref() for a in node.attributes.values()):
            return _prepare(node, opsets, arguments)
        if node not in self._prepared:
            self._prepared[node] = _prepare(node, opsets, arguments)
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
        bound.update(_resolved(node, arguments))
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


# ---- one node -----------------------------------------------------------------------------------------


def _prepare(node: ir.Node, opsets: Mapping[str, int], arguments: Mapping[str, ir.Attr]) -> Prepared:
    domain = canonical_domain(node.domain)
    version = opsets.get(domain, opsets.get("ai.onnx", 1) if domain == "" else 1)
    plain, graphs = {}, {}
    proto = onnx.NodeProto(op_type=node.op_type, domain=domain)
    proto.input.extend("" if v is None else f"i{slot}" for slot, v in enumerate(node.inputs))
    proto.output.extend(f"o{slot}" if v.name else "" for slot, v in enumerate(node.outputs))
    for name, attribute in _resolved(node, arguments).items():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs[name] = attribute.as_graph()
        elif attribute.type != ir.AttributeType.GRAPHS:
            plain[name] = decode(attribute)
            serialized = ir.serde.serialize_attribute(attribute)
            serialized.name = name
            proto.attribute.append(serialized)
    row = find(domain, node.op_type, version)
    return Prepared(node, domain, version, plain, graphs, proto, _schema(node.op_type, version, domain), row)


def _resolved(node: ir.Node, arguments: Mapping[str, ir.Attr]) -> dict[str, ir.Attr]:
    found = {}
    for name, attribute in node.attributes.items():
        actual = arguments.get(str(attribute.ref_attr_name)) if attribute.is_ref() else attribute
        if actual is not None and not actual.is_ref():
            found[name] = actual
    return found


def _schema(name: str, version: int, domain: str) -> Any:
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


def _known(tensor: Any) -> Content:
    """Return a constant's content if it is small, else its type."""
    if tensor is None:
        return None
    shape = tuple(int(dim) for dim in tensor.shape)
    if prod(shape) > LIMIT:
        return tensor_type(np.dtype(tensor.dtype.numpy()), shape)
    return to_array(tensor)


def _constant_result(prepared: Prepared) -> Content:
    tensor = prepared.node.attributes.get("value")
    if tensor is not None and tensor.type == ir.AttributeType.TENSOR:
        return _known(tensor.value)
    result = _evaluate(prepared, [])
    return result[0] if result else None


def _operator(prepared: Prepared, inputs: list[Content]) -> Sequence[Content]:
    for check in _CHECKS.get(prepared.node.op_type, ()):
        check(prepared, inputs)
    types = _infer(prepared, inputs)
    sizes = [full_shape(content) for content in types]
    if not any(prod(size) > LIMIT for size in sizes if size is not None):
        stand_ins = _stand_ins(prepared, inputs)
        if stand_ins is not None:
            result = _evaluate(prepared, stand_ins)
            if result is not None:
                return result
    _check_sizes(prepared, sizes)
    return types


def _stand_ins(prepared: Prepared, inputs: list[Content]) -> list[Any] | None:
    """Return the arrays to compute with, or None. Shape and Size need no content, only a shape."""
    if prepared.node.op_type in ("Shape", "Size") and prepared.domain == "":
        shape = full_shape(inputs[0])
        return None if shape is None else [np.broadcast_to(np.float32(0), shape)]
    given = [content for content, v in zip(inputs, prepared.node.inputs, strict=True) if v is not None]
    return inputs if all(isinstance(content, np.ndarray) for content in given) else None


def _evaluate(prepared: Prepared, inputs: list[Any]) -> list[Content] | None:
    """Return the results if the operator is known and not random, and all of them are small arrays."""
    row, outputs = prepared.row, len(prepared.node.outputs)
    if row is None or row.random:
        return None
    try:
        with np.errstate(all="ignore"):
            results = row.evaluate(Call(np, prepared.version, outputs), *inputs, **prepared.attributes)
    except (GraphdocError, IndexError, ValueError) as error:
        raise Misfit(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    except Exception:  # noqa: BLE001 (an operator that cannot do it here only leaves the value unknown)
        return None
    arrays = [np.asarray(r) if isinstance(r, np.generic) else r for r in _listed(results)]
    small = all(isinstance(a, np.ndarray) and a.size <= LIMIT for a in arrays[:outputs])
    return arrays if small else None


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def _infer(prepared: Prepared, inputs: list[Content]) -> list[Content]:
    outputs = prepared.node.outputs
    if prepared.schema is None:
        return _infer_by_table(prepared, inputs)
    given = {
        f"i{slot}": content
        for slot, (content, v) in enumerate(zip(inputs, prepared.node.inputs, strict=True))
        if v is not None
    }
    if any(content is None for content in given.values()):
        return [_declared(value) for value in outputs]
    types = {name: type_of(content) for name, content in given.items()}
    data = {
        name: onnx.numpy_helper.from_array(content, name)
        for name, content in given.items()
        if isinstance(content, np.ndarray) and content.dtype.kind in "iubf"
    }
    opset = [onnx.helper.make_opsetid(prepared.domain, prepared.version)]
    try:
        found = infer_node_outputs(prepared.schema, prepared.proto, types, data, opset_imports=opset)
    except InferenceError as error:
        raise Misfit(_inference_text(error)) from error
    except Exception:  # noqa: BLE001 (inference that gives up leaves the value unknown)
        return [_declared(value) for value in outputs]
    return [found.get(f"o{slot}") or _declared(value) for slot, value in enumerate(outputs)]


def _inference_text(error: Exception) -> str:
    return str(error).split("]", 1)[-1].strip().splitlines()[0]


def _declared(value: ir.Value) -> Content:
    """Return what the model says of a value nothing else tells: its dtype and no shape."""
    if value.dtype is None or isinstance(value.type, ir.SequenceType | ir.OptionalType):
        return None
    return onnx.helper.make_tensor_type_proto(int(value.dtype), None)


def _infer_by_table(prepared: Prepared, inputs: list[Content]) -> list[Content]:
    """Infer an operator outside ONNX through the operator table."""
    unknown: list[Content] = [_declared(value) for value in prepared.node.outputs]
    if prepared.row is None or prepared.row.infer is None:
        return unknown
    call = Call(np, prepared.version, len(unknown))
    try:
        found = prepared.row.infer(call, *[_table_type(c) for c in inputs], **prepared.attributes)
    except Exception:  # noqa: BLE001 (the table states nothing of inputs that do not fit)
        return unknown
    given = [_from_table(t) for t in _listed(found)]
    return [a or b for a, b in zip(given + unknown[len(given) :], unknown, strict=False)]


def _table_type(content: Content) -> TensorType | None:
    if content is None:
        return TensorType()
    if isinstance(content, np.ndarray):
        return TensorType(content.dtype, content.shape, content)
    dtype = ir.DataType(content.tensor_type.elem_type).numpy() if content.HasField("tensor_type") else None
    return TensorType(np.dtype(dtype) if dtype is not None else None, shape_of(content))


def _from_table(known: TensorType | None) -> Content:
    if known is None or known.dtype is None:
        return None
    if known.shape is None:
        return onnx.helper.make_tensor_type_proto(int(ir.DataType.from_numpy(known.dtype)), None)
    return tensor_type(known.dtype, [d if isinstance(d, int) else None for d in known.shape])


# ---- what inference does not refuse -------------------------------------------------------------------

_WINDOWED = frozenset(
    [
        "Conv",
        "ConvTranspose",
        "ConvInteger",
        "QLinearConv",
        "FusedConv",
        "MaxPool",
        "AveragePool",
        "LpPool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "LSTM",
        "GRU",
        "RNN",
        "STFT",
        "DFT",
        "ReduceMax",
        "ReduceMin",
        "ArgMax",
        "ArgMin",
    ]
)


def _check_sizes(prepared: Prepared, sizes: Iterable[tuple[int, ...] | None]) -> None:
    for size in sizes:
        least = min(size or (1,))
        if least < 0 or (least == 0 and prepared.node.op_type in _WINDOWED):
            raise Misfit(f"the input is smaller than the window: result {list(size or ())}")


def _check_channels(data: int, weight: int, axis: int) -> Callable[[Prepared, list[Content]], None]:
    def check(prepared: Prepared, inputs: list[Content]) -> None:
        x, w = shape_of(inputs[data]), shape_of(inputs[weight])
        if x is None or w is None or len(x) < 2 or x[1] is None or w[axis] is None:
            return
        group = prepared.attributes.get("group", 1)
        wanted = w[axis] * group if axis == 1 else w[axis]
        if x[1] != wanted:
            raise Misfit(f"{x[1]} channels, the weight takes {wanted}")

    return check


def _check_reshape(prepared: Prepared, inputs: list[Content]) -> None:
    shape, target = full_shape(inputs[0]), inputs[1] if len(inputs) > 1 else None
    if shape is None or not isinstance(target, np.ndarray):
        return
    wanted = [int(dim) for dim in target]
    if not prepared.attributes.get("allowzero", 0):
        wanted = [shape[i] if d == 0 and i < len(shape) else d for i, d in enumerate(wanted)]
    known = prod(d for d in wanted if d != -1)
    fits = known == prod(shape) if -1 not in wanted else known != 0 and prod(shape) % known == 0
    if not fits and not (known == 0 and prod(shape) == 0):
        raise Misfit(f"{list(shape)} cannot be reshaped to {wanted}")


def _check_gather(prepared: Prepared, inputs: list[Content]) -> None:
    data, indices = shape_of(inputs[0]), inputs[1]
    axis = prepared.attributes.get("axis", 0)
    if data is None or not isinstance(indices, np.ndarray) or not indices.size or not data:
        return
    size = data[axis]
    if size is not None and not (-size <= indices.min() and indices.max() < size):
        raise Misfit(f"index {int(indices.max())} lies outside a table of {size}")


def _check_recurrent(prepared: Prepared, inputs: list[Content]) -> None:
    x, w = shape_of(inputs[0]), shape_of(inputs[1])
    if x and w and None not in (x[-1], w[-1]) and x[-1] != w[-1]:
        raise Misfit(f"{x[-1]} features, the weight takes {w[-1]}")
    batch = 0 if prepared.attributes.get("layout", 0) else 1
    for state in map(shape_of, inputs[5:7]):
        if x and state and None not in (x[batch], state[batch]) and x[batch] != state[batch]:
            raise Misfit(f"the state's batch is {state[batch]}, the input's {x[batch]}")


def _check_pad(prepared: Prepared, inputs: list[Content]) -> None:
    pads = inputs[1] if len(inputs) > 1 else None
    shape = full_shape(inputs[0])
    if prepared.attributes.get("mode") != "reflect" or shape is None or not isinstance(pads, np.ndarray):
        return
    if len(pads) == 2 * len(shape) and any(
        max(pads[i], pads[i + len(shape)]) >= max(size, 1) for i, size in enumerate(shape)
    ):
        raise Misfit(f"reflecting {pads.tolist()} needs a longer input than {list(shape)}")


_CHECKS: dict[str, tuple[Callable[[Prepared, list[Content]], None], ...]] = {
    "Conv": (_check_channels(0, 1, 1),),
    "FusedConv": (_check_channels(0, 1, 1),),
    "ConvInteger": (_check_channels(0, 1, 1),),
    "QLinearConv": (_check_channels(0, 3, 1),),
    "ConvTranspose": (_check_channels(0, 1, 0),),
    "Reshape": (_check_reshape,),
    "Gather": (_check_gather,),
    "LSTM": (_check_recurrent,),
    "GRU": (_check_recurrent,),
    "RNN": (_check_recurrent,),
    "Pad": (_check_pad,),
}


# ---- control flow -------------------------------------------------------------------------------------


def _merge(a: Content, b: Content) -> Content:
    """Return what holds of both."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype:
        if a.shape == b.shape and np.array_equal(a, b):
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
