"""Contractions compiled to machine code, against NumPy: exactly, since all sums are of small integers."""

from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.compiler import host_target
from graphdoc.engine.device.llvm.contraction import emit_contraction, tactics_contraction
from graphdoc.engine.device.llvm.contraction_quads import adds_quads
from graphdoc.engine.device.llvm.pack import prepare_contractions
from graphdoc.engine.expr import F32, F64, I32, Dtype, apply, cast, const, load
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.program import Buffer, Kind, Program, Step, View
from tests.engine.llvm.native import AVX2, aligned, dressed, run

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
WIDTHS = (Target("", "", 32, 16), Target("", "", 64, 32), Target("", "", 16, 16), Target("", "", 16, 32))
SIZES = st.one_of(st.integers(1, 4), st.integers(1, 21), st.sampled_from([16, 32, 33, 48, 64, 70]))
"""Of rows and columns: no kernel is made for an empty output."""


def scattered(draw: Any, name: str, dtype: Dtype, shape: tuple[int, ...], repeat: bool) -> View:
    """Return a view in a buffer of its own: axes in any order, gaps, backwards, repeated where allowed."""
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for axis in order:
        if repeat and draw(st.integers(0, 5)) == 0:
            continue
        strides[axis] = step
        step *= max(shape[axis], 1) + draw(st.sampled_from([0, 0, 0, 1, 3]))
    offset = draw(st.integers(0, 2))
    for axis in range(len(shape)):
        if draw(st.integers(0, 7)) == 0:
            offset += max(shape[axis] - 1, 0) * strides[axis]
            strides[axis] = -strides[axis]
    buffer = Buffer(name, dtype, step + offset + 3, Kind.INNER)
    return View(buffer, shape, tuple(strides), offset)


