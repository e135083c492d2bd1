"""The pattern language and its matcher."""

import time
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from graphdoc.engine.errors import UsageError
from graphdoc.engine.infer import Facts
from graphdoc.surgeon import pattern_match
from graphdoc.surgeon.model import load
from graphdoc.surgeon.pattern import Pattern, record
from graphdoc.surgeon.pattern_match import Match, Matcher
from graphdoc.surgeon.rules.base import Context
from tests.surgeon import build
from tests.surgeon.rewriting_tools import graph, half

XY = "float[2,3] x => float[2,3] y"


def matches(
    pattern: Callable[..., Any], model: onnx.ModelProto, output: str = "y"
) -> tuple[list[Match], str]:
    """Return how a pattern matches at the node that makes a value, and why it does not."""
    graph_model = load(model)
    context = Context(graph_model, Facts(graph_model))
    node = next(n for n in graph_model.graph.all_nodes() if any(v.name == output for v in n.outputs))
    matcher = Matcher(record(pattern), node, context)
    found = list(matcher.matches())
    return found, matcher.nearest.reason if matcher.nearest and not found else ""


def names(match: Match) -> dict[str, Any]:
    """Return what variables and attributes stand for, values by name."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return value.name if isinstance(value, ir.Value) else value

    return {name: plain(value) for name, value in match.names.items()}


def test_a_chain_is_found_from_its_last_node() -> None:
    """Variables are bound to values, nodes can be found by name, outputs are the anchor's."""
    model = graph("float[2,3] x, float[3,4] w => float[2,4] y", "m = MatMul (x, w) y = Relu (m)")

    (match,), _ = matches(lambda op, a, b: op.Relu(op.MatMul(a, b, _name="product")), model)

    assert names(match) == {"a": "x", "b": "w"}
    assert [node.op_type for node in match.nodes] == ["Relu", "MatMul"]
    assert [value.name for value in match.outputs] == ["y"]
    product = match.node("product")
    assert product is not None
    assert product.op_type == "MatMul"
    assert match.node("other") is None


@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("nodes", ["r = Relu (x) y = OP (r, z)", "r = Relu (x) y = OP (z, r)"])
def test_inputs_of_commutative_operators_are_found_in_any_order(op: str, nodes: str) -> None:
    """The pattern's order of inputs does not matter."""
    model = graph("float[2] x, float[2] z => float[2] y", nodes.replace("OP", op))

    (match,), _ = matches(lambda op_, a, b: op_.node(op, b, op_.Relu(a)), model)

    assert names(match) == {"a": "x", "b": "z"}


@pytest.mark.parametrize("op", ["Sub", "Div", "Pow"])
def test_inputs_of_other_operators_keep_their_order(op: str) -> None:
    """x − relu(x) is not relu(x) − x."""
    model = graph("float[2] x => float[2] y", f"r = Relu (x) y = {op} (x, r)")

    assert len(matches(lambda op_, a: op_.node(op, a, op_.Relu(a)), model)[0]) == 1
    assert matches(lambda op_, a: op_.node(op, op_.Relu(a), a), model)[0] == []


def test_three_inputs_are_swapped_too() -> None:
    """Sum, Max, Min and Mean of three."""
    model = graph("float[2] x, float[2] z => float[2] y", "r = Relu (x) e = Exp (x) y = Max (r, z, e)")

    found, _ = matches(lambda op, a, b: op.Max(b, op.Exp(a), op.Relu(a)), model)

    assert [names(match) for match in found] == [{"a": "x", "b": "z"}]


def test_swapping_follows_the_variables() -> None:
    """An order that fits by structure is given up when a variable would be two values."""
    model = graph(
        "float[2] x, float[2] z => float[2] y",
        "a = Mul (x, z) b = Mul (z, x) c = Relu (z) s = Add (a, b) y = Mul (s, c)",
    )

    (match, *_), _ = matches(lambda op, p, q: op.Mul(op.Add(op.Mul(p, q), op.Mul(q, p)), op.Relu(q)), model)

    assert names(match) == {"p": "x", "q": "z"}


