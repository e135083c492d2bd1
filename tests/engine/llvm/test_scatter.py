"""Scatters as machine code against the specification's NumPy, and as nodes beside level 0."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.device.llvm.compiler import host_target
from graphdoc.engine.device.llvm.scatter import emit_scatter
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.expr import F16, I64
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.kernels.scatter import Scatter
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.program import Buffer, Step, whole
from graphdoc.engine.sound import Unsound, check
from tests.engine import single
from tests.engine.llvm.native import AVX512, SSE2, dressed, run
from tests.engine.lowered import assert_same, hosts, noise
from tests.engine.lowered import check as check_node

TARGETS = [host_target(), dressed(AVX512), dressed(SSE2)]
REDUCTIONS = ("none", "add", "mul", "max", "min")


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_against_numpy(data: Any) -> None:
    """Random shapes and axes, equal places, rows that one index leads to, every reduction and dtype."""
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    shape = data.draw(st.sampled_from([(5,), (4, 7), (3, 40), (2, 3, 33), (6, 1)]))
    axis = data.draw(st.integers(0, len(shape) - 1))
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    kinds = [np.float32, np.float64, np.int32, np.int64] + [np.uint8, np.float16] * (reduction == "none")
    dtype = np.dtype(data.draw(st.sampled_from(kinds)))
    domain = tuple(
        int(rng.integers(1, 6)) if a == axis else int(rng.integers(1, n + 1)) for a, n in enumerate(shape)
    )
    size = shape[axis]
    number = np.dtype(data.draw(st.sampled_from([np.int32, np.int64])))
    rows = data.draw(st.booleans())
    index_shape = tuple(n if a <= axis or not rows else 1 for a, n in enumerate(domain))
    table = whole(Buffer("data", dtype, int(np.prod(shape))), shape)
    index = whole(Buffer("index", number, int(np.prod(index_shape))), index_shape)
    updates = whole(Buffer("updates", dtype, int(np.prod(domain))), domain)
    out = whole(Buffer("out", dtype, table.size), shape)
    step = Step(Scatter(axis, reduction), (table, index.broadcast(domain), updates), (out,))
    check(step)
    memory = {
        table.buffer: (rng.standard_normal(table.size) * 3).astype(dtype),
        index.buffer: rng.integers(-size, size, index.size).astype(number),
        updates.buffer: (rng.standard_normal(updates.size) * 3).astype(dtype),
        out.buffer: np.zeros(out.size, dtype),
    }
    wanted = {buffer: array.copy() for buffer, array in memory.items()}
    step.spec.evaluate([v.array(wanted[v.buffer]) for v in step.inputs], [out.array(wanted[out.buffer])])
    target = data.draw(st.sampled_from(TARGETS))
    kernel = emit_scatter(step, target)
    assert kernel is not None
    run(kernel, step, memory, target=target)
    for buffer, array in memory.items():
        np.testing.assert_array_equal(array, wanted[buffer])


def test_what_it_refuses() -> None:
    """A sum in half precision has no kernel; shapes that do not fit are unsound."""
    table, out = (whole(Buffer("x", F16, 12), (3, 4)) for _ in range(2))
    index = whole(Buffer("i", I64, 4), (1, 4))
    updates = whole(Buffer("u", F16, 4), (1, 4))
    assert emit_scatter(Step(Scatter(0, "add"), (table, index, updates), (out,)), TARGETS[0]) is None
    wide = whole(Buffer("i", I64, 5), (1, 5))
    more = whole(Buffer("u", F16, 5), (1, 5))
    with pytest.raises(Unsound, match="indices"):
        check(Step(Scatter(0), (table, wide, more), (out,)))
    with pytest.raises(Unsound, match="axis 2 of 2"):
        check(Step(Scatter(2), (table, index, updates), (out,)))


def native(op: str, *inputs: Any, **options: Any) -> None:
    """Hold a node on level 1, as steps on NumPy and as machine code, against level 0."""
    check_node(op, *inputs, **options)
    proto, feeds = single.model(op, *inputs, **options)
    model = ir.from_proto(proto)
    want = Interpreter(model).run(feeds)["y0"]
    compiled = Compiled(model, device=CpuDevice(2), passes=(fuse,))
    for _ in range(2):
        assert_same(compiled.run(feeds)["y0"], want)
    assert hosts(compiled) == []


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nodes(reduction: str) -> None:
    """Elements and slices, places twice, numbers from the end; NaN among what is combined."""
    x, updates = noise(5, 6), noise(3, 4, seed=1)
    updates[1, 1] = np.nan
    places = np.array([[0, 4, -1, 2], [0, 4, -5, 2], [1, 1, 1, 1]])
    for axis in (0, 1, -1):
        native("ScatterElements", x, places, updates, axis=axis, reduction=reduction)
    tuples = np.array([[[0, 1], [-1, 5]], [[0, 1], [2, -6]]])
    native("ScatterND", noise(5, 6, 3), tuples, noise(2, 2, 3, seed=2), reduction=reduction)
    native("ScatterND", x, np.array([[4], [0], [4]]), noise(3, 6, seed=3), reduction=reduction)
    native("ScatterND", x, tuples, noise(2, 2, seed=4), reduction=reduction)
    whole_numbers = np.arange(30).reshape(5, 6)
    native(
        "ScatterND",
        whole_numbers,
        np.array([[4], [0], [4]]),
        np.ones((3, 6), np.int64) * 7,
        reduction=reduction,
    )


def test_places_outside() -> None:
    """Refused, whatever number of the tuple it is."""
    x = noise(5, 6)
    cases = [
        ("ScatterElements", np.array([[0, 5]]), noise(1, 2)),
        ("ScatterElements", np.array([[0, -6]]), noise(1, 2)),
        ("ScatterND", np.array([[0, 6]]), noise(1)),
        ("ScatterND", np.array([[-6, 5]]), noise(1)),
        ("ScatterND", np.array([[5]]), noise(1, 6)),
    ]
    for op, places, updates in cases:
        proto, feeds = single.model(op, x, places, updates)
        for device in (None, CpuDevice(1)):
            with pytest.raises(RunnerError):
                Compiled(ir.from_proto(proto), device=device).run(feeds)


def test_what_level_0_keeps() -> None:
    """Sums in half precision."""
    half = noise(4, 3).astype(np.float16)
    check_node("ScatterND", half, np.array([[1], [1]]), half[:2], reduction="add", host=True)
    native("ScatterND", half, np.array([[1], [1]]), half[:2])
    native("ScatterND", half > 0, np.array([[1], [3]]), half[:2] > 0)
