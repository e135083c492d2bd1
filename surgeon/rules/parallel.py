"""Products of one value with several constant matrices → one product and a Split.

Queries, keys and values of an attention are such products. Each column of a product is summed on its own, so
weights side by side give the same numbers but for the order of the sums. This runs after the rules that
are tried node by node: they move scales into weights and assemble attention, and a Split would stand in
their way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from graphdoc.surgeon.external import ExternalWeights
from graphdoc.surgeon.rules.base import Context, Edit, Refusal, has_references, operator_name, use_count
from graphdoc.surgeon.rules.fold import materialised
from graphdoc.surgeon.rules.identity import present

Array = np.ndarray[Any, Any]

PRODUCTS = ("MatMul", "Gemm")
FLOATS = tuple(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
LARGEST = 2**28
"""Bytes of weights side by side: above, one product more saves nothing that could be measured."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """A product with a constant matrix, and the Add of a constant row after it, if there is one.

    weights: the matrix. bias: the row, the whole of it or one number; None when nothing is added.
    result: the value that the branch gives. width: its columns.
    """

    product: ir.Node
    weights: ir.Value
    bias: ir.Value | None
    result: ir.Value
    width: int


def merge_parallel(graph: ir.Graph, context: Context) -> Iterator[tuple[ir.Node, Edit | Refusal]]:
    """Merge products that read the same value, where that leaves fewer nodes; say why others stay."""
    if context.opset() < 2:  # ONNX Runtime knows no Split that old
        return
    readers: dict[tuple[ir.Value, str], list[ir.Node]] = {}
    for node in graph:
        if operator_name(node) in PRODUCTS and not has_references(node) and node.inputs[0] is not None:
            readers.setdefault((node.inputs[0], node.op_type), []).append(node)
    for nodes in readers.values():
        if len(nodes) > 1:
            yield from _merge_readers(nodes, context)


def _merge_readers(nodes: Sequence[ir.Node], context: Context) -> Iterator[tuple[ir.Node, Edit | Refusal]]:
    """Merge those of some products of one value that have the same form."""
    groups: dict[Any, list[_Branch]] = {}
    refusals: list[tuple[ir.Node, Refusal]] = []
    for node in nodes:
        found = _branch(node, context)
        if isinstance(found, Refusal):
            refusals.append((node, found))
        else:
            groups.setdefault(_form(found, context), []).append(found)
    for branches in groups.values():
        if _saved(branches) > 0:
            yield branches[0].product, _merge(branches, context)
    if len(nodes) > 2:
        yield from refusals


def _saved(branches: Sequence[_Branch]) -> int:
    """Return how many nodes fewer a product, perhaps an Add, and a Split would be."""
    adds = sum(_added(branch) for branch in branches)
    return len(branches) + adds - (2 + bool(adds))


def _added(branch: _Branch) -> bool:
    """Whether the bias of a branch is added by a node of its own."""
    return branch.result is not branch.product.outputs[0]


# ---- looking


def _branch(node: ir.Node, context: Context) -> _Branch | Refusal:
    """Return a product that may be merged, or why it may not."""
    weights = node.inputs[1]
    if context.kept(node) or isinstance(context.root, ir.Function):
        return Refusal("it has to stay as it is")
    shape = context.type_of(weights).shape
    if weights is None or weights.producer() is not None or weights.const_value is None:
        return Refusal("its weights are no stored constant")
    if shape is None or len(shape) != 2 or weights.is_graph_input():
        return Refusal("its weights are no constant matrix")
    if context.type_of(weights).dtype not in FLOATS:
        return Refusal("its weights are no floats")
    if use_count(weights) != 1 or weights.is_graph_output() or context.kept(weights):
        return Refusal("something else needs its weights")
    columns = shape[0 if context.attribute(node, "transB", 0) else 1]
    if not isinstance(columns, int) or not columns:
        return Refusal("it has no columns")
    if node.op_type == "Gemm":
        return _gemm_branch(node, weights, columns, context)
    return _matmul_branch(node, weights, columns, context)


def _gemm_branch(node: ir.Node, weights: ir.Value, width: int, context: Context) -> _Branch | Refusal:
    bias = node.inputs[2] if present(node, 2) else None
    if context.opset() < 7 or (bias is not None and not _is_row(bias, width, context)):
        return Refusal("its bias is no constant row")
    return _Branch(node, weights, bias, node.outputs[0], width)


def _matmul_branch(node: ir.Node, weights: ir.Value, width: int, context: Context) -> _Branch:
    """Return a MatMul, together with the Add of a constant row that alone reads it."""
    product = node.outputs[0]
    if context.opset() >= 7 and context.single_use(product):
        [usage] = product.uses()
        row = usage.node.inputs[1 - usage.idx] if operator_name(usage.node) == "Add" else None
        fits = row is not None and _is_row(row, width, context) and _keeps_rank(product, row, context)
        if fits and not context.kept(usage.node):
            return _Branch(node, weights, row, usage.node.outputs[0], width)
    return _Branch(node, weights, None, product, width)


def _is_row(value: ir.Value, width: int, context: Context) -> bool:
    """Whether a value is a constant that varies along its last axis at most."""
    shape = context.type_of(value).shape
    if shape is None or value.producer() is not None or materialised(value, context) is None:
        return False
    return all(size == 1 for size in shape[:-1]) and (not shape or shape[-1] in (1, width))


def _keeps_rank(product: ir.Value, row: ir.Value, context: Context) -> bool:
    """Whether adding a row leaves the product's rank."""
    whole, added = (context.type_of(value).shape for value in (product, row))
    return whole is not None and added is not None and len(added) <= len(whole)


