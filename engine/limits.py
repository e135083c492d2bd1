"""How fast this machine can be: multiply-adds a second of one thread, and bytes a second from memory.

Measured, not looked up: clock rates move, and machines are shared.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from graphdoc.engine.device.llvm.builder import Function, Target, floating, vector
from graphdoc.engine.device.llvm.compiler import compile_kernel, host_target
from graphdoc.engine.expr import F32

_ROUNDS = 20_000
_TRIES = 12
FAR, NEAR = 64 << 20, 192 << 10
"""Bytes of the copied arrays: more than any cache holds, and what a core's own caches hold."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one thread. operations: float32 operations a second, a multiply-add being two. near, far: bytes a
    second, read and written, within a core's caches and between the processor and memory."""

    operations: float
    near: float
    far: float

    def least(self, operations: int, traffic: int, threads: int) -> float:
        """Return the seconds that this many operations and bytes take at least, on some threads.

        What fits into the caches may come from there: steps follow one another.
        """
        bytes_ = self.far if traffic > FAR // 2 else self.near * threads
        return max(operations / (self.operations * threads), traffic / bytes_)


@cache
def limits() -> Limits:
    """Return the machine's limits, measured in about 0.2 s.

    Raises ImportError or OSError where machine code cannot be run.
    """
    return Limits(_operations(host_target()), _bytes(NEAR, 400), _bytes(FAR, 4))


def _operations(target: Target) -> float:
    """Time independent chains of multiply-adds that never leave the registers."""
    chains = target.registers - 4
    lanes = target.lanes(F32)
    kind = vector("float", lanes)
    fn = Function()
    out, count = fn.argument(0), fn.dim(_ROUNDS)
    factor = floating(0.999, kind)
    start = [floating(float(k), kind) for k in range(chains)]
    with fn.loop(0, count, 1, start) as (_, sums):
        sums[:] = [fn.fma(total, factor, factor) for total in sums]
    for k, total in enumerate(sums):
        fn.store(total, fn.at(out, k * lanes, "float"))
    kernel = fn.kernel()
    memory = np.zeros(chains * lanes, np.float32)
    args = (ctypes.c_void_p * 1)(memory.ctypes.data)
    dims = (ctypes.c_int64 * 1)(*kernel.dims)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        compile_kernel(kernel, target)
    )
    best = min(
        _timed(lambda: run(ctypes.addressof(args), ctypes.addressof(dims), 0, 1)) for _ in range(_TRIES)
    )
    return 2.0 * chains * lanes * _ROUNDS / best


def _bytes(size: int, tries: int) -> float:
    source = np.ones(size, np.uint8)
    target = np.zeros_like(source)
    return 2.0 * size / min(_timed(lambda: np.copyto(target, source)) for _ in range(tries))


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