def packed_view(dtype: Dtype, batch: tuple[int, ...], k: int, n: int, width: int) -> View:
    """Return b's panels, row-major."""
    shape = (*batch, -(-n // width), k, width)
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return View(Buffer("b", dtype, max(step, 1)), shape, tuple(strides))


@st.composite
def steps(draw: Any, dtypes: tuple[Dtype, ...] = (F32, F32, F32, F64, F16, BF16)) -> tuple[Step, Target]:
    """Draw a contraction with any strides, and a target."""
    target = dressed(draw(st.sampled_from(WIDTHS)))
    dtype = draw(st.sampled_from(dtypes))
    total = F64 if dtype == F64 else F32
    small = st.integers(1, 3)
    batch = tuple(draw(st.lists(small, max_size=2)))
    rows = (*draw(st.lists(small, max_size=2)), draw(SIZES))
    terms = (*draw(st.lists(small, max_size=2)), draw(SIZES | st.just(0)))
    n = draw(SIZES)
    lanes = target.lanes(total)
    packed = lanes * draw(st.integers(1, 3)) if draw(st.booleans()) else 0
    a = scattered(draw, "a", dtype, (*batch, *rows, *terms), repeat=True)
    if packed:
        b = packed_view(dtype, batch, prod(terms), n, packed)
    else:
        inner = terms if draw(st.booleans()) else (prod(terms),)
        b = scattered(draw, "b", dtype, (*batch, *inner, n), repeat=True)
    shape = (*batch, *rows, n)
    more = [scattered(draw, f"x{k}", dtype, shape, repeat=True) for k in range(draw(st.integers(0, 2)))]
    epilogue = cast(load(-1, total), dtype)
    for k, _ in enumerate(more):
        epilogue = apply("add", epilogue, load(k + 2, dtype))
    if draw(st.booleans()):
        epilogue = apply("max", epilogue, const(0, dtype))
    out = scattered(draw, "out", dtype, shape, repeat=False)
    spec = Contraction(len(batch), len(rows), len(terms), epilogue, total, packed)
    return Step(spec, (a, b, *more), (out,)), target


def filled(step: Step, values: Any) -> dict[Buffer, Any]:
    """Return memory for a step's buffers; outputs hold a mark."""
    memory = {}
    for view in (*step.inputs, *step.outputs):
        memory[view.buffer] = aligned(view.buffer.size, view.dtype)
        memory[view.buffer][...] = values(view.buffer.size)
    for view in step.outputs:
        memory[view.buffer][...] = -77
    return memory


def expected(step: Step, memory: dict[Buffer, Any]) -> Any:
    """Return what the output's whole buffer must hold."""
    copy = {buffer: array.copy() for buffer, array in memory.items()}
    arrays = [[v.array(copy[v.buffer]) for v in views] for views in (step.inputs, step.outputs)]
    with np.errstate(all="ignore"):
        step.spec.evaluate(*arrays)
    return copy[step.outputs[0].buffer]


@given(steps(), st.integers(0, 2**31), st.integers(1, 3))
@settings(max_examples=120, deadline=None)
def test_any_strides_give_numpy_s_numbers_and_touch_nothing_else(
    case: tuple[Step, Target], seed: int, threads: int
) -> None:
    """Sums of small integers are exact, so the whole buffer must be equal, gaps included."""
    step, target = case
    rng = np.random.default_rng(seed)
    memory = filled(step, lambda size: rng.integers(-3, 4, size))
    wanted = expected(step, memory)
    tactic = rng.choice(tactics_contraction(step, target))
    kernel = emit_contraction(step, target, str(tactic))
    assert kernel is not None

    run(kernel, step, memory, threads)

    np.testing.assert_array_equal(memory[step.outputs[0].buffer], wanted)


@st.composite
def coded(draw: Any) -> tuple[Step, Target]:
    """Draw a contraction of 8-bit codes with any strides, and a target with or without the instruction."""
    target = dressed(draw(st.sampled_from(WIDTHS)))
    if draw(st.booleans()):
        target = Target(target.cpu, "", target.vector, target.registers)
    small = st.integers(1, 3)
    batch = tuple(draw(st.lists(small, max_size=1)))
    rows = (*draw(st.lists(small, max_size=2)), draw(SIZES))
    terms = (*draw(st.lists(small, max_size=2)), draw(SIZES))
    n = draw(SIZES)
    codes = st.sampled_from([np.dtype(np.uint8), np.dtype(np.int8)])
    a = scattered(draw, "a", draw(codes), (*batch, *rows, *terms), repeat=True)
    b = scattered(draw, "b", draw(codes), (*batch, prod(terms), n), repeat=True)
    x = scattered(draw, "x", F32, (*batch, *rows, n), repeat=True)
    out = scattered(draw, "out", F32, (*batch, *rows, n), repeat=False)
    epilogue = apply("mul", cast(load(-1, I32), F32), load(2, F32))
    spec = Contraction(len(batch), len(rows), len(terms), epilogue, I32)
    return Step(spec, (a, b, x), (out,)), target


@given(coded(), st.integers(0, 2**31), st.integers(1, 3), st.booleans())
@settings(max_examples=80, deadline=None)
def test_sums_of_codes_are_exact(case: tuple[Step, Target], seed: int, threads: int, constant: bool) -> None:
    """Over the whole range of codes, with b as it is computed or packed beforehand, in pairs or fours."""
    step, target = case
    rng = np.random.default_rng(seed)
    memory = filled(step, lambda size: rng.integers(-(2**7), 2**8, size).astype(np.int64))
    memory[step.inputs[2].buffer][...] = rng.integers(-2, 3, step.inputs[2].buffer.size)
    wanted = expected(step, memory)
    if constant:
        b = step.inputs[1]
        held = View(
            Buffer("b", b.dtype, b.buffer.size, Kind.CONSTANT, memory[b.buffer]), b.shape, b.strides, b.offset
        )
        step = Step(step.spec, (step.inputs[0], held, step.inputs[2]), step.outputs)
        (step,) = prepare_contractions(Program([step]), target).steps[:1]
        packed = step.inputs[1].buffer
        memory[packed] = aligned(packed.size, packed.dtype)
        memory[packed][...] = packed.data
        together = 4 if adds_quads(target, target.lanes(I32)) else 2
        assert (packed.dtype, step.spec.together) == (b.dtype, together)  # type: ignore[attr-defined]
    kernel = emit_contraction(step, target)
    assert kernel is not None
    memory |= {v.buffer: aligned(v.buffer.size, v.dtype) for v in step.outputs if v.buffer not in memory}

    run(kernel, step, memory, threads)

    out = step.outputs[0]
    if out.buffer in {v.buffer for v in case[0].outputs}:
        np.testing.assert_array_equal(memory[out.buffer], wanted)
    else:  # computed beside, to be copied
        whole_out = case[0].outputs[0].array(wanted)
        np.testing.assert_array_equal(out.array(memory[out.buffer]), whole_out)


def product(m: int, n: int, k: int, packed: int = 0, dtype: Dtype = F32) -> Step:
    """Return a row-major matrix product."""
    a = View(Buffer("a", dtype, m * k), (m, k), (k, 1))
    b = packed_view(dtype, (), k, n, packed) if packed else View(Buffer("b", dtype, k * n), (k, n), (n, 1))
    out = View(Buffer("out", dtype, m * n), (m, n), (n, 1))
    return Step(Contraction(0, 1, 1, load(-1, dtype), dtype, packed), (a, b), (out,))


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 40, 300), (37, 50, 300), (12, 16, 1000), (100, 3, 64)], ids=str
)
def test_error_is_that_of_sums_in_order(m: int, n: int, k: int, dtype: Dtype) -> None:
    """Against float64 (longdouble for float64), within k rounding units of the sum of magnitudes."""
    step = product(m, n, k, dtype=dtype)
    rng = np.random.default_rng(1)
    memory = filled(step, lambda size: rng.standard_normal(size))
    a, b = (v.array(memory[v.buffer]).astype(np.longdouble) for v in step.inputs)
    kernel = emit_contraction(step, host_target())
    assert kernel is not None

    run(kernel, step, memory)

    error = np.abs(step.outputs[0].array(memory[step.outputs[0].buffer]) - a @ b)
    assert np.all(error <= k * np.finfo(dtype).eps / 2 * (np.abs(a) @ np.abs(b)))


