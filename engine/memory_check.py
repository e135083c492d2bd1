"""Whether a memory plan is right, found without the planner's notions: by following every byte of the arena.

A :class:`Ledger` holds, for each byte of the arena, which buffer's element lies there. A step may read an
element only where that is the element's own buffer: so neither what was never written nor what another buffer
has since written over. :func:`check_plan` walks a program that way; the fake device runs one that way.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.kernels.map import Map
from graphdoc.engine.memory import LINE, MemoryPlan, lifetimes
from graphdoc.engine.program import Buffer, Kind, Program, Step, View

EXACT = 1 << 23
"""Elements that all views of a program may have together for every one of them to be followed."""


def elements(view: View) -> Any:
    """Return the positions in its buffer of a view's elements, each once, sorted."""
    return np.unique(view.array(np.arange(view.buffer.size)))


class Ledger:
    """Which buffer each byte of memory belongs to. Memory of callers and the arena alike."""

    def __init__(self, program: Program, plan: MemoryPlan) -> None:
        self._plan = plan
        self._numbers = {buffer: number for number, buffer in enumerate(program.buffers())}
        self._owners: dict[Buffer | None, Any] = {None: np.full(plan.size, -1, np.int32)}
        for buffer, number in self._numbers.items():
            if buffer.kind is not Kind.INNER:
                written = -1 if buffer.kind is Kind.OUTPUT else number
                self._owners[buffer] = np.full(buffer.nbytes, written, np.int32)

    def place(self, view: View) -> tuple[Buffer | None, Any]:
        """Return the memory (None: the arena) and the positions of the bytes that a view's elements take."""
        buffer, width = view.buffer, view.dtype.itemsize
        inner = buffer.kind is Kind.INNER
        first = (self._plan.offsets[buffer] if inner else 0) + elements(view) * width
        return None if inner else buffer, (first[:, None] + np.arange(width)).reshape(-1)

    def faults_reading(self, view: View) -> Iterator[str]:
        """Yield what is wrong with reading a view now."""
        memory, at = self.place(view)
        owners = self._owners[memory][at]
        if (owners == -1).any():
            yield f"reads '{view.buffer.name}' where nothing was written"
        for other in set(owners.tolist()) - {-1, self._numbers[view.buffer]}:
            name = next(b.name for b, n in self._numbers.items() if n == other)
            yield f"reads '{view.buffer.name}' where '{name}' was written since"

    def write(self, view: View) -> None:
        """Note that a view's elements have been written."""
        memory, at = self.place(view)
        self._owners[memory][at] = self._numbers[view.buffer]


def check_plan(program: Program, plan: MemoryPlan) -> list[str]:
    """Return what is wrong with a plan, in words; empty: nothing.

    Buffers that live at the same time share no byte but where an element-wise step takes over the place;
    every view stays within its buffer and every buffer within the arena. In programs of up to EXACT elements,
    every element read has been written before, and every element of an output is written.
    """
    faults = [*_outside(program, plan), *_overlaps(program, plan), *_clobbered(program, plan)]
    total = sum(view.size for step in program.steps for view in (*step.inputs, *step.outputs))
    if not faults and total <= EXACT:
        faults += _walk(program, plan)
    return faults


def _outside(program: Program, plan: MemoryPlan) -> Iterator[str]:
    for number, step in enumerate(program.steps):
        for view in (*step.inputs, *step.outputs):
            low, high = view.extent
            if low < 0 or high > view.buffer.size:
                span = f"{low} to {high} of {view.buffer.size}"
                yield f"step {number}: a view of '{view.buffer.name}' spans {span}"
        for view in step.outputs:
            if view.buffer.kind in (Kind.INPUT, Kind.CONSTANT):
                yield f"step {number} writes the {view.buffer.kind.value} '{view.buffer.name}'"
    for buffer in lifetimes(program):
        at = plan.offsets.get(buffer)
        if at is None:
            yield f"'{buffer.name}' has no place"
        elif at < 0 or at % LINE or at + buffer.nbytes > plan.size:
            yield f"'{buffer.name}' lies at {at} to {at + buffer.nbytes} of {plan.size}"


