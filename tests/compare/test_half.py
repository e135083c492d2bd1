"""float16 against float32: where values overflow or vanish, and what ONNX Runtime's casts hide."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from graphdoc.api import ComparisonResult, compare_models
from graphdoc.compare import half
from graphdoc.compare.masks import without_ends
from graphdoc.compare.metrics import distance, measure
from graphdoc.compare.result import Kind, Status
from graphdoc.compare.target import Target
from graphdoc.surgeon.model import open_source


def pair(body: str, dtype: str, **weights: float) -> onnx.ModelProto:
    """Return a network over 4 numbers whose inside is of ``dtype`` between two casts."""
    to = {"float": 1, "float16": 10}[dtype]
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) {{
            h = Cast <to = {to}> (x)
            {body}
            y = Cast <to = 1> (z)
        }}""")
    kind = np.float16 if dtype == "float16" else np.float32
    for name, value in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, kind), name))
    return proto


def held(body: str, x: list[float], runner: str = "engine", **weights: float) -> ComparisonResult:
    """Compare the float32 form on ONNX Runtime with the float16 form."""
    return compare_models(
        pair(body, "float", **weights),
        pair(body, "float16", **weights),
        inputs={"x": np.asarray(x, np.float32)},
        test_runner=runner,
        latency=False,
    )


SQUARES = "a = Mul(h, h) z = Sqrt(a)"


def test_the_layer_that_overflows_is_named() -> None:
    """300 · 300 is past 65 504."""
    result = held(SQUARES, [300.0, 1.0, 2.0, 3.0])

    assert result.verdict.kind is Kind.OVERFLOW
    assert result.first_divergence is not None
    assert result.first_divergence.value == "a"
    assert "1 of 4 values exceed fp16" in result.verdict.sentence


def test_values_that_fit_do_not_overflow() -> None:
    assert held(SQUARES, [200.0, 1.0, 2.0, 3.0])


def test_onnx_runtime_hides_the_overflow_and_it_is_said() -> None:
    """The tapped product is infinite, the root of it is not: it was never rounded to float16."""
    result = held(SQUARES, [300.0, 1.0, 2.0, 3.0], "ort")
    remark = next(text for text in result.remarks if "float16" in text)

    assert remark.startswith("B: ONNX Runtime computes 2 of 2 nodes in float32")
    assert result.first_divergence is not None
    assert result.first_divergence.value == "a"
    assert next(found for found in result.layers if found.value == "y").error == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("runner", ["engine", "ort"])
def test_nothing_is_said_without_float16_or_without_onnx_runtime(runner: str) -> None:
    """Neither of a float32 model on ONNX Runtime, nor of a float16 model on the engine."""
    model = pair(SQUARES, "float16" if runner == "engine" else "float")
    result = compare_models(model, ref=runner, test_runner=runner, latency=False)

    assert not result.remarks


def test_a_logarithm_of_what_vanished_is_named() -> None:
    """1e-5 squared is 0 in float16; its logarithm is where infinity is born."""
    result = held("a = Mul(h, h) z = Log(a)", [1e-5, 1.0, 2.0, 3.0])

    assert result.verdict.kind is Kind.NAN
    first = result.first_divergence
    assert first is not None
    assert (first.value, first.status) == ("z", Status.NAN)
    assert "1 of 4 values of #1 Mul are too small for fp16 (least 6.0e-8) and became 0" in first.note


def test_a_constant_that_vanishes_is_named() -> None:
    """An epsilon of 1e-12 is 0 in float16: 0 + 0 has an infinite reciprocal."""
    result = held("a = Add(h, eps) z = Reciprocal(a)", [0.0, 1.0, 2.0, 3.0], eps=1e-12)

    assert not result
    assert result.first_divergence is not None
    assert result.first_divergence.value in ("a", "z")


def test_masks_at_the_ends_of_their_types_agree() -> None:
    """−3.4e38 in float32 and −65 504 in float16 are the same mask; the rest is compared."""
    a = np.asarray([np.finfo(np.float32).min, 1.0, 2.0], np.float32)
    b = np.asarray([-65504, 1.0, 2.0], np.float16)

    assert distance(a, b)[0] == 0
    assert measure(a, b).error == 0
    assert measure(a, np.asarray([-65504, 1.0, 4.0], np.float16)).error > 0.5
    assert measure(a, np.asarray([-6e4, 1.0, 2.0], np.float16)).error > 0.5
    assert measure(a, np.asarray([1.0, -65504, 2.0], np.float16)).error > 0.5


def test_equal_types_have_no_ends_of_their_own() -> None:
    a = np.asarray([np.finfo(np.float32).min, 1.0], np.float32)

    assert without_ends(a, a)[0] is a
    assert without_ends(a, np.asarray([1, 2]))[0] is a


def test_casts_are_counted_without_the_weights() -> None:
    """A product with a large float16 weight runs in float32; the weight itself is not needed to know."""
    weight = numpy_helper.from_array(np.ones((64, 64), np.float16), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [1, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [1, 64])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    assert half.has_half(model)
    assert not half.without_weights(model).graph.initializer
    assert half.widened(Target(open_source(model))) == (1, 1)
