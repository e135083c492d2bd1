"""Gather, scatter and selection against ONNX Runtime; ties, NaN, bounds, and what they refuse."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphdoc.engine.errors import RunnerError
from tests.engine.single import agree, engine, model, oracle, run, same

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = np.random.default_rng(5).standard_normal((4, 3, 5)).astype(np.float32)


def ints(*values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.int64)


def words(*values: str) -> np.ndarray[Any, Any]:
    return np.asarray(values, object)


# ---- Gather -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize(
    "indices", [np.int64(1), ints(-1), ints([0, 2], [1, -3]), np.zeros((0, 2), np.int32)]
)
def test_gather(axis: int, indices: Any) -> None:
    """Any rank of indices, negative ones, none at all; the data may be a transposed view."""
    agree("Gather", FLOATS, indices, axis=axis)
    same(
        run("Gather", FLOATS.T, indices, axis=axis),
        np.take(FLOATS.T, indices, axis=axis),
    )


def test_gather_strings() -> None:
    agree("Gather", words("a", "b", "c"), ints(2, 0))
    agree("Gather", words("a", "b", "c"), np.array(1))


@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
@pytest.mark.parametrize("index", [4, -5])
def test_gather_refuses_an_index_out_of_bounds(op: str, index: int) -> None:
    indices = ints(index) if op == "Gather" else np.full((1, 1, 1), index)

    with pytest.raises(RunnerError, match="out of bounds"):
        run(op, FLOATS, indices)


@pytest.mark.parametrize("axis", [3, -4])
def test_an_axis_past_the_rank_is_refused(axis: int) -> None:
    index, indices = np.int64(0), np.zeros((1, 1, 1), np.int64)
    ones = np.ones((1, 1, 1), np.float32)

    for op, inputs in {
        "Gather": (FLOATS, index),
        "GatherElements": (FLOATS, indices),
        "ScatterElements": (FLOATS, indices, ones),
        "OneHot": (indices[0], np.int64(2), ones[0, 0].repeat(2)),
    }.items():
        with pytest.raises(RunnerError, match=f"axis {axis} does not fit rank 3"):
            run(op, *inputs, axis=axis)


@pytest.mark.parametrize("axis", [-2, 0, 2])
def test_gather_elements(axis: int) -> None:
    """The indices may be shorter than the data on the other axes."""
    size = FLOATS.shape[axis]
    indices = np.random.default_rng(1).integers(-size, size, (2, 2, 3))

    agree("GatherElements", FLOATS, indices, axis=axis)
    agree("GatherElements", FLOATS, indices.astype(np.int32), axis=axis)


@pytest.mark.parametrize("shape", [(5, 3, 5), (4, 3)])
def test_gather_elements_refuses_other_shapes(shape: Any) -> None:
    """Indices longer than the data, or of another rank, are not broadcast."""
    with pytest.raises(RunnerError, match="do not fit data"):
        run("GatherElements", FLOATS, np.zeros(shape, np.int64), axis=1)


@pytest.mark.parametrize(
    ("batch_dims", "shape"),
    [(0, (2, 1)), (0, (2, 2)), (0, (3,)), (0, (0, 2)), (1, (4, 2, 1)), (2, (4, 3, 1))],
)
def test_gather_nd(batch_dims: int, shape: Any) -> None:
    """Whole elements and slices, with and without batch axes."""
    indices = np.random.default_rng(2).integers(-3, 3, shape)

    agree("GatherND", FLOATS, indices, batch_dims=batch_dims)


def test_gather_nd_refuses() -> None:
    with pytest.raises(RunnerError, match="do not fit"):
        run("GatherND", FLOATS, np.zeros((2, 4), np.int64))
    with pytest.raises(RunnerError, match="do not fit"):
        run("GatherND", FLOATS, np.zeros((3, 1), np.int64), batch_dims=1)


# ---- Scatter ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_elements(reduction: str, dtype: Any, axis: int) -> None:
    """All reductions, repeated places included."""
    rng = np.random.default_rng(3)
    x = (FLOATS * 8).astype(dtype)
    indices = rng.integers(-3, 3, (2, 2, 4))
    updates = rng.integers(-4, 5, indices.shape).astype(dtype)
    if reduction == "none":
        indices = np.argsort(rng.random((2, 2, 4)), axis=axis)

    agree("ScatterElements", x, indices, updates, axis=axis, reduction=reduction)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction: str) -> None:
    """Slices and single elements."""
    rng = np.random.default_rng(4)
    slices, places = ints([1], [-1], [0]), ints([0, 1, 2], [-1, -1, -1])

    agree("ScatterND", FLOATS, slices, rng.random((3, 3, 5), np.float32), reduction=reduction)
    agree("ScatterND", FLOATS, places, rng.random(2, np.float32), reduction=reduction)


def test_scatter_leaves_its_input_alone() -> None:
    x = np.zeros(3, np.float32)

    assert run("ScatterElements", x, ints(1), np.ones(1, np.float32)).tolist() == [0, 1, 0]
    assert x.tolist() == [0, 0, 0]


def test_scatter_add_rounds_half_precision_once() -> None:
    """2048 ones added to a float16 2048 are not lost one by one."""
    count = 2048
    got = run(
        "ScatterElements",
        np.full(1, count, np.float16),
        np.zeros(count, np.int64),
        np.ones(count, np.float16),
        reduction="add",
    )

    same(got, np.full(1, 2 * count, np.float16))


def test_scatter_of_strings_and_old_names() -> None:
    agree("ScatterElements", words("a", "b"), ints(1), words("z"))
    agree("Scatter", FLOATS, ints([[1]]), np.ones((1, 1, 1), np.float32), opset=9)


@pytest.mark.parametrize(
    ("op", "indices", "updates", "options", "message"),
    [
        ("ScatterElements", [9], [1], {}, "out of bounds"),
        ("ScatterElements", [0], [1, 2], {}, "do not match"),
        ("ScatterElements", [0], [1], {"reduction": "odd"}, "reduction 'odd'"),
        ("ScatterND", [[0]], [1, 2], {}, "do not fit"),
        ("ScatterND", [[7]], [1], {}, "out of bounds"),
    ],
)
def test_scatter_refuses(op: str, indices: Any, updates: Any, options: Any, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        run(op, np.zeros(3, np.float32), np.asarray(indices), np.asarray(updates, np.float32), **options)


def test_tensor_scatter_refuses_to_write_past_the_end() -> None:
    """Linear mode stays within the cache, circular mode wraps around."""
    past, update = np.zeros((1, 4, 1), np.float32), np.ones((1, 2, 1), np.float32)

    with pytest.raises(RunnerError, match="out of bounds"):
        run("TensorScatter", past, update, ints(3), opset=24)
    got = run("TensorScatter", past, update, ints(3), opset=24, mode="circular")
    assert got.reshape(-1).tolist() == [1, 0, 0, 1]


# ---- selection ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("axis", [0, -1])
def test_topk(largest: int, dtype: Any, axis: int) -> None:
    """Many ties: the lower index comes first. Unsigned and smallest integers are no trap."""
    x = np.random.default_rng(6).integers(0, 4, (6, 9)).astype(dtype)
    if dtype == np.int64:
        x[0, :2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max

    order = np.argsort(x.astype(object) * (-1 if largest else 1), axis=axis, kind="stable")
    order = np.take(order, range(4), axis=axis)
    values, indices = engine(*model("TopK", x, ints(4), outputs=2, axis=axis, largest=largest))

    same(values, np.take_along_axis(x, order, axis))
    same(indices, order)
    if dtype in (np.float32, np.float64, np.int64, np.int32):
        agree("TopK", x, ints(4), outputs=2, axis=axis, largest=largest)


@pytest.mark.parametrize("largest", [0, 1])
def test_topk_of_long_rows(largest: int) -> None:
    """The quick way for long rows gives what sorting all of a row gives, ties included."""
    x = np.random.default_rng(7).integers(0, 500, (3, 5000)).astype(np.float32)

    agree("TopK", x, ints(40), outputs=2, largest=largest)


def test_topk_of_nan_and_bfloat16() -> None:
    """NaN is larger than every number; bfloat16 sorts as what it stands for."""
    long = np.zeros((1, 3000), np.float32)
    long[0, 5], long[0, 9] = np.nan, 1
    values, indices = engine(*model("TopK", long, ints(3), outputs=2))
    half = run("TopK", np.asarray([1, -3, 2.5], BFLOAT16), ints(2), outputs=2)

    assert np.isnan(values[0, 0])
    assert indices.tolist() == [[5, 9, 0]]
    same(half, np.asarray([2.5, 1], BFLOAT16))


def test_topk_by_attribute_and_refusal() -> None:
    agree("TopK", FLOATS, k=2, opset=9, outputs=2)
    with pytest.raises(RunnerError, match="TopK of 9 from an axis of 5"):
        run("TopK", FLOATS, ints(9), outputs=2)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique(axis: Any, ordered: int) -> None:
    """Values, first occurrences, inverse and counts, of elements and of slices."""
    x = np.random.default_rng(8).integers(0, 2, (6, 2, 3)).astype(np.float32)
    options = {} if axis is None else {"axis": axis}

    proto, feeds = model("Unique", x, outputs=4, sorted=ordered, **options)
    for got, want in zip(engine(proto, feeds), oracle(proto, feeds), strict=True):
        same(got, want)


def test_unique_strings_and_nan() -> None:
    """Strings as elements and as slices; each NaN stays an element of its own, −0 equals 0."""
    agree("Unique", words("b", "a", "b"), outputs=4)
    rows = np.asarray([["b", "a"], ["a", "z"], ["b", "a"]], object)
    assert run("Unique", rows, axis=0, outputs=4).tolist() == [["a", "z"], ["b", "a"]]
    assert run("Unique", np.asarray([np.nan, 0.0, -0.0, np.nan]), outputs=4).size == 3


def test_nonzero() -> None:
    """In row-major order; a scalar gives no rows, as the specification says."""
    agree("NonZero", FLOATS > 0)
    agree("NonZero", np.zeros((0, 2), np.int32))
    assert run("NonZero", np.float32(3)).shape == (0, 1)
    assert run("NonZero", np.float32(0)).shape == (0, 0)


def test_compress() -> None:
    """The condition may be shorter than the axis."""
    agree("Compress", FLOATS, np.asarray([0, 1, 1], bool), axis=2)
    agree("Compress", FLOATS, np.asarray([0, 1, 1, 0, 1], bool))
    agree("Compress", FLOATS, np.asarray([1, 0, 1], bool), axis=-2)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis: int) -> None:
    """Indices outside −depth … depth − 1 give the off value alone."""
    agree("OneHot", ints([0, -1, 7], [-4, 2, 3]), np.int64(4), np.asarray([-1, 5], np.float32), axis=axis)


def test_one_hot_casts_float_indices() -> None:
    got = run("OneHot", np.asarray([1.7, -0.5], np.float32), np.float32(3), np.asarray([0, 1], np.int32))

    assert got.tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize(("batch_axis", "time_axis"), [(0, 1), (1, 0)])
def test_reverse_sequence(batch_axis: int, time_axis: int) -> None:
    x = FLOATS[:3, :3]

    agree("ReverseSequence", x, ints(3, 1, 2), batch_axis=batch_axis, time_axis=time_axis)


def test_reverse_sequence_refuses() -> None:
    with pytest.raises(RunnerError, match="not 0 and 1"):
        run("ReverseSequence", FLOATS, ints(1, 1, 1), batch_axis=1, time_axis=2)
    with pytest.raises(RunnerError, match="do not fit 4 steps"):
        run("ReverseSequence", FLOATS, ints(9, 1, 1))


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_non_max_suppression(center: int, seed: int) -> None:
    """Random boxes of both formats, equal scores among them, corners in any order."""
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(0, 10, (2, 40, 4)).astype(np.float32)
    scores = rng.integers(0, 20, (2, 3, 40)).astype(np.float32) / 20
    limits = np.int64(5 + seed), np.float32(0.1 * seed), np.float32(0.2)

    agree("NonMaxSuppression", boxes, scores, *limits, center_point_box=center)


def test_non_max_suppression_defaults_to_nothing() -> None:
    """Without a limit nothing is kept; without a score threshold every score counts."""
    boxes, scores = np.ones((1, 2, 4), np.float32), -np.ones((1, 1, 2), np.float32)

    assert run("NonMaxSuppression", boxes, scores).shape == (0, 3)
    agree("NonMaxSuppression", boxes, scores, np.int64(3))
    agree("NonMaxSuppression", boxes, scores, np.int64(3), np.float32(0.5))
