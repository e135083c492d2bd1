"""Normalisations put together from their pieces."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphdoc.surgeon.writer import write_model
from tests.surgeon.rewriting_tools import agree, apply, feeds, graph, half, ops, reasons

XY = "float[2,5,8] x => float[2,5,8] y"
CONSTANTS = (
    "int64[1] axes = {-1}, float two = {2}, float half = {0.5}, float minus = {-0.5}, float one = {1}, "
    "float eps = {0.001}, float[8] scale = {1,2,3,4,5,6,7,8}, float[8] bias = {8,7,6,5,4,3,2,1}"
)
CENTRED = "m = ReduceMean (x, axes) d = Sub (x, m) "
VARIANCE = CENTRED + "q = Pow (d, two) v = ReduceMean (q, axes) w = Add (v, eps) "
END = "s = Mul (n, scale) y = Add (s, bias)"

LAYER_FORMS = {
    "Pow, Sqrt, Div": VARIANCE + "r = Sqrt (w) n = Div (d, r) " + END,
    "Mul, Sqrt, Reciprocal": (
        CENTRED + "q = Mul (d, d) v = ReduceMean (q, axes) w = Add (eps, v) r = Sqrt (w) "
        "i = Reciprocal (r) n = Mul (d, i) s = Mul (scale, n) y = Add (bias, s)"
    ),
    "one over the root": VARIANCE + "r = Sqrt (w) i = Div (one, r) n = Mul (i, d) " + END,
    "power of a half": VARIANCE + "r = Pow (w, half) n = Div (d, r) " + END,
    "power of minus a half": VARIANCE + "r = Pow (w, minus) n = Mul (d, r) " + END,
    "centred twice": (
        "m = ReduceMean (x, axes) d = Sub (x, m) e = Sub (x, m) q = Pow (e, two) v = ReduceMean (q, axes) "
        "w = Add (v, eps) r = Sqrt (w) n = Div (d, r) " + END
    ),
    "scale in the divisor": (
        VARIANCE + "r = Sqrt (w) i = Reciprocal (r) k = Mul (i, scale) s = Mul (d, k) y = Add (s, bias)"
    ),
}


def attributes(model: onnx.ModelProto) -> dict[str, object]:
    """Return the attributes of the first node."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("form", LAYER_FORMS)
def test_layer_normalization(form: str, dtype: str) -> None:
    """Every spelling becomes one node with the axis, the epsilon, scale and bias of the pieces."""
    model = graph(XY, LAYER_FORMS[form], CONSTANTS, opset=18)
    model = half(model) if dtype == "float16" else model

    result = apply(model, "assemble")

    assert ops(result.model) == ["LayerNormalization"], reasons(result)
    edited = write_model(result.model)
    assert list(edited.graph.node[0].input) == ["x", "scale", "bias"]
    found = attributes(edited)
    assert found["axis"] == -1
    assert found["epsilon"] == pytest.approx(0.001, rel=1e-3 if dtype == "float16" else 1e-6)
    agree(model, result, feeds(model))


def test_layer_normalization_with_axes_as_attributes() -> None:
    """Before opset 18 the axes of ReduceMean are an attribute."""
    nodes = (
        LAYER_FORMS["Pow, Sqrt, Div"]
        .replace("ReduceMean (", "ReduceMean <axes = [-1]> (")
        .replace(", axes)", ")")
    )
    model = graph(XY, nodes, CONSTANTS, opset=17)

    result = apply(model, "assemble")

    assert ops(result.model) == ["LayerNormalization"]
    agree(model, result, feeds(model))


def test_layer_normalization_over_two_axes() -> None:
    """The last two axes; scale and bias have their shape, one of them with a one in front."""
    constants = (
        "int64[2] axes = {2, 1}, float two = {2}, float eps = {0.001}, "
        "float[2,3] scale = {1,2,3,4,5,6}, float[1,2,3] bias = {6,5,4,3,2,1}"
    )
    model = graph("float[4,2,3] x => float[4,2,3] y", LAYER_FORMS["Pow, Sqrt, Div"], constants)

    result = apply(model, "assemble")

    assert ops(result.model) == ["LayerNormalization"], reasons(result)
    assert attributes(write_model(result.model))["axis"] == -2
    agree(model, result, feeds(model))


