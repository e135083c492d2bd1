"""Functions of a model: made from a part of it, and called in its place."""

from collections.abc import Sequence

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.edit_extract import extract
from graphdoc.surgeon.edit_find import Index, ValueLike
from graphdoc.surgeon.edit_graph import replace

FUNCTION_IR = 8
"""The IR version from which models have functions."""


def outline(
    model: ir.Model,
    inputs: Sequence[ValueLike],
    outputs: Sequence[ValueLike],
    name: str,
    *,
    domain: str = "local",
) -> ir.Node:
    """Move what computes ``outputs`` from ``inputs`` into a function; return the node that calls it.

    Weights that the part reads are passed to the function behind ``inputs``. Values and nodes keep their
    names inside.

    Raises UsageError for unknown names, a function that exists, or a part that does not start at ``inputs``.
    """
    if any((f.domain, f.name) == (domain, name) for f in model.functions.values()):
        raise UsageError(f"the model has a function {domain}::{name}", next_step="choose another name")
    if not domain:
        raise UsageError("a function needs a domain of its own", next_step="domain='local'")
    index = Index(model)
    found = [index.value(value) for value in inputs]
    part = extract(model, found, outputs).graph
    weights = list(part.initializers)
    stored = [index.value(title) for title in weights]
    for title in weights:
        value = part.initializers.pop(title)
        value.const_value = None
        if not value.is_graph_input():
            part.inputs.append(value)
    function = ir.Function(domain, name, graph=part, attributes=[])
    model.functions[function.identifier()] = function
    extra = [value for value in stored if value not in found]
    try:
        node = replace(model, outputs, name, [*found, *extra], domain=domain, name=name)
    except Exception:
        del model.functions[function.identifier()]
        raise
    model.ir_version = max(model.ir_version, FUNCTION_IR)
    return node
