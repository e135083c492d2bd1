"""Level 0 as a runner: taps, values given, subgraphs, functions, truth mode, errors, memory."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine.errors import RunnerError, UnsupportedOperatorError
from graphdoc.engine.interpreter import Interpreter, Watch
from graphdoc.engine.ops import table
from graphdoc.engine.ops.table import Call, op
from graphdoc.engine.scope import Occurrences
from tests.engine.single import oracle, same

ONE, TWO = np.asarray([1.0], np.float32), np.asarray([2.0], np.float32)


def build(text: str, **options: Any) -> Interpreter:
    return Interpreter(ir.from_proto(onnx.parser.parse_model(text)), **options)


def numbers(values: Any) -> list[float]:
    return [float(value.reshape(())) for value in values]


# ---- taps and given values ----------------------------------------------------------------------------

CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1] x) => (float[1] y) <float[1] w = {3.0}> { a = Add(x, w) b = Mul(a, a) y = Neg(b) }"""


def test_taps_of_the_main_graph() -> None:
    """A tapped value comes beside the outputs; an unknown name gives nothing."""
    results = build(CHAIN).run({"x": ONE}, taps=["a", "b", "nowhere"])

    assert {name: float(value[0]) for name, value in results.items()} == {"a": 4, "b": 16, "y": -16}


def test_given_values_replace_computed_ones() -> None:
    """The tap shows what was computed, the steps after it go on with what was given."""
    watch = Watch(taps=frozenset({"a", "b"}), given={"a": TWO})

    results = build(CHAIN).run({"x": ONE}, watch=watch)

    assert (float(results["a"][0]), float(results["b"][0]), float(results["y"][0])) == (4, 4, -4)


def test_runs_do_not_disturb_each_other() -> None:
    """The same interpreter runs again with other inputs and gives what a fresh one gives."""
    runner = build(CHAIN)
    runner.run({"x": TWO}, watch=Watch(given={"a": TWO}))

    same(runner.run({"x": ONE})["y"], build(CHAIN).run({"x": ONE})["y"])


def test_an_input_with_an_initializer_may_be_fed_or_not() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x, float[1] w = {3.0}) => (float[1] y) { y = Add(x, w) }"""
    runner = build(text)

    assert numbers([runner.run({"x": ONE})["y"], runner.run({"x": ONE, "w": TWO})["y"]]) == [4, 3]


# ---- subgraphs ----------------------------------------------------------------------------------------

BRANCH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1] x, bool c) => (float[1] y) {
    y = If <then_branch = t () => (float[1] p) { a = Add(x, x) p = Neg(a) },
            else_branch = e () => (float[1] q) { a = Mul(x, x) q = Abs(a) }> (c)
}"""
LOOP = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1] x, int64 n) => (float[1] last, float[k, 1] all) {
    last, all = Loop <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] t, float[1] e) {
        on = Identity(go) t = Add(s, x) e = Mul(t, t) }> (n, , x)
}"""
SCAN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1] x, float[3, 1] xs) => (float[1] last, float[3, 1] all) {
    last, all = Scan <num_scan_inputs = 1, body = b (float[1] s, float[1] v) => (float[1] t, float[1] e) {
        t = Add(s, v) e = Mul(t, x) }> (x, xs)
}"""
XS = np.asarray([[1.0], [2.0], [3.0]], np.float32)


def test_branches_have_names_of_their_own() -> None:
    """Both branches call a value ``a``; the tap of the branch that ran tells, the other is absent."""
    taps = ["y.then_branch/a", "y.else_branch/a", "y"]

    results = build(BRANCH).run({"x": TWO * 3, "c": np.asarray(False)}, taps=taps)

    assert set(results) == {"y.else_branch/a", "y"}
    assert numbers(results["y.else_branch/a"]) == [36]


def test_given_in_a_branch() -> None:
    watch = Watch(given={"y.then_branch/a": ONE})

    assert numbers([build(BRANCH).run({"x": TWO, "c": np.asarray(True)}, watch=watch)["y"]]) == [-1]


def test_loop_values_come_one_per_turn() -> None:
    """Taps of a body are Occurrences, its inputs included."""
    taps = ["last.body/s", "last.body/t", "last.body/i"]

    results = build(LOOP).run({"x": ONE, "n": np.int64(3)}, taps=taps)

    assert isinstance(results["last.body/t"], Occurrences)
    assert numbers(results["last.body/s"]) == [1, 2, 3]
    assert numbers(results["last.body/t"]) == [2, 3, 4]
    assert numbers(results["last.body/i"]) == [0, 1, 2]
    assert results["all"].reshape(-1).tolist() == [4, 9, 16]