def _overlaps(program: Program, plan: MemoryPlan) -> Iterator[str]:
    """Yield pairs that share bytes while both live; where one takes over from the other is no overlap."""
    lives = [(b, *life) for b, life in lifetimes(program).items() if b in plan.offsets and b.nbytes]
    table = np.array([(f, last, plan.offsets[b], plan.offsets[b] + b.nbytes) for b, f, last in lives])
    for k, (buffer, first, last) in enumerate(lives):
        low, high = table[k, 2:]
        shared = (table[:k, 2] < high) & (table[:k, 3] > low)
        for j in np.flatnonzero(shared & (table[:k, 0] < last) & (table[:k, 1] > first)):
            yield f"'{lives[j][0].name}' and '{buffer.name}' share bytes while both live"


def _clobbered(program: Program, plan: MemoryPlan) -> Iterator[str]:
    """Yield steps that write over what they have still to read."""
    for number, step in enumerate(program.steps):
        for out in step.outputs:
            for read in step.inputs:
                if _touch(out, read, plan) and not (
                    isinstance(step.spec, Map) and _in_place(out, read, plan)
                ):
                    names = f"'{out.buffer.name}' over '{read.buffer.name}'"
                    yield f"step {number} writes {names}, which it reads"


def _span(view: View, plan: MemoryPlan) -> tuple[int, int]:
    base, width = plan.offsets.get(view.buffer, 0), view.dtype.itemsize
    low, high = view.extent
    return base + low * width, base + high * width


def _touch(a: View, b: View, plan: MemoryPlan) -> bool:
    inner = a.buffer.kind is Kind.INNER and b.buffer.kind is Kind.INNER
    if not inner and a.buffer is not b.buffer:
        return False
    (low, high), (low_b, high_b) = _span(a, plan), _span(b, plan)
    return low < high_b and low_b < high and (a.buffer is not b.buffer or _share(a, b))


def _share(a: View, b: View) -> bool:
    """Whether two views of one buffer have an element in common; of large ones, whether they may have."""
    if a.size + b.size > EXACT:
        return True
    return bool(np.intersect1d(elements(a), elements(b), assume_unique=True).size)


def _in_place(a: View, b: View, plan: MemoryPlan) -> bool:
    def steps(view: View) -> list[tuple[int, int]]:
        width = view.dtype.itemsize
        return [(n, s * width) for n, s in zip(view.shape, view.strides, strict=True) if n > 1]

    first = [plan.offsets.get(v.buffer, 0) + v.offset * v.dtype.itemsize for v in (a, b)]
    return first[0] == first[1] and steps(a) == steps(b) and a.dtype.itemsize == b.dtype.itemsize


def _walk(program: Program, plan: MemoryPlan) -> Iterator[str]:
    ledger = Ledger(program, plan)
    for number, step in enumerate(program.steps):
        yield from (f"step {number} {fault}" for fault in step_faults(ledger, step))
        for view in step.outputs:
            ledger.write(view)
    for name, view in program.outputs.items():
        yield from (f"output '{name}': whoever {fault}" for fault in ledger.faults_reading(view))


def step_faults(ledger: Ledger, step: Step) -> list[str]:
    """Return what is wrong with what a step reads now."""
    return [fault for view in step.inputs for fault in ledger.faults_reading(view)]


def peak(program: Program, plan: MemoryPlan) -> Sequence[int]:
    """Return the bytes of inner buffers alive at each step: what any plan needs at least is the largest."""
    sizes = np.zeros(len(program.steps) + 1, np.int64)
    for buffer, (first, last) in lifetimes(program).items():
        sizes[first] += -(-buffer.nbytes // LINE) * LINE
        sizes[last + 1] -= -(-buffer.nbytes // LINE) * LINE
    return [int(n) for n in np.cumsum(sizes)[:-1]]
