"""New nodes: checked against the operator's schema and the types of their inputs before they join a graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError, UsageError
from graphdoc.engine.ops.table import canonical_domain
from graphdoc.surgeon.checks import misfit
from graphdoc.surgeon.edit_find import Index, Place, ValueLike
from graphdoc.surgeon.edit_types import KEPT, Kind, honest, known
from graphdoc.surgeon.names import Names
from graphdoc.surgeon.pieces import describe
from graphdoc.surgeon.schemas import newest, signature, type_classes
from graphdoc.surgeon.writer import write_model

Attributes: TypeAlias = Mapping[str, Any]
Operand: TypeAlias = ValueLike | np.ndarray[Any, Any] | np.generic | float | bool | Sequence[float] | None
"""An input of a new node: a value, its name, an array or numbers (become an initializer), None (left out)."""

Resolved: TypeAlias = "ir.Value | ir.TensorProtocol | Literal | None"


PLAIN_INITIALIZERS = 4
"""The IR version from which initializers need not be inputs."""


def new_tensor(content: Any, name: str = "") -> ir.TensorProtocol:
    """Return a tensor; Python floats become float32, whole numbers int64; arrays keep their dtype.

    Raises UsageError for what is no array of numbers, truth values or strings.
    """
    array = np.asarray(content)
    if not isinstance(content, np.ndarray | np.generic):
        array = array.astype({"f": np.float32, "i": np.int64}.get(array.dtype.kind, array.dtype))
    if array.dtype.kind in "UO":
        return _strings(array, name)
    try:
        dtype = ir.DataType.from_numpy(array.dtype)
    except TypeError as error:
        raise UsageError(
            f"no ONNX dtype holds {array.dtype}", where=name or None, next_step="give an array of numbers"
        ) from error
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype, name=name or None)


def _strings(array: np.ndarray[Any, Any], name: str) -> ir.TensorProtocol:
    items = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    if not all(isinstance(item, bytes) for item in items):
        raise UsageError(
            "an array of objects holds something else than strings",
            next_step="give an array of numbers or strings",
        )
    return ir.StringTensor(items, shape=ir.Shape(array.shape), name=name or None)


def resolve(index: Index, inputs: Sequence[Operand]) -> list[Resolved]:
    """Return values for names, tensors for arrays and numbers. Raises UsageError for unknown names."""
    return [_resolve(index, item) for item in inputs]


def _resolve(index: Index, item: Operand) -> Resolved:
    if item is None:
        return None
    if isinstance(item, str | ir.Value):
        return index.value(item)
    return new_tensor(item) if isinstance(item, np.ndarray | np.generic) else Literal(item)


@dataclass(frozen=True, slots=True)
class Literal:
    """A Python number or list: it takes the dtype of the inputs that must have the same type as it."""

    content: Any

    def tensor(self, dtype: ir.DataType | None) -> ir.TensorProtocol:
        """Return it in a dtype; in float32 or int64 when None."""
        tensor = new_tensor(self.content)
        if dtype is None or dtype == ir.DataType.STRING or tensor.dtype == ir.DataType.STRING:
            return tensor
        return new_tensor(tensor.numpy().astype(dtype.numpy()))


def _settled(
    op: str, domain: str, version: int, inputs: Sequence[Resolved], types: Mapping[ir.Value, Kind]
) -> list[ir.Value | ir.TensorProtocol | None]:
    """Return the inputs with literals as tensors, typed like the inputs that must have the same type."""
    classes = type_classes(canonical_domain(domain), op, version, len(inputs))
    known_types: dict[str, ir.DataType] = {}
    for value, group in zip(inputs, classes, strict=True):
        if isinstance(value, ir.Value) and (kind := types[value][0]) is not None:
            known_types.setdefault(group, kind.dtype)
    return [
        value.tensor(known_types.get(group) if group else None) if isinstance(value, Literal) else value
        for value, group in zip(inputs, classes, strict=True)
    ]


def new_attributes(domain: str, op: str, version: int, attributes: Attributes) -> dict[str, ir.Attr]:
    """Return attributes in the types that the operator's schema names.

    Raises ModelError for a value that the schema does not take.
    """
    found = signature(canonical_domain(domain), op, version)
    kinds = found.attributes if found is not None else {}
    return {name: _attribute(op, name, value, kinds.get(name)) for name, value in attributes.items()}


def _attribute(op: str, name: str, value: Any, kind: int | None) -> ir.Attr:
    if isinstance(value, ir.Attr):
        return value
    wanted = None if kind is None else ir.AttributeType(kind)
    try:
        return ir.convenience.convert_attribute(name, _plain(value, wanted), wanted)
    except (TypeError, ValueError) as error:
        expected = wanted.name if wanted is not None else "an attribute"
        raise ModelError(
            f"{op} does not take {name}={value!r}: it needs {expected}",
            next_step="see the ONNX specification",
        ) from error


def _whole(value: Any) -> int:
    if value != int(value):
        raise ValueError(value)
    return int(value)


_CASTS: dict[ir.AttributeType, Callable[[Any], Any]] = {
    ir.AttributeType.INT: _whole,
    ir.AttributeType.FLOAT: float,
    ir.AttributeType.INTS: lambda items: [_whole(item) for item in items],
    ir.AttributeType.FLOATS: lambda items: [float(item) for item in items],
}


_NO_NUMBERS = frozenset(
    {
        ir.AttributeType.GRAPH,
        ir.AttributeType.GRAPHS,
        ir.AttributeType.SPARSE_TENSOR,
        ir.AttributeType.SPARSE_TENSORS,
        ir.AttributeType.TYPE_PROTO,
        ir.AttributeType.TYPE_PROTOS,
    }
)
"""Attributes that hold what no number or text stands for."""


def _plain(value: Any, kind: ir.AttributeType | None) -> Any:
    if kind in _CASTS:
        return _CASTS[kind](value)
    items = value if isinstance(value, list | tuple) else [value]
    if kind in _NO_NUMBERS and any(isinstance(item, str | int | float | np.generic) for item in items):
        raise TypeError(value)
    if isinstance(value, np.ndarray) or kind == ir.AttributeType.TENSOR:
        return value if isinstance(value, ir.TensorProtocol) else new_tensor(value)
    if isinstance(value, np.generic | bool):
        return value.item() if isinstance(value, np.generic) else int(value)
    return value


def opsets_at(place: Place) -> dict[str, int]:
    """Return domain → version as it holds in a graph: that of the model or of the function around it."""
    return (place.outer[0] if place.outer else place.graph).opset_imports


class Draft:
    """A node that is in no graph yet.

    inputs: values, tensors (become initializers), literals, None. place: the graph it will join. outputs: how
    many.
    """

    def __init__(
        self,
        model: ir.Model,
        place: Place,
        op: str,
        inputs: Sequence[Resolved],
        outputs: int = 1,
        attributes: Attributes | None = None,
        domain: str = "",
        name: str = "",
    ) -> None:
        self.model = model
        self.place = place
        self.op = op
        self.outputs = outputs
        self.attributes = attributes
        self.domain = domain
        self.name = name
        self.types = known(model, [value for value in inputs if isinstance(value, ir.Value)])
        self.inputs = _settled(op, domain, self.version, inputs, self.types)

    def attrs(self) -> dict[str, ir.Attr]:
        """Return the attributes in the types of the schema."""
        return new_attributes(self.domain, self.op, self.version, self.attributes or {})

    @property
    def version(self) -> int:
        """The opset version that holds for the node."""
        return opsets_at(self.place).get(canonical_domain(self.domain), 1)

    @property
    def function(self) -> ir.Function | None:
        """The model's own function that the node calls."""
        domain = canonical_domain(self.domain)
        own = self.model.functions.values()
        return next((f for f in own if (canonical_domain(f.domain), f.name) == (domain, self.op)), None)

    def kinds(self) -> list[Kind]:
        """Return the types of the outputs, after checking operator, inputs and attributes.

        Raises ModelError when the operator does not exist in this opset or does not take what it is given.
        """
        attributes = self.attrs()
        _check_operator(self, attributes)
        if any(kind is None for kind, _ in self.types.values()):
            return [(None, None)] * self.outputs
        return _infer(self, attributes)

    def build(self, titles: Sequence[str], kinds: Sequence[Kind], names: Names) -> ir.Node:
        """Return the node, its outputs named and typed; it stands in no graph yet, its initializers do."""
        inputs = [self._input(value, names) for value in self.inputs]
        domain = canonical_domain(self.domain)
        opsets_at(self.place).setdefault(domain, 1)
        name = self.name if not names.has_node(self.name) else ""
        node = ir.Node(
            domain, self.op, inputs, self.attrs(), num_outputs=len(titles), name=name or names.node(self.op)
        )
        for output, title, (kind, shape) in zip(node.outputs, titles, kinds, strict=True):
            output.name, output.type, output.shape = title, kind, shape
        return node

    def _input(self, value: ir.Value | ir.TensorProtocol | None, names: Names) -> ir.Value | None:
        if value is None or isinstance(value, ir.Value):
            return value
        return constant(self.model, self.place, value, names.value(f"{self.op}_constant"), names)