def test_given_occurrences_in_a_loop() -> None:
    """Each turn takes its own replacement; where they run out the computed value goes on."""
    watch = Watch(given={"last.body/t": Occurrences([TWO * 5, TWO])}, taps=frozenset({"last.body/t"}))

    results = build(LOOP).run({"x": ONE, "n": np.int64(3)}, watch=watch)

    assert numbers(results["last.body/t"]) == [2, 11, 3]
    assert results["all"].reshape(-1).tolist() == [100, 4, 9]


def test_given_and_taps_in_a_scan() -> None:
    watch = Watch(given={"last.body/v": Occurrences([TWO])}, taps=frozenset({"last.body/e"}))

    results = build(SCAN).run({"x": ONE, "xs": XS}, watch=watch)

    assert numbers(results["last.body/e"]) == [3, 5, 8]
    assert numbers([results["last"]]) == [8]


@pytest.mark.parametrize("text", [BRANCH, LOOP, SCAN])
def test_subgraphs_against_onnx_runtime(text: str) -> None:
    proto = onnx.parser.parse_model(text)
    every = {"x": TWO, "c": np.asarray(True), "n": np.asarray(4), "xs": XS}
    feeds = {i.name: every[i.name] for i in proto.graph.input}
    results = build(text).run(feeds)

    same([results[o.name] for o in proto.graph.output], oracle(proto, feeds))


@pytest.mark.parametrize("declared", ["float[2, 3]", "float[N, 3]", "float[N, M]", "float"])
def test_a_loop_without_a_turn(declared: str) -> None:
    """Scan outputs are empty, with the sizes that the body declares, as in ONNX Runtime."""
    text = f"""<ir_version: 8, opset_import: ["" : 16]>
    g (int64 n, float[2, 3] x) => (float[a, b] y, float z) {{
        y, z = Loop <body = b (int64 i, bool c, float[2, 3] s) => (bool c2, float[2, 3] s2, {declared} e) {{
            c2 = Identity(c) s2 = Neg(s) e = Identity(s2) }}> (n, , x)
    }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.value_info.clear()
    results = build(text).run({"n": np.int64(0), "x": np.ones((2, 3), np.float32)})

    same(results["y"], np.ones((2, 3), np.float32))
    assert results["z"].dtype == np.float32
    assert results["z"].shape[0] == 0
    if declared == "float[2, 3]":
        assert results["z"].shape == (0, 2, 3)


def test_a_loop_ends_by_its_condition() -> None:
    """Without a trip count the condition alone decides; the first one counts too."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x, bool c) => (float[1] last) {
        five = Constant<value = float[1] {5.0}>()
        last = Loop <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] t) {
            t = Add(s, x) less = Less(t, five) flat = Constant<value_ints = [0]>()
            on = Squeeze(less, flat) }> ( , c, x)
    }"""

    assert numbers([build(text).run({"x": ONE, "c": np.asarray(go)})["last"] for go in (True, False)]) == [
        5,
        1,
    ]


@pytest.mark.parametrize(("axes", "directions"), [([1], [1]), ([-1], [0])])
def test_scan_axes_and_directions(axes: Any, directions: Any) -> None:
    """Any axis, both ways, in and out, as in ONNX Runtime."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] s, float[2, 3] xs) => (float[2] last, float[2, 3] all) {{
        last, all = Scan <num_scan_inputs = 1, scan_input_axes = {axes}, scan_input_directions = {directions},
            scan_output_axes = [1], scan_output_directions = {directions},
            body = b (float[2] a, float[2] v) => (float[2] t, float[2] e) {{ t = Sub(v, a) e = Identity(t) }}
        > (s, xs)
    }}"""
    proto = onnx.parser.parse_model(text)
    feeds = {"s": np.zeros(2, np.float32), "xs": np.arange(6, dtype=np.float32).reshape(2, 3) ** 2}
    results = build(text).run(feeds)

    same([results["last"], results["all"]], oracle(proto, feeds))


def test_scan_8_keeps_batches_apart() -> None:
    """Version 8: batch axis 0, sequence axis 1, lengths per entry; what lies past a length is zero."""
    text = """<ir_version: 3, opset_import: ["" : 8]>
    g (int64[2] n, float[2, 1] s, float[2, 3, 1] xs) => (float[2, 1] last, float[2, 3, 1] all) {
        last, all = Scan <num_scan_inputs = 1, directions = [1],
            body = b (float[1] a, float[1] v) => (float[1] t, float[1] e) { t = Add(a, v) e = Identity(t) }
        > (n, s, xs)
    }"""
    xs = np.asarray([[[1], [2], [3]], [[4], [5], [6]]], np.float32)

    results = build(text).run({"n": np.asarray([3, 2]), "s": np.zeros((2, 1), np.float32), "xs": xs})

    assert results["last"].reshape(-1).tolist() == [6, 9]
    assert results["all"].reshape(2, 3).tolist() == [[3, 5, 6], [5, 9, 0]]


def test_values_captured_two_levels_up() -> None:
    """An If inside a Loop reads the main graph's input and constant and the loop's own value."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x, int64 n) => (float[1] last) <float[1] w = {10.0}> {
        deep = Add(x, w)
        last = Loop <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] t) {
            on = Identity(go)
            zero = Constant<value = int64 {0}>()
            start = Equal(i, zero)
            t = If <then_branch = h () => (float[1] p) { p = Add(deep, s) },
                    else_branch = e () => (float[1] q) { m = Mul(w, x) q = Add(m, s) }> (start)
        }> (n, , x)
    }"""
    proto = onnx.parser.parse_model(text)
    feeds = {"x": TWO, "n": np.asarray(3)}
    results = build(text).run(feeds, taps=["last.body/t.else_branch/m"])

    same([results["last"]], oracle(proto, feeds))
    assert numbers(results["last.body/t.else_branch/m"]) == [20, 20]


# ---- functions ----------------------------------------------------------------------------------------

FUNCTIONS = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
g (float[1] x) => (float[1] y, float[1] z) {
    y = own.Scaled<by = 3.0>(x)
    z = own.Twice(y)
}
<opset_import: ["" : 17], domain: "own">
Scaled <by: float, plus: float = 0.5> (v) => (r) {
    b = Constant<value_float: float = @by>()
    p = Constant<value_float: float = @plus>()
    m = Mul(v, b)
    r = Add(m, p)
}
<opset_import: ["" : 17, "own" : 1], domain: "own">
Twice (v) => (r) { a = own.Scaled<by = 2.0, plus = 0.0>(v) r = own.Scaled<by = 1.0>(a) }
"""


