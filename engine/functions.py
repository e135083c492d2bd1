"""Operators without a row in the table: run by the function body of their ONNX schema, or by onnx.reference.

A body that is the same for all inputs is compiled like a model-local function, with all its values within
reach. A body that ONNX builds from the types of the inputs is made when the node is reached, and kept
for inputs of the same types. ``onnx.reference`` is the last resort. Which of them serves an operator is in
``Builder.served_by``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from graphdoc.engine.ops.host import to_host
from graphdoc.engine.ops.table import canonical_domain

FUNCTION_BODY = "function body"
REFERENCE = "onnx.reference"

_KEPT = 64
"""Bodies kept per node; inputs of ever new shapes must not fill the memory."""

RunModel = Callable[[ir.Model], Callable[[Mapping[str, Any]], dict[str, Any]]]
"""Makes a model ready to run: feeds → outputs by name."""


Schema: TypeAlias = Any
"""onnx.defs.OpSchema; its stubs lack the methods that give function bodies."""


def find_schema(domain: str, name: str, version: int) -> Schema | None:
    """Return the ONNX schema of an operator at an opset version, None when there is none."""
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


def _newest(versions: list[int], version: int) -> int | None:
    return max((v for v in versions if v <= version), default=None)


def _with_defaults(proto: onnx.FunctionProto, schema: Schema) -> onnx.FunctionProto:
    """Move attributes that have a default in the schema to where a function states defaults."""
    for name in list(proto.attribute):
        default = schema.attributes[name].default_value
        if default.name:
            proto.attribute.remove(name)
            proto.attribute_proto.append(default)
    return proto


def static_body(domain: str, name: str, version: int) -> ir.Function | None:
    """Return the function body that holds for inputs of all types, None when the schema has none."""
    schema = find_schema(domain, name, version)
    newest = None if schema is None else _newest(schema.function_opset_versions, version)
    if schema is None or newest is None:
        return None
    proto = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(newest))
    return ir.serde.deserialize_function(_with_defaults(proto, schema))


def fallback(
    node: ir.Node, opsets: Mapping[str, int], attributes: Mapping[str, ir.Attr], run_model: RunModel
) -> tuple[Any, str] | None:
    """Return (callable, how it is served) for a node that has neither row nor static body, or None.

    opsets: version by canonical domain. attributes: of the node, references resolved.
    """
    domain = canonical_domain(node.domain)
    version = opsets.get(domain, 1)
    schema = find_schema(domain, node.op_type, version)
    if schema is None:
        return None
    proto = _plain_node(node, domain, attributes)
    newest = _newest(schema.context_dependent_function_opset_versions, version)
    if newest is not None:
        return TypedBody(proto, schema, newest, opsets, run_model), FUNCTION_BODY
    if _in_reference(domain, node.op_type, version):
        return ReferenceNode(proto, opsets), REFERENCE
    return None


def body_model(
    node: ir.Node, opsets: Mapping[str, int], attributes: Mapping[str, ir.Attr], inputs: Sequence[Any]
) -> ir.Model | None:
    """Return a model of one node that runs by its schema's function body, None when there is no body.

    inputs: the node's, whose types the body may depend on. Inputs are named i0 …, outputs o0 …
    """
    domain = canonical_domain(node.domain)
    version = opsets.get(domain, 1)
    schema = find_schema(domain, node.op_type, version)
    if schema is None:
        return None
    proto = _plain_node(node, domain, attributes)
    typed = _newest(schema.context_dependent_function_opset_versions, version)
    if typed is not None:
        types = tuple(_type_of(value).SerializeToString(deterministic=True) for value in inputs)
        body = TypedBody(proto, schema, typed, opsets, lambda model: lambda feeds: {})
        return ir.serde.deserialize_model(body.model(types))
    newest = _newest(schema.function_opset_versions, version)
    if newest is None:
        return None
    function = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(newest))
    _import_missing(function, opsets)
    return ir.serde.deserialize_model(_single_node_model(proto, opsets, (_with_defaults(function, schema),)))


def _plain_node(node: ir.Node, domain: str, attributes: Mapping[str, ir.Attr]) -> onnx.NodeProto:
    """Return the node with inputs i0 …, outputs o0 …, and attributes that hold their values."""
    inputs = ["" if value is None else f"i{place}" for place, value in enumerate(node.inputs)]
    outputs = [f"o{place}" if value.name else "" for place, value in enumerate(node.outputs)]
    proto = helper.make_node(node.op_type, inputs, outputs, name=node.name or "node", domain=domain)
    for name, attribute in attributes.items():
        proto.attribute.append(ir.serde.serialize_attribute(attribute))
        proto.attribute[-1].name = name
    return proto


def _single_node_model(
    node: onnx.NodeProto, opsets: Mapping[str, int], functions: tuple[onnx.FunctionProto, ...] = ()
) -> onnx.ModelProto:
    inputs = [helper.make_empty_tensor_value_info(name) for name in node.input if name]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def _type_of(value: Any) -> onnx.TypeProto:
    """Return the ONNX type of a run-time value; an empty one for an omitted input."""
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        return helper.make_sequence_type_proto(_type_of(value[0] if value else np.zeros((), np.float32)))
    number = ir.DataType.STRING if value.dtype == np.dtype(object) else ir.DataType.from_numpy(value.dtype)
    return helper.make_tensor_type_proto(int(number), value.shape)


def _drop_absent_outputs(node: onnx.NodeProto, body: onnx.FunctionProto) -> None:
    """Remove from both the outputs that the body was built without, since the node does not list them."""
    made = {*body.input, *(name for step in body.node for name in step.output)}
    pairs = [(own, inner) for own, inner in zip(node.output, body.output, strict=False) if inner in made]
    node.output[:] = [own for own, _ in pairs]
    body.output[:] = [inner for _, inner in pairs]


def _import_missing(body: onnx.FunctionProto, opsets: Mapping[str, int]) -> None:
    """Let the body use the model's version of each domain for which it names none."""
    named = {entry.domain for entry in body.opset_import}
    missing = {domain: version for domain, version in opsets.items() if domain not in named}
    body.opset_import.extend(helper.make_opsetid(*entry) for entry in missing.items())


