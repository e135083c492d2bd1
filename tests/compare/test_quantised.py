"""A quantised model against its original: codes compared as what they stand for, errors in steps.

The oracle of every limit is the rounding of NumPy's own quantisation of the same network.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from graphdoc.api import ComparisonResult, compare_models
from graphdoc.compare.bridges import permutation
from graphdoc.compare.pairing import paired
from graphdoc.compare.result import Kind, Layer, Status
from graphdoc.compare.target import Target
from graphdoc.surgeon.model import open_source
from tests.compare import quantised_models as q

FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "qdq": lambda: q.qdq(q.ranges()),
    "codes": lambda: q.on_codes(q.ranges()),
    "dynamic": q.dynamic,
}


def held(test: onnx.ModelProto, runner: str = "ort", **options: Any) -> ComparisonResult:
    """Compare with the float model."""
    return compare_models(
        q.plain(), test, inputs={"x": q.picture()}, test_runner=runner, latency=False, **options
    )


def layer(result: ComparisonResult, value: str) -> Layer:
    return next(found for found in result.layers if found.value == value)


@pytest.mark.parametrize("runner", ["ort", "engine"])
@pytest.mark.parametrize("form", FORMS)
def test_a_sound_quantisation_agrees(form: str, runner: str) -> None:
    """Every layer lies within what rounding to its codes does, and none within float32 rounding by luck."""
    result = held(FORMS[form](), runner)

    assert result, result.verdict.sentence
    assert "steps of their codes" in result.verdict.sentence
    output = layer(result, "y")
    assert output.own_error is not None
    assert output.own_limit is not None
    assert "steps of codes" in output.own_limit.reason
    assert output.own_error > 1e-4
    assert output.own_limit.value < 0.1


@pytest.mark.parametrize("form", ["qdq", "codes"])
def test_the_relu_that_the_codes_do_is_found(form: str) -> None:
    """A's Relu stands against what the codes stand for, not against the sums before they cut."""
    result = held(FORMS[form]())

    assert layer(result, "r").op == "Relu"
    assert layer(result, "r").agrees
    metrics = layer(result, "r").metrics
    assert metrics is not None
    assert metrics.b_min == 0.0


def outputs(model: onnx.ModelProto, name: str) -> np.ndarray[Any, Any]:
    """Return an inner value as ONNX Runtime computes it, nothing optimised."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.add(name=name)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(copy.SerializeToString(), options)
    found: np.ndarray[Any, Any] = session.run([name], {"x": q.picture()})[0]
    return found


def test_own_error_is_told_in_steps() -> None:
    """Codes times their step, less A's value, over the step: computed here from what ONNX Runtime gives."""
    step, zero = q.ranges().r
    meant = (outputs(FORMS["codes"](), "c_quantized").astype(np.float64) - zero) * step
    expected = np.sqrt(np.mean((meant - outputs(q.plain(), "r")) ** 2)) / step
    found = layer(held(FORMS["codes"]()), "r")

    assert found.step == pytest.approx(step)
    assert found.own_steps == pytest.approx(expected, rel=1e-5)


FAULTS = {
    "range of x too small": (lambda: q.ranges(x=(2.0 / 255, 128)), "r", "lie outside"),
    "range of p too small": (lambda: q.ranges(p=(q.ranges().p[0] / 4, 0)), "y", "lie outside"),
    "steps of y too coarse": (lambda: q.ranges(y=(3.0, 100)), "y", "too far apart"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_range_is_named(name: str) -> None:
    make, value, why = FAULTS[name]
    result = held(q.on_codes(make()))

    assert not result
    assert result.first_divergence is not None
    assert result.first_divergence.value == value
    assert why in result.first_divergence.note
    if why == "lie outside":
        assert "outside the range of their codes" in result.verdict.sentence


@pytest.mark.parametrize("form", ["qdq", "codes"])
def test_wrong_codes_of_weights_are_named(form: str) -> None:
    """A handful of weights that are off by many steps is no rounding."""
    used = q.ranges()
    codes = used.arrays()["w_q"].copy()
    codes[:, 0] = -codes[:, 0]
    used.extra["w_q"] = codes
    result = held(q.qdq(used) if form == "qdq" else q.on_codes(used))

    assert not result
    assert result.first_divergence is not None
    assert result.first_divergence.value == "y"
    assert "lie outside" not in result.first_divergence.note
    told = "of 40 weights in w_q are more than half a step from A's" in result.first_divergence.note
    assert told == (form == "qdq")


def test_a_zero_point_that_does_not_fit_is_named() -> None:
    """What is taken back with another zero point than it was made with is off by whole steps."""
    model = q.qdq(q.ranges())
    node = next(n for n in model.graph.node if n.output[0] == "x_DequantizeLinear_Output")
    node.input[2] = "other"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.uint8(120).reshape(()), "other"))
    result = held(model)

    assert not result
    assert result.first_divergence is not None
    assert result.first_divergence.value == "r"


