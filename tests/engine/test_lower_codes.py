"""Lowerings of quantised operators, and of those that ONNX Runtime's optimiser writes."""

from typing import Any

import numpy as np
import pytest

from tests.engine.lowered import ODD, check, noise, whole_numbers

# ---- codes --------------------------------------------------------------------------------------------

S, Z = np.float32(0.05), np.uint8(120)


@pytest.mark.parametrize("code", [np.uint8, np.int8, np.uint16, np.int16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda d: np.dtype(d).name)
def test_codes_of_floats_and_back(code: Any, dtype: Any) -> None:
    """Per tensor, axis and block; out of range, NaN and infinities saturate."""
    with np.errstate(over="ignore"):
        x = np.concatenate([noise(50, scale=20), ODD]).reshape(5, 12).astype(dtype)
    scale, zero = np.abs(noise(12, seed=1, dtype=dtype)) + dtype(0.1), whole_numbers(12, dtype=code, high=90)
    check("QuantizeLinear", x, dtype(0.05), code(3))
    check("QuantizeLinear", x, scale, zero, axis=1)
    codes = whole_numbers(5, 12, dtype=code, high=120)
    check("DequantizeLinear", codes, dtype(0.05), code(3))
    check("DequantizeLinear", codes, scale, zero, axis=1)
    blocks = np.abs(noise(5, 3, seed=2, dtype=dtype)) + dtype(0.1)
    check("QuantizeLinear", x, blocks, np.zeros((5, 3), code), const=[1, 2], axis=1, block_size=4)
    check("DequantizeLinear", codes, blocks, axis=1, block_size=4)


def test_codes_by_their_own_range() -> None:
    check("DynamicQuantizeLinear", noise(4, 5), outputs=3)
    check("DynamicQuantizeLinear", np.zeros((2, 2), np.float32), outputs=3)
    check("DynamicQuantizeLinear", np.float32([3, 4]), outputs=3)


@pytest.mark.parametrize("const", [(), (1, 3), (1, 2, 3)], ids=str)
def test_products_of_codes(const: tuple[int, ...]) -> None:
    """Exact, whatever the zero points, constant or not."""
    a, b = (
        whole_numbers(2, 5, 9, dtype=np.uint8, high=256),
        whole_numbers(9, 4, dtype=np.uint8, high=256, seed=1),
    )
    check("MatMulInteger", a, b, np.uint8(130), np.uint8(7), const=const)
    check("MatMulInteger", a, b, np.uint8(130), whole_numbers(4, dtype=np.uint8, high=256), const=const)
    check("MatMulInteger", a, b.astype(np.int8), np.uint8(3), np.int8(0), const=const)
    check("MatMulInteger", a, np.stack([b, b]), np.uint8(1), np.uint8(2), const=const)
    check("MatMulInteger", a[0], b)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_convolutions_of_codes(group: int) -> None:
    """Padding counts as the zero point of x."""
    x = whole_numbers(1, 4, 6, 5, dtype=np.uint8, high=256)
    signed = whole_numbers(4, 4 // group, 3, 3, seed=1, dtype=np.int8, low=-128, high=128)
    pads = {"pads": [1, 1, 0, 1], "group": group, "strides": [2, 1]}
    check("ConvInteger", x, signed, Z, const=[1, 2], **pads)
    check("ConvInteger", x, signed, Z, const=[1], **pads)
    unsigned = signed.view(np.uint8)
    if group != 2:
        check("ConvInteger", x, unsigned, Z, np.uint8(90), const=[1, 2, 3], **pads)
    check("ConvInteger", x, signed, const=[1], **pads)
    scales = np.abs(noise(4, seed=2)) * 0.01 + np.float32(0.001)
    bias = whole_numbers(4, dtype=np.int32, low=-999, high=999)
    rest = (S, Z, signed, scales, np.zeros(4, np.int8), np.float32(0.3), np.uint8(100), bias)
    check("QLinearConv", x, *rest, const=range(1, 9), **pads)


def test_groups_of_weights_with_wide_zero_points_stay_on_level_0() -> None:
    weights = np.full((4, 2, 1, 1), 250, np.uint8)

    check(
        "ConvInteger",
        np.full((1, 4, 2, 2), 3, np.uint8),
        weights,
        np.uint8(1),
        np.uint8(5),
        const=[1, 2, 3],
        group=2,
        host=True,
    )


def test_products_of_codes_quantised() -> None:
    a, b = whole_numbers(3, 9, dtype=np.uint8, high=256), whole_numbers(9, 4, dtype=np.int8, seed=1, low=-128)
    columns = np.abs(noise(4, seed=2)) + np.float32(0.01)
    check("QLinearMatMul", a, S, Z, b, np.float32(0.2), np.int8(3), np.float32(2), np.uint8(110))
    check(
        "QLinearMatMul",
        a,
        S,
        Z,
        b,
        columns,
        np.zeros(4, np.int8),
        np.float32(2),
        np.uint8(110),
        const=[3, 4, 5],
    )


MS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    (
        "QLinearAdd",
        (np.uint8([[9, 250]]), S, Z, np.uint8([[3], [77]]), np.float32(0.1), Z, np.float32(0.1), Z),
        {},
    ),
    (
        "QLinearMul",
        (np.int8([[9, -50]]), S, None, np.int8([[3], [77]]), np.float32(0.1), None, np.float32(0.1)),
        {},
    ),
    ("QLinearSigmoid", (np.uint8([0, 100, 255]), S, Z, np.float32(1 / 256), np.uint8(0)), {}),
    ("QLinearLeakyRelu", (np.uint8([0, 100, 255]), S, Z, S, np.uint8(100)), {"alpha": 0.3}),
    ("QLinearGlobalAveragePool", (whole_numbers(1, 3, 4, 4, dtype=np.uint8), S, Z, S, Z), {}),
    (
        "QGemm",
        (whole_numbers(3, 5, dtype=np.uint8), S, Z, whole_numbers(5, 2, dtype=np.int8), S, np.int8(0)),
        {},
    ),
    (
        "MatMulIntegerToFloat",
        (whole_numbers(3, 5, dtype=np.uint8), whole_numbers(5, 2, dtype=np.uint8), S, S, Z, Z),
        {},
    ),
    ("DynamicQuantizeMatMul", (noise(3, 5), whole_numbers(5, 2, dtype=np.uint8), S, Z, noise(2)), {}),
    ("FusedMatMul", (noise(2, 4, 3), noise(2, 5, 3)), {"transB": 1, "alpha": 0.5}),
    ("FusedMatMul", (noise(4, 2, 3), noise(2, 3, 5)), {"transBatchA": 1}),
    ("FusedGemm", (noise(3, 4), noise(4, 2), noise(2)), {"activation": "LeakyRelu", "activation_alpha": 0.2}),
    ("GemmFastGelu", (noise(2, 3, 4), noise(4, 5), noise(5)), {}),
    ("Gelu", (noise(3, 4),), {}),
    ("BiasGelu", (noise(3, 4), noise(4, seed=1)), {}),
    ("FastGelu", (noise(3, 4, dtype=np.float16), noise(4, seed=1, dtype=np.float16)), {}),
    ("QuickGelu", (noise(3, 4),), {}),
    ("BiasAdd", (noise(2, 3, 4), noise(4), noise(2, 3, 4, seed=1)), {}),
    ("BiasSoftmax", (noise(2, 3, 4), noise(2, 1, 4, seed=1)), {"axis": 2, "is_inner_broadcast": 1}),
    ("SkipLayerNormalization", (noise(2, 3, 4), noise(2, 3, 4, seed=1), noise(4), noise(4)), {"outputs": 4}),
    ("SkipSimplifiedLayerNormalization", (noise(2, 3, 4), noise(2, 3, 4, seed=1), noise(4)), {"outputs": 4}),
    (
        "FusedConv",
        (noise(1, 3, 5, 5), noise(4, 3, 3, 3), noise(4), noise(1, 4, 3, 3)),
        {"activation": "Relu"},
    ),
    ("NhwcFusedConv", (noise(1, 5, 5, 3), noise(4, 3, 3, 3), noise(4)), {"activation": "Tanh"}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), MS, ids=lambda value: str(value)[:24])
def test_operators_of_onnx_runtime(op: str, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    check(op, *inputs, domain="com.microsoft", opset=1, units=64, **attributes)
