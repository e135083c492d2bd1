"""Where threads have to wait for each other: between a write and whatever else touches the same bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from graphdoc.engine.memory import MemoryPlan
from graphdoc.engine.program import Buffer, Kind, Program, Step, View

WHOLE_ARENA = "arena"


class Extent(NamedTuple):
    """A view's bytes, from ``low`` to before ``high`` of one memory: the arena, or a buffer outside it."""

    memory: Any
    low: int
    high: int
    view: View

    def meets(self, other: "Extent") -> bool:
        """Whether both may share a byte."""
        overlap = self.memory is other.memory and self.low < other.high and other.low < self.high
        return overlap and not apart(self.view, other.view)


def apart(a: View, b: View) -> bool:
    """Whether two views of one buffer are seen to share no element although they span the same stretch.

    So lie the channels of two images that are joined, or the left border of an image beside its middle: seen
    modulo some stride, each view keeps to a range of its own.
    """
    if a.buffer is not b.buffer:
        return False
    for modulus in {s for n, s in zip(a.shape, a.strides, strict=True) if n > 1 and s > 1}:
        first, second = _range(a, modulus), _range(b, modulus)
        if first and second and (first[1] <= second[0] or second[1] <= first[0]):
            return True
    return False


def _range(view: View, modulus: int) -> tuple[int, int] | None:
    """Return the range of a view's elements modulo a number, None where they take no range of it."""
    axes = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if n > 1]
    width = 1 + sum((n - 1) * s for n, s in axes if s % modulus)
    first = view.offset % modulus
    if any(s < 0 for _, s in axes) or first + width > modulus:
        return None
    return first, first + width


def extent(view: View, plan: MemoryPlan) -> Extent:
    """Return the bytes between a view's first and last element."""
    low, high = (e * view.dtype.itemsize for e in view.extent)
    buffer = view.buffer
    if buffer.kind is not Kind.INNER or low == high:
        return Extent(buffer, low, high, view)
    base = plan.offsets[buffer]
    return Extent(WHOLE_ARENA, base + low, base + high, view)


@dataclass(slots=True)
class _Interval:
    """What the steps since the last barrier touch, and the thread that does it alone (None: several)."""

    reads: list[tuple[Extent, int | None]]
    writes: list[tuple[Extent, int | None]]

    def forbids(self, reads: Sequence[Extent], writes: Sequence[Extent], alone: int | None) -> bool:
        """Whether a step may not run beside them."""
        touched = [*reads, *writes]
        return _clash(self.writes, touched, alone) or _clash(self.reads, writes, alone)

    def add(self, reads: Sequence[Extent], writes: Sequence[Extent], alone: int | None) -> None:
        """Note a step."""
        self.reads += [(e, alone) for e in reads]
        self.writes += [(e, alone) for e in writes]


def _clash(earlier: list[tuple[Extent, int | None]], later: Sequence[Extent], alone: int | None) -> bool:
    return any(
        (alone is None or other != alone) and old.meets(new) for old, other in earlier for new in later
    )


def accesses(step: Step, plan: MemoryPlan) -> tuple[list[Extent], list[Extent]]:
    """Return what a step reads and writes; constants, which nobody writes, are left out."""
    reads = [extent(v, plan) for v in step.inputs if v.buffer.kind is not Kind.CONSTANT]
    return reads, [extent(v, plan) for v in step.outputs]


def barriers(steps: Sequence[Step], plan: MemoryPlan, threads: Sequence[int]) -> Iterator[bool]:
    """Yield for each step whether every thread must have finished what comes before it.

    threads: how many threads share each step; a step of one thread runs on thread 0, after all that this
        thread did before.
    """
    since = _Interval([], [])
    for step, count in zip(steps, threads, strict=True):
        reads, writes = accesses(step, plan)
        alone = 0 if count == 1 else None
        needed = since.forbids(reads, writes, alone)
        if needed:
            since = _Interval([], [])
        since.add(reads, writes, alone)
        yield needed


class Unit(NamedTuple):
    """Steps that threads take as one: one step in several shares, or a run of steps of one share each.

    start, length: the steps. first, shares: the shares, numbered through all units. need: how many shares
    must be finished before it may start.
    """

    start: int
    length: int
    first: int
    shares: int
    need: int


def units(steps: Sequence[Step], plan: MemoryPlan, shares: Sequence[int]) -> list[Unit]:
    """Return the units of steps of which each may be cut into so many shares."""
    found: list[Unit] = []
    since = _Interval([], [])
    first = need = 0
    for start, count in _runs(shares):
        parts = [accesses(step, plan) for step in steps[start : start + count]]
        reads = [e for reading, _ in parts for e in reading]
        writes = [e for _, writing in parts for e in writing]
        if since.forbids(reads, writes, None):
            since, need = _Interval([], []), first
        since.add(reads, writes, None)
        found.append(Unit(start, count, first, shares[start], need))
        first += shares[start]
    return found


def _runs(shares: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first step and number of steps: of those with one share as many as follow each other."""
    start = 0
    for step, count in enumerate(shares):
        if count > 1:
            if start < step:
                yield start, step - start
            yield step, 1
            start = step + 1
    if start < len(shares):
        yield start, len(shares) - start


def buffers_outside(program: Program) -> list[Buffer]:
    """Return the buffers that callers hold, inputs first."""
    return [view.buffer for view in (*program.inputs.values(), *program.outputs.values())]
