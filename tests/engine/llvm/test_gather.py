"""Gathers as machine code against the specification's NumPy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.engine.device.llvm.compiler import host_target
from graphdoc.engine.device.llvm.emit import emit
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.expr import F16, F32, F64, I32, I64, U8
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.program import Buffer, Step, View, whole
from tests.engine.llvm.native import AVX512, SSE2, dressed, run
from tests.engine.llvm.views_of import numbers, views

TARGETS = {"host": host_target(), "512": dressed(AVX512), "128": dressed(SSE2)}
SIZES = st.sampled_from((1, 2, 3, 7, 8, 9, 32, 40, 67))


def memory_of(step: Step, seed: int, indices: Any = None) -> dict[Buffer, Any]:
    """Return numbers for every buffer; indices within the table, counted from either end, unless given."""
    rng = np.random.default_rng(seed)
    data, index = step.inputs
    assert isinstance(step.spec, Gather)
    size = data.shape[step.spec.axis]
    memory = {v.buffer: numbers(rng, v.buffer.size, v.dtype) for v in (data, *step.outputs)}
    found = rng.integers(-size, size, index.buffer.size) if indices is None else np.asarray(indices)
    return memory | {index.buffer: found.astype(index.dtype)}


def check(step: Step, memory: dict[Buffer, Any], target: Any, threads: int = 1) -> int:
    """Compare all bytes of the output's buffer; return with how many threads the kernel may be entered."""
    wanted = {buffer: array.copy() for buffer, array in memory.items()}
    step.spec.evaluate(
        [v.array(wanted[v.buffer]) for v in step.inputs], [v.array(wanted[v.buffer]) for v in step.outputs]
    )
    kernel = emit(step, target)
    assert kernel is not None
    assert kernel.status
    assert not run(kernel, step, memory, min(threads, kernel.threads))
    for view in step.outputs:
        np.testing.assert_array_equal(memory[view.buffer], wanted[view.buffer])
    return kernel.threads


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Return a gather over views of any kind, the index varying along some of the axes."""
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=4).filter(lambda s: np.prod(s) < 20_000)))
    axis = draw(st.integers(0, len(shape) - 1))
    table = list(shape)
    table[axis] = draw(st.sampled_from((1, 2, 30)))
    dtype = draw(st.sampled_from((F32, U8, F64, F16)))
    data = draw(views(tuple(table), dtype, repeats=False))
    index = draw(views(shape, draw(st.sampled_from((I32, I64))), repeats=True))
    return Step(Gather(axis), (data, index), (draw(views(shape, dtype, repeats=False)),))


@settings(max_examples=100, deadline=None)
@given(steps(), st.sampled_from(sorted(TARGETS)), st.integers(1, 3), st.integers(0, 9))
def test_any_views(step: Step, target: str, threads: int, seed: int) -> None:
    """Whatever the layout, rows copied whole or element by element."""
    check(step, memory_of(step, seed), TARGETS[target], threads)


def embedding(rows: int, width: int, count: int, dtype: Any = F32) -> Step:
    """Return ``count`` rows of a table."""
    index = View(Buffer("i", I64, count), (count, width), (1, 0))
    table = whole(Buffer("w", dtype, rows * width), (rows, width))
    return Step(Gather(0), (table, index), (whole(Buffer("y", dtype, count * width), (count, width)),))


@pytest.mark.parametrize(("rows", "width", "count"), [(100, 768, 50), (3, 20_000, 2), (9, 1, 40), (5, 33, 7)])
def test_rows_of_a_table(rows: int, width: int, count: int) -> None:
    """Embeddings: the threads share the rows, or the blocks of long ones."""
    step = embedding(rows, width, count)
    most = check(step, memory_of(step, 0), host_target(), 3)
    assert (most > 1) == (width * count > 5000)


@pytest.mark.parametrize("wrong", [5, -6, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("width", [1, 40])
def test_an_index_outside_is_noted(wrong: int, width: int) -> None:
    """The status says so, nothing outside the table is read; the meaning in NumPy raises."""
    step = embedding(5, width, 3)
    memory = memory_of(step, 0, [0, wrong, 4])
    kernel = emit(step, host_target())
    assert kernel is not None
    assert run(kernel, step, memory)
    got = memory[step.outputs[0].buffer].reshape(3, width)
    table = memory[step.inputs[0].buffer].reshape(5, width)
    np.testing.assert_array_equal(got, table[[0, 0, 4]])
    with pytest.raises(RunnerError, match="outside its axis of 5"):
        step.spec.evaluate(
            [v.array(memory[v.buffer]) for v in step.inputs],
            [v.array(memory[v.buffer]) for v in step.outputs],
        )


def test_an_empty_table_is_left_to_the_host() -> None:
    """Every index is outside, and there is nothing to read in its place."""
    assert emit(embedding(0, 4, 3), host_target()) is None


def test_complex_numbers_are_left_to_the_host() -> None:
    """No machine integer is as wide."""
    assert emit(embedding(4, 4, 3, np.dtype(np.complex128)), host_target()) is None
