"""Models built from a model, so that ONNX Runtime shows values it would keep to itself.

* tapped: the model with more outputs.
* isolated: every node cut from its neighbours and fed with given values, so that each output shows the
  node's own error.
* body: a subgraph as a model of its own; what it captures becomes inputs.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import onnx

from graphdoc.compare.target import captures, is_constant, reads

OWN = "·own"
"""Appended to the outputs of an isolated model."""


def tapped(proto: onnx.ModelProto, names: Collection[str]) -> bytes:
    """Return the serialised model with ``names`` as further outputs.

    Serialised messages that are joined are merged, so the weights are not copied once more.
    """
    present = {output.name for output in proto.graph.output}
    extra = onnx.ModelProto()
    extra.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return bytes(proto.SerializeToString()) + bytes(extra.SerializeToString())


def like(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return an empty model with the opsets and version of another."""
    result = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    result.graph.name = proto.graph.name or "graph"
    return result


def body(
    proto: onnx.ModelProto,
    graph: onnx.GraphProto,
    inputs: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, onnx.TensorProto | onnx.NodeProto],
    fetch: Iterable[str],
) -> onnx.ModelProto:
    """Return a subgraph as a model whose outputs are ``fetch``."""
    result = like(proto)
    result.graph.initializer.extend(graph.initializer)
    result.graph.sparse_initializer.extend(graph.sparse_initializer)
    _add_constants(result.graph, captures(graph), constants)
    result.graph.node.extend(graph.node)
    _add_inputs(result.graph, inputs)
    result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in fetch)
    return result


def segment(
    proto: onnx.ModelProto,
    nodes: Collection[onnx.NodeProto],
    inputs: Mapping[str, onnx.TypeProto],
    fetch: Iterable[str],
) -> onnx.ModelProto:
    """Return some nodes of the main graph, reading ``inputs`` and each other, with ``fetch`` as outputs."""
    result = like(proto)
    made = {name for node in nodes for name in node.output}
    used = {name for node in nodes for name in reads(node)}
    result.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in used)
    result.graph.sparse_initializer.extend(
        sparse for sparse in proto.graph.sparse_initializer if sparse.values.name in used
    )
    constants = (node for node in proto.graph.node if is_constant(node) and node.output[0] in used)
    result.graph.node.extend([*constants, *nodes])
    _add_inputs(result.graph, {name: kind for name, kind in inputs.items() if name in used - made})
    result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in fetch)
    return result


def isolated(
    proto: onnx.ModelProto,
    graph: onnx.GraphProto,
    inputs: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, onnx.TensorProto | onnx.NodeProto],
    fetch: Collection[str],
) -> onnx.ModelProto:
    """Return the nodes that compute ``fetch``, each reading ``inputs`` where another node's result was.

    The outputs are named ``fetch`` + OWN. A fetched value that ``inputs`` lacks is read by the others as
    computed. KeyError names a value that is neither given nor fetched.
    """
    wanted = set(fetch)
    result = like(proto)
    produced = {name for node in graph.node if not is_constant(node) for name in node.output if name}
    connected = (produced & wanted) - set(inputs)
    chosen = [node for node in graph.node if not is_constant(node) and wanted.intersection(node.output)]
    used = {name for node in chosen for name in reads(node)}
    result.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in used)
    result.graph.sparse_initializer.extend(x for x in graph.sparse_initializer if x.values.name in used)
    _add_constants(result.graph, [name for name in captures(graph) if name in used], constants)
    result.graph.node.extend(node for node in graph.node if is_constant(node) and node.output[0] in used)
    for node in chosen:
        copied = result.graph.node.add()
        copied.CopyFrom(node)
        _rename_outputs(copied)
        _connect(copied, connected)
    _add_inputs(result.graph, {name: kind for name, kind in inputs.items() if name in used})
    missing = (used & produced) - set(inputs) - connected
    if missing:
        raise KeyError(sorted(missing)[0])
    result.graph.output.extend(onnx.ValueInfoProto(name=name + OWN) for name in fetch)
    return result


def _rename_outputs(node: onnx.NodeProto) -> None:
    names = [name + OWN if name else "" for name in node.output]
    del node.output[:]
    node.output.extend(names)


def _connect(node: onnx.NodeProto, names: Collection[str]) -> None:
    """Let a node read what other nodes of the isolated model compute, where no value is given."""
    for i, name in enumerate(node.input):
        if name in names:
            node.input[i] = name + OWN
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                _connect(inner, names)


def _add_inputs(graph: onnx.GraphProto, inputs: Mapping[str, onnx.TypeProto]) -> None:
    graph.input.extend(onnx.ValueInfoProto(name=name, type=kind) for name, kind in inputs.items())


def _add_constants(graph: onnx.GraphProto, names: Iterable[str], constants: Mapping[str, Any]) -> None:
    for name in names:
        constant = constants.get(name)
        if isinstance(constant, onnx.TensorProto):
            graph.initializer.append(constant)
        elif constant is not None:
            graph.node.append(constant)