def test_a_variable_that_stands_twice_is_one_value() -> None:
    """The refusal names both values."""
    same = graph(XY, "s = Sigmoid (x) y = Mul (x, s)")
    other = graph(XY, "z = Relu (x) s = Sigmoid (z) y = Mul (x, s)")

    def pattern(op: Any, a: Any) -> Any:
        return op.Mul(a, op.Sigmoid(a))

    assert len(matches(pattern, same)[0]) == 1
    assert matches(pattern, other) == ([], "a is 'x' in one place and 'z' in another")


@pytest.mark.parametrize(
    ("constants", "found"),
    [
        ("float[2] p = {1, 2}, float[2] q = {1, 2}", True),
        ("float[2] p = {1, 2}, float[2] q = {1, 3}", False),
        ("float[2] p = {0, 2}, float[2] q = {-0.0, 2}", False),
    ],
)
def test_constants_of_equal_content_are_one_value(constants: str, found: bool) -> None:
    """Exporters write a constant again for each use. Zeros of another sign are not equal."""
    model = graph("float[2] x => float[2] y", "a = Add (x, p) y = Mul (a, q)", constants)

    assert bool(matches(lambda op, x, c: op.Mul(op.Add(x, c), c), model)[0]) == found


def test_a_shared_part_of_a_pattern_is_one_node() -> None:
    """Two calls are two nodes or one; one call used twice is one node."""
    twice = graph(XY, "a = Relu (x) b = Relu (x) y = Add (a, b)")
    once = graph(XY, "a = Relu (x) y = Add (a, a)")

    def shared(op: Any, a: Any) -> Any:
        part = op.Relu(a)
        return op.Add(part, part)

    assert matches(shared, twice)[1] == "Relu a and Relu b are two nodes, not one"
    assert len(matches(shared, once)[0]) > 0
    assert len(matches(lambda op, a: op.Add(op.Relu(a), op.Relu(a)), twice)[0]) > 0


def test_optional_inputs() -> None:
    """A variable with a default may be absent; one that the pattern does not list must be."""
    bare = graph("float[2,3] x, float[3,4] w => float[2,4] y", "y = Gemm (x, w)")
    full = graph("float[2,3] x, float[3,4] w, float[4] b => float[2,4] y", "y = Gemm (x, w, b)")

    def optional(op: Any, x: Any, w: Any, b: Any = None) -> Any:
        return op.Gemm(x, w, b)

    assert names(matches(optional, bare)[0][0])["b"] is None
    assert names(matches(optional, full)[0][0])["b"] == "b"
    assert len(matches(lambda op, x, w: op.Gemm(x, w), bare)[0]) == 1
    assert matches(lambda op, x, w: op.Gemm(x, w), full) == ([], "Gemm y has 3 inputs, the pattern has 2")
    assert matches(lambda op, x, w, b: op.Gemm(x, w, b), bare)[0] == []


def test_an_optional_constant() -> None:
    """It may be absent; where it is not, it must be constant."""
    bare = graph("float[2] x => float[2] y", "y = Clip (x)")
    known = graph("float[2] x => float[2] y", "y = Clip (x, c)", "float c = {1}")
    given = graph("float[2] x, float c => float[2] y", "y = Clip (x, c)")

    def pattern(op: Any, x: Any, low: Any = None) -> Any:
        return op.Clip(x, op.scalar(low))

    assert names(matches(pattern, bare)[0][0])["low"] is None
    assert matches(pattern, known)[0][0].scalar("low") == 1
    assert matches(pattern, given) == ([], "Clip y reads 'c', which is not constant")


def test_an_input_that_must_be_absent() -> None:
    """None in the middle: Clip without a lower bound."""
    model = graph("float[2] x, float h => float[2] y", "y = Clip (x, , h)")
    bounded = graph("float[2] x, float h => float[2] y", "y = Clip (x, h, h)")

    assert len(matches(lambda op, x, h: op.Clip(x, None, h), model)[0]) == 1
    assert matches(lambda op, x, h: op.Clip(x, None, h), bounded)[0] == []