@pytest.mark.parametrize("target", WIDTHS, ids=lambda t: f"{t.vector}-{t.registers}")
@pytest.mark.parametrize(("n", "k"), [(64, 64), (37, 45), (5, 17)], ids=str)
def test_columns_apart_are_transposed_in_blocks(n: int, k: int, target: Target) -> None:
    """The product with a transposed matrix, its rows a little apart: whole blocks and what is left."""
    a, _ = product(9, n, k).inputs
    b = View(Buffer("b", F32, n * (k + 1)), (k, n), (1, k + 1))
    step = Step(Contraction(0, 1, 1, load(-1, F32), F32), (a, b), product(9, n, k).outputs)
    rng = np.random.default_rng(4)
    memory = filled(step, lambda size: rng.integers(-3, 4, size))
    wanted = expected(step, memory)
    kernel = emit_contraction(step, dressed(target))
    assert kernel is not None

    run(kernel, step, memory, 2)

    np.testing.assert_array_equal(memory[step.outputs[0].buffer], wanted)


@pytest.mark.parametrize("m", [1, 5, 40])
def test_bits_do_not_depend_on_threads(m: int) -> None:
    """Each sum is one thread's, in one order."""
    step = product(m, 100, 301)
    rng = np.random.default_rng(2)
    memory = filled(step, lambda size: rng.standard_normal(size))
    kernel = emit_contraction(step, host_target())
    assert kernel is not None
    results = []
    for threads in (1, 2, 3):
        run(kernel, step, memory, threads)
        results.append(memory[step.outputs[0].buffer].tobytes())

    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("target", WIDTHS, ids=lambda t: f"{t.vector}-{t.registers}")
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_columns_run_along_the_terms(n: int, dtype: Dtype, target: Target) -> None:
    """Windows of two axes, the innermost one no multiple of a vector, rows from three images."""
    total = F64 if dtype == F64 else F32
    a = View(Buffer("a", dtype, 3 * 400), (3, 11, 4, 19), (400, 23, 31, 1))
    b = packed_view(dtype, (), 4 * 19, n, 1)
    shape = (3, 11, n)
    out = View(Buffer("out", dtype, 200), shape, (60, 1, 15))
    x = View(Buffer("x", dtype, 40), shape, (0, 1, 11))
    epilogue = cast(apply("add", load(-1, total), cast(load(2, dtype), total)), dtype)
    step = Step(Contraction(0, 2, 2, epilogue, total, 1), (a, b, x), (out,))
    rng = np.random.default_rng(5)
    memory = filled(step, lambda size: rng.integers(-3, 4, size))
    wanted = expected(step, memory)
    kernel = emit_contraction(step, dressed(target))
    assert kernel is not None

    run(kernel, step, memory, 2)

    np.testing.assert_array_equal(memory[out.buffer], wanted)


