"""com.microsoft against ONNX Runtime; by NumPy what its CPU build has no kernel for."""

from typing import Any

import numpy as np
import pytest

from graphdoc.engine.errors import RunnerError
from tests.engine.domains import MS, agree, engine
from tests.engine.ms_data import FLOATS, RNG, f, i32, ms, q, s, weights

# ---- fused products and activations -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_matmul(dtype: Any) -> None:
    """Transposes of matrices and of batches, vectors, a factor."""
    cases: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((2, 3, 4), (2, 4, 5), {"alpha": 0.5}),
        ((2, 4, 3), (2, 5, 4), {"transA": 1, "transB": 1}),
        ((3, 2, 4), (4, 2, 5), {"transBatchA": 1, "transBatchB": 1}),
        ((4, 2, 3), (4, 2, 5), {"transBatchA": 1, "transBatchB": 1, "transA": 1}),
        ((3, 2, 6, 4), (2, 6, 4, 5), {"transBatchA": 1}),
        ((4,), (2, 4, 5), {"transA": 1}),
        ((2, 5, 4), (4,), {"transB": 1}),
    ]
    for a, b, options in cases:
        agree("FusedMatMul", f(*a, dtype=dtype), f(*b, dtype=dtype), domain=MS, **options)
    agree("TransposeMatMul", f(4, 3), f(4, 5), domain=MS, transA=1)


ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), ACTIVATIONS)
def test_fused_gemm_and_conv(name: str, parameters: list[float]) -> None:
    """The activations both take, with their parameters in two forms."""
    gemm = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
    agree("FusedGemm", f(3, 4), f(5, 4), f(5), domain=MS, activation=name, transB=1, alpha=0.5, **gemm)
    conv = {"activation_params": parameters} if parameters else {}
    x, w = f(2, 4, 6, 6), f(6, 2, 3, 3)
    agree("FusedConv", x, w, f(6), f(2, 6, 4, 4), domain=MS, activation=name, group=2, **conv)


def test_fused_conv_clip() -> None:
    """Clip takes its bounds as parameters; an unknown activation is refused."""
    agree("FusedConv", f(1, 2, 5), f(3, 2, 3), domain=MS, activation="Clip", activation_params=[-0.5, 0.4])
    with pytest.raises(RunnerError, match="unknown activation 'Cube'"):
        ms("FusedConv", f(1, 2, 5), f(3, 2, 3), activation="Cube")


