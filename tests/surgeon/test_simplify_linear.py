"""Scales, shifts, pads and biases beside a linear operator: what goes into its weights, and what must not."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.surgeon import build
from tests.surgeon.simplify_check import Result, check


def _weights(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def _linear(op: str, **attributes: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Return a linear node c = op(x, w, b), its weights, and the shapes of input and output."""
    rng = np.random.default_rng(1)
    if op == "Gemm":
        w, x, y = _weights(rng, 4, 6), ["N", 4], ["N", 6]
    elif op == "ConvTranspose":
        group = attributes.get("group", 1)
        w, x, y = _weights(rng, 4, 6 // group, 2, 2), ["N", 4, 5, 5], ["N", 6, 6, 6]
    else:
        group = attributes.get("group", 1)
        w, x, y = _weights(rng, 6, 4 // group, 2, 2), ["N", 4, 5, 5], ["N", 6, 4, 4]
    node = helper.make_node(op, ["x", "w", "b"], ["c"], name="lin", **attributes)
    return [node], [build.weight("w", w), build.weight("b", _weights(rng, 6))], [x, y]


LINEAR = [
    ("Conv", {}),
    ("Conv", {"group": 2}),
    ("ConvTranspose", {}),
    ("ConvTranspose", {"group": 2}),
    ("Gemm", {}),
]


def _batchnorm() -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(2)
    names = ("scale", "shift", "mean", "variance")
    tensors = [build.weight(n, np.abs(_weights(rng, 6)) + np.float32(0.5)) for n in names]
    return [helper.make_node("BatchNormalization", ["c", *names], ["y"], name="bn", epsilon=1e-3)], tensors


def _elementwise(op: str, constant: Any) -> tuple[list[Any], list[Any]]:
    return [helper.make_node(op, ["c", "k"], ["y"], name="el")], [build.weight("k", constant)]


@pytest.mark.parametrize(("op", "attributes"), LINEAR)
@pytest.mark.parametrize("after", ["BatchNormalization", "Mul", "Div", "Add", "Sub"])
def test_goes_into_weights(op: str, attributes: dict[str, Any], after: str) -> None:
    """Scales and shifts per channel go into weights and bias, for groups and transposed weights too."""
    nodes, tensors, (x, y) = _linear(op, **attributes)
    constant = np.linspace(0.5, 3, 6).astype(np.float32)
    if op != "Gemm":
        constant = constant.reshape(6, 1, 1)
    more, held = _batchnorm() if after == "BatchNormalization" else _elementwise(after, constant)
    proto = build.model(
        [*nodes, *more],
        inputs=[build.value("x", x)],
        outputs=[build.value("y", y)],
        weights=[*tensors, *held],
    )
    result = check(proto, exact=False)

    assert result.ops == [op]
    assert result.proto.graph.node[0].name == "lin"


def _after_conv(constant: Any, op: str = "Mul", **more: Any) -> Result:
    nodes, tensors, (x, y) = _linear("Conv")
    made, held = _elementwise(op, constant)
    outputs = [build.value("y", y)] + ([build.value("c", y)] if more.get("output") else [])
    proto = build.model(
        [*nodes, *made], inputs=[build.value("x", x)], outputs=outputs, weights=[*tensors, *held]
    )
    return check(proto, exact=False)


@pytest.mark.parametrize(
    ("constant", "op", "words"),
    [
        (np.ones((4, 4), np.float32) * 2, "Mul", "not one number per channel"),
        (np.ones((5, 1, 1, 1, 1), np.float32) * 2, "Mul", "not one number per channel"),
        (np.zeros((1,), np.float32), "Div", "divides by zero"),
        (np.full((1,), np.inf, np.float32), "Add", "not finite"),
        (np.full((1,), np.inf, np.float32), "Mul", "would not be finite"),
    ],
)
def test_does_not_go_into_weights(constant: Any, op: str, words: str) -> None:
    """Constants that vary over the image, widen the result or are not finite stay beside the Conv."""
    name = "fuse-shift" if op in ("Add", "Sub") else "fuse-scale"
    rank = max(4, constant.ndim)
    nodes, tensors, (x, _) = _linear("Conv")
    made, held = _elementwise(op, constant)
    proto = build.model(
        [*nodes, *made],
        inputs=[build.value("x", x)],
        outputs=[build.value("y", [f"d{i}" for i in range(rank)])],
        weights=[*tensors, *held],
    )
    result = check(proto, exact=False, sizes=[{"N": 5}])

    assert any(words in reason for reason in result.reasons(name)), result.report.kept
    assert result.ops == ["Conv", op]


def test_a_result_that_is_an_output_stays() -> None:
    """The Conv's own result is asked for, so its weights cannot change."""
    result = _after_conv(np.full((1,), 2.0, np.float32), output=True)

    assert result.ops == ["Conv", "Mul"]
    assert "something else reads the result of Conv" in result.reasons("fuse-scale")


def test_half_precision_stays() -> None:
    """Weights of float16 are not rounded a second time."""
    w = np.ones((1, 1, 1, 1), np.float16)
    proto = build.model(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "k"], ["y"])],
        inputs=[build.value("x", [1, 1, 2, 2], TensorProto.FLOAT16)],
        outputs=[build.value("y", [1, 1, 2, 2], TensorProto.FLOAT16)],
        weights=[numpy_helper.from_array(w, "w"), numpy_helper.from_array(w[0, 0, 0] * 3, "k")],
    )
    result = check(proto)

    assert result.ops == ["Conv", "Mul"]
    assert any("half precision" in reason for reason in result.reasons("fuse-scale"))


