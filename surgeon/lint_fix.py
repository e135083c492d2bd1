"""Safe mends of lint rules: what they change, no runtime computes otherwise.

A mend works on the protobuf, where the fault stands. It leaves alone what it cannot settle: which of two
versions holds, what an input should be, what a person meant by a name.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import onnx
import onnx.helper

from graphdoc.engine.scope import MAIN, enter
from graphdoc.surgeon import lint_graph, lint_names, lint_types, lint_weights
from graphdoc.surgeon.checks import plain_domain
from graphdoc.surgeon.lint import fix
from graphdoc.surgeon.lint_types import contradictions
from graphdoc.surgeon.model import open_source
from graphdoc.surgeon.subject import Subject, defined, reads, used
from graphdoc.surgeon.types import value_type
from graphdoc.surgeon.weight_stats import dedup
from graphdoc.surgeon.writer import write_model

_REGISTERED = (lint_graph, lint_names, lint_types, lint_weights)
"""The modules whose rules are mended here; importing them registers the rules."""

_FIRST_WITH_FREE_WEIGHTS = 4
"""The IR version from which on initializers need not be inputs."""


def _places(model: onnx.ModelProto) -> Iterator[tuple[Any, str]]:
    """Yield the main graph, its subgraphs and the function bodies with the way to each, outer ones first."""
    left: list[tuple[Any, str]] = [(model.graph, MAIN)]
    left += [(function, f"{function.name}/") for function in model.functions]
    while left:
        graph, way = left.pop(0)
        yield graph, way
        for node in graph.node:
            first = next((name for name in node.output if name), None) or node.name or node.op_type
            for attribute in node.attribute:
                inner = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
                left += [(body, enter(way, first, attribute.name)) for body in inner]


def _keep(items: Any, kept: list[Any]) -> None:
    """Replace a repeated field by some of its items."""
    copies = [type(item).FromString(item.SerializeToString()) for item in kept]
    del items[:]
    items.extend(copies)


def _graphs(model: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto, str]]:
    yield from ((graph, way) for graph, way in _places(model) if isinstance(graph, onnx.GraphProto))


# Versions


@fix("no-ir-version")
def no_ir_version(model: onnx.ModelProto) -> Iterator[str]:
    """State the lowest IR version that the opsets need."""
    if model.ir_version < 1:
        needed = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
        inputs = {info.name for info in model.graph.input}
        free = any(tensor.name not in inputs for tensor in model.graph.initializer)
        model.ir_version = max(needed, _FIRST_WITH_FREE_WEIGHTS if free else 3)
        yield f"IR version {model.ir_version}"


@fix("opset-twice")
def opset_twice(model: onnx.ModelProto) -> Iterator[str]:
    """Keep one of several entries of equal version."""
    versions: dict[str, set[int]] = {}
    for item in model.opset_import:
        versions.setdefault(plain_domain(item.domain), set()).add(item.version)
    kept: dict[str, Any] = {}
    for place, item in enumerate(model.opset_import):
        domain = plain_domain(item.domain)
        kept.setdefault(domain if len(versions[domain]) == 1 else f"{domain} {place}", item)
    count = len(model.opset_import) - len(kept)
    if count:
        _keep(model.opset_import, list(kept.values()))
        yield f"{count} entries of opset_import dropped"


@fix("opset-unused")
def opset_unused(model: onnx.ModelProto) -> Iterator[str]:
    """Drop the entries of domains that no node uses."""
    domains = {plain_domain(node.domain) for graph, _ in _places(model) for node in graph.node} | {""}
    kept = [item for item in model.opset_import if plain_domain(item.domain) in domains]
    for item in model.opset_import:
        if plain_domain(item.domain) not in domains:
            yield f"opset_import {item.domain} dropped"
    if len(kept) < len(model.opset_import):
        _keep(model.opset_import, kept)


# Nodes


@fix("duplicate-attribute")
def duplicate_attribute(model: onnx.ModelProto) -> Iterator[str]:
    """Keep one of several equal entries."""
    for graph, way in _places(model):
        for node in graph.node:
            kept: dict[bytes, Any] = {
                item.SerializeToString(deterministic=True): item for item in reversed(node.attribute)
            }
            if len(kept) < len(node.attribute):
                _keep(node.attribute, list(reversed(kept.values())))
                yield f"equal attributes of {way}{_called(node)} dropped"


@fix("unsorted-nodes")
def unsorted_nodes(model: onnx.ModelProto) -> Iterator[str]:
    """Put each node after those it reads; the order is otherwise kept."""
    for graph, way in _places(model):
        order = list(_stable_order(list(graph.node)))
        if order != list(range(len(graph.node))):
            _keep(graph.node, [graph.node[place] for place in order])
            yield f"nodes of {way or 'the main graph'} sorted"


def _stable_order(nodes: list[onnx.NodeProto]) -> Iterator[int]:
    """Yield places: always the earliest node whose inputs are there."""
    import heapq

    maker = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in reads(node) if name in maker} - {n} for n, node in enumerate(nodes)]
    readers: dict[int, list[int]] = {}
    for place, wanted in enumerate(needs):
        for need in wanted:
            readers.setdefault(need, []).append(place)
    left = [len(wanted) for wanted in needs]
    ready = [place for place, count in enumerate(left) if not count]
    while ready:
        place = heapq.heappop(ready)
        yield place
        for reader in readers.get(place, ()):
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)


@fix("unused-node")
def unused_node(model: onnx.ModelProto) -> Iterator[str]:
    """Remove the nodes from which no way leads to an output."""
    for graph, way in reversed(list(_places(model))):  # inner graphs first: they read from outer ones
        is_graph = isinstance(graph, onnx.GraphProto)
        wanted = {info.name for info in graph.output} if is_graph else set(graph.output)
        alive: set[int] = set()
        nodes = list(graph.node)
        for place in reversed(list(_stable_order(nodes))):
            if not wanted.isdisjoint(nodes[place].output):
                alive.add(place)
                wanted |= reads(nodes[place])
        gone = [node for place, node in enumerate(nodes) if place not in alive]
        if gone:
            _keep(graph.node, [node for place, node in enumerate(nodes) if place in alive])
            yield f"{len(gone)} nodes of {way or 'the main graph'} removed, the first is {_called(gone[0])}"


@fix("trailing-empty-input")
def trailing_empty_input(model: onnx.ModelProto) -> Iterator[str]:
    """Drop omitted inputs at the end of the list."""
    count = 0
    for graph, _ in _places(model):
        for node in graph.node:
            while node.input and not node.input[-1]:
                node.input.pop()
                count += 1
    if count:
        yield f"{count} empty inputs dropped"


def _called(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or next((name for name in node.output if name), '')}".rstrip()


# Names


@fix("missing-node-name")
def missing_node_name(model: onnx.ModelProto) -> Iterator[str]:
    """Name nodes after their operator and place."""
    for graph, way in _places(model):
        taken = {node.name for node in graph.node}
        count = 0
        for place, node in enumerate(graph.node):
            if not node.name:
                node.name = _free(f"{node.op_type}_{place}", taken)
                count += 1
        if count:
            yield f"{count} nodes of {way or 'the main graph'} named"


@fix("duplicate-node-name")
def duplicate_node_name(model: onnx.ModelProto) -> Iterator[str]:
    """Give a node whose name another one has a number behind it."""
    for graph, way in _places(model):
        taken = {node.name for node in graph.node}
        seen: set[str] = set()
        for node in graph.node:
            if node.name and node.name in seen:
                old, node.name = node.name, _free(node.name, taken)
                yield f"{way}{old} renamed {node.name}"
            seen.add(node.name)


def _free(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, and take it."""
    found = name
    number = 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


