"""What inference states of a model, held against a run: every value, inside subgraphs and functions too."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.infer import Facts
from graphdoc.engine.infer_control import bodies
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.ops.dims import substitute, symbols
from graphdoc.engine.ops.table import ContainerType, Dim, TensorType
from graphdoc.engine.scope import FUNCTION, MAIN, Occurrences, enter, qualified

Sizes = dict[str, int]


def values(
    model: ir.Model, graph: ir.Graph | ir.Function | None = None, scope: str = MAIN
) -> Iterator[tuple[str, ir.Value]]:
    """Yield (tap name, value) of all computed values, inside subgraphs and called functions too."""
    for node in model.graph if graph is None else graph:
        first = next((v.name for v in node.outputs if v.name), None) or node.name or node.op_type
        yield from ((qualified(scope, value.name), value) for value in node.outputs if value.name)
        for name, inner in bodies(node).items():
            yield from values(model, inner, enter(scope, first, name))
        if node.op_identifier() in model.functions:
            yield from values(model, model.functions[node.op_identifier()], enter(scope, first, FUNCTION))


def bound(facts: Facts, feeds: Mapping[str, Any], model: ir.Model) -> Sizes:
    """Return the size of every symbol of the inputs."""
    sizes: Sizes = {}
    for value in model.graph.inputs:
        fed = feeds.get(str(value.name))
        shape = facts.of(value).shape
        if not isinstance(fed, np.ndarray) or shape is None:
            continue
        for dim, size in zip(shape, fed.shape, strict=True):
            if isinstance(dim, str) and symbols(dim) == {dim}:
                assert sizes.setdefault(dim, size) == size, f"symbol {dim} is {sizes[dim]} and {size}"
    return sizes


def number(dim: Dim, sizes: Sizes) -> int | None:
    """Return a size with the symbols put in; None when it is not stated or holds another symbol."""
    found = substitute(dim, dict(sizes))
    return found if isinstance(found, int) else None


def untrue(known: TensorType, value: Any, sizes: Sizes) -> str | None:
    """Return what a type gets wrong about a value of a run, None when it is right."""
    if isinstance(known, ContainerType) or value is None or isinstance(value, list):
        return _untrue_items(known, value, sizes)
    value = np.asarray(value)
    if known.dtype is not None and known.dtype != value.dtype:
        return f"dtype {known.dtype} for {value.dtype}"
    if known.shape is not None:
        stated = [number(dim, sizes) for dim in known.shape]
        agrees = len(stated) == value.ndim
        if not agrees or any(n not in (None, m) for n, m in zip(stated, value.shape, strict=True)):
            return f"shape {known.shape} ({stated}) for {value.shape}"
    if known.value is not None and not _same_content(known.value, value):
        return f"content {known.value!r:.60} for {value!r:.60}"
    for entry, actual in zip(known.elements or (), value.reshape(-1).tolist(), strict=False):
        if number(entry, sizes) not in (None, actual):
            return f"entries {known.elements} for {value.tolist()}"
    return None


def _same_content(a: Any, b: Any) -> bool:
    if b.dtype == object:
        return bool(a.tolist() == b.tolist())
    return bool(a.tobytes() == np.ascontiguousarray(b).tobytes())


def _untrue_items(known: TensorType, value: Any, sizes: Sizes) -> str | None:
    if not isinstance(known, ContainerType):
        return None if known.shape is None and known.dtype is None else f"{known} for {type(value).__name__}"
    if known.kind == "optional":
        return None if value is None else untrue(known.item, value, sizes)
    if not isinstance(value, list):
        return f"a sequence for {type(value).__name__}"
    if number(known.length, sizes) not in (None, len(value)):
        return f"{known.length} items for {len(value)}"
    return next((text for item in value if (text := untrue(known.item, item, sizes))), None)


def observed(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return every value of one run by tap name; Occurrences inside subgraphs."""
    return Interpreter(model).run(feeds, taps=[key for key, _ in values(model)])


def complaints(
    model: ir.Model, feeds: Mapping[str, Any], results: Mapping[str, Any], *, claims: bool = False
) -> list[str]:
    """Return what inference gets wrong about the results of a run on these inputs.

    model: the one that ran, or the same with less known of its inputs, or more.
    """
    facts = Facts(model, claims=claims)
    sizes = bound(facts, feeds, model)
    found = []
    for key, value in values(model):
        if key not in results:
            continue  # it did not run, or is a constant
        actual, known = results[key], facts.of(value)
        runs = actual if isinstance(actual, Occurrences) else [actual]
        found += [f"{key}: {text}" for each in runs if (text := untrue(known, each, sizes))][:1]
    return found


def without_sizes(model: ir.Model) -> ir.Model:
    """Return the model with inputs of known rank whose sizes are not declared; changed in place."""
    for value in model.graph.inputs:
        if value.shape is not None and isinstance(value.type, ir.TensorType):
            value.shape = ir.Shape([None] * len(value.shape))
    return model


def with_content(model: ir.Model, feeds: Mapping[str, Any]) -> ir.Model:
    """Return the model with its tensor inputs held as initializers; changed in place."""
    for value in list(model.graph.inputs):
        fed = feeds.get(str(value.name))
        if isinstance(fed, np.ndarray) and fed.dtype != object and isinstance(value.type, ir.TensorType):
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(fed, dtype=value.dtype, name=value.name)
            value.shape = ir.Shape(fed.shape)
            model.graph.initializers[str(value.name)] = value
    return model