def constant(model: ir.Model, place: Place, tensor: ir.TensorProtocol, title: str, names: Names) -> ir.Value:
    """Return a new value with a tensor's content.

    It is an initializer (up to IR version 3 listed as an input too); in functions a Constant node makes it.
    """
    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    tensor.name = title
    if place.function:
        attributes = [ir.AttrTensor("value", tensor)]
        node = ir.Node("", "Constant", [], attributes, num_outputs=1, name=names.node(title))
        node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = title, kind, shape
        _first(place.graph, node)
        return node.outputs[0]
    value = ir.Value(name=title, type=kind, shape=shape, const_value=tensor)
    place.graph.initializers.add(value)
    if model.ir_version < PLAIN_INITIALIZERS and place.graph is model.graph:
        model.graph.inputs.append(value)
    return value


def _first(graph: ir.Graph, node: ir.Node) -> None:
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def _check_operator(draft: Draft, attributes: Mapping[str, ir.Attr]) -> None:
    domain = canonical_domain(draft.domain)
    if draft.function is not None:
        return
    found = signature(domain, draft.op, draft.version)
    if found is None:
        if newest(domain) is not None:
            raise _no_operator(domain, draft)
        return
    proto = onnx.NodeProto(op_type=draft.op)
    proto.attribute.extend(onnx.AttributeProto(name=name) for name in attributes)
    wrong = misfit(found, proto, len(draft.inputs), draft.outputs)
    strange = next((name for name in attributes if name not in found.attributes), None)
    if wrong is None and strange is not None:
        close = get_close_matches(strange, found.attributes, n=1)
        wrong = f"{draft.op} has no attribute '{strange}'" + (f"; nearest: '{close[0]}'" if close else "")
    if wrong is not None:
        raise ModelError(
            wrong, next_step=f"see {draft.op} of opset {draft.version} in the ONNX specification"
        )


