"""Types of values around an edit: what is known of them, and what becomes of those that follow."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.engine.infer import Facts
from graphdoc.engine.ops.table import TensorType
from graphdoc.surgeon.edit_find import Index, defined_in, subgraphs
from graphdoc.surgeon.pieces import describe
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.saver import all_tensors
from graphdoc.surgeon.types import dtype_name
from graphdoc.surgeon.writer import write_model

KEPT = 1024
"""Elements of a tensor up to which shape inference sees its content."""


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return the model as protobuf without the content of large weights."""
    large = [t for t in all_tensors(model) if t.size > KEPT and t.dtype != ir.DataType.STRING]
    return write_model(model, {id(tensor): _placeholder(tensor) for tensor in large})


def _placeholder(tensor: ir.TensorProtocol) -> onnx.TensorProto:
    proto = onnx.TensorProto(
        name=tensor.name or "", data_type=tensor.dtype.value, dims=[int(d) for d in tensor.shape.numpy()]
    )
    proto.data_location = onnx.TensorProto.EXTERNAL
    proto.external_data.add(key="location", value="weights")
    return proto


def inferred(model: ir.Model, *, strict: bool = False) -> onnx.ModelProto:
    """Return the model's skeleton with types and shapes as ONNX shape inference finds them.

    strict: raise onnx.shape_inference.InferenceError where the model contradicts itself.
    """
    proto = skeleton(model)
    try:
        # the contents of shapes are left out of strict inference: onnx trips over them in subgraphs
        return onnx.shape_inference.infer_shapes(
            proto, check_type=strict, strict_mode=strict, data_prop=not strict
        )
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        if strict:
            raise
        return proto


def dims_of(shape: ir.Shape | None) -> list[int | str | None]:
    """Return the dims of a shape: sizes, symbols, None for unknown; none when the rank is unknown."""
    return [dim if isinstance(dim, int) else dim.value for dim in shape or ()]


Kind: TypeAlias = tuple[Any, ir.Shape | None]
"""Type and shape of a value, None where unknown."""


def known(model: ir.Model, values: Iterable[ir.Value]) -> dict[ir.Value, Kind]:
    """Return types and shapes: as declared, else as they follow from the operators (engine/infer.py)."""
    found: dict[ir.Value, Kind] = {value: (value.type, value.shape) for value in values}
    unknown = [value for value, kind in found.items() if None in kind]
    if unknown:
        facts = Facts(model)
        for value in unknown:
            found[value] = _join(value, facts.of(value))
    if any(kind is None for kind, _ in found.values()):
        _ask_onnx(model, found)
    return found


def _join(value: ir.Value, fact: TensorType) -> Kind:
    """Return what is declared of a value, completed by what is known of it."""
    if fact.dtype is None:
        return value.type, value.shape
    kind = value.type or ir.TensorType(_code(fact.dtype))
    if value.shape is not None or fact.shape is None or not isinstance(kind, ir.TensorType):
        return kind, value.shape
    return kind, ir.Shape([dim if isinstance(dim, int) or dim is None else str(dim) for dim in fact.shape])


def _code(dtype: np.dtype[Any]) -> ir.DataType:
    return ir.DataType.STRING if dtype.kind == "O" else ir.DataType.from_numpy(dtype)


def _ask_onnx(model: ir.Model, found: dict[ir.Value, Kind]) -> None:
    """Fill in what ONNX shape inference knows: sequences, operators without a row in the engine's table."""
    infos = _declared(inferred(model).graph, Index(model))
    for value, (kind, shape) in found.items():
        if value in infos and kind is None:
            learned = ir.Value(name=value.name)
            describe(learned, infos[value])
            found[value] = (learned.type, shape if shape is not None else honest(learned.shape))


def complete(model: ir.Model, values: Iterable[ir.Value]) -> None:
    """Declare types and shapes of values that have none, as far as ONNX shape inference knows them."""
    for value, (kind, shape) in known(model, values).items():
        value.type, value.shape = kind, shape


