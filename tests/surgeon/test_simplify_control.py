"""If, Loop, functions: what is known goes, what is not stays; names never clash."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.surgeon import build
from tests.surgeon.simplify_check import check, parse, run

INT64 = TensorProto.INT64


def _branch(name: str, nodes: list[Any], outputs: list[str], weights: list[Any] | None = None) -> Any:
    infos = [build.value(output, ["N"]) for output in outputs]
    return helper.make_graph(nodes, name, [], infos, weights or [])


def _if(condition: bool | None, *, outputs: int = 1) -> onnx.ModelProto:
    """Return y = x·2 or x + w, both branches with a value called 'a' and a constant of their own."""
    then = _branch(
        "then",
        [helper.make_node("Mul", ["x", "two"], ["a"], name="n"), helper.make_node("Relu", ["a"], ["t"])]
        + [helper.make_node("Exp", ["a"], ["t2"])] * (outputs - 1),
        ["t", "t2"][:outputs],
        [build.weight("two", [2.0])],
    )
    other = _branch(
        "else",
        [helper.make_node("Add", ["x", "w"], ["a"], name="n"), helper.make_node("Relu", ["a"], ["e"])]
        + [helper.make_node("Log", ["a"], ["e2"])] * (outputs - 1),
        ["e", "e2"][:outputs],
    )
    node = helper.make_node("If", ["c"], ["y", "z"][:outputs], name="n", then_branch=then, else_branch=other)
    weights = [build.weight("w", [1.0])]
    inputs = [build.value("x", ["N"])]
    if condition is None:
        inputs.append(build.value("c", [], TensorProto.BOOL))
    else:
        weights.append(numpy_helper.from_array(np.array(condition), "c"))
    return build.model([node], inputs=inputs, outputs=[build.value("y", ["N"])], weights=weights)


@pytest.mark.parametrize(("condition", "ops"), [(True, ["Mul", "Relu"]), (False, ["Add", "Relu"])])
def test_constant_if_is_inlined(condition: bool, ops: list[str]) -> None:
    """The branch taken stands in the place of the If."""
    assert check(_if(condition)).ops == ops


def test_if_of_an_input_stays() -> None:
    """A condition that the caller gives is not known."""
    assert check(_if(None)).ops == ["If"]


def test_unused_output_of_branches() -> None:
    """What both branches make for nobody goes."""
    result = check(_if(None, outputs=2))

    assert result.ops == ["If"]
    assert list(result.proto.graph.node[0].output) == ["y"]
    assert len(result.proto.graph.node[0].attribute[0].g.node) == 2


def test_overridable_condition_stays() -> None:
    """A default that a caller may override is no constant; frozen it is."""
    proto = _if(True)
    proto.graph.input.append(build.value("c", [], TensorProto.BOOL))
    feeds = [{"x": np.array([1.0, -2.0], np.float32), "c": np.array(c)} for c in (True, False)]

    assert check(proto, feeds=feeds).ops == ["If"]

    frozen = check(proto, feeds=[{"x": feeds[0]["x"]}], freeze=("c",), again=False)
    assert frozen.ops == ["Mul", "Relu"]


def _loop(
    trips: int | None, *, stop: bool | None = None, carried: bool = True, extra: str = ""
) -> onnx.ModelProto:
    """Return a loop that doubles v and adds the trip's number, and collects v."""
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=1),
        helper.make_node("Mul", ["v", "two"], ["m"]),
        helper.make_node("Add", ["m", "f"], ["v_out"]),
        helper.make_node("Identity", ["v_out"], ["scan"]),
        helper.make_node("Identity", ["go"], ["go_out"]),
    ]
    if extra == "invariant":
        nodes[1] = helper.make_node("Mul", ["v", "k"], ["m"])
    inputs = [build.value("i", [], INT64), build.value("go", [], TensorProto.BOOL), build.value("v", ["N"])]
    outputs = [build.value("go_out", [], TensorProto.BOOL), build.value("v_out", ["N"])]
    names, results = ["trips", "start", "x"], ["v_final"]
    if extra:
        inputs.append(build.value("k", [1]))
        kept = "k" if extra == "invariant" else "k_out"
        if extra == "dead":
            nodes.append(helper.make_node("Exp", ["k"], ["k_out"]))
        else:
            nodes.append(helper.make_node("Identity", ["k"], ["k_out"]))
        outputs.append(build.value("k_out", [1]))
        names.append("two")
        results.append("k_final")
        assert kept
    outputs.append(build.value("scan", ["N"]))
    body = helper.make_graph(nodes, "body", inputs, outputs)
    node = helper.make_node("Loop", names, [*results, "scans"], body=body, name="loop")
    weights = [build.weight("two", [2.0])]
    model_inputs = [build.value("x", ["N"])]
    if trips is None:
        model_inputs.append(build.value("trips", [], INT64))
    else:
        weights.append(numpy_helper.from_array(np.array(trips, np.int64), "trips"))
    weights.append(numpy_helper.from_array(np.array(stop is not False), "start"))
    declared = [build.value("v_final", ["N"])]
    if carried:
        declared.append(build.value("scans", ["T", "N"]))
    return build.model([node], inputs=model_inputs, outputs=declared, weights=weights)


