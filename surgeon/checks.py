"""The rules that a model must keep to be read at all; surgeon/reader.py applies them as it goes.

What is refused cannot be run by anybody: values without a producer or with two, cycles, data that does not
fit its dims, missing attributes and branches, versions from the future. What is merely odd (nodes out of
order, names listed twice, unused parts) is for surgeon/lint.py.

Source of the rules: ONNX IR specification (IR version 13) and the operator schemas of the onnx package.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.schemas import Signature, newest

DEEPEST = 100
"""Subgraphs in one another; protobuf itself stops at 31 when a file is read."""

EXPORT = "export the model again"
_LARGE = 20_000
"""Names among which a nearest one is looked for."""

FunctionId = tuple[str, str, str]


def check_model(model: onnx.ModelProto) -> None:
    """Check versions and that there is something to compute."""
    check_versions(model)
    if not model.graph.output:
        empty = "is empty: it has neither nodes nor outputs" if not model.graph.node else "has no outputs"
        raise ModelError(f"the graph {empty}", where=graph_label(model.graph), next_step=EXPORT)


def graph_label(graph: onnx.GraphProto) -> str:
    """Return how the main graph is called in messages."""
    return f"graph '{graph.name}'" if graph.name else "the main graph"


def check_versions(model: onnx.ModelProto) -> None:
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"IR version {model.ir_version} is newer than this onnx knows ({onnx.IR_VERSION})",
            where=f"ir_version, with onnx {onnx.__version__}",
            next_step="pip install --upgrade onnx",
        )
    if not model.opset_import and model.ir_version >= 3:
        raise ModelError(
            "no opset is imported: the model does not say which versions of operators it means",
            where="opset_import",
            next_step="add it: model.opset_import.add(domain='', version=N)",
        )
    for holder in (model, *model.functions):
        for item in holder.opset_import:
            _check_opset(item)


def _check_opset(item: onnx.OperatorSetIdProto) -> None:
    name = item.domain or "ai.onnx"
    known = newest(item.domain)
    if known is not None and item.version < 1:
        raise ModelError(
            f"opset version {item.version} of {name} does not exist", where="opset_import", next_step=EXPORT
        )
    if known is not None and item.version > known:
        raise ModelError(
            f"opset {item.version} of {name} is newer than this onnx knows ({known})",
            where=f"opset_import, with onnx {onnx.__version__}",
            next_step="pip install --upgrade onnx",
        )


def check_functions(functions: Iterable[onnx.FunctionProto]) -> frozenset[FunctionId]:
    """Return the functions' identifiers; no two may be the same."""
    found: set[FunctionId] = set()
    for function in functions:
        key = (plain_domain(function.domain), function.name, function.overload)
        if key in found:
            raise ModelError(
                f"two functions are named {key[0]}::{key[1]}", where="functions", next_step=EXPORT
            )
        found.add(key)
    return frozenset(found)


def check_recursion(calls: Mapping[FunctionId, Collection[FunctionId]]) -> None:
    """Raise ModelError when a function calls itself, directly or through others."""
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        names = " → ".join(f"{domain}::{name}" for domain, name, _ in error.args[1])
        raise ModelError(f"a function calls itself: {names}", where="functions", next_step=EXPORT) from error


def plain_domain(domain: str) -> str:
    """Return the domain with the two spellings of the default one made equal."""
    return "" if domain == "ai.onnx" else domain