def test_variadic_inputs() -> None:
    """*rest binds whatever follows, nothing included."""
    model = graph("float[2] x, float[2] z => float[6] y", "r = Relu (x) y = Concat <axis = 0> (r, z, x)")

    def pattern(op: Any, x: Any, *rest: Any) -> Any:
        return op.Concat(op.Relu(x), *rest, axis=0)

    assert names(matches(pattern, model)[0][0]) == {"x": "x", "rest": ("z", "x")}
    alone = graph("float[2] x => float[2] y", "r = Relu (x) y = Concat <axis = 0> (r)")
    assert names(matches(pattern, alone)[0][0]) == {"x": "x", "rest": ()}


@pytest.mark.parametrize(
    ("constant", "wanted", "reason"),
    [
        ("float c = {0.5}", 0.5, ""),
        ("float[1] c = {0.5}", 0.5, ""),
        ("float c = {0.50000006}", 0.5, "Mul y's constant is 0.50000006, the pattern wants 0.5"),
        ("float c = {0.7071067}", 0.5**0.5, ""),
        ("float c = {0.707}", 0.5**0.5, "Mul y's constant is 0.70700002, the pattern wants 0.70710678"),
        ("float[2] c = {0.5, 0.5}", 0.5, "Mul y reads 'c', which is no constant of one element"),
        ("int32 c = {3}", 3, ""),
        ("int32 c = {3}", 4, "Mul y's constant is 3, the pattern wants 4"),
    ],
)
def test_numbers_are_constants(constant: str, wanted: float, reason: str) -> None:
    """Exact where the dtype holds the number, else the nearest and its neighbours."""
    dtype = constant.split("[")[0].split(" ")[0]
    model = graph(f"{dtype}[2] x => {dtype}[2] y", "y = Mul (x, c)", constant)

    found, said = matches(lambda op, x: op.Mul(x, wanted), model)

    assert (bool(found), said) == (not reason, reason)


def test_half_precision_holds_fewer_numbers() -> None:
    """The nearest float16 and its neighbours are the number; a float16 that is exact must be met."""
    model = half(
        graph(
            "float[2] x => float[2] y",
            "a = Mul (x, c) y = Add (a, d)",
            "float c = {0.7071}, float d = {0.5005}",
        )
    )

    assert matches(lambda op, x: op.Add(op.Mul(x, 0.5**0.5), op.scalar(0.5005)), model)[0]
    assert (
        "constant is 0.50048828, the pattern wants 0.5" in matches(lambda op, x, y: op.Add(y, 0.5), model)[1]
    )


def test_constants_in_other_ways() -> None:
    """With a tolerance, of any shape, captured, or any at all."""
    model = graph(
        "float[2] x => float[2] y", "m = Mul (x, a) y = Add (m, b)", "float a = {1.42}, float[2] b = {1, 1}"
    )

    assert matches(lambda op, x: op.Add(op.Mul(x, op.scalar(1.4142, rtol=1e-2)), op.constant(1)), model)[0]
    assert not matches(lambda op, x: op.Add(op.Mul(x, op.scalar(1.4142, rtol=1e-3)), op.constant(1)), model)[
        0
    ]
    (match,), _ = matches(lambda op, x, p, q: op.Add(op.Mul(x, op.scalar(p)), op.constant(q)), model)
    assert match.scalar("p") == pytest.approx(1.42)
    assert match.array("q").tolist() == [1, 1]  # type: ignore[union-attr]
    assert match.type("x").shape == (2,)
    with pytest.raises(ValueError, match="x is no constant"):
        match.scalar("x")


def test_an_initializer_that_a_caller_can_set_is_no_constant() -> None:
    """Inputs with a default value may differ from run to run."""
    model = build.model([helper.make_node("Mul", ["x", "c"], ["y"])], weights=[build.weight("c", 0.5)])
    model.graph.input.append(build.value("c", ()))

    assert matches(lambda op, x: op.Mul(x, 0.5), model) == ([], "Mul y reads 'c', which is not constant")