def test_the_quantised_model_may_be_the_reference() -> None:
    """The values of A are then what its codes stand for."""
    result = compare_models(
        q.on_codes(q.ranges()),
        q.plain(),
        inputs={"x": q.picture()},
        ref="engine",
        test_runner="ort",
        latency=False,
    )

    assert layer(result, "y").error is not None
    assert (layer(result, "y").error or 1) < 0.05


def test_two_models_that_quantise_alike_get_no_room_for_it() -> None:
    """Where A rounds to the same codes, a weight that is off by 1 % is a fault."""
    used = q.ranges()
    used.extra["w_s"] = used.arrays()["w_s"] * np.float32(1.01)
    result = compare_models(
        q.qdq(q.ranges()), q.qdq(used), inputs={"x": q.picture()}, test_runner="ort", latency=False
    )

    assert result.verdict.kind is Kind.OWN
    assert result.first_divergence is not None
    assert result.first_divergence.value == "w_d"


def test_what_only_one_side_has_is_listed_by_operator() -> None:
    facts = dict(held(FORMS["dynamic"]()).verdict.facts)

    assert "only A" not in facts
    assert facts["only B"] == ("4 layers: 1 Cast, 1 DynamicQuantizeLinear, 1 MatMulInteger, 1 Mul")


def test_codes_are_real_numbers_only_in_between() -> None:
    """Behind the bridge everybody reads the same codes as before."""
    pairs = paired(Target(open_source(q.plain())), Target(open_source(q.on_codes(q.ranges()))))
    made = {name: node for node in pairs.test.proto.graph.node for name in node.output}

    assert made["r"].op_type == "DequantizeLinear"
    assert made["c_quantized·again"].op_type == "QuantizeLinear"
    assert list(made["r_real"].input) == ["c_quantized·again", "r_s", "r_z"]


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        ((1, 64, 56, 56), (1, 56, 56, 64), (0, 3, 1, 2)),
        ((1, 3, 8, 9), (1, 8, 9, 3), (0, 3, 1, 2)),
        ((2, 5, 7), (2, 7, 5), (0, 2, 1)),
        ((1, 3, 8, 9), (1, 3, 8, 9), None),
        ((1, 3, 8, 9), (1, 24, 9), None),
    ],
)
def test_axes_are_told_by_their_sizes(
    a: tuple[int, ...], b: tuple[int, ...], order: tuple[int, ...] | None
) -> None:
    found = permutation(a, b)

    assert found == order
    if order is not None:
        assert np.zeros(b).transpose(order).shape == a


def turned(*, fault: bool = False) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a network, and the same with its inside channels-last under the same names."""
    arrays = {"k": q.weights()["k"], "b": q.weights()["b"]}
    conv = helper.make_node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1, 1, 1])
    mean = helper.make_node("ReduceMean", ["m"], ["p"], axes=[2, 3], keepdims=0)
    head = helper.make_node("MatMul", ["p", "w"], ["y"])
    a = [
        conv,
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["m"]),
        mean,
        head,
    ]
    last = helper.make_node("ReduceMean", ["m"], ["p"], axes=[1, 2], keepdims=0)
    b = [
        conv,
        helper.make_node("Transpose", ["c"], ["c_last"], perm=[0, 2, 3, 1]),
        helper.make_node("Tanh" if fault else "Sigmoid", ["c_last"], ["s"]),
        helper.make_node("Mul", ["c_last", "s"], ["m"]),
        last,
        head,
    ]
    arrays["w"] = q.weights()["w"]
    return q.model_of(a, arrays), q.model_of(b, arrays)


def test_another_layout_is_turned_back() -> None:
    a, b = turned()
    result = compare_models(a, b, inputs={"x": q.picture()}, test_runner="ort", latency=False)

    assert result, result.verdict.sentence
    assert [found.value for found in result.layers] == ["c", "s", "m", "p", "y"]
    assert all(found.error is not None and found.error < 1e-6 for found in result.layers)
    assert "B holds 2 in another layout" in result.remarks[0]


def test_a_fault_in_another_layout_is_named() -> None:
    a, b = turned(fault=True)
    result = compare_models(a, b, inputs={"x": q.picture()}, test_runner="engine", latency=False)

    assert result.first_divergence is not None
    assert result.first_divergence.value == "s"
    assert [found.value for found in result.differing if found.status is Status.OWN] == ["s"]


def test_outputs_that_rounding_moves_far_are_not_called_equal() -> None:
    """Codes of 4 steps each way: no layer is wrong by itself, and the output is a tenth off or more."""
    coarse = q.ranges()
    for name, axes in (("k", (1, 2, 3)), ("w", None)):
        real = q.weights()[name]
        scale = np.abs(real).max(axes) / np.float32(4)
        broad = scale.reshape(-1, 1, 1, 1) if axes else scale
        coarse.extra[f"{name}_q"] = np.rint(real / broad).astype(np.int8)
        coarse.extra[f"{name}_s"] = np.asarray(scale, np.float32)
    result = held(q.qdq(coarse))

    assert result
    assert result.verdict.kind is Kind.UNSURE
    assert "no layer is wrong by itself; rounding on the way moves the output #" in result.verdict.sentence
    assert result.verdict.symbol == "▲"
