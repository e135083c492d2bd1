"""Resize and Upsample against ONNX Runtime, onnx.reference and the specification's formulas."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.engine.layer_oracle import assert_agrees, complaint, draws, on_engine, sample

FLOAT = np.float32
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def scales_of(*values: float) -> Any:
    return np.array(values, FLOAT)


def on_reference(inputs: list[Any], **attributes: Any) -> Any:
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    node = helper.make_node("Resize", names, ["y"], **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, inputs, strict=True)
        if n
    ]
    graph = helper.make_graph([node], "resize", infos, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if n}
    return ReferenceEvaluator(model).run(None, feeds)[0]


@pytest.mark.parametrize("mode", ["half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn"])
@pytest.mark.parametrize("nearest_mode", NEAREST)
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 0.6, 1.5), (1, 1, 0.5, 2.5)])
def test_nearest_agrees_with_onnx_runtime(mode: str, nearest_mode: str, scales: tuple[float, ...]) -> None:
    inputs = [sample(1, FLOAT, (1, 2, 5, 6)), scales_of(), scales_of(*scales)]
    attributes = {"coordinate_transformation_mode": mode, "nearest_mode": nearest_mode}
    assert_agrees("Resize", inputs, 11, **attributes)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("transform", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("sizes", [(1, 2, 10, 9), (1, 2, 3, 13), (1, 2, 1, 4)])
def test_interpolation_agrees_with_onnx_runtime(mode: str, transform: str, sizes: tuple[int, ...]) -> None:
    inputs = [sample(1, FLOAT, (1, 2, 5, 6)), None, None, np.array(sizes)]
    assert_agrees("Resize", inputs, 13, mode=mode, coordinate_transformation_mode=transform)


@pytest.mark.parametrize("seed", range(12))
def test_every_rank_and_axis_agrees_with_onnx_reference(seed: int) -> None:
    draw = draws(seed)
    rank = draw.choice([1, 2, 3, 4, 5])
    x = sample(seed, np.float64, tuple(draw.randint(2, 4) for _ in range(rank)))
    sizes = np.array([draw.randint(1, 6) for _ in range(rank)])
    mode = draw.choice(["linear", "cubic"])
    attributes = {"mode": mode, "exclude_outside": seed % 2, "antialias": seed // 2 % 2}
    (got,) = on_engine("Resize", [x, None, None, sizes], 19, **attributes)
    # The reference computes its cubic weights in float32.
    limit = 1e-10 if mode == "linear" else 1e-5
    assert complaint(got, on_reference([x, None, None, sizes], **attributes), limit) is None


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_keep_aspect_ratio_on_some_axes(policy: str) -> None:
    x = sample(1, FLOAT, (1, 2, 5, 8))
    attributes = {"axes": [3, 2], "keep_aspect_ratio_policy": policy, "mode": "linear"}
    inputs = [x, None, None, np.array([10, 4])]
    (got,) = on_engine("Resize", inputs, 19, **attributes)
    assert got.shape[2:] == {"stretch": (4, 10), "not_larger": (4, 6), "not_smaller": (6, 10)}[policy]
    assert_agrees("Resize", inputs, 19, **attributes)


def test_crop_and_extrapolation_agree_with_onnx_reference() -> None:
    x, roi = sample(1, FLOAT, (1, 1, 5, 6)), np.array([0, 0, 0.3, -0.2, 1, 1, 0.9, 1.4], FLOAT)
    attributes = {
        "mode": "linear",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.0,
    }
    inputs = [x, roi, None, np.array([1, 1, 4, 7])]
    (got,) = on_engine("Resize", inputs, 19, **attributes)
    assert (got == 7).any()
    assert complaint(got, on_reference(inputs, **attributes)) is None


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 1.5, 1.3), (1, 1, 0.6, 0.5)])
def test_version_10_agrees_with_onnx_runtime(mode: str, scales: tuple[float, ...]) -> None:
    inputs = [sample(1, FLOAT, (1, 2, 5, 6)), scales_of(*scales)]
    assert_agrees("Resize", inputs, 10, mode=mode)
    if min(scales) >= 1:
        assert_agrees("Upsample", inputs, 9, mode=mode)
        (old,) = on_engine("Upsample", inputs[:1], 7, mode=mode, scales=list(scales))
        (new,) = on_engine("Upsample", inputs, 9, mode=mode)
        np.testing.assert_array_equal(old, new)


def test_upsample_1() -> None:
    x = sample(1, FLOAT, (1, 2, 3, 4))
    (got,) = on_engine("Upsample", [x], 1, height_scale=2.0, width_scale=3.0)
    np.testing.assert_array_equal(got, x.repeat(2, axis=2).repeat(3, axis=3))
    (smooth,) = on_engine("Upsample", [x], 1, height_scale=2.0, width_scale=1.0, mode="bilinear")
    np.testing.assert_allclose(smooth[:, :, 1], (x[:, :, 0] + x[:, :, 1]) / 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, ml_dtypes.bfloat16, np.bool_, np.object_])
def test_nearest_moves_any_dtype(dtype: Any) -> None:
    x = np.array([[0, 1, 1]]).astype(dtype)
    (got,) = on_engine("Resize", [x, None, scales_of(1, 2)], 13)
    assert got.tolist() == [[value for value in x[0].tolist() for _ in range(2)]]
    assert got.dtype == x.dtype


def test_integers_are_rounded_and_clamped() -> None:
    x = np.array([0, 255, 255, 0], np.uint8)
    attributes = {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}
    inputs = [x, None, None, np.array([13])]
    (got,) = on_engine("Resize", inputs, 19, **attributes)
    (wide,) = on_engine("Resize", [x.astype(np.float64), *inputs[1:]], 19, **attributes)
    assert wide.max() > 256
    np.testing.assert_array_equal(got, np.clip(np.rint(wide), 0, 255))


def test_a_float32_scale_stands_for_the_decimal_it_prints() -> None:
    """1.5 ÷ 0.6 is 2.5; 1.5 ÷ float32(0.6) is a little less, and its floor another element."""
    x = np.arange(5, dtype=FLOAT)
    (got,) = on_engine("Resize", [x, None, scales_of(0.6)], 13, nearest_mode="floor")
    assert got.tolist() == [0, 2, 3]


def test_truth_mode_reads_promoted_scales() -> None:
    x = np.arange(10, dtype=np.float64)
    (got,) = on_engine("Resize", [x, None, scales_of(0.7).astype(np.float64)], 13, truth=True)
    assert got.shape == (7,)


X = np.zeros((2, 3), FLOAT)


@pytest.mark.parametrize(
    ("inputs", "attributes", "complains"),
    [
        ([X], {}, "exactly one of scales and sizes"),
        ([X, None, scales_of(1, 2), np.array([2, 3])], {}, "exactly one of scales and sizes"),
        ([X, None, scales_of(2)], {}, "do not fit 2 axes"),
        ([X, None, scales_of(0, 2)], {}, "do not fit 2 axes"),
        ([X, None, None, np.array([2])], {}, "do not fit 2 axes"),
        ([X, None, scales_of(2, 2)], {"mode": "sinc"}, "mode 'sinc' is unknown"),
        ([X, None, scales_of(2, 2)], {"nearest_mode": "up"}, "nearest_mode 'up' is unknown"),
        ([X, None, scales_of(2, 2)], {"coordinate_transformation_mode": "x"}, "mode 'x' is unknown"),
        ([X, None, scales_of(2, 2)], {"coordinate_transformation_mode": "tf_crop_and_resize"}, "needs a roi"),
        ([X[:0], None, None, np.array([2, 3])], {}, "cannot be enlarged"),
    ],
)
def test_refusals(inputs: list[Any], attributes: dict[str, Any], complains: str) -> None:
    with pytest.raises(ValueError, match=complains):
        on_engine("Resize", inputs, 13, **attributes)
