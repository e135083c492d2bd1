"""The processor: every step that can be is machine code, and a run of them is one native call."""

import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm import driver
from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.compiler import addresses, host_target
from graphdoc.engine.device.llvm.emit import emit, likeness
from graphdoc.engine.device.llvm.laid import Laid
from graphdoc.engine.device.llvm.pool import pool, share
from graphdoc.engine.device.llvm.table import Context, Span, Table
from graphdoc.engine.errors import InputError, RunnerError
from graphdoc.engine.memory import MemoryPlan, aligned, plan
from graphdoc.engine.program import Program, Step

_LARGE = 1 << 15
"""Bytes from which it pays to let an output start on a cache line."""

_EMITTED = 4096
"""Kernels to remember; writing one takes milliseconds, and programs share most of theirs."""

_CONTIGUOUS_ALIGNED = 0x101
"""NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED among the flags of an array."""


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
        self._laid = Laid()
        driver.steps_function(self.target)

    def load(self, program: Program) -> "CpuExecutable":
        """Make a program ready: weights packed, kernels, machine code, places in memory."""
        program = prepared(program, self.target, self._laid)
        return CpuExecutable(program, kernels(program, self.target), self.target, self.threads)


def prepared(program: Program, target: Target, laid: Laid | None = None) -> Program:
    """Return a program with its constants laid out as kernels read them.

    laid: what was laid out for other programs of the same weights.
    """
    from graphdoc.engine.device.llvm.pack import prepare_contractions
    from graphdoc.engine.device.llvm.rows_pack import prepare_rows

    return prepare_rows(prepare_contractions(program, target, laid), laid)


@cache
def _threads(wanted: int, target: Target) -> int:
    try:
        return wanted if wanted == 1 else pool(target).grow(wanted)
    except (OSError, AttributeError):
        return 1


def kernels(program: Program, target: Target) -> list[Kernel | None]:
    """Return the kernel of each step, None for those that their specification itself computes."""
    known = _emitted(target)
    found = []
    for step in program.steps:
        key = likeness(step, None)
        if key not in known:
            if len(known) >= _EMITTED:
                known.clear()
            known[key] = emit(step, target)
        found.append(known[key])
    return found


@cache
def _emitted(target: Target) -> dict[Any, Kernel | None]:
    """Return the kernels that this process has emitted, by what steps that share one have in common."""
    return {}