@fix("stale-value-info")
def stale_value_info(model: onnx.ModelProto) -> Iterator[str]:
    """Drop descriptions of values that no graph has."""
    known = {name for graph, _ in _places(model) for name in defined(graph)}
    known_functions = tuple(f"{function.domain}::{function.name}/" for function in model.functions)
    count = 0
    for graph, _ in _graphs(model):
        kept = [i for i in graph.value_info if i.name in known or i.name.startswith(known_functions)]
        count += len(graph.value_info) - len(kept)
        if len(kept) < len(graph.value_info):
            _keep(graph.value_info, kept)
    if count:
        yield f"{count} entries of value_info dropped"


# Weights


@fix("unused-initializer")
def unused_initializer(model: onnx.ModelProto) -> Iterator[str]:
    """Remove initializers that nothing reads; those that are inputs too stay, since callers may feed them."""
    for graph, way in _graphs(model):
        names = used(graph) | {info.name for info in graph.input}
        gone = [tensor.name for tensor in graph.initializer if tensor.name and tensor.name not in names]
        for name in gone:
            yield f"{way}{name} removed"
        if gone:
            _keep(graph.initializer, [t for t in graph.initializer if not t.name or t.name in names])


@fix("initializer-name")
def initializer_name(model: onnx.ModelProto) -> Iterator[str]:
    """Remove initializers without a name, which no node can reach."""
    for graph, way in _graphs(model):
        named = [tensor for tensor in graph.initializer if tensor.name]
        if len(named) < len(graph.initializer):
            count = len(graph.initializer) - len(named)
            _keep(graph.initializer, named)
            yield f"{count} nameless initializers of {way or 'the main graph'} removed"


