"""Runs one kernel on arrays, thread by thread, without a driver."""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.compiler import compile_kernel, host_target
from graphdoc.engine.program import Buffer, Step

LINE = 64
"""Bytes on which buffers start."""


def aligned(size: int, dtype: Any) -> Any:
    """Return zeros that start on a line."""
    nbytes = size * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + nbytes].view(dtype)


def run(
    kernel: Kernel, step: Step, memory: Mapping[Buffer, Any], threads: int = 1, target: Target | None = None
) -> bool:
    """Run a kernel as each of ``threads`` threads in turn, the last one first; return its status.

    target: the processor to compile for, None for this one.
    """
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function = kind(compile_kernel(kernel, target or host_target()))
    dims = np.array(kernel.dims or (0,), np.int64)
    scratch = aligned(kernel.scratch + LINE, np.uint8)
    scratch[...] = 0xA5
    views = (*step.inputs, *step.outputs)
    places = [memory[v.buffer].ctypes.data + v.offset * v.dtype.itemsize for v in views]
    status = np.zeros(1, np.int64)
    more = [scratch.ctypes.data] if kernel.scratch else []
    args = np.array([*places, *more, status.ctypes.data], np.uint64)
    for thread in reversed(range(threads)):
        function(args.ctypes.data, dims.ctypes.data, thread, threads)
    assert np.all(scratch[kernel.scratch :] == 0xA5), "wrote past its scratch memory"
    return bool(status[0])


SSE2 = Target("x86-64", "", 16, 16)
AVX2 = Target("", "", 32, 16)
AVX512 = Target("", "", 64, 32)


def dressed(target: Target) -> Target:
    """Return a target's widths with this machine's instructions, so that what is emitted for it runs here."""
    host = host_target()
    return Target(host.cpu, host.features, target.vector, target.registers)
