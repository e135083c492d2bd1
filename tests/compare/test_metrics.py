"""Metrics against plain float64 formulas."""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphdoc.compare.metrics import BLOCK, MismatchError, Tolerance, distance, epsilon, measure
from graphdoc.engine.scope import Occurrences

FLOATS = st.floats(-8e3, 8e3, width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = draw(SHAPES)
    arrays = hnp.arrays(np.float32, shape, elements=FLOATS)
    return draw(arrays), draw(arrays)


@given(pairs())
@settings(max_examples=200, deadline=None)
def test_figures_equal_the_formulas(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """Every figure is what a direct computation over all finite elements gives."""
    a, b = (x.astype(np.float64) for x in pair)
    finite = np.isfinite(a) & np.isfinite(b)
    same = (np.isnan(a) & np.isnan(b)) | (a == b)

    found = measure(*pair)

    x, y = a[finite], b[finite]
    d = np.abs(y - x)
    assert found.size == a.size
    assert found.nonfinite_differ == int((~finite & ~same).sum())
    assert found.max_abs == d.max(initial=0.0)
    assert found.rms == pytest.approx(np.sqrt(np.mean(d**2)) if d.size else 0.0, rel=1e-12)
    assert found.rms_a == pytest.approx(np.sqrt(np.mean(x**2)) if x.size else 0.0, rel=1e-12)
    assert (found.nan_a, found.nan_b) == (np.isnan(a).sum(), np.isnan(b).sum())
    assert (found.inf_a, found.inf_b) == (np.isinf(a).sum(), np.isinf(b).sum())
    if found.nonfinite_differ:
        assert found.error == math.inf
    elif found.rms == 0:
        assert found.error == 0
    elif found.rms_a > 0:
        assert found.error == pytest.approx(found.rms / found.rms_a)


@given(hnp.arrays(np.float32, SHAPES, elements=FLOATS))
@settings(deadline=None)
def test_a_value_agrees_with_itself(a: np.ndarray) -> None:
    """NaN and Inf in the same places are no difference."""
    found = measure(a, a.copy())

    assert (found.error, found.outside, found.nonfinite_differ) == (0.0, 0.0, 0)


def test_blocks_join_without_a_seam() -> None:
    """A difference in the last of several blocks is found, and placed right."""
    a = np.ones((3, BLOCK), np.float32)
    b = a.copy()
    b[2, 5] = 3.0

    found = measure(a, b)

    assert found.worst == (2, 5)
    assert (found.a_worst, found.b_worst) == (1.0, 3.0)
    assert found.rms == pytest.approx(2 / math.sqrt(a.size))


def test_worst_is_placed_right_beside_nan() -> None:
    """Positions count the elements that are left out because both are NaN."""
    a = np.array([math.nan, 1.0, 2.0], np.float32)
    b = np.array([math.nan, 1.0, 5.0], np.float32)

    assert measure(a, b).worst == (2,)


def test_ulp_near_zero_counts_against_the_scale() -> None:
    """One unit in the last place of the tensor's scale is one ULP, also where A is 0."""
    a = np.array([1.0, -1.0, 0.0, 1.0], np.float32)
    b = a.copy()
    b[2] = np.float32(2.0**-23)

    assert measure(a, b).ulp == pytest.approx(1.0, rel=0.2)


def test_tolerance_counts_elements_outside() -> None:
    """|B − A| ≤ absolute + relative·|A| is inside, as in numpy.allclose."""
    a = np.array([1.0, 10.0, 100.0])
    b = np.array([1.05, 10.2, 103.0])

    found = measure(a, b, Tolerance(relative=0.025, absolute=0.01))

    outside = ~np.isclose(b, a, rtol=0.025, atol=0.01)
    assert found.outside == pytest.approx(outside.mean())


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.float16, np.int64, np.bool_]
)
def test_every_dtype_is_read_as_numbers(dtype: type) -> None:
    a = np.array([0, 1, 1, 0]).astype(dtype)
    b = np.array([0, 1, 0, 0]).astype(dtype)

    assert measure(a, b).error == pytest.approx(math.sqrt(1 / 2))


