"""Why ONNX Runtime may refuse a graph that the engine runs: known texts, and graphs that lead to them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

REFUSALS: Sequence[tuple[str, str, re.Pattern[str]]] = tuple(
    (name, op, re.compile(pattern))
    for name, op, pattern in (
        ("no kernel", "", "NOT_IMPLEMENTED"),
        ("SAME with a stride larger than the kernel", "", "padding values must be non-negative"),
        ("SAME with dilations", "", "Dilation not supported for AutoPadType::SAME"),
        ("OneHot before 11 takes no negative", "", "must be non-negative for OneHot opset < 11"),
        (
            "−1 beside 0",
            "",
            r"cannot be reshaped to the requested shape. Input shape:\{[^}]*\b0\b[^}]*\}, requested.*-1",
        ),
        (
            "product of nothing in uint64",
            "",
            r"while running MatMul.*T !=N11onnxruntime17PrimitiveDataTypeI[jm]EE",
        ),
        ("extremes of no bool", "", "is not defined for empty set with bool type"),
        ("int32 axes of Pad", "", r"ParseData type mismatch for tensor: \w+. Expected:int64 Actual:int32"),
        ("sizes behind Identity", "", r"Number of elements of input 'sizes' \(0\)"),
        ("float16 has no product here", "", "MLFloat16 data type is not supported with Scatter"),
    )
)


def explain_refusal(op: str, text: str) -> str:
    """Return the name of the known reason of a refusal, "" when there is none."""
    for name, operator, pattern in REFUSALS:
        if operator in ("", op) and pattern.search(text):
            return name
    return ""


Graph = tuple[onnx.ModelProto, Mapping[str, Any]]
"""A graph, and its values as the engine computes them."""


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = [onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return found[0] if found else default


def _nodes(graph: Graph, *ops: str) -> Iterator[onnx.NodeProto]:
    model, values = graph
    yield from (n for n in model.graph.node if n.op_type in ops and n.input[0] in values)


def _unique_of_nan(graph: Graph) -> bool:
    """Unique orders by a comparison that NaN breaks: ONNX Runtime drops elements that are not equal."""
    arrays = (graph[1][node.input[0]] for node in _nodes(graph, "Unique"))
    return any(x.dtype.kind == "f" and np.isnan(x).any() for x in arrays)


def _window_in_the_padding(graph: Graph) -> bool:
    """With ceil_mode, shape inference counts a last window that starts in the padding; a run does not."""
    return any(_counts_more(node, graph[1]) for node in _nodes(graph, "MaxPool", "AveragePool", "LpPool"))


def _counts_more(node: onnx.NodeProto, values: Mapping[str, Any]) -> bool:
    sizes = values[node.input[0]].shape[2:]
    one = [1] * len(sizes)
    kernel, strides, dilations, pads = (
        _attribute(node, name, default)
        for name, default in (
            ("kernel_shape", one),
            ("strides", one),
            ("dilations", one),
            ("pads", [0] * 2 * len(sizes)),
        )
    )
    rows = zip(sizes, kernel, strides, dilations, pads[: len(sizes)], pads[len(sizes) :], strict=True)
    naive = tuple(-(-(n + b + e - (k - 1) * d - 1) // s) + 1 for n, k, s, d, b, e in rows)
    run = next(values[name].shape[2:] for name in node.output if name)
    return bool(_attribute(node, "ceil_mode", 0)) and naive != run


def _rank_of_one_branch(graph: Graph) -> bool:
    """The branches of an If give different ranks: inference may go by the one that did not run."""
    inferred = onnx.shape_inference.infer_shapes(graph[0])
    return any(
        _ranks(node, "then_branch") != _ranks(node, "else_branch")
        for node in _nodes((inferred, graph[1]), "If")
    )


def _ranks(node: onnx.NodeProto, branch: str) -> list[int | None]:
    types = [output.type.tensor_type for output in _attribute(node, branch, None).output]
    return [len(t.shape.dim) if t.HasField("shape") else None for t in types]


def _nearly_zero(graph: Graph) -> bool:
    """NonZero counts numbers that are 0 where a sigmoid or tanh stops far out."""
    arrays = [np.abs(graph[1][node.input[0]]) for node in _nodes(graph, "NonZero")]
    floats = [x for x in arrays if x.dtype.kind == "f" and x.size]
    return any(((x > 0) & (x < 1e-15 * x.max())).any() for x in floats)


LED_TO: Sequence[tuple[str, re.Pattern[str], Callable[[Graph], bool]]] = (
    ("Unique of NaN", re.compile("Non-zero status code returned while running"), _unique_of_nan),
    ("count of nearly zero", re.compile("Attempting to broadcast an axis"), _nearly_zero),
    ("rank of one branch", re.compile(r"\[ShapeInferenceError\]"), _rank_of_one_branch),
    ("window in the padding", re.compile(r"\[ShapeInferenceError\]|[Ss]hape"), _window_in_the_padding),
)
"""Refusals that follow from what an earlier operator did: a name, the text, what shows it in the graph."""


def explain_by_graph(graph: Graph, text: str) -> str:
    """Return the name of the known cause of a refusal in the graph, "" when there is none."""
    return next((name for name, pattern, shown in LED_TO if pattern.search(text) and shown(graph)), "")