@pytest.mark.parametrize(
    ("end", "kept"),
    [("y = Mul (n, scale)", []), ("y = Identity (n)", ["Identity"]), ("y = Relu (n)", ["Relu"])],
)
def test_layer_normalization_without_bias_or_scale(end: str, kept: list[str]) -> None:
    """The bias is optional; a missing scale is a constant of ones."""
    model = graph(XY, VARIANCE + "r = Sqrt (w) n = Div (d, r) " + end, CONSTANTS)

    result = apply(model, "assemble")

    assert ops(result.model) == ["LayerNormalization", *kept], reasons(result)
    agree(model, result, feeds(model))


def test_layer_normalization_of_a_dynamic_batch() -> None:
    """Only the normalised axes need a known size."""
    model = graph("float[N,5,8] x => float[N,5,8] y", LAYER_FORMS["Pow, Sqrt, Div"], CONSTANTS)

    result = apply(model, "assemble")

    assert ops(result.model) == ["LayerNormalization"]
    agree(model, result, feeds(model, {"N": 3}))


SQRT_DIV = LAYER_FORMS["Pow, Sqrt, Div"]


@pytest.mark.parametrize(
    ("signature", "nodes", "constants", "reason"),
    [
        (XY, SQRT_DIV, CONSTANTS.replace("axes = {-1}", "axes = {1}"), "the mean goes over axes [1] of 3"),
        (XY, SQRT_DIV, CONSTANTS.replace("two = {2}", "two = {3}"), "constant is 3, the pattern wants 2"),
        (XY, SQRT_DIV, CONSTANTS.replace("eps = {0.001}", "eps = {-1}"), "epsilon is -1"),
        (
            "float[2,5,8] x => float[2,5,8] y, float[2,5,1] r", SQRT_DIV, CONSTANTS,
            "'r' of Sqrt r is an output of the graph",
        ),
        ("float[2,5,8] x => float[2,5,8] y, float[2,5,8] z", SQRT_DIV + " z = Relu (d)", CONSTANTS,
         "'d' of Sub d is read by Relu z too"),
        (XY, SQRT_DIV, CONSTANTS.replace("float[8] bias = {8,7,6,5,4,3,2,1}", "float bias = {1}"),
         "bias has shape [], the operator needs [8]"),
        (
            "float[2,5,M] x => float[2,5,M] y", SQRT_DIV,
            CONSTANTS.replace("float[8] scale = {1,2,3,4,5,6,7,8}", "float scale = {1}")
            .replace("float[8] bias = {8,7,6,5,4,3,2,1}", "float bias = {1}"),
            "the size of the normalised axes is not known",
        ),
        (
            XY, SQRT_DIV.replace("v = ReduceMean (q, axes)", "v = ReduceMean (q, other)"),
            CONSTANTS + ", int64[1] other = {1}", "axes is 'axes' in one place and 'other' in another",
        ),
        (
            XY, SQRT_DIV.replace("m = ReduceMean (x, axes)", "m = ReduceMax (x, axes)"), CONSTANTS,
            "reads what ReduceMax m makes, the pattern wants ReduceMean",
        ),
    ],
)  # fmt: skip
def test_what_is_no_layer_normalization_stays(
    signature: str, nodes: str, constants: str, reason: str
) -> None:
    """Another axis, exponent, epsilon, use, shape or reduction refuses with its reason."""
    model = graph(signature, nodes, constants)

    result = apply(model, "assemble-layer-normalization")

    assert "LayerNormalization" not in ops(result.model)
    assert reason in reasons(result)


def test_a_float64_layer_normalization_stays() -> None:
    """The operator would take mean and variance in float32."""
    nodes = LAYER_FORMS["Pow, Sqrt, Div"]
    model = graph(XY.replace("float[", "double["), nodes, CONSTANTS.replace("float", "double"))

    result = apply(model, "assemble")

    assert "LayerNormalization" not in ops(result.model)
    assert "x is float64" in reasons(result)


