"""What each condition of the rules for linear operators is there for; see test_guards.py."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.surgeon import build
from tests.surgeon.simplify_check import Result, check

F32 = np.float32
RNG = np.random.default_rng(0)
FILTERS = RNG.standard_normal((6, 4, 2, 2)).astype(F32)


def _conv(*nodes: onnx.NodeProto, outputs: dict[str, list[Any]], weights: dict[str, Any]) -> onnx.ModelProto:
    """Return c = Conv(x, W) of six channels, and more nodes."""
    held = {"W": FILTERS, **weights}
    return build.model(
        [helper.make_node("Conv", ["x", "W"], ["c"]), *nodes],
        inputs=[build.value("x", ["N", 4, 5, 5])],
        outputs=[build.value(name, shape) for name, shape in outputs.items()],
        weights=[build.weight(name, array) for name, array in held.items()],
    )


@pytest.mark.parametrize(("factor", "ops"), [("k", ["Conv"]), ("e", ["Expand", "Conv", "Mul"])])
def test_a_factor_that_is_too_large_to_be_stored(factor: str, ops: list[str]) -> None:
    """Folding leaves the Expand, so its result must not come into the weights by another way."""
    proto = build.model(
        [
            helper.make_node("Expand", ["s", "d"], ["e"]),
            helper.make_node("Conv", ["x", "W"], ["c"]),
            helper.make_node("Mul", ["c", factor], ["y"]),
        ],
        inputs=[build.value("x", ["N", 1, 1, 1])],
        outputs=[build.value("y", ["N", 512, 1, 1])],
        weights=[
            build.weight("W", RNG.standard_normal((512, 1, 1, 1)).astype(F32)),
            build.weight("s", [3.0]),
            build.weight("d", np.array([512, 1, 1])),
            build.weight("k", np.full((512, 1, 1), 3.0, F32)),
        ],
    )

    assert check(proto, exact=False, max_growth=640).ops == ops


def test_a_shift_beside_shared_weights() -> None:
    """A bias of its own costs no copy of the weights."""
    proto = _conv(
        helper.make_node("Add", ["c", "k"], ["y"]),
        helper.make_node("Conv", ["x", "W"], ["z"], strides=[2, 2]),
        outputs={"y": ["N", 6, 4, 4], "z": ["N", 6, 2, 2]},
        weights={"k": np.arange(6, dtype=F32).reshape(6, 1, 1)},
    )

    assert check(proto, exact=False, max_growth=0).ops == ["Conv", "Conv"]


def test_scaling_weights_of_its_own_adds_nothing() -> None:
    """What only this operator reads is replaced, not copied."""
    proto = _conv(
        helper.make_node("Mul", ["c", "k"], ["y"]), outputs={"y": ["N", 6, 4, 4]}, weights={"k": [3]}
    )

    assert check(proto, exact=False, max_growth=0).ops == ["Conv"]


def _batchnorm(opset: int, *, shift: Any = None, parameters: tuple[int, ...] = (6,), **more: Any) -> Result:
    """Return what is made of Conv → BatchNormalization; shift: None for an input."""
    held = {n: RNG.random(parameters).astype(F32) + 1 for n in ("scale", "mean", "variance")}
    inputs = [build.value("x", [2, 4, 5, 5])]
    if shift is None:
        inputs.append(build.value("shift", parameters))
    else:
        held["shift"] = np.broadcast_to(F32(shift), parameters)
    names = ["c", "scale", "shift", "mean", "variance"]
    proto = build.model(
        [
            helper.make_node("Conv", ["x", "W"], ["c"]),
            helper.make_node("BatchNormalization", names, ["y"], **more),
        ],
        inputs=inputs,
        outputs=[build.value("y", [2, 6, 4, 4])],
        weights=[build.weight("W", FILTERS), *(build.weight(n, array) for n, array in held.items())],
        opset=opset,
        ir_version=8,
    )
    runs = opset >= 9
    return check(proto, exact=False, feeds=None if runs else [])


def test_a_shift_that_is_an_input() -> None:
    """The reason says what is missing."""
    result = _batchnorm(15)

    assert result.ops == ["Conv", "BatchNormalization"]
    assert result.reasons("fuse-batchnorm") == ["a parameter is not constant"]


@pytest.mark.parametrize(("tests", "ops"), [(0, ["Conv", "BatchNormalization"]), (1, ["Conv"])])
def test_early_batch_normalization_trains_unless_told(tests: int, ops: list[str]) -> None:
    """In opset 6, is_test is 0 where it is left out."""
    assert _batchnorm(6, shift=1, is_test=tests).ops == ops
    assert _batchnorm(6, shift=1, **({"is_test": 1} if tests else {})).ops == ops


def test_parameters_that_vary_over_the_image() -> None:
    """In opset 7, spatial=0 gives each element parameters of its own."""
    result = _batchnorm(7, shift=1, parameters=(6, 4, 4), spatial=0)

    assert result.ops == ["Conv", "BatchNormalization"]
    assert result.reasons("fuse-batchnorm") == ["its parameters vary over the image"]


@pytest.mark.parametrize("after", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("shape", [[3, 4], [3]])
def test_products_and_constants(after: str, shape: list[int]) -> None:
    """A MatMul takes a scale, but no shift; with a vector, its result has no axis for the constant."""
    proto = build.model(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node(after, ["m", "k"], ["y"])],
        inputs=[build.value("x", ["B", 2, 3, 3])],
        outputs=[build.value("y", ["B", 2, 3, *shape[1:]])],
        weights=[
            build.weight("w", RNG.standard_normal(shape).astype(F32)),
            build.weight("k", np.arange(1, 1 + shape[-1], dtype=F32)),
        ],
    )
    result = check(proto, exact=False, sizes=[{"B": 2}])

    assert result.ops == (["MatMul"] if after == "Mul" and len(shape) == 2 else ["MatMul", after])
    if len(shape) == 1:
        assert "the constant is not one number per channel" in (
            result.reasons("fuse-scale") + result.reasons("fuse-shift")
        )


def test_a_product_of_unknown_rank() -> None:
    """Which axis the constant lies along is not known."""
    proto = build.model(
        [
            helper.make_node("Expand", ["v", "s"], ["x"]),
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Mul", ["m", "k"], ["n"]),
            helper.make_node("Reshape", ["n", "flat"], ["y"]),
        ],
        inputs=[build.value("v", [3]), build.value("s", ["R"], TensorProto.INT64)],
        outputs=[build.value("y", ["P"])],
        weights=[
            build.weight("w", RNG.standard_normal((3, 4)).astype(F32)),
            build.weight("k", [1, 2, 3, 4]),
            build.weight("flat", np.array([-1])),
        ],
    )
    feeds = [{"v": np.ones(3, F32), "s": np.array(shape)} for shape in ([2, 3], [2, 2, 3])]

    assert check(proto, feeds=feeds, exact=False).ops == ["Expand", "MatMul", "Mul", "Reshape"]


@pytest.mark.parametrize(
    ("pads", "axes", "reason"),
    [
        ("constant", "constant", "it pads chosen axes"),
        ("input", "", "what it pads with is not constant"),
    ],
)
def test_pads_that_a_conv_cannot_take(pads: str, axes: str, reason: str) -> None:
    """Axes in another order, as many as there are; pads that are not known."""
    inputs = ["x", "p", "", "axes"] if axes else ["x", "p"]
    held = {"axes": np.array([2, 3, 0, 1]), "p": np.array([1, 1, 0, 0, 1, 1, 0, 0])}
    used = [name for name, kind in (("p", pads), ("axes", axes)) if kind == "constant"]
    declared = [build.value("x", ["N", 4, 5, 5])]
    if pads == "input":
        declared.append(build.value("p", [8], TensorProto.INT64))
    proto = build.model(
        [helper.make_node("Pad", inputs, ["a"]), helper.make_node("Conv", ["a", "W"], ["y"])],
        inputs=declared,
        outputs=[build.value("y", ["N", 6, "H", "V"])],
        weights=[build.weight("W", FILTERS), *(build.weight(name, held[name]) for name in used)],
    )
    feed = {"x": RNG.standard_normal((2, 4, 5, 5)).astype(F32)}
    if pads == "input":
        feed["p"] = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    result = check(proto, feeds=[feed])

    assert result.ops == ["Pad", "Conv"]
    assert result.reasons("fuse-pad") == [reason]


def test_a_product_and_a_sum_of_early_opsets() -> None:
    """Gemm took a bias that broadcasts from opset 7 on."""
    proto = build.model(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "z"], ["y"])],
        inputs=[build.value("x", [2, 3]), build.value("z", [2, 4])],
        outputs=[build.value("y", [2, 4])],
        weights=[build.weight("w", np.ones((3, 4), F32))],
        opset=6,
        ir_version=4,
    )

    assert check(proto, feeds=[]).ops == ["MatMul", "Add"]
