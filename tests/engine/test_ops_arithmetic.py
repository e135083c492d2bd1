"""Element-wise arithmetic against float64, Python's integers and ONNX Runtime."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import onnx
import pytest

from graphdoc.engine.ops.special import erf
from graphdoc.engine.ops.table import operators
from tests.engine.rows import assert_close, assert_equal, on_engine, on_ort, sample

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
INTS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -2.5, 1.5, 2.5, 1e-3, 200.0]
SHAPES = [((3, 4), (3, 4)), ((3, 1), (1, 4)), ((4,), (2, 3, 4)), ((), (2,)), ((0, 3), (3,)), ((), ())]

UNARY = {
    "Abs": np.abs, "Neg": np.negative, "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Exp": np.exp,
    "Log": np.log, "Sign": np.sign, "Ceil": np.ceil, "Floor": np.floor, "Round": np.rint, "Sin": np.sin,
    "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan, "Sinh": np.sinh,
    "Cosh": np.cosh, "Tanh": np.tanh, "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh,
    "Erf": np.vectorize(math.erf, otypes=[float]),
}  # fmt: skip
"""float64 functions; each is compared with what the operator makes of the same numbers in fewer bits."""

LAST_OPSET = 28
OURS = {
    *("activations", "arithmetic", "cast", "einsum", "elementwise"),
    *("logical", "matmul", "random", "reductions", "softmax"),
}


def test_every_version_of_the_specification_has_a_row() -> None:
    """A version that is missing would be served by an older meaning."""
    found: dict[str, set[int]] = {}
    for row in operators():
        if row.domain == "" and row.evaluate.__module__.rpartition(".")[2] in OURS:
            found.setdefault(row.name, set()).add(row.since)
    # A newer onnx may describe versions at the end that these were not written for.
    missing = {
        (schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and schema.name in found
        if schema.since_version not in found[schema.name]
        if schema.since_version <= LAST_OPSET
    }

    assert len(found) > 100
    assert not missing


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("name", UNARY)
def test_unary_is_the_rounded_float64_result(name: str, dtype: type) -> None:
    """Two units of the last place: the vendors' float32 functions are allowed one and a half."""
    x = np.concatenate([sample(1, dtype, (60,)), sample(2, dtype, (20,), -1, 1), np.array(SPECIAL, dtype)])
    with np.errstate(all="ignore"):
        want = np.asarray(UNARY[name](x.astype(np.float64))).astype(dtype)

    assert_close(on_engine(name, [x], 22), want, units=3 if name == "Erf" else 2)


@pytest.mark.parametrize("name", UNARY)
def test_unary_agrees_with_onnx_runtime(name: str) -> None:
    x = np.concatenate([sample(1, np.float32, (60,)), np.array(SPECIAL, np.float32)])

    assert_close(on_engine(name, [x], 22), on_ort(name, [x], 22), units=8)


@pytest.mark.parametrize("name", ["Exp", "Erf", "Sign"])
@pytest.mark.parametrize("shape", [(), (0, 2), (1,)])
def test_unary_keeps_rank_and_empty_tensors(name: str, shape: tuple[int, ...]) -> None:
    assert on_engine(name, [np.full(shape, 0.5, np.float32)], 13).shape == shape


@pytest.mark.parametrize(("dtype", "units"), [(np.float32, 3), (np.float64, 3)])
def test_erf_is_accurate_everywhere(dtype: type, units: float) -> None:
    """Including where its two formulas meet, at 1, and where it becomes 1."""
    x = np.concatenate(
        [np.linspace(-7, 7, 4001), np.linspace(0.99, 1.01, 500), 10.0 ** np.linspace(-30, 0, 200)]
    ).astype(dtype)
    want = np.array([math.erf(value) for value in x.tolist()])

    distance = np.abs(erf(np, x).astype(np.float64) - want)

    assert np.max(distance / np.spacing(np.abs(want).astype(dtype))) <= units