def test_one_trip_goes_in_place() -> None:
    """A loop that runs once is its body."""
    result = check(_loop(1))

    assert "Loop" not in result.ops
    assert "single-trip" in result.rules()


def test_no_trip_gives_back_the_start() -> None:
    """A loop that never runs hands on what it starts with."""
    assert check(_loop(0, carried=False)).ops == ["Identity"]


def test_what_no_trip_collects_is_not_known() -> None:
    """Without a trip the type of what is collected is not known: the loop stays."""
    result = check(_loop(0))

    assert result.ops == ["Loop"]
    assert any("never runs" in reason for reason in result.reasons("single-trip"))


@pytest.mark.parametrize("trips", [2, 5])
def test_more_trips_on_request(trips: int) -> None:
    """A loop of several trips stays, and is unrolled when that is asked for."""
    assert check(_loop(trips)).ops == ["Loop"]

    unrolled = check(_loop(trips), request=("unroll-loops",))
    assert "Loop" not in unrolled.ops
    assert unrolled.ops.count("Mul") == trips


def test_too_many_trips_stay() -> None:
    """There is a limit to unrolling, and it is said."""
    result = check(_loop(1000), request=("unroll-loops",))

    assert result.ops == ["Loop"]
    assert any("too many" in reason for reason in result.reasons("unroll-loops"))


def test_trips_from_an_input_stay() -> None:
    """How often it runs is up to the caller."""
    feeds = [{"x": np.ones(2, np.float32), "trips": np.array(n)} for n in (0, 1, 3)]
    result = check(_loop(None), request=("unroll-loops",), feeds=feeds)

    assert result.ops == ["Loop"]
    assert any("not known" in reason for reason in result.reasons("unroll-loops"))


def test_unused_scan_output_goes() -> None:
    """What a loop collects for nobody is left out."""
    result = check(_loop(3, carried=False))

    assert "loop-dead-values" in result.rules()
    assert len(result.proto.graph.node[0].output) == 1


def test_invariant_is_read_from_outside() -> None:
    """A value handed on unchanged is no longer carried."""
    result = check(_loop(3, extra="invariant"))

    assert "loop-invariants" in result.rules()
    assert len(result.proto.graph.node[0].input) == 3


def test_dead_value_is_not_carried() -> None:
    """A value that only feeds itself goes."""
    result = check(_loop(3, extra="dead"))

    assert len(result.proto.graph.node[0].input) == 3
    assert "Exp" not in [node.op_type for node in result.proto.graph.node[0].attribute[0].g.node]


FUNCTIONS = """
g (float[N] x) => (float[N] y) { a = local.twice <k = 3.0> (x) y = local.twice <k = 0.5> (a) }
<opset_import: ["" : 18], domain: "local">
twice <k> (v) => (w) { c = Constant <value_float: float = @k> () one = Constant <value_float = 1.0> ()
  i = Identity (v) m = Mul (i, one) n = Mul (m, c) w = Identity(n) }
<opset_import: ["" : 18], domain: "local">
idle (v) => (w) { w = Relu (v) }
"""