# Declarations


@fix("negative-dim")
def negative_dim(model: onnx.ModelProto) -> Iterator[str]:
    """Leave sizes below 0 open."""
    graph = model.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        below = [
            dim for dim in info.type.tensor_type.shape.dim if dim.HasField("dim_value") and dim.dim_value < 0
        ]
        for dim in below:
            dim.ClearField("dim_value")
        if below:
            yield f"{info.name}: {len(below)} negative sizes left open"


@fix("type-contradicts")
@fix("shape-contradicts")
def contradicting(model: onnx.ModelProto) -> Iterator[str]:
    """Drop descriptions of inner values that contradict the operators; leave such sizes of outputs open."""
    subject = Subject(open_source(model))
    wrong = {info.name: inferred for info, inferred in contradictions(subject)}
    graph = model.graph
    gone = [info.name for info in graph.value_info if info.name in wrong]
    if gone:
        _keep(graph.value_info, [info for info in graph.value_info if info.name not in wrong])
        yield f"{len(gone)} wrong entries of value_info dropped, the first is {gone[0]}"
    for info in graph.output:
        if info.name in wrong and _open_sizes(info, wrong[info.name]):
            yield f"output {info.name}: wrong sizes left open"


def _open_sizes(info: onnx.ValueInfoProto, inferred: tuple[Any, ...] | None) -> bool:
    """Clear the sizes of an output that contradict; the whole shape where the number of axes is wrong."""
    declared = value_type(info.type).shape
    tensor = info.type.tensor_type
    if declared is None or inferred is None:
        return False
    if len(declared) != len(inferred):
        tensor.ClearField("shape")
        return True
    changed = False
    for dim, size, found in zip(tensor.shape.dim, declared, inferred, strict=True):
        if isinstance(size, int) and isinstance(found, int) and size != found:
            dim.ClearField("dim_value")
            changed = True
    return changed


@fix("duplicate-weights")
def duplicate_weights(model: onnx.ModelProto) -> Iterator[str]:
    """Let nodes share equal initializers of a graph."""
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        return  # they share their file; graphdoc weights dedup does it where the files are known
    repeated = Counter(tensor.name for tensor in model.graph.initializer)
    if any(count > 1 for count in repeated.values()):
        return
    loaded = open_source(model).model
    shared = dedup(loaded)
    if shared:
        yield f"{len(shared)} weights shared with an equal one ({sum(row.bytes for row in shared)} bytes)"
        written = write_model(loaded)
        model.CopyFrom(written)
