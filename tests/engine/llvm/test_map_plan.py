"""How maps are run: which axis vectors lie along, tiles, neighbours, widths, threads."""

import math
from typing import Any

import pytest

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.map_plan import plan, unroll_for
from graphdoc.engine.device.llvm.walk import Block, ordered, threads_for
from graphdoc.engine.expr import BOOL, F16, F32, F64, I8, I64, Expr, apply, cast, const, index, load
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Buffer, Step, View, whole

AVX2 = Target("haswell", "+f16c", 32, 16)
AVX512 = Target("skylake-avx512", "+f16c", 64, 32)


def dense(shape: tuple[int, ...], dtype: Any = F32) -> View:
    """Return a row-major view of a new buffer."""
    return whole(Buffer("x", dtype, math.prod(shape)), shape)


def planned(body: Expr, *views: View, target: Target = AVX2) -> Any:
    """Return the plan of a map of one output; the last view is the output."""
    return plan(Step(Map((body,)), views[:-1], views[-1:]), target)


def test_dense_operands_are_one_row() -> None:
    """Axes merge, also of values whose axes are permuted alike."""
    x, y = dense((4, 5, 6, 7)).permuted((0, 3, 1, 2)), dense((4, 5, 6, 7)).permuted((0, 3, 1, 2))
    found = planned(load(0, F32), x, y)
    assert found.row.size == 840
    assert found.outer == []


def test_positions_keep_axes_apart() -> None:
    """An expression that asks for the position on an axis walks that axis by itself."""
    found = planned(cast(index(1), F32), dense((4, 5, 6)))
    assert [size for size, _ in found.outer] + [found.row.size] == [4, 5, 6]


def test_axes_that_run_backwards_are_turned() -> None:
    """The output is walked forwards; operands start at their other end."""
    axes, starts = ordered((4, 5), [(5, -1), (1, 4)], 0)
    assert axes == [(4, (5, 1)), (5, (1, -4))]
    assert starts == [-4, 16]


@pytest.mark.parametrize(
    ("shape", "order", "way"),
    [
        ((64, 64), (1, 0), "tiles"),
        ((3, 100, 100), (1, 2, 0), "woven"),
        ((100, 100, 3), (2, 0, 1), "rows"),
        ((8, 12, 64), (1, 0, 2), "rows"),
        ((2000, 2), (1, 0), "rows"),
    ],
)
def test_transposes(shape: tuple[int, ...], order: tuple[int, ...], way: str) -> None:
    """Squares by tiles, planes woven into pixels, everything else by rows."""
    source = dense(shape).permuted(order)
    found = planned(load(0, F32), source, dense(source.shape))
    assert ("tiles" if found.tile else "woven" if found.many > 1 else "rows") == way


@pytest.mark.parametrize(
    ("rows", "columns", "along"), [(64, 1024, False), (1024, 64, True), (1000, 1000, False)]
)
def test_lines_that_crowd_are_read_whole(rows: int, columns: int, along: bool) -> None:
    """An input with strides of 4 KiB is read line by line, unless the lines of the output crowd as much."""
    source = dense((columns, rows)).permuted((1, 0))
    assert planned(load(0, F32), source, dense((rows, columns))).along == along


@pytest.mark.parametrize(
    ("body", "lanes", "wide"),
    [
        (load(0, F32), 8, 16),
        (load(0, I8), 32, 64),
        (load(0, F64), 4, 8),
        (load(0, BOOL), 32, 64),
        (apply("add", load(0, F16), load(0, F16)), 8, 16),
        (cast(load(0, I8), F32), 8, 16),
        (cast(load(0, F32), I64), 4, 8),
    ],
)
def test_lanes_follow_the_widest_dtype(body: Expr, lanes: int, wide: int) -> None:
    """A vector fills a register of the widest dtype that is computed in."""
    (leaf,) = {node for node in (body, *body.args) if node.op == "input"}
    for target, count in ((AVX2, lanes), (AVX512, wide)):
        assert (
            planned(body, dense((1000,), leaf.dtype), dense((1000,), body.dtype), target=target).lanes
            == count
        )


@pytest.mark.parametrize(
    ("op", "dtype", "vectors"),
    [("neg", F32, 4), ("exp", F32, 4), ("erf", F32, 2), ("tan", F32, 1), ("exp", F64, 1)],
)
def test_rounds_fit_the_registers(op: str, dtype: Any, vectors: int) -> None:
    """Four vectors at once of what is light, one of what calls the C library."""
    assert unroll_for((apply(op, load(0, dtype)),), 32 // dtype.itemsize, AVX2) == vectors


def test_values_that_stay_alive_count() -> None:
    """A constant takes no register, an input that is needed later does."""
    x = load(0, F32)
    heavy = apply("mul", apply("exp", x), apply("add", apply("exp", apply("neg", x)), x))
    assert unroll_for((heavy,), 8, AVX2) == 2
    assert unroll_for((apply("exp", apply("add", x, const(1, F32))),), 8, AVX2) == 4


def test_blocks_cover_an_axis() -> None:
    """Each is of the length, the last one longer, but a short axis is one block."""
    assert [Block.of_row(n).count for n in (0, 1, 8191, 8192, 12_287, 12_288)] == [1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("nbytes", "cycles", "units", "threads"),
    [(0, 0, 9, 1), (16_384, 0, 9, 1), (40_000, 0, 9, 2), (40_000, 0, 1, 1), (100, 20_000, 9, 4)],
)
def test_threads_follow_the_work(nbytes: int, cycles: float, units: int, threads: int) -> None:
    """One for each 16 KiB or 4096 cycles, no more than there are units."""
    assert threads_for(nbytes, cycles, units) == threads
