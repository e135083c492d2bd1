"""Drawings: counts, powers of two, reach and heat map against plain NumPy; which layers are drawn."""

import math

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphdoc import compare_models
from graphdoc.compare import gallery
from graphdoc.compare.picture import APART, EQUAL, LETTERS_PER_DECADE, LEVELS
from graphdoc.compare.pictures import BINS, SAMPLE, picture
from graphdoc.engine.scope import Occurrences

RNG = np.random.default_rng(7)


def pair(shape, spread=1e-3, dtype=np.float32):
    a = np.asarray(RNG.standard_normal(shape)).astype(dtype)
    return a, (a + spread * np.asarray(RNG.standard_normal(shape))).astype(dtype)


# Histograms


def test_counts_are_those_of_numpy():
    a, b = pair((3, 50, 70))
    drawn = picture(a, b).histogram
    low, high = float(min(a.min(), b.min())), float(max(a.max(), b.max()))
    for counts, values in ((drawn.a, a), (drawn.b, b)):
        expected, _ = np.histogram(values.astype(np.float64), bins=BINS, range=(low, high))
        assert np.abs(np.subtract(counts, expected)).sum() <= 4
        assert sum(counts) == values.size
    assert (drawn.low, drawn.high, drawn.counted, drawn.masked) == (low, high, a.size, 0)


def test_a_constant_is_one_bin():
    drawn = picture(np.full(9, 2.5), np.full(9, 2.5)).histogram
    assert (drawn.low, drawn.high, drawn.a, drawn.b) == (2.5, 2.5, (9,), (9,))


def test_the_whole_range_of_float64_does_not_overflow():
    a = np.array([-1.7e308, 1e306, 1.7e308])
    assert sum(picture(a, a).histogram.a) == 3


def test_what_is_not_finite_on_either_side_is_not_counted():
    a = np.array([1, np.nan, np.inf, 2, -np.inf, 3], np.float32)
    b = np.array([1, np.nan, np.inf, np.inf, 0, 3], np.float32)
    drawn = picture(a, b)
    assert (drawn.histogram.low, drawn.histogram.high, drawn.histogram.counted) == (1, 3, 2)
    assert drawn.heat.cells == (f"{EQUAL}{EQUAL}{EQUAL}{APART}{APART}{EQUAL}",)


def test_mask_values_do_not_squeeze_the_others():
    a = np.where(np.arange(4096) % 2, np.float32(-65504), RNG.standard_normal(4096).astype(np.float32))
    drawn = picture(a, a).histogram
    assert drawn.masked == 2048
    assert drawn.low > -10
    assert sum(drawn.a) == 2048


@given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.integers(18, 21))
@settings(max_examples=40, deadline=None)
def test_a_sample_stays_small_and_sees_every_place_of_an_axis(sizes, power):
    """A step that shared a factor with an axis would look at some channels alone."""
    from graphdoc.compare.pictures import _stride

    shape = (*sizes, 1 << power)
    step = _stride(shape, SAMPLE)
    assert math.prod(shape) / step <= SAMPLE
    assert all(math.gcd(step, size) == 1 for size in shape)


# Powers of two, reach

KINDS = [
    np.float64,
    np.float32,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
]


@pytest.mark.parametrize("kind", KINDS)
def test_powers_and_reach_are_those_of_each_element(kind):
    info = ml_dtypes.finfo(kind)
    top, tiny = float(info.max), float(info.smallest_normal)
    values = [top, top / 5, top / 100, 1, tiny * 7, tiny, float(info.smallest_subnormal), 0, -top, -tiny / 2]
    a = np.array(values).astype(kind)
    drawn = picture(a, a)
    sizes = [abs(float(v)) for v in a if v != 0]
    exponents = [math.frexp(v)[1] - 1 for v in sizes]
    if kind is not np.float64:  # whose range has more powers of two than are kept
        assert drawn.magnitudes.low == min(exponents)
        assert drawn.magnitudes.a == tuple(
            exponents.count(e) for e in range(min(exponents), max(exponents) + 1)
        )
    assert sum(drawn.magnitudes.a) == 9
    end = 2.0 ** (math.frexp(top)[1] - 4)
    assert drawn.reach_a.near_overflow == sum(v >= end for v in sizes) / 10
    assert drawn.reach_a.near_underflow == sum(tiny <= v < 16 * tiny for v in sizes) / 10
    assert drawn.reach_a.subnormal == sum(v < tiny for v in sizes) / 10
    assert drawn.reach_a.dtype == np.dtype(kind).name


def test_integers_reach_their_ends():
    a = np.array([-128, -127, 0, 127, 127], np.int8)
    assert picture(a, a).reach_a.near_overflow == 3 / 5
    b = np.array([0, 0, 255, 7], np.uint8)  # 0 is the end of no signed range; a quantised 0 is ordinary
    assert picture(b, b).reach_b.near_overflow == 1 / 4
    assert (
        picture(np.array([-8, 7, 0], ml_dtypes.int4), np.zeros(3, ml_dtypes.int4)).reach_a.near_overflow
        == 2 / 3
    )
    assert picture(np.array([True]), np.array([False])).reach_a is None