def test_functions_with_attribute_references() -> None:
    """Attributes reach the body through references, defaults where none is given; calls nest."""
    results = build(FUNCTIONS).run({"x": TWO}, taps=["y.body/m", "z.body/a.body/m", "z.body/r.body/m"])

    assert numbers([results["y"], results["z"]]) == [6.5, 13.5]
    assert numbers(results["y.body/m"]) == [6]
    assert numbers(results["z.body/a.body/m"]) == [13]
    assert numbers(results["z.body/r.body/m"]) == [13]


def test_given_inside_a_function() -> None:
    results = build(FUNCTIONS).run({"x": TWO}, watch=Watch(given={"z.body/a.body/m": Occurrences([ONE])}))

    assert numbers([results["y"], results["z"]]) == [6.5, 1.5]


def test_a_function_inside_a_loop() -> None:
    """Each turn's call is an occurrence."""
    text = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
    g (float[1] x, int64 n) => (float[1] last) {
        last = Loop <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] t) {
            on = Identity(go) t = own.Inc(s) }> (n, , x)
    }
    <opset_import: ["" : 17], domain: "own">
    Inc (v) => (r) { c = Constant<value_floats = [1.0]>() r = Add(v, c) }
    """

    results = build(text).run({"x": ONE, "n": np.int64(3)}, taps=["last.body/t.body/r"])

    assert numbers(results["last.body/t.body/r"]) == [2, 3, 4]


# ---- operators without a row --------------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that hides an operator's rows for the test."""
    table.load_families()
    return lambda name: monkeypatch.delitem(table._TABLE, ("", name))


def single(call: str, *, opset: int = 20, inputs: str = "float[3] x") -> str:
    return f"""<ir_version: 9, opset_import: ["" : {opset}]> g ({inputs}) => (float[3] y) {{ y = {call} }}"""


X3 = np.asarray([-2.0, 0.5, 3.0], np.float32)


@pytest.mark.parametrize(
    ("name", "call", "served"),
    [
        ("HardSwish", "HardSwish(x)", "function body"),
        ("Elu", "Elu<alpha = 0.5>(x)", "function body"),
        ("Elu", "Elu(x)", "function body"),
        ("Celu", "Celu<alpha = 2.0>(x)", "function body"),
        ("Clip", "Clip(x)", "function body"),
        ("Gelu", 'Gelu<approximate = "tanh">(x)', "function body"),
        ("Softmax", "Softmax(x)", "function body"),
        ("Erf", "Erf(x)", "onnx.reference"),
    ],
)
def test_operators_without_a_row(without: Any, name: str, call: str, served: str) -> None:
    """The function body of the schema stands in, or the reference; ``served_by`` tells."""
    want = build(single(call)).run({"x": X3})["y"]
    without(name)
    runner = build(single(call))

    same(runner.run({"x": X3})["y"], want, rtol=1e-6)
    assert runner.served_by == {("", name): served}


def test_values_of_a_static_body_can_be_tapped(without: Any) -> None:
    """A body that does not depend on types is compiled with the model."""
    without("HardSwish")
    runner = build(single("HardSwish(x)"))
    key = next(name for step in runner.body.steps for name in _keys(step))

    assert key in runner.run({"x": X3}, taps=[key])


