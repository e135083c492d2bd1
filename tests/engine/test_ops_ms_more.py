"""Rarer operators of com.microsoft, and what ONNX gave up, against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest

from graphdoc.engine.errors import RunnerError
from tests.engine import single
from tests.engine.domains import MS, agree, engine
from tests.engine.ms_data import FLOATS, f, i32, q, s


def test_unfold_tensor() -> None:
    """Any axis, steps, from both ends."""
    x = f(3, 7, 5)
    for options in (
        {"size": 3},
        {"size": 2, "dim": 1, "step": 2},
        {"size": 7, "dim": -2},
        {"size": 1, "dim": 0},
    ):
        agree("UnfoldTensor", x, domain=MS, **options)
    with pytest.raises(RunnerError, match="slices of 6 at steps of 1 do not fit an axis of 5"):
        engine("UnfoldTensor", x, domain=MS, size=6)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crop_and_resize(mode: str) -> None:
    """Boxes inside, upside down and partly outside, no sample halfway; single ones lie in the middle."""
    x = f(2, 3, 6, 5)
    boxes = np.float32([[0, 0, 1, 1], [0.11, 0.2, 0.73, 0.92], [0.9, 0.8, 0.2, 0.1], [-0.5, 0.3, 0.5, 1.4]])
    images = i32(0, 1, 1, 0)
    for size in (i32(4, 3), i32(1, 1), i32(6, 5), i32(1, 7)):
        agree("CropAndResize", x, boxes, images, size, domain=MS, mode=mode, extrapolation_value=0.25)
    with pytest.raises(RunnerError, match="mode 'cubic' is unknown"):
        engine("CropAndResize", x, boxes, images, i32(2, 2), domain=MS, mode="cubic")


@pytest.mark.parametrize("dtype", FLOATS)
def test_gates(dtype: Any) -> None:
    """SiLU of a scaled value, a gated normalisation, a gated sum."""
    x, y, gate = f(2, 3, 8, dtype=dtype), f(2, 3, 8, dtype=dtype), f(2, 3, 1, dtype=dtype)
    agree("ScaledSiLU", x, domain=MS, alpha=1.7)
    agree("GatedAdd", x, y, gate, domain=MS)
    for activation in ("silu", "swish", "sigmoid"):
        agree("GatedRMSNorm", x, f(4, dtype=dtype), y, domain=MS, activation=activation, epsilon=1e-3)
    with pytest.raises(RunnerError, match="activation 'relu' is unknown"):
        engine("GatedRMSNorm", x, f(4, dtype=dtype), y, domain=MS, activation="relu")
    with pytest.raises(RunnerError, match="GatedAdd with gate_weight"):
        engine("GatedAdd", x, y, gate, f(1, 1, dtype=dtype), domain=MS)


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_conv_with_state(activation: str) -> None:
    """From the start and from a state."""
    x, w, b, past = f(2, 4, 6), f(4, 1, 3), f(4), f(2, 4, 2)
    common: dict[str, Any] = {"domain": MS, "outputs": 2, "activation": activation}
    agree("CausalConvWithState", x, w, **common)
    agree("CausalConvWithState", x, w, b, past, **common)
    with pytest.raises(RunnerError, match="in one dimension"):
        engine("CausalConvWithState", x, w, dilation=2, **common)


def test_complex_products() -> None:
    """No CPU build has them: against NumPy's complex numbers."""
    a, b = f(2, 3, 2), f(3, 2)
    left, right = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    for name, want in (("ComplexMul", left * right), ("ComplexMulConj", left * right.conj())):
        got = engine(name, a, b, domain=MS)[0]
        np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(1, 1), (4, 6), (6, 4), (1, 5, 5), (3, 1)])
def test_dynamic_time_warping(shape: tuple[int, ...]) -> None:
    """Unequal lengths, a leading axis, and ties in whole-numbered costs."""
    agree("DynamicTimeWarping", np.abs(f(*shape)), domain=MS)
    agree("DynamicTimeWarping", q(np.int8, *shape, low=0, high=2).astype(np.float32), domain=MS)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("with_segments", [True, False])
def test_q_embed_layer_normalization(dtype: Any, with_segments: bool) -> None:
    """8-bit tables, with and without segments and mask."""
    ids, mask = i32([1, 2, 0], [3, 3, 4]), i32([1, 1, 0], [1, 1, 1])
    tables = [q(dtype, 5, 8), q(dtype, 3, 8), q(dtype, 2, 8), q(dtype, 8), q(dtype, 8)]
    scales = [s(x) for x in (0.02, 0.01, 0.03, 0.05, 0.01)]
    zeros = [np.asarray(z, dtype) for z in (3, 0, 7, 1, 2)]
    segments = i32([0, 1, 1], [0, 0, 1])
    if not with_segments:
        segments, tables[2], scales[2], zeros[2] = None, None, None, None  # type: ignore[assignment,call-overload]
    for given in (mask, None):
        inputs = (ids, segments, *tables, given, *scales, *zeros)
        agree("QEmbedLayerNormalization", *inputs, domain=MS, outputs=2, epsilon=1e-6, tolerance=1e-5)


def test_operators_that_onnx_gave_up() -> None:
    """Version 1 operators of the default domain that no schema describes any more."""
    x, image = f(2, 5), f(2, 3, 6, 7)
    old: dict[str, Any] = {"opset": 7, "rtol": 1e-6}
    single.agree("Affine", x, alpha=0.5, beta=0.25, **old)
    single.agree("Scale", x, scale=0.3, **old)
    single.agree("ScaledTanh", x, alpha=1.5, beta=0.5, **old)
    single.agree("ParametricSoftplus", x, alpha=1.5, beta=0.5, **old)
    single.agree("ImageScaler", image, scale=0.5, bias=[0.1, 0.2, 0.3], **old)
    single.agree("Crop", image, border=[1, 2, 1, 1], **old)
    single.agree("Crop", image, border=[1, 2, 0, 0], scale=[3, 4], **old)
    single.agree("DynamicSlice", image, np.array([1, -4]), np.array([3, 100]), np.array([1, 3]), **old)
    single.agree("DynamicSlice", x, np.array([0, 1]), np.array([2, 4]), **old)
    assert single.run("ParametricSoftplus", np.float32([1000]), alpha=1.0, beta=1.0, opset=7).tolist() == [
        1000
    ]
    with pytest.raises(RunnerError, match="2 biases for 3 channels"):
        single.run("ImageScaler", image, bias=[0.1, 0.2], opset=7)
    with pytest.raises(RunnerError, match=r"border \[4, 4, 4, 4\]"):
        single.run("Crop", image, border=[4, 4, 4, 4], opset=7)