@pytest.mark.parametrize(
    ("nodes", "attributes", "reason"),
    [
        ("y = Softmax <axis = 1> (x)", {"axis": 1}, ""),
        ("y = Softmax (x)", {"axis": -1}, ""),
        ("y = Softmax <axis = 0> (x)", {"axis": 1}, "Softmax y's axis is 0, the pattern wants 1"),
        ("y = Softmax <axis = -1> (x)", {}, ""),
        ("y = Softmax <axis = 0> (x)", {}, "Softmax y's axis is 0, the pattern does not mention it"),
        ("y = Softmax <axis = 0> (x)", {"_attributes": "any"}, ""),
        ("y = LeakyRelu <alpha = 0.1> (x)", {"alpha": 0.1}, ""),
        ("y = LeakyRelu (x)", {"alpha": 0.01}, ""),
        ("y = Transpose <perm = [1, 0]> (x)", {"perm": [1, 0]}, ""),
        ("y = Transpose <perm = [1, 0]> (x)", {"perm": (0, 1)}, "perm is [1, 0], the pattern wants [0, 1]"),
        ("y = Transpose (x)", {"perm": [1, 0]}, "perm is not given, the pattern wants [1, 0]"),
        ('y = Gelu <approximate = "tanh"> (x)', {"approximate": "tanh"}, ""),
        ('y = Gelu <approximate = "tanh"> (x)', {"approximate": "none"}, "approximate is tanh"),
    ],
)  # fmt: skip
def test_attributes(nodes: str, attributes: dict[str, Any], reason: str) -> None:
    """What the pattern states must hold, defaults included; what it does not mention must be the default."""
    op_type = nodes.split(" = ")[1].split(" ")[0]
    model = graph("float[3,3] x => float[3,3] y", nodes)

    found, said = matches(lambda op, x: op.node(op_type, x, **attributes), model)

    assert bool(found) == (not reason)
    assert reason in said


def test_attributes_are_captured_and_asked() -> None:
    """A name stands for one value; a condition is worded by the pattern."""
    model = graph("float[3,3] x => float[3,3] y", "a = Softmax <axis = 0> (x) y = LogSoftmax <axis = 1> (a)")

    def apart(op: Any, x: Any) -> Any:
        return op.LogSoftmax(op.Softmax(x, axis=op.attr("first")), axis=op.attr("second"))

    def alike(op: Any, x: Any) -> Any:
        return op.LogSoftmax(op.Softmax(x, axis=op.attr("axis")), axis=op.attr("axis"))

    def asked(op: Any, x: Any) -> Any:
        return op.LogSoftmax(x, axis=op.attr("axis", where=lambda axis: axis < 0, says="a negative axis"))

    assert names(matches(apart, model)[0][0]) == {"x": "x", "first": 0, "second": 1}
    assert matches(alike, model) == ([], "Softmax a: axis is 0 here, 1 elsewhere")
    assert matches(asked, model) == ([], "LogSoftmax y's axis is 1, the pattern wants a negative axis")


def test_the_first_of_several_forms() -> None:
    """any_of takes the first form that fits, at the anchor and inside."""

    def pattern(op: Any, x: Any, y: Any = None) -> Any:
        return op.any_of(op.Relu(x), op.Add(op.any_of(op.Exp(x), op.Abs(x)), y))

    assert names(matches(pattern, graph(XY, "y = Relu (x)"))[0][0]) == {"x": "x", "y": None}
    assert names(matches(pattern, graph(XY, "a = Abs (x) y = Add (x, a)"))[0][0]) == {"x": "x", "y": "x"}
    assert set(record(pattern).ops) == {"Relu", "Add"}
    assert matches(pattern, graph(XY, "a = Neg (x) y = Add (x, a)"))[0] == []