def honest(shape: ir.Shape | None) -> ir.Shape | None:
    """Return a shape without the symbols that shape inference made up."""
    if shape is None:
        return None
    dims = dims_of(shape)
    return ir.Shape([None if isinstance(d, str) and d.startswith("unk__") else d for d in dims])


def _declared(graph: onnx.GraphProto, index: Index) -> Mapping[ir.Value, onnx.ValueInfoProto]:
    """Return what the protobuf of a model's main graph declares, by the value in memory."""
    found: dict[ir.Value, onnx.ValueInfoProto] = {}
    pairs = [(graph, index.model.graph)]
    while pairs:
        proto, memory = pairs.pop()
        infos = {info.name: info for info in (*proto.output, *proto.input, *proto.value_info)}
        for value in defined_in(memory):
            if value.name in infos:
                found[value] = infos[value.name]
        nodes = {node.output[0]: node for node in proto.node if node.output}
        for node in memory:
            inner = list(subgraphs(node))
            if inner and node.outputs[0].name in nodes:
                graphs = _graphs_of(nodes[node.outputs[0].name])
                pairs += [(graphs[name], body) for name, body in inner if name in graphs]
    return found


def _graphs_of(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    return {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}


def downstream(index: Index, values: Iterable[ir.Value]) -> list[ir.Value]:
    """Return the values that follow from ``values``, those aside; into subgraphs and out of them."""
    owners = {place.graph: place.owner for place in index.places}
    found: dict[ir.Value, None] = {}
    pending = list(values)
    while pending:
        for node in followers(pending.pop(), owners):
            new = [value for value in node.outputs if value not in found]
            found.update(dict.fromkeys(new))
            pending += new
            for _, graph in subgraphs(node):
                inner = [value for value in graph.inputs if value not in found]
                found.update(dict.fromkeys(inner))
                pending += inner
    return list(found)


def followers(value: ir.Value, owners: Mapping[ir.Graph, ir.Node | None]) -> Iterator[ir.Node]:
    """Yield the nodes whose results depend on a value at once: its readers, and the nodes that hold these."""
    for node in value.consumers():
        current: ir.Node | None = node
        while current is not None:
            yield current
            current = owners.get(current.graph) if current.graph is not None else None
    for graph, owner in owners.items():
        if value.is_graph_output() and owner is not None and any(value is output for output in graph.outputs):
            yield owner


def refresh(model: ir.Model, changed: Iterable[ir.Value]) -> None:
    """Infer anew the types of all that follows from changed values.

    Declared shapes that no longer hold go; what inference cannot tell stays unknown. Outputs of the model
    keep their declared dtype unless inference finds another one.
    """
    index = Index(model)
    stale = [value for value in downstream(index, changed) if value.name]
    kept = {value: value.type for value in stale if value.is_graph_output() or value.is_graph_input()}
    for value in stale:
        value.shape = None
        if _is_tensor(value.type):
            value.type = None
    complete(model, stale)
    for value, declared in kept.items():
        value.type = value.type or declared


def _is_tensor(kind: Any) -> bool:
    return isinstance(kind, ir.TensorType)


def check_types(model: ir.Model) -> None:
    """Raise ModelError when types or shapes of the model contradict each other or an operator's schema.

    Operators of other domains than ONNX's own are taken as they are.
    """
    try:
        inferred(model, strict=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reasons = [line for line in lines if _UNTYPED not in line]
        if reasons or not lines:
            raise ModelError(
                f"types or shapes contradict each other: {(reasons or ['no reason given'])[-1][:300]}",
                next_step="look at the layers and their types:  graphdoc inspect MODEL --layers",
            ) from error


_UNTYPED = "expected to have type but instead is null"
"""What onnx says of operators that read a value whose type it does not know, which is no contradiction."""


def check(model: ir.Model) -> None:
    """Raise ModelError when an edited model is not sound: structure, names, types and shapes."""
    read_model(skeleton(model), None, external=False)
    check_types(model)


def type_name(kind: Any) -> str:
    """Return the dtype of a type in words, "" when unknown."""
    return dtype_name(int(kind.dtype)) if kind is not None and kind.dtype is not None else ""
