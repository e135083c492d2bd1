"""Passes over a whole graph: what no node alone can tell (equal nodes, equal constants, what nobody uses)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.attributes import to_array
from graphdoc.surgeon.external import ExternalWeights
from graphdoc.surgeon.reader import annotation_names
from graphdoc.surgeon.rules.base import Context, Edit, Refusal, has_references, subgraphs, use_count, walk
from graphdoc.surgeon.rules.fold import is_random
from graphdoc.surgeon.rules.parallel import merge_parallel

Root = ir.Graph | ir.Function
Done = tuple[ir.Node | None, Edit | Refusal]


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A pass: edits a graph or function and yields what it did, after each edit, and what it refused."""

    name: str
    group: str
    run: Callable[[Root, Context], Iterator[Done]]
    ops: tuple[str, ...] = ()
    default: bool = True

    def apply(self, node: ir.Node, context: Context) -> None:
        """A pass is not tried at nodes."""


def graphs_of(root: Root) -> list[ir.Graph]:
    """Return a graph or function's own graph and all graphs inside it, outer ones first."""
    first = root.graph if isinstance(root, ir.Function) else root
    found = [first]
    for node in walk(first):
        found.extend(subgraphs(node))
    return found


def _unused_initializers(root: Root, context: Context) -> Iterator[Done]:
    """Remove constants that nothing reads and no caller can set."""
    for graph in graphs_of(root):
        named = annotation_names(graph) if graph.initializers else set()
        for name, value in list(graph.initializers.items()):
            needed = use_count(value) or value.is_graph_output() or value.is_graph_input() or name in named
            if not needed and not context.kept(value):
                del graph.initializers[name]
                yield None, Edit(f"'{name}' is used by nothing")


SMALLEST_HASHED = 2**16
"""Bytes from which on two constants must have the same first bytes before all of them are read."""


def _duplicate_initializers(root: Root, context: Context) -> Iterator[Done]:
    """Let equal constants of a graph be one."""
    for graph in graphs_of(root):
        groups: dict[Any, list[ir.Value]] = {}
        named = annotation_names(graph) if graph.initializers else set()
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and not value.is_graph_input() and value.name not in named:
                groups.setdefault((tensor.dtype, tuple(tensor.shape)), []).append(value)
        for values in groups.values():
            if len(values) > 1:
                yield from _merge_equal(values, context)


def _merge_equal(values: list[ir.Value], context: Context) -> Iterator[Done]:
    """Merge values of one dtype and shape whose content is equal bit for bit."""
    seen: dict[Any, ir.Value] = {}
    by_head: dict[Any, list[ir.Value]] = {}
    for value in values:
        by_head.setdefault(_head(value), []).append(value)
    for alike in by_head.values():
        if len(alike) == 1:
            continue
        for value in alike:
            first = seen.setdefault(_content(value), value)
            if first is value or value.is_graph_output() or context.kept(value):
                continue
            context.replace(value, first)
            yield None, Edit(f"'{value.name}' equals '{first.name}'")


def _head(value: ir.Value) -> Any:
    """Return a cheap mark that equal contents share: of large tensors the first elements."""
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < SMALLEST_HASHED:
        return None
    return np.ascontiguousarray(tensor.numpy().reshape(-1)[:64]).tobytes()


def _content(value: ir.Value) -> Any:
    tensor = value.const_value
    if tensor is None:
        return None
    if tensor.dtype == ir.DataType.STRING:
        return tuple(to_array(tensor).reshape(-1))
    if tensor.nbytes < SMALLEST_HASHED:
        return tensor.tobytes()
    import hashlib

    digest = hashlib.sha256(np.ascontiguousarray(tensor.numpy()).view(np.uint8).data).digest()
    if isinstance(tensor, ExternalWeights):
        tensor.release()
    return digest


def _common_subexpressions(root: Root, context: Context) -> Iterator[Done]:
    """Let nodes that compute the same from the same inputs be one; random operators never are."""
    first = root.graph if isinstance(root, ir.Function) else root
    yield from _merge_nodes(first, {}, context)


def _merge_nodes(graph: ir.Graph, outer: dict[Any, ir.Node], context: Context) -> Iterator[Done]:
    seen = dict(outer) if outer else {}
    for node in graph:
        inner = subgraphs(node)
        for item in inner:
            yield from _merge_nodes(item, seen, context)
        if inner or not _mergeable(node, context):
            continue
        twin = seen.setdefault(_meaning(node), node)
        if twin is node:
            continue
        pairs = list(zip(node.outputs, twin.outputs, strict=True))
        if not all(context.takes_name(old, new) and new.name for old, new in pairs if _needed(old)):
            continue
        for old, new in pairs:
            if _needed(old):
                context.replace(old, new)
        context.touch(node)
        yield node, Edit(f"computes the same as '{twin.name or twin.outputs[0].name}'")


def _needed(value: ir.Value) -> bool:
    return bool(use_count(value) or value.is_graph_output())


def _mergeable(node: ir.Node, context: Context) -> bool:
    if not node.outputs or context.kept(node) or has_references(node):
        return False
    if node.op_identifier() in context.model.functions:
        return False
    return node.op_type != "Constant" and not is_random(node, context)


def _meaning(node: ir.Node) -> Any:
    """Return what makes two nodes the same: operator, inputs, attributes, and which outputs are asked for."""
    attributes = sorted((name, *_plain(item)) for name, item in node.attributes.items())
    return (
        node.op_identifier(),
        tuple(id(value) for value in node.inputs),
        tuple(attributes),
        tuple(bool(value.name) for value in node.outputs),
    )


def _plain(attribute: ir.Attr) -> tuple[str, Any]:
    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.type.name, (value.dtype, tuple(value.shape), _bytes(value))
    if isinstance(value, int | float | str | bytes):
        # -0.0 and 0.0 are equal to Python, NaN is not even equal to itself
        return attribute.type.name, repr(value)
    if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return attribute.type.name, repr(list(value))
    return attribute.type.name, id(attribute)


def _bytes(tensor: ir.TensorProtocol) -> Any:
    return tuple(to_array(tensor).reshape(-1)) if tensor.dtype == ir.DataType.STRING else tensor.tobytes()


def _unused_functions(root: Root, context: Context) -> Iterator[Done]:
    """Remove functions that nothing calls."""
    if root is not context.model.graph:
        return
    functions = context.model.functions
    calls = {node.op_identifier() for node in walk(root)}
    left = [functions[key] for key in calls if key in functions]
    used = {function.identifier() for function in left}
    while left:
        inner = {node.op_identifier() for node in walk(left.pop())} & functions.keys() - used
        used |= inner
        left += [functions[key] for key in inner]
    for key in [key for key in functions if key not in used]:
        del functions[key]
        yield None, Edit(f"no node calls function '{key[1]}'")


def _merge_parallel_products(root: Root, context: Context) -> Iterator[Done]:
    """Let products of one value with several constant matrices be one."""
    for graph in graphs_of(root):
        yield from merge_parallel(graph, context)


PASSES = (
    GraphPass("duplicate-initializers", "clean", _duplicate_initializers),
    GraphPass("common-subexpressions", "clean", _common_subexpressions),
    GraphPass("merge-parallel-matmul", "linear", _merge_parallel_products),
    GraphPass("unused-initializers", "clean", _unused_initializers),
    GraphPass("unused-functions", "clean", _unused_functions),
)