@pytest.mark.parametrize("mode", ["training", "statistics"])
def test_batchnorm_that_trains_stays(mode: str) -> None:
    """In training mode the statistics come from the batch."""
    nodes, tensors, (x, y) = _linear("Conv")
    more, held = _batchnorm()
    if mode == "training":
        more[0].attribute.append(helper.make_attribute("training_mode", 1))
        more[0].output.extend(["m", "v"])
    else:
        held[3] = build.weight("variance", -np.ones(6, np.float32))
    proto = build.model(
        [*nodes, *more],
        inputs=[build.value("x", x)],
        outputs=[build.value("y", y)],
        weights=[*tensors, *held],
        opset=15,
    )
    result = check(proto, exact=False, again=mode != "training", feeds=[] if mode == "training" else None)

    assert result.ops == ["Conv", "BatchNormalization"]
    words = "training mode" if mode == "training" else "not positive"
    assert any(words in reason for reason in result.reasons("fuse-batchnorm"))


def test_shared_weights_are_copied() -> None:
    """Scaling one Conv's weights leaves another Conv's alone."""
    nodes, tensors, (x, y) = _linear("Conv")
    more, held = _batchnorm()
    other = helper.make_node("Conv", ["x", "w", "b"], ["z"], name="other", strides=[2, 2])
    proto = build.model(
        [*nodes, *more, other],
        inputs=[build.value("x", x)],
        outputs=[build.value("y", y), build.value("z", ["N", 6, 2, 2])],
        weights=[*tensors, *held],
    )
    result = check(proto, exact=False)

    assert result.ops == ["Conv", "Conv"]


PAD = [
    ([0, 0, 1, 2, 0, 0, 3, 0], 0.0, True),
    ([0, 1, 0, 0, 0, 0, 0, 0], 0.0, False),
    ([0] * 2 + [1] * 2 + [0] * 4, 1.0, False),
]


@pytest.mark.parametrize(("pads", "fill", "goes"), PAD)
def test_pad_goes_into_conv(pads: list[int], fill: float, goes: bool) -> None:
    """Zeros around the image become the Conv's own padding; other padding stays."""
    channels = 4 + pads[1]
    w = _weights(np.random.default_rng(0), 2, channels, 2, 2)
    proto = build.model(
        [
            helper.make_node("Pad", ["x", "p", "f"], ["a"]),
            helper.make_node("Conv", ["a", "w"], ["y"], pads=[1, 0, 0, 1]),
        ],
        inputs=[build.value("x", ["N", 4, 5, 5])],
        outputs=[build.value("y", ["N", 2, "H", "W"])],
        weights=[
            numpy_helper.from_array(np.array(pads, np.int64), "p"),
            numpy_helper.from_array(np.array(fill, np.float32), "f"),
            build.weight("w", w),
        ],
    )
    result = check(proto)

    assert result.ops == (["Conv"] if goes else ["Pad", "Conv"])


@pytest.mark.parametrize(
    ("factor", "ops"),
    [
        ([3.0] * 6, ["ConstantOfShape", "Conv"]),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], ["ConstantOfShape", "Conv", "Mul"]),
        ([-1.0, 1.0] * 3, ["ConstantOfShape", "Conv", "Mul"]),
    ],
)
def test_weights_of_one_number_stay_one_number(factor: list[float], ops: list[str]) -> None:
    """A ConstantOfShape that folding leaves takes the scale into its number, when that is one for all."""
    number = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.7])
    proto = build.model(
        [
            helper.make_node("ConstantOfShape", ["s"], ["w"], value=number),
            helper.make_node("Conv", ["x", "w", "b"], ["c"], name="lin"),
            helper.make_node("Mul", ["c", "k"], ["y"], name="el"),
        ],
        inputs=[build.value("x", ["N", 4, 5, 5])],
        outputs=[build.value("y", ["N", 6, 4, 4])],
        weights=[
            numpy_helper.from_array(np.array([6, 4, 2, 2], np.int64), "s"),
            build.weight("b", np.arange(6, dtype=np.float32)),
            build.weight("k", np.array(factor, np.float32).reshape(6, 1, 1)),
        ],
    )
    result = check(proto, exact=False, max_growth=100)

    assert result.ops == ops
    stored = sum(np.prod(tensor.dims) for tensor in result.proto.graph.initializer)
    assert stored < 6 * 4 * 2 * 2
    if len(ops) == 3:
        assert any("are one number" in reason for reason in result.reasons("fuse-scale"))


def test_a_shared_number_is_not_changed_for_others() -> None:
    """Another reader of the same ConstantOfShape keeps the old number."""
    number = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.7])
    proto = build.model(
        [
            helper.make_node("ConstantOfShape", ["s"], ["w"], value=number),
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Mul", ["c", "k"], ["y"]),
            helper.make_node("Conv", ["y2", "w"], ["z"]),
        ],
        inputs=[build.value("x", ["N", 4, 5, 5]), build.value("y2", ["N", 4, 5, 5])],
        outputs=[build.value("y", ["N", 6, 4, 4]), build.value("z", ["N", 6, 4, 4])],
        weights=[
            numpy_helper.from_array(np.array([6, 4, 2, 2], np.int64), "s"),
            build.weight("k", np.array(3, np.float32)),
        ],
    )

    assert sorted(check(proto, exact=False, max_growth=100).ops) == ["ConstantOfShape"] * 2 + ["Conv"] * 2
