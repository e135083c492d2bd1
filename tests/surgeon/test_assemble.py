"""Activations and reductions put together from their pieces."""

import numpy as np
import pytest

from graphdoc.surgeon.rewriting import rewrite
from graphdoc.surgeon.rules import assemble
from graphdoc.surgeon.writer import write_model
from tests.surgeon.rewriting_tools import agree, apply, by_engine, feeds, graph, half, ops, reasons

XY = "float[2,3,8] x => float[2,3,8] y"
HALVES = "float root = {1.4142135}, float inverse = {0.70710677}, float one = {1}, float half = {0.5}"
TANH = "float a = {0.044715}, float b = {0.7978846}, float one = {1}, float half = {0.5}, float three = {3}"
SIX = "float three = {3}, float zero = {0}, float six = {6}, float sixth = {0.16666667}"
LAST = "int64[1] axes = {-1}, float two = {2}, float half = {0.5}"

GELU = "d = Div (x, root) e = Erf (d) s = Add (e, one) "
CUBE = "p = Pow (x, three) c = Mul (p, a) i = Add (x, c) j = Mul (i, b) t = Tanh (j) s = Add (t, one) "
CLIP = "a = Add (x, three) c = Clip (a, zero, six) "
GELU_ENDS = GELU + "m = Mul (x, s) y = Mul (m, half)"
CUBE_ENDS = CUBE + "m = Mul (x, half) y = Mul (m, s)"