class CpuExecutable:
    """A program loaded on the processor. Any number of threads may run it at once, each in memory of its own.

    memory: where inner buffers lie. kernels: per step; None: a step of the host.
    code: the address of each kernel's text, where it is loaded already.
    """

    def __init__(
        self,
        program: Program,
        found: Sequence[Kernel | None],
        target: Target,
        threads: int,
        *,
        code: Mapping[str, int] | None = None,
        memory: MemoryPlan | None = None,
    ) -> None:
        self.program = program
        self.memory = plan(program) if memory is None else memory
        if code is None:
            code = addresses([k.text for k in found if k is not None], target)
        self.kernels = [k if k is not None and k.text in code else None for k in found]
        self._target = target
        self._table = Table(program, self.kernels, code, self.memory, threads)
        self._run_steps = driver.steps_function(target)
        self._share = share(target)
        self._direct = [type(part) for part in self._table.parts] == [Span] and self._table.threads == 1
        self._inputs = [(view.dtype, view.shape) for view in program.inputs.values()]
        self._outputs = [
            (view.shape, view.dtype, view.buffer.nbytes < _LARGE) for view in program.outputs.values()
        ]
        self._free: list[Context] = []

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
        """Run in a context of one's own; written out, since a small model takes no longer than this does."""
        free = self._free
        context = free.pop() if free else self._context()
        bases = context.bases
        arrays = []
        k = 0
        for dtype, shape in self._inputs:
            array = inputs[k]
            if not (
                type(array) is np.ndarray
                and array.dtype is dtype
                and array.shape == shape
                and array.flags.num & _CONTIGUOUS_ALIGNED == _CONTIGUOUS_ALIGNED
            ):
                array = _fitting(array, dtype, shape)
            arrays.append(array)
            bases[k] = id(array)
            k += 1
        outputs = []
        for shape, dtype, small in self._outputs:
            array = np.empty(shape, dtype) if small else _large(shape, dtype)
            outputs.append(array)
            bases[k] = id(array)
            k += 1
        if self._direct and times is None:
            self._share(context.calls[0])
        else:
            self._parts(context, arrays + outputs, times)
        if len(context.status) and context.status.any():
            self._refuse(context)
        free.append(context)
        return outputs

    def _context(self) -> Context:
        context = self._table.context()
        for words in context.words:
            words[driver.WORK] = self._run_steps
        return context

    def _parts(self, context: Context, callers: list[Any], times: list[Any] | None) -> None:
        """Run native spans and steps of the host in turn."""
        if self._table.threads > 1:
            address = self._pool()
            for words in context.words:
                words[driver.POOL] = address
        spans = iter(context.words)
        for part in self._table.parts:
            if isinstance(part, Span):
                self._span(part, next(spans), times)
            else:
                self._host(part, context, callers, times)

    def _pool(self) -> int:
        """Return the address of this process's pool: after a fork it is another one."""
        found = pool(self._target)
        if found.threads < self._table.threads:
            found.grow(self._table.threads)
        return found.address

    def _span(self, span: Span, words: Any, times: list[Any] | None) -> None:
        if times is None:
            self._share(int(words.ctypes.data))
            return
        stamps = np.zeros(len(span.steps) + 1, np.int64)
        words[driver.TIMES] = stamps.ctypes.data
        self._share(int(words.ctypes.data))
        stamps[-1] = time.clock_gettime_ns(driver.CLOCK)
        words[driver.TIMES] = 0
        times.extend(np.diff(stamps) * 1e-9)

    def _host(self, number: int, context: Context, callers: list[Any], times: list[Any] | None) -> None:
        """Run a step by its specification."""
        started = time.perf_counter()
        step = self.program.steps[number]
        memory = self._table.host_memory(context, callers)
        try:
            with np.errstate(all="ignore"):
                step.spec.evaluate(
                    [v.array(memory[v.buffer]) for v in step.inputs],
                    [v.array(memory[v.buffer]) for v in step.outputs],
                )
        except RunnerError as error:
            named = f"runner engine failed at '{_name(step)}': {error.cause}"
            raise RunnerError(named, where=error.where, next_step=error.next_step) from error
        if times is not None:
            times.append(time.perf_counter() - started)

    def _refuse(self, context: Context) -> None:
        """Raise RunnerError for the first step that noted a number out of range."""
        first = self._table.watched[int(np.flatnonzero(context.status)[0])]
        context.status[:] = 0
        self._free.append(context)
        raise RunnerError(
            f"runner engine failed at '{_name(self.program.steps[first])}': an index lies outside its axis",
        )


def _name(step: Step) -> str:
    return ", ".join(step.nodes) or type(step.spec).__name__


def _large(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new array that starts on a cache line."""
    count = int(np.prod(shape, dtype=np.int64))
    return aligned(count * dtype.itemsize).view(dtype).reshape(shape)


def _fitting(array: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return an array in the order and on the addresses that kernels need.

    Raises InputError where it is no array of this dtype and shape.
    """
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        kind = f"{getattr(array, 'dtype', type(array).__name__)}{list(getattr(array, 'shape', ()))}"
        raise InputError(f"an input is {kind} where the program takes {np.dtype(dtype)}{list(shape)}")
    if array.flags.num & _CONTIGUOUS_ALIGNED == _CONTIGUOUS_ALIGNED and array.dtype.isnative:
        return np.asarray(array)
    return np.array(array, dtype, order="C", subok=False)
