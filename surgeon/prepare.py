"""What is done to a model before rules run: what an edited file needs to be sound, and what was asked for."""

from fnmatch import fnmatchcase
from typing import Any

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.engine.feeds import dim_of
from graphdoc.engine.ops.table import canonical_domain
from graphdoc.surgeon.edit_find import subgraphs
from graphdoc.surgeon.schemas import exists

DEFAULTS_OVERRIDABLE = 4
"""The ONNX IR version from which on initializers need not be inputs, and those that are can be overridden."""


def prepare(model: ir.Model, options: Any) -> dict[ir.Node, str]:
    """Ready a model for editing, in place; return the calls that inlining was asked for and left, and why.

    1. Files before IR version 4 list weights as inputs although they are constants: they become version 4.
    2. Inputs get the shapes asked for, frozen inputs lose their place among the inputs.
    3. Calls of the model's own functions are replaced by their bodies, if asked for.
    4. The model is brought to another opset, if asked for.
    5. Of nodes with the same name all but the first get another one; ONNX Runtime refuses such files.

    Raises UsageError for inputs that do not exist and shapes that contradict the model.
    """
    if model.ir_version and model.ir_version < DEFAULTS_OVERRIDABLE:
        _drop_defaults(model.graph, ("*",))
        model.ir_version = DEFAULTS_OVERRIDABLE
    if options.shapes:
        set_shapes(model, dict(options.shapes))
    for glob in options.freeze:
        if not _drop_defaults(model.graph, (glob,)):
            raise _nothing_to_freeze(model.graph, glob)
    calls = inline_functions(model) if options.inline and model.functions else {}
    if options.to_opset is not None:
        from graphdoc.surgeon.edit_opset import convert_opset

        convert_opset(model, options.to_opset)
    for graph in model.graphs():
        unique_node_names(graph)
    for function in model.functions.values():
        unique_node_names(function.graph)
    return calls


def inline_functions(model: ir.Model) -> dict[ir.Node, str]:
    """Replace calls of the model's functions by their bodies; return the calls left, and why."""
    from onnx_ir.passes.common import InlinePass

    left = _not_inlined(model)
    InlinePass(criteria=lambda function: function.identifier() not in left)(model)
    nodes = (node for graph in _graphs(model) for node in graph)
    return {node: left[node.op_identifier()] for node in nodes if node.op_identifier() in left}


def _graphs(model: ir.Model) -> list[ir.Graph]:
    inner = (graph for function in model.functions.values() for graph in function.subgraphs())
    return [*model.graphs(), *(function.graph for function in model.functions.values()), *inner]


def _not_inlined(model: ir.Model) -> dict[Any, str]:
    """Return the functions whose bodies cannot stand in for their calls, and why."""
    imports = {canonical_domain(domain): version for domain, version in model.opset_imports.items()}
    left: dict[Any, str] = {}
    for key, function in model.functions.items():
        if exists(canonical_domain(function.domain), function.name):
            left[key] = "an operator has its name: the runtime decides which of the two is meant"
        for domain, version in function.opset_imports.items():
            known = imports.setdefault(canonical_domain(domain), version)
            if known != version:
                name = domain or "ai.onnx"
                left[key] = f"its body is written in {name} {version}, and the model in {name} {known}"
    for node in (node for graph in _graphs(model) for node in graph):
        called = model.functions.get(node.op_identifier())
        if called is not None and any(True for _ in subgraphs(node)):
            left[called.identifier()] = "a call passes a graph"
        elif called is not None and len(node.inputs) > len(called.inputs):
            left[called.identifier()] = "a call passes more inputs than it takes"
    return left


def _drop_defaults(graph: ir.Graph, globs: tuple[str, ...]) -> int:
    """Take initializers off the list of inputs; return how many."""
    found = [
        value
        for value in graph.inputs
        if value.is_initializer() and any(fnmatchcase(str(value.name), glob) for glob in globs)
    ]
    for value in found:
        graph.inputs.remove(value)
    return len(found)


def _nothing_to_freeze(graph: ir.Graph, glob: str) -> UsageError:
    have = [str(value.name) for value in graph.inputs if value.is_initializer()]
    return UsageError(
        f"no input with a default value is called '{glob}'",
        where="inputs with a default: " + (", ".join(have) or "none"),
        next_step="--shape NAME=1x3x224x224 fixes the size of an input",
    )


