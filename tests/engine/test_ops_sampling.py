"""Sampling, regions and blocks against ONNX Runtime and definitions."""

import itertools
from typing import Any

import numpy as np
import pytest

from tests.engine.layer_oracle import assert_agrees, complaint, on_engine, sample

FLOAT = np.float32
PADDINGS = ["zeros", "border", "reflection"]


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_grid_sample_agrees_with_onnx_runtime(mode: str, padding_mode: str, align_corners: int) -> None:
    inputs = [sample(1, FLOAT, (2, 3, 5, 4)), sample(2, FLOAT, (2, 6, 7, 2), -2.5, 2.5)]
    assert_agrees("GridSample", inputs, 20, mode=mode, padding_mode=padding_mode, align_corners=align_corners)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize(("mode", "padding_mode"), [*itertools.product(["linear", "nearest"], PADDINGS)])
def test_grid_sample_of_volumes(mode: str, padding_mode: str, align_corners: int) -> None:
    inputs = [sample(1, FLOAT, (2, 2, 3, 4, 5)), sample(2, FLOAT, (2, 2, 3, 4, 3), -1.7, 1.7)]
    assert_agrees("GridSample", inputs, 20, mode=mode, padding_mode=padding_mode, align_corners=align_corners)


def test_grid_sample_does_not_see_what_lies_elsewhere() -> None:
    """Outside the image lies zero, also beside an infinite element."""
    x = np.array([[[[np.inf, 1.0]]]], FLOAT)
    grid = np.array([[[[-3.0, 0.0], [3.0, 0.0], [0.5, 0.0]]]], FLOAT)
    (got,) = on_engine("GridSample", [x, grid], 16, mode="bilinear")
    assert got.ravel().tolist() == [0, 0, 1]


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 4, 5), (2, 1, 3, 4, 5)])
def test_affine_grid_agrees_with_onnx_runtime(size: tuple[int, ...], align_corners: int) -> None:
    rank = len(size) - 2
    theta = sample(1, FLOAT, (2, rank, rank + 1))
    assert_agrees("AffineGrid", [theta, np.array(size)], 20, align_corners=align_corners)


def test_affine_grid_of_one_element_lies_in_the_middle() -> None:
    theta = np.array([[[1, 0, 0.25], [0, 1, 0.5]]], np.float64)
    (got,) = on_engine("AffineGrid", [theta, np.array([1, 1, 1, 1])], 20, align_corners=1)
    assert got.ravel().tolist() == [0.25, 0.5]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("group", "offset_group", "stride"), [(1, 1, 1), (2, 1, 2), (1, 2, 1), (2, 2, 2)])
