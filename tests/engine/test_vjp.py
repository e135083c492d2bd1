"""Reverse passes: every rule against central differences in float64, subgraphs, missing rules."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.vjp import Tape, TooLargeError
from tests.engine.vjp_cases import CASES, FIXED, apart, signed

TYPES = {"float64": "double", "float32": "float", "int64": "int64", "bool": "bool"}
Feeds = Mapping[str, Any]


def model(body: str, feeds: Feeds, *, fixed: frozenset[str] = FIXED, opset: int = 23) -> ir.Model:
    """Return a model y of ``body`` in which each input but fixed ones goes through an Identity."""
    inputs = ", ".join(f"{TYPES[x.dtype.name]}{list(x.shape)} {key if key in fixed else key + '_in'}"
                       for key, x in feeds.items())  # fmt: skip
    first = " ".join(f"{key} = Identity({key}_in)" for key in feeds if key not in fixed)
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    text = f"{header} g ({inputs}) => (double[] y) {{ {first} {body} }}"
    return ir.from_proto(onnx.parser.parse_model(text))


def named(feeds: Feeds, fixed: frozenset[str] = FIXED) -> dict[str, Any]:
    """Return the feeds under the names of the model's inputs."""
    return {key if key in fixed else f"{key}_in": x for key, x in feeds.items()}


def cotangents(tape: Tape, seed: Any) -> dict[str, Any]:
    """Return what one pass finds by tap name; where nothing arrives, None."""
    found: dict[str, Any] = {}

    def note(key: str, turn: int, cotangent: Any, complete: bool) -> None:
        assert complete, (key, tape.missing)
        found[key] = cotangent

    tape.back({"y": seed}, note)
    return found


def check(body: str, feeds: Feeds, seed: int = 0, opset: int = 23) -> None:
    """The cotangent along a random direction of each input is what central differences give."""
    rng = np.random.default_rng(seed)
    runner = Interpreter(model(body, feeds, opset=opset))
    tape = Tape(runner, named(feeds))
    u = rng.standard_normal(tape.outputs["y"].shape)
    found = cotangents(tape, u)

    for key in feeds.keys() - FIXED:
        if feeds[key] is SCALES:
            continue
        direction = rng.standard_normal(feeds[key].shape)
        ends = [
            runner.run(named({**feeds, key: feeds[key] + sign * 1e-6 * direction}))["y"] for sign in (1, -1)
        ]
        want = float(np.vdot(u, ends[0] - ends[1])) / 2e-6
        assert found[key].shape == feeds[key].shape, key
        got = float(np.vdot(found[key], direction))
        scale = float(np.linalg.norm(found[key]) * np.linalg.norm(direction)) + abs(want)
        assert abs(got - want) <= 2e-7 * scale + 1e-9, (key, got, want)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_central_differences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """u·J·v by a reverse pass equals u·(f(x + hv) − f(x − hv)) / 2h, input by input; by rules alone."""
    monkeypatch.setattr("graphdoc.engine.vjp_rules.ENTRIES", 0)
    body, feeds = CASES[name]

    for seed in range(3):
        check(body, feeds, seed)


def test_old_versions() -> None:
    """Operators that once meant something else: softmax over all later axes, sizes in attributes."""
    for op in ("Softmax", "LogSoftmax"):
        check(f"y = {op} <axis=1> (a)", {"a": signed(2, 3, 4)}, opset=11)
    check("y = Pad <pads=[0,1,2,0], value=2.5> (a)", {"a": signed(2, 3)}, opset=10)
    check("y = Slice <starts=[1], ends=[3], axes=[1]> (a)", {"a": signed(2, 4)}, opset=9)
    check("y = ReduceMax <axes=[1]> (a)", {"a": signed(2, 4)}, opset=11)
    groups = {"a": signed(2, 4, 3), "b": signed(2), "c": signed(2)}
    check("y = GroupNormalization <num_groups=2> (a, b, c)", groups, opset=18)
    check('y = Upsample <mode="linear"> (a, s)', {"a": signed(1, 1, 3, 2), "s": SCALES}, opset=9)


