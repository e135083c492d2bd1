"""Machine code against the NumPy walk of the same figures, and against exact sums."""

import dataclasses
import math
import sys
import threading
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.compare import metrics, metrics_native
from graphdoc.compare.metrics import Tolerance, distance, measure
from graphdoc.compare.metrics_native import RECIPES, TILE, Kernel, Limits, Workshop, make, source
from graphdoc.compare.result import Metrics

NEVER, AT_ONCE = 1 << 62, 0
SUMMED = {"mean_abs", "rms", "max_rel", "error", "cosine", "snr_db", "ulp", "rms_a", "rms_b"}
"""Figures that depend on the order of a sum; all others must be equal to the last bit."""

EXACT, LOOSE = Tolerance(), Tolerance(1e-4, 1e-6)
F2, F4, F8 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
KERNELS = Workshop(AT_ONCE)


def by(workshop: Workshop, a: object, b: object, tolerance: Tolerance = EXACT) -> Metrics:
    """Measure with the kernels of one workshop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "WORKSHOP", workshop)
        return measure(a, b, tolerance)


def distance_by(workshop: Workshop, a: object, b: object) -> tuple[float, float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "WORKSHOP", workshop)
        return distance(a, b)


def assert_same(a: object, b: object, tolerance: Tolerance = LOOSE) -> Metrics:
    """Hold machine code against NumPy in every figure; return what the former found."""
    expected, found = by(Workshop(NEVER), a, b, tolerance), by(KERNELS, a, b, tolerance)
    for field in dataclasses.fields(Metrics):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name in SUMMED and one is not None:
            other = pytest.approx(other, rel=1e-12, abs=1e-12 if field.name in ("cosine", "snr_db") else 0)
        assert one == other, field.name
    brief = distance_by(Workshop(NEVER), a, b)
    assert distance_by(KERNELS, a, b) == pytest.approx(brief, rel=1e-12, abs=0)
    return found


def pair(size: int, dtype: "np.dtype[np.floating]" = F4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays that differ by about 1e-3, with zeros in both."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(size) * (rng.random(size) > 0.1)
    b = a + rng.standard_normal(size) * 1e-3 * (rng.random(size) > 0.1)
    return a.astype(dtype), b.astype(dtype)


@pytest.fixture
def fresh_machine() -> Iterator[None]:
    """Forget the CPU that was looked up, before and after."""
    metrics_native._machine.cache_clear()
    yield
    metrics_native._machine.cache_clear()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dtypes", [(F4, F4), (F8, F8), (F8, F4), (F4, F8)])
def test_a_kernel_is_made(name: str, dtypes: "tuple[np.dtype[np.floating], ...]") -> None:
    """Without this, every test below would hold NumPy against itself."""
    assert isinstance(make(name, *dtypes), Kernel)


@pytest.mark.parametrize("dtypes", [(F4, F4), (F8, F8), (F2, F2), (F8, F4), (F4, F2)])
@pytest.mark.parametrize("size", [0, 1, 3, 8, 31, TILE - 1, TILE, TILE + 9, 3 * TILE + 5])
def test_every_figure_equals_numpys(size: int, dtypes: "tuple[np.dtype[np.floating], ...]") -> None:
    """Empty, shorter than a vector, whole tiles, and tails; dtypes alike and mixed."""
    a, b = pair(size)

    assert_same(a.astype(dtypes[0]), b.astype(dtypes[1]))


SPECIAL = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-30, -3e38, 6e-8])


@given(
    st.integers(1, 2 * TILE + 40),
    st.lists(st.tuples(st.integers(0, 2 * TILE), SPECIAL, SPECIAL), max_size=6),
    st.sampled_from([F4, F8]),
)
@settings(max_examples=150, deadline=None)
def test_special_values_anywhere(
    size: int, places: list[tuple[int, float, float]], dtype: "np.dtype[np.floating]"
) -> None:
    """NaN, infinities, zeros of both signs and extreme magnitudes, on one side or both, at any place."""
    a, b = pair(size, dtype)
    for place, x, y in places:
        a[place % size], b[place % size] = x, y

    assert_same(a, b)


def test_figures_equal_exact_sums() -> None:
    """The kernel alone against sums without rounding (math.fsum) and plain formulas."""
    a, b = pair(5 * TILE)
    x, y = a.astype(np.float64), b.astype(np.float64)
    d = np.abs(y - x)
    kernel = make("measure", F4, F4)
    assert kernel is not None

    ((start, stop, found),) = kernel.walk(a, b, Limits(scale=0.5, relative=1e-3, absolute=1e-4))

    assert found is not None
    assert (start, stop) == (0, a.size)
    for name, terms in {"dd": d * d, "aa": x * x, "bb": y * y, "ab": x * y, "sum_abs": d}.items():
        assert found[name] == pytest.approx(math.fsum(terms), rel=1e-13)
    assert found["max_abs"] == d.max()
    assert found["max_rel"] == (d / np.maximum(np.abs(x), 0.5)).max()
    assert found["outside"] == np.count_nonzero(d > 1e-4 + 1e-3 * np.abs(x))
    assert (found["low_a"], found["high_a"]) == (x.min(), x.max())
    assert (found["low_b"], found["high_b"]) == (y.min(), y.max())
    assert (found["zero_a"], found["zero_b"]) == ((x == 0).sum(), (y == 0).sum())
    assert found["tile"] == d.argmax() // TILE * TILE


@pytest.mark.parametrize("lanes", [2, 8, 16])
def test_the_width_of_a_vector_changes_nothing(lanes: int) -> None:
    """Text for CPUs with other registers, run on this one."""
    a, b = pair(3 * TILE)
    narrow = make("measure", F4, F4)
    assert narrow is not None
    address = metrics_native._machine().compile(source(narrow.recipe, "float", "float", lanes))
    start = np.repeat(narrow.start[:, :1], lanes, axis=1)
    kernel = Kernel(narrow.recipe, lanes, metrics_native._PROTOTYPE(address), start)

    ((_, _, found),) = kernel.walk(a, b, Limits(1.0, 1e-4, 1e-6))

    ((_, _, expected),) = narrow.walk(a, b, Limits(1.0, 1e-4, 1e-6))
    assert found == pytest.approx(expected, rel=1e-13)


def test_a_tile_with_nan_is_left_out_and_the_walk_goes_on() -> None:
    a, b = pair(4 * TILE + 3)
    a[TILE + 7] = math.nan
    b[4 * TILE - 1] = math.inf
    kernel = make("distance", F4, F4)
    assert kernel is not None

    stretches = [(start, stop, figures is None) for start, stop, figures in kernel.walk(a, b)]

    assert stretches == [
        (0, TILE, False),
        (TILE, 2 * TILE, True),
        (2 * TILE, 3 * TILE, False),
        (3 * TILE, 4 * TILE, True),
        (4 * TILE, 4 * TILE + 3, True),
    ]


@pytest.mark.parametrize("first", [5, TILE - 1, TILE + 2, 3 * TILE + 1])
def test_the_first_of_equal_differences_is_named(first: int) -> None:
    """Also across lanes, tiles and a tile that NumPy walks."""
    a = np.zeros(4 * TILE + 2, np.float32)
    b = a.copy()
    b[first:] = 2.0
    b[first + 1 :: 3] = -2.0
    a[2 * TILE + 5] = b[2 * TILE + 5] = math.nan

    assert assert_same(a, b).worst == (first,)


def test_the_tail_is_not_taken_for_a_part_of_the_last_tile() -> None:
    """A NaN just past the last full vector neither hides nor moves the largest difference."""
    a = np.ones(TILE + 9, np.float32)
    b = a.copy()
    b[TILE + 6] = 4.0
    a[-1] = b[-1] = math.nan

    found = assert_same(a, b)

    assert (found.worst, found.a_worst, found.b_worst, found.nan_a) == ((TILE + 6,), 1.0, 4.0, 1)


def test_squares_past_float64_fall_to_numpy() -> None:
    """Finite elements whose squares overflow count as finite; how far apart they are cannot be told."""
    a, b = np.full(TILE, 1e200), np.full(TILE, 1e200)
    b[3] = 2e200
    with np.errstate(over="ignore"):
        found = assert_same(a, b)

    assert (found.nan_a, found.inf_a, found.max_abs, found.worst) == (0, 0, 1e200, (3,))
    assert (found.error, found.cosine, found.snr_db) == (math.inf, None, None)


def test_tiny_values_keep_their_scale() -> None:
    """Squares that float32 cannot hold still give the scale of relative differences."""
    a = np.full(2 * TILE, 1e-30, np.float32)
    b = a * np.float32(1.5)

    assert assert_same(a, b).max_rel == pytest.approx(0.5)


def test_an_element_at_the_limit_is_inside() -> None:
    """|B − A| equal to the tolerance agrees, as in numpy.allclose."""
    a = np.full(16, 2.0, np.float32)
    b = a + np.float32(0.75)
    b[3] = np.nextafter(b[3], np.float32(9))

    assert assert_same(a, b, Tolerance(relative=0.25, absolute=0.25)).outside == 1 / 16


def test_equal_arrays_have_no_difference() -> None:
    a, _ = pair(2 * TILE + 1)

    found = assert_same(a, a.copy())

    assert (found.error, found.max_abs, found.worst, found.outside) == (0.0, 0.0, None, 0.0)


def test_sequences_share_one_scale_and_one_worst() -> None:
    a, b = pair(3 * TILE + 4)

    assert_same([a[:TILE], a[TILE:]], [b[:TILE], b[TILE:]])


@pytest.mark.parametrize("workshop", [Workshop(NEVER), KERNELS], ids=["numpy", "native"])
def test_the_worst_of_complex_numbers_is_an_element(workshop: Workshop) -> None:
    """Both parts are walked; the index is that of the number."""
    a = np.zeros((3, TILE), np.complex64)
    b = a.copy()
    b[2, 5] = 3j

    assert by(workshop, a, b).worst == (2, 5)


def test_an_array_may_lie_at_any_address() -> None:
    a, b = pair(TILE + 8)
    odd = np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(np.float32)
    assert not odd.flags.aligned

    assert_same(odd, b)


def test_order_in_memory_is_of_no_matter() -> None:
    a, b = (x.reshape(64, -1).T for x in pair(2 * TILE))

    assert assert_same(a, b).worst == np.unravel_index(np.abs(b.astype(F8) - a).argmax(), a.shape)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.dtype(">f4"), ml_dtypes.bfloat16])
def test_other_dtypes_stay_with_numpy(dtype: object) -> None:
    a = np.zeros(TILE, dtype)

    assert KERNELS.kernel("measure", a, a) is None
    assert by(KERNELS, a, a).size == TILE


def test_a_kernel_waits_for_enough_elements_of_its_kind() -> None:
    """Small comparisons never load llvmlite."""
    workshop = Workshop(1000)
    a, wide = np.zeros(400, F4), np.zeros(400, F8)

    assert workshop.kernel("measure", a, a) is None
    assert workshop.kernel("distance", a, a) is None
    assert workshop.kernel("measure", wide, wide) is None
    assert workshop.kernel("measure", a, a) is None
    assert isinstance(workshop.kernel("measure", a, a), Kernel)
    assert workshop.kernel("distance", a, a) is None


@pytest.mark.usefixtures("fresh_machine")
def test_without_llvmlite_numpy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    a, b = pair(TILE)

    assert make("measure", F4, F4) is None
    assert by(Workshop(AT_ONCE), a, b) == by(Workshop(NEVER), a, b)


@pytest.mark.usefixtures("fresh_machine")
def test_text_that_llvm_refuses_leaves_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an older LLVM might."""
    monkeypatch.setattr(metrics_native, "_FRAME", "define nonsense")

    assert make("measure", F4, F4) is None


@pytest.mark.usefixtures("fresh_machine")
def test_half_precision_needs_a_cpu_that_converts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_native._machine(), "has_half", False)

    assert make("measure", F2, F2) is None
    assert make("measure", F4, F4) is not None


def test_threads_share_a_kernel() -> None:
    """The totals belong to a call, and a kernel is made once."""
    workshop = Workshop(AT_ONCE)
    pairs = [pair(20 * TILE, seed=seed) for seed in range(4)]
    found: dict[int, Metrics] = {}

    def work(index: int) -> None:
        for _ in range(5):
            found[index] = measure(*pairs[index])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "WORKSHOP", workshop)
        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert found == {index: by(workshop, *pairs[index]) for index in range(4)}
