"""Maps as machine code against the specification's NumPy: any views, widths, threads."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.engine import expr
from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.compiler import host_target
from graphdoc.engine.device.llvm.emit import emit
from graphdoc.engine.expr import F16, F32, F64, I8, I32, I64, U8, Expr, apply, cast, const, index, load
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Buffer, Step, View, whole
from tests.engine.llvm.native import AVX2, AVX512, SSE2, dressed, run
from tests.engine.llvm.views_of import numbers, views

TARGETS = {"host": host_target(), "512": dressed(AVX512), "128": dressed(SSE2), "plain": SSE2}
SIZES = st.sampled_from((1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 40, 64, 67))


def check(step: Step, target: Target, threads: int, seed: int = 0) -> int:
    """Run a step natively and with NumPy on the same numbers, and compare all bytes of the outputs' buffers.

    Returns with how many threads it may be entered.
    """
    rng = np.random.default_rng(seed)
    buffers = {view.buffer for view in (*step.inputs, *step.outputs)}
    memory = {b: numbers(rng, b.size, b.dtype) for b in sorted(buffers, key=lambda b: (b.name, b.size))}
    wanted = {buffer: array.copy() for buffer, array in memory.items()}
    with np.errstate(all="ignore"):
        step.spec.evaluate(
            [v.array(wanted[v.buffer]) for v in step.inputs],
            [v.array(wanted[v.buffer]) for v in step.outputs],
        )
    kernel = emit(step, target)
    if kernel is None:
        assert any(0 in view.shape for view in step.outputs)
        return 0
    run(kernel, step, memory, min(threads, kernel.threads), target)
    for view in step.outputs:
        np.testing.assert_array_equal(memory[view.buffer], wanted[view.buffer])
    return kernel.threads


BODIES: dict[str, tuple[tuple[Any, ...], tuple[Expr, ...]]] = {
    "copy": ((F32,), (load(0, F32),)),
    "bytes": ((U8,), (load(0, U8),)),
    "doubles": ((F64,), (load(0, F64),)),
    "halves": ((F16,), (apply("add", load(0, F16), load(0, F16)),)),
    "sum": ((F32, F32), (apply("add", load(0, F32), load(1, F32)),)),
    "fill": ((), (const(2.5, F32),)),
    "scaled": (
        (F32, F32, F32),
        (apply("add", apply("mul", load(0, F32), apply("sqrt", load(1, F32))), load(2, F32)),),
    ),
    "mixed": ((I8, F32), (apply("mul", cast(load(0, I8), F32), load(1, F32)),)),
    "masked": (
        (expr.BOOL, F32),
        (apply("select", load(0, expr.BOOL), load(1, F32), const(-1.0, F32)),),
    ),
    "predicate": ((F32, F32), (apply("lt", load(0, F32), load(1, F32)),)),
    "two": (
        (F32, I64),
        (apply("max", load(0, F32), const(0, F32)), apply("add", load(1, I64), const(1, I64))),
    ),
    "places": ((I32,), (apply("add", cast(index(0), I32), load(0, I32)),)),
    "triangle": (
        (F32,),
        (apply("select", apply("le", index(0), index(1)), load(0, F32), const(0, F32)),),
    ),
}


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Return a map over views of any kind."""
    name = draw(st.sampled_from(sorted(BODIES)))
    dtypes, exprs = BODIES[name]
    least = 1 + max([a for e in exprs for a in expr.leaves([e], "index")], default=0)
    shape = tuple(
        draw(st.lists(SIZES, min_size=min(least, 2), max_size=4).filter(lambda s: np.prod(s) < 20_000))
    )
    shape = shape if len(shape) >= least else (3,) * least
    inputs = tuple(draw(views(shape, dtype, repeats=True)) for dtype in dtypes)
    outputs = tuple(draw(views(shape, e.dtype, repeats=False)) for e in exprs)
    return Step(Map(exprs), inputs, outputs)