def test_signs_of_zero_survive() -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    for name in ("Ceil", "Floor", "Round", "Sqrt", "Sin", "Tanh", "Asinh", "Erf"):
        assert np.signbit(on_engine(name, [zeros], 22)).tolist() == [False, True], name
    assert np.signbit(on_engine("Neg", [zeros], 13)).tolist() == [True, False]


NUMPY = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mod": np.mod,
    "Div": lambda a, b: np.trunc(a / b).astype(a.dtype),
}
"""For dtypes that ONNX Runtime does not have."""


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, *INTS], ids=lambda t: t.__name__)
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod"])
def test_binary_agrees_with_onnx_runtime(name: str, dtype: type) -> None:
    attributes = {"fmod": 1} if name == "Mod" and np.dtype(dtype).kind == "f" else {}
    for shapes in SHAPES:
        a, b = (sample(i, dtype, shape, -50, 50) for i, shape in enumerate(shapes))
        if name in ("Div", "Mod"):
            b = np.where(b == 0, np.ones((), dtype), b)

        want = on_ort(name, [a, b], 14, **attributes)
        want = NUMPY[name](a, b) if want is None else want
        assert_close(on_engine(name, [a, b], 14, **attributes), want, units=1)


def test_special_values_of_binary_operators_agree_with_onnx_runtime() -> None:
    a = np.array(SPECIAL, np.float32)[:, None] * np.ones(len(SPECIAL), np.float32)
    b = np.array(SPECIAL, np.float32)
    for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"):
        assert_close(on_engine(name, [a, b], 15), on_ort(name, [a, b], 15), units=2)
    assert_equal(on_engine("Mod", [a, b], 13, fmod=1), on_ort("Mod", [a, b], 13, fmod=1))


def _every_int8_pair() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(-128, 128).astype(np.int8)
    return numbers[:, None] * np.ones(255, np.int8), numbers[numbers != 0]


@pytest.mark.parametrize(
    ("name", "attributes", "exact"),
    [
        ("Div", {}, lambda a, b: math.trunc(Fraction(a, b))),
        ("Mod", {}, lambda a, b: a % b),
        ("Mod", {"fmod": 1}, lambda a, b: a - b * math.trunc(Fraction(a, b))),
    ],
)
def test_integer_division_of_every_pair(name: str, attributes: dict, exact: object) -> None:
    """Python's integers are the oracle; −128 ÷ −1 wraps to −128."""
    a, b = _every_int8_pair()
    want = [[exact(x, y) for y in b.tolist()] for x in a[:, 0].tolist()]

    assert_equal(on_engine(name, [a, b], 28, **attributes), np.array(want, np.int64).astype(np.int8))


def test_mod_of_floats_takes_the_sign_of_the_divisor() -> None:
    """The special cases that ONNX Mod-28 lists for fmod = 0."""
    a = np.array([0.0, -0.0, math.inf, 3.0, 0.0, -5.0, 5.0, -5.0, 5.5], np.float32)
    b = np.array([-2.0, 2.0, 2.0, 0.0, 0.0, math.inf, -math.inf, -math.inf, -2.0], np.float32)
    want = np.array([-0.0, 0.0, math.nan, math.nan, math.nan, math.inf, -math.inf, -5.0, -0.5], np.float32)

    got = on_engine("Mod", [a, b], 28)

    assert_equal(got, want)
    assert np.signbit(got[:2]).tolist() == [True, False]


