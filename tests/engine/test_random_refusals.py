"""Graphs that ONNX Runtime refuses and the engine runs: each known cause has a case."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.engine import random_refusals
from tests.engine.random_graphs import Case
from tests.engine.random_oracle import judge
from tests.engine.random_refusals import LED_TO, REFUSALS
from tests.engine.single import model

_BYTES = np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8)


def f32(*numbers: Any) -> Any:
    """Return float32 numbers."""
    return np.array(numbers, dtype=np.float32)


def noise(*shape: int, scale: float = 1.0, dtype: Any = np.float32) -> Any:
    """Return seeded normal numbers."""
    return (np.random.default_rng(3).standard_normal(shape) * scale).astype(dtype)


REFUSED: dict[str, Case] = {
    "no kernel": model(
        "MaxRoiPool", noise(1, 1, 3, 3), f32(0, 0, 0, 1, 1).reshape(1, 5), pooled_shape=[1, 1], opset=22
    ),
    "SAME with a stride larger than the kernel": model(
        "AveragePool", noise(1, 1, 6), auto_pad="SAME_UPPER", kernel_shape=[1], strides=[2], opset=11
    ),
    "SAME with dilations": model(
        "ConvInteger",
        _BYTES[:25].reshape(1, 1, 5, 5),
        _BYTES[:4].reshape(1, 1, 2, 2),
        auto_pad="SAME_UPPER",
        dilations=[2, 2],
    ),
    "extremes of no bool": model("ReduceMax", np.zeros((0, 2), bool), np.array([0]), opset=20),
    "float16 has no product here": model(
        "ScatterElements",
        noise(2, dtype=np.float16),
        np.array([0]),
        noise(1, dtype=np.float16),
        reduction="mul",
    ),
    "product of nothing in uint64": model("MatMul", np.zeros(0, np.uint64), np.zeros(0, np.uint64), opset=13),
    "−1 beside 0": model("Reshape", noise(0, 2), np.array([0, 1, -1])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_known_refusal_is_named(name: str) -> None:
    """ONNX Runtime refuses, and the engine is not blamed."""
    outcome = judge(*REFUSED[name])

    assert (outcome.refused, outcome.differences) == (name, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "int32 axes of Pad",
            "[ShapeInferenceError] ParseData type mismatch for tensor: v1. Expected:int64 Actual:int32",
        ),
        (
            "sizes behind Identity",
            "Number of elements of input 'sizes' (0) must be same as rank of input 'X' (4).",
        ),
        ("OneHot before 11 takes no negative", "Input 'indices' must be non-negative for OneHot opset < 11."),
        ("", "Something else"),
    ],
)
def test_refusals_at_load_are_known_by_their_text(name: str, text: str) -> None:
    """These come from shape inference over constants."""
    assert random_refusals.explain_refusal("", text) == name


def sizes_from(proto: Case, *nodes: onnx.NodeProto) -> Case:
    """Return a model of one node with more nodes after it."""
    found, feeds = proto
    found.graph.node.extend(nodes)
    found.graph.output[-1].CopyFrom(onnx.ValueInfoProto(name=nodes[-1].output[0]))
    return found, feeds


def largest_two_counts(*values: float) -> Case:
    """Return TopK, k = 2, of how often each distinct value occurs."""
    case = model("Unique", np.array(values), outputs=4, opset=13)
    k = onnx.numpy_helper.from_array(np.array([2]), "k")
    case[0].graph.initializer.append(k)
    return sizes_from(case, helper.make_node("TopK", [case[0].graph.node[0].output[3], "k"], ["t", "p"]))


def four_windows(ceil_mode: int) -> Case:
    """Return a product that fits the 4 windows of a run; the last one of shape inference is padding alone."""
    case = model(
        "MaxPool", noise(1, 1, 6), ceil_mode=ceil_mode, kernel_shape=[3], pads=[2, 2], strides=[2], opset=11
    )
    case[0].graph.input[0].CopyFrom(helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, 1, 6]))
    case[0].graph.initializer.append(onnx.numpy_helper.from_array(noise(4, 2), "w"))
    return sizes_from(case, helper.make_node("MatMul", [case[0].graph.node[0].output[0], "w"], ["t"]))


def rank_of_a_branch(taken: bool) -> Case:
    """Return Transpose of an If: one branch's rank is plain to see, that of the other follows from a run."""
    rank = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    scalar = onnx.numpy_helper.from_array(np.array(1, np.float32))
    plain = helper.make_graph([helper.make_node("Constant", [], ["o"], value=scalar)], "p", [], [rank])
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "m"], ["s"]),
        helper.make_node("SequenceAt", ["s", "k"], ["o"]),
    ]
    matrix = helper.make_graph(nodes, "m", [], [rank])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=plain, else_branch=matrix),
        helper.make_node("ReverseSequence", ["y", "n"], ["z"], batch_axis=1, time_axis=0),
    ]
    weights = [
        onnx.numpy_helper.from_array(array, name)
        for name, array in (("m", noise(2, 3)), ("k", np.array(1)), ("n", np.array([2, 1, 1])))
    ]
    infos = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
    ]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="z")], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    return proto, {"c": np.array(taken), "x": f32(1, 2)}


def three_counts(first: float) -> Case:
    """Return NonZero of three sigmoids, the first one of this number, added to three numbers."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("NonZero", ["s"], ["n"]),
        helper.make_node("Add", ["n", "w"], ["y"]),
    ]
    weights = [onnx.numpy_helper.from_array(np.arange(3), "w")]
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="y")], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {"x": f32(first, 1, 2)}


@pytest.mark.parametrize(
    ("name", "case", "tame"),
    [
        ("Unique of NaN", largest_two_counts(np.nan, 1, 2), largest_two_counts(0, 1, 2)),
        ("count of nearly zero", three_counts(-50), three_counts(-5)),
        ("window in the padding", four_windows(1), four_windows(0)),
        ("rank of one branch", rank_of_a_branch(False), largest_two_counts(0, 1, 2)),
    ],
    ids=["Unique", "NonZero", "MaxPool", "If"],
)
def test_a_refusal_that_the_graph_leads_to_is_named(name: str, case: Case, tame: Case) -> None:
    """ONNX Runtime refuses what follows from its own reading of an operator, and takes others."""
    outcome, other = judge(*case), judge(*tame)

    assert (outcome.refused, outcome.differences) == (name, [])
    assert (other.refused, other.differences) == ("", [])
    assert name in {each for each, _, _ in LED_TO}


def test_every_refusal_has_a_case() -> None:
    """As for reasons."""
    by_text = {"int32 axes of Pad", "sizes behind Identity", "OneHot before 11 takes no negative"}

    assert {name for name, _, _ in REFUSALS} == {*REFUSED, *by_text}
