"""Convolutions against ONNX Runtime, float64 and plain integer sums."""

import itertools
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphdoc.engine.ops import conv as module
from tests.engine.layer_oracle import assert_agrees, complaint, draws, on_engine, sample

FLOAT = np.float32


def geometry(draw: random.Random, rank: int, largest_pad: int = 3) -> dict[str, Any]:
    """Draw the attributes of a window; ONNX Runtime has no auto_pad with dilations."""
    kernel = [draw.randint(1, 4) for _ in range(rank)]
    drawn: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw.randint(1, 3) for _ in kernel]}
    if draw.random() < 0.4:
        drawn["auto_pad"] = draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    else:
        drawn["dilations"] = [draw.randint(1, 2) for _ in kernel]
        drawn["pads"] = [draw.randint(0, largest_pad) for _ in range(2 * rank)]
    return drawn


@pytest.mark.parametrize("seed", range(40))
def test_conv_agrees_with_onnx_runtime(seed: int) -> None:
    draw = draws(seed)
    rank, group, depth = draw.choice([1, 2, 2, 3]), draw.choice([1, 1, 2, 3]), draw.randint(1, 3)
    features = group * draw.randint(1, 3)
    attributes = geometry(draw, rank)
    x = sample(seed, FLOAT, (draw.randint(1, 2), group * depth, *(draw.randint(7, 11) for _ in range(rank))))
    w = sample(seed + 1, FLOAT, (features, depth, *attributes["kernel_shape"]))
    b = [sample(seed + 2, FLOAT, (features,))] if seed % 2 else []
    assert_agrees("Conv", [x, w, *b], draw.choice([1, 11, 22]), group=group, **attributes)