def test_values_inside_must_not_be_read_elsewhere() -> None:
    """By another node, by a subgraph, or as an output; unless the pattern says so."""
    read = graph("float[2] x => float[2] y, float[2] z", "a = Exp (x) y = Relu (a) z = Neg (a)")
    output = graph("float[2] x => float[2] y, float[2] a", "a = Exp (x) y = Relu (a)")
    branch = graph(
        "float[2] x, bool c => float[2] y, float[2] z",
        "a = Exp (x) y = Relu (a) "
        "z = If (c) <then_branch = t () => (float[2] p) {p = Neg (a)}, "
        "else_branch = e () => (float[2] q) {q = Abs (x)}>",
    )

    assert matches(lambda op, x: op.Relu(op.Exp(x)), read)[1] == "'a' of Exp a is read by Neg z too"
    assert matches(lambda op, x: op.Relu(op.Exp(x)), output)[1] == "'a' of Exp a is an output of the graph"
    assert matches(lambda op, x: op.Relu(op.Exp(x)), branch)[1] == "'a' of Exp a is read by Neg p too"
    for model in (read, output, branch):
        assert len(matches(lambda op, x: op.Relu(op.Exp(x, _shared=True)), model)[0]) == 1


def test_a_pattern_does_not_reach_out_of_a_subgraph() -> None:
    """What is made around a body runs once; it is not drawn into it."""
    model = graph(
        "float[2] x, bool c => float[2] z",
        "a = Exp (x) "
        "z = If (c) <then_branch = t () => (float[2] p) {p = Relu (a)}, "
        "else_branch = e () => (float[2] q) {q = Abs (x)}>",
    )

    assert matches(lambda op, x: op.Relu(op.Exp(x)), model, "p")[0] == []
    assert len(matches(lambda op, x: op.Relu(x), model, "p")[0]) == 1


