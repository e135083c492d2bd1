"""Forms of operators that look like what a rule matches and mean something else: the rules leave them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.surgeon import build
from tests.surgeon.simplify_check import check


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