FORMS = {
    "gelu: (x s) half": ("Gelu", 20, HALVES, GELU + "m = Mul (x, s) y = Mul (m, half)"),
    "gelu: half (s x)": ("Gelu", 20, HALVES, GELU + "m = Mul (s, x) y = Mul (half, m)"),
    "gelu: (x half) s": ("Gelu", 20, HALVES, GELU + "m = Mul (x, half) y = Mul (m, s)"),
    "gelu: x (half s)": ("Gelu", 20, HALVES, GELU + "m = Mul (half, s) y = Mul (x, m)"),
    "gelu: times the inverse root": (
        "Gelu", 20, HALVES,
        "d = Mul (inverse, x) e = Erf (d) s = Add (one, e) m = Mul (x, s) y = Mul (m, half)",
    ),
    "gelu tanh: cube by Pow": ("Gelu", 20, TANH, CUBE + "m = Mul (x, half) y = Mul (m, s)"),
    "gelu tanh: cube by Mul": (
        "Gelu", 20, TANH,
        ("q = Mul (x, x) p = Mul (q, x) c = Mul (a, p) i = Add (c, x) j = Mul (b, i) t = Tanh (j) "
        "s = Add (one, t) m = Mul (half, s) y = Mul (x, m)"),
    ),
    "gelu tanh: cube from the coefficient on": (
        "Gelu", 20, TANH,
        ("q = Mul (a, x) p = Mul (x, q) c = Mul (x, p) i = Add (x, c) j = Mul (b, i) t = Tanh (j) "
        "s = Add (one, t) m = Mul (half, s) y = Mul (x, m)"),
    ),
    "gelu tanh: x taken out": (
        "Gelu", 20, TANH,
        ("k = Mul (x, b) q = Mul (x, a) p = Mul (q, x) i = Add (p, one) j = Mul (k, i) t = Tanh (j) "
        "s = Add (t, one) m = Mul (x, half) y = Mul (m, s)"),
    ),
    "swish": ("Swish", 24, "", "s = Sigmoid (x) y = Mul (s, x)"),
    "swish scaled": ("Swish", 24, "float k = {1.702}", "m = Mul (k, x) s = Sigmoid (m) y = Mul (x, s)"),
    "hard swish: product, then quotient": ("HardSwish", 14, SIX, CLIP + "m = Mul (x, c) y = Div (m, six)"),
    "hard swish: quotient, then product": ("HardSwish", 14, SIX, CLIP + "q = Div (c, six) y = Mul (q, x)"),
    "hard swish: times a sixth": ("HardSwish", 14, SIX, CLIP + "m = Mul (c, x) y = Mul (sixth, m)"),
    "hard swish: from HardSigmoid": (
        "HardSwish", 14, "", "s = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, s)",
    ),
    "hard sigmoid": ("HardSigmoid", 13, SIX, CLIP + "y = Div (c, six)"),
    "mish": ("Mish", 18, "", "p = Softplus (x) t = Tanh (p) y = Mul (x, t)"),
    "clip: max, then min": (
        "Clip", 12, "float low = {-0.5}, float[1] high = {1}", "m = Max (x, low) y = Min (high, m)",
    ),
    "clip: min, then max": (
        "Clip", 13, "float low = {-0.5}, float[1] high = {1}", "m = Min (x, high) y = Max (low, m)",
    ),
    "clip: relu and min": ("Clip", 13, "float high = {1}", "m = Relu (x) y = Min (m, high)"),
    "softmax": (
        "Softmax", 18, LAST,
        "m = ReduceMax (x, axes) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, axes) y = Div (e, s)",
    ),
    "softmax: axes as attribute": (
        "Softmax", 13, "int64[1] axes = {1}",
        ("m = ReduceMax <axes = [1]> (x) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, axes) "
        "r = Reciprocal (s) y = Mul (e, r)"),
    ),
    "log softmax: by logsumexp": (
        "LogSoftmax", 18, LAST, "m = ReduceLogSumExp (x, axes) y = Sub (x, m)",
    ),
    "log softmax: in pieces": (
        "LogSoftmax", 18, LAST,
        ("m = ReduceMax (x, axes) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, axes) l = Log (s) "
        "y = Sub (d, l)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_becomes_its_operator(name: str, dtype: str) -> None:
    """One node is left, and it computes the same, through ONNX Runtime and the engine."""
    target, opset, constants, nodes = FORMS[name]
    model = graph(XY, nodes, constants, opset)
    model = half(model) if dtype == "float16" else model

    result = apply(model, "assemble")

    assert ops(result.model) == [target], reasons(result)
    agree(model, result, feeds(model))


OPERATORS = ("Gelu", "Swish", "HardSwish", "Mish")


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form[0] in OPERATORS])
def test_an_older_opset_refuses(name: str) -> None:
    """An opset before the operator's first keeps the pieces, and the reason names both versions."""
    target, opset, constants, nodes = FORMS[name]
    model = graph(XY, nodes, constants, opset - 1)

    result = apply(model, "assemble")

    assert target not in ops(result.model)
    assert f"{target} exists from opset {opset} on, the model has {opset - 1}" in reasons(result)


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        (GELU_ENDS, HALVES.replace("0.5}", "0.51}"), "0.50999999, the pattern"),
        (GELU_ENDS, HALVES.replace("1.4142135", "1.41"), "pattern wants 1.4142136"),
        (GELU_ENDS, HALVES.replace("one = {1}", "one = {2}"), "constant is 2"),
        (CUBE_ENDS, TANH.replace("0.044715", "0.05"), "constant is 0.05"),
        (CUBE_ENDS, TANH.replace("0.7978846", "0.8"), "wants 0.79788456"),
        (CLIP + "m = Mul (x, c) y = Div (m, six)", SIX.replace("six = {6}", "six = {5}"), "constant is 5"),
        (CLIP + "y = Div (c, six)", SIX.replace("{3}", "{2}"), "constant is 2, the pattern wants 3"),
        ("s = HardSigmoid (x) y = Mul (x, s)", "", "alpha is 0.2"),
        ("m = Max (x, low) y = Min (m, high)", "float low = {2}, float high = {1}", "lower bound 2 is above"),
        ("z = Relu (x) s = Sigmoid (z) y = Mul (x, s)", "", "x is 'x' in one place and 'z' in another"),
        (
            "m = ReduceMax (x, one) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, two) y = Div (e, s)",
            "int64[1] one = {1}, int64[1] two = {2}", "axes is 'one' in one place and 'two' in another",
        ),
        (
            "m = ReduceMax (x, a) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, a) y = Div (e, s)",
            "int64[2] a = {1, 2}", "over axes [1, 2], the operator takes one",
        ),
    ],
)  # fmt: skip
def test_what_only_looks_like_it_stays(nodes: str, constants: str, reason: str) -> None:
    """Another constant, axis or variable refuses with the reason, and the graph is as it was."""
    model = graph(XY, nodes, constants)

    result = apply(model, "assemble")

    assert ops(result.model) == [node.op_type for node in model.graph.node]
    assert reason in reasons(result)