@settings(max_examples=150, deadline=None)
@given(steps(), st.sampled_from(sorted(TARGETS)), st.integers(1, 3), st.integers(0, 9))
def test_any_views(step: Step, target: str, threads: int, seed: int) -> None:
    """Whatever the layout, a kernel writes what NumPy writes, and nothing else."""
    check(step, TARGETS[target], threads, seed)


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((1, 3, 40, 50), (0, 2, 3, 1)),
        ((1, 40, 50, 3), (0, 3, 1, 2)),
        ((2, 40, 51), (2, 1, 0)),
        ((4, 9, 70), (1, 2, 0)),
        ((3, 9000), (1, 0)),
        ((2, 70, 9, 13), (0, 2, 3, 1)),
        ((130, 200), (1, 0)),
        ((128, 256), (1, 0)),
        ((70, 1024), (1, 0)),
        ((12, 65, 64), (1, 0, 2)),
        ((5, 6, 7, 8), (3, 2, 1, 0)),
    ],
)
@pytest.mark.parametrize("dtype", [F32, U8, F64, F16])
def test_transposes(shape: tuple[int, ...], order: tuple[int, ...], dtype: Any, target: str) -> None:
    """Permuted copies, as whole tiles, edges and thin axes."""
    source = whole(Buffer("x", dtype, int(np.prod(shape))), shape).permuted(order)
    out = whole(Buffer("y", dtype, source.size), source.shape)
    check(Step(Map((load(0, dtype),)), (source,), (out,)), TARGETS[target], 3)


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("shape", [(64, 72), (21, 130), (3, 40, 17)])
def test_heavy_transposes(shape: tuple[int, ...], target: str) -> None:
    """Tiles kept in memory: two inputs that are transposed, of two dtypes, one that is not."""
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    size = int(np.prod(shape))
    a, b = (whole(Buffer(n, d, size), shape).permuted(order) for n, d in (("a", F32), ("b", F64)))
    c = whole(Buffer("c", F32, size), a.shape)
    body = apply("mul", apply("sqrt", apply("add", load(0, F32), load(2, F32))), cast(load(1, F64), F32))
    body = apply("div", apply("sub", body, load(2, F32)), apply("max", load(0, F32), const(1, F32)))
    for k in range(8):
        body = apply("div", apply("add", body, load(0, F32)), const(3 + k, F32))
    out = whole(Buffer("y", F32, size), a.shape)
    step = Step(Map((body,)), (a, b, c), (out,))
    kernel = emit(step, TARGETS[target])
    assert kernel is not None
    assert (
        kernel.scratch > 0 or TARGETS[target].vector > 16
    )  # where vectors are long, rows cost less than tiles
    check(step, TARGETS[target], 2)


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("pixels", [5, 8, 19, 300, 9001])
def test_channels_are_woven(channels: int, pixels: int) -> None:
    """Images from planes to pixels: each channel with numbers of its own, and results of two dtypes."""
    planes = whole(Buffer("x", F32, channels * pixels), (channels, pixels)).permuted((1, 0))
    shift = View(Buffer("s", F32, channels), (pixels, channels), (0, 1))
    pixel = apply("sub", load(0, F32), apply("sqrt", load(1, F32)))
    exprs = (pixel, cast(apply("add", pixel, cast(index(1), F32)), F16))
    outputs = tuple(whole(Buffer("y", e.dtype, planes.size), planes.shape) for e in exprs)
    check(Step(Map(exprs), (planes, shift), outputs), host_target(), 2)


def test_woven_in_place() -> None:
    """All neighbours are read before one is written, also where the last vector overlaps."""
    x = whole(Buffer("x", F32, 3 * 77), (77, 3))
    planes = whole(Buffer("p", F32, 3 * 77), (3, 77)).permuted((1, 0))
    body = apply("add", apply("mul", load(0, F32), load(1, F32)), apply("sqrt", load(1, F32)))
    check(Step(Map((body,)), (x, planes), (x,)), host_target(), 1)


@pytest.mark.parametrize("size", [1, 100, 4096, 8200, 50_001])
def test_threads_share_long_rows(size: int) -> None:
    """A row is cut into blocks; each element is written once, by whichever thread."""
    x, y = whole(Buffer("x", F32, size), (size,)), whole(Buffer("y", F32, size), (size,))
    most = check(Step(Map((apply("neg", load(0, F32)),)), (x,), (y,)), host_target(), 3)
    assert (most > 1) == (size > 8000)


