"""Runs the kernel of one step over given memory, thread by thread, beside what its specification computes."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.compiler import compile_kernel, host_target
from graphdoc.engine.program import Buffer, Step, View, dense_strides

CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def targets() -> list[Target]:
    """Return this processor, and what other ones would run, as far as this can: short and long vectors."""
    host = host_target()
    return [host, Target(host.cpu, host.features, 64, 32), Target(host.cpu, "-avx,-avx2,-fma,-f16c", 16, 16)]


def strided(data: Any, order: Sequence[int], negative: Sequence[int] = (), gap: int = 0) -> tuple[View, Any]:
    """Return a view with data's shape, axes laid out in ``order``, some backwards, a gap after each.

    Also the memory that holds data there, other elements being 77 (True).
    """
    shape = data.shape
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * max(shape[axis], 1) + gap
    offset = 3
    for axis in negative:
        offset += (shape[axis] - 1) * strides[axis] if shape[axis] else 0
        strides[axis] = -strides[axis]
    memory = np.full(step + 8, 77).astype(data.dtype)
    view = View(Buffer("b", data.dtype, memory.size), tuple(shape), tuple(strides), offset)
    view.array(memory)[...] = data
    return view, memory


def fresh(shape: Sequence[int], dtype: Any) -> tuple[View, Any]:
    """Return a row-major view and its memory."""
    size = int(np.prod(shape, dtype=int))
    view = View(Buffer("o", np.dtype(dtype), size), tuple(shape), dense_strides(shape), 0)
    return view, np.full(size, 77).astype(dtype)


def run(kernel: Kernel, step: Step, memory: Mapping[Buffer, Any], threads: int, target: Target) -> None:
    """Run the kernel over memory by as many threads' shares, one after another."""
    function = CALL(compile_kernel(kernel, target))
    dims = (ctypes.c_int64 * max(1, len(kernel.dims)))(*kernel.dims)
    views = (*step.inputs, *step.outputs)
    places = [memory[v.buffer].ctypes.data + v.offset * v.dtype.itemsize for v in views]
    for thread in range(threads):
        scratch = np.full(kernel.scratch + 64, 0xA5, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % 64
        arguments = (ctypes.c_void_p * (len(places) + 1))(*places, start)
        function(ctypes.addressof(arguments), ctypes.addressof(dims), thread, threads)


def both(
    kernel: Kernel, step: Step, memory: Mapping[Buffer, Any], threads: int, target: Target
) -> list[tuple[Any, Any]]:
    """Return per output what the kernel wrote and what its specification computes; the rest must stay."""
    ours = {buffer: array.copy() for buffer, array in memory.items()}
    theirs = {buffer: array.copy() for buffer, array in memory.items()}
    run(kernel, step, ours, threads, target)
    with np.errstate(all="ignore"):
        step.spec.evaluate(
            [v.array(theirs[v.buffer]) for v in step.inputs],
            [v.array(theirs[v.buffer]) for v in step.outputs],
        )
    results = []
    for view in step.outputs:
        found = view.array(ours[view.buffer]).copy()
        results.append((found, view.array(theirs[view.buffer]).copy()))
        view.array(ours[view.buffer])[...] = view.array(theirs[view.buffer])
    for buffer in memory:
        assert ours[buffer].tobytes() == theirs[buffer].tobytes(), "memory outside the outputs changed"
    return results
