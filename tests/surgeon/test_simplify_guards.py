"""Models just beside what a rule matches: it must leave them as they are, and the outputs are the same."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.surgeon import build
from tests.surgeon.simplify_check import check, parse

STAY = {
    "a condition that widens the result": (
        "g (float[1,2] x, float[3,2] z) => (float[3,2] y) <bool[3,1] c = {1,1,1}> { y = Where(c, x, z) }"
    ),
    "a reduction that drops its axis": (
        "g (float[N,1] x) => (float[N] y) <int64[1] a = {1}> { y = ReduceSum <keepdims=0> (x, a) }"
    ),
    "a reduction over axes that are an input": (
        "g (float[2,1] x, int64[1] a) => (float[P,Q] y) { b = ReduceSum(x, a) y = Relu(b) }"
    ),
    "bounds of a slice that are inputs": (
        "g (float[N,4] x, int64[1] b, int64[1] e) => (float[P,4] y) { y = Slice(x, b, e) }"
    ),
    "a cubic resize by one": (
        "g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[4] s = {1,1,1,1}> "
        '{ y = Resize <mode="cubic"> (x, , s) }'
    ),
    "a crop that keeps the size": (
        "g (float[1,1,4,4] x) => (float[1,1,4,4] y) "
        "<float[8] r = {0,0,0.25,0.25,1,1,0.75,0.75}, float[4] s = {1,1,1,1}> "
        '{ y = Resize <mode="linear", coordinate_transformation_mode="tf_crop_and_resize"> (x, r, s) }'
    ),
    "a pooling whose places are asked for": (
        "g (float[N,1,3,3] x) => (float[N,1,3,3] y, int64[N,1,3,3] i) "
        "{ y, i = MaxPool <kernel_shape=[1,1]> (x) }"
    ),
    "two axes put in": (
        "g (float[N,3] x) => (float[N,1,1,3] y) <int64[1] a = {1}> { b = Unsqueeze(x, a) r = Relu(b) "
        "y = Unsqueeze(r, a) }"
    ),
    "a reshape whose result is an output": (
        "g (float[N,6] x) => (float[N,2,3] a, float[N,3,2] y) <int64[3] s = {0,2,3}, int64[3] t = {0,3,2}> "
        "{ a = Reshape(x, s) r = Relu(a) y = Reshape(r, t) }"
    ),
    "a slice of a slice that something else reads": (
        "g (float[N,8] x) => (float[N,6] a, float[N,6] r, float[N,4] y) "
        "<int64[1] o = {1}, int64[1] e = {7}, int64[1] f = {5}> "
        "{ a = Slice(x, o, e, o) r = Relu(a) y = Slice(a, o, f, o) }"
    ),
    "an Add before what is not summed": (
        "g (float[N,3] x) => (float[N,3] r, float[N,3] y) <float z = {0}> "
        "{ a = Add(x, z) r = Reciprocal(a) y = Abs(a) }"
    ),
    "a product of stacks": (
        "g (float[2,N,3] x, float[2,3,4] w) => (float[2,N,4] y) <float[4] k = {1,2,3,4}> "
        "{ a = MatMul(x, w) y = Mul(a, k) }"
    ),
    "a half-precision product and sum": (
        "g (float16[N,3] x, float16[3,4] w, float16[4] b) => (float16[N,4] y) "
        "{ a = MatMul(x, w) y = Add(a, b) }"
    ),
    "a sum with one axis more": (
        "g (float[N,3] x, float[3,4] w, float[1,1,4] b) => (float[1,N,4] y) "
        "{ a = MatMul(x, w) y = Add(a, b) }"
    ),
}
"""What is special → the model; every operator stays."""


@pytest.mark.parametrize("body", STAY.values(), ids=STAY)
def test_stays(body: str) -> None:
    """All operators stay, in order."""
    proto = parse(body)
    known = {value.name for value in proto.graph.input}
    feeds: Any = None
    if "a" in known:
        x = np.array([[-1.5], [2.0]], np.float32)
        feeds = [{"x": x, "a": np.array([axis])} for axis in (0, 1)]
    elif "e" in known:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        feeds = [{"x": x, "b": np.array([b]), "e": np.array([e])} for b, e in ((0, 3), (1, 2), (2, 99))]

    assert check(proto, feeds=feeds).ops == [node.op_type for node in proto.graph.node]


def _conv(**attributes: Any) -> tuple[Any, list[Any]]:
    w = np.random.default_rng(0).standard_normal((6, 4, 2, 2)).astype(np.float32)
    return helper.make_node("Conv", ["a", "w"], ["c"], name="lin", **attributes), [build.weight("w", w)]


def _padded(pads: list[int], *, mode: str = "constant", opset: int = 13, **attributes: Any) -> list[str]:
    """Return what is left of Pad → Conv → y."""
    node, weights = _conv(**attributes)
    inputs = ["x", "p"]
    weights.append(numpy_helper.from_array(np.array(pads, np.int64), "p"))
    if len(pads) == 4:
        inputs += ["", "axes"]
        weights.append(numpy_helper.from_array(np.array([2, 3], np.int64), "axes"))
    proto = build.model(
        [helper.make_node("Pad", inputs, ["a"], mode=mode), node, helper.make_node("Relu", ["c"], ["y"])],
        inputs=[build.value("x", ["N", 4, 6, 6])],
        outputs=[build.value("y", ["N", 6, "H", "W"])],
        weights=weights,
        opset=opset,
    )
    return check(proto, exact=False).ops


def test_pads_that_no_conv_has() -> None:
    """Reflected, cut off, along chosen axes, beside padding that the Conv works out itself."""
    ends = [0, 0, 1, 1, 0, 0, 1, 1]
    assert _padded(ends) == ["Conv", "Relu"]
    for ops in (
        _padded(ends, mode="reflect"),
        _padded([0, 0, -1, 0, 0, 0, 0, 0]),
        _padded([1, 1, 1, 1], opset=18),
        _padded(ends, auto_pad="SAME_UPPER"),
    ):
        assert ops == ["Pad", "Conv", "Relu"]


def _after(op: str, constant: Any, *, filters: int = 6, rank: int = 4, bias: str = "") -> list[str]:
    """Return what is left of y = Conv(x) op constant."""
    w = np.random.default_rng(0).standard_normal((filters, 4, 2, 2)).astype(np.float32)
    inputs = [build.value("x", [2, 4, 3, 3])]
    if bias:
        inputs.append(build.value(bias, [filters]))
    shape = [f"d{i}" for i in range(rank)]
    proto = build.model(
        [
            helper.make_node("Conv", ["x", "w", bias], ["c"]),
            helper.make_node(op, ["c", "k"], ["y"]),
        ],
        inputs=inputs,
        outputs=[build.value("y", shape)],
        weights=[build.weight("w", w), build.weight("k", np.asarray(constant, np.float32))],
    )
    return check(proto, exact=False).ops


def test_constants_that_widen_a_conv() -> None:
    """More axes, or more channels than the one that the Conv has."""
    assert _after("Mul", np.full((1, 1, 1, 1, 1), 2), rank=5) == ["Conv", "Mul"]
    assert _after("Add", np.full((1, 1, 1, 1, 1), 2), rank=5) == ["Conv", "Add"]
    assert _after("Mul", np.arange(6).reshape(6, 1, 1), filters=1) == ["Conv", "Mul"]
    assert _after("Add", np.arange(6).reshape(6, 1, 1), filters=1) == ["Conv", "Add"]


def test_a_bias_from_an_input() -> None:
    """A scale cannot go into a bias that is not known."""
    assert _after("Mul", np.full((1,), 2), bias="b") == ["Conv", "Mul"]


def test_digits_near_zero_are_not_lost() -> None:
    """A scale that makes weights subnormal stays beside them."""
    assert _after("Mul", np.full((1,), 1e-38)) == ["Conv", "Mul"]


@pytest.mark.parametrize("after", ["Mul", "Add"])
def test_a_gemm_whose_bias_varies_over_rows(after: str) -> None:
    """Its bias is no row, so nothing goes into it."""
    w, b = np.ones((4, 6), np.float32), np.arange(12, dtype=np.float32).reshape(2, 6)
    proto = build.model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["c"]), helper.make_node(after, ["c", "k"], ["y"])],
        inputs=[build.value("x", [2, 4])],
        outputs=[build.value("y", [2, 6])],
        weights=[
            build.weight("w", w),
            build.weight("b", b),
            build.weight("k", np.arange(1, 7, dtype=np.float32)),
        ],
    )

    assert check(proto, exact=False).ops == ["Gemm", after]


def _batchnorm(op: str, x: list[Any], w: Any, *, parameters: bool = False, spatial: int = 1) -> list[str]:
    """Return what is left of op → BatchNormalization; parameters: the scale is an input."""
    attributes: dict[str, Any] = {} if spatial else {"spatial": 0}
    names = ("scale", "shift", "mean", "variance")
    held = [build.weight(n, np.arange(1, 7, dtype=np.float32)) for n in names[1 if parameters else 0 :]]
    inputs = [build.value("x", x), *([build.value("scale", [6])] if parameters else [])]
    nodes = [
        helper.make_node(op, ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *names], ["y"], **attributes),
    ]
    rank = len(x)
    proto = build.model(
        nodes,
        inputs=inputs,
        outputs=[build.value("y", [f"d{i}" for i in range(rank)])],
        weights=[build.weight("w", w), *held],
        opset=15,
    )
    return check(proto, exact=False).ops


def test_batchnorms_that_have_nowhere_to_go() -> None:
    """MatMul has no bias; parameters that are inputs are not known."""
    conv = np.random.default_rng(0).standard_normal((6, 4, 2, 2)).astype(np.float32)
    assert _batchnorm("Conv", ["N", 4, 5, 5], conv) == ["Conv"]
    assert _batchnorm("Conv", ["N", 4, 5, 5], conv, parameters=True) == ["Conv", "BatchNormalization"]
    assert _batchnorm("MatMul", ["N", 4], np.ones((4, 6), np.float32)) == ["MatMul", "BatchNormalization"]


def test_dropout_that_trains_stays() -> None:
    """Whether it trains is up to the caller, or it does: it is neither bypassed nor folded."""
    proto = parse(
        "g (float[4] x, bool t) => (float[4] y, float[4] z) "
        "<float r = {0.5}, float[4] c = {1,2,3,4}, bool on = {1}> "
        "{ y = Dropout(x, r, t) z = Dropout(c, r, on) }"
    )

    assert check(proto, feeds=[]).ops == ["Dropout", "Dropout"]


def test_floats_that_become_strings_or_floats_fold() -> None:
    """Only a cast to an integer can leave the result open."""
    proto = parse(
        "g (double[N] x) => (double[N] y) <float[1] f = {1e30}> { d = Cast <to=11> (f) y = Add(x, d) }"
    )

    assert check(proto).ops == ["Add"]


def test_two_squeezes_do_not_cancel() -> None:
    """Squeeze after Squeeze of the same axes takes two axes."""
    proto = parse(
        "g (float[1,1,P,Q] x, int64[1] a) => (float[P,Q] y) { b = Squeeze(x, a) y = Squeeze(b, a) }"
    )
    feeds = [{"x": np.ones((1, 1, 2, 3), np.float32), "a": np.array([0])}]

    assert check(proto, feeds=feeds).ops == ["Squeeze", "Squeeze"]


def test_types_of_names_stay() -> None:
    """An output of half precision keeps its type."""
    proto = build.model(
        [
            helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT16),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        outputs=[build.value("y", [2], TensorProto.FLOAT16)],
    )

    assert check(proto).ops == ["Cast", "Relu"]


def _loop(trips: int, *, start: str, going_on: str) -> Any:
    """Return a loop that doubles x. start: "input", "yes" or "no"; going_on: "computed", or handed on."""
    nodes = [helper.make_node("Add", ["v", "v"], ["v_out"])]
    if going_on == "computed":
        nodes.append(helper.make_node("ReduceMax", ["v_out"], ["most"], keepdims=0))
        nodes.append(helper.make_node("Less", ["most", "bound"], ["go_out"]))
    else:
        nodes.append(helper.make_node("Identity", ["go"], ["go_out"]))
    scalar = [build.value("i", [], TensorProto.INT64), build.value("go", [], TensorProto.BOOL)]
    ends = [build.value("go_out", [], TensorProto.BOOL), build.value("v_out", [2])]
    body = helper.make_graph(nodes, "body", [*scalar, build.value("v", [2])], ends)
    weights = [numpy_helper.from_array(np.array(trips), "trips"), build.weight("bound", np.float32(5))]
    inputs = [build.value("x", [2])]
    if start == "input":
        inputs.append(build.value("start", [], TensorProto.BOOL))
    else:
        weights.append(numpy_helper.from_array(np.array(start == "yes"), "start"))
    node = helper.make_node("Loop", ["trips", "start", "x"], ["y"], body=body)
    return build.model([node], inputs=inputs, weights=weights)


@pytest.mark.parametrize("trips", [1, 3])
def test_loops_that_may_end_early_stay(trips: int) -> None:
    """Whether it begins is up to the caller, or whether it goes on to what it computes."""
    x = np.array([1, 1.5], np.float32)
    feeds = [{"x": x, "start": np.array(start)} for start in (True, False)]

    assert check(_loop(trips, start="input", going_on=""), feeds=feeds, request=("unroll-loops",)).ops == [
        "Loop"
    ]
    if trips > 1:
        computed = _loop(trips, start="yes", going_on="computed")
        assert check(computed, feeds=[{"x": x}], request=("unroll-loops",)).ops == ["Loop"]


def test_a_loop_that_never_begins_goes() -> None:
    """Its condition is false from the start, whatever the number of trips."""
    assert check(_loop(3, start="no", going_on=""), sizes=[{}]).ops == ["Identity"]


def test_calls_of_functions_are_not_merged() -> None:
    """A function may be random inside."""
    proto = parse(
        """g (float[2] x) => (float[2] y) { a = local.noise(x) b = local.noise(x) y = Sub(a, b) }
        <opset_import: ["" : 18], domain: "local">
        noise (v) => (w) { w = RandomNormalLike(v) }""",
        extra=', "local" : 1',
    )

    assert check(proto, feeds=[]).ops == ["noise", "noise", "Sub"]


def test_kept_twins_stay_two() -> None:
    """A node that is kept is not merged with its twin."""
    proto = parse("g (float[2] x) => (float[2] y) { a = Exp(x) b = Exp(x) y = Sub(a, b) }")

    assert check(proto, keep=("b",)).ops == ["Exp", "Exp", "Sub"]


@pytest.mark.parametrize(("growth", "ops"), [(383, ["Conv", "Mul", "Conv"]), (384, ["Conv", "Conv"])])
def test_shared_weights_are_copied_within_limits(growth: int, ops: list[str]) -> None:
    """Scaling one reader's weights means a copy; 6·4·2·2 floats are 384 bytes."""
    w = np.random.default_rng(0).standard_normal((6, 4, 2, 2)).astype(np.float32)
    proto = build.model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Mul", ["c", "k"], ["y"]),
            helper.make_node("Conv", ["x", "w"], ["z"], strides=[2, 2]),
        ],
        inputs=[build.value("x", ["N", 4, 5, 5])],
        outputs=[build.value("y", ["N", 6, 4, 4]), build.value("z", ["N", 6, 2, 2])],
        weights=[build.weight("w", w), build.weight("k", [3.0])],
    )

    assert check(proto, exact=False, max_growth=growth).ops == ops
