"""Matrix products, Gemm, Einsum, integer and quantised products, determinants."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engine.rows import assert_close, assert_equal, on_engine, on_ort, sample

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
INTS = (np.int32, np.int64, np.uint32, np.uint64)
SHAPES = [
    ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)), ((3, 0), (0, 2)), ((0, 3), (3, 2)), ((2, 0, 3), (3, 2)), ((1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul_is_the_rounded_float64_product(shapes: Any, dtype: type) -> None:
    a, b = (sample(i, dtype, shape, 0.5, 2) for i, shape in enumerate(shapes))
    want = np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(dtype)

    assert_close(on_engine("MatMul", [a, b], 13), want, units=4)


@pytest.mark.parametrize("dtype", INTS, ids=lambda t: t.__name__)
def test_matmul_of_integers_is_exact(dtype: type) -> None:
    a, b = sample(1, dtype, (3, 4), -(2**30), 2**30), sample(2, dtype, (4, 5), -7, 7)
    exact = np.matmul(a.astype(object), b.astype(object)) % 2 ** (8 * np.dtype(dtype).itemsize)

    assert_equal(on_engine("MatMul", [a, b], 13), exact.astype(np.uint64).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda t: np.dtype(t).name)
def test_products_of_half_precision_go_on_counting(dtype: type) -> None:
    """In bfloat16 256 + 1 is 256 again, in float16 2048 + 1 is 2048."""
    a = np.ones((1, 4096), dtype)

    assert on_engine("MatMul", [a, a.T], 13) == 4096
    assert on_engine("Gemm", [a, a], 13, transB=1) == 4096
    assert on_engine("Einsum", [a, a], 12, equation="ij,kj->ik") == 4096


def test_matmul_takes_any_layout() -> None:
    """Transposed, sliced and broadcast operands, which BLAS does not take as they are."""
    base = sample(1, np.float32, (6, 8, 10))
    b = sample(2, np.float32, (10, 3))
    for a in (
        base[::2, ::3],
        base.transpose(1, 0, 2),
        np.broadcast_to(base[:1, :1], (2, 4, 10)),
        base[..., ::-1],
    ):
        assert_close(on_engine("MatMul", [a, b], 13), on_engine("MatMul", [a.copy(), b], 13), units=8)
    strided = base.transpose(2, 1, 0)[::2]
    assert_close(on_engine("MatMul", [strided, b[:6]], 13), np.matmul(strided.copy(), b[:6]), units=8)


# ---- Gemm ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("c_shape", [None, (), (5,), (3, 1), (3, 5), (1, 5)], ids=str)
def test_gemm_is_the_rounded_float64_result(c_shape: tuple[int, ...] | None, dtype: type) -> None:
    for trans_a in (0, 1):
        for trans_b in (0, 1):
            a = sample(1, dtype, (4, 3) if trans_a else (3, 4), 0.5, 2)
            b = sample(2, dtype, (5, 4) if trans_b else (4, 5), 0.5, 2)
            c = [] if c_shape is None else [sample(3, dtype, c_shape, 0.5, 2)]
            left, right = (x.astype(np.float64) for x in (a.T if trans_a else a, b.T if trans_b else b))
            want = 0.5 * (left @ right) + (2 * c[0].astype(np.float64) if c else 0)
            got = on_engine("Gemm", [a, b, *c], 13, alpha=0.5, beta=2.0, transA=trans_a, transB=trans_b)
            assert_close(got, want.astype(dtype), units=4)


def test_gemm_ignores_c_when_beta_is_zero() -> None:
    a, c = np.ones((2, 2), np.float32), np.full((2, 2), np.nan, np.float32)

    assert on_engine("Gemm", [a, a, c], 13, beta=0.0).tolist() == [[2, 2], [2, 2]]


def test_gemm_of_integers() -> None:
    a, b, c = sample(1, np.int32, (3, 4)), sample(2, np.int32, (4, 2)), sample(3, np.int32, (2,))

    assert_equal(on_engine("Gemm", [a, b, c], 13), a @ b + c)
    assert_equal(on_engine("Gemm", [a, b, c], 13, alpha=0.5), np.trunc((a @ b) / 2).astype(np.int32) + c)


@pytest.mark.parametrize(
    ("inputs", "version", "complaint"),
    [
        ([(2, 3, 4), (4, 5)], 13, "multiplies matrices"),
        ([(3, 4), (5, 6)], 13, "mismatch|matmul"),
        ([(3, 4), (4, 5), (2, 3, 5)], 13, "does not broadcast"),
        ([(1, 4), (4, 5), (3, 5)], 13, "does not broadcast"),
        ([(3, 4), (4, 5), (5,)], 6, "does not ask for broadcast"),
    ],
)
def test_gemm_refuses(inputs: list[tuple[int, ...]], version: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        on_engine("Gemm", [np.ones(shape, np.float32) for shape in inputs], version)


def test_old_gemm_broadcasts_when_asked() -> None:
    a, b, c = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32), np.ones((5,), np.float32)

    assert on_engine("Gemm", [a, b, c], 6, broadcast=1).tolist() == [[5] * 5] * 3


# ---- Einsum -------------------------------------------------------------------------------------------

EQUATIONS = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "bij,bjk->bik": [(2, 2, 3), (2, 3, 4)],
    "bhid,bhjd->bhij": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "b i d , b j d -> b j i": [(2, 3, 4), (2, 5, 4)],
    "...ij,...jk->...ik": [(2, 5, 2, 3), (2, 5, 3, 4)],
    "...ij,jk": [(2, 2, 3), (3, 4)],
    "ij,kj": [(2, 3), (4, 3)],
    "i,j->ij": [(3,), (4,)],
    "ij,ij->ij": [(2, 3), (2, 3)],
    "ij,ij->": [(2, 3), (2, 3)],
    "ijk,il->jl": [(2, 3, 4), (2, 5)],
    "ii->i": [(3, 3)],
    "ii": [(3, 3)],
    "ij->ji": [(2, 3)],
    "ba": [(2, 3)],
    "ij->": [(2, 3)],
    "...i->...": [(2, 3, 4)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)],
    "ij,jk->k": [(2, 3), (3, 4)],
    "Ab,bC": [(2, 3), (3, 4)],
    "iij,jk->ik": [(3, 3, 2), (2, 4)],
    "ij,jk->ik ": [(2, 1), (3, 4)],
    "i,i->i": [(0,), (0,)],
    "ij,jk -> ik": [(2, 0), (0, 4)],
}


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_agrees_with_numpy(equation: str, dtype: type) -> None:
    """numpy.einsum in float64, without its own detour through products."""
    operands = [sample(i, dtype, shape, 1, 3) for i, shape in enumerate(EQUATIONS[equation])]
    want = np.asarray(np.einsum(equation, *(x.astype(np.float64) for x in operands), optimize=False))

    assert_close(on_engine("Einsum", operands, 12, equation=equation), want.astype(dtype), units=4)


@pytest.mark.parametrize(
    ("equation", "shapes", "complaint"),
    [
        ("ij,jk->ik", [(2, 3)], "2 terms for 1 operands"),
        ("ij->i", [(2, 3, 4)], "does not fit an operand of rank 3"),
        ("...i,...i->...", [(2, 3), (2, 2, 3)], "ellipses"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "broadcast|size"),
    ],
)
def test_einsum_refuses(equation: str, shapes: list[tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        on_engine("Einsum", [np.ones(shape, np.float32) for shape in shapes], 12, equation=equation)


# ---- integers -----------------------------------------------------------------------------------------

PAIRS = [(a, b) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8)]


def _exact(a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    return np.matmul(a.astype(np.int64) - a_zero, b.astype(np.int64) - b_zero)


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda t: t.__name__)
def test_matmul_integer_is_exact_over_the_whole_range(left: type, right: type) -> None:
    a, b = sample(1, left, (2, 3, 600), -128, 255), sample(2, right, (600, 5), -128, 255)
    rows, columns = sample(3, left, (3,), 0, 255), sample(4, right, (5,), 0, 255)
    zero = left(7), right(3)

    assert_equal(on_engine("MatMulInteger", [a, b], 10), _exact(a, 0, b, 0).astype(np.int32))
    assert_equal(on_engine("MatMulInteger", [a, b, *zero], 10), _exact(a, 7, b, 3).astype(np.int32))
    assert_equal(
        on_engine("MatMulInteger", [a[0], b, rows, columns], 10),
        _exact(a[0], rows[:, None].astype(np.int64), b, columns.astype(np.int64)).astype(np.int32),
    )
    assert_equal(
        on_engine("MatMulInteger", [a, b, None, columns], 10),
        _exact(a, 0, b, columns.astype(np.int64)).astype(np.int32),
    )


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda t: t.__name__)
def test_matmul_integer_agrees_with_onnx_runtime(left: type, right: type) -> None:
    """On small values: some processors make ONNX Runtime saturate sums of large uint8 × int8 products."""
    a, b = sample(1, left, (3, 6), -20, 20), sample(2, right, (6, 4), -20, 20)
    inputs = [a, b, left(3), right(2)]
    want = on_ort("MatMulInteger", inputs, 10)

    assert want is None or np.array_equal(on_engine("MatMulInteger", inputs, 10), want)


@pytest.mark.parametrize("left", [np.int8, np.uint8])
def test_qlinear_matmul(left: type) -> None:
    """The specification's steps in float64, on scales that are powers of two and so make no rounding."""
    a, b = sample(1, left, (2, 3, 6), -30, 30), sample(2, np.int8, (6, 4), -30, 30)
    b_scale, b_zero = np.float32([0.5, 0.25, 1, 0.125]), np.int8([0, 1, -2, 3])
    real = _exact(a, 5, b, b_zero.astype(np.int64)) * 0.5 * b_scale.astype(np.float64) / 4
    want = np.clip(np.rint(real) + 9, np.iinfo(left).min, np.iinfo(left).max).astype(left)

    got = on_engine(
        "QLinearMatMul", [a, np.float32(0.5), left(5), b, b_scale, b_zero, np.float32(4), left(9)], 21
    )

    assert_equal(got, want)
    assert len(np.unique(want)) > 10


@pytest.mark.parametrize("scale", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_qlinear_matmul_of_float8_saturates(scale: type) -> None:
    e4m3 = ml_dtypes.float8_e4m3fn
    a, b = np.array([[1.5, -2.0], [448, 448]], e4m3), np.array([[2.0], [3.0]], e4m3)
    one, zero = np.array(1, scale), np.array(0, e4m3)

    got = on_engine("QLinearMatMul", [a, one, zero, b, one, zero, one, zero], 21)

    assert got.dtype == np.dtype(e4m3)
    assert got.astype(float).tolist() == [[-3.0], [448.0]]


def test_det() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        x = sample(1, dtype, (2, 3, 3))
        want = np.linalg.det(x.astype(np.float64)).astype(dtype)
        assert_close(on_engine("Det", [x], 11), want, units=16)
        assert_close(on_engine("Det", [x[0]], 22), want[0], units=16)
    with pytest.raises(ValueError, match="square"):
        on_engine("Det", [np.ones((2, 3), np.float32)], 11)
