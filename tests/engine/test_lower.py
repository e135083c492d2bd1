"""Lowerings: every operator that has one means what level 0 computes, in every dtype, without a host node."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto

from graphdoc.engine import lower
from graphdoc.engine.expr import DTYPES
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.lower import NotLowered, Site, constant, content, find_lowering, lowering, memory_order
from graphdoc.engine.ops.table import find
from graphdoc.engine.program import Buffer, Program, View, whole
from tests.engine.lowered import ODD, check, ints, noise, segments, specs, whole_numbers

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


# ---- element by element -------------------------------------------------------------------------------

UNARY: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("Abs", "Neg", "Sign", "Sqrt", "Exp", "Log", "Ceil", "Floor", "Round")),
    *((name, {}) for name in ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Erf")),
    *((name, {}) for name in ("Reciprocal", "IsNaN", "IsInf", "Relu", "Sigmoid", "HardSwish", "Softplus")),
    *((name, {}) for name in ("Softsign", "Mish", "Identity", "Selu", "Elu", "Celu", "LeakyRelu")),
    ("IsInf", {"detect_negative": 0}),
    ("IsInf", {"detect_positive": 0}),
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("HardSigmoid", {"alpha": 0.3}),
    ("LeakyRelu", {"alpha": 1.5}),
    ("Elu", {"alpha": 0.7}),
    ("Selu", {"alpha": 1.2, "gamma": 1.1}),
    ("Celu", {"alpha": 0.7}),
    ("ThresholdedRelu", {"alpha": 0.5}),
    ("Shrink", {"bias": 0.25, "lambd": 0.75}),
    ("Swish", {"alpha": 1.5}),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("op", "attributes"), UNARY, ids=str)
def test_functions_of_one_float(op: str, attributes: dict[str, Any], dtype: Any) -> None:
    """Also of NaN, both infinities, both zeros and numbers below the normal ones."""
    with np.errstate(all="ignore"):
        x = np.concatenate([noise(3, 7).ravel(), ODD]).astype(dtype)

    check(op, x, opset=24, **attributes)


@pytest.mark.parametrize("op", ["Relu", "Sqrt", "Softsign"])
def test_zeros_keep_their_signs(op: str) -> None:
    """−0 comes out as on level 0."""
    compiled = check(op, np.array([-0.0, 0.0], np.float32))

    assert specs(compiled)[0] == "Map"


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Equal", "GreaterOrEqual"])
def test_functions_of_two_numbers(op: str, dtype: Any) -> None:
    """With broadcasting; integers wrap, division by zero gives level 0's answer."""
    a, b = (whole_numbers(*s, seed=k, dtype=dtype, high=9) for k, s in enumerate([(2, 3, 4), (3, 1)]))

    check(op, a, b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod"])
def test_functions_of_two_integers(op: str, dtype: Any) -> None:
    check(op, whole_numbers(4, 5, dtype=dtype), whole_numbers(4, 5, seed=1, dtype=dtype, low=1))


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_of_floats(fmod: int) -> None:
    a, b = noise(5, 4, scale=5), noise(5, 4, seed=1)

    check("Mod", a, b, fmod=1)
    check("Mod", whole_numbers(9, dtype=np.int32, low=-9), np.int32([-3] * 9), fmod=fmod)


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_functions_of_bools(op: str) -> None:
    check(op, whole_numbers(3, 4, high=2).astype(bool), whole_numbers(4, high=2, seed=1).astype(bool))


def test_more_of_few_inputs() -> None:
    """Sums, means, selections, bounds, powers, bits."""
    x, y, z = (noise(3, 4, seed=k) for k in range(3))
    check("Sum", x, y, z)
    check("Mean", x.astype(np.float16), y.astype(np.float16), z.astype(np.float16))
    check("Max", x, y, z)
    check("Where", x > 0, x, np.float32(2))
    check("Not", x > 0)
    check("BitwiseNot", whole_numbers(4, dtype=np.int32))
    check("BitShift", np.uint8([1, 2, 200]), np.uint8([1, 9, 3]), direction="LEFT")
    check("BitShift", np.uint64([1, 2, 200]), np.uint64([1, 64, 3]), direction="RIGHT")
    check("PRelu", x, noise(4, seed=5))
    check("Clip", x, np.float32(-0.5), np.float32(0.5))
    check("Clip", ODD.astype(np.float32), None, np.float32(1))
    check("Clip", x, opset=6, min=-0.25)
    check("Clip", whole_numbers(9, dtype=np.int32), np.int32(10))
    check("Pow", x, np.float32([2]), const=[1])
    check("Pow", x, np.int64([3]), const=[1])
    check("Pow", np.abs(x), y)
    check("Pow", np.abs(x), whole_numbers(4, high=4))
    check("Swish", x, opset=24)
    check("Dropout", x)
    check("Dropout", x, outputs=2)
    check("Dropout", x, opset=7, outputs=2)


@pytest.mark.parametrize("source", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("target", DTYPES, ids=lambda d: d.name)
def test_casts(source: Any, target: Any) -> None:
    """Of every dtype into every other; bfloat16 of what float32 cannot hold is left to level 0."""
    x = np.array([0, 1, 2, 3, 100, 17]).astype(source)
    twice = target == ml_dtypes.bfloat16 and source in (np.float64, np.int32, np.int64, np.uint32, np.uint64)
    to = int(ir.DataType.from_numpy(np.dtype(target)))

    check("Cast", x, to=to, host=twice)


def test_refusals_go_to_level_0() -> None:
    """Integer powers, Cast to float8, signed shifts, training."""
    check("Pow", np.int32([2, 3]), np.int32([5, 5]), host=True)
    check("Cast", noise(3), to=TensorProto.FLOAT8E4M3FN, host=True)
    check("Pad", noise(3), ints(-1, 0), const=[1], host=True)
    check("MaxPool", noise(1, 1, 4, 4), kernel_shape=[2, 2], outputs=2, host=True)
    check("Reshape", noise(4), ints(2, 2), host=True)
    x = noise(2, 3, 4)
    check(
        "BatchNormalization",
        x,
        *(noise(3, seed=k) for k in range(3)),
        np.float32([1, 2, 3]),
        training_mode=1,
        outputs=3,
        host=True,
    )


# ---- layout -------------------------------------------------------------------------------------------

X = noise(2, 3, 4, 5)
LAYOUT: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Reshape", (X, ints(6, -1)), {}),
    ("Reshape", (X, ints(0, 0, 20)), {}),
    ("Flatten", (X,), {"axis": 2}),
    ("Flatten", (X,), {"axis": -1}),
    ("Transpose", (X,), {"perm": [3, 1, 0, 2]}),
    ("Transpose", (X,), {}),
    ("Squeeze", (noise(1, 3, 1, 2), ints(0, -2)), {}),
    ("Squeeze", (noise(1, 3, 1, 2),), {}),
    ("Unsqueeze", (X, ints(0, -1, 3)), {}),
    ("Expand", (noise(3, 1), ints(2, 1, 4)), {}),
    ("Slice", (X, ints(-1, 0), ints(-99, 3), ints(3, 2), ints(-2, 2)), {}),
    ("Slice", (X, ints(1), ints(2**62)), {}),
    ("Split", (X, ints(1, 2)), {"axis": 1, "outputs": 2}),
    ("Split", (X,), {"axis": 3, "num_outputs": 3, "outputs": 3}),
    ("Concat", (X, X[:, :1], X[:, :0]), {"axis": 1}),
    ("Tile", (noise(2, 3), ints(3, 2)), {}),
    ("Pad", (X, ints(0, 1, 2, 0, 1, 0, 3, 0), np.float32(2)), {}),
    ("Pad", (X, ints(1, 2, 2, 0), None, ints(-1, 2)), {"mode": "edge"}),
    ("Pad", (X, ints(1, 2, 2, 1), None, ints(3, 2)), {"mode": "reflect"}),
    ("Pad", (X, ints(1, 7, 2, 11), None, ints(3, 2)), {"mode": "wrap"}),
    ("Trilu", (X,), {"upper": 0}),
    ("Trilu", (X, np.int64(-1)), {}),
    ("DepthToSpace", (noise(1, 8, 2, 3),), {"blocksize": 2}),
    ("DepthToSpace", (noise(1, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", (noise(1, 2, 4, 6),), {"blocksize": 2}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), LAYOUT, ids=lambda value: str(value)[:20])
def test_layout(op: str, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    const = [k for k, x in enumerate(inputs) if k and x is not None and op != "Concat"]

    check(op, *inputs, const=const, **attributes)


@pytest.mark.parametrize("op", ["Transpose", "Flatten", "Squeeze"])
def test_views_cost_one_copy(op: str) -> None:
    """Only the copy that gives the caller an array of its own."""
    assert specs(check(op, noise(1, 3, 1, 5))) == ["Map"]


# ---- rows ---------------------------------------------------------------------------------------------

REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(kind: str, dtype: Any) -> None:
    x = np.abs(noise(3, 4, 5, dtype=dtype))

    check(f"Reduce{kind}", x, ints(1, -3), const=[1], units=64)
    check(f"Reduce{kind}", x, keepdims=0, units=64)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.bool_], ids=lambda d: np.dtype(d).name)
def test_extremes_of_integers(dtype: Any) -> None:
    x = whole_numbers(4, 6, dtype=dtype, high=2 if dtype is np.bool_ else 100)

    check("ReduceMax", x, ints(0), const=[1], opset=20)
    check("ReduceMin", x, ints(1), const=[1], keepdims=0, opset=20)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_places_of_extremes(op: str, last: int) -> None:
    """Of equal elements the first or the last; NaN counts as an extreme."""
    x = np.float32([[1, 3, 3, 0], [2, np.nan, 5, np.nan], [0, 0, 0, 0]])

    check(op, x, axis=1, select_last_index=last)
    check(op, whole_numbers(5, 4, dtype=np.int32, high=3), axis=0, keepdims=0, select_last_index=last)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(op: str, dtype: Any) -> None:
    x = noise(2, 3, 7, dtype=dtype, scale=3)

    check(op, x, axis=1)
    check(op, x, opset=11, axis=1)
    check(op, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_normalisations(dtype: Any) -> None:
    x, scale, bias = (
        noise(2, 6, 4, 3, dtype=dtype),
        noise(3, seed=1, dtype=dtype),
        noise(3, seed=2, dtype=dtype),
    )
    wide, shift = noise(6, seed=3, dtype=dtype), noise(6, seed=4, dtype=dtype)
    check("LayerNormalization", x, scale, bias, outputs=3, units=64)
    check("LayerNormalization", x, noise(4, 3, dtype=dtype), axis=-2, epsilon=0.1, units=64)
    check("RMSNormalization", x, scale, opset=23, units=64)
    check("InstanceNormalization", x, wide, shift, units=64)
    check("GroupNormalization", x, wide, shift, num_groups=3, units=64)
    check("MeanVarianceNormalization", x, units=64)
    check("LpNormalization", x, axis=1, p=2, units=64)
    check("LpNormalization", np.zeros_like(x), axis=1, p=1)
    check("BatchNormalization", x, wide, shift, noise(6, seed=5, dtype=dtype), np.abs(wide), units=64)
    check("LRN", x, size=3, alpha=0.1, units=64)


def test_hardmax_and_running_sums() -> None:
    x = noise(3, 5)
    check("Hardmax", np.float32([[1, 2, 2], [3, 3, 1]]))
    for exclusive in (0, 1):
        for reverse in (0, 1):
            check("CumSum", x, np.int64(1), const=[1], exclusive=exclusive, reverse=reverse)
    check("CumSum", whole_numbers(4, 5, dtype=np.int32), np.int32(-2), const=[1])
    check("CumSum", noise(2, 100), np.int64(1), const=[1], host=True)


# ---- pools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 2]},
        {"kernel_shape": [2, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]},
        {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {
            "kernel_shape": [2, 2],
            "dilations": [2, 1],
            "ceil_mode": 1,
            "strides": [2, 2],
            "pads": [1, 1, 0, 0],
        },
    ],
    ids=str,
)
def test_pools(attributes: dict[str, Any]) -> None:
    """Of every dtype; padding never wins a maximum and never counts in a mean."""
    x = noise(2, 3, 7, 8)
    check("MaxPool", x - 5, opset=22, **attributes)
    check("MaxPool", whole_numbers(1, 2, 6, 6, dtype=np.int8, low=-9), opset=22, **attributes)
    check("AveragePool", x, opset=22, **attributes)
    check("AveragePool", x.astype(np.float16), opset=22, count_include_pad=1, **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
        {"kernel_shape": [4, 6], "pads": [3, 1, 0, 4], "strides": [1, 2]},
        {"kernel_shape": [5, 4], "dilations": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [7, 7], "pads": [3, 3, 3, 3], "ceil_mode": 1, "strides": [2, 1]},
    ],
    ids=str,
)
def test_large_windows_axis_by_axis(attributes: dict[str, Any]) -> None:
    """The largest of each line of a window, then of those: NaN wins, padding never, minus infinity stays."""
    x = noise(2, 3, 11, 12)
    x[0, 0, 3, 4], x[0, 1], x[1, 2, 5, 6] = np.nan, -np.inf, np.inf
    check("MaxPool", x, opset=22, **attributes)
    check(
        "MaxPool", whole_numbers(1, 2, 11, 12, dtype=np.int8, low=-9) - np.int8(100), opset=22, **attributes
    )


def test_large_windows_of_three_axes() -> None:
    check("MaxPool", noise(1, 2, 6, 7, 8), kernel_shape=[3, 3, 3], pads=[1] * 6)


def test_pools_over_all() -> None:
    x = noise(2, 3, 4, 5)
    check("GlobalAveragePool", x)
    check("GlobalMaxPool", x)
    check("GlobalAveragePool", noise(2, 3, 9, dtype=np.float16))


# ---- products -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
    ],
    ids=str,
)
def test_matrix_products(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: Any) -> None:
    a, b = (noise(*shape, seed=k, dtype=dtype) for k, shape in enumerate(shapes))

    assert "Contraction" in specs(check("MatMul", a, b, units=64))


def test_gemm() -> None:
    a, b = noise(4, 3), noise(5, 4, seed=1)
    check("Gemm", a, b, noise(5, seed=2), transA=1, transB=1, alpha=0.5, beta=2.0, units=64)
    check("Gemm", a.T, b.T, noise(3, 1, seed=2), units=64)
    check("Gemm", a, b, transA=1, transB=1, units=64)
    check("Gemm", a.astype(np.float16), b.astype(np.float16), np.float16(1), transA=1, transB=1, units=64)


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8, 7), (4, 3, 3, 2), {}),
    ((1, 4, 6, 6), (6, 2, 3, 3), {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((1, 4, 9, 9), (4, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 9, 9), (6, 1, 3, 3), {"group": 3, "dilations": [2, 1]}),
    ((2, 3, 11), (5, 3, 4), {"pads": [2, 1], "dilations": [2]}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"strides": [1, 2, 1], "pads": [0, 1, 0, 1, 0, 1]}),
    ((1, 3, 5, 5), (4, 3, 1, 1), {}),
    ((2, 3, 4, 5), (4, 3, 3, 3), {"dilations": [12, 4], "pads": [12, 4, 12, 4]}),
    ((1, 4, 3, 3), (4, 1, 3, 5), {"group": 4, "dilations": [3, 2], "pads": [3, 7, 4, 3], "strides": [1, 2]}),
    ((1, 2, 8), (3, 2, 2), {"dilations": [10], "pads": [5, 0]}),
    ((1, 2, 3), (3, 2, 4), {"dilations": [5], "pads": [20, 30], "strides": [7]}),
    ((1, 2, 2), (3, 2, 1), {"pads": [3, 3], "strides": [4]}),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("x", "w", "attributes"), CONVS, ids=str)
