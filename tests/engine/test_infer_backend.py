"""Inference over every official case of the installed onnx, against runs and against ONNX's inference."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir
import pytest

from graphdoc.engine.infer import Facts
from graphdoc.engine.ops.table import ContainerType, TensorType
from tests.engine import suite
from tests.engine.infer_check import complaints, observed, with_content, without_sizes

EXPLAINED = {
    "Optional": "the type of an empty optional stands in an attribute, which the row does not read",
    "FlexAttention": "ONNX builds its body from the types at run time, and the subgraphs inside belong to it",
    "test_if_opt": "an empty optional of a sequence; see Optional",
    "test_loop16_seq_none": "an optional of a sequence that starts empty; see Optional",
    "test_loop13_seq": "the sequence that the caller gives may hold items of any shape",
    "test_loop11": "ONNX trusts the declared type of the body, but a slice past the end would be empty",
    "test_range_float_type_positive_delta_expanded": "as test_loop11",
}
"""Why ONNX states something of a value that we leave open: by operator or by case."""


@functools.cache
def cases() -> list[Any]:
    return suite.load()


def model_of(case: Any) -> ir.Model:
    return ir.serde.deserialize_model(case.model)


def run(case: Any, feeds: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return observed(model_of(case), feeds)
    except Exception:  # what does not run is told by test_backend_suite.py
        return None


PARTS = 8
"""Shares of the cases, so that several processes can take them."""


def runnable(part: int) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Yield (case, feeds, every value of a run) of one share of the cases that the engine runs."""
    for case in cases()[part::PARTS]:
        feeds = suite.feeds(case, case.data[0][0])
        results = run(case, feeds)
        if results is not None:
            yield case, feeds, results


@pytest.mark.parametrize("part", range(PARTS))
def test_inference_never_contradicts_a_run(part: int) -> None:
    """dtype, shape and content hold for inputs as declared, of unknown sizes, and of known content."""
    wrong, count = [], 0
    for case, feeds, results in runnable(part):
        count += 1
        for known, model in (
            ("declared", model_of(case)),
            ("no sizes", without_sizes(model_of(case))),
            ("content", with_content(model_of(case), feeds)),
        ):
            wrong += [f"{case.name} ({known}) {text}" for text in complaints(model, feeds, results)]

    assert wrong == []
    assert count > 1900 // PARTS


# ---- against ONNX's inference --------------------------------------------------------------------------


def graphs(proto: onnx.GraphProto, graph: ir.Graph) -> Iterator[tuple[onnx.GraphProto, ir.Graph]]:
    """Yield a graph and its subgraphs in both forms."""
    yield proto, graph
    for node, ours in zip(proto.node, graph, strict=True):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g, ours.attributes[attribute.name].as_graph())


def inferred(case: Any) -> onnx.ModelProto:
    """Return what ONNX infers of a case, its outputs' declared types left out."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    for output in model.graph.output:
        output.ClearField("type")
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def leaf(proto: onnx.TypeProto) -> onnx.TypeProto.Tensor:
    """Return the tensor type inside sequences and optionals."""
    while proto.WhichOneof("value") in ("sequence_type", "optional_type"):
        proto = getattr(proto, str(proto.WhichOneof("value"))).elem_type
    return proto.tensor_type


def item(known: TensorType) -> TensorType:
    while isinstance(known, ContainerType):
        known = known.item
    return known


def missing(known: TensorType, proto: onnx.TypeProto) -> str | None:
    """Return what ONNX states (dtype, rank, numbers) and we do not, or otherwise."""
    ours, theirs = item(known), leaf(proto)
    if theirs.elem_type:
        dtype = ir.DataType(theirs.elem_type)
        wanted = np.dtype(object) if dtype == ir.DataType.STRING else dtype.numpy()
        if ours.dtype != wanted:
            return f"dtype {ours.dtype} for {wanted}"
    if not theirs.HasField("shape"):
        return None
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in theirs.shape.dim]
    if ours.shape is None or len(ours.shape) != len(sizes):
        return f"shape {ours.shape} for {sizes}"
    agrees = all(n is None or n == dim for n, dim in zip(sizes, ours.shape, strict=True))
    return None if agrees else f"shape {ours.shape} for {sizes}"


def gaps(case: Any) -> Iterator[tuple[str, str]]:
    """Yield (operator, complaint) where ONNX knows more of a value."""
    model = model_of(case)
    facts = Facts(model, claims=False)
    for proto, graph in graphs(inferred(case).graph, model.graph):
        types = {info.name: info.type for info in (*proto.value_info, *proto.output)}
        for node in graph:
            for value in node.outputs:
                if value.name in types and (text := missing(facts.of(value), types[value.name])):
                    yield node.op_type, f"{case.name} {node.op_type} {value.name}: {text}"


def test_agrees_with_onnx_shape_inference() -> None:
    """Wherever ONNX states a dtype, a rank or a number, so do we; the exceptions have reasons."""
    unexplained, count = [], 0
    for case in cases():
        try:
            found = list(gaps(case))
        except onnx.shape_inference.InferenceError:
            continue  # ONNX's own inference refuses its own case
        count += 1
        explained = case.name in EXPLAINED or "FlexAttention" in case.operators
        unexplained += [text for op, text in found if not explained and op not in EXPLAINED]

    assert unexplained == []
    assert count > 1900
