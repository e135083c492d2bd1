"""Gradient against central differences in float64, and what it refuses."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine.errors import GraphdocError, ModelError, UnsupportedOperatorError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.ops.gradient import DOMAIN
from graphdoc.engine.ops.table import Call, find, operators
from tests.engine.stated import described, untrue
from tests.engine.vjp_cases import CASES as MORE

TRAINING = "ai.onnx.preview.training"
HEADER = f'<ir_version: 8, opset_import: ["" : 17, "{TRAINING}" : 1]>'
RNG = np.random.default_rng(0)


def model(body: str, inputs: str, xs: list[str], zs: tuple[str, ...] = ()) -> ir.Model:
    """Return a model that computes y by ``body`` and its derivatives d0 … by ``xs``."""
    outputs = ", ".join(f"d{place}" for place in range(len(xs)))
    named = ", ".join(f'"{name}"' for name in xs)
    fixed = f", zs=[{', '.join(chr(34) + name + chr(34) for name in zs)}]" if zs else ""
    node = f'{outputs} = {TRAINING}.Gradient <xs=[{named}]{fixed}, y="y"> ({", ".join([*xs, *zs])})'
    declared = ", ".join(f"double[] d{place}" for place in range(len(xs)))
    text = f"{HEADER} g ({inputs}) => (double[] y, {declared}) {{ {body} {node} }}"
    return ir.from_proto(onnx.parser.parse_model(text))


def differences(run: Any, feeds: dict[str, Any], name: str) -> Any:
    """Return the derivative of the sum of y by one input, from central differences."""
    step = 1e-6
    result = np.zeros_like(feeds[name])
    for place in np.ndindex(result.shape):
        moved = [dict(feeds, **{name: feeds[name].copy()}) for _ in range(2)]
        moved[0][name][place] += step
        moved[1][name][place] -= step
        above, below = (run(each)["y"].sum() for each in moved)
        result[place] = (above - below) / (2 * step)
    return result


def sample(*shape: int, low: float = 0.5, high: float = 2.0) -> Any:
    return RNG.uniform(low, high, shape)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Add": ("y = Add(a, b)", {"a": sample(2, 3), "b": sample(3)}),
    "Sub": ("y = Sub(a, b)", {"a": sample(3, 1), "b": sample(2, 1, 4)}),
    "Mul": ("y = Mul(a, b)", {"a": sample(2, 3), "b": sample(2, 1)}),
    "Div": ("y = Div(a, b)", {"a": sample(3), "b": sample(2, 3)}),
    "Pow": ("y = Pow(a, b)", {"a": sample(2, 3), "b": sample(3)}),
    "Neg": ("y = Neg(a)", {"a": sample(3)}),
    "Identity": ("y = Identity(a)", {"a": sample(3)}),
    "Exp": ("y = Exp(a)", {"a": sample(3)}),
    "Log": ("y = Log(a)", {"a": sample(3)}),
    "Sqrt": ("y = Sqrt(a)", {"a": sample(3)}),
    "Tanh": ("y = Tanh(a)", {"a": sample(3)}),
    "Sigmoid": ("y = Sigmoid(a)", {"a": sample(3)}),
    "Relu": ("b = Relu(a) y = Mul(b, a)", {"a": np.array([-1.0, 0.5, 2.0])}),
    "MatMul": ("c = MatMul(a, b) y = Mul(c, c)", {"a": sample(2, 1, 3, 4), "b": sample(5, 4, 2)}),
    "MatMul of vectors": ("c = MatMul(a, b) y = Mul(c, c)", {"a": sample(4), "b": sample(4)}),
    "MatMul of a row": ("c = MatMul(a, b) y = Mul(c, c)", {"a": sample(4), "b": sample(3, 4, 2)}),
    "MatMul by a column": ("c = MatMul(a, b) y = Mul(c, c)", {"a": sample(2, 3, 4), "b": sample(4)}),
    "Transpose": (
        "b = Transpose <perm=[2,0,1]> (a) y = Mul(b, c)",
        {"a": sample(2, 3, 4), "c": sample(4, 2, 3)},
    ),
    "Transpose back": ("b = Transpose(a) y = Mul(b, c)", {"a": sample(2, 3), "c": sample(3, 2)}),
    "Reshape": (
        "s = Constant <value_ints=[3,2]> () b = Reshape(a, s) y = Mul(b, c)",
        {"a": sample(2, 3), "c": sample(3, 2)},
    ),
    "Flatten": ("b = Flatten(a) y = Mul(b, c)", {"a": sample(2, 3, 2), "c": sample(2, 6)}),
    "Unsqueeze": (
        "s = Constant <value_ints=[0,2]> () b = Unsqueeze(a, s) y = Mul(b, c)",
        {"a": sample(3), "c": sample(2, 3, 2)},
    ),
    "Squeeze": ("b = Squeeze(a) y = Mul(b, c)", {"a": sample(1, 3, 1), "c": sample(2, 3)}),
    "ReduceSum": (
        "s = Constant <value_ints=[-1]> () b = ReduceSum <keepdims=0> (a, s) y = Mul(b, c)",
        {"a": sample(2, 3), "c": sample(2)},
    ),
    "ReduceSum of all": ("b = ReduceSum(a) y = Mul(b, b)", {"a": sample(2, 3)}),
    "ReduceSum of nothing": (
        "b = ReduceSum <noop_with_empty_axes=1> (a) y = Mul(b, b)",
        {"a": sample(2, 3)},
    ),
    "ReduceMean": ("b = ReduceMean <axes=[0]> (a) y = Mul(b, c)", {"a": sample(2, 3), "c": sample(3)}),
    "Softmax of old": ("b = Softmax <axis=1> (a) y = Mul(b, c)", {"a": sample(2, 3), "c": sample(2, 3)}),
    "Conv": ("c = Conv (a, b) y = Mul(c, c)", {"a": sample(1, 2, 4, 4), "b": sample(3, 2, 2, 2)}),
    "several ways": ("b = Mul(a, a) c = Exp(b) d = Add(b, c) y = Div(d, a)", {"a": sample(3)}),
    "a layer": (
        "h = MatMul(x, w) z = Add(h, b) t = Tanh(z) m = ReduceMean <keepdims=0> (t) y = Sqrt(m)",
        {"x": sample(2, 3), "w": sample(3, 4), "b": sample(4)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_central_differences(name: str) -> None:
    """The derivative of the sum of y by each input, broadcasting included."""
    body, feeds = CASES[name]
    inputs = ", ".join(f"double{list(x.shape)} {key}" for key, x in feeds.items())
    run = Interpreter(model(body, inputs, list(feeds))).run
    results = run(feeds)

    for place, key in enumerate(feeds):
        want = differences(run, feeds, key)
        assert results[f"d{place}"].shape == want.shape
        np.testing.assert_allclose(results[f"d{place}"], want, rtol=1e-7, atol=1e-8)


def test_every_rule_is_tried() -> None:
    """Each operator with a derivative stands in a case above or of reverse passes, and its infer holds."""
    tried = " ".join(body for body, _ in [*CASES.values(), *MORE.values()])
    rows = [row for row in operators() if row.domain == DOMAIN]
    rules = [row.name for row in rows if row.name not in ("Ones", "Zeros", "Total")]

    assert len(rules) > 15
    assert [name for name in rules if f"{name}(" not in tried and f"{name} " not in tried] == []
    row = find(DOMAIN, "Mul", 1)
    assert row is not None
    assert row.infer is not None
    values = [sample(2, 3), sample(2, 3), sample(3), sample(2, 3)]
    stated = row.infer(Call(), *(described(x, "symbols") for x in values))
    for said, result in zip(stated, row.evaluate(Call(), *values), strict=True):
        assert untrue(said, result) is None


def test_zs_weights_and_unused_inputs() -> None:
    """zs take part without a derivative, weights come from the graph, what y does not read gets zeros."""
    text = f"""{HEADER} g (float[2] a, float[2] b, float[2] c) => (float[2] da, float[2] dc)
        <float[2] w = {{3, 4}}> {{
            m = Mul(a, b)
            y = Mul(m, w)
            da, dc = {TRAINING}.Gradient <xs=["a", "c"], zs=["b"], y="y"> (a, c, b)
        }}"""
    a, b = np.float32([1, 2]), np.float32([5, 6])

    results = Interpreter(ir.from_proto(onnx.parser.parse_model(text))).run({"a": a, "b": b, "c": a})

    assert results["da"].tolist() == [15, 24]
    assert results["dc"].tolist() == [0, 0]


def test_inner_values_and_other_points() -> None:
    """The derivative by a value inside, at a point of one's own; values on the way can be tapped."""
    text = f"""{HEADER} g (float[1] a, float[1] p) => (float[1] d) {{
            h = Exp(a)
            y = Mul(h, h)
            d = {TRAINING}.Gradient <xs=["h"], y="y"> (p)
        }}"""
    runner = Interpreter(ir.from_proto(onnx.parser.parse_model(text)))

    results = runner.run({"a": np.float32([0]), "p": np.float32([5])}, ["d.body/d_h"])

    assert results["d"].tolist() == [10]
    assert results["d.body/d_h"][0].tolist() == [10]