@pytest.mark.parametrize("shape", [(1000,), (9, 33), (20, 30, 4), (8201,), (5, 9), (6, 7)])
def test_in_place(shape: tuple[int, ...]) -> None:
    """An input may be the output's very view."""
    x = whole(Buffer("x", F32, int(np.prod(shape))), shape)
    row = whole(Buffer("row", F32, shape[-1]), shape[-1:]).broadcast(shape)
    body = apply("mul", apply("add", load(0, F32), load(1, F32)), load(0, F32))
    check(Step(Map((body,)), (x, row), (x,)), host_target(), 2)


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_nothing_and_scalars(shape: tuple[int, ...]) -> None:
    """No elements: no kernel; no axes: one element."""
    size = int(np.prod(shape))
    x, y = whole(Buffer("x", F32, size), shape), whole(Buffer("y", F32, size), shape)
    check(Step(Map((load(0, F32),)), (x,), (y,)), host_target(), 2)


def test_kernels_are_shared_between_sizes() -> None:
    """Sizes and strides are numbers the kernel reads, so that steps of one form need one compilation."""

    def text(rows: int, columns: int) -> str:
        x = whole(Buffer("x", F32, rows * columns), (rows, columns))
        bias = View(Buffer("b", F32, columns), (rows, columns), (0, 1))
        kernel = emit(Step(Map((apply("add", load(0, F32), load(1, F32)),)), (x, bias), (x,)), AVX2)
        assert kernel is not None
        return kernel.text

    assert text(100, 64) == text(7, 1024)
    assert text(100, 72) == text(7, 1000)


EXACT_FLOATS = ("add", "sub", "mul", "div", "min", "max", "neg", "abs", "sign", "floor", "rint", "trunc")
EXACT_INTEGERS = ("add", "sub", "mul", "div", "mod", "fmod", "min", "max", "neg", "abs", "sign", "and", "xor")
KINDS = (F32, F16, F64, I32, I8, U8, I64, expr.BOOL)
LEAVES = (load(0, F32), load(1, I32), load(2, U8), load(3, expr.BOOL), index(0), index(1))


@st.composite
def trees(draw: st.DrawFn, dtype: Any, depth: int) -> Expr:
    """Return an expression of some dtype whose every operation is exact."""

    def tree(kind: Any) -> Expr:
        return draw(trees(kind, depth - 1))

    what = draw(st.sampled_from(("leaf", "const", "cast", "select", "op", "op")))
    if depth == 0 or what == "leaf":
        return cast(draw(st.sampled_from(LEAVES)), dtype)
    if what == "const":
        return const(draw(st.integers(0, 5)), dtype)
    if what == "cast":
        return cast(tree(draw(st.sampled_from(KINDS[3:] if dtype.kind in "iu" else KINDS))), dtype)
    if what == "select":
        return apply("select", tree(expr.BOOL), tree(dtype), tree(dtype))
    if dtype == expr.BOOL:
        kind = draw(st.sampled_from(KINDS))
        return apply(draw(st.sampled_from(("eq", "lt", "le"))), tree(kind), tree(kind))
    op = draw(st.sampled_from(EXACT_INTEGERS if dtype.kind in "iu" else EXACT_FLOATS))
    return apply(op, *(tree(dtype) for _ in range(expr.OPERATIONS[op].arity)))


@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from(sorted(TARGETS)), st.integers(0, 9))
def test_any_expression(data: st.DataObject, target: str, seed: int) -> None:
    """Expressions of mixed dtypes, shared parts, operands that do not vary along a row, two outputs."""
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2))
    exprs = tuple(data.draw(trees(kind, 4)) for kind in kinds)
    shape = data.draw(st.tuples(SIZES, SIZES))
    inputs = tuple(data.draw(views(shape, leaf.dtype, repeats=True)) for leaf in LEAVES[:4])
    outputs = tuple(whole(Buffer("y", e.dtype, shape[0] * shape[1]), shape) for e in exprs)
    check(Step(Map(exprs), inputs, outputs), TARGETS[target], 2, seed)
