"""Shape operators, slices and padding against ONNX Runtime; what they refuse."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphdoc.engine.errors import RunnerError
from tests.engine.single import agree, engine, model, run, same

RNG = np.random.default_rng(3)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_]


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 100, shape).astype(dtype)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.int64)


def words(*values: str) -> np.ndarray[Any, Any]:
    return np.asarray(values, object)


@pytest.mark.parametrize(
    ("shape", "target", "options"),
    [
        ((2, 3, 4), (4, -1), {}),
        ((2, 3, 4), (0, 0, -1), {}),
        ((2, 3, 4), (0, 12), {}),
        ((1,), (), {}),
        ((), (1, 1), {}),
        ((0, 3), (3, 0), {"allowzero": 1}),
        ((0, 3), (0, 3), {}),
        ((0, 3), (-1, 3), {}),
    ],
)
def test_reshape(shape: Any, target: Any, options: Any) -> None:
    """0 keeps an axis, -1 takes the rest, allowzero means what it says."""
    agree("Reshape", data(*shape), ints(*target), **options)


@pytest.mark.parametrize("opset", [1, 4])
def test_reshape_by_attribute(opset: int) -> None:
    """Version 1 has the shape as an attribute."""
    x = data(2, 6)

    same(run("Reshape", x, opset=opset, shape=[3, -1]), x.reshape(3, 4))


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ((5, -1), {}, r"6 elements, which shape \[5, -1\] cannot hold"),
        ((7,), {}, r"6 elements, which shape \[7\] cannot hold"),
        ((-2, 3), {}, "at least -1"),
        ((-1, -1), {}, "leaves more than one size open"),
        ((0, -1), {"allowzero": 1}, "allowzero"),
        ((0, 0, 0, -1), {}, "keeps axis 2, and data has 2 axes"),
    ],
)
def test_reshape_refuses(target: Any, options: Any, message: str) -> None:
    """A shape that does not fit names the node and says what is wrong."""
    with pytest.raises(RunnerError, match=message):
        run("Reshape", data(2, 3), ints(*target), **options)


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2, 3])
def test_flatten(axis: int) -> None:
    """Every axis from -r to r."""
    agree("Flatten", data(2, 3, 4), axis=axis)


def test_flatten_refuses_an_axis_past_the_rank() -> None:
    with pytest.raises(RunnerError, match="axis 4 does not fit rank 3"):
        run("Flatten", data(2, 3, 4), axis=4)


@pytest.mark.parametrize("perm", [None, [2, 0, 1], [0, 1, 2]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_transpose(perm: Any, dtype: Any) -> None:
    agree("Transpose", data(2, 3, 4, dtype=dtype), **({} if perm is None else {"perm": perm}))


def test_squeeze_and_unsqueeze() -> None:
    """Axes as inputs and as attributes, negative and unordered."""
    x = data(1, 3, 1, 4)

    agree("Squeeze", x)
    agree("Squeeze", x, ints(-2, 0))
    agree("Squeeze", x, opset=11, axes=[0, 2])
    agree("Unsqueeze", x, ints(5, 0))
    agree("Unsqueeze", x, ints(-1, 2))
    agree("Unsqueeze", x, opset=11, axes=[4])
    agree("Unsqueeze", data(), ints(0))


@pytest.mark.parametrize(
    ("op", "axes", "message"),
    [("Squeeze", (1,), "of size 1"), ("Unsqueeze", (0, 0), "do not fit"), ("Unsqueeze", (9,), "do not fit")],
)
def test_squeeze_and_unsqueeze_refuse(op: str, axes: Any, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        run(op, data(1, 3), ints(*axes))


def test_squeeze_of_no_axes_removes_nothing() -> None:
    """An empty list is not the same as no list (ONNX Runtime treats it so)."""
    same(run("Squeeze", np.ones((1, 3), np.float32), ints()), np.ones((1, 3), np.float32))


@pytest.mark.parametrize(
    ("shape", "target"), [((3, 1), (2, 1, 4)), ((3, 1), (1, 5)), ((), (2, 2)), ((2, 3), (1,)), ((1,), (0, 4))]
)
def test_expand(shape: Any, target: Any) -> None:
    """Broadcasting goes both ways."""
    agree("Expand", data(*shape), ints(*target))


def test_tile_and_concat() -> None:
    agree("Tile", data(2, 3), ints(2, 0))
    agree("Tile", data(2, 1, 3), ints(1, 3, 2))
    agree("Concat", data(2, 3), data(2, 0), data(2, 1), axis=-1)
    agree("Concat", words("a"), words("b", "c"), axis=0)


def test_tile_1_takes_scalars() -> None:
    """Version 1 repeats one axis; count and axis come in the dtype of the data."""
    x = data(2, 2)

    same(run("Tile", x, np.float32(3), np.float32(1), opset=1), np.tile(x, (1, 3)))


def test_tile_refuses_another_rank() -> None:
    with pytest.raises(RunnerError, match="needs 2 repeats, not 1"):
        run("Tile", data(2, 3), ints(2))


def test_concat_1_joins_axis_1_by_default() -> None:
    assert run("Concat", data(2, 3), data(2, 1), opset=1).shape == (2, 4)


@pytest.mark.parametrize(
    ("sizes", "options", "outputs"),
    [
        ((2, 0, 5), {"axis": 0}, 3),
        ((1, 2), {"axis": -1}, 2),
        (None, {"axis": 1, "num_outputs": 2}, 2),
        (None, {"axis": 0, "num_outputs": 4}, 4),
        (None, {"axis": 0, "num_outputs": 3}, 3),
    ],
)
def test_split(sizes: Any, options: Any, outputs: int) -> None:
    """By sizes and by number; the last part may be smaller."""
    x = data(7, 4, 3)

    agree("Split", x, None if sizes is None else ints(*sizes), outputs=outputs, **options)


def test_split_before_version_18() -> None:
    """Equal parts follow from the number of outputs, unnamed ones included."""
    x = data(6, 4)

    agree("Split", x, outputs=3, opset=13)
    agree("Split", x, outputs=2, opset=11, split=[1, 3], axis=1)
    proto, feeds = model("Split", x, outputs=3, opset=13)
    proto.graph.node[0].output[2] = ""
    del proto.graph.output[2]
    assert [part.shape for part in engine(proto, feeds)] == [(2, 4), (2, 4)]


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((2, 3), {"axis": 1}, "axis 1 does not fit rank 1"),
        ((2, 2), {}, "does not fit size 5"),
        ((6, -1), {}, "does not fit"),
        (None, {"opset": 13}, "equal parts"),
    ],
)
def test_split_refuses(sizes: Any, options: Any, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        run("Split", data(5), None if sizes is None else ints(*sizes), outputs=2, **options)


@pytest.mark.parametrize("seed", range(30))
def test_slice(seed: int) -> None:
    """Random starts, ends (far out of bounds too), axes and steps of both signs."""
    rng = np.random.default_rng(seed)
    x = data(5, 1, 4, dtype=DTYPES[seed % 3])
    axes = rng.permutation(3)[: rng.integers(1, 4)]
    starts, ends = rng.integers(-8, 9, (2, axes.size))
    steps = rng.choice([-3, -2, -1, 1, 2, 5], axes.size)
    if seed % 5 == 0:
        ends[steps < 0], ends[steps > 0] = np.iinfo(np.int64).min, np.iinfo(np.int64).max

    agree("Slice", x, starts, ends, axes - 3 * (seed % 2), steps)


def test_slice_of_strings_and_empty_axes() -> None:
    agree("Slice", words("a", "b", "c"), ints(-1), ints(-9), ints(0), ints(-1))
    agree("Slice", data(0, 3), ints(2), ints(-4), ints(0), ints(-1))
    agree("Slice", data(4, 3), ints(1), ints(3))
    agree("Slice", data(4, 3), opset=9, starts=[1, 0], ends=[9, -1], axes=[0, 1])


@pytest.mark.parametrize(
    ("axes", "steps", "message"), [((0,), (0,), "step 0"), ((2,), (1,), "do not fit rank 2")]
)
def test_slice_refuses(axes: Any, steps: Any, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        run("Slice", data(3, 3), ints(0), ints(1), ints(*axes), ints(*steps))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 0, 1), (0, 0, 2, 0), (-1, 1, 0, 2), (1, -1, -1, -1)])
def test_pad(mode: str, pads: Any) -> None:
    """All modes, cropping included; what is mirrored is what cropping leaves."""
    agree("Pad", data(4, 5), ints(*pads), mode=mode)


def test_pad_values_axes_and_dtypes() -> None:
    agree("Pad", data(2, 3), ints(1, 1), np.float32(-7), ints(-1))
    agree("Pad", data(2, 3, dtype=np.int64), ints(0, 1, 1, 0), np.int64(9))
    agree("Pad", data(2, 3, dtype=np.bool_), ints(0, 1, 1, 0), np.bool_(True))
    agree("Pad", data(2, 3), opset=10, pads=[0, 1, 1, 0], value=2.5)
    x = data(2, dtype=BFLOAT16)
    assert run("Pad", x, ints(1, 0)).dtype == BFLOAT16
    assert run("Pad", words("a"), ints(1, 0)).tolist() == ["", "a"]


@pytest.mark.parametrize(
    ("pads", "options", "message"),
    [((1,), {}, "needs 2 pads"), ((1, 1), {"mode": "odd"}, "mode 'odd'"), ((-2, -2), {}, "removes more")],
)
def test_pad_refuses(pads: Any, options: Any, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        run("Pad", data(3), ints(*pads), **options)


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (1, None), (-2, None), (0, -1), (-9, 9), (2, 1), (1, 2)]
)
def test_shape(start: int, end: Any) -> None:
    agree("Shape", data(2, 0, 3), start=start, **({} if end is None else {"end": end}))


def test_size_and_constant_of_shape() -> None:
    from onnx import numpy_helper

    agree("Size", data(2, 3))
    agree("Size", data())
    agree("ConstantOfShape", ints(2, 0))
    agree("ConstantOfShape", ints())
    agree("ConstantOfShape", ints(2), value=numpy_helper.from_array(np.asarray([7], np.int8)))


@pytest.mark.parametrize(
    ("start", "limit", "delta", "dtype"),
    [
        (0, 10, 3, np.int64),
        (10, -3, -4, np.int32),
        (3, 3, 1, np.int16),
        (0, 0.3, 0.1, np.float32),
        (1, 0, 0.25, np.float64),
        (-1, 1, 0.5, np.float32),
    ],
)
def test_range(start: float, limit: float, delta: float, dtype: Any) -> None:
    """The count is that of ONNX Runtime, also where rounding decides it."""
    agree("Range", *(np.asarray(v, dtype) for v in (start, limit, delta)), rtol=1e-6)


def test_range_refuses_delta_0() -> None:
    with pytest.raises(RunnerError, match="delta 0"):
        run("Range", np.int64(0), np.int64(3), np.int64(0))


@pytest.mark.parametrize("k", [-9, -1, 0, 1, 2, 9])
def test_eye_like_and_trilu(k: int) -> None:
    agree("EyeLike", data(3, 4, dtype=np.int32), k=k)
    agree("EyeLike", data(3, 4), k=k, dtype=11)
    agree("Trilu", data(2, 3, 4), np.int64(k), upper=0)
    agree("Trilu", data(4, 3), np.int64(k))