def test_a_value_that_is_read_elsewhere_stays() -> None:
    """The pieces are needed for another output."""
    model = graph("float[4] x => float[4] y, float[4] s", "s = Sigmoid (x) t = Sigmoid (x) y = Mul (x, s)")

    result = apply(model, "assemble")

    assert "Swish" not in ops(result.model)
    assert "'s' of Sigmoid s is an output of the graph" in reasons(result)


def test_integers_are_no_activation() -> None:
    """Clip takes integers; what is defined for floats alone does not touch them."""
    model = graph(
        "int32[4] x => int32[4] y, int32[4] z",
        "a = Add (x, three) c = Clip (a, zero, six) z = Div (c, six) m = Max (x, zero) y = Min (m, six)",
        "int32 three = {3}, int32 zero = {0}, int32 six = {6}",
    )

    result = apply(model, "assemble")

    assert ops(result.model) == ["Add", "Clip", "Div", "Clip"]
    assert "x is int32" in reasons(result)


def test_a_dtype_the_operator_does_not_take_refuses() -> None:
    """HardSwish has bfloat16 from opset 22 on only."""
    model = graph(
        "bfloat16[4] x => bfloat16[4] y",
        "s = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, s)",
        opset=22,
    )
    model.opset_import[0].version = 21

    result = rewrite(model, "assemble")

    assert "HardSwish" not in ops(result.model)
    assert "HardSwish of opset 21 does not take bfloat16" in reasons(result)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    "nodes",
    [
        "s = Mul (x, x) r = ReduceSum <keepdims = K> (s, axes) y = Sqrt (r)",
        "s = Pow (x, two) r = ReduceSum <keepdims = K, noop_with_empty_axes = 1> (s, axes) y = Pow (r, half)",
        "r = ReduceSumSquare <keepdims = K> (x, axes) y = Sqrt (r)",
    ],
)
def test_a_norm_becomes_reduce_l2(nodes: str, keepdims: int) -> None:
    """The sum of squares in one node or two; keepdims goes along."""
    signature = f"float[2,3,8] x => float[2,3{',1' if keepdims else ''}] y"
    model = graph(signature, nodes.replace("K", str(keepdims)), LAST)

    result = apply(model, "assemble-reduce-l2")

    assert ops(result.model) == ["ReduceL2"]
    agree(model, result, feeds(model))


def test_a_norm_over_no_axes_is_left() -> None:
    """An empty list of axes means all of them, or none: two different things."""
    model = graph(
        "float[2,3] x => float[1,1] y",
        "s = Mul (x, x) r = ReduceSum (s, axes) y = Sqrt (r)",
        "int64[0] axes = {}",
    )

    result = apply(model, "assemble")

    assert "ReduceL2" not in ops(result.model)
    assert "the axes are an empty list" in reasons(result)


def test_every_rule_has_a_name_of_its_own_and_runs_on_request_only() -> None:
    """Names are unique, begin with the group, and none applies unasked."""
    rules = assemble.rules()

    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.name.startswith("assemble-") and not rule.default and rule.target for rule in rules)
    assert all(rule.ops for rule in rules)


def test_the_names_of_the_interface_stay() -> None:
    """An output that a replacement makes keeps its name and type."""
    model = graph(XY, "s = Sigmoid (x) y = Mul (x, s)")

    edited = write_model(apply(model, "assemble").model)

    assert list(edited.graph.output) == list(model.graph.output)
    assert edited.graph.node[0].output == ["y"]


def test_special_values_go_through_alike() -> None:
    """Infinity, NaN and signed zeros give the same where the pieces are defined."""
    model = graph("float[6] x => float[6] y", "s = Sigmoid (x) y = Mul (x, s)")
    edited = apply(model, "assemble")
    x = np.array([np.inf, np.nan, 0.0, -0.0, 80, -80], np.float32)

    (before,), (after,) = by_engine(model, {"x": x}), by_engine(write_model(edited.model), {"x": x})
    np.testing.assert_allclose(after, before, rtol=1e-6)
