"""Random graphs, a short run beside ONNX Runtime: what explains differences, and that others are found."""

import collections
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from llvmlite.binding import get_host_cpu_features
from onnx import TensorProto, helper

from graphdoc.engine.errors import RunnerError
from graphdoc.engine.ops import table
from tests.engine import random_reasons
from tests.engine.random_graphs import Case, graphs, random_graph
from tests.engine.random_oracle import Outcome, RefusedError, identical, judge, near, on_ort, shrunk
from tests.engine.random_reasons import REASONS
from tests.engine.random_suspect import Suspect
from tests.engine.random_values import bodies
from tests.engine.single import engine, model

SEEDS = 80
"""Graphs of the short run; tests/bench/random_graphs.py is the long one."""


def f32(*numbers: Any) -> Any:
    """Return float32 numbers."""
    return np.array(numbers, dtype=np.float32)


def noise(*shape: int, scale: float = 1.0, dtype: Any = np.float32) -> Any:
    """Return seeded normal numbers."""
    return (np.random.default_rng(3).standard_normal(shape) * scale).astype(dtype)


def told(outcome: Outcome) -> str:
    """Return the unexplained differences, one a line."""
    return "\n".join(f"{d.op} {d.where}: {d.text}" for d in outcome.differences)


# ---- the short run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(4))
def test_engine_agrees_with_onnx_runtime(part: int) -> None:
    """Every layer of every graph agrees, or a named reason explains why it cannot."""
    for number in range(part, SEEDS, 4):
        outcome = judge(*random_graph(f"test/{number}", keep_failures=True))

        assert not outcome.differences, f"graph {number}: {told(outcome)}"


@pytest.mark.parametrize("part", range(2))
def test_level_1_agrees_with_onnx_runtime(part: int) -> None:
    """Every layer too, in programs on the NumPy device; and fused with level 0."""
    for number in range(part, SEEDS, 2):
        outcome = judge(*random_graph(f"test/{number}", keep_failures=True), level=1)

        assert not outcome.differences, f"graph {number}: {told(outcome)}"


