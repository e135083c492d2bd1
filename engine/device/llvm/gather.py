"""Gathers as machine code: whole rows copied by vectors where they lie together, else element by element."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from graphdoc.engine.device.llvm.builder import (
    Function,
    Kernel,
    Number,
    Target,
    Value,
    number,
    scalar,
    vector,
)
from graphdoc.engine.device.llvm.walk import Block, Odometer, ordered, threads_for
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.program import Step

_SIZES = (1, 2, 4, 8)
_DATA, _INDEX, _OUT = range(3)


def tactics_gather(step: Step, target: Target) -> list[str]:
    """Return the ways to gather: one."""
    return ["copy"]


def emit_gather(step: Step, target: Target, tactic: str) -> Kernel | None:
    """Return the kernel of a gather; None where the table is empty, or an element is of no machine size.

    An index outside the table sets the kernel's status, and element 0 is read in its place.
    """
    spec = step.spec
    data, index = step.inputs
    if not isinstance(spec, Gather) or not data.shape[spec.axis] or data.dtype.itemsize not in _SIZES:
        return None
    lookup = [0 if d == spec.axis else stride for d, stride in enumerate(data.strides)]
    out = step.outputs[0]
    axes, starts = ordered(out.shape, [lookup, index.strides, out.strides], _OUT)
    *outer, (size, steps) = axes or [(1, (0, 0, 0))]
    row = Block.of_row(size)
    outer = [*outer, row.axis(steps)] if row.count > 1 else outer
    kernel = _Kernel(step, spec.axis, starts, steps, target, size)
    with Odometer(kernel.fn, outer, 3).loop() as (at, offsets):
        length = row.extent(kernel.fn, at[-1] if row.count > 1 else 0)
        places = kernel.moved(kernel.bases, offsets)
        (kernel.row if steps[_INDEX] == 0 else kernel.elements)(places, length)
    threads = threads_for(2 * out.size * out.dtype.itemsize, out.size, prod(s for s, _ in outer))
    return replace(kernel.fn.kernel(threads=threads), status=True)


class _Kernel:
    """The operands, and what is done for one row of the output."""

    def __init__(
        self,
        step: Step,
        axis: int,
        starts: Sequence[int],
        steps: Sequence[int],
        target: Target,
        length: int,
    ) -> None:
        fn = self.fn = Function()
        self.length = length
        data, index = step.inputs
        self.element = f"i{8 * data.dtype.itemsize}"
        self.elements_of = (self.element, scalar(index.dtype), self.element)
        self.lanes = max(target.vector // data.dtype.itemsize, 1)
        bases = [fn.argument(k) for k in range(3)]
        self.status = fn.argument(3)
        self.bases = [
            fn.at(base, fn.dim(start), element) if start else base
            for base, start, element in zip(bases, starts, self.elements_of, strict=True)
        ]
        self.steps: list[Number] = [s if s in (0, 1) else fn.dim(s) for s in steps]
        self.size, self.stride = fn.dim(data.shape[axis]), fn.dim(data.strides[axis])

    def moved(self, places: Sequence[Value], offsets: Sequence[Number]) -> list[Value]:
        """Return addresses so many elements on."""
        rows = zip(places, offsets, self.elements_of, strict=True)
        return [self.fn.at(place, offset, element) for place, offset, element in rows]

    def along(self, places: Sequence[Value], i: Number) -> list[Value]:
        """Return addresses i elements further along the row."""
        return self.moved(places, [self.fn.mul(i, step) for step in self.steps])

    def found(self, places: Sequence[Value]) -> tuple[Value, Value]:
        """Return the address that the index leads to, and whether the index lies outside the table."""
        fn = self.fn
        read = fn.load(self.elements_of[_INDEX], places[_INDEX])
        index = read if read.type == "i64" else fn.op(f"sext {read} to i64", "i64")
        negative = fn.op(f"icmp slt {index}, 0", "i1")
        counted = fn.op(f"add {index}, {self.size.name}", "i64")
        index = fn.op(f"select {negative}, {counted}, {index}", "i64")
        outside = fn.op(f"icmp uge {index}, {self.size.name}", "i1")
        index = fn.op(f"select {outside}, i64 0, {index}", "i64")
        return fn.at(places[_DATA], fn.mul(index, self.stride), self.element), outside

    def note(self, outside: Value) -> None:
        """Set the status where an index was outside."""
        with self.fn.when(outside):
            self.fn.store(number(1), self.status)

    def row(self, places: Sequence[Value], length: Number) -> None:
        """Copy a row that one index leads to."""
        source, outside = self.found(places)
        self.note(outside)
        fn, start = self.fn, [source, *places[1:]]
        if self.steps[_DATA] != 1 or self.steps[_OUT] != 1 or self.length < self.lanes:
            self._copy(start, 0, length, 1)
            return
        done: Number = 0
        for lanes in (4 * self.lanes, self.lanes):
            stop = fn.sub(length, fn.mod(length, lanes))
            self._copy(start, done, stop, lanes)
            done = stop
        if self.length % self.lanes:
            self._copy(start, fn.sub(length, self.lanes), length, self.lanes)

    def _copy(self, places: Sequence[Value], first: Number, stop: Number, lanes: int) -> None:
        fn = self.fn
        with fn.loop(first, stop, lanes) as (i, _):
            at = self.along(places, i)
            fn.store(fn.load(vector(self.element, lanes), at[_DATA]), at[_OUT])

    def elements(self, places: Sequence[Value], length: Number) -> None:
        """Look up each element of a row."""
        fn = self.fn
        none = Value("false", "i1")
        with fn.loop(0, length, carry=[none]) as (i, carried):
            at = self.along(places, i)
            source, outside = self.found(at)
            fn.store(fn.load(self.element, source), at[_OUT])
            carried[:] = [fn.op(f"or {carried[0]}, {outside.name}", "i1")]
        self.note(carried[0])