def unique_node_names(graph: ir.Graph) -> None:
    """Give each node whose name another node of the graph has before it a name of its own."""
    names = [node.name for node in graph if node.name]
    if len(set(names)) == len(names):
        return
    taken, seen = set(names), set()
    for node in graph:
        if node.name and node.name in seen:
            node.name = _unused(node.name, taken)
        seen.add(node.name)


def _unused(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def set_shapes(model: ir.Model, shapes: dict[str, tuple[Any, ...]]) -> None:
    """Give inputs, or symbols, fixed sizes; a symbol takes its size wherever it is declared.

    Raises UsageError for unknown names, other ranks, and sizes that the model or another input contradicts.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    declared = (dim_of(dim) for value in inputs.values() for dim in value.shape or ())
    symbols = {dim for dim in declared if isinstance(dim, str)}
    sizes: dict[str, int] = {}
    for name, dims in shapes.items():
        if name in inputs:
            _bind(inputs[name], dims, sizes)
        elif name in symbols and len(dims) == 1:
            _set_size(name, dims[0], sizes)
        else:
            raise _unknown(name, inputs, symbols)
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.outputs, *(v for node in graph for v in node.outputs)):
            value.shape = _substituted(value.shape, sizes)


def _set_size(symbol: str, size: int, sizes: dict[str, int]) -> None:
    if sizes.setdefault(symbol, size) != size:
        raise UsageError(
            f"size '{symbol}' is given as {sizes[symbol]} and as {size}",
            where="--shape",
            next_step="give both inputs the same size",
        )


def _unknown(name: str, inputs: dict[str, ir.Value], symbols: set[str]) -> UsageError:
    return UsageError(
        f"there is no input and no size '{name}'",
        where=f"inputs: {', '.join(inputs)}; sizes: {', '.join(sorted(symbols)) or 'none'}",
        next_step="--shape NAME=1x3x224x224, or --shape SYMBOL=4",
    )


def _bind(value: ir.Value, dims: tuple[Any, ...], sizes: dict[str, int]) -> None:
    """Set the shape of an input and note the sizes of its symbols."""
    declared = _declared(value, len(dims))
    if len(declared) != len(dims):
        raise _contradiction(value, dims, f"has {len(declared)} dimensions")
    for old, new in zip(declared, dims, strict=True):
        symbol = None if isinstance(old, int) else old.value
        known = old if isinstance(old, int) else sizes.get(str(symbol)) if symbol else None
        if known is not None and isinstance(new, int) and known != new:
            raise _contradiction(value, dims, f"has {known} where {new} is asked for")
        if symbol and isinstance(new, int):
            _set_size(symbol, new, sizes)
    denotations = [None if value.shape is None else value.shape.get_denotation(i) for i in range(len(dims))]
    kept = [new if isinstance(new, int) else old for old, new in zip(declared, dims, strict=True)]
    value.shape = ir.Shape(kept, denotations=denotations)


def _declared(value: ir.Value, rank: int) -> list[int | ir.SymbolicDim]:
    """Return the dims of an input; those that it does not tell, or writes as -1 or "?", are open."""
    if value.shape is None:
        return [ir.SymbolicDim(None)] * rank
    dims = map(dim_of, value.shape)
    return [dim if isinstance(dim, int) else ir.SymbolicDim(dim) for dim in dims]


def _contradiction(value: ir.Value, dims: tuple[Any, ...], what: str) -> UsageError:
    return UsageError(
        f"input '{value.name}' {what}",
        where=f"--shape {value.name}={'x'.join(map(str, dims))}",
        next_step="look at the inputs:  graphdoc inspect MODEL",
    )


def _substituted(shape: ir.Shape | None, sizes: dict[str, int]) -> ir.Shape | None:
    """Return the shape with symbols replaced by their sizes."""
    if shape is None or not any(isinstance(d, ir.SymbolicDim) and d.value in sizes for d in shape):
        return shape
    dims = [d if isinstance(d, int) else sizes.get(str(d.value), d) for d in shape]
    return ir.Shape(dims, denotations=[shape.get_denotation(i) for i in range(len(shape))])
