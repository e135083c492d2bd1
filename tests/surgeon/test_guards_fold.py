"""What each condition of constant folding is there for; see test_guards.py."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphdoc.engine.ops import table
from graphdoc.engine.ops.table import Call, TensorType
from graphdoc.surgeon.model import load
from graphdoc.surgeon.simplify import simplify
from tests.surgeon import build
from tests.surgeon.simplify_check import check, parse

F32 = np.float32
NO_FEEDS = [{"x": np.zeros(2, F32)}]


def _node(op: str, weights: dict[str, Any], kind: int | None = None, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node that reads constants alone; kind: the type of the result."""
    arrays = {name: np.asarray(array) for name, array in weights.items() if array is not None}
    first = next(iter(arrays.values()))
    kind = kind or helper.np_dtype_to_tensor_dtype(first.dtype)
    names = [name.strip("_") for name in weights]
    return build.model(
        [helper.make_node(op, names, ["y"], **attributes)],
        outputs=[build.value("y", [f"d{i}" for i in range(first.ndim)], kind)],
        weights=[build.weight(name, array) for name, array in arrays.items()],
        ir_version=8,
    )


WHOLE = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def _ends(dtype: Any) -> dict[str, Any]:
    """Return two operands at both ends of an integer type, as matrices."""
    ends = np.iinfo(dtype)
    a = np.array([[ends.max, ends.min], [ends.max // 2 + 5, 7]], dtype)
    return {"a": a, "b": np.array([[3, ends.max], [ends.max // 3, ends.max]], dtype)}


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "MatMul"])
@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_wrap_as_in_onnx_runtime(op: str, dtype: Any) -> None:
    """Sums, differences and products that overflow are folded to what ONNX Runtime computes."""
    if op == "MatMul" and np.dtype(dtype).itemsize < 4:
        pytest.skip("MatMul has no such type")

    assert check(_node(op, _ends(dtype)), feeds=NO_FEEDS).ops == []


@pytest.mark.parametrize("op", ["Neg", "Abs"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_the_smallest_integer_stays_what_it_is(op: str, dtype: Any) -> None:
    """It has no opposite, and wraps to itself."""
    assert check(_node(op, {"a": _ends(dtype)["a"]}), feeds=NO_FEEDS).ops == []


@pytest.mark.parametrize("to", [TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32])
def test_integers_cast_to_narrower_ones_wrap(to: int) -> None:
    """Only from floats it is left open what becomes of a number that does not fit."""
    numbers = np.array([300, -1, 2**31 + 5, -(2**63)], np.int64)

    assert check(_node("Cast", {"a": numbers}, to, to=to), feeds=NO_FEEDS).ops == []


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("dividend", "divisor"), [("smallest", -1), ("other", 0)])
def test_divisions_at_which_processors_stop(op: str, dtype: Any, dividend: str, divisor: int) -> None:
    """No runtime is asked: it would end the process. The nearest neighbours are folded."""
    smallest = np.iinfo(dtype).min
    number = smallest if dividend == "smallest" else 5
    proto = _node(op, {"a": np.array([number, 7], dtype), "b": np.array([divisor, 2], dtype)})
    near = _node(op, {"a": np.array([smallest, smallest + 1], dtype), "b": np.array([1, -1], dtype)})

    assert check(proto, feeds=[]).ops == [op]
    assert check(near, feeds=NO_FEEDS).ops == []


FOLDED: dict[str, tuple[Any, ...]] = {
    "a power of floats": ("Pow", {"a": np.array([2.5, 1e30], F32), "b": np.array([-2, 2], F32)}, {}),
    "a division of floats by zero": ("Div", {"a": np.array([1, 0], F32), "b": np.array([0, 0], F32)}, {}),
    "half the pixels": (
        "Resize",
        {"a": np.arange(15, dtype=F32).reshape(1, 1, 5, 3), "_": None, "s": np.array([1, 1, 0.5, 0.5], F32)},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    ),
    "corners of a size that is given": (
        "Resize",
        {
            "a": np.arange(15, dtype=F32).reshape(1, 1, 5, 3),
            "_": None,
            "__": None,
            "n": np.array([1, 1, 3, 2]),
        },
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_only_looks_left_open_is_folded(name: str) -> None:
    """The neighbours of what test_rule_guards.py leaves."""
    op, weights, more = FOLDED[name]

    assert check(_node(op, weights, **more), feeds=NO_FEEDS, exact=False).ops == []


@pytest.mark.parametrize("held", ["value_int = 2", "value = int64[1] {2}", "value_floats = [1.0, 2.0]"])
def test_constants_of_functions_stay_nodes(held: str) -> None:
    """A function can hold no initializers."""
    to = "c = Cast <to = 1> (k)" if "float" not in held else "c = Identity(k)"
    proto = parse(
        f"""g (float[2] x) => (float[2] y) {{ y = local.scale(x) }}
        <opset_import: ["" : 18], domain: "local">
        scale (v) => (w) {{ k = Constant <{held}> () {to} w = Mul(v, c) }}""",
        extra=', "local" : 1',
    )
    result = check(proto)

    assert [node.op_type for node in result.proto.functions[0].node] == ["Constant", "Mul"]
    assert result.proto.functions[0].node[0].output[0] == result.proto.functions[0].node[1].input[1]


def test_a_constant_without_content() -> None:
    """An initializer in memory can lack its tensor: it is not taken for a bound that is left out."""
    model = load(
        build.model(
            [
                helper.make_node("Clip", ["k", "low"], ["c"]),
                helper.make_node("Add", ["x", "c"], ["y"]),
            ],
            weights=[build.weight("k", [-1, 1]), build.weight("low", np.array(0.5, F32))],
        )
    )
    model.graph.initializers["low"].const_value = None

    result = simplify(model)
    assert [node.op_type for node in result.model.graph] == ["Clip", "Add"]
    reasons = {item.rule: item.reason for item in result.report.kept}
    assert reasons["fold-constants"] == "the content of an input is not known"


def test_quantized_constants_stay_quantized() -> None:
    """Neither the numbers nor their zero points and scales become something else."""
    proto = parse(
        "g (float[2] x) => (float[2] y) <float[2] k = {1,2}, float s = {0.5}, uint8 z = {3}> "
        "{ q = QuantizeLinear(k, s, z) d = DequantizeLinear(q, s, z) y = Add(x, d) }"
    )

    assert check(proto).ops == ["QuantizeLinear", "DequantizeLinear", "Add"]


@pytest.mark.parametrize("outputs", [["k", "y"], ["y", "z"]])
def test_whole_numbers_that_are_outputs(outputs: list[str]) -> None:
    """An Identity that gives an output its name is not folded again and again."""
    nodes = [helper.make_node("Identity", ["k"], [name]) for name in outputs if name != "k"]
    proto = build.model(
        nodes,
        outputs=[build.value(name, [2], TensorProto.INT64) for name in outputs],
        weights=[build.weight("k", np.array([1, 2]))],
    )

    assert len(check(proto, feeds=NO_FEEDS).ops) <= 1


def test_a_whole_number_under_two_names() -> None:
    """What one Constant node gives, two outputs are: the Identity between them has to stay."""
    proto = build.model(
        [
            helper.make_node("Constant", [], ["k"], value_ints=[1, 2]),
            helper.make_node("Identity", ["k"], ["y"]),
        ],
        outputs=[build.value(name, [2], TensorProto.INT64) for name in "ky"],
    )

    assert check(proto, feeds=NO_FEEDS).ops == ["Identity"]


def test_what_follows_from_shapes_of_what_nobody_reads() -> None:
    """A node whose result is not used goes, and is not folded first."""
    result = check(parse("g (float[2,3] x) => (float[2,3] y) { s = Shape(x) y = Relu(x) }"))

    assert result.ops == ["Relu"]
    assert result.rules() == {"dead-nodes"}


def test_sequences_are_not_folded() -> None:
    """No initializer can hold one."""
    proto = parse(
        "g (int64 x) => (float[P] y) <float[2] a = {1,2}, float[2] b = {3,4}> "
        "{ s = SequenceConstruct(a, b) y = SequenceAt(s, x) }"
    )
    result = check(proto, feeds=[{"x": np.array(1)}])

    assert result.ops == ["SequenceConstruct", "SequenceAt"]
    assert result.reasons("fold-constants") == ["the result is no tensor"]


@pytest.fixture
def wrong_operator() -> Iterator[None]:
    """Register an operator that gives another type than it states."""

    def infer(call: Call, x: TensorType) -> TensorType:
        return TensorType(np.dtype(np.float32), x.shape)

    @table.op("Wrong", 1, domain="away", infer=infer)
    def wrong(call: Call, x: Any) -> Any:
        return x.astype(np.float64)

    yield
    table.unregister("away", "Wrong")


def test_results_of_another_type_are_not_kept(wrong_operator: None) -> None:
    """Whatever reads the value was written for the type that is stated."""
    proto = build.model(
        [
            helper.make_node("Wrong", ["k"], ["w"], domain="away"),
            helper.make_node("Add", ["x", "w"], ["y"]),
        ],
        inputs=[build.value("x", [5000])],
        outputs=[build.value("y", [5000])],
        weights=[build.weight("k", np.ones(5000, F32))],
    )
    proto.opset_import.append(helper.make_opsetid("away", 1))
    result = check(proto, feeds=[])

    assert result.ops == ["Wrong", "Add"]
    assert result.reasons("fold-constants") == ["the model states float32, and the result is float64"]
