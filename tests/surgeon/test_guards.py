"""What each condition of a rule is there for: without it one of these models would come out otherwise.

tests/surgeon/mutate_rules.py takes the conditions away one by one and looks for a test that fails.
"""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.surgeon import build
from tests.surgeon.simplify_check import check, parse

F32, I64 = np.float32, np.int64

UNKNOWN = """g (float[K] v, int64[R] s) => (float[P] y)
<int64[1] flat = {-1}, int64[1] zero = {0}, int64[1] two = {2}> """
"""The start of a model in which Expand(v, s) has an unknown number of axes."""

STAY = {
    "transposes of an unknown number of axes": (
        UNKNOWN + ("{ x = Expand(v, s) a = Transpose(x) b = Transpose(a) y = Reshape(b, flat) }")
    ),
    "a transpose with two open sizes": (
        "g (float[1,N,M] x) => (float[P] y) <int64[1] t = {-1}> { a = Transpose <perm=[1,2,0]> (x) b "
        "= Exp(x) c = Transpose <perm=[1,2,0]> (b) d = Reshape(a, t) e = Reshape(c, t) y = Add(d, e) "
        "}"
    ),
    "slices of an unknown number of axes": (
        UNKNOWN
        + (
            "{ x = Expand(v, s) a = Slice(x, zero, two, flat) b = Slice(a, zero, two, flat) y = "
            "Reshape(b, flat) }"
        )
    ),
    "slices whose bounds are inputs": (
        "g (float[6] x, int64[1] b, int64[1] e) => (float[P] y) { a = Slice(x, b, e) y = Slice(a, b, e) }"
    ),
    "slices along axes that are an input": (
        "g (float[6,6] x, int64[1] a) => (float[P,Q] y) <int64[1] o = {1}, int64[1] e = {5}> { b = "
        "Slice(x, o, e, a) y = Slice(b, o, e, a) }"
    ),
    "concatenations along different axes": (
        "g (float[N,3] x, float[N,3] z) => (float[P,6] y) { a = Concat <axis=0> (x, z) b = Concat "
        "<axis=0> (z, x) y = Concat <axis=1> (a, b) }"
    ),
    "concatenations from behind of an unknown number of axes": (
        UNKNOWN
        + (
            "{ x = Expand(v, s) a = Concat <axis=-1> (x, x) b = Concat <axis=-1> (a, x) y = Reshape(b, "
            "flat) }"
        )
    ),
    "a sum of what has an unknown number of axes": (
        UNKNOWN + ("{ x = Expand(v, s) z = Exp(x) a = Add(x, z) y = Reshape(a, flat) }")
    ),
    "a product with what has an unknown number of axes": (
        UNKNOWN + ("{ x = Expand(v, s) a = Mul(x, x) y = Reshape(a, flat) }")
    ),
    "a zero added to an output that is summed up too": (
        "g (float[N,3] x, float[3,2] w) => (float[N,3] a, float[N,2] y) <float z = {0}> { a = Add(x, "
        "z) y = MatMul(a, w) }"
    ),
    "a zero added before a reciprocal": (
        "g (float[N,3] x, float[3,2] w) => (float[N,2] y) <float z = {0}> { a = Add(x, z) b = "
        "Reciprocal(a) y = MatMul(b, w) }"
    ),
}
"""What is special → the model; every operator stays."""

FEEDS: dict[str, dict[str, Any]] = {
    "slices whose bounds are inputs": {"x": np.arange(6, dtype=F32), "b": np.array([1]), "e": np.array([4])},
    "slices along axes that are an input": {
        "x": np.arange(36, dtype=F32).reshape(6, 6),
        "a": np.array([1]),
    },
    "a zero added before a reciprocal": {"x": np.array([[-0.0, 1, 2]], F32), "w": np.ones((3, 2), F32)},
}
"""Inputs where seeded ones will not do."""


@pytest.mark.parametrize("name", STAY)
def test_stays(name: str) -> None:
    """All operators stay, in order."""
    proto = parse(STAY[name])
    feeds = [{"v": np.arange(3, dtype=F32), "s": np.array([2, 1, 3])}] if "Expand" in STAY[name] else None
    if name in FEEDS:
        feeds = [FEEDS[name]]

    assert check(proto, feeds=feeds).ops == [node.op_type for node in proto.graph.node]


