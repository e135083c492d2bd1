"""Forms of operators that look like what a rule matches and mean something else: the rules leave them."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphdoc.surgeon.model import load
from graphdoc.surgeon.simplify import Options, simplify
from tests.surgeon import build
from tests.surgeon.simplify_check import check, parse


@pytest.mark.parametrize(("opset", "ir_version"), [(1, 4), (6, 4), (7, 4), (9, 4)])
def test_batch_normalization_that_trains_is_not_fused(opset: int, ir_version: int) -> None:
    """Before version 14, listing the statistics asks for training, read or not."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.random(3).astype(np.float32) + 1 for name in "sbmv"}
    arrays["W"] = rng.random((3, 2, 2, 2)).astype(np.float32)
    more = {"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {}
    tested = {"is_test": 1} if opset < 7 else {}
    proto = build.model(
        [
            helper.make_node("Conv", ["x", "W"], ["c"]),
            helper.make_node(
                "BatchNormalization", ["c", *"sbmv"], ["y", "m2", "v2", "m3", "v3"], **more, **tested
            ),
        ],
        inputs=[build.value("x", [2, 2, 4, 4])],
        outputs=[build.value("y", [2, 3, 3, 3])],
        weights=[build.weight(name, array) for name, array in arrays.items()],
        opset=opset,
        ir_version=ir_version,
    )
    result = check(proto, feeds=[])
    assert result.ops == ["Conv", "BatchNormalization"]
    assert any("training" in reason for reason in result.reasons("fuse-batchnorm"))


def _counting(trips: int, counter: list[int], condition: list[int]) -> onnx.ModelProto:
    """Return a Loop that collects the number of the trip, declared with the given shapes."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["i"], ["so"]),
            helper.make_node("Identity", ["c"], ["co"]),
            helper.make_node("Add", ["v", "x"], ["vo"]),
        ],
        "body",
        [
            build.value("i", counter, TensorProto.INT64),
            build.value("c", condition, TensorProto.BOOL),
            build.value("v", [2]),
        ],
        [
            build.value("co", condition, TensorProto.BOOL),
            build.value("vo", [2]),
            build.value("so", counter, TensorProto.INT64),
        ],
    )
    return build.model(
        [helper.make_node("Loop", ["m", "", "x"], ["y", "z"], body=body)],
        outputs=[build.value("y"), build.value("z", [trips, *counter], TensorProto.INT64)],
        weights=[build.weight("m", np.array([trips]))],
    )


@pytest.mark.parametrize("trips", [1, 3])
def test_a_loop_whose_body_numbers_trips_by_a_tensor_stays(trips: int) -> None:
    """ONNX Runtime passes int64[1] where the body says so, and stacks int64[trips, 1]."""
    feeds = [{"x": np.array([1, 2], np.float32)}]
    assert check(_counting(trips, [1], []), feeds=feeds, request=("unroll-loops",)).ops == ["Loop"]
    unrolled = check(_counting(trips, [], []), feeds=feeds, request=("unroll-loops",))
    assert "Loop" not in unrolled.ops


def test_slices_that_cut_nothing_are_no_fault() -> None:
    """Both lists of bounds are empty."""
    proto = build.model(
        [
            helper.make_node("Slice", ["x", "s", "s"], ["t"]),
            helper.make_node("Slice", ["t", "s", "s"], ["y"]),
        ],
        weights=[build.weight("s", np.array([], np.int64))],
    )
    assert check(proto, skip=("identity",)).ops == ["Slice", "Slice"]


CALL = """g (float[2,3,4] x) => (float[2,3,4] y) { y = loc.f(x) }
<domain: "loc", opset_import: ["" : %d]> f (a) => (r) { r = Softmax<axis=1>(a) }"""

SHADOW = """g (float[4] x) => (float[4] y) { y = Relu(x) }
<domain: "", opset_import: ["" : 18]> Relu (a) => (r) { r = Neg(a) }"""


def test_functions_of_another_opset_are_not_inlined() -> None:
    """Softmax of opset 12 means another thing than that of 18; the reason is kept."""
    other = simplify(load(parse(CALL % 12, extra=', "loc" : 1')), Options(inline=True))
    assert [node.op_type for node in other.model.graph] == ["f"]
    [kept] = other.report.kept
    assert kept.reason == "its body is written in ai.onnx 12, and the model in ai.onnx 18"
    assert check(parse(CALL % 18, extra=', "loc" : 1'), inline=True).ops == ["Softmax"]


def test_a_function_named_like_an_operator_is_not_inlined() -> None:
    """The specification lets the runtime choose; ONNX Runtime takes the operator."""
    result = check(parse(SHADOW), feeds=[{"x": np.array([-1, 2, -3, 4], np.float32)}], inline=True)
    assert result.ops == ["Relu"]
    assert "an operator has its name" in result.reasons("inline")[0]


def _constant_node(op: str, weights: dict[str, Any], opset: int = 18, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node that reads constants; "" in the names leaves an input out."""
    names = [name.strip("_") for name in weights]
    arrays = {name: array for name, array in weights.items() if array is not None}
    dtype = helper.np_dtype_to_tensor_dtype(next(iter(arrays.values())).dtype)
    outputs = ["y"] + (["mask"] if op == "Dropout" else [])
    rank = 2 if op == "NonZero" else 0 if op.startswith("Reduce") else next(iter(arrays.values())).ndim
    dims = list("abcd")[:rank]
    declared = [build.value("y", dims, TensorProto.INT64 if op == "NonZero" else dtype)]
    declared += [build.value("mask", dims, TensorProto.BOOL)] if op == "Dropout" else []
    return build.model(
        [helper.make_node(op, names, outputs, **attributes)],
        outputs=declared,
        weights=[build.weight(name, array) for name, array in arrays.items()],
        opset=opset,
        ir_version=8,
    )


I32, I64, F32 = np.int32, np.int64, np.float32
IMAGE = np.arange(15, dtype=F32).reshape(1, 1, 5, 3)
CORNERS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}