def _keys(step: Any) -> Iterator[str]:
    for body in step.bodies.values():
        for inner in body.steps:
            yield from inner.keys


def test_a_typed_body_follows_its_inputs(without: Any) -> None:
    """The body is made anew for other dtypes, and truth mode runs it in float64."""
    without("Celu")
    text = single("Celu(x)")

    assert build(text).run({"x": X3})["y"].dtype == np.float32
    assert build(text, truth=True).run({"x": X3})["y"].dtype == np.float64
    runner = build(text)
    for size in (1, 2, 3):
        assert runner.run({"x": X3[:size]})["y"].shape == (size,)


def test_unknown_operators_are_refused_at_once() -> None:
    """The message names operator, version, node and how many more there are."""
    text = """<ir_version: 9, opset_import: ["" : 20, "odd" : 3]>
    g (float[1] x) => (float[1] y) { a = odd.Foo(x) y = odd.Foo(a) }"""

    with pytest.raises(UnsupportedOperatorError) as caught:
        build(text)

    assert caught.value.cause == "no implementation of odd::Foo (version 3)"
    assert "a (and 1 more nodes)" in str(caught.value.where)
    assert caught.value.exit_code == 4


# ---- truth mode, errors, memory -----------------------------------------------------------------------


def test_truth_mode_computes_in_float64() -> None:
    """Floats of all widths become float64, inside subgraphs too; integers stay what they are."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float16[1] x, int64 n) => (float16[1] y, int64[1] s) <float[1] tenth = {0.1}> {
        s = Shape(x)
        w = Cast<to = 10>(tenth)
        y = Loop <body = b (int64 i, bool go, float16[1] v) => (bool on, float16[1] t) {
            on = Identity(go) t = Add(v, w) }> (n, , x)
    }"""
    feeds = {"x": np.zeros(1, np.float16), "n": np.int64(10)}

    plain, truth = build(text).run(feeds), build(text, truth=True).run(feeds)

    assert (plain["y"].dtype, truth["y"].dtype, truth["s"].dtype) == (np.float16, np.float64, np.int64)
    assert float(truth["y"][0]) == pytest.approx(10 * float(np.float32(0.1)), rel=1e-12)
    assert float(plain["y"][0]) != float(truth["y"][0])


def test_a_failing_operator_is_named_with_its_inputs() -> None:
    """The innermost node is the one named, with the shapes it got."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x, float[M] z, bool c) => (float[K] y) {
        y = If <then_branch = t () => (float[K] p) { p = Add(x, z) },
                else_branch = e () => (float[K] q) { q = Identity(x) }> (c)
    }"""
    feeds = {"x": np.ones(2, np.float32), "z": np.ones(3, np.float32), "c": np.asarray(True)}

    with pytest.raises(RunnerError) as caught:
        build(text).run(feeds)

    assert "failed at Add 'y.then_branch/p'" in caught.value.cause
    assert caught.value.where == "inputs A float32[2], B float32[3]"
    assert caught.value.next_step


ALIVE: list[int] = []
SEEN: list[Any] = []


@pytest.fixture
def probe() -> Iterator[None]:
    """An operator that copies its input and notes how many of its earlier results are alive."""

    @op("Probe", 1, domain="test.probe")
    def copy(call: Call, x: Any) -> Any:
        result = x + 1
        ALIVE.append(sum(ref() is not None for ref in SEEN))
        SEEN.append(weakref.ref(result))
        return result

    ALIVE.clear()
    SEEN.clear()
    yield
    table.unregister("test.probe", "Probe")


@pytest.mark.usefixtures("probe")
def test_values_are_let_go_when_nothing_reads_them() -> None:
    """A chain of n layers holds one value at a time; one that is read later stays until then."""
    steps = " ".join(f"v{i + 1} = test.probe.Probe(v{i})" for i in range(6))
    text = f"""<ir_version: 8, opset_import: ["" : 17, "test.probe" : 1]>
    g (float[1] v0) => (float[1] y) {{ {steps} s = Add(v6, v1) y = test.probe.Probe(s) }}"""

    build(text).run({"v0": ONE})

    assert ALIVE == [0, 1, 2, 2, 2, 2, 0]


@pytest.mark.usefixtures("probe")
def test_loops_let_their_turns_go() -> None:
    """A body's inner values do not live into the next turn."""
    text = """<ir_version: 8, opset_import: ["" : 17, "test.probe" : 1]>
    g (float[1] x, int64 n) => (float[1] last) {
        last = Loop <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] t) {
            on = Identity(go) a = test.probe.Probe(s) b = test.probe.Probe(a) t = Neg(b) }> (n, , x)
    }"""

    build(text).run({"x": ONE, "n": np.int64(5)})

    assert max(ALIVE) <= 2