def test_domains_and_versions() -> None:
    """An operator of another domain is another operator; its version can be asked for."""
    ms = build.model([helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")])
    ms.opset_import.add(domain="com.microsoft", version=1)
    old = graph("float[2,3] x => float[2,3] y", "y = Softmax <axis = -1> (x)", opset=11)

    assert len(matches(lambda op, x: op.Gelu(x, _domain="com.microsoft"), ms)[0]) == 1
    assert matches(lambda op, x: op.Gelu(x), ms)[0] == []
    assert len(matches(lambda op, x: op.Softmax(x, axis=-1), old)[0]) == 1
    assert (
        "version 11 of the operator, the pattern wants 13"
        in matches(lambda op, x: op.Softmax(x, axis=-1, _since=13), old)[1]
    )


def test_several_outputs_of_one_node() -> None:
    """The parts of a Split, each in its place."""
    model = graph(
        "float[2,4] x => float[2,2] y", "a, b = Split <axis = 1, num_outputs = 2> (x) y = Sub (a, b)"
    )

    def pattern(op: Any, x: Any, swap: bool) -> Any:
        parts = op.Split(x, axis=1, num_outputs=2, _outputs=2)
        return op.Sub(*(reversed(parts) if swap else parts))

    assert len(matches(lambda op, x: pattern(op, x, False), model)[0]) == 1
    found, reason = matches(lambda op, x: pattern(op, x, True), model)
    assert found == []
    assert reason == "Split a: output 0 is read, the pattern wants output 1"


def test_several_outputs_of_a_pattern() -> None:
    """Two products of one value, found from the first."""
    model = graph(
        "float[2,3] x, float[3,4] p, float[3,4] q => float[2,4] y, float[2,4] z",
        "y = MatMul (x, p) z = MatMul (x, q)",
    )

    found, _ = matches(lambda op, x, a, b: (op.MatMul(x, a), op.MatMul(x, b)), model)

    assert [names(match) for match in found] == [{"x": "x", "a": "p", "b": "q"}]
    assert [value.name for value in found[0].outputs] == ["y", "z"]
    assert matches(lambda op, x, a: (op.MatMul(x, a), op.Neg(x)), model)[0] == []


def test_attributes_that_refer_to_parameters_match_nothing() -> None:
    """Inside a function an attribute may be the caller's; its value is not known."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[2] x) => (float[2] y) { y = own.f <k = 0.2> (x) }
        <domain: "own", opset_import: ["" : 20]>
        f <k> (a) => (b) { r = LeakyRelu <alpha: float = @k> (a) b = Neg (r) }
    """)
    loaded = load(model)
    function = next(iter(loaded.functions.values()))
    context = Context(loaded, Facts(loaded))
    context.root = function
    matcher = Matcher(record(lambda op, x: op.Neg(op.LeakyRelu(x, alpha=0.2))), list(function)[-1], context)

    assert list(matcher.matches()) == []
    assert matcher.nearest is not None
    assert "parameters of the function" in matcher.nearest.reason


def test_what_is_not_near_is_not_worth_a_word() -> None:
    """A reason is given only where next to nothing is missing."""
    model = graph(XY, "a = Relu (x) y = Mul (x, a)")

    assert matches(lambda op, x: op.Mul(x, op.Sigmoid(x)), model) == ([], "")


def _tree(depth: int) -> onnx.ModelProto:
    """Return a full binary tree of Adds over one input; its last value is y."""
    nodes, level, count = [], ["x"] * 2**depth, 0
    while len(level) > 1:
        joined = []
        for left, right in zip(level[::2], level[1::2], strict=True):
            count += 1
            joined.append(f"v{count}")
            nodes.append(helper.make_node("Add", [left, right], [joined[-1]]))
        level = joined
    nodes[-1].output[0] = "y"
    return build.model(nodes)


def _comb(op: Any, depth: int, last: Any, x: Any) -> Any:
    return last if depth == 0 else op.Add(_comb(op, depth - 1, last, x), x)


def test_swapping_does_not_blow_up() -> None:
    """A chain of twelve Adds in a tree of Adds, where each may be swapped and none ends in Relu."""
    model = _tree(12)
    started = time.process_time()

    assert matches(lambda op, x: _comb(op, 12, op.Relu(x), x), model)[0] == []
    assert time.process_time() - started < 5


def test_looking_stops_after_a_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take too long is given up, and said."""
    monkeypatch.setattr(pattern_match, "STEPS", 100)

    found, reason = matches(lambda op, x: _comb(op, 12, op.Relu(x), x), _tree(12))

    assert found == []
    assert reason == "the pattern fits in too many ways; gave up after 100 steps"


def test_the_search_is_linear_in_the_graph() -> None:
    """Four times the nodes take about four times as long, where every node is an anchor."""
    times = []
    for count in (500, 2000):
        nodes = [helper.make_node("Add", [f"v{i}" if i else "x", "x"], [f"v{i + 1}"]) for i in range(count)]
        model = load(build.model([*nodes, helper.make_node("Relu", [f"v{count}"], ["y"])]))
        context, pattern = Context(model, Facts(model)), record(lambda op, x: _comb(op, 4, op.Exp(x), x))
        started = time.process_time()
        assert not any(list(Matcher(pattern, node, context).matches()) for node in model.graph)
        times.append(time.process_time() - started)

    assert times[1] < 10 * times[0]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (lambda op, x: x, "a pattern returns what nodes make"),
        (lambda op, x: None, "a pattern returns what nodes make"),
        (lambda op, x: (), "a pattern returns what nodes make"),
        (lambda op, x: op.relu(x), "op.relu is no operator"),
        (lambda op, x: op.Relu("x"), "a pattern's input is str 'x'"),
        (lambda op, x: op.Relu(x, _attributes="some"), "_attributes is 'some'"),
    ],
)
def test_what_is_no_pattern(pattern: Callable[..., Any], message: str) -> None:
    """Mistakes in a pattern are named when it is recorded."""
    with pytest.raises(UsageError, match=message):
        record(pattern)


def test_a_pattern_is_recorded_once_and_for_all() -> None:
    """It knows its anchor's operators and the names that it binds."""
    pattern = record(
        lambda op, x, *rest: op.Concat(op.Cast(x, to=op.attr("to")), *rest, axis=op.attr("axis"))
    )

    assert isinstance(pattern, Pattern)
    assert pattern.ops == ("Concat",)
    assert pattern.variables == {"x", "rest", "to", "axis"}