RMS = "q = Pow (x, two) v = ReduceMean (q, axes) w = Add (v, eps) r = Sqrt (w) "
RMS_FORMS = {
    "Reciprocal": RMS + "i = Reciprocal (r) n = Mul (x, i) y = Mul (scale, n)",
    "Div": RMS + "n = Div (x, r) y = Mul (n, scale)",
    "one over the root": RMS + "i = Div (one, r) n = Mul (x, i) y = Mul (n, scale)",
    "Mul and Pow": (
        "q = Mul (x, x) v = ReduceMean (q, axes) w = Add (v, eps) r = Pow (w, minus) n = Mul (x, r) "
        "y = Mul (n, scale)"
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("form", RMS_FORMS)
def test_rms_normalization(form: str, dtype: str) -> None:
    """Every spelling becomes one node."""
    model = graph(XY, RMS_FORMS[form], CONSTANTS, opset=23)
    model = half(model) if dtype == "float16" else model

    result = apply(model, "assemble")

    assert ops(result.model) == ["RMSNormalization"], reasons(result)
    agree(model, result, feeds(model))


def test_rms_normalization_takes_the_casts_of_half_precision_along() -> None:
    """x goes to float32 and back before the scale: the operator does that itself."""
    model = graph(
        "float16[2,5,8] h => float16[2,5,8] y",
        "x = Cast <to = 1> (h) "
        + RMS
        + "i = Reciprocal (r) n = Mul (x, i) c = Cast <to = 10> (n) y = Mul (c, s16)",
        CONSTANTS + ", float16[8] s16 = {1,2,3,4,5,6,7,8}",
    )

    result = apply(model, "assemble")

    assert ops(result.model) == ["RMSNormalization"], reasons(result)
    agree(model, result, feeds(model))


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        (RMS_FORMS["Div"], CONSTANTS.replace("axes = {-1}", "axes = {0}"), "the mean goes over axes [0]"),
        (RMS_FORMS["Div"].replace("Div (x, r)", "Div (z, r)"), CONSTANTS,
         "x is 'z' in one place and 'x' in another"),
        (RMS_FORMS["Div"], CONSTANTS.replace("float[8] scale = {1,2,3,4,5,6,7,8}", "float scale = {2}"),
         "scale has shape [], the operator needs [8]"),
    ],
)  # fmt: skip
def test_what_is_no_rms_normalization_stays(nodes: str, constants: str, reason: str) -> None:
    """Another axis, variable or shape refuses with its reason."""
    model = graph("float[2,5,8] x, float[2,5,8] z => float[2,5,8] y", nodes, constants)

    result = apply(model, "assemble")

    assert "RMSNormalization" not in ops(result.model)
    assert reason in reasons(result)


@pytest.mark.parametrize(
    ("forms", "target", "first"),
    [(LAYER_FORMS, "LayerNormalization", 17), (RMS_FORMS, "RMSNormalization", 23)],
)
def test_an_older_opset_refuses(forms: dict[str, str], target: str, first: int) -> None:
    """The reason names the opset that has the operator."""
    nodes = next(iter(forms.values()))
    if first == 17:
        nodes = nodes.replace("ReduceMean (", "ReduceMean <axes = [-1]> (").replace(", axes)", ")")
    model = graph(XY, nodes, CONSTANTS, opset=first - 1)

    result = apply(model, f"assemble-{'layer' if first == 17 else 'rms'}-normalization")

    assert target not in ops(result.model)
    assert f"{target} exists from opset {first} on, the model has {first - 1}" in reasons(result)


