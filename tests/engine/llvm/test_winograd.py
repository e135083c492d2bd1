"""Winograd's convolutions: the specification against the direct sum, the machine code against both."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.compiler import host_target
from graphdoc.engine.device.llvm.pack import prepare_contractions
from graphdoc.engine.device.llvm.winograd import emit_winograd
from graphdoc.engine.device.llvm.winograd_plan import lanes_of, size_for
from graphdoc.engine.expr import F32, apply, const, load
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.winograd import Winograd, transformed, transforms
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole
from tests.engine.llvm.native import aligned, dressed, run

AVX2, AVX512, SSE2 = Target("", "", 32, 16), Target("", "", 64, 32), Target("", "", 16, 16)


def convolution(
    n: int, y: int, x: int, channels: int, outputs: int, *, stride: int = 1, residual: bool = False
) -> Step:
    """Return a 3×3 convolution with bias and ReLU over a padded image, into the inside of another one."""
    high, wide = stride * (y - 1) + 3, stride * (x - 1) + 3
    image = Buffer("x", F32, n * high * wide * channels)
    steps = (high * wide * channels, wide * channels, channels)
    windows = (steps[0], stride * steps[1], stride * steps[2], steps[1], steps[2], 1)
    a = View(image, (n, y, x, 3, 3, channels), windows)
    data = np.random.default_rng(0).standard_normal(outputs * channels * 9).astype(np.float32)
    stored = whole(Buffer("w", F32, data.size, Kind.CONSTANT, data), (outputs, channels, 3, 3))
    bias = whole(Buffer("bias", F32, outputs), (outputs,)).broadcast((n, y, x, outputs))
    framed = (n, y + 2, x + 2, outputs)
    full = whole(Buffer("y", F32, int(np.prod(framed))), framed)
    out = full.sliced(1, 1, y).sliced(2, 1, x)
    epilogue = apply("add", load(-1, F32), load(2, F32))
    more = (bias, out) if residual else (bias,)
    if residual:
        epilogue = apply("add", epilogue, load(3, F32))
    spec = Contraction(0, 3, 3, apply("max", epilogue, const(0, F32)), F32)
    return Step(spec, (a, stored.permuted([2, 3, 1, 0]), *more), (out,))


def tiled(step: Step, size: int, width: int) -> Step:
    """Return the step by tiles."""
    w = step.inputs[1]
    u = transformed(w.array(w.buffer.data), size, width)
    view = whole(Buffer("u", F32, u.size, Kind.CONSTANT, u.reshape(-1)), u.shape)
    spec = Winograd(size, step.spec.epilogue, F32, width)  # type: ignore[attr-defined]
    return Step(spec, (step.inputs[0], view, *step.inputs[2:]), step.outputs)


def memory_of(*steps: Step) -> dict[Buffer, Any]:
    """Return memory for the steps' buffers: constants as they are, all else random."""
    rng = np.random.default_rng(1)
    memory: dict[Buffer, Any] = {}
    for view in (view for step in steps for view in (*step.inputs, *step.outputs)):
        if view.buffer not in memory:
            memory[view.buffer] = aligned(view.buffer.size, F32)
            data = view.buffer.data
            memory[view.buffer][...] = rng.standard_normal(view.buffer.size) if data is None else data
    return memory


def evaluated(step: Step, memory: dict[Buffer, Any]) -> Any:
    """Return the output's whole buffer as the specification makes it."""
    copy = {buffer: array.copy() for buffer, array in memory.items()}
    arrays = [[v.array(copy[v.buffer]) for v in views] for views in (step.inputs, step.outputs)]
    step.spec.evaluate(*arrays)
    return copy[step.outputs[0].buffer]