@dataclass(slots=True)
class TypedBody:
    """An operator that runs by the body which ONNX builds for the types of its inputs."""

    node: onnx.NodeProto
    schema: Schema
    body_version: int
    opsets: Mapping[str, int]
    run_model: RunModel
    made: dict[tuple[bytes, ...], Any] = field(default_factory=dict)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        types = tuple(_type_of(value).SerializeToString(deterministic=True) for value in inputs)
        if types not in self.made:
            if len(self.made) >= _KEPT:
                self.made.clear()
            self.made[types] = self.run_model(ir.serde.deserialize_model(self.model(types)))
        given = zip(self.node.input, inputs, strict=True)
        results = self.made[types]({name: value for name, value in given if name})
        return tuple(results.get(name) for name in self.node.output)

    def model(self, types: tuple[bytes, ...]) -> onnx.ModelProto:
        """Return a model of the node and the body for inputs of these types."""
        raw = self.schema.get_context_dependent_function_with_opset_version(
            self.body_version, self.node.SerializeToString(), list(types)
        )
        proto = onnx.FunctionProto.FromString(raw)
        if not proto.node:
            raise ValueError(f"ONNX builds no function body of {self.node.op_type} for these inputs")
        node = onnx.NodeProto.FromString(self.node.SerializeToString())
        _drop_absent_outputs(node, proto)
        _import_missing(proto, self.opsets)
        return _single_node_model(node, self.opsets, (_with_defaults(proto, self.schema),))


@dataclass(slots=True)
class ReferenceNode:
    """An operator that runs by ONNX's reference implementation, on the host."""

    node: onnx.NodeProto
    opsets: Mapping[str, int]
    evaluator: Any = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        from onnx.reference import ReferenceEvaluator

        if self.evaluator is None:
            self.evaluator = ReferenceEvaluator(_single_node_model(self.node, self.opsets))
        feeds = {name: to_host(x) for name, x in zip(self.node.input, inputs, strict=True) if name}
        results = dict(zip(self.evaluator.output_names, self.evaluator.run(None, feeds), strict=True))
        return tuple(results.get(name) for name in self.node.output)


def _in_reference(domain: str, name: str, version: int) -> bool:
    from onnx.reference.ops import load_op

    try:
        load_op(domain, name, version)
    except (RuntimeError, ValueError):  # what load_op raises for a name or a domain that it lacks
        return False
    return True