IMAGE = "float[2,4,3,5] x => float[2,4,3,5] y"
CHANNELS = (
    "int64[2] axes = {2, 3}, float two = {2}, float eps = {0.001}, "
    "float[4,1,1] scale = {1,2,3,4}, float[1,4,1,1] bias = {4,3,2,1}"
)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_instance_normalization(dtype: str) -> None:
    """Statistics over the pixels, scale and bias by channel."""
    model = graph(IMAGE, SQRT_DIV, CHANNELS)
    model = half(model) if dtype == "float16" else model

    result = apply(model, "assemble")

    assert ops(result.model) == ["InstanceNormalization"], reasons(result)
    agree(model, result, feeds(model))


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        (CHANNELS.replace("{2, 3}", "{1, 3}"), "the operator wants all but the first two"),
        (CHANNELS.replace("float[4,1,1] scale = {1,2,3,4}", "float[3,1] scale = {1,2,3}"),
         "scale has shape [3, 1]"),
        (CHANNELS.replace("float[4,1,1] scale = {1,2,3,4}", "float scale = {1}"), "scale has shape []"),
    ],
)  # fmt: skip
def test_what_is_no_instance_normalization_stays(constants: str, reason: str) -> None:
    """Another axis or shape refuses with its reason."""
    result = apply(graph(IMAGE, SQRT_DIV, constants), "assemble-instance-normalization")

    assert "InstanceNormalization" not in ops(result.model)
    assert reason in reasons(result)


GROUPS = (
    "int64[3] split = {0, 2, -1}, int64[4] whole = {2, 4, 3, 5}, float[2] ones = {1, 1}, "
    "float[2] zeros = {0, 0}, float[4,1,1] scale = {1,2,3,4}, float[4,1,1] bias = {4,3,2,1}"
)
GROUP = (
    "g = Reshape (x, split) n = InstanceNormalization <epsilon = 0.001> (g, ones, zeros) "
    "r = Reshape (n, whole) s = Mul (r, scale) y = Add (s, bias)"
)


@pytest.mark.parametrize("restored", ["whole", "shape"])
def test_group_normalization(restored: str) -> None:
    """Two groups of two channels; the shape comes back as a constant or from x."""
    nodes = "shape = Shape (x) " * (restored == "shape") + GROUP.replace("whole", restored)
    model = graph(IMAGE, nodes, GROUPS, opset=21)

    result = apply(model, "assemble")

    assert "GroupNormalization" in ops(result.model), reasons(result)
    assert "InstanceNormalization" not in ops(result.model)
    edited = write_model(result.model)
    node = next(node for node in edited.graph.node if node.op_type == "GroupNormalization")
    assert {a.name: a.i for a in node.attribute}["num_groups"] == 2
    agree(model, result, feeds(model))


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        (GROUPS.replace("split = {0, 2, -1}", "split = {4, 2, -1}"), "may mix the batch entries"),
        (GROUPS.replace("ones = {1, 1}", "ones = {1, 2}"), "the pattern wants 1"),
        (GROUPS.replace("zeros = {0, 0}", "zeros = {1, 0}"), "the pattern wants 0"),
        (GROUPS.replace("whole = {2, 4, 3, 5}", "whole = {2, 4, 5, 3}"), "may have another shape than x"),
    ],
)
def test_what_is_no_group_normalization_stays(constants: str, reason: str) -> None:
    """Groups across the batch, another scale inside, or another shape refuse."""
    signature = IMAGE.replace("[2,4,3,5] y", "[2,4,5,3] y") if "5, 3}" in constants else IMAGE
    result = apply(graph(signature, GROUP, constants), "assemble")

    assert "GroupNormalization" not in ops(result.model)
    assert reason in reasons(result)


def test_a_scale_that_is_computed_is_taken_as_it_is() -> None:
    """A scale of the right shape need not be constant."""
    model = graph(
        "float[2,5,8] x, float[8] scale => float[2,5,8] y",
        SQRT_DIV,
        CONSTANTS.replace("float[8] scale = {1,2,3,4,5,6,7,8}, ", ""),
    )

    result = apply(model, "assemble")

    assert ops(result.model) == ["LayerNormalization"]
    agree(model, result, feeds(model))


def test_constants_that_are_spelt_twice_count_as_one() -> None:
    """Exporters write each list of axes anew; equal content is the same."""
    model = graph(XY, SQRT_DIV.replace("(q, axes)", "(q, again)"), CONSTANTS + ", int64[1] again = {-1}")

    result = apply(model, "assemble")

    assert ops(result.model) == ["LayerNormalization"]
    assert [numpy_helper.to_array(t).shape for t in write_model(result.model).graph.initializer] == [
        (8,),
        (8,),
    ]
    np.testing.assert_equal(len(write_model(result.model).graph.node), 1)