SCALES = np.float32([1, 1, 2, 1.5])


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(3, 7), st.integers(3, 7)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2)),
)
def test_convolutions_of_any_size(
    size: tuple[int, ...], kernel: tuple[int, ...], how: tuple[int, ...]
) -> None:
    """Conv and ConvTranspose, whatever stride, dilation, padding and groups."""
    stride, dilation, pad, group = how
    size = (size[0], size[1] * group, size[2] + 4, size[3] + 4)
    attributes = f"strides=[{stride},1], dilations=[1,{dilation}], pads=[{pad},0,0,{pad}], group={group}"

    check(
        f"y = Conv <{attributes}> (a, b)",
        {"a": signed(*size), "b": signed(2 * group, size[1] // group, *kernel)},
    )
    check(f"y = ConvTranspose <{attributes}> (a, b)", {"a": signed(*size), "b": signed(size[1], 2, *kernel)})


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_broadcasting_of_any_shape(shape: list[int], data: Any) -> None:
    """Operands of fewer axes, or of size 1, get the sums over what they were spread to."""
    start = data.draw(st.integers(0, len(shape)))
    other = [data.draw(st.sampled_from([1, n])) for n in shape[start:]]

    for op in ("Add", "Mul", "Sub", "Max"):
        check(f"y = {op}(a, b)", {"a": signed(*shape), "b": signed(*other)})


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data())
def test_moves_and_reductions_of_any_shape(shape: list[int], data: Any) -> None:
    """Cuts, pads, picks and reductions along any axes."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    start, end = data.draw(st.integers(-size, size - 1)), data.draw(st.integers(-size - 1, size + 1))
    step = data.draw(st.sampled_from([1, 2, -1, -2]))
    picks = data.draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=5))
    pads = data.draw(st.lists(st.integers(0, 2), min_size=2 * len(shape), max_size=2 * len(shape)))
    ints = {"s": [start], "e": [end], "x": [axis], "t": [step], "i": picks, "p": pads}
    head = " ".join(f"{k} = Constant <value_ints=[{','.join(map(str, v))}]> ()" for k, v in ints.items())
    bodies = (
        "y = Slice(a, s, e, x, t)",
        f"y = Gather <axis={axis}> (a, i)",
        "y = Pad(a, p)",
        "y = ReduceMean <keepdims=0> (a, x)",
        "y = ReduceL2(a, x)",
        f"y = Softmax <axis={axis}> (a)",
        "y = LayerNormalization <axis=" + str(axis) + "> (a, b)",
    )
    first = axis % len(shape)

    for body in bodies:
        feeds = {"a": signed(*shape)} | ({"b": signed(*shape[first:])} if "(a, b)" in body else {})
        check(f"{head} {body}", feeds)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(3, 6), st.integers(3, 6)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(0, 1)),
)
def test_pools_of_any_size(size: tuple[int, ...], kernel: tuple[int, ...], how: tuple[int, ...]) -> None:
    """Largest and average of windows, whatever stride, padding and rounding of sizes."""
    stride, ceil, counted = how
    pad = min(1, min(kernel) - 1)
    shared = f"kernel_shape={list(kernel)}, strides=[{stride},1], pads=[{pad},0,0,{pad}], ceil_mode={ceil}"
    data = apart(1, 2, *size)

    check(f"y = MaxPool <{shared}> (a)", {"a": data})
    check(f"y = AveragePool <{shared}, count_include_pad={counted}> (a)", {"a": data})


# ---- subgraphs and functions ---------------------------------------------------------------------------

LOOP = """
    n = Constant <value_int=3> () t = Constant <value_int=1> () on = Cast <to=9> (t)
    last, rows = Loop(n, on, a) <body = step (int64 i, bool go, double[2] h)
        => (bool more, double[2] h2, double[2] row) {
        more = Identity(go)
        m = Mul(h, b)
        h2 = Tanh(m)
        row = Mul(h2, h)
    }>
    f = Constant <value_ints=[-1]> () flat = Reshape(rows, f)
    y = Concat <axis=0> (last, flat)"""

SCAN = """
    last, rows = Scan <num_scan_inputs=1, scan_input_directions=[1], scan_output_directions=[1],
        body = step (double[2] h, double[2] e) => (double[2] h2, double[2] row) {
        s = Mul(h, e)
        h2 = Add(s, b)
        row = Sin(h2)
    }> (c, a)
    f = Constant <value_ints=[-1]> () flat = Reshape(rows, f)
    y = Concat <axis=0> (last, flat)"""

IF = """
    z = Constant <value_int=1> () yes = Cast <to=9> (z)
    c = If(yes) <then_branch = one () => (double[2] up) { p = Mul(a, b)  up = Sin(p) },
                 else_branch = two () => (double[2] down) { down = Neg(a) }>
    y = Mul(c, a)"""


def test_loops_scans_and_branches() -> None:
    """Carried states, scanned inputs and outputs, captured values: all get their share."""
    check(LOOP, {"a": signed(2), "b": signed(2)})
    check(SCAN, {"a": signed(3, 2), "b": signed(2), "c": signed(2)})
    check(IF, {"a": signed(2), "b": signed(2)})


def test_values_inside_a_loop_are_told_by_turn() -> None:
    """Each iteration's value has a cotangent of its own: the last one reaches the output directly."""
    feeds = {"a": np.array([0.5, -0.25]), "b": np.array([2.0, 3.0])}
    tape = Tape(Interpreter(model(LOOP, feeds)), named(feeds), changing={"last.body/m"})
    found: dict[int, Any] = {}

    def note(key: str, turn: int, cotangent: Any, complete: bool) -> None:
        assert complete
        if key == "last.body/m":
            found[turn] = cotangent

    seed = np.zeros(8)
    seed[:2] = 1
    tape.back({"y": seed}, note)

    assert sorted(found) == [0, 1, 2]
    states = [feeds["a"]]
    for _ in range(3):
        states.append(np.tanh(states[-1] * feeds["b"]))
    slopes = [1 - h * h for h in states[1:]]
    np.testing.assert_allclose(found[2], slopes[2], rtol=1e-12)
    np.testing.assert_allclose(found[1], slopes[1] * feeds["b"] * slopes[2], rtol=1e-12)


def test_functions_of_the_model() -> None:
    """The pass goes through the body of a model's own function."""
    text = """<ir_version: 10, opset_import: ["" : 23, "my" : 1]> g (double[3] a_in) => (double[3] y)
        { a = Identity(a_in) y = my.twice(a) }
        <domain: "my", opset_import: ["" : 23]> twice (x) => (r) { s = Sin(x) r = Mul(s, x) }"""
    x = signed(3)
    tape = Tape(Interpreter(ir.from_proto(onnx.parser.parse_model(text))), {"a_in": x})

    found = cotangents(tape, np.ones(3))

    np.testing.assert_allclose(found["a"], np.cos(x) * x + np.sin(x), rtol=1e-12)


# ---- integers and steps --------------------------------------------------------------------------------


def test_quantisation_passes_through_and_is_cut_off() -> None:
    """Straight through the rounding; nothing where the range ends."""
    body = """
        q = QuantizeLinear(a, s, z)
        d = DequantizeLinear(q, s, z)
        y = Mul(d, d)"""
    feeds = {"a": np.array([0.3, -0.2, 90.0, -90.0]), "s": np.array(0.5), "z": np.array(3.0)}
    text = body.replace("s, z", "s, w").replace("q = Q", "w = Cast <to=3> (z) q = Q", 1)
    fixed = frozenset({"s", "z"})
    tape = Tape(Interpreter(model(text, feeds, fixed=fixed)), named(feeds, fixed))

    found = cotangents(tape, np.ones(4))

    d = tape.values()["d"]
    np.testing.assert_allclose(found["a"], [2 * d[0], 2 * d[1], 0, 0])
    np.testing.assert_allclose(found["q"], 2 * d * 0.5)


def test_whole_numbers_and_comparisons_pass_nothing_on() -> None:
    """What only decides by size, or becomes a shape, has no effect of first order."""
    body = "g = Greater(a, b) f = Cast <to=11> (g) y = Mul(f, b)"
    feeds = {"a": np.array([1.0, 2.0]), "b": np.array([0.5, 3.0])}
    tape = Tape(Interpreter(model(body, feeds)), named(feeds))

    found = cotangents(tape, np.ones(2))

    assert found["a"] is None
    assert found["b"].tolist() == [1, 0]


# ---- where there is no rule ----------------------------------------------------------------------------


def note_all(tape: Tape) -> dict[str, bool]:
    """Return which values' cotangents are complete."""
    found: dict[str, bool] = {}

    def note(key: str, turn: int, cotangent: Any, complete: bool) -> None:
        found[key] = complete

    tape.back({"y": np.ones(tape.outputs["y"].shape)}, note)
    return found


def test_small_inputs_do_without_a_rule() -> None:
    """Det has no rule; a small matrix is differentiated entry by entry."""
    check("y = Det(a)", {"a": signed(2, 3, 3)})


def test_a_missing_rule_is_told_and_what_lies_before_is_incomplete() -> None:
    """The pass stops at an operator without a rule; everything that leads there is known to be incomplete."""
    body = "b = Sin(a) c = Det(b) d = Cos(a) e = ReduceSum(d) y = Add(c, e)"
    feeds = {"a": signed(20, 20)}
    tape = Tape(Interpreter(model(body, feeds)), named(feeds))

    found = note_all(tape)

    assert "Det" in tape.missing
    assert "400 entries" in tape.missing["Det"]
    assert found == {"y": True, "e": True, "d": True, "c": True, "b": False, "a": False}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("t = Constant <value_int=1> () s = SequenceConstruct(a) y = SequenceAt(s, t)", "sequences"),
        ('y = ScatterND <reduction="add"> (a, i, a)', "reduction"),
        ('y = Einsum <equation="ii->i"> (a)', "twice"),
    ],
)
def test_forms_without_a_rule(body: str, reason: str) -> None:
    """An operator whose form has no rule says why, and nothing wrong comes out of it."""
    feeds = {"a": signed(3, 3)}
    text = (
        _index(body)
        if "(a, i, a)" in body
        else body.replace("t = ", "zero = Constant <value_int=0> () t = ", 1)
    )
    text = text.replace("SequenceAt(s, t)", "SequenceAt(s, zero)")
    tape = Tape(Interpreter(model(text, feeds)), named(feeds))

    found = note_all(tape)

    assert found["a"] is False
    assert reason in " ".join(tape.missing.values())


