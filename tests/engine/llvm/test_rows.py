"""Row kernels against what their specification computes, in every way to run them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.engine.device.llvm.rows import emit_rows, tactics_rows
from graphdoc.engine.expr import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    U8,
    Dtype,
    Expr,
    apply,
    cast,
    const,
    index,
    load,
    stage,
)
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.program import Buffer, Step, View
from tests.engine.llvm.rows_run import both, fresh, strided, targets

TARGETS = targets()


# ---- specifications ------------------------------------------------------------------------------------


def folded(fold: str, dtype: Dtype) -> Callable[[int, int], Rows]:
    def spec(axes: int, count: int) -> Rows:
        return Rows(axes, (Reduction(fold, load(0, dtype)),), (Output(stage(0, dtype), False),))

    return spec


def softmax(axes: int, count: int) -> Rows:
    x = load(0, F32)
    e = apply("exp", apply("sub", x, stage(0, F32)))
    return Rows(
        axes,
        (Reduction("max", x), Reduction("sum", e)),
        (Output(apply("div", e, stage(1, F32)), True),),
    )


def half_softmax(axes: int, count: int) -> Rows:
    x = cast(load(0, F16), F32)
    e = apply("exp", apply("sub", x, stage(0, F32)))
    y = cast(apply("div", e, stage(1, F32)), F16)
    return Rows(axes, (Reduction("max", x), Reduction("sum", e)), (Output(y, True),))


def layer_norm(axes: int, count: int) -> Rows:
    x, n = load(0, F32), const(max(count, 1), F32)
    mean = apply("div", stage(0, F32), n)
    centred = apply("sub", x, mean)
    variance = apply("div", stage(1, F32), n)
    scale = apply("div", const(1, F32), apply("sqrt", apply("add", variance, const(1e-5, F32))))
    y = apply("add", apply("mul", apply("mul", centred, scale), load(1, F32)), load(2, F32))
    stages = (Reduction("sum", x), Reduction("sum", apply("mul", centred, centred)))
    return Rows(axes, stages, (Output(y, True), Output(mean, False), Output(scale, False)))


def moments(axes: int, count: int) -> Rows:
    """Two folds of one pass, a bool and an int output beside."""
    x = load(0, F64)
    stages = (Reduction("sum", apply("mul", x, x)), Reduction("max", x), Reduction("min", x))
    outs = (
        Output(apply("lt", stage(1, F64), stage(0, F64)), False),
        Output(cast(apply("lt", x, stage(2, F64)), I8), True),
        Output(stage(0, F64), False),
    )
    return Rows(axes, stages, outs)


SPECS: dict[str, tuple[Callable[[int, int], Rows], int, Dtype]] = {
    "softmax": (softmax, 1, F32),
    "half softmax": (half_softmax, 1, F16),
    "layer norm": (layer_norm, 3, F32),
    "moments": (moments, 1, F64),
    "sum": (folded("sum", F32), 1, F32),
    "max": (folded("max", F32), 1, F32),
    "min": (folded("min", F64), 1, F64),
    "product": (folded("prod", F32), 1, F32),
    "int sum": (folded("sum", I32), 1, I32),
    "byte max": (folded("max", U8), 1, U8),
    "byte min": (folded("min", I8), 1, I8),
    "byte sum": (folded("sum", U8), 1, U8),
    "all": (folded("and", BOOL), 1, BOOL),
    "any": (folded("or", BOOL), 1, BOOL),
    "half sum": (folded("sum", F16), 1, F16),
    "half max": (folded("max", F16), 1, F16),
    "bfloat sum": (folded("sum", BF16), 1, BF16),
}


def data(rng: np.random.Generator, dtype: Dtype, shape: Sequence[int], special: bool) -> Any:
    if dtype == BOOL:
        return rng.random(shape) < 0.9
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -50, 100, shape).astype(dtype)
    values = rng.standard_normal(shape)
    if special and values.size:
        at = rng.random(shape)
        values[at < 0.05] = np.nan
        values[(at > 0.05) & (at < 0.1)] = -np.inf
        values[(at > 0.1) & (at < 0.15)] = np.inf
    return values.astype(dtype)


def reach(x: Any, dtype: Dtype) -> float:
    """Return the tolerance: a few roundings of numbers as large as the sums of magnitudes here."""
    size = np.abs(np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0)).sum() + 4
    unit = {"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-15}.get(dtype.name, 1.2e-7)
    return float(size * unit * 4)


def agree(found: Any, wanted: Any, tolerance: float) -> None:
    if wanted.dtype.kind in "biu":
        assert np.array_equal(found, wanted)
        return
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=tolerance)


SHAPES = st.lists(st.integers(1, 7) | st.integers(8, 70), min_size=1, max_size=4).filter(
    lambda shape: np.prod(shape) < 20_000
)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(SPECS)), SHAPES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_way_computes_what_the_specification_says(
    name: str, shape: list[int], axes: int, random: Any
) -> None:
    """Any order of axes in memory, backwards, broadcast inputs, 1 to 3 threads, three kinds of processor."""
    make, count, dtype = SPECS[name]
    axes = min(axes, len(shape))
    rng = np.random.default_rng(random.randrange(1 << 30))
    spec = make(axes, int(np.prod(shape[len(shape) - axes :])))
    memory: dict[Buffer, Any] = {}
    inputs = []
    for k in range(count):
        order = random.sample(range(len(shape)), len(shape))
        backwards = [a for a in range(len(shape)) if random.random() < 0.15]
        repeated = [1 if k and random.random() < 0.5 else size for size in shape]
        x = data(rng, dtype, repeated, random.random() < 0.2)
        view, memory_of = strided(x, order, backwards, random.choice([0, 0, 3]))
        memory[view.buffer] = memory_of
        inputs.append(view.broadcast(shape))
    outputs = []
    for part in spec.outputs:
        sizes = shape if part.full else shape[: len(shape) - axes]
        order = random.sample(range(len(sizes)), len(sizes))
        blank = np.zeros(sizes, part.expr.dtype)
        view, memory_of = strided(blank, order, (), random.choice([0, 2]))
        memory[view.buffer] = memory_of
        outputs.append(view)
    step = Step(spec, tuple(inputs), tuple(outputs))
    first = inputs[0].array(memory[inputs[0].buffer])
    for target in TARGETS:
        for tactic in tactics_rows(step, target):
            kernel = emit_rows(step, target, tactic)
            assert kernel is not None
            for found, wanted in both(kernel, step, memory, random.randint(1, 3), target):
                agree(found, wanted, reach(first, dtype))


def windows(x: View, kernel: int, stride: int, dilation: int = 1) -> View:
    """Return the windows (n, y, x, c | ky, kx) of an image (n, y, x, c)."""
    n, high, wide, c = x.shape
    reach_ = (kernel - 1) * dilation + 1
    outs = ((high - reach_) // stride + 1, (wide - reach_) // stride + 1)
    s = x.strides
    shape = (n, *outs, c, kernel, kernel)
    strides = (s[0], s[1] * stride, s[2] * stride, s[3], s[1] * dilation, s[2] * dilation)
    return View(x.buffer, shape, strides, x.offset)


def depthwise() -> Rows:
    total = Reduction("sum", apply("mul", load(0, F32), load(1, F32)))
    result = apply("max", apply("add", stage(0, F32), load(2, F32)), const(0, F32))
    return Rows(2, (total,), (Output(result, False),))


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "channels"),
    [
        (3, 1, 1, 32),
        (3, 2, 1, 20),
        (5, 1, 1, 8),
        (5, 2, 1, 3),
        (2, 2, 1, 1),
        (3, 1, 2, 8),
        (3, 3, 2, 20),
        (1, 2, 1, 8),
    ],
)
def test_windows(kernel: int, stride: int, dilation: int, channels: int) -> None:
    """Depthwise convolution and pooling over windows that overlap, at odd sizes, agree."""
    rng = np.random.default_rng(0)
    image, memory_of = strided(rng.standard_normal((2, 13, 17, channels)).astype(np.float32), range(4))
    view = windows(image, kernel, stride, dilation)
    w, w_memory = strided(rng.standard_normal((kernel, kernel, channels)).astype(np.float32), range(3))
    bias, b_memory = strided(rng.standard_normal(channels).astype(np.float32), [0])
    out, o_memory = fresh(view.shape[:4], F32)
    memory = {image.buffer: memory_of, w.buffer: w_memory, bias.buffer: b_memory, out.buffer: o_memory}
    wide = w.permuted([2, 0, 1]).broadcast(view.shape)
    grown = View(bias.buffer, (*view.shape[:4], kernel, kernel), (0, 0, 0, 1, 0, 0), bias.offset)
    pool = Rows(2, (Reduction("max", load(0, F32)),), (Output(stage(0, F32), False),))
    for spec, inputs in ((depthwise(), (view, wide, grown)), (pool, (view,))):
        step = Step(spec, inputs, (out,))
        for target in TARGETS:
            for tactic in tactics_rows(step, target)[:3]:
                made = emit_rows(step, target, tactic)
                assert made is not None
                for found, wanted in both(made, step, memory, 2, target):
                    agree(found, wanted, 2e-5)


def test_long_sums_are_as_exact_as_pairwise_ones() -> None:
    """A million terms, along and across: the error stays within a few roundings of the result."""
    rng = np.random.default_rng(0)
    x = rng.random((1 << 20, 8)).astype(np.float32)
    exact = x.astype(np.float64).sum(axis=0)
    view, memory_of = strided(x, [0, 1])
    out, o_memory = fresh((8,), F32)
    step = Step(folded("sum", F32)(1, 0), (view.permuted([1, 0]),), (out,))
    memory = {view.buffer: memory_of, out.buffer: o_memory}
    for tactic in tactics_rows(step, TARGETS[0]):
        made = emit_rows(step, TARGETS[0], tactic)
        assert made is not None
        ((found, _),) = both(made, step, memory, 1, TARGETS[0])
        assert np.abs(found / exact - 1).max() < 3e-7, tactic


def test_a_row_too_long_to_keep() -> None:
    """A softmax over 300 001 elements computes its exponentials twice; the sum of the results is 1."""
    rng = np.random.default_rng(0)
    view, memory_of = strided(rng.standard_normal((1, 300_001)).astype(np.float32), [0, 1])
    out, o_memory = fresh((1, 300_001), F32)
    step = Step(softmax(1, 300_001), (view,), (out,))
    made = emit_rows(step, TARGETS[0], "along")
    assert made is not None
    assert made.scratch == 0
    memory = {view.buffer: memory_of, out.buffer: o_memory}
    ((found, wanted),) = both(made, step, memory, 1, TARGETS[0])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert abs(found.astype(np.float64).sum() - 1) < 1e-6


def test_the_bits_do_not_depend_on_the_threads() -> None:
    """Every number of threads gives the same bits."""
    rng = np.random.default_rng(0)
    view, memory_of = strided(rng.standard_normal((5, 333)).astype(np.float32), [0, 1])
    out, o_memory = fresh((5, 333), F32)
    step = Step(softmax(1, 333), (view,), (out,))
    memory = {view.buffer: memory_of, out.buffer: o_memory}
    made = emit_rows(step, TARGETS[0])
    assert made is not None
    results = {both(made, step, memory, n, TARGETS[0])[0][0].tobytes() for n in (1, 2, 3, 7)}
    assert len(results) == 1


def test_positions() -> None:
    """The first place of the maximum: an index on the reduced axis, int64 beside float32."""
    x, best = load(0, F32), stage(0, F32)
    place: Expr = apply("select", apply("eq", x, best), index(1), const(2**62, I64))
    spec = Rows(1, (Reduction("max", x), Reduction("min", place)), (Output(stage(1, I64), False),))
    rng = np.random.default_rng(1)
    for shape in ((3, 50), (40, 5), (9, 1)):
        for order in ((0, 1), (1, 0)):
            view, memory_of = strided(rng.integers(0, 9, shape).astype(np.float32), order)
            out, o_memory = fresh(shape[:1], I64)
            step = Step(spec, (view,), (out,))
            memory = {view.buffer: memory_of, out.buffer: o_memory}
            for target in TARGETS:
                for tactic in tactics_rows(step, target):
                    made = emit_rows(step, target, tactic)
                    assert made is not None
                    ((found, wanted),) = both(made, step, memory, 2, target)
                    assert np.array_equal(found, wanted)


def test_a_dtype_without_machine_code_is_left_to_the_host() -> None:
    """Complex numbers have no kernel."""
    kind: Any = np.dtype(np.complex64)
    view, _ = strided(np.zeros((2, 3), kind), [0, 1])
    out, _ = fresh((2,), kind)
    assert emit_rows(Step(folded("sum", kind)(1, 3), (view,), (out,)), TARGETS[0]) is None


def test_rows_of_nothing_are_neutral() -> None:
    """A sum over no elements is 0, a product 1, along and across."""
    for fold, wanted in (("sum", 0), ("prod", 1)):
        for order in ((0, 1), (1, 0)):
            view, memory_of = strided(np.zeros((3, 0), np.float32), order)
            out, o_memory = fresh((3,), F32)
            step = Step(folded(fold, F32)(1, 0), (view,), (out,))
            memory = {view.buffer: memory_of, out.buffer: o_memory}
            for tactic in tactics_rows(step, TARGETS[0]):
                made = emit_rows(step, TARGETS[0], tactic)
                assert made is not None
                ((found, _),) = both(made, step, memory, 2, TARGETS[0])
                assert (found == wanted).all()
