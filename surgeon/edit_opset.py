"""Another opset: the number alone where all operators mean the same, else ONNX's version converter."""

import onnx
import onnx.version_converter
import onnx_ir as ir

from graphdoc.engine.errors import ModelError, UsageError
from graphdoc.engine.ops.table import canonical_domain
from graphdoc.surgeon.edit_find import defined_in, main_places
from graphdoc.surgeon.edit_types import skeleton
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.schemas import newest, signature
from graphdoc.surgeon.stubs import refuse_stripped


def convert_opset(model: ir.Model, version: int) -> bool:
    """Bring a model to another opset of ai.onnx, in place; return whether operators had to be converted.

    Where every operator of the model is the same in both versions only the number changes. Otherwise ONNX's
    version converter does the work; names, documentation and metadata are kept. Functions keep their own
    opsets.

    Raises UsageError for a version that does not exist; ModelError when an operator cannot be converted, or
    the model's weights were stripped.
    """
    refuse_stripped(model, "another opset")
    latest = newest("") or 0
    if not 1 <= version <= latest:
        raise UsageError(
            f"there is no opset {version}: they go from 1 to {latest}", next_step="choose one of them"
        )
    old = model.opset_imports.get("", 1)
    changed = [node for place in main_places(model) for node in place.graph if _differs(node, old, version)]
    if changed:
        _convert(model, version)
    model.opset_imports[""] = version
    return bool(changed)


def _differs(node: ir.Node, old: int, new: int) -> bool:
    if canonical_domain(node.domain):
        return False
    before, after = signature("", node.op_type, old), signature("", node.op_type, new)
    return before is None or after is None or before.since != after.since


def _convert(model: ir.Model, version: int) -> None:
    """Replace the model's graph by what the version converter makes of it."""
    if model.functions:
        raise ModelError(
            "a model with functions cannot be converted to another opset",
            next_step="inline its functions first: graphdoc simplify MODEL -o OUT --inline",
        )
    stored = {str(v.name): v.const_value for v in model.graph.initializers.values()}
    old = {_key(node): node for place in main_places(model) for node in place.graph}
    values = {str(v.name): v for v in defined_in(model.graph)}
    graph = read_model(_converted(model, version), None, external=False).graph
    for name, value in graph.initializers.items():
        value.const_value = stored.get(name, value.const_value)
    for value in defined_in(graph):
        _keep_value(value, values.get(str(value.name)))
    for node in graph.all_nodes():
        _keep_node(node, old.get(_key(node)))
    graph.doc_string, graph.name = model.graph.doc_string, model.graph.name
    graph.metadata_props.update(model.graph.metadata_props)
    graph.opset_imports.update(model.graph.opset_imports)
    model.graph = graph


def _key(node: ir.Node) -> tuple[str, str]:
    return node.op_type, next((str(value.name) for value in node.outputs if value.name), "")


def _converted(model: ir.Model, version: int) -> onnx.ModelProto:
    try:
        return onnx.version_converter.convert_version(skeleton(model), version)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if not line.startswith("at ")), type(error).__name__)
        raise ModelError(
            f"ONNX's version converter cannot bring the model to opset {version}: {reason[:200]}",
            next_step="export the model again with that opset",
        ) from error


def _keep_value(value: ir.Value, old: ir.Value | None) -> None:
    """Keep what the converter drops of a value."""
    if old is not None:
        value.doc_string = old.doc_string
        value.metadata_props.update(old.metadata_props)
        value.meta.update(old.meta)
        value.type, value.shape = old.type or value.type, old.shape if old.shape is not None else value.shape


def _keep_node(node: ir.Node, old: ir.Node | None) -> None:
    """Keep what the converter drops of a node."""
    if old is not None:
        node.name, node.doc_string = old.name, old.doc_string
        node.metadata_props.update(old.metadata_props)