@pytest.mark.parametrize("base", [np.int32, np.int64, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("exponent", [np.int32, np.uint8, np.int64, np.float32, np.float64])
def test_pow_keeps_the_dtype_of_the_base(base: type, exponent: type) -> None:
    x, y = sample(1, base, (4, 5), 1, 6), sample(2, exponent, (5,), 0, 3)
    want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(base)

    assert_close(on_engine("Pow", [x, y], 15), want, units=1)


def test_pow_of_integers_is_exact_wraps_and_truncates() -> None:
    x = np.array([3, -3, 2, 1, -1, 3], np.int64)
    y = np.array([39, 39, 64, -5, -5, -1], np.int64)

    got = on_engine("Pow", [x[:3], y[:3]], 15)

    assert got.tolist() == [3**39, -(3**39), 0]
    assert on_engine("Pow", [x[3:], y[3:]], 15).tolist() == [1, -1, 0]
    assert on_engine("Pow", [np.int32([3]), np.int64([21])], 15).tolist() == [
        np.array(3**21).astype(np.int32).item()
    ]


@pytest.mark.parametrize("power", [2.0, 3.0, 0.5, -1.0])
def test_pow_by_one_number_broadcasts(power: float) -> None:
    x = np.abs(sample(3, np.float32, (2, 3)))
    y = np.full((1, 1, 1), power, np.float32)

    assert_close(on_engine("Pow", [x, y], 13), np.power(x, y), units=2)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: np.dtype(t).name)
def test_sum_and_mean_of_many_round_once(dtype: type) -> None:
    inputs = [sample(i, dtype, shape, 0.5, 4) for i, shape in enumerate([(3, 4), (4,), (), (3, 1), (3, 4)])]
    exact = sum(x.astype(np.float64) for x in inputs)
    # Narrow floats accumulate in float32; float32 and float64 round at each of four additions.
    units = 2 if dtype in (np.float32, np.float64) else 1

    assert_close(on_engine("Sum", inputs, 13), exact.astype(dtype), units=units)
    assert_close(on_engine("Mean", inputs, 13), (exact / 5).astype(dtype), units=units)
    assert_equal(on_engine("Max", inputs[:1], 13), inputs[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int64])
@pytest.mark.parametrize("bounds", [(None, None), (-1, None), (None, 2), (-1, 2), (3, 1)])
def test_clip_agrees_with_onnx_runtime(dtype: type, bounds: tuple[int | None, int | None]) -> None:
    x = np.array(SPECIAL, dtype) if np.dtype(dtype).kind == "f" else sample(1, dtype, (9,), -5, 5)
    if np.dtype(dtype).kind == "u":
        bounds = tuple(None if b is None else abs(b) for b in bounds)
    inputs = [x, *(None if b is None else np.array(b, dtype) for b in bounds)]

    assert_equal(on_engine("Clip", inputs, 13), on_ort("Clip", inputs, 13))


def test_clip_by_attributes() -> None:
    x = np.array(SPECIAL, np.float32)

    assert_equal(on_engine("Clip", [x], 6, min=-1.0, max=0.5), np.clip(x, np.float32(-1), np.float32(0.5)))
    assert on_engine("Clip", [x], 6).max(where=~np.isnan(x), initial=0) == np.finfo(np.float32).max


# ---- the one-sided broadcast of opsets 1 and 6 --------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axis", "as_numpy"),
    [
        ((), None, ()),
        ((1, 1), None, ()),
        ((5,), None, (5,)),
        ((4, 5), None, (4, 5)),
        ((3, 4), 1, (3, 4, 1)),
        ((2,), 0, (2, 1, 1, 1)),
        ((4,), -2, (4, 1)),
    ],
)
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div"])
def test_old_broadcast(
    name: str, shape: tuple[int, ...], axis: int | None, as_numpy: tuple[int, ...]
) -> None:
    """The examples of ONNX Add-6."""
    a, b = sample(1, np.float32, (2, 3, 4, 5)), sample(2, np.float32, shape, 1, 2)
    attributes = {} if axis is None else {"axis": axis}

    assert_equal(
        on_engine(name, [a, b], 6, broadcast=1, **attributes), on_engine(name, [a, b.reshape(as_numpy)], 7)
    )


@pytest.mark.parametrize(
    ("shape", "attributes", "complaint"),
    [
        ((4,), {}, "does not ask for broadcast"),
        ((3,), {"broadcast": 1}, "not a part of"),
        ((4,), {"broadcast": 1, "axis": 0}, "not a part of"),
        ((1, 3, 4, 5), {"broadcast": 1}, "not a part of"),
    ],
)
def test_old_broadcast_refuses(shape: tuple[int, ...], attributes: dict, complaint: str) -> None:
    a, b = np.ones((3, 4), np.float32), np.ones(shape, np.float32)

    with pytest.raises(ValueError, match=complaint):
        on_engine("Add", [a, b], 6, **attributes)
