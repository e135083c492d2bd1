"""Stubs stand in place of the weights of a stripped model (surgeon/stripping.py); who must not read them.

A stub is a sparse tensor without elements whose metadata holds the SHA-256 of the weight. Runtimes read it as
zeros, so whatever decides by the content of weights (equal ones, additions of 0) would decide wrongly.
"""

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.engine.scope import qualified
from graphdoc.surgeon.edit_find import places

HASH = "graphdoc.sha256"

Found = tuple[str, onnx.SparseTensorProto, ir.Value | ir.Node]
"""The name of a stub with the way to it, its message, and the initializer or Constant node that holds it."""


def digest(sparse: onnx.SparseTensorProto) -> str:
    """Return the SHA-256 that a stub keeps of its weight, "" for a sparse tensor that is none."""
    return next((entry.value for entry in sparse.values.metadata_props if entry.key == HASH), "")


def stubs(model: ir.Model) -> Iterator[Found]:
    """Yield the stubs of a model, in subgraphs and functions too."""
    for place in places(model):
        for value in list(place.graph.initializers.values()):
            sparse = getattr(value.const_value, "sparse", None)
            if sparse is not None and digest(sparse):
                yield qualified(place.scope, str(value.name)), sparse, value
        for node in list(place.graph):
            attribute = node.attributes.get("sparse_value") if node.op_type == "Constant" else None
            proto = None if attribute is None or attribute.is_ref() else attribute.value.proto
            if proto is not None and digest(proto):
                yield qualified(place.scope, str(node.outputs[0].name)), proto, node


def is_stripped(model: ir.Model) -> bool:
    """Whether weights of a model were taken out, any of them."""
    return next(stubs(model), None) is not None


def stripped_remark(model: ir.Model) -> str:
    """Return what to say of results of a stripped model, "" for a whole one."""
    count = sum(1 for _ in stubs(model))
    if not count:
        return ""
    weights = f"{count} weights were" if count > 1 else "1 weight was"
    return f"{weights} stripped: zeros stand in their place, and the values mean little"


def refuse_stripped(model: ir.Model, what: str) -> None:
    """Raise ModelError for a stripped model. what: the work that needs the weights, in words."""
    found = next(stubs(model), None)
    if found is not None:
        raise ModelError(
            f"the model's weights were stripped, and {what} needs them: zeros stand in their place",
            where=f"weight {found[0]}",
            next_step="graphdoc weights restore MODEL --weights BEFORE -o OUT",
        )
