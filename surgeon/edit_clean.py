"""Tidying up: order, dead parts, constants, documentation, versions and metadata."""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError, UsageError
from graphdoc.surgeon.edit_extract import remove_unused_functions
from graphdoc.surgeon.edit_find import places
from graphdoc.surgeon.edit_flow import remove_dead, sort_if_needed
from graphdoc.surgeon.reader import annotation_names


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed: counts, and the names of functions and inputs."""

    nodes: int = 0
    initializers: int = 0
    functions: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


def toposort(model: ir.Model) -> None:
    """Bring nodes into an order in which each comes after what it reads, in subgraphs and functions too.

    What is in order already stays as it is. Raises ModelError for a cycle.
    """
    sort_if_needed(model)


def cleanup(model: ir.Model, *, inputs: bool = False) -> Cleaned:
    """Remove what no output needs: nodes, initializers, functions; in subgraphs and functions too.

    Outputs of nodes and the interface stay. inputs: remove inputs that nothing reads, too.
    """
    toposort(model)
    before = sum(1 for place in places(model) for _ in place.graph)
    held = sum(len(place.graph.initializers) for place in places(model))
    remove_dead(model, [node for place in places(model) for node in place.graph])
    for place in places(model):
        _drop_initializers(place.graph)
    unread = _unread_inputs(model) if inputs else []
    for value in unread:
        model.graph.inputs.remove(value)
        model.graph.initializers.pop(str(value.name), None)
    return Cleaned(
        before - sum(1 for place in places(model) for _ in place.graph),
        held - sum(len(place.graph.initializers) for place in places(model)),
        tuple(remove_unused_functions(model)),
        tuple(str(value.name) for value in unread),
    )


def _drop_initializers(graph: ir.Graph) -> None:
    kept = {*graph.inputs, *graph.outputs}
    named = annotation_names(graph)
    for name, value in list(graph.initializers.items()):
        given_out = value.is_graph_output() or name in named
        if not value.uses() and value not in kept and not given_out:
            graph.initializers.pop(str(value.name))


def _unread_inputs(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.uses() and not value.is_graph_output()]


def fold(model: ir.Model, *, max_growth: int = 2**20) -> list[str]:
    """Compute once what is the same in every run, in place; return a line for each folded node.

    Rounding may differ in the last place from what a runtime computes. Random operators, defaults of inputs
    and weights that are quantized on purpose are left alone. max_growth: bytes that folding may add in all.

    Raises ModelError for a model whose weights were stripped.
    """
    from graphdoc.surgeon.simplify import Options, simplify  # takes a while to import

    options = Options(only=FOLDING, max_growth=max_growth)
    found = simplify(model, options, fresh=lambda: model)
    return [f"{edit.node}: {edit.text}" for edit in found.report.done]


FOLDING = ("fold-constants", "fold-shapes")
"""The rules of surgeon/rules that compute constants."""

STRIPPED = ("docs", "metadata", "types", "names")
"""What :func:`strip` can take away."""


def strip(model: ir.Model, what: Iterable[str] = ("docs", "metadata")) -> None:
    """Take away what no run needs, everywhere.

    what: "docs" documentation, "metadata" key–value pairs of graphs, nodes and values (those of the model
    stay), "types" declared types of inner values, "names" names of nodes.

    Raises UsageError for another word.
    """
    kinds = set(what)
    strange = sorted(kinds - set(STRIPPED))
    if strange:
        raise UsageError(f"cannot strip '{strange[0]}'", next_step=f"one of {', '.join(STRIPPED)}")
    if "docs" in kinds:
        model.doc_string = None
    for place in places(model):
        _strip_graph(place.graph, kinds)
    for function in model.functions.values():
        if "docs" in kinds:
            function.doc_string = None
        if "metadata" in kinds:
            function.metadata_props.clear()


def _strip_graph(graph: ir.Graph, kinds: set[str]) -> None:
    parts = [
        graph,
        *graph,
        *graph.inputs,
        *graph.initializers.values(),
        *(v for n in graph for v in n.outputs),
    ]
    for part in parts:
        if "docs" in kinds:
            part.doc_string = None
        if "metadata" in kinds and part.metadata_props:
            part.metadata_props.clear()
    for node in graph if "names" in kinds else ():
        node.name = ""
    interface = {*graph.inputs, *graph.outputs}
    for node in graph if "types" in kinds else ():
        for value in node.outputs:
            if value not in interface:
                value.type, value.shape = None, None


def set_ir_version(model: ir.Model, version: int) -> None:
    """Set the version of the file format.

    Raises UsageError for a version that does not exist; ModelError when the model holds what it lacks.
    """
    latest = int(onnx.IR_VERSION)
    if not 3 <= version <= latest:
        raise UsageError(f"IR version {version} cannot be written", next_step=f"choose 3 to {latest}")
    needed = max(_needed_ir_versions(model), default=(3, ""))
    if version < needed[0]:
        raise ModelError(
            f"IR version {version} is too old for {needed[1]}", next_step=f"choose {needed[0]} or newer"
        )
    model.ir_version = version


_DTYPE_SINCE = {
    ir.DataType.BFLOAT16: 4,
    ir.DataType.FLOAT8E4M3FN: 9,
    ir.DataType.FLOAT8E4M3FNUZ: 9,
    ir.DataType.FLOAT8E5M2: 9,
    ir.DataType.FLOAT8E5M2FNUZ: 9,
    ir.DataType.INT4: 10,
    ir.DataType.UINT4: 10,
    ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12,
    ir.DataType.INT2: 13,
    ir.DataType.UINT2: 13,
}
"""The IR version that introduced a dtype (ONNX, onnx.proto)."""


def _needed_ir_versions(model: ir.Model) -> Iterable[tuple[int, str]]:
    """Yield the IR versions that parts of the model ask for, and why."""
    if model.functions:
        yield 8, "functions"
    if any(function.overload for function in model.functions.values()):
        yield 10, "overloaded functions"
    if model.device_configurations:
        yield 11, "device configurations"
    stored = set(model.graph.initializers.values())
    if not stored.issubset(set(model.graph.inputs)):
        yield 4, "initializers that are no inputs"
    for place in places(model):
        if place.owner is not None and place.graph.initializers:
            yield 4, "initializers in subgraphs"
        for value in place.graph.initializers.values():
            if value.dtype in _DTYPE_SINCE:
                yield _DTYPE_SINCE[value.dtype], f"the dtype of '{value.name}'"
        if any(node.metadata_props for node in place.graph):
            yield 10, "metadata of nodes"


def set_metadata(model: ir.Model, key: str, text: str | None) -> None:
    """Set a key–value pair of the model, or remove it with None.

    Raises UsageError for a key to remove that is not there.
    """
    if text is not None:
        model.metadata_props[key] = text
    elif model.metadata_props.pop(key, None) is None:
        raise UsageError(
            f"the model has no metadata '{key}'",
            where=f"keys: {', '.join(model.metadata_props) or 'none'}",
            next_step="name one of its keys",
        )