def label(node: onnx.NodeProto, index: int) -> str:
    """Return how a node is called in messages: its place in the file, operator and name."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {index} {node.op_type} {name}".rstrip()


def two_inputs(name: str, where: str) -> ModelError:
    """Return the error for an input listed twice."""
    return ModelError(f"two inputs are named '{name}'", where=where, next_step=EXPORT)


def two_producers(name: str, nodes: Iterable[onnx.NodeProto], where: str) -> ModelError:
    """Return the error for a value that two nodes, or a node and the surroundings, produce."""
    found = [label(node, index) for index, node in enumerate(nodes) if name in node.output]
    makers = found if len(found) > 1 else ["an input or initializer", *found]
    return ModelError(
        f"'{name}' has two producers: {' and '.join(makers[:2])}", where=where, next_step=EXPORT
    )


def never_produced(what: str, name: str, names: Collection[str], where: str) -> ModelError:
    """Return the error for a name without a value; the nearest name is offered."""
    close = get_close_matches(name, names, n=1, cutoff=0.6) if len(names) < _LARGE else []
    hint = f"; the nearest name is '{close[0]}'" if close else ""
    return ModelError(f"{what} never produced{hint}", where=where, next_step=EXPORT)


def not_imported(domain: str, where: str) -> ModelError:
    """Return the error for a domain without a version."""
    return ModelError(
        f"the domain '{domain or 'ai.onnx'}' is used, but no version of it is imported",
        where=where,
        next_step=f"add it: model.opset_import.add(domain='{domain}', version=1)",
    )


def wrong_type(attribute: onnx.AttributeProto, found: Signature, where: str) -> ModelError:
    """Return the error for an attribute of another type than the schema's."""
    names = onnx.AttributeProto.AttributeType
    expected = names.Name(found.attributes[attribute.name])
    return ModelError(
        f"attribute '{attribute.name}' of {found.name} is {names.Name(attribute.type)}, not {expected}",
        where=where,
        next_step=EXPORT,
    )


def misfit(found: Signature, node: onnx.NodeProto, inputs: int, outputs: int) -> str | None:
    """Return what is wrong with the numbers of inputs and outputs or the required attributes, or None."""
    if _fits(found, inputs, outputs) and not found.required:
        return None
    for count, (low, high), what in ((inputs, found.inputs, "input"), (outputs, found.outputs, "output")):
        if not low <= count <= high:
            allowed = f"{low}" if low == high else f"{low} to {high}" if high < 2**30 else f"{low} or more"
            return f"{node.op_type} has {count} {what}{'s' * (count != 1)}, it takes {allowed}"
    given = {attribute.name for attribute in node.attribute}
    lacking = next((name for name in found.required if name not in given), None)
    return None if lacking is None else f"{node.op_type} lacks its attribute '{lacking}'"


def _fits(found: Signature, inputs: int, outputs: int) -> bool:
    (fewest, most), (least, greatest) = found.inputs, found.outputs
    return fewest <= inputs <= most and least <= outputs <= greatest


def check_branch(name: str, graph: onnx.GraphProto, node: onnx.NodeProto, where: str) -> None:
    """Check how many values pass between a node and its subgraph (If and Loop of ai.onnx)."""
    if plain_domain(node.domain):
        return
    wrong = ""
    inputs, outputs, wanted = len(graph.input), len(graph.output), len(node.output)
    if node.op_type == "If" and outputs < wanted:
        wrong = f"gives {outputs} values, the node has {wanted} outputs"
    if node.op_type == "Loop" and inputs != max(2, len(node.input)):
        wrong = f"takes {inputs} values, the node passes {max(2, len(node.input))}"
    elif node.op_type == "Loop" and outputs < wanted + 1:
        wrong = f"gives {outputs} values, the node needs {wanted + 1}"
    if wrong:
        raise ModelError(f"the subgraph {name} {wrong}", where=where, next_step=EXPORT)


def cycle(graph: ir.Graph, where: str) -> ModelError:
    """Return the error for a graph that no order of its nodes can compute; its cycle is named."""
    own = set(graph)
    needs = {node: [maker for maker in _makers(node) if maker in own] for node in graph}
    way = ""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        nodes = error.args[1]
        way = ": " + " → ".join(_title(node) for node in nodes[:6]) + (" → …" if len(nodes) > 6 else "")
    return ModelError(
        "the graph has a cycle: a node needs its own result", where=f"{where}{way}", next_step=EXPORT
    )


def _makers(node: ir.Node) -> Iterable[ir.Node]:
    """Yield the producers of all that a node and its subgraphs read."""
    graphs = [
        attribute.value for attribute in node.attributes.values() if attribute.type == ir.AttributeType.GRAPH
    ]
    inner = [reader for graph in graphs for reader in graph.all_nodes()]
    for reader in (node, *inner):
        for value in reader.inputs:
            maker = value.producer() if value is not None else None
            if maker is not None:
                yield maker


def _title(node: ir.Node) -> str:
    return f"{node.op_type} {node.name or node.outputs[0].name}"