REFUSED = {
    "no derivative of Det": ("h = Det(a) y = Mul(h, a)", '<xs=["a"], y="y"> (a)', UnsupportedOperatorError),
    "neither in xs nor in zs": ("y = Mul(a, b)", '<xs=["a"], y="y"> (a)', ModelError),
    "1 values are named, the node has 2": ("y = Mul(a, b)", '<xs=["a"], y="y"> (a, b)', ModelError),
    "y depends on 'no'": ("y = Mul(a, b)", '<xs=["a"], y="no"> (a)', ModelError),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message: str) -> None:
    """What cannot be differentiated, or is named wrongly, is refused before anything runs."""
    body, node, kind = REFUSED[message]
    text = f"{HEADER} g (float[1] a, float[1] b) => (float[1] d) {{ {body} d = {TRAINING}.Gradient {node} }}"

    with pytest.raises(GraphdocError, match=message) as raised:
        Interpreter(ir.from_proto(onnx.parser.parse_model(text)))
    assert type(raised.value) is kind


def test_the_model_stays_as_it_was() -> None:
    """Making the derivative leaves no trace in the graph it was made from."""
    source = model("y = Mul(a, b)", "double[2] a, double[2] b", ["a", "b"])
    before = ir.to_proto(source)

    Interpreter(source)

    assert ir.to_proto(source) == before
    assert all(len(value.uses()) == 2 for value in source.graph.inputs)
