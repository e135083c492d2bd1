"""The tables that the native driver reads: what a step calls, on which addresses, after which barrier."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm import driver
from graphdoc.engine.device.llvm.builder import Kernel
from graphdoc.engine.device.llvm.laid import lined
from graphdoc.engine.device.llvm.pool import lasting
from graphdoc.engine.memory import LINE, MemoryPlan, aligned
from graphdoc.engine.program import Buffer, Kind, Program, View
from graphdoc.engine.schedule import buffers_outside, units

_WORD = 8

_FEWEST, _MOST = 2, 8
"""Shares of a step per thread: where one thread is held up, less is left waiting for it."""

_WORTH = 32
"""Times the least work that a thread is worth (walk.ENOUGH), some 30 µs, from which steps are cut finer."""

_BLOCKS: list[Any] = []
"""Words of contexts that are no more; a worker that comes late may look at them at any time."""


@dataclass(frozen=True, slots=True)
class Span:
    """Steps one after another that are one native call. threads: how many the widest of them takes."""

    steps: range
    threads: int
    records: Any
    units: Any
    fixups: Any


@dataclass(slots=True)
class Context:
    """The memory of one run at a time.

    bases: where the callers' arrays are noted, by ``id``. status: a word per step that checks numbers.
    words: per span, what the driver reads. calls: their addresses.
    host: arrays over all buffers but the callers', once a step of the host has needed them.
    """

    arena: Any
    args: Any
    bases: Any
    status: Any
    words: list[Any]
    calls: list[int]
    host: dict[Buffer, Any] = field(default_factory=dict)

    def __del__(self, blocks: list[Any] = _BLOCKS) -> None:
        blocks.extend(self.words)


@cache
def shares(most: int, threads: int) -> int:
    """Return into how many shares to cut a step of which ``most`` threads could do a part worth their while.

    A share has costs of its own, so there are only a few; long steps are cut finer, since at a step's end
    threads wait for the last share. Where parts are few, all threads should get as many.
    """
    if threads == 1:
        return 1
    finer = most // (_WORTH * threads) * threads
    found = min(most, threads * _MOST, max(threads * _FEWEST, finer), driver.WIDEST)
    if most > min(threads * _MOST, driver.WIDEST):
        return found
    counts = (found, min(threads, most), most)
    return min(counts, key=lambda count: _longest(most, count, threads))  # the first of equals


def _longest(parts: int, count: int, threads: int) -> int:
    """Return how many of equal parts, cut into so many shares, are done one after another at least."""
    free = [0] * threads
    for share in range(count):
        first = free.index(min(free))
        free[first] += (share + 1) * parts // count - share * parts // count
    return max(free)


class Table:
    """A program's kernels laid out for the driver.

    code: the address of each kernel's text. threads: how many share a step at most.
    parts: spans, and between them the numbers of steps that the host runs. watched: steps that check numbers.
    """

    def __init__(
        self,
        program: Program,
        kernels: Sequence[Kernel | None],
        code: Mapping[str, int],
        memory: MemoryPlan,
        threads: int,
    ) -> None:
        native = [k for k in kernels if k is not None]
        self.program, self.kernels, self.memory = program, kernels, memory
        self.threads = max((min(k.threads, threads) for k in native), default=1)
        self.outside = {buffer: k for k, buffer in enumerate(buffers_outside(program))}
        self.constants = _constants(program)
        self.watched = [i for i, k in enumerate(kernels) if k is not None and k.status]
        self._code = code
        self._scratch = _lines(max((k.scratch for k in native), default=0))
        self._starts, self._count = _layout(program, kernels)
        self._dims = [np.array((k and k.dims) or (0,), np.int64) for k in kernels]
        self.parts = list(self._divide())

    def _divide(self) -> Iterator[Span | int]:
        start = 0
        for number, kernel in enumerate([*self.kernels, None]):
            if kernel is not None:
                continue
            if start < number:
                yield self._span(range(start, number))
            if number < len(self.kernels):
                yield number
            start = number + 1

    def _span(self, steps: range) -> Span:
        kernels = [k for i in steps if (k := self.kernels[i]) is not None]
        counts = [shares(k.threads, self.threads) for k in kernels]
        found = units([self.program.steps[i] for i in steps], self.memory, counts)
        records = np.zeros((len(steps), driver.RECORD), np.int64)
        for row, i, kernel in zip(records, steps, kernels, strict=True):
            row[:] = self._code[kernel.text], self._starts[i] * _WORD, self._dims[i].ctypes.data
        return Span(
            steps, min(max(counts), self.threads), records, np.array(found, np.int64), self._fixups(steps)
        )

    def _fixups(self, steps: range) -> Any:
        rows = [
            (at * _WORD, self.outside[view.buffer] * _WORD, view.offset * view.dtype.itemsize)
            for i in steps
            for at, view in enumerate(_views(self.program, i), self._starts[i])
            if view.buffer in self.outside
        ]
        return np.array(rows, np.int64).reshape(-1, driver.FIXUP)

    def context(self) -> Context:
        """Return memory for one run at a time."""
        arena = aligned(self.memory.size + self.threads * self._scratch)
        status = np.zeros(len(self.watched), np.int64)
        args = self._args(int(arena.ctypes.data), int(status.ctypes.data))
        bases = (ctypes.c_size_t * max(len(self.outside), 1))()
        spans = [part for part in self.parts if isinstance(part, Span)]
        words = [self._words(span, args, ctypes.addressof(bases)) for span in spans]
        return Context(arena, args, bases, status, words, [int(w.ctypes.data) for w in words])

    def _words(self, span: Span, args: Any, bases: int) -> Any:
        words = _BLOCKS.pop() if _BLOCKS else _block()
        words[:4] = span.records.ctypes.data, span.units.ctypes.data, args.ctypes.data, args.strides[0]
        words[4:8] = span.fixups.ctypes.data, len(span.fixups), bases, 0
        words[driver.THREADS] = span.threads
        words[driver.SHARES] = span.units[-1, 2] + span.units[-1, 3]
        return words

    def _args(self, arena: int, status: int) -> Any:
        """Return each thread's table of addresses; those of callers' arrays are filled in at each run."""
        width = _lines(max(self._count, 1) * _WORD) // _WORD
        args = aligned(self.threads * width * _WORD).view(np.int64).reshape(self.threads, width)
        args[:] = 0
        scratch = arena + self.memory.size + np.arange(self.threads) * self._scratch
        for i, kernel in enumerate(self.kernels):
            if kernel is None:
                continue
            at = self._starts[i]
            for view in _views(self.program, i):
                args[:, at] = self._address(view, arena)
                at += 1
            if kernel.scratch:
                args[:, at] = scratch
                at += 1
            if kernel.status:
                args[:, at] = status + self.watched.index(i) * _WORD
        return args

    def _address(self, view: View, arena: int) -> int:
        buffer, add = view.buffer, view.offset * view.dtype.itemsize
        if buffer.kind is Kind.CONSTANT:
            return int(self.constants[buffer].ctypes.data) + add
        return 0 if buffer in self.outside else arena + self.memory.offsets[buffer] + add

    def host_memory(self, context: Context, callers: Sequence[Any]) -> dict[Buffer, Any]:
        """Return every buffer as an array of rank 1, for a step of the host; callers: inputs, outputs."""
        if not context.host:
            context.host = dict(self.constants)
            for buffer, at in self.memory.offsets.items():
                context.host[buffer] = context.arena[at : at + buffer.nbytes].view(buffer.dtype)
        theirs = {buffer: callers[k].reshape(-1) for buffer, k in self.outside.items()}
        return {**context.host, **theirs}


def _block() -> Any:
    words = lasting(aligned(driver.WORDS * _WORD).view(np.int64))
    words[:] = 0
    return words


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE


def _views(program: Program, number: int) -> tuple[View, ...]:
    step = program.steps[number]
    return *step.inputs, *step.outputs


def _layout(program: Program, kernels: Sequence[Kernel | None]) -> tuple[list[int], int]:
    """Return where each step's arguments start in a table of addresses, and how many there are."""
    starts, at = [], 0
    for number, kernel in enumerate(kernels):
        starts.append(at)
        if kernel is not None:
            at += len(_views(program, number)) + bool(kernel.scratch) + kernel.status
    return starts, at


def _constants(program: Program) -> dict[Buffer, Any]:
    """Return the contents of the constants, each starting on a cache line."""
    buffers = (buffer for buffer in program.buffers() if buffer.kind is Kind.CONSTANT)
    return {buffer: lined(buffer.data) for buffer in buffers}