@settings(
    max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
@given(graphs(most=6))
def test_strategy_gives_graphs_that_agree(case: Case) -> None:
    """The same through hypothesis, which shrinks what it finds."""
    outcome = judge(*case)

    assert not outcome.differences, told(outcome)


# ---- the strategy -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample() -> list[Case]:
    """Graphs of many seeds."""
    return [random_graph(f"sample/{number}") for number in range(160)]


def test_a_seed_gives_the_same_graph_again() -> None:
    """Numbers of graphs can be written down."""
    one, other = random_graph("again"), random_graph("again")

    assert one[0].SerializeToString() == other[0].SerializeToString()
    assert all(identical(one[1][name], other[1][name]) for name in one[1])


def test_graphs_are_sound_and_mostly_run(sample: list[Case]) -> None:
    """The checker takes them all; ONNX Runtime refuses few."""
    refused = 0
    for proto, feeds in sample[:40]:
        onnx.checker.check_model(proto)
        try:
            on_ort(proto, feeds)
        except RefusedError:
            refused += 1

    assert refused <= 4


def test_graphs_hold_what_they_promise(sample: list[Case]) -> None:
    """Operators, dtypes, opsets, bodies, symbols, empty dims, special numbers, constants of both kinds."""
    nodes = [node for proto, _ in sample for node in bodies(proto.graph)]
    arrays = [a for _, feeds in sample for a in feeds.values()]
    dims = [d for proto, _ in sample for i in proto.graph.input for d in i.type.tensor_type.shape.dim]
    floats = [a.astype(np.float64).ravel() for a in arrays if a.dtype.kind == "f"]
    numbers = np.concatenate(floats)
    operators = collections.Counter(node.op_type for node in nodes)

    assert len(operators) >= 150
    assert min(operators[name] for name in ("If", "Loop", "Scan", "Constant", "Shape", "Identity")) >= 3
    assert len({proto.opset_import[0].version for proto, _ in sample}) >= 10
    assert len({a.dtype for a in arrays}) >= 12
    assert {a.ndim for a in arrays} == {0, 1, 2, 3, 4, 5}
    assert any(0 in a.shape for a in arrays)
    assert any(d.dim_param for d in dims)
    assert any(not d.dim_param and not d.HasField("dim_value") for d in dims)
    assert np.isnan(numbers).any()
    assert np.isposinf(numbers).any()
    assert np.isneginf(numbers).any()
    assert any((np.signbit(a) & (a == 0)).any() for a in floats)
    assert any("" in node.input for node in nodes)
    assert any(proto.graph.initializer for proto, _ in sample)


# ---- differences are seen -----------------------------------------------------------------------------


def _wrong(monkeypatch: pytest.MonkeyPatch, name: str, evaluate: Any) -> None:
    table.load_families()
    rows = [table.Operator("", name, row.since, evaluate) for row in table._TABLE["", name]]
    monkeypatch.setitem(table._TABLE, ("", name), rows)


@pytest.mark.parametrize(
    ("op", "inputs", "evaluate"),
    [
        ("Add", [noise(3), noise(3)], lambda call, a, b: a + b + np.float32(1e-5)),
        ("Sub", [noise(3), f32(1, 2, 3)], lambda call, a, b: b - a),
        ("Relu", [f32(-1, 2)], lambda call, x: np.maximum(x, 0).astype(np.float64)),
        ("Transpose", [noise(2, 3)], lambda call, x, perm=None: x),
        ("Neg", [f32(0, 1)], lambda call, x: 0 - x),
        ("Exp", [f32(1, 2)], lambda call, x: np.exp(x.astype(np.float16)).astype(np.float32)),
        ("ArgMax", [f32(1, 3, 2)], lambda call, x, axis=0, keepdims=1: np.array([0])),
        ("Ceil", [f32(1.5)], lambda call, x: 1 / 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_operator_is_found(
    monkeypatch: pytest.MonkeyPatch, op: str, inputs: list[Any], evaluate: Any
) -> None:
    """Off by little, swapped, of another dtype or shape, −0 lost, low precision, another index, failing."""
    case = model(op, *inputs, opset=13)
    assert not judge(*case).differences
    _wrong(monkeypatch, op, evaluate)

    assert [d.op for d in judge(*case).differences] == [op]


def test_a_wrong_operator_in_a_branch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer inside is named, not the If around it."""
    case = in_a_branch("Sub", noise(4))
    assert not judge(*case).differences
    _wrong(monkeypatch, "Sub", lambda call, a, b: a + b)

    assert "Sub" in {d.op for d in judge(*case).differences}


def test_a_graph_that_only_onnx_runtime_refuses_is_found() -> None:
    """A refusal without a known reason counts as a difference."""
    case = model("Softmax", noise(3), opset=11, axis=1)

    assert [d.op for d in judge(*case).differences] == ["graph"]


def test_what_a_graph_shows_is_shrunk() -> None:
    """Of a whole graph that differs, the node that shows it and what it reads are left."""
    proto, feeds = model("Softmax", noise(3), opset=11, axis=1)
    proto.graph.node.insert(0, helper.make_node("Relu", ["x0"], ["r"]))
    proto.graph.node.append(helper.make_node("Neg", ["r"], ["n"]))
    found = judge(proto, feeds).differences

    small = shrunk(found[0])

    assert [node.op_type for node in found[0].model.graph.node] == ["Relu", "Softmax", "Neg"]
    assert [node.op_type for node in small.model.graph.node] == ["Softmax"]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (f32(1), f32(1 + 3e-7), True),
        (f32(1), f32(1 + 1e-6), False),
        (f32(np.nan, np.inf), f32(np.nan, np.inf), True),
        (f32(np.nan), f32(1), False),
        (f32(np.inf), f32(-np.inf), False),
        (np.array([1]), np.array([2]), False),
        (f32(1), f32(1).astype(np.float64), False),
    ],
)
def test_near_means_four_units(a: Any, b: Any, expected: bool) -> None:
    """The quick look grants floats four units in the last place, and other dtypes nothing."""
    assert near(a, b) == expected


def test_zeros_differ_where_signs_count() -> None:
    """−0 and 0 are the same, but not for operators whose sign IEEE 754 lays down."""
    assert identical(f32(0), f32(-0.0))
    assert not identical(f32(0), f32(-0.0), signs=True)


# ---- reasons ------------------------------------------------------------------------------------------


def in_a_branch(op: str, x: Any) -> Case:
    """Return an If whose branches apply an operator to x."""
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    inputs = ["x", "x"] if op == "Sub" else ["x"]
    body = helper.make_graph([helper.make_node(op, inputs, ["o"])], "b", [], [out])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    infos = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {"c": np.array(True), "x": x}


def loop_without_a_turn() -> Case:
    """Return a Loop that collects a value and does not run."""
    scalar = [("i", TensorProto.INT64, []), ("g", TensorProto.BOOL, []), ("k", TensorProto.BOOL, [])]
    turn, go, keep = (helper.make_tensor_value_info(*entry) for entry in scalar)
    state, new = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "st")
    seen = helper.make_tensor_value_info("c", TensorProto.FLOAT, [None])
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in ("gk", "st", "sc")]
    body = helper.make_graph(nodes, "b", [turn, go, state], [keep, new, seen])
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "z"], body=body)
    infos = [
        helper.make_tensor_value_info("n", TensorProto.INT64, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
    ]
    outputs = [onnx.ValueInfoProto(name=n) for n in "yz"]
    graph = helper.make_graph([node], "g", infos, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {"n": np.array(0), "x": f32(1, 2)}


_BYTES = np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8)
_CELL = {"hidden_size": 1, "outputs": 2, "opset": 14}

_LARGE = noise(4096, scale=1e4)
CASES: dict[str, Case] = {
    "nan order": model("GlobalMaxPool", f32(1, np.nan).reshape(1, 1, 2), opset=11),
    "overflow on the way": model(
        "GroupNormalization", f32(1, 3e38).reshape(1, 1, 2), f32(1), f32(0), num_groups=1
    ),
    "strings gathered": model("Gather", np.array([["a", "b"], ["c", "d"]], object), np.array([1, 0])),
    "pool of −Inf": model("GlobalMaxPool", f32(-np.inf).reshape(1, 1, 1), opset=11),
    "softmax of Inf": model("LogSoftmax", np.array([1, np.inf, 2]), opset=17),
    "zero of Where": model("Where", np.array([True]), f32(-0.0), f32(1)),
    "logarithm of a sum that cancels": model("ReduceLogSum", np.append(_LARGE, -_LARGE.sum()), opset=13),
    "a rotation that cancels": model(
        "RotaryEmbedding",
        f32(68.63556, 123.77006, 0.40935382, 182.39752, 49.420376, 68.29912, 119.98381, 52.722363).reshape(
            1, 2, 2, 2
        ),
        f32(-3.4552498, -3.188338, 3.7975812, 6.2693534, 4.9081063).reshape(5, 1),
        f32(-1.5252724, 1.3980486, -0.38878414, 2.15663, -2.4739928).reshape(5, 1),
        np.array([[4, 1]]),
        interleaved=1,
        opset=24,
    ),
    "sign of NaN": model("Sign", np.array([np.nan, -2, 3], np.float16)),
    "nonzero of a scalar": model("NonZero", np.float32(3)),
    "polynomials": model("Sigmoid", f32(-30)),
    "NaN in a cell": model(
        "GRU",
        f32(np.nan).reshape(1, 1, 1),
        noise(1, 6, 1),
        noise(1, 6, 2),
        noise(1, 12),
        hidden_size=2,
        outputs=2,
        opset=14,
    ),
    "e^x − 1 near zero": model("Selu", f32(-1e-10)),
    "cosine window": model("BlackmanWindow", np.array(5)),
    "running twiddles": model("STFT", noise(1, 20, 1, scale=30), np.array(3), None, np.array(6), opset=17),
    "u8s8 saturation": model(
        "ConvInteger", _BYTES[:48].view(np.int8).reshape(1, 3, 4, 4), _BYTES[100:154].reshape(2, 3, 3, 3)
    ),
    "scan output of no turn": loop_without_a_turn(),
    "log-sum-exp of integers": model("ReduceLogSumExp", np.array([-2, -9, -9], dtype=np.int32), opset=17),
    "integers in float64": model("ReduceProd", np.array([2**30, 7], dtype=np.int32), opset=17),
    "mean of nothing": model("ReduceMean", noise(0), opset=17),
    "shrink in float32": model("Shrink", noise(3, scale=3, dtype=np.float64), bias=0.25),
    "one point between corners": model("AffineGrid", noise(1, 2, 3), np.array([1, 2, 2, 1]), align_corners=1),
    "SAME with dilations": model(
        "MaxPool",
        noise(1, 1, 3, 2),
        auto_pad="SAME_UPPER",
        dilations=[2, 1],
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    "SAME with a stride larger than the kernel": model(
        "ConvTranspose", noise(1, 1, 3), noise(1, 1, 1), auto_pad="SAME_LOWER", strides=[2]
    ),
    "corners of a fractional length": model(
        "Resize",
        noise(1, 1, 1, 3),
        None,
        f32(1, 1, 1, 1.5),
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    "coordinates in float32": model(
        "Resize", noise(4, 4, 3, 2, scale=9), None, f32(1, 1, 3, 3), mode="cubic", opset=18
    ),
    "quantised infinity": model("DynamicQuantizeLinear", f32(-np.inf, 1), outputs=3),
    "zero times infinity": model(
        "DeformConv",
        np.full((1, 1, 2, 2), np.inf, np.float32),
        noise(1, 1, 1, 1),
        np.full((1, 2, 2, 2), 9, np.float32),
    ),
    "running sum of squares": model(
        "LRN", f32(500, 0.1, 0.1, 0.1).reshape(1, 4, 1, 1), size=1, alpha=1.0, opset=13
    ),
    "scale folded into the mean": model(
        "InstanceNormalization", f32(-170.3).reshape(1, 1, 1), f32(99.7), f32(0.654), opset=13
    ),
    "no epsilon": model("MeanVarianceNormalization", f32(1, 1).reshape(1, 1, 1, 2), opset=13),
    "variance as a difference": model(
        "GroupNormalization",
        f32(-88.06, -87.91, -88.35, -87.84, -87.69, -87.91).reshape(1, 1, 6),
        f32(-0.84),
        f32(-0.84),
        num_groups=1,
        opset=21,
    ),
    "log-sum-exp without a shift": model("ReduceLogSumExp", np.array(3203.125, np.float32), opset=28),
    "rounding inside a body, carried on": in_a_branch("Sigmoid", f32(-30)),
}

EDGES: list[tuple[str, Case]] = [
    (
        "running sum of squares",
        model("LRN", f32(500, 0.1, 0.1, 3.4e38, 0.1).reshape(1, 5, 1, 1), size=1, alpha=1.0, opset=13),
    ),
    (
        "scale folded into the mean",
        model(
            "InstanceNormalization",
            noise(4, 2, 16, scale=9),
            f32(-1e-40, np.inf),
            f32(-1e-40, np.inf),
            opset=13,
        ),
    ),
    (
        "u8s8 saturation",
        model(
            "ConvInteger",
            np.full((2, 2, 3, 3), 9, np.int8),
            np.full((1, 2, 3, 3), 253, np.uint8),
            np.array(-128, np.int8),
            pads=[2, 1, 1, 0],
        ),
    ),
    (
        "log-sum-exp without a shift",
        model(
            "ReduceLogSumExp", f32(0, 0, 0, 1431, *range(14)).reshape(3, 2, 3), np.array([-2, 0]), opset=28
        ),
    ),
    ("integers in float64", model("Pow", np.array([-1, 2]), np.array(7422422387440948339), opset=15)),
    ("shrink in float32", model("Shrink", np.array([2147778], np.uint32), bias=1.0703125, opset=9)),
]
"""Further inputs on which a reason holds."""


WIDE_SUMS = {"avxvnni", "avx512vnni", "dotprod"}
"""Features of processors that add products of bytes in 32 bits."""


@pytest.mark.parametrize(
    ("name", "case"), [*CASES.items(), *EDGES], ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_reason_explains_its_case(name: str, case: Case) -> None:
    """The two differ on it, and this reason is why."""
    outcome = judge(*case)

    assert not outcome.differences, told(outcome)
    if name == "u8s8 saturation" and WIDE_SUMS & {k for k, has in get_host_cpu_features().items() if has}:
        assert (
            outcome.exact == outcome.values
        )  # this processor adds such products in 32 bits: nothing to explain
    else:
        assert name in outcome.reasons


def test_every_reason_has_a_case() -> None:
    """What a table excuses is tested; two that no ONNX Runtime repeats for sure have tests of their own."""
    names = {each.name for each in REASONS}

    assert names - set(CASES) == {"product over nothing", "subnormal numbers"}
    assert all(each.clause and each.ops for each in REASONS)


def test_a_product_over_nothing_is_zero() -> None:
    """Only a result of zeros is excused."""
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    inputs = [np.zeros((2, 0), np.int8), np.zeros((0, 2), np.uint8)]
    junk = np.full((2, 2), 7, np.int32)

    zero = Suspect(node, 0, 13, inputs, junk * 0, junk, None, None)
    other = Suspect(node, 0, 13, inputs, junk, junk * 0, None, None)

    assert random_reasons.explain(zero) == "product over nothing"
    assert random_reasons.explain(other) == ""


def test_subnormal_numbers_may_vanish() -> None:
    """log(exp(x)) and x, where x is that small; not where an element is a normal number."""
    node = helper.make_node("ReduceLogSumExp", ["a"], ["y"])
    tiny = Suspect(node, 0, 18, [f32(-1e-40)], f32(-1e-40), f32(0), None, None)
    normal = Suspect(node, 0, 18, [f32(-1e-30)], f32(-1e-30), f32(0), None, None)

    assert random_reasons.explain(tiny) == "subnormal numbers"
    assert random_reasons.explain(normal) == ""


_TAME: dict[str, Case] = {
    "NaN nowhere": model("GlobalMaxPool", f32(1, 4).reshape(1, 1, 2), opset=11),
    "in range": model("Cast", f32(3, -1), to=TensorProto.INT8),
    "middle of the sigmoid": model("Sigmoid", f32(0.5, 1)),
    "small integers": model("ReduceProd", np.array([3, 7], dtype=np.int32), opset=17),
    "no dilations": model("MaxPool", noise(1, 1, 3, 2), kernel_shape=[2, 2]),
    "finite cell": model("GRU", noise(1, 1, 1), *(noise(1, 3, 1) for _ in "wr"), **_CELL),
}


@pytest.mark.parametrize("name", _TAME)
def test_reasons_excuse_no_wrong_result(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Off by a thousandth, or by one, where nothing is at an edge."""
    proto, feeds = _TAME[name]
    op = proto.graph.node[0].op_type
    row = next(r for r in reversed(table._TABLE["", op]) if r.since <= proto.opset_import[0].version)

    def off(call: Any, *inputs: Any, **attributes: Any) -> Any:
        results = row.evaluate(call, *inputs, **attributes)
        first, *others = results if isinstance(results, tuple) else (results,)
        first = first + 1 if first.dtype.kind in "iu" else first * first.dtype.type(1.001)
        return (first, *others)

    _wrong(monkeypatch, op, off)

    assert [d.op for d in judge(proto, feeds).differences] == [op]


# ---- what random graphs found in the engine -----------------------------------------------------------


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("attributes", [{}, {"keepdims": 0}, {"axis": -2, "select_last_index": 1}], ids=str)
def test_an_index_over_nothing_is_nothing(op: str, attributes: dict[str, int]) -> None:
    """An empty axis is no error where the result is empty too."""
    outcome = judge(*model(op, noise(0, 0, 3), opset=13, **attributes))

    assert (outcome.exact, outcome.differences, outcome.refused) == (1, [], "")


def test_an_axis_of_nothing_with_results_is_refused() -> None:
    """There is no index of the largest of no elements."""
    with pytest.raises(RunnerError, match="ArgMax"):
        engine(*model("ArgMax", noise(0, 3), opset=13))


def test_default_attributes_have_single_precision() -> None:
    """An epsilon that is left out is the float32 number that a file would hold, also for float64 inputs."""
    small = noise(1, 2, 8, scale=1e-3, dtype=np.float64)
    inputs = [small, *(np.abs(noise(2, scale=1e-5, dtype=np.float64)) for _ in range(4))]
    left_out, written = (
        judge(*model("BatchNormalization", *inputs, opset=15, **more)) for more in ({}, {"epsilon": 1e-5})
    )

    assert left_out.reasons == written.reasons == {}
    assert not left_out.differences