def test_nan_and_infinity_pass_through() -> None:
    """A NaN of one row stays in that row; unused lanes of the last panel bring none in."""
    step = product(3, 5, 4)
    memory = filled(step, lambda size: np.ones(size))
    a, b = (v.array(memory[v.buffer]) for v in step.inputs)
    a[1, 2], b[3, 4] = np.nan, np.inf
    wanted = expected(step, memory)
    kernel = emit_contraction(step, host_target())
    assert kernel is not None

    run(kernel, step, memory)

    np.testing.assert_array_equal(memory[step.outputs[0].buffer], wanted)


def test_epilogue_may_write_over_one_of_its_inputs() -> None:
    """A residual is added in place."""
    step = product(13, 21, 9)
    out = step.outputs[0]
    spec = Contraction(0, 1, 1, apply("add", load(-1, F32), load(2, F32)), F32)
    step = Step(spec, (*step.inputs, out), (out,))
    rng = np.random.default_rng(3)
    memory = filled(step, lambda size: rng.integers(-3, 4, size))
    wanted = expected(step, memory)
    kernel = emit_contraction(step, host_target())
    assert kernel is not None

    run(kernel, step, memory, 2)

    np.testing.assert_array_equal(memory[out.buffer], wanted)


def test_sizes_are_not_part_of_the_code() -> None:
    """Many products of one kind share one kernel; those of long sums have their own."""
    short, long = (
        {emit_contraction(product(m, n, k, 16), AVX2).text for m, n, k in sizes}  # type: ignore[union-attr]
        for sizes in (
            [(60, 64, 64), (600, 128, 256), (6000, 32, 128)],
            [(60, 64, 512), (600, 128, 1024), (6000, 32, 4096)],
        )
    )

    assert len(short) == len(long) == 1


@pytest.mark.parametrize("k", [256, 258, 1000, 1001, 4096])
def test_long_sums_of_like_terms_keep_their_digits(k: int) -> None:
    """A chain of k roundings that all go one way would be off by some k / 13 units, here hundreds."""
    step = product(9, 40, k, 16)
    memory = filled(step, lambda size: np.full(size, 0.3))
    kernel = emit_contraction(step, host_target())
    assert kernel is not None

    run(kernel, step, memory, 1)

    found = memory[step.outputs[0].buffer].astype(np.float64)
    exact = k * float(np.float32(0.3)) ** 2
    assert np.abs(found / exact - 1).max() < 32 * 2.0**-24


def test_other_dtypes_are_left_to_the_host() -> None:
    """Integers wider than codes have no kernel."""
    step = product(3, 4, 5, dtype=np.dtype(np.int32))

    assert emit_contraction(step, host_target()) is None