def test_nhwc_conv() -> None:
    """Channels last in x, weights and result."""
    x, w = f(2, 6, 6, 4), f(6, 3, 3, 4)
    got = ms("NhwcFusedConv", x, w, f(6), activation="Relu", pads=[1, 1, 1, 1])
    b = f(6)
    want = ms("FusedConv", x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2), b, activation="Relu")
    again = ms("NhwcConv", x, w, b, activation="Relu")

    assert got.shape == (2, 6, 6, 6)
    np.testing.assert_array_equal(again, want.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_gelus(dtype: Any) -> None:
    """Exact, by tanh, by sigmoid; with bias."""
    x, b = f(3, 50, dtype=dtype), f(50, dtype=dtype)
    agree("Gelu", x, domain=MS)
    agree("BiasGelu", x, b, domain=MS)
    agree("FastGelu", x, domain=MS)
    agree("FastGelu", x, b, domain=MS)
    agree("QuickGelu", x, domain=MS)
    agree("QuickGelu", x, domain=MS, alpha=1.0)


def test_without_a_cpu_kernel() -> None:
    """Operators of CUDA builds: each is what its parts are."""
    x, b = f(2, 3, 8), f(8)
    left, right = np.split(x + b, 2, axis=-1)
    np.testing.assert_allclose(ms("BiasSplitGelu", x, b), left * ms("Gelu", right), rtol=1e-6)
    np.testing.assert_array_equal(ms("BiasAdd", x, b, x), x + b + x)
    w, c = f(8, 5), f(5)
    np.testing.assert_allclose(ms("GemmFastGelu", x, w, c), ms("FastGelu", x @ w, c), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(ms("BiasDropout", x, b, x), x + b + x)
    with pytest.raises(RunnerError, match="training mode"):
        ms("BiasDropout", x, b, None, None, np.array(True))
    fused = ms("FusedMatMulActivation", x, w, activation="Relu", alpha=2.0)
    np.testing.assert_allclose(fused, np.maximum(2 * (x @ w), 0), rtol=1e-5, atol=1e-5)


def test_bias_softmax() -> None:
    """The bias broadcasts inside, or repeats as blocks."""
    x = f(4, 3, 5).astype(np.float64)
    for bias, inner, added in (
        (f(4, 1, 5).astype(np.float64), 1, None),
        (f(2, 3, 5).astype(np.float64), 0, 2),
    ):
        powers = np.exp(x + (np.tile(bias, (added, 1, 1)) if added else bias))
        want = powers / powers.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(
            ms("BiasSoftmax", x, bias, axis=2, is_inner_broadcast=inner), want, rtol=1e-12
        )


# ---- normalisations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_skip_normalisations(dtype: Any) -> None:
    """Skips that broadcast, bias, beta, and the sum as output."""
    x, v = f(2, 3, 8, dtype=dtype), [f(8, dtype=dtype) for _ in range(3)]
    for skip in (x, x[:1], x[0]):
        agree("SkipLayerNormalization", x, skip, *v, domain=MS, outputs=4, epsilon=1e-5)
        agree("SkipSimplifiedLayerNormalization", x, skip, *v[:2], domain=MS, outputs=4, epsilon=1e-5)
    agree("SkipLayerNormalization", x[0], x[0], v[0], domain=MS)


def test_embed_layer_normalization() -> None:
    """With and without segments, mask and positions; an id outside a table is refused."""
    ids, segments = q(np.int32, 2, 4, low=0, high=4), q(np.int32, 2, 4, low=0, high=1)
    mask = i32([1, 1, 0, 0], [1, 0, 1, 1])
    tables = f(5, 8), f(6, 8), f(2, 8)
    agree("EmbedLayerNormalization", ids, segments, *tables, f(8), f(8), mask, domain=MS, outputs=3)
    places = i32([3, 2, 1, 0])
    rest = (f(8), f(8), None, places)
    agree("EmbedLayerNormalization", ids, None, *tables[:2], None, *rest, domain=MS, outputs=3)
    with pytest.raises(RunnerError, match=r"an id is outside 0 … 4"):
        ms("EmbedLayerNormalization", ids + 5, segments, *tables, f(8), f(8))


def test_group_norms() -> None:
    """Against float64, in both layouts, with SiLU and skip."""
    x, gamma, beta = f(2, 4, 4, 8), f(8), f(8)
    grouped = x.astype(np.float64).reshape(2, 16, 4, 2)
    mean, var = grouped.mean(axis=(1, 3), keepdims=True), grouped.var(axis=(1, 3), keepdims=True)
    y = ((grouped - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * gamma + beta
    want = y / (1 + np.exp(-y))

    got = ms("GroupNorm", x, gamma, beta, groups=4, activation=1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    first = ms("GroupNorm", x.transpose(0, 3, 1, 2), gamma, beta, groups=4, activation=1, channels_last=0)
    np.testing.assert_array_equal(first, got.transpose(0, 3, 1, 2))
    half = f(8)
    skipped = engine(
        "SkipGroupNorm", x, gamma, beta, f(2, 8) * 0 + half, -half, domain=MS, outputs=2, groups=4
    )
    np.testing.assert_allclose(skipped[1], x, atol=1e-6)
    with pytest.raises(RunnerError, match="8 channels do not divide into 3 groups"):
        ms("GroupNorm", x, gamma, beta, groups=3)


# ---- quantised ----------------------------------------------------------------------------------------


def z(dtype: Any, value: int) -> np.ndarray[Any, Any]:
    """A zero point as far into the dtype's range as ``value`` is into uint8's."""
    return np.asarray(value + np.iinfo(dtype).min, dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_element_wise(dtype: Any) -> None:
    """Bit by bit what ONNX Runtime gives, over the whole range."""
    a, b, zero = q(dtype, 40, 60), q(dtype, 60), z(dtype, 130)
    for scale in (0.037, 0.0981):
        left, right = (a, s(scale), z(dtype, 120)), (b, s(0.021), z(dtype, 100))
        agree("QLinearAdd", *left, *right, s(0.05), zero, domain=MS)
        agree("QLinearAdd", *right, *left, s(0.05), zero, domain=MS)
        agree("QLinearMul", *left, *right, s(0.05), zero, domain=MS)
    x = np.arange(256).astype(np.uint8).view(dtype)
    agree("QLinearSigmoid", x, s(0.05), zero, s(1 / 255), z(dtype, 0), domain=MS)
    agree("QLinearLeakyRelu", x, s(0.05), zero, s(0.04), z(dtype, 100), domain=MS, alpha=0.1)
    agree("QLinearConcat", s(0.05), zero, a, s(0.04), z(dtype, 110), a, s(0.05), zero, domain=MS, axis=1)
    agree(
        "QLinearWhere",
        a > 20,
        a,
        s(0.04),
        z(dtype, 110),
        b,
        s(0.05),
        zero,
        s(0.045),
        z(dtype, 125),
        domain=MS,
    )


@pytest.mark.parametrize("opset", [11, 13])
def test_qlinear_softmax(opset: int) -> None:
    """Along one axis since opset 13, over all that follow before."""
    for axis in (-1, 1, 0):
        rest = s(0.05), z(np.uint8, 9), s(1 / 256), z(np.uint8, 0)
        options = {"constants": (1, 2, 3, 4), "axis": axis, "opset": opset}
        agree("QLinearSoftmax", q(np.uint8, 4, 5, 6), *rest, domain=MS, **options)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_pooling(dtype: Any) -> None:
    """Both layouts."""
    scales = s(0.04), z(dtype, 110), s(0.03), z(dtype, 120)
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    agree("QLinearAveragePool", q(dtype, 2, 4, 9, 9), *scales, domain=MS, **window)
    last = q(dtype, 2, 9, 9, 4)
    agree("QLinearAveragePool", last, *scales, domain=MS, channels_last=1, count_include_pad=1, **window)
    agree("QLinearGlobalAveragePool", q(dtype, 2, 40, 7, 7), *scales, domain=MS)
    agree("QLinearGlobalAveragePool", q(dtype, 2, 7, 7, 40), *scales, domain=MS, channels_last=1)
    agree("NhwcMaxPool", last, domain=MS, **window)


def test_qlinear_reduce_mean() -> None:
    """By hand: ONNX Runtime has no kernel."""
    got = ms(
        "QLinearReduceMean",
        np.uint8([[10, 20], [30, 41]]),
        s(0.5),
        z(np.uint8, 10),
        s(0.25),
        z(np.uint8, 3),
        axes=[1],
        keepdims=0,
    )

    assert (got.dtype, got.tolist()) == (np.uint8, [13, 54])


def test_qlinear_conv() -> None:
    """Channels first and last, with bias, one scale a channel."""
    rest = (s(0.04), z(np.uint8, 110))
    scale, zero, out = np.abs(f(4)) * 0.02 + 0.01, np.zeros(4, np.int8), (s(3.0), z(np.uint8, 120))
    bias = q(np.int32, 4, low=-100, high=100)
    agree(
        "QLinearConv",
        q(np.uint8, 2, 8, 9, 9),
        *rest,
        weights(4, 8, 3, 3),
        scale,
        zero,
        *out,
        bias,
        domain=MS,
        constants=(3, 4, 5),
    )
    agree(
        "QLinearConv", q(np.uint8, 2, 9, 9, 8), *rest, weights(4, 8, 3, 3), scale, zero, *out, domain=MS,
        constants=(3, 4, 5), channels_last=1, pads=[1, 1, 1, 1],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_linear_quantisation(dtype: Any) -> None:
    """QuantizeLinear and DequantizeLinear, per tensor and per axis."""
    scales, zeros = np.abs(f(4)) + 0.1, q(dtype, 4)
    for x, scale, zero in ((f(3, 4), s(0.02), z(dtype, 110)), (f(3, 4), scales, zeros)):
        agree("QuantizeLinear", x, scale, zero, domain=MS, axis=1)
        agree("DequantizeLinear", q(dtype, 3, 4), scale, zero, domain=MS, axis=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_integer_products(dtype: Any) -> None:
    """8-bit products, to float and to 8 bits; scales per tensor and per column."""
    a, scale = q(dtype, 3, 40), np.abs(f(6)) * 0.01 + 0.01
    zeros = np.zeros(6, np.int8)
    first = (a, s(0.02), z(dtype, 110), weights(6, 40))
    bias = q(np.int32, 6, low=-1000, high=1000)
    agree("QGemm", *first, s(0.03), np.int8(3), bias, s(0.3), z(dtype, 100), domain=MS, transB=1, alpha=0.7)
    agree("QGemm", *first, scale, zeros, None, s(0.3), z(dtype, 100), domain=MS, transB=1)
    agree("QGemm", *first, scale, zeros, bias, domain=MS, transB=1)
    agree(
        "MatMulIntegerToFloat",
        a,
        weights(40, 6),
        s(0.02),
        s(0.03),
        z(dtype, 110),
        np.int8(3),
        f(6),
        domain=MS,
    )


def test_dynamic_products() -> None:
    """The activations are quantised by their range; all zero is a range too."""
    scale = np.abs(f(6)) * 0.01 + 0.01
    agree("DynamicQuantizeMatMul", f(3, 40), weights(40, 6), s(0.03), np.int8(3), f(6), domain=MS)
    agree("DynamicQuantizeMatMul", f(2, 3, 40), q(np.uint8, 40, 6), scale, q(np.uint8, 6), domain=MS)
    agree("DynamicQuantizeMatMul", f(3, 40) * 0, weights(40, 6), s(0.03), domain=MS)


def test_integer_helpers() -> None:
    """16-bit products, and what ONNX Runtime has no CPU kernel for."""
    agree("MatMulInteger16", q(np.int16, 3, 4), q(np.int16, 4, 5), domain=MS)
    got = ms("MulInteger", q(np.uint8, 2, 3, low=200), np.uint8(3), np.uint8([250, 1, 0]), np.uint8(5))
    assert got.dtype == np.int32
    assert (got[:, 2] < 0).all()
    summed = ms("ReduceSumInteger", np.full((2, 300), 255, np.uint8), axes=[1], keepdims=0)
    assert (summed.dtype, summed.tolist()) == (np.uint32, [76500, 76500])


LSTM_CASES: list[dict[str, Any]] = [
    {},
    {"batch": 3},
    {"direction": "reverse"},
    {"direction": "bidirectional", "batch": 3, "lengths": [5, 2, 3]},
    {"batch": 3, "lengths": [1, 4, 0]},
    {"columns": True},
    {"peepholes": True, "batch": 2},
    {"input_forget": 1},
    {"clip": 0.5},
]


@pytest.mark.parametrize("case", LSTM_CASES, ids=str)
def test_dynamic_quantize_lstm(case: dict[str, Any]) -> None:
    """Directions, lengths, peepholes, scales per column, clip."""
    options = dict(case)
    batch, lengths = options.pop("batch", 1), options.pop("lengths", None)
    columns, peepholes = options.pop("columns", False), options.pop("peepholes", False)
    d, size, hidden = (2 if case.get("direction") == "bidirectional" else 1), 6, 8
    of_scale = (d, 4 * hidden) if columns else (d,)
    scale = RNG.uniform(0.001, 0.005, of_scale).astype(np.float32)
    zero = np.zeros(of_scale, np.int8)
    inputs = [
        f(5, batch, size), weights(d, size, 4 * hidden), weights(d, hidden, 4 * hidden), f(d, 8 * hidden),
        i32(*lengths) if lengths else None, f(d, batch, hidden), f(d, batch, hidden),
        f(d, 3 * hidden) if peepholes else None, scale, zero, scale, zero,
    ]  # fmt: skip
    options |= {"domain": MS, "outputs": 3, "constants": (1, 2, 8, 9, 10, 11), "hidden_size": hidden}
    agree("DynamicQuantizeLSTM", *inputs, **options)


def test_dynamic_quantize_lstm_refuses_weights_of_another_shape() -> None:
    """LSTM's own layout is the transposed one."""
    one = s(1.0).reshape(1)
    bad = [
        f(2, 1, 3),
        weights(1, 32, 3),
        weights(1, 32, 8),
        None,
        None,
        None,
        None,
        None,
        one,
        q(np.int8, 1),
        one,
        q(np.int8, 1),
    ]
    with pytest.raises(RunnerError, match="do not fit direction 'forward'"):
        ms("DynamicQuantizeLSTM", *bad, hidden_size=8)
