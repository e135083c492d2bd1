"""The first elements of rows as machine code, against the specification's NumPy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.engine.device.llvm.topk import emit_topk
from graphdoc.engine.expr import F64
from graphdoc.engine.kernels.topk import TopK
from graphdoc.engine.program import Buffer, Step, View
from graphdoc.engine.sound import Unsound, check
from tests.engine.llvm.rows_run import both, fresh, strided, targets
from tests.engine.lowered import check as check_node
from tests.engine.lowered import ints, noise


def compared(x: Any, k: int, *, largest: bool, order: Any, negative: Any, target: Any, threads: int) -> None:
    """Run a step over a view of x, by the kernel and by NumPy: the same bits."""
    view, memory = strided(x, order, negative, gap=1)
    values, values_memory = fresh((*x.shape[:-1], k), x.dtype)
    indices, indices_memory = fresh((*x.shape[:-1], k), np.int64)
    step = Step(TopK(largest), (view,), (values, indices))
    check(step)
    kernel = emit_topk(step, target)
    assert kernel is not None
    arrays = {view.buffer: memory, values.buffer: values_memory, indices.buffer: indices_memory}
    for ours, theirs in both(kernel, step, arrays, threads, target):
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_against_numpy(data: Any) -> None:
    """Random shapes, layouts and counts; ties, NaN, infinities, zeros of both signs."""
    rows = data.draw(st.sampled_from([(), (1,), (3,), (2, 5)]))
    size = data.draw(st.sampled_from([1, 2, 7, 8, 9, 33, 64, 100, 257]))
    k = data.draw(st.integers(1, size))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    shape = (*rows, size)
    if data.draw(st.booleans()):
        x = rng.integers(-4, 5, shape).astype(np.int32)
        x[rng.random(shape) < 0.1] = np.iinfo(np.int32).min
        x[rng.random(shape) < 0.1] = np.iinfo(np.int32).max
    else:
        x = np.round(rng.standard_normal(shape) * 3).astype(np.float32)
        for value in (np.nan, -np.nan, np.inf, -np.inf, -0.0):
            x[rng.random(shape) < 0.05] = value
    order = data.draw(st.permutations(range(len(shape))))
    negative = [a for a in range(len(shape)) if data.draw(st.booleans())]
    target = data.draw(st.sampled_from(targets()))
    threads = data.draw(st.sampled_from([1, 2]))
    compared(
        x, k, largest=data.draw(st.booleans()), order=order, negative=negative, target=target, threads=threads
    )


@pytest.mark.parametrize("k", [24, 25, 300, 1000])
@pytest.mark.parametrize("kind", ["rising", "falling", "equal", "random"])
def test_long_rows(k: int, kind: str) -> None:
    """Every element is kept for a while, or only the first are."""
    x = {
        "rising": np.arange(3000.0),
        "falling": -np.arange(3000.0),
        "equal": np.ones(3000),
        "random": np.random.default_rng(0).standard_normal(3000),
    }[kind].astype(np.float32)
    for largest in (True, False):
        compared(x[None], k, largest=largest, order=(0, 1), negative=(), target=targets()[0], threads=1)


def test_what_it_refuses() -> None:
    """Other dtypes have no kernel; more than there are is unsound."""
    x = View(Buffer("x", F64, 4), (4,), (1,))
    values, _ = fresh((2,), np.float64)
    indices, _ = fresh((2,), np.int64)
    assert emit_topk(Step(TopK(True), (x,), (values, indices)), targets()[0]) is None
    many, _ = fresh((5,), np.float64)
    places, _ = fresh((5,), np.int64)
    with pytest.raises(Unsound, match="the first 5 of 4"):
        check(Step(TopK(True), (x,), (many, places)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, np.int16])
def test_nodes(dtype: Any) -> None:
    """Any axis, both directions, dtypes by way of a wider one; what has no order here is left to level 0."""
    x = noise(3, 9, 4, scale=3).astype(dtype)
    for axis in (0, 1, -1):
        for largest in (0, 1):
            check_node("TopK", x, ints(3), const=[1], outputs=2, axis=axis, largest=largest)
    check_node("TopK", x.astype(np.float64), ints(3), const=[1], outputs=2, host=True)
    check_node("TopK", x, ints(0), const=[1], outputs=2, host=True)
    check_node("TopK", x, ints(3), outputs=2, host=True)