def test_deform_conv_agrees_with_onnx_runtime(
    group: int, offset_group: int, stride: int, masked: bool
) -> None:
    out = [(n + 2 - 3) // stride + 1 for n in (6, 7)]
    w, b = sample(2, FLOAT, (4, 4 // group, 3, 3)), sample(3, FLOAT, (4,))
    offset = sample(4, FLOAT, (2, offset_group * 18, *out), -3, 3)
    mask = [sample(5, FLOAT, (2, offset_group * 9, *out))] if masked else []
    attributes = {"group": group, "offset_group": offset_group, "strides": [stride] * 2, "pads": [1] * 4}
    assert_agrees("DeformConv", [sample(1, FLOAT, (2, 4, 6, 7)), w, offset, b, *mask], 19, **attributes)


@pytest.mark.parametrize("rank", [1, 3])
def test_deform_conv_without_offsets_is_a_convolution(rank: int) -> None:
    x, w = sample(1, np.float64, (1, 2, *(5,) * rank)), sample(2, np.float64, (3, 2, *(2,) * rank))
    (want,) = on_engine("Conv", [x, w], 11)
    offset = np.zeros((1, 2**rank * rank, *want.shape[2:]))
    (got,) = on_engine("DeformConv", [x, w, offset], 19)
    assert complaint(got, want) is None


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("pool", "ratio"), [("avg", 0), ("avg", 2), ("max", 1)])
def test_roi_align_agrees_with_onnx_runtime(mode: str, pool: str, ratio: int) -> None:
    corners = np.sort(sample(2, FLOAT, (6, 2, 2), -3, 14), axis=1).reshape(6, 4)
    inputs = [sample(1, FLOAT, (2, 3, 9, 11)), corners, np.array([0, 1, 1, 0, 1, 0])]
    sizes = {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.9}
    assert_agrees("RoiAlign", inputs, 16, mode=pool, coordinate_transformation_mode=mode, **sizes)
    if mode == "output_half_pixel":
        (old,) = on_engine("RoiAlign", inputs, 10, mode=pool, **sizes)
        (new,) = on_engine("RoiAlign", inputs, 16, mode=pool, coordinate_transformation_mode=mode, **sizes)
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool_agrees_with_onnx_runtime(scale: float) -> None:
    corners = np.sort(sample(2, FLOAT, (6, 2, 2), 0, 20), axis=1).reshape(6, 4)
    rois = np.concatenate([np.array([[0], [1], [1], [0], [0], [1]], FLOAT), corners], axis=1)
    inputs = [sample(1, FLOAT, (2, 3, 9, 11)), rois]
    assert_agrees("MaxRoiPool", inputs, 1, pooled_shape=[3, 2], spatial_scale=scale)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_blocks_agree_with_onnx_runtime_and_come_back(block: int) -> None:
    x = sample(1, FLOAT, (2, 3 * block**2, 2, 4))
    for mode in ("DCR", "CRD"):
        assert_agrees("DepthToSpace", [x], 13, blocksize=block, mode=mode)
        (spread,) = on_engine("DepthToSpace", [x], 28, blocksize=block, mode=mode)
        (back,) = on_engine("SpaceToDepth", [spread], 28, blocksize=block, mode=mode)
        np.testing.assert_array_equal(back, x)
    assert_agrees("SpaceToDepth", [spread], 13, blocksize=block)


@pytest.mark.parametrize(("have", "want"), [*itertools.product([3, 4], [1, 2, 3, 6, 7])])
def test_center_crop_pad_agrees_with_onnx_runtime(have: int, want: int) -> None:
    x = sample(1, FLOAT, (2, have, 5))
    assert_agrees("CenterCropPad", [x, np.array([want, 4])], 18, axes=[1, -1])


X = np.zeros((1, 4, 5, 6), FLOAT)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "complains"),
    [
        ("GridSample", [X, np.zeros((1, 2, 2, 3), FLOAT)], {}, "does not fit an input"),
        ("GridSample", [X, np.zeros((1, 2, 2, 2), FLOAT)], {"mode": "sinc"}, "mode 'sinc'"),
        ("GridSample", [X, np.zeros((1, 2, 2, 2), FLOAT)], {"padding_mode": "wrap"}, "padding_mode 'wrap'"),
        (
            "AffineGrid",
            [np.zeros((1, 2, 2), FLOAT), np.array([1, 1, 2, 2])],
            {},
            "does not fit 2 spatial axes",
        ),
        ("DeformConv", [X, np.zeros((2, 4, 2, 2), FLOAT), X], {}, "do not fit"),
        ("RoiAlign", [X, np.zeros((1, 4), FLOAT), np.array([0])], {"mode": "min"}, "mode 'min'"),
        ("DepthToSpace", [X], {"blocksize": 3}, "4 channels do not divide"),
        ("DepthToSpace", [X], {"blocksize": 2, "mode": "XYZ"}, "mode 'XYZ'"),
        ("SpaceToDepth", [X], {"blocksize": 2}, "5×6 does not divide"),
        ("SpaceToDepth", [X[0]], {"blocksize": 1}, "rank 3"),
        ("CenterCropPad", [X, np.array([1])], {}, "does not fit 4 axes"),
    ],
)
def test_refusals(name: str, inputs: list[Any], attributes: dict[str, Any], complains: str) -> None:
    with pytest.raises(ValueError, match=complains):
        on_engine(name, inputs, 22, **attributes)