def test_functions_are_simplified_where_they_stand() -> None:
    """Inside functions too; attributes of the call are not taken for constants; unused functions go."""
    result = check(parse(FUNCTIONS, extra=', "local" : 1'))

    assert [function.name for function in result.proto.functions] == ["twice"]
    assert [node.op_type for node in result.proto.functions[0].node] == ["Constant", "Mul"]


def test_functions_are_inlined_on_request() -> None:
    """Inlined, each call has its own attribute values."""
    result = check(parse(FUNCTIONS, extra=', "local" : 1'), inline=True, again=False)

    assert result.ops == ["Mul", "Mul"]
    assert not result.proto.functions


def test_capture_keeps_a_value_alive() -> None:
    """A value that only a branch reads is no dead value."""
    proto = _if(None)
    proto.graph.node.insert(0, helper.make_node("Exp", ["x"], ["h"]))
    proto.graph.node[1].attribute[0].g.node[0].input[0] = "h"

    assert check(proto).ops == ["Exp", "If"]


def test_folds_inside_a_body() -> None:
    """Constants in subgraphs are folded there."""
    proto = _if(None)
    graph = proto.graph.node[0].attribute[0].g
    graph.node.insert(0, helper.make_node("Sqrt", ["w"], ["r"]))
    graph.node[1].input[1] = "r"
    result = check(proto)

    assert [node.op_type for node in result.proto.graph.node[0].attribute[0].g.node] == ["Add", "Relu"]


def _ranks(*, reader: str = "LSTM", nested: bool = False, ranks: str = "different") -> onnx.ModelProto:
    """Return an If that gives x of rank 3 with an axis more, or with one less, before Unsqueeze and a reader.

    nested: the reader lies in a branch of another If. ranks: "same" puts the axis in on both sides.
    """
    more = [helper.make_node("Unsqueeze", ["x", "zero"], ["t"])]
    less = more if ranks == "same" else [helper.make_node("Squeeze", ["x", "zero"], ["t"])]
    inputs = [build.value("x", ["L", 2, 3]), build.value("c", [], TensorProto.BOOL)]
    rng = np.random.default_rng(0)
    weights = [build.weight("W", rng.standard_normal((1, 16, 3)).astype(np.float32))]
    weights += [build.weight("R", rng.standard_normal((1, 16, 4)).astype(np.float32))]
    weights += [build.weight("zero", np.array([0])), build.weight("B", np.ones((3, 4), np.float32))]
    last = helper.make_node(reader, ["u", "W", "R"], ["y"], hidden_size=4)
    if reader == "Gemm":
        last = helper.make_node("Gemm", ["i", "B"], ["y"])
    if reader == "Relu":
        last = helper.make_node("Relu", ["u"], ["y"])
    unknown = build.value("y", None)
    if nested:
        away = helper.make_graph([helper.make_node("Exp", ["u"], ["y"])], "away", [], [unknown])
        inner = helper.make_graph([last], "inner", [], [unknown])
        last = helper.make_node("If", ["d"], ["y"], then_branch=inner, else_branch=away)
        inputs.append(build.value("d", [], TensorProto.BOOL))
    nodes = [
        helper.make_node(
            "If", ["c"], ["i"], then_branch=_free("then", more), else_branch=_free("else", less)
        ),
        helper.make_node("Unsqueeze", ["i", "zero"], ["u"]),
        last,
    ]
    rank = {"LSTM": 4, "Gemm": 2}.get(reader)
    outputs = [build.value("y", [f"d{i}" for i in range(rank or 0)])] if rank else [build.value("y", ["P"])]
    if rank is None or nested:
        outputs = [build.value("z", ["P"])]
        nodes.append(helper.make_node("Reshape", ["y", "flat"], ["z"]))
        weights.append(build.weight("flat", np.array([-1])))
    return build.model(nodes, inputs=inputs, outputs=outputs, weights=weights, ir_version=8)


def _free(name: str, nodes: list[Any]) -> Any:
    return helper.make_graph(nodes, name, [], [build.value("t", None)])


def _seeds(*conditions: bool, **more: bool) -> list[dict[str, Any]]:
    x = np.random.default_rng(1).standard_normal((1, 2, 3)).astype(np.float32)
    return [{"x": x, "c": np.array(c), **{n: np.array(v) for n, v in more.items()}} for c in conditions]