# ---- shapes and chains


def test_a_transpose_that_two_nodes_read_is_no_reshape() -> None:
    """It would not join a reshape: nothing would be saved."""
    proto = parse(
        "g (float[1,N,3] x) => (float[N,1,3] y, float[N,1,3] z) "
        "{ a = Transpose <perm=[1,0,2]> (x) y = Relu(a) z = Exp(a) }"
    )

    assert check(proto).ops == ["Transpose", "Relu", "Exp"]


def test_a_squeeze_is_undone_by_its_unsqueeze() -> None:
    """Where no size is known but the axes are the same."""
    proto = parse(
        UNKNOWN
        + "{ x = Expand(v, s) b = Squeeze(x, two) c = Unsqueeze(b, two) d = Relu(c) y = Reshape(d, flat) }"
    )
    feeds = [{"v": np.ones(1, F32), "s": np.array([2, 3, 1])}]

    assert check(proto, feeds=feeds).ops == ["Expand", "Relu", "Reshape"]


OUTPUTS_BETWEEN = {
    "reshape-reshape": (
        "g (float[N,6] x) => (float[N,2,3] a, float[N,3,2] y) <int64[3] s = {0,2,3}, int64[3] t = {0,3,2}> "
        "{ a = Reshape(x, s) y = Reshape(a, t) }"
    ),
    "slice-slice": (
        "g (float[N,8] x) => (float[N,6] a, float[N,4] y) "
        "<int64[1] o = {1}, int64[1] e = {7}, int64[1] f = {5}> "
        "{ a = Slice(x, o, e, o) y = Slice(a, o, f, o) }"
    ),
}


@pytest.mark.parametrize("rule", OUTPUTS_BETWEEN)
def test_what_lies_between_two_operators_is_an_output(rule: str) -> None:
    """It has to be made anyway, so making one of the two saves nothing."""
    result = check(parse(OUTPUTS_BETWEEN[rule]))

    assert rule not in result.rules()
    assert result.proto.graph.node[1].input[0] == "a"


def test_an_axis_that_a_slice_names_twice() -> None:
    """The specification leaves open what that means, and ONNX Runtime refuses it."""
    proto = parse(
        "g (float[8] x) => (float[P] y) <int64[2] s = {1,2}, int64[2] e = {7,6}, int64[2] a = {0,0}, "
        "int64[1] o = {1}, int64[1] f = {3}> { b = Slice(x, s, e, a) y = Slice(b, o, f) }"
    )

    assert check(proto, feeds=[]).ops == ["Slice", "Slice"]


@pytest.mark.parametrize(
    ("through", "to", "ops"),
    [
        (TensorProto.FLOAT, TensorProto.INT32, ["Cast"]),
        (TensorProto.FLOAT, TensorProto.UINT8, ["Cast", "Cast"]),
        (TensorProto.INT32, TensorProto.UINT8, ["Cast"]),
    ],
)
def test_small_integers_through_other_types(through: int, to: int, ops: list[str]) -> None:
    """One cast where all values fit; through floats a negative one need not wrap."""
    proto = build.model(
        [helper.make_node("Cast", ["x"], ["a"], to=through), helper.make_node("Cast", ["a"], ["y"], to=to)],
        inputs=[build.value("x", [4], TensorProto.INT8)],
        outputs=[build.value("y", [4], to)],
    )
    feeds = [{"x": np.array([0, 1, 127, 5], np.int8)}]

    assert check(proto, feeds=feeds).ops == ops