def _index(body: str) -> str:
    return (
        "n = Constant <value_ints=[2, 0, 1]> () r = Constant <value_ints=[3, 1]> () i = Reshape(n, r) " + body
    )


def test_only_what_is_asked_for_is_followed() -> None:
    """Values that nothing asked for can change are not visited."""
    feeds = {"a": signed(3), "b": signed(3)}
    body = "c = Sin(a) d = Sin(b) y = Mul(c, d)"
    tape = Tape(Interpreter(model(body, feeds)), named(feeds), changing={"c"})

    assert set(note_all(tape)) == {"c", "y"}


def test_weights_that_are_put_together_inside_a_branch_stay_constant() -> None:
    """What only weights lead to is not followed, even where the branch around it is."""
    body = """
        z = Constant <value_int=1> () yes = Cast <to=9> (z)
        y = If(yes) <then_branch = one () => (double[2] up) {
                w2 = Concat <axis=0> (w, w)
                w3 = Reshape(w2, r)
                p = Mul(a, w3)
                up = Sin(p)
            }, else_branch = two () => (double[2] down) { down = Neg(a) }>"""
    feeds = {"a": signed(2), "w": signed(1), "r": np.array([2])}
    fixed = frozenset({"w", "r"})
    tape = Tape(Interpreter(model(body, feeds, fixed=fixed)), named(feeds, fixed), changing={"a"})

    assert set(note_all(tape)) == {"a", "y", "y.then_branch/p", "y.then_branch/up"}


def test_memory_is_bounded() -> None:
    """A run whose values take more than the budget is refused."""
    feeds = {"a": signed(100)}

    with pytest.raises(TooLargeError):
        Tape(Interpreter(model("y = Sin(a)", feeds)), named(feeds), budget=1000)
