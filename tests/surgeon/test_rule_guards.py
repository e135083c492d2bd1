"""Forms of operators that look like what a rule matches and mean something else: the rules leave them."""

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