@pytest.mark.parametrize("size", [2, 4])
def test_transforms_are_exact(size: int) -> None:
    """The three matrices together are the correlation of size + 2 numbers with 3, for any numbers."""
    out, g, image = transforms(size)
    rng = np.random.default_rng(0)
    weights, numbers = rng.standard_normal(3), rng.standard_normal(size + 2)

    found = out @ ((g @ weights) * (image @ numbers))

    np.testing.assert_allclose(found, np.correlate(numbers, weights, "valid"), rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("shape", [(1, 4, 4, 8, 8), (2, 7, 5, 3, 10), (1, 6, 9, 4, 16)], ids=str)
def test_specification_is_the_direct_sum(size: int, shape: tuple[int, ...]) -> None:
    """Up to the one rounding of the transformed weights."""
    step = convolution(*shape)
    other = tiled(step, size, 8)
    memory = memory_of(step, other)

    np.testing.assert_allclose(evaluated(other, memory), evaluated(step, memory), rtol=0, atol=1e-5)


sizes = st.integers(4, 13)


@given(
    st.integers(1, 2), sizes, sizes, st.integers(1, 5), st.integers(1, 5), st.sampled_from([2, 4]),
    st.sampled_from([AVX2, AVX512, SSE2]), st.integers(1, 3), st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_machine_code_computes_the_specification(
    n: int,
    y: int,
    x: int,
    c: int,
    o: int,
    size: int,
    target: Target,
    threads: int,
    residual: bool,
    wide: bool,
) -> None:
    """Any numbers of tiles, overlapping ones, adding in place what overlaps; the frame stays as it was."""
    target = dressed(target)
    step = convolution(n, y, x, 4 * c, 4 * o, residual=residual)
    lanes = lanes_of(4 * c, 4 * o, target)
    width = 2 * lanes if wide and o % (2 * lanes // 4) == 0 else lanes
    step = tiled(step, size, width)
    memory = memory_of(step)
    wanted = evaluated(step, memory)
    kernel = emit_winograd(step, target)

    run(kernel, step, memory, min(threads, kernel.threads))

    np.testing.assert_allclose(memory[step.outputs[0].buffer], wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 28, 28, 64, 64), (1, 14, 14, 128, 64), (1, 8, 8, 256, 128)], ids=str)
def test_error_grows_as_stated(shape: tuple[int, ...]) -> None:
    """Against float64, the maximum lies below a direct sum's bound, and size 2 below size 4."""
    step = convolution(*shape)
    memory = memory_of(step)
    w = step.inputs[1].array(memory[step.inputs[1].buffer]).astype(np.float64)
    a = step.inputs[0].array(memory[step.inputs[0].buffer])
    exact = np.tensordot(a.astype(np.float64), w, 3)
    exact = np.maximum(exact + step.inputs[2].array(memory[step.inputs[2].buffer]), 0)
    errors = []
    for size in (2, 4):
        other = tiled(step, size, 16)
        kernel = emit_winograd(other, host_target())
        memory |= memory_of(other) | memory
        run(kernel, other, memory)
        found = other.outputs[0].array(memory[other.outputs[0].buffer])
        errors.append(np.abs(found - exact).max() / np.abs(exact).max())

    assert errors[0] < errors[1] < 5e-6


def test_bits_do_not_depend_on_threads() -> None:
    """Groups of tiles differ with the number of threads, sums do not."""
    step = tiled(convolution(1, 30, 29, 32, 32), 4, 16)
    memory = memory_of(step)
    kernel = emit_winograd(step, host_target())
    found = []
    for threads in (1, 2, 3):
        run(kernel, step, memory, threads)
        found.append(memory[step.outputs[0].buffer].tobytes())

    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("step", "size"),
    [
        (convolution(1, 28, 28, 64, 64), 4),
        (convolution(1, 7, 7, 512, 512), 2),
        (convolution(1, 28, 28, 64, 64, stride=2), 0),
        (convolution(1, 28, 28, 3, 64), 0),
        (convolution(1, 1, 28, 64, 64), 0),
    ],
    ids=["many tiles", "few tiles", "stride 2", "three channels", "one row"],
)
def test_tiles_are_taken_where_they_pay(step: Step, size: int) -> None:
    """By preparing a program; what does not fit is packed as any contraction."""
    (ready,) = prepare_contractions(Program([step]), AVX2).steps

    assert size_for(step, AVX2) == size
    assert getattr(ready.spec, "size", 0) == size


@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_weights_that_do_not_transform_are_taken_directly(weight: float) -> None:
    """What is not finite stays in its own place."""
    step = convolution(1, 28, 28, 16, 16)
    step.inputs[1].buffer.data[5] = weight

    (ready,) = prepare_contractions(Program([step]), AVX2).steps

    assert isinstance(ready.spec, Contraction)