def test_a_cast_from_an_unknown_type() -> None:
    """What an unknown operator gives is not known, and the reason says so."""
    proto = build.model(
        [
            helper.make_node("Thing", ["x"], ["t"], domain="away"),
            helper.make_node("Cast", ["t"], ["a"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["a"], ["y"], to=TensorProto.DOUBLE),
        ],
        outputs=[build.value("y", [2], TensorProto.DOUBLE)],
    )
    proto.opset_import.append(helper.make_opsetid("away", 1))
    result = check(proto, feeds=[])

    assert result.ops == ["Thing", "Cast", "Cast"]
    assert "a type is not known" in result.reasons("cast-cast")


def test_a_target_with_a_size_of_zero() -> None:
    """To Reshape 0 means "copy", and −1 beside it fails where another size is 0 too."""
    proto = parse(
        "g (float[N,0,4] x) => (float[N,4,0] y) <int64[1] z = {0}, int64[1] o = {1}, int64[1] f = {4}> "
        "{ u = Unsqueeze(x, z) s = Shape(x) n = Slice(s, z, o) t = Concat <axis=0> (n, f, z) "
        "y = Reshape <allowzero=1> (u, t) }"
    )
    result = check(proto, sizes=[{"N": 2}, {"N": 0}])

    assert "reshape-reshape" not in result.rules()
    assert result.ops.count("Reshape") == 1


@pytest.mark.parametrize("opset", [1, 4])
def test_a_reshape_before_its_target_was_an_input(opset: int) -> None:
    """Until opset 4 the target is an attribute."""
    more = {"consumed_inputs": [0]} if opset == 1 else {}
    proto = build.model(
        [helper.make_node("Reshape", ["x"], ["y"], shape=[3, 2], **more)],
        inputs=[build.value("x", [2, 3])],
        outputs=[build.value("y", [3, 2])],
        opset=opset,
        ir_version=4,
    )

    assert check(proto, feeds=[]).ops == ["Reshape"]


# ---- identities


def test_a_slice_that_ends_where_the_axis_does() -> None:
    """It takes everything, as long as the axis is no longer."""
    body = "g (float[N,4] x) => (float[M,N] y) <int64[1] z = {0}, int64[1] e = {%d}, int64[1] a = {1}> "
    nodes = "{ b = Slice(x, z, e, a) y = Transpose(b) }"

    assert check(parse(body % 4 + nodes)).ops == ["Transpose"]
    assert check(parse(body % 3 + nodes)).ops == ["Slice", "Transpose"]


@pytest.mark.parametrize(("count", "ops"), [(2**16, ["Relu"]), (2**16 + 1, ["Mul", "Relu"])])
def test_how_large_a_neutral_constant_is_looked_at(count: int, ops: list[str]) -> None:
    """Reading all of a large constant costs more than it may save."""
    proto = build.model(
        [helper.make_node("Mul", ["x", "k"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        inputs=[build.value("x", [count])],
        outputs=[build.value("y", [count])],
        weights=[build.weight("k", np.ones(count, F32))],
    )

    assert check(proto).ops == ops


def test_a_recurrent_operator_that_starts_from_nothing() -> None:
    """Left out already, or by an empty name, there is nothing to leave out."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("GRU", ["x", "W", "R"], ["", "y"], hidden_size=2),
        helper.make_node("LSTM", ["x", "V", "S", "", "", "", "c"], ["", "", "z"], hidden_size=2),
    ]
    proto = build.model(
        nodes,
        inputs=[build.value("x", [3, 1, 2]), build.value("c", [1, 1, 2])],
        outputs=[build.value("y", [1, 1, 2]), build.value("z", [1, 1, 2])],
        weights=[
            build.weight(name, rng.standard_normal((1, gates * 2, 2)).astype(F32))
            for name, gates in (("W", 3), ("R", 3), ("V", 4), ("S", 4))
        ],
    )

    assert check(proto).ops == ["GRU", "LSTM"]


@pytest.mark.parametrize(("height", "ops"), [(4, ["Relu"]), (8, ["Resize", "Relu"])])
def test_a_resize_to_a_size(height: int, ops: list[str]) -> None:
    """It does nothing where the size is what it was."""
    proto = parse(
        f"g (float[1,1,4,4] x) => (float[1,1,H,4] y) <int64[4] n = {{1,1,{height},4}}> "
        "{ a = Resize(x, , , n) y = Relu(a) }"
    )

    assert check(proto).ops == ops


def test_a_split_of_which_one_part_is_read() -> None:
    """It does not give back its input, whatever nobody reads."""
    proto = parse(
        "g (float[N,4] x) => (float[N,2] y) { a, b = Split <axis=1, num_outputs=2> (x) y = Relu(a) }"
    )

    assert check(proto).ops == ["Split", "Relu"]


def test_a_dropout_whose_mask_is_read() -> None:
    """The reason says so."""
    result = check(parse("g (float[N,4] x) => (float[N,4] y, bool[N,4] m) { y, m = Dropout(x) }"))

    assert result.ops == ["Dropout"]
    assert result.reasons("inference-dropout") == ["its mask is used"]


# ---- products side by side


def test_products_without_columns_are_not_merged() -> None:
    """A Split would need a part of size 0."""
    names, widths = "abcd", (2, 3, 2, 0)
    proto = build.model(
        [helper.make_node("MatMul", ["x", f"w{n}"], [n]) for n in names],
        inputs=[build.value("x", ["N", 3])],
        outputs=[build.value(n, ["N", width]) for n, width in zip(names, widths, strict=True)],
        weights=[
            build.weight(f"w{n}", np.arange(3 * width, dtype=F32).reshape(3, width) + ord(n))
            for n, width in zip(names, widths, strict=True)
        ],
    )
    assert sorted(check(proto, exact=False).ops) == ["MatMul", "MatMul", "Split"]


# ---- passes


@pytest.mark.parametrize("count", [1, 2**14])
def test_equal_texts_become_one(count: int) -> None:
    """Texts are compared by what they say, however many."""
    texts = [f"text {i}" for i in range(count)]
    proto = build.model(
        [
            helper.make_node("Equal", ["x", "a"], ["c"]),
            helper.make_node("Equal", ["z", "b"], ["d"]),
            helper.make_node("And", ["c", "d"], ["y"]),
        ],
        inputs=[build.value(n, [count], TensorProto.STRING) for n in "xz"],
        outputs=[build.value("y", [count], TensorProto.BOOL)],
        weights=[
            helper.make_tensor(n, TensorProto.STRING, [count], [t.encode() for t in texts]) for n in "ab"
        ],
        opset=19,
        ir_version=9,
    )
    feed = {n: np.array(texts, object) for n in "xz"}

    assert len(check(proto, feeds=[feed]).proto.graph.initializer) == 1


def test_a_function_named_like_an_operator_may_be_random() -> None:
    """Gelu is no random operator, and the model's own function of that name is."""
    proto = parse(
        """g (float[2] x) => (float[2] y)
        { a = com.microsoft.Gelu(x) b = com.microsoft.Gelu(x) y = Sub(a, b) }
        <opset_import: ["" : 18], domain: "com.microsoft">
        Gelu (v) => (w) { w = RandomNormalLike(v) }""",
        extra=', "com.microsoft" : 1',
    )

    assert check(proto, feeds=[]).ops == ["Gelu", "Gelu", "Sub"]


# ---- control flow


def test_a_loop_of_no_trips_goes_whatever_its_condition() -> None:
    """Its condition is an input, and makes no difference."""
    result = check(_loop(0), feeds=[{"x": np.ones(2, F32), "go": np.array(go)} for go in (True, False)])

    assert result.ops == ["Identity"]


def _loop(trips: int, start: str = "x") -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "v"], ["w"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [build.value("i", [], TensorProto.INT64), build.value("c", [], TensorProto.BOOL), build.value("v")],
        [build.value("d", [], TensorProto.BOOL), build.value("w")],
    )
    return build.model(
        [helper.make_node("Loop", ["m", "go", start], ["y"], body=body)],
        inputs=[build.value("x"), build.value("go", [], TensorProto.BOOL)],
        weights=[build.weight("m", np.array(trips))],
    )


def test_a_loop_that_carries_what_is_left_out() -> None:
    """There is nothing to put in place of the value in the first trip; ONNX Runtime refuses the model."""
    proto = _loop(1, start="")
    proto.graph.node[0].input[1] = ""
    result = check(proto, feeds=[])

    assert result.ops == ["Loop"]
    assert result.reasons("single-trip") == ["a value it starts with is left out"]