def test_complex_values_compare_both_parts() -> None:
    a = np.array([1 + 1j, 2 - 1j], np.complex64)

    assert measure(a, a).error == 0
    assert measure(a, a.conj()).max_abs == 2


def test_strings_differ_by_share() -> None:
    a = np.array(["north", "south", "east", "west"], dtype=object)
    b = np.array(["north", "south", "EAST", "west"], dtype=object)

    found = measure(a, b)

    assert (found.error, found.worst, found.a_worst, found.b_worst) == (0.25, (2,), "east", "EAST")


def test_sequences_and_maps_are_walked() -> None:
    one, two = [np.ones(2), np.zeros(3)], [np.ones(2), np.ones(3)]

    assert measure(one, two).max_abs == 1
    assert measure([{"cat": 0.25}], [{"cat": 0.75}]).max_abs == 0.5
    assert measure(Occurrences([np.ones(2)]), Occurrences([np.ones(2)])).size == 2
    assert measure(None, None).size == 0


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.ones(2), np.ones(3), "shape 2, B 3"),
        ([np.ones(1)], [], "1 elements, B 0"),
        ([{"cat": 1.0}], [{"dog": 1.0}], "different keys"),
        (None, np.ones(1), "empty optional"),
    ],
)
def test_what_cannot_be_held_side_by_side_is_refused(a: object, b: object, words: str) -> None:
    with pytest.raises(MismatchError, match=words):
        measure(a, b)


def test_distance_is_the_brief_form_of_measure() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(3 * BLOCK).astype(np.float32)
    b = a + rng.standard_normal(a.size).astype(np.float32) * 1e-3

    difference, scale = distance(a, b)

    found = measure(a, b)
    assert (difference, scale) == pytest.approx((found.rms, found.rms_a))
    assert distance(np.array([1.0]), np.array([math.nan]))[0] == math.inf


def test_epsilon_is_numpys() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        assert epsilon(dtype) == np.finfo(dtype).eps
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        assert epsilon(dtype) == float(ml_dtypes.finfo(dtype).eps)
    assert epsilon(np.int32) == epsilon(np.dtype(object)) == 0


@pytest.mark.parametrize("mask", [-1e4, -65504.0, -1e9, -3.4e38])
def test_mask_values_do_not_drown_an_error(mask: float) -> None:
    """What is added to attention scores to hide positions must not hide errors of the others."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((4, 64)).astype(np.float32)
    hidden = np.zeros((4, 64), np.float32)
    hidden[:, 50:] = mask
    a, b = scores + hidden, scores * np.float32(1.01) + hidden

    assert measure(a, b).error == pytest.approx(0.01, rel=0.2)
    assert np.divide(*distance(a, b)) == pytest.approx(0.01, rel=0.2)


def test_a_mask_in_other_places_is_an_error() -> None:
    a, b = np.ones((2, 8), np.float32), np.ones((2, 8), np.float32)
    a[:, 6:] = b[:, 5:7] = -1e9

    assert measure(a, b).error > 0.5


def test_large_values_without_a_gap_are_no_mask() -> None:
    a = np.geomspace(1, 1e6, 200, dtype=np.float32)

    assert measure(a, a * np.float32(1.01)).rms_a == pytest.approx(np.sqrt(np.mean(a.astype(float) ** 2)))


@given(
    hnp.arrays(
        np.int64,
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=4),
        elements=st.integers(-9, 9),
    )
)
@settings(deadline=None)
def test_few_equal_numbers_give_the_figures_of_the_long_way(values: np.ndarray) -> None:
    """The shortcut for shapes and indices agrees with the walk, which the same numbers as float64 take."""
    wide = values.astype(np.float64)

    short, long = measure(values, values.copy()), measure(wide, wide.copy())

    assert replace(short, ulp=None, cosine=None) == replace(long, ulp=None, cosine=None)
    assert short.cosine == pytest.approx(long.cosine)
    assert distance(values, values) == pytest.approx(distance(wide, wide))
