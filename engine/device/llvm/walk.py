"""How a kernel walks a domain: its axes in the order of the output's memory, units of work, threads.

What threads share are *units*, all positions of the outer axes. A thread steps from one to the next like an
odometer: offsets of operands are carried along, not computed anew; operands with the same strides share one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from graphdoc.engine.device.llvm.builder import Function, Number, Value, number
from graphdoc.engine.program import Axes, merged

ENOUGH = 16 * 1024
"""Bytes to touch that make one more thread pay: some 4000 cycles, where starting it costs 1000."""

BLOCK = 4096
"""Elements of a row that make one unit of work, where rows are few and long; a multiple of all vectors."""


def ordered(shape: Sequence[int], strides: Sequence[Sequence[int]], first: int) -> tuple[Axes, list[int]]:
    """Return the axes by descending stride of operand ``first``, merged, and where operands then start.

    Axes along which that operand runs backwards are turned round.
    """
    columns = list(zip(shape, *strides, strict=True))
    starts = [0] * len(strides)
    for at, (size, *steps) in enumerate(columns):
        if steps[first] < 0 < size:
            starts = [s + (size - 1) * step for s, step in zip(starts, steps, strict=True)]
            columns[at] = (size, *(-step for step in steps))
    columns.sort(key=lambda column: -column[1 + first])
    if not columns:
        return [], starts
    sizes, *rest = zip(*columns, strict=True)
    return merged(sizes, rest), starts


def threads_for(nbytes: int, cycles: float, units: int) -> int:
    """Return with how many threads a kernel may be entered."""
    return max(1, min(int(max(nbytes, 4 * cycles) / ENOUGH), units))


@dataclass(frozen=True, slots=True)
class Block:
    """One axis cut into blocks of ``length`` elements, the last one up to twice as long."""

    size: int
    length: int

    @property
    def count(self) -> int:
        """Return the number of blocks."""
        return max(self.size // self.length, 1)

    def axis(self, strides: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Return the axis of the blocks, given the strides along the cut one."""
        return self.count, tuple(s * self.length for s in strides)

    @classmethod
    def of_row(cls, size: int) -> "Block":
        """Return a row, cut into blocks where it is long."""
        return cls(size, BLOCK if size >= 2 * BLOCK else max(size, 1))

    def extent(self, fn: Function, index: Number) -> Number:
        """Return how many elements a block has."""
        if self.count == 1:
            return fn.dim(self.size)
        last = fn.op(f"icmp eq i64 {number(index).name}, {number(fn.dim(self.count - 1)).name}", "i1")
        longer, usual = fn.dim(self.size - (self.count - 1) * self.length), fn.dim(self.length)
        return fn.op(f"select {last}, {longer}, {usual}", "i64")


class Odometer:
    """The positions of outer axes: appends the loop over this thread's share of them."""

    def __init__(self, fn: Function, axes: Axes, operands: int) -> None:
        self.fn = fn
        self.axes = axes
        columns = [tuple(steps[k] for _, steps in axes) for k in range(operands)]
        self.distinct = list(dict.fromkeys(c for c in columns if any(c)))
        self.column = [self.distinct.index(c) if any(c) else None for c in columns]
        self.sizes = [fn.dim(size) for size, _ in axes]
        self.units = prod(size for size, _ in axes)
        self.count: Number = fn.dim(self.units)
        self.moves = [[fn.dim(self._move(a, c)) for c in self.distinct] for a in range(len(axes))]

    def _move(self, axis: int, column: tuple[int, ...]) -> int:
        """Return how far an operand moves when an axis steps and all inner ones go back to 0."""
        back = sum((size - 1) * column[axis + 1 + i] for i, (size, _) in enumerate(self.axes[axis + 1 :]))
        return column[axis] - back

    @contextmanager
    def loop(self) -> Iterator[tuple[list[Number], list[Number]]]:
        """Repeat the body for each unit; yields the positions on the axes and the operands' offsets."""
        if not self.axes:
            yield [], [0] * len(self.column)
            return
        fn = self.fn
        first, last = fn.share(self.count)
        position = self._position(first)
        offsets = [self._offset(position, k) for k in range(len(self.distinct))]
        carry = [number(n) for n in (*position, *offsets)]
        with fn.loop(first, last, carry=carry) as (_, carried):
            now = list(carried)
            at, moved = now[: len(self.axes)], now[len(self.axes) :]
            yield list(at), [0 if c is None else moved[c] for c in self.column]
            carried[:] = self._next(at, moved)

    def _position(self, unit: Number) -> list[Number]:
        fn, position = self.fn, []
        for size in reversed(self.sizes[1:]):
            position.append(fn.mod(unit, size))
            unit = fn.idiv(unit, size)
        return [unit, *reversed(position)]

    def _offset(self, position: Sequence[Number], k: int) -> Number:
        fn = self.fn
        total: Number = 0
        for at, column in zip(position, range(len(self.axes)), strict=True):
            total = fn.add(total, fn.mul(at, fn.dim(self.distinct[k][column])))
        return total

    def _next(self, at: Sequence[Value], moved: Sequence[Value]) -> list[Value]:
        """Return the next unit: an axis at its end goes back to 0, and the next one steps."""
        fn = self.fn
        position = list(at)
        moves = list(self.moves[-1])
        carrying: Value | None = None
        for a in reversed(range(len(self.axes))):
            step = number(1) if carrying is None else fn.op(f"zext {carrying} to i64", "i64")
            stepped = number(fn.add(at[a], step))
            if a == 0:
                position[0] = stepped
                break
            ends = fn.op(f"icmp eq {stepped}, {number(self.sizes[a]).name}", "i1")
            position[a] = fn.op(f"select {ends}, i64 0, {stepped}", "i64")
            carrying = ends
            moves = [
                fn.op(f"select {ends}, {outer}, {inner}", "i64")
                for outer, inner in zip(self.moves[a - 1], moves, strict=True)
            ]
        return [*position, *(number(fn.add(m, d)) for m, d in zip(moved, moves, strict=True))]