def test_convolutions(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], dtype: Any) -> None:
    """Of one, two and three spatial axes, in groups, depthwise."""
    data, weights = noise(*x, dtype=dtype), noise(*w, seed=1, dtype=dtype)

    check("Conv", data, weights, noise(w[0], seed=2, dtype=dtype), const=[1, 2], units=64, **attributes)
    check("Conv", data, weights, units=64, **attributes)


def test_taps_that_only_meet_padding_are_left_out() -> None:
    """Of a kernel dilated by more than the image is wide one column stays; 0 · ∞ keeps them all."""
    x, w = noise(1, 3, 9, 4), noise(4, 3, 3, 3, seed=1)
    wide = {"dilations": [4, 6], "pads": [4, 6, 4, 6]}
    terms = [s.inputs[0].shape[3:5] for s in steps_of(check("Conv", x, w, const=[1], units=64, **wide))]
    assert terms == [(3, 1)]
    w[0, 0, 0, 0] = np.inf
    terms = [s.inputs[0].shape[3:5] for s in steps_of(check("Conv", x, w, const=[1], units=64, **wide))]
    assert terms == [(3, 3)]


def steps_of(compiled: Any) -> list[Any]:
    """Return the contractions of the first program."""
    return [s for s in segments(compiled)[0].program.steps if isinstance(s.spec, Contraction)]