def _form(branch: _Branch, context: Context) -> Any:
    """Return what products must share to be merged."""
    node = branch.product
    known = context.type_of(branch.weights)
    settings = tuple(
        context.attribute(node, name, default)
        for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))
    )
    rows = (known.shape or ())[1 if settings[3] else 0]
    return known.dtype, rows, settings


# ---- merging


def _merge(branches: Sequence[_Branch], context: Context) -> Edit | Refusal:
    """Put one product and a Split in place of several branches."""
    first = branches[0].product
    axis = _last_axis(first, context)
    if axis is None:
        return Refusal("the rank of its result is not known")
    reason = _too_large(branches, context)
    if reason:
        return Refusal(reason)
    turned = bool(context.attribute(first, "transB", 0))
    weights = _joined([branch.weights for branch in branches], 0 if turned else 1)
    name = f"{branches[0].weights.name}_merged"
    inputs: list[ir.Value | None] = [first.inputs[0], context.constant(weights, first, name=name)]
    bias = _joined_bias(branches, weights.dtype, context)
    if first.op_type == "Gemm":
        more = [] if bias is None else [context.constant(bias, first, name=f"{name}_bias")]
        whole = context.node("Gemm", [*inputs, *more], dict(first.attributes), like=first)[0]
    else:
        whole = context.node("MatMul", inputs, like=first)[0]
        if bias is not None:
            row = context.constant(bias, first, name=f"{name}_bias")
            whole = context.node("Add", [whole, row], like=first)[0]
    parts = _split(whole, [branch.width for branch in branches], axis, first, context)
    for branch, part in zip(branches, parts, strict=True):
        context.replace(branch.result, part)
    return Edit(f"made one of {len(branches)} products of '{_name(first.inputs[0])}'")


def _name(value: ir.Value | None) -> str | None:
    return None if value is None else value.name


def _last_axis(node: ir.Node, context: Context) -> int | None:
    """Return the last axis of a product as Split takes it: counted from behind only from opset 11 on."""
    if node.op_type == "Gemm":
        return 1
    shape = context.type_of(node.outputs[0]).shape
    if shape is not None:
        return len(shape) - 1
    return -1 if context.opset() >= 11 else None


def _too_large(branches: Sequence[_Branch], context: Context) -> str | None:
    """Say why weights are not copied: those in files stay there, so that memory stays small."""
    tensors = [branch.weights.const_value for branch in branches]
    size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    if any(isinstance(t, ExternalWeights) for t in tensors) and size > context.options.max_growth:
        return f"its weights lie in a file, and {size / 1e6:.3g} MB of them would be copied"
    return f"its weights would take {size / 1e6:.3g} MB" if size > LARGEST else None


def _joined(values: Sequence[ir.Value], axis: int) -> Array:
    return np.concatenate([v.const_value.numpy() for v in values if v.const_value is not None], axis=axis)


def _joined_bias(branches: Sequence[_Branch], dtype: Any, context: Context) -> Array | None:
    """Return the rows side by side, zeros for branches without one; None when no branch has one."""
    if all(branch.bias is None for branch in branches):
        return None
    rows = []
    for branch in branches:
        row = None if branch.bias is None else context.array(branch.bias)
        rows.append(np.broadcast_to(np.zeros(1, dtype) if row is None else row.reshape(-1), (branch.width,)))
    return np.concatenate(rows)


def _split(
    whole: ir.Value, widths: Sequence[int], axis: int, like: ir.Node, context: Context
) -> list[ir.Value]:
    """Cut a value into columns; the widths are an attribute before opset 13, an input from then on."""
    if context.opset() < 13:
        attributes = {"axis": axis, "split": list(widths)}
        return context.node("Split", [whole], attributes, len(widths), like=like)
    sizes = context.constant(np.array(widths, np.int64), like, name=f"{whole.name}_widths")
    return context.node("Split", [whole, sizes], {"axis": axis}, len(widths), like=like)