@pytest.mark.parametrize("reader", ["LSTM", "Gemm"])
def test_a_branch_that_no_run_survives_goes(reader: str) -> None:
    """LSTM takes three axes and Gemm two; ONNX Runtime refuses the other branch's."""
    proto = _ranks(reader=reader)
    with pytest.raises(Exception, match=r"(?i)dimension|rank|shape|matrix"):
        run(proto, _seeds(True)[0])

    result = check(proto, feeds=_seeds(False))
    assert "If" not in result.ops
    assert result.rules() >= {"impossible-branch"}


@pytest.mark.parametrize(
    ("more", "conditions"),
    [
        ({"reader": "Relu"}, (False, True)),
        ({"nested": True}, (False,)),
        ({"nested": True}, (True,)),
        ({"ranks": "same"}, ()),
    ],
)
def test_a_branch_that_may_be_taken_stays(more: dict[str, Any], conditions: tuple[bool, ...]) -> None:
    """The reader takes any rank, or need not run; or both branches fail, and none is the better one."""
    inner = {"d": False} if more.get("nested") else {}
    result = check(_ranks(**more), feeds=_seeds(*conditions, **inner), skip=("clean",))

    assert "If" in result.ops
    assert "impossible-branch" not in result.rules()


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_readers_that_take_both_branches_or_none(axes: int) -> None:
    """An LSTM beside the If fails in both cases (of four or two axes), or in none (of three)."""
    more = [helper.make_node("Unsqueeze", ["x", "zero"], ["t"])]
    same = [helper.make_node("Identity", ["x"], ["t"])]
    rng = np.random.default_rng(0)
    proto = build.model(
        [
            helper.make_node("If", ["c"], ["i"], then_branch=_free("a", more), else_branch=_free("b", same)),
            helper.make_node("Reshape", ["i", "flat"], ["z"]),
            helper.make_node("LSTM", ["x", "W", "R"], ["y"], hidden_size=4),
        ],
        inputs=[build.value("x", [2, 2, 3, 1][:axes]), build.value("c", [], TensorProto.BOOL)],
        outputs=[build.value("y", ["a", "b", "d", "e"]), build.value("z", ["P"])],
        weights=[
            build.weight("W", rng.standard_normal((1, 16, 3)).astype(np.float32)),
            build.weight("R", rng.standard_normal((1, 16, 4)).astype(np.float32)),
            build.weight("zero", np.array([0])),
            build.weight("flat", np.array([-1])),
        ],
        ir_version=8,
    )
    feeds = [{"x": np.ones((2, 2, 3), np.float32), "c": np.array(c)} for c in (True, False)]

    assert "If" in check(proto, feeds=feeds if axes == 3 else []).ops


def test_a_condition_decides_on_several_branches() -> None:
    """With the same condition twice, the second If must be looked through with what the first one takes."""
    more = [helper.make_node("Unsqueeze", ["x", "zero"], ["t"])]
    same = [helper.make_node("Identity", ["x"], ["t"])]
    back = [helper.make_node("Squeeze", ["i", "zero"], ["t"])]
    keep = [helper.make_node("Identity", ["i"], ["t"])]
    rng = np.random.default_rng(0)
    proto = build.model(
        [
            helper.make_node("If", ["c"], ["i"], then_branch=_free("a", more), else_branch=_free("b", same)),
            helper.make_node("If", ["c"], ["j"], then_branch=_free("d", back), else_branch=_free("e", keep)),
            helper.make_node("LSTM", ["j", "W", "R"], ["y"], hidden_size=4),
        ],
        inputs=[build.value("x", [2, 2, 3]), build.value("c", [], TensorProto.BOOL)],
        outputs=[build.value("y", ["a", "b", "d", "e"])],
        weights=[
            build.weight("W", rng.standard_normal((1, 16, 3)).astype(np.float32)),
            build.weight("R", rng.standard_normal((1, 16, 4)).astype(np.float32)),
            build.weight("zero", np.array([0])),
        ],
        ir_version=8,
    )
    feeds = [{"x": np.ones((2, 2, 3), np.float32), "c": np.array(c)} for c in (True, False)]

    assert check(proto, feeds=feeds).ops == ["If", "If", "LSTM"]