def test_a_convolution_is_one_contraction_over_windows() -> None:
    """Without padding nothing but the layout of the input is copied."""
    compiled = check("Conv", noise(1, 3, 8, 8), noise(4, 3, 3, 3, seed=1), const=[1], units=64)
    steps = segments(compiled)[0].program.steps

    assert specs(compiled) == ["Map", "Contraction", "Map"]
    assert isinstance(steps[1].spec, Contraction)
    assert steps[1].inputs[0].shape == (1, 6, 6, 3, 3, 3)
    assert steps[1].inputs[0].buffer.size == 3 * 8 * 8


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 4, 5), (3, 2, 3, 3), {}),
    ((2, 4, 4, 5), (4, 3, 3, 2), {"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 1]}),
    ((1, 2, 5), (2, 1, 4), {"strides": [3], "output_padding": [2], "dilations": [2]}),
    ((1, 2, 4, 4), (2, 3, 1, 2), {"strides": [3, 2]}),
    ((1, 2, 3, 3), (2, 2, 4, 4), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": [2, 2], "output_shape": [7, 8]}),
    ((1, 4, 3, 3), (4, 1, 2, 2), {"group": 4, "strides": [4, 3]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED, ids=str)
def test_transposed_convolutions(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    """Phases without a tap hold the bias alone."""
    data, weights = noise(*x), noise(*w, seed=1)
    features = w[1] * attributes.get("group", 1)

    check("ConvTranspose", data, weights, noise(features, seed=2), const=[1, 2], units=64, **attributes)
    check("ConvTranspose", data, weights, const=[1], units=64, **attributes)


def test_weights_that_are_not_finite_stay_on_level_0() -> None:
    """Around the image level 0 has no product, while zero times infinity would be none at all."""
    weights = np.full((1, 1, 3, 3), np.inf, np.float32)

    check("ConvTranspose", noise(1, 1, 3, 3), weights, const=[1], host=True)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("i,i->", [(5,), (5,)]),
        ("ij,ij->ij", [(3, 4), (3, 4)]),
        ("ij,k->kij", [(3, 4), (2,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("iij->j", [(3, 3, 4)]),
        ("ijk->ki", [(2, 3, 4)]),
        ("abi,bcdi->acd", [(2, 3, 4), (3, 5, 2, 4)]),
        ("ij,kl->k", [(2, 3), (4, 5)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    check("Einsum", *(noise(*s, seed=k) for k, s in enumerate(shapes)), equation=equation, units=64)


# ---- indices ------------------------------------------------------------------------------------------


def test_lookups() -> None:
    data = noise(5, 4, 3)
    check("Gather", data, whole_numbers(2, 3, high=5) - 5)
    check("Gather", data, whole_numbers(2, 3, high=3), axis=-1)
    check("Gather", data, np.int64(2), const=[1], axis=1)
    check("Gather", data, ints(3, 1), const=[1])
    check("Gather", data, ints(0, 0, 2), const=[1])
    check("GatherElements", data, whole_numbers(2, 4, 3, high=5), axis=0)
    check("GatherND", data, whole_numbers(2, 2, 2, high=4))
    check("GatherND", data, whole_numbers(5, 2, 1, high=4) - 4, batch_dims=1)
    check("GatherND", data, ints(1, 2).reshape(1, 2), const=[1])
    check("OneHot", whole_numbers(3, 2, low=-7, high=7), np.int64(5), np.float32([0.5, 2]), const=[1], axis=1)
    check("OneHot", whole_numbers(3, high=4, dtype=np.int32), ints(4), np.int32([0, 1]), const=[1])


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "nearest"},
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "linear"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "cubic", "antialias": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 1.5, 0.6)], ids=str)
def test_resizing(scales: tuple[float, ...], attributes: dict[str, Any]) -> None:
    x = noise(1, 2, 4, 5)

    check("Resize", x, None, np.float32(scales), const=[2], units=64, **attributes)


def test_resizing_by_sizes_and_in_old_versions() -> None:
    x = noise(1, 2, 4, 5)
    check("Resize", x, None, None, ints(1, 2, 8, 5), const=[3])
    check("Upsample", x, np.float32([1, 1, 2, 2]), const=[1], opset=9)
    check("Resize", x, np.float32([1, 1, 2, 2]), const=[1], opset=10)
    check("Resize", x, None, np.float32([1, 1, 2, 2]), host=True)


# ---- the table ----------------------------------------------------------------------------------------


def test_every_lowering_is_of_an_operator_of_the_table() -> None:
    """No lowering has a name that level 0 does not know."""
    names = list(lower._loaded())

    assert len(names) > 150
    assert [key for key in names if find(*key, 99) is None] == []


def test_a_name_is_lowered_once() -> None:
    with pytest.raises(ValueError, match="Relu is lowered twice"):
        lowering("Relu")(lambda at, x: x)


def test_versions_before_the_first_are_not_lowered() -> None:
    assert find_lowering("", "Add", 6) is None
    assert find_lowering("ai.onnx", "Add", 7) is not None
    assert find_lowering("odd", "Add", 7) is None


# ---- views and buffers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.broadcast_to(np.float32(3), (4, 5)),
        np.broadcast_to(np.arange(3.0)[:, None], (2, 3, 4)),
        np.arange(24.0).reshape(2, 3, 4)[:, ::-2],
        np.float64(7),
        np.zeros((0, 3)),
    ],
    ids=str,
)
def test_constants_show_their_array(array: Any) -> None:
    """Whatever its strides; what is repeated or turned is not copied out."""
    view = constant(array)

    np.testing.assert_array_equal(content(view), array)
    assert view.buffer.size <= max(1, np.asarray(array).size)
    if array.size and 0 in getattr(array, "strides", (1,)):
        assert view.buffer.size < array.size


def test_memory_order_is_kept() -> None:
    """A value computed of channels-last memory lies channels last itself."""
    image = whole(Buffer("x", np.dtype(np.float32), 120), (1, 4, 5, 6)).permuted((0, 3, 1, 2))
    site = Site(Program(), "node")

    fresh = site.fresh(image.shape, np.float32, image)

    assert memory_order(image) == [0, 2, 3, 1]
    assert fresh.strides[1:] == (1, 30, 6)


def test_only_constants_are_known() -> None:
    view = whole(Buffer("x", np.dtype(np.int64), 2), (2,))

    with pytest.raises(NotLowered, match="the shape is not constant"):
        Site(Program()).known(view, "the shape")


def test_a_reshape_that_strides_cannot_say_copies() -> None:
    site = Site(Program(), "node")
    turned = whole(Buffer("x", np.dtype(np.float32), 6), (2, 3)).permuted((1, 0))

    view = site.reshape(turned, (6,))

    assert isinstance(view, View)
    assert len(site.program.steps) == 1
    with pytest.raises(ValueError, match="does not become"):
        site.reshape(turned, (5,))