LEFT_OPEN: dict[str, tuple[Any, ...]] = {
    "a sum": ("ReduceSum", {"a": np.array([2**31 - 1, 1], I32)}, {"keepdims": 0}),
    "a sum whose parts overflow": ("ReduceSum", {"a": np.array([2**31 - 1, 1, -9], I32)}, {"keepdims": 0}),
    "a product": ("ReduceProd", {"a": np.array([2**40, 2**30], I64)}, {"keepdims": 0}),
    "a sum of squares": ("ReduceSumSquare", {"a": np.array([2**16], I32)}, {"keepdims": 0}),
    "a power": ("Pow", {"a": np.array([100], I32), "b": np.array([9], I32)}, {}),
    "a power past float64": ("Pow", {"a": np.array([3], I64), "b": np.array([39], I64)}, {}),
    "places in a scalar": ("NonZero", {"a": np.array(3, F32)}, {}),
    "corners": ("Resize", {"a": IMAGE, "_": None, "s": np.array([1, 1, 0.5, 0.5], F32)}, CORNERS),
    "a mask": ("Dropout", {"a": np.array([1, 2], F32)}, {"opset": 10}),
}

DEFINED: dict[str, tuple[Any, ...]] = {
    "a sum": ("ReduceSum", {"a": np.array([2**31 - 2, 1], I32)}, {"keepdims": 0}),
    "a product": ("ReduceProd", {"a": np.array([2**31, 2**30], I64)}, {"keepdims": 0}),
    "a power": ("Pow", {"a": np.array([-7], I32), "b": np.array([3], I32)}, {}),
    "places": ("NonZero", {"a": np.array([0, 3], F32)}, {}),
    "corners": ("Resize", {"a": IMAGE, "_": None, "s": np.array([1, 1, 2, 3], F32)}, CORNERS),
    "a mask": ("Dropout", {"a": np.array([1, 2], F32)}, {"opset": 12}),
}


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_what_runtimes_compute_differently_is_not_folded(name: str) -> None:
    """Whatever ONNX Runtime makes of it, it goes on making."""
    op, weights, more = LEFT_OPEN[name]
    assert check(_constant_node(op, weights, **more), feeds=[{"x": np.zeros(2, F32)}]).ops == [op]


@pytest.mark.parametrize("name", DEFINED)
def test_what_the_specification_defines_is_folded(name: str) -> None:
    """The nearest neighbours, whose results are those of ONNX Runtime."""
    op, weights, more = DEFINED[name]
    result = check(_constant_node(op, weights, **more), feeds=[{"x": np.zeros(2, F32)}], exact=False)
    assert op not in result.ops