# Heat map


def expected_cells(a, b, rows, columns):
    """The largest difference of each cell of a rank 3 array, element by element."""
    _, height, width = a.shape
    found = np.zeros((rows, columns))
    for r in range(height):
        for c in range(width):
            i = next(i for i in range(rows) if i * height // rows <= r < (i + 1) * height // rows)
            j = next(j for j in range(columns) if j * width // columns <= c < (j + 1) * width // columns)
            d = np.abs(b[:, r, c].astype(np.float64) - a[:, r, c].astype(np.float64)).max()
            found[i, j] = max(found[i, j], d)
    return found


@pytest.mark.parametrize("shape", [(2, 5, 7), (3, 64, 64), (1, 65, 130), (4, 100, 3), (1, 1, 200)])
def test_cells_hold_the_largest_difference(shape, monkeypatch):
    monkeypatch.setattr("graphdoc.compare.pictures.BLOCK", 50)
    a, b = pair(shape)
    drawn = picture(a, b).heat
    rows, columns = len(drawn.cells), len(drawn.cells[0])
    assert (rows, columns) == (min(shape[1], 64), min(shape[2], 64))
    assert drawn.shape == shape[1:]
    assert drawn.largest == np.abs(b.astype(np.float64) - a.astype(np.float64)).max()
    for letters, line in zip(drawn.cells, expected_cells(a, b, rows, columns), strict=True):
        for letter, value in zip(letters, line, strict=True):
            shown = drawn.largest * 10 ** ((LEVELS.index(letter) - 25) / LETTERS_PER_DECADE)
            assert (
                value == 0 or letter == "a" or abs(math.log10(shown / value)) <= 0.5001 / LETTERS_PER_DECADE
            )


@pytest.mark.parametrize(
    ("shape", "axes", "plane"),
    [
        ((), (None, None), (1, 1)),
        ((9,), (None, 0), (1, 9)),
        ((1, 9, 1, 1), (None, 1), (1, 9)),
        ((1, 8, 20, 30), (2, 3), (20, 30)),
        ((5, 40, 2, 3), (0, 1), (5, 40)),
        ((1, 1, 1), (None, None), (1, 1)),
    ],
)
def test_the_plane_is_that_of_the_last_long_axes(shape, axes, plane):
    drawn = picture(*pair(shape)).heat
    assert (drawn.axes, drawn.shape) == (axes, plane)


def test_equal_values_have_no_heat():
    a, _ = pair((4, 4))
    drawn = picture(a, a).heat
    assert set("".join(drawn.cells)) == {EQUAL}
    assert drawn.largest == 0


def test_occurrences_are_an_axis():
    a = Occurrences([np.float32(n) for n in range(5)])
    b = Occurrences([np.float32(n + (n == 3)) for n in range(5)])
    drawn = picture(a, b).heat
    assert (drawn.axes, drawn.cells) == ((None, -1), ("...z.",))


def test_what_has_no_drawing():
    assert picture(np.array(["a"], object), np.array(["b"], object)) is None
    assert picture(np.zeros((0, 3)), np.zeros((0, 3))) is None
    assert picture(np.zeros(2), np.zeros(3)) is None
    assert picture(
        np.array([1 + 2j, 3 - 4j], np.complex64), np.array([1 + 2j, 3 - 5j], np.complex64)
    ).heat.cells


# Which layers


def chain(length: int, wrong: int | None = None) -> onnx.ModelProto:
    """Return ``length`` layers of x·1.0001; ``wrong`` multiplies by 2."""
    weights = [
        helper.make_tensor(f"w{n}", TensorProto.FLOAT, [], [2.0 if n == wrong else 1.0001])
        for n in range(length)
    ]
    nodes = [helper.make_node("Mul", [f"v{n}", f"w{n}"], [f"v{n + 1}"], name=f"m{n}") for n in range(length)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in ("v0", f"v{length}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("memory", [None, 2**20])
def test_few_layers_are_drawn_whatever_the_length(memory):
    result = compare_models(chain(120), chain(120, wrong=50), test_runner="ort", latency=False, memory=memory)
    drawn = [layer.index for layer in result.layers if layer.picture]
    assert result.verdict.first == 50
    assert {50, 119} <= set(drawn)
    assert len(drawn) <= gallery.WRONG + gallery.OUTPUTS + gallery.WORST


def test_none_are_drawn_where_none_are_asked_for():
    result = compare_models(chain(5), chain(5, wrong=2), test_runner="ort", latency=False, pictures=False)
    assert not [layer for layer in result.layers if layer.picture]