@pytest.mark.parametrize("tile", [1, 2000, 1 << 20])
@pytest.mark.parametrize("group", [1, 2, 8])
def test_conv_in_tiles_of_any_size(tile: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = sample(1, np.float64, (3, 8, 9, 10)), sample(2, np.float64, (16, 8 // group, 3, 2))
    monkeypatch.setattr(module, "_TILE_BYTES", tile)
    (got,) = on_engine("Conv", [x, w], 11, group=group, pads=[1, 0, 1, 1], strides=[2, 1])
    assert complaint(got, _plain_conv(x, w, group)) is None


def _plain_conv(x: Any, w: Any, group: int) -> Any:
    """One sum per element, with pads 1, 0, 1, 1 and strides 2, 1."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1)))
    depth, features = w.shape[1], w.shape[0] // group
    y = np.empty((x.shape[0], w.shape[0], 5, 10))
    for n, m, i, j in np.ndindex(y.shape):
        first = m // features * depth
        y[n, m, i, j] = (padded[n, first : first + depth, 2 * i : 2 * i + 3, j : j + 2] * w[m]).sum()
    return y


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_half_precision_is_summed_wide_and_rounded_once(name: str, dtype: Any) -> None:
    x, w, b = sample(1, dtype, (1, 64, 7, 7)), sample(2, dtype, (64, 64, 3, 3)), sample(3, dtype, (64,))
    (got,) = on_engine(name, [x, w, b], 22)
    (exact,) = on_engine(name, [a.astype(np.float64) for a in (x, w, b)], 22)
    assert got.dtype == dtype
    # A sum in float32 may fall on the other side of a tie: one unit in the last place at most, and rarely.
    assert np.mean(got != exact.astype(dtype)) < 0.01


@pytest.mark.parametrize("seed", range(30))
def test_conv_transpose_agrees_with_onnx_runtime(seed: int) -> None:
    draw = draws(seed)
    rank, group, depth = draw.choice([1, 2, 2, 3]), draw.choice([1, 1, 2]), draw.randint(1, 3)
    attributes = geometry(draw, rank, largest_pad=1)
    strides = attributes["strides"]
    # With a kernel smaller than its stride, ONNX Runtime's SAME falls short of input · stride.
    attributes["kernel_shape"] = [max(k, s) for k, s in zip(attributes["kernel_shape"], strides, strict=True)]
    attributes["output_padding"] = [draw.randint(0, s - 1) for s in strides]
    x = sample(seed, FLOAT, (2, group * depth, *(draw.randint(3, 6) for _ in range(rank))))
    w = sample(seed + 1, FLOAT, (group * depth, 2, *attributes["kernel_shape"]))
    b = [sample(seed + 2, FLOAT, (2 * group,))] if seed % 2 else []
    assert_agrees("ConvTranspose", [x, w, *b], draw.choice([1, 11, 22]), group=group, **attributes)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_conv_transpose_to_a_given_shape(auto_pad: str) -> None:
    x, w = sample(1, FLOAT, (1, 2, 4, 5)), sample(2, FLOAT, (2, 3, 4, 3))
    attributes = {"strides": [3, 2], "output_shape": [11, 10], "auto_pad": auto_pad}
    assert_agrees("ConvTranspose", [x, w], 11, **attributes)


@pytest.mark.parametrize("seed", range(12))
def test_conv_integer_agrees_with_onnx_runtime(seed: int) -> None:
    draw = draws(seed)
    rank, group = draw.choice([1, 2]), draw.choice([1, 2])
    attributes = geometry(draw, rank, largest_pad=1)
    x = sample(seed, np.uint8, (1, 2 * group, *(draw.randint(7, 9) for _ in range(rank))), 0, 255)
    w = sample(seed + 1, np.uint8, (2 * group, 2, *attributes["kernel_shape"]), 0, 255)
    zero_points = [np.array(draw.randint(0, 255), np.uint8) for _ in range(2)]
    assert_agrees("ConvInteger", [x, w, *zero_points], 10, group=group, **attributes)


def test_conv_integer_stays_exact_where_float32_would_round() -> None:
    x, w = np.full((1, 2001, 1), 255, np.uint8), np.full((1, 2001, 1), 255, np.uint8)
    w[0, 0] = 254
    (got,) = on_engine("ConvInteger", [x, w], 10)
    assert got.dtype == np.int32
    assert got.item() == 2001 * 255 * 255 - 255


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtypes", [(np.uint8, np.uint8), (np.int8, np.int8), (np.uint8, np.int8)])
def test_qlinear_conv_agrees_with_onnx_runtime(dtypes: Any, per_channel: bool) -> None:
    x_type, w_type = dtypes
    # Small enough that no kernel's 16-bit partial sums saturate.
    x, w = sample(1, x_type, (2, 4, 6, 7), -60, 60), sample(2, w_type, (6, 2, 3, 3), -60, 60)
    w_scale = np.abs(sample(3, FLOAT, (6,))) * FLOAT(0.01) if per_channel else np.array(0.013, FLOAT)
    w_zero = np.full(w_scale.shape, 0 if w_type == np.int8 else 7, w_type)
    scales = [np.array(s, FLOAT) for s in (0.02, 0.05)]
    b = sample(5, np.int32, (6,), -500, 500)
    inputs = [x, scales[0], np.array(5, x_type), w, w_scale, w_zero, scales[1], np.array(9, x_type), b]
    assert_agrees("QLinearConv", inputs, 10, group=2, pads=[1, 1, 1, 1])


@pytest.mark.parametrize(("dilation", "stride", "pad"), [*itertools.product([1, 2], [1, 2], [0, 1])])
def test_col2im_agrees_with_onnx_runtime(dilation: int, stride: int, pad: int) -> None:
    positions = [(n + 2 * pad - dilation - 1) // stride + 1 for n in (6, 7)]
    columns = sample(1, FLOAT, (2, 3 * 4, positions[0] * positions[1]))
    attributes = {"dilations": [dilation] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    assert_agrees("Col2Im", [columns, np.array([6, 7]), np.array([2, 2])], 18, **attributes)


@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (2, 0, 5, 5)])
def test_conv_of_nothing(shape: tuple[int, ...]) -> None:
    (got,) = on_engine("Conv", [np.zeros(shape, FLOAT), np.zeros((3, shape[1], 3, 3), FLOAT)], 11)
    assert got.shape == (shape[0], 3, 3, 3)
    assert not got.any()


X, W = np.zeros((1, 4, 5, 5), FLOAT), np.zeros((6, 4, 3, 3), FLOAT)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "complains"),
    [
        ("Conv", [X, W], {"group": 2}, "do not fit 4 channels"),
        ("Conv", [X, W[:, :, 0]], {}, "equal ranks"),
        ("Conv", [X, W], {"kernel_shape": [3, 1]}, "kernel_shape"),
        ("Conv", [X, W], {"strides": [1]}, "strides has 1 entries"),
        ("Conv", [X, W], {"strides": [0, 1]}, "out of range"),
        ("Conv", [X, W], {"pads": [0, -1, 0, 0]}, "out of range"),
        ("Conv", [X, W], {"auto_pad": "SAME"}, "auto_pad 'SAME' is unknown"),
        ("Conv", [X, W], {"dilations": [4, 1]}, "extent 9 is larger than the padded input 5"),
        ("ConvTranspose", [X, W], {}, "do not fit x"),
        ("ConvTranspose", [X, W[:4]], {"pads": [9, 9, 9, 9]}, "negative output size"),
        ("ConvTranspose", [X, W[:4]], {"strides": [1]}, "do not fit 2 spatial axes"),
        ("Col2Im", [X[:, :, 0], np.array([4, 4]), np.array([2, 2])], {}, "do not fit block_shape"),
    ],
)
def test_refusals(name: str, inputs: list[Any], attributes: dict[str, Any], complains: str) -> None:
    with pytest.raises(ValueError, match=complains):
        on_engine(name, inputs, 22, **attributes)
