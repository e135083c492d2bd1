"""The processor: every step that can be is machine code, and runs of them are one native call."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm import driver
from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.compiler import addresses, host_target
from graphdoc.engine.device.llvm.emit import emit, likeness
from graphdoc.engine.device.llvm.pool import pool, share
from graphdoc.engine.errors import InputError, RunnerError
from graphdoc.engine.memory import LINE, MemoryPlan, aligned, plan
from graphdoc.engine.program import Buffer, Kind, Program, Step, View
from graphdoc.engine.schedule import barriers, buffers_outside

_WORD = 8
_LARGE = 1 << 15
"""Bytes from which it pays to let an output start on a cache line."""


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CpuDevice:
    """Runs programs as machine code for the processor it stands on.

    threads: how many share a step, the caller's included; None: one per processor.

    Raises ImportError or OSError where llvmlite is missing or machine code cannot be run.
    """

    name = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        self.target = host_target()
        self.threads = _threads(threads or processors(), self.target)
        driver.steps_function(self.target)

    def load(self, program: Program) -> "CpuExecutable":
        """Make a program ready: kernels, machine code, places in memory."""
        return CpuExecutable(program, kernels(program, self.target), self.target, self.threads)


@cache
def _threads(wanted: int, target: Target) -> int:
    try:
        return wanted if wanted == 1 else pool(target).grow(wanted)
    except (OSError, AttributeError):
        return 1


def kernels(program: Program, target: Target) -> list[Kernel | None]:
    """Return the kernel of each step, None for those that their specification itself computes."""
    known: dict[Any, Kernel | None] = {}
    found = []
    for step in program.steps:
        key = likeness(step, None)
        if key not in known:
            known[key] = emit(step, target)
        found.append(known[key])
    return found


@dataclass(frozen=True, slots=True)
class _Span:
    """Steps one after another that are one native call. threads: how many the widest of them takes."""

    steps: range
    threads: int
    records: Any
    fixups: Any


@dataclass(slots=True)
class _Context:
    """The memory of one run at a time.

    bases: where the callers' arrays are noted. calls: per span, what to call the driver with.
    host: arrays over the inner buffers, for steps of the host.
    """

    arena: Any
    args: Any
    bases: Any
    status: Any
    words: list[Any]
    calls: list[int]
    host: dict[Buffer, Any] = field(default_factory=dict)


class CpuExecutable:
    """A program loaded on the processor. Any number of threads may run it at once, each in memory of its own.

    memory: where inner buffers lie. kernels: per step; None: a step of the host.
    """

    def __init__(
        self, program: Program, found: Sequence[Kernel | None], target: Target, threads: int
    ) -> None:
        self.program = program
        self.kernels = list(found)
        self.memory: MemoryPlan = plan(program)
        self._target = target
        self._addresses = addresses([k.text for k in found if k is not None], target)
        self.threads = max((min(k.threads, threads) for k in found if k is not None), default=1)
        self._run_steps = driver.steps_function(target)
        self._share = share(target)
        self._outside = {buffer: k for k, buffer in enumerate(buffers_outside(program))}
        self._constants = _constants(program)
        self._scratch = -(-max((k.scratch for k in found if k is not None), default=0) // LINE) * LINE
        self._layout = _layout(program, self.kernels)
        self._dims = [np.array(k.dims or (0,), np.int64) for k in found if k is not None]
        self._watched = [i for i, k in enumerate(found) if k is not None and k.status]
        self._parts = list(self._divide())
        self._spans = [part for part in self._parts if isinstance(part, _Span)]
        self._inputs = [(v.dtype, v.shape) for v in program.inputs.values()]
        self._outputs = [(v.dtype, v.shape, v.buffer.nbytes) for v in program.outputs.values()]
        self._alone = len(self._parts) == len(self._spans) == 1 and self._spans[0].threads == 1
        self._free: list[_Context] = []

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs; see :class:`~graphdoc.engine.device.protocol.Executable`.

        Raises InputError when an array has another shape or dtype than its input.
        """
        return self._run(inputs, None)

    def profile(self, inputs: Sequence[Any]) -> list[float]:
        """Run once, with a barrier before every step, and return the seconds each step took."""
        times: list[Any] = []
        self._run(inputs, times)
        return [float(t) for t in times]

    def _run(self, inputs: Sequence[Any], times: list[Any] | None) -> list[Any]:
        arrays = [
            a
            if type(a) is np.ndarray
            and a.dtype == dtype
            and a.shape == shape
            and a.flags.c_contiguous
            and a.flags.aligned
            else _fitting(a, dtype, shape)
            for a, (dtype, shape) in zip(inputs, self._inputs, strict=True)
        ]
        outputs = [
            np.empty(shape, dtype) if nbytes < _LARGE else aligned(nbytes).view(dtype).reshape(shape)
            for dtype, shape, nbytes in self._outputs
        ]
        context = self._free.pop() if self._free else self._context()
        try:
            bases = context.bases
            for k, array in enumerate(arrays):
                bases[k] = id(array)
            for k, array in enumerate(outputs, len(arrays)):
                bases[k] = id(array)
            self._go(context, arrays + outputs, times)
        finally:
            self._free.append(context)
        return outputs

    def _go(self, context: _Context, outside: list[Any], times: list[Any] | None) -> None:
        """Run the parts in order."""
        if self._alone and times is None:
            self._share(context.calls[0])
        else:
            self._go_by_parts(context, outside, times)
        if self._watched and context.status.any():
            bad = [i for i, s in zip(self._watched, context.status, strict=True) if s]
            context.status[:] = 0
            raise self._failure(self.program.steps[bad[0]])

    def _go_by_parts(self, context: _Context, outside: list[Any], times: list[Any] | None) -> None:
        self._renew(context)
        calls = iter(zip(context.calls, context.words, strict=True))
        for part in self._parts:
            if isinstance(part, _Span):
                self._call(part, *next(calls), times)
            else:
                self._host(part, context, outside, times)

    def _call(self, span: _Span, call: int, words: Any, times: list[Any] | None) -> None:
        if times is None:
            self._share(call)
            return
        stamps = np.zeros(len(span.steps) + 1, np.int64)
        words[7] = stamps.ctypes.data
        self._share(call)
        words[7] = 0
        times.extend(np.diff(stamps) * 1e-9)

    def _renew(self, context: _Context) -> None:
        """Note the pool of this process in a context: after a fork it is another one."""
        if self.threads > 1:
            for words in context.words:
                words[16] = self._pool()

    def _pool(self) -> int:
        found = pool(self._target)
        if found.threads < self.threads:
            found.grow(self.threads)
        return found.address

    def _host(self, number: int, context: _Context, outside: list[Any], times: list[Any] | None) -> None:
        """Run a step by its specification."""
        import time

        started = time.perf_counter()
        step = self.program.steps[number]
        if not context.host:
            context.host = self._host_memory(context.arena)
        memory = {**context.host}
        for buffer, k in self._outside.items():
            memory[buffer] = outside[k].reshape(-1)
        with np.errstate(all="ignore"):
            step.spec.evaluate(
                [v.array(memory[v.buffer]) for v in step.inputs],
                [v.array(memory[v.buffer]) for v in step.outputs],
            )
        if times is not None:
            times.append(time.perf_counter() - started)

    def _host_memory(self, arena: Any) -> dict[Buffer, Any]:
        inner = {
            buffer: arena[offset : offset + buffer.nbytes].view(buffer.dtype)
            for buffer, offset in self.memory.offsets.items()
        }
        return {**inner, **self._constants}

    def _failure(self, step: Step) -> RunnerError:
        names = ", ".join(step.nodes) or type(step.spec).__name__
        return RunnerError(f"an index lies outside its axis in '{names}'", where="device cpu")

    def _divide(self) -> "list[_Span | int]":
        """Return the native spans, and the numbers of the host's steps between them."""
        parts: list[_Span | int] = []
        start = 0
        for number, kernel in enumerate([*self.kernels, None]):
            if kernel is not None:
                continue
            if start < number:
                parts.append(self._span(range(start, number)))
            if number < len(self.kernels):
                parts.append(number)
            start = number + 1
        return parts

    def _span(self, steps: range) -> _Span:
        part = Program([self.program.steps[i] for i in steps])
        own = [k for i in steps if (k := self.kernels[i]) is not None]
        counts = [min(k.threads, self.threads) for k in own]
        waits = list(barriers(part, self.memory, counts))
        dims = dict(zip((i for i, k in enumerate(self.kernels) if k), self._dims, strict=True))
        records = np.zeros((len(steps), driver.RECORD), np.int64)
        for row, i, kernel, count, wait in zip(records, steps, own, counts, waits, strict=True):
            at = self._layout.starts[i] * _WORD
            row[:6] = self._addresses[kernel.text], at, dims[i].ctypes.data, 0, count, wait
        return _Span(steps, max(counts), records, self._fixups(steps))

    def _fixups(self, steps: range) -> Any:
        rows = []
        for i in steps:
            step = self.program.steps[i]
            for k, view in enumerate((*step.inputs, *step.outputs), self._layout.starts[i]):
                if view.buffer in self._outside:
                    add = view.offset * view.dtype.itemsize
                    rows.append((k * _WORD, self._outside[view.buffer] * _WORD, add))
        return np.array(rows, np.int64).reshape(-1, driver.FIXUP)

    def _context(self) -> _Context:
        arena = aligned(self.memory.size + self.threads * self._scratch)
        status = np.zeros(len(self._watched), np.int64)
        args = self._args(arena, status)
        bases = (ctypes.c_size_t * max(len(self._outside), 1))()
        words = []
        for span in self._spans:
            row = aligned(driver.WORDS * _WORD).view(np.int64)
            row[:] = 0
            row[:4] = span.records.ctypes.data, len(span.steps), args.ctypes.data, args.strides[0]
            row[4:7] = span.fixups.ctypes.data, len(span.fixups), ctypes.addressof(bases)
            row[17:19] = self._run_steps, span.threads
            words.append(row)
        return _Context(arena, args, bases, status, words, [int(w.ctypes.data) for w in words])

    def _args(self, arena: Any, status: Any) -> Any:
        """Return each thread's table of addresses; those of callers' arrays are filled in at each run."""
        base = int(arena.ctypes.data)
        width = -(-max(self._layout.count, 1) // _WORD) * _WORD
        args = aligned(self.threads * width * _WORD).view(np.int64).reshape(self.threads, width)
        args[:] = 0
        for i, (step, kernel) in enumerate(zip(self.program.steps, self.kernels, strict=True)):
            if kernel is None:
                continue
            at = self._layout.starts[i]
            for view in (*step.inputs, *step.outputs):
                args[:, at] = self._address(view, base)
                at += 1
            if kernel.scratch:
                args[:, at] = base + self.memory.size + np.arange(self.threads) * self._scratch
                at += 1
            if kernel.status:
                args[:, at] = status.ctypes.data + self._watched.index(i) * _WORD
        return args

    def _address(self, view: View, arena: int) -> int:
        buffer, add = view.buffer, view.offset * view.dtype.itemsize
        if buffer.kind is Kind.CONSTANT:
            return int(self._constants[buffer].ctypes.data) + add
        return 0 if buffer in self._outside else arena + self.memory.offsets[buffer] + add


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the arguments of each step start in the table of addresses, and how many there are in all."""

    starts: list[int]
    count: int


def _layout(program: Program, found: Sequence[Kernel | None]) -> _Layout:
    starts, at = [], 0
    for step, kernel in zip(program.steps, found, strict=True):
        starts.append(at)
        if kernel is not None:
            at += len(step.inputs) + len(step.outputs) + bool(kernel.scratch) + kernel.status
    return _Layout(starts, at)


def _constants(program: Program) -> dict[Buffer, Any]:
    """Return the contents of the constants, each starting on a cache line."""
    found = {}
    for buffer in program.buffers():
        if buffer.kind is Kind.CONSTANT:
            data = np.ascontiguousarray(buffer.data).reshape(-1)
            if data.ctypes.data % LINE:
                place = aligned(data.nbytes).view(data.dtype)
                place[:] = data
                data = place
            found[buffer] = data
    return found


def _fitting(array: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return an array in the order and on the addresses that kernels need."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        kind = f"{getattr(array, 'dtype', type(array).__name__)}{list(getattr(array, 'shape', ()))}"
        raise InputError(f"an input is {kind} where the program takes {np.dtype(dtype)}{list(shape)}")
    return np.array(array, dtype, order="C")