def _no_operator(domain: str, draft: Draft) -> ModelError:
    title = domain or "ai.onnx"
    later = [
        s.since_version
        for s in onnx.defs.get_all_schemas_with_history()
        if (s.domain, s.name) == (domain, draft.op)
    ]
    if later:
        return ModelError(
            f"{title} {draft.version} has no operator {draft.op}; version {min(later)} has",
            next_step=f"raise the opset first: graphdoc edit MODEL -o OUT --opset {min(later)}",
        )
    known = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == domain})
    close = get_close_matches(draft.op, known, n=3)
    hint = f"; nearest: {', '.join(close)}" if close else ""
    return ModelError(
        f"{title} has no operator {draft.op}{hint}",
        next_step="give its domain, or add its function to the model",
    )


def _infer(draft: Draft, attributes: Mapping[str, ir.Attr]) -> list[Kind]:
    """Return the output types that ONNX shape inference finds for the node alone."""
    proto = _alone(draft, attributes)
    try:
        found = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelError(
            f"{draft.op} does not take these inputs: {lines[-1][:300] if lines else 'types contradict'}",
            next_step="check dtypes and shapes:  graphdoc inspect MODEL --layers",
        ) from error
    known = {info.name: info for info in (*found.graph.value_info, *found.graph.output)}
    return [_kind(known.get(f"o{number}")) for number in range(draft.outputs)]


def _kind(info: onnx.ValueInfoProto | None) -> Kind:
    value = ir.Value()
    if info is not None:
        describe(value, info)
    return value.type, honest(value.shape)


def _alone(draft: Draft, attributes: Mapping[str, ir.Attr]) -> onnx.ModelProto:
    """Return a model of the drafted node and nothing else; small constants keep their content."""
    operands = [
        None if item is None else _operand(f"i{number}", item, draft.types)
        for number, item in enumerate(draft.inputs)
    ]
    node = ir.Node(draft.domain, draft.op, operands, attributes, num_outputs=draft.outputs)
    for number, output in enumerate(node.outputs):
        output.name = f"o{number}"
    given = [value for value in operands if value is not None]
    graph = ir.Graph(
        [value for value in given if value.const_value is None],
        [],
        nodes=[node],
        initializers=[value for value in given if value.const_value is not None],
        opset_imports={canonical_domain(draft.domain): 1, **opsets_at(draft.place)},
        name="draft",
    )
    functions = [f.clone() for f in draft.model.functions.values()] if draft.function is not None else []
    return write_model(ir.Model(graph, ir_version=max(draft.model.ir_version, 8), functions=functions))


def _operand(name: str, item: ir.Value | ir.TensorProtocol, types: Mapping[ir.Value, Kind]) -> ir.Value:
    """Return what stands for an input of a drafted node."""
    tensor = item.const_value if isinstance(item, ir.Value) else item
    if isinstance(item, ir.Value):
        kind, shape = types[item]
    else:
        kind, shape = ir.TensorType(item.dtype), ir.Shape(item.shape.numpy())
    fixed = not isinstance(item, ir.Value) or (item.is_initializer() and not item.is_graph_input())
    copy = None
    if tensor is not None and fixed and tensor.size <= KEPT and tensor.dtype != ir.DataType.STRING:
        copy = ir.Tensor(tensor.numpy(), dtype=tensor.dtype)
    return ir.Value(name=name, type=kind, shape=shape, const_value=copy)
