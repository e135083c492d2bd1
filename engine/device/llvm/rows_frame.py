"""What both ways of running over rows share: addresses and numbers, loads and stores of lanes, loops."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from graphdoc.engine.device.llvm.builder import Function, Number, Target, Value, number, parts, scalar, vector
from graphdoc.engine.device.llvm.rows_layout import Axis, Layout
from graphdoc.engine.device.llvm.rows_softmax import RowScalars


class Frame:
    """A kernel's operands: base addresses, and sizes and strides as it reads them from ``dims``."""

    def __init__(self, fn: Function, layout: Layout, target: Target) -> None:
        self.fn, self.layout, self.target = fn, layout, target
        self.bases = [fn.argument(k) for k in range(len(layout.dtypes))]
        self._sizes = {id(a): fn.dim(a.size) for a in (*layout.rows, *layout.reduced)}
        self._strides = {
            (id(a), k): s if s in (0, 1, 2) else fn.dim(s)
            for a in (*layout.rows, *layout.reduced)
            for k, s in enumerate(a.strides)
        }

    def size(self, axis: Axis) -> Number:
        """Return the size of an axis."""
        return self._sizes[id(axis)]

    def stride(self, axis: Axis, k: int) -> Number:
        """Return the stride of operand k along an axis, in elements."""
        return self._strides[id(axis), k]

    def element(self, k: int) -> str:
        """Return the type of operand k's elements in memory."""
        return scalar(self.layout.dtypes[k])

    def moved(self, pointers: Sequence[Value], axis: Axis, position: Number) -> list[Value]:
        """Return the operands' addresses at a position of an axis."""
        return [
            p if axis.strides[k] == 0 else self.ahead(k, p, self.fn.mul(self.stride(axis, k), position))
            for k, p in enumerate(pointers)
        ]

    def ahead(self, k: int, pointer: Value, elements: Number) -> Value:
        """Return an address some elements of operand k further on."""
        return self.fn.at(pointer, elements, self.element(k))

    def load(self, k: int, pointer: Value, lanes: int, axis: Axis | None = None) -> Value:
        """Read operand k: ``lanes`` elements along an axis, or the one there if it does not vary."""
        step = axis.strides[k] if axis else 0
        if lanes == 1 or step == 0:
            return self.fn.load(self.element(k), pointer)
        if step == 1:
            return self.fn.load(vector(self.element(k), lanes), pointer)
        assert axis is not None  # noqa: S101  # a step needs an axis
        if step == 2 and lanes > 2:
            return self._every_second(k, pointer, lanes)
        return self._gathered(k, pointer, lanes, self.stride(axis, k))

    def scalars(self, lanes: int) -> RowScalars:
        """Return what emits expressions for some lanes."""
        return RowScalars(self.fn, lanes, self.target)

    def put(self, k: int, value: Value, pointer: Value, lanes: int, axis: Axis | None = None) -> None:
        """Write a register's lanes to operand k along an axis."""
        dtype = self.layout.dtypes[k]
        self.store(k, self.scalars(lanes).to_memory(value, dtype), pointer, axis)

    def _every_second(self, k: int, pointer: Value, lanes: int) -> Value:
        """Read every second element: two vectors, which end with the last one wanted."""
        kind = vector(self.element(k), lanes)
        low = self.fn.load(kind, pointer)
        high = self.fn.load(kind, self.ahead(k, pointer, lanes - 1))
        order = [2 * i if 2 * i < lanes else 2 * i + 1 for i in range(lanes)]
        mask = ", ".join(f"i32 {i}" for i in order)
        return self.fn.op(f"shufflevector {low}, {high}, <{lanes} x i32> <{mask}>", kind)

    def _gathered(self, k: int, pointer: Value, lanes: int, step: Number) -> Value:
        fn, kind = self.fn, vector(self.element(k), lanes)
        whole = Value("poison", kind)
        for lane in range(lanes):
            pointer = self.ahead(k, pointer, step) if lane else pointer
            one = fn.load(self.element(k), pointer)
            whole = fn.op(f"insertelement {whole}, {one}, i32 {lane}", kind)
        return whole

    def store(self, k: int, value: Value, pointer: Value, axis: Axis | None = None) -> None:
        """Write operand k: the lanes along an axis, as memory holds them."""
        fn, lanes = self.fn, parts(value.type)[1]
        if lanes == 1 or (axis and axis.strides[k] == 1):
            fn.store(value, pointer)
            return
        assert axis is not None  # noqa: S101  # several lanes lie along an axis
        for lane in range(lanes):
            pointer = self.ahead(k, pointer, self.stride(axis, k)) if lane else pointer
            fn.store(fn.op(f"extractelement {value}, i32 {lane}", self.element(k)), pointer)


def from_lane(fn: Function, first: Number, lanes: int) -> Value:
    """Return the mask of the lanes from ``first`` on."""
    return _compared(fn, "sge", first, lanes)


def up_to_lane(fn: Function, count: Number, lanes: int) -> Value:
    """Return the mask of the first ``count`` lanes."""
    return _compared(fn, "slt", count, lanes)


def _compared(fn: Function, test: str, limit: Number, lanes: int) -> Value:
    """Compare the lanes' numbers in 32 bits, which is cheaper than in 64."""
    narrow = limit if isinstance(limit, int) else fn.op(f"trunc {limit} to i32", "i32").name
    wide = fn.splat(Value(str(narrow), "i32"), lanes)
    ramp = ", ".join(f"i32 {k}" for k in range(lanes))
    return fn.op(f"icmp {test} <{lanes} x i32> <{ramp}>, {wide.name}", f"<{lanes} x i1>")


def chunk_of(length: int, block: int) -> int:
    """Return the largest power of ``block`` below a length that is more than ``block``."""
    chunk = block
    while chunk * block < length:
        chunk *= block
    return chunk


def most(fn: Function, a: Number, b: Number) -> Number:
    """Return the larger of two numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return fn.call("llvm.smax.i64", "i64", number(a), number(b))


@contextmanager
def units(fn: Function, sizes: Sequence[Number]) -> Iterator[list[Number]]:
    """Visit this thread's share of all positions of some axes, the last one fastest. No size may be 0."""
    if not sizes:
        with fn.loop(*fn.share(1)):
            yield []
        return
    if len(sizes) == 1:
        with fn.loop(*fn.share(sizes[0])) as (position, _):
            yield [position]
        return
    with blocks(fn, sizes[:-1], sizes[-1]) as (outer, start, stop), fn.loop(start, stop) as (position, _):
        yield [*outer, position]


@contextmanager
def blocks(
    fn: Function, sizes: Sequence[Number], inner: Number
) -> Iterator[tuple[list[Number], Number, Number]]:
    """Visit the positions of outer axes that this thread has a share of, with its range of the inner axis."""
    outer: Number = 1
    for size in sizes:
        outer = fn.mul(outer, size)
    low, high = fn.share(fn.mul(outer, inner))
    last = fn.idiv(fn.sub(fn.add(high, inner), 1), inner)
    with fn.loop(fn.idiv(low, inner), last) as (block, _):
        begin = fn.mul(block, inner)
        start, stop = most(fn, fn.sub(low, begin), 0), fn.least(fn.sub(high, begin), inner)
        yield _coordinates(fn, block, sizes), start, stop


def _coordinates(fn: Function, linear: Number, sizes: Sequence[Number]) -> list[Number]:
    found: list[Number] = []
    for size in reversed(sizes[1:]):
        found.append(fn.mod(linear, size))
        linear = fn.idiv(linear, size)
    return [linear, *reversed(found)]


Body = Callable[[list[Number], list[Value]], list[Value]]
"""(positions on the axes, carried values) → the values carried on."""


def nest(fn: Function, sizes: Sequence[Number], carry: list[Value], body: Body) -> list[Value]:
    """Run a body at every position of some axes, the last one fastest; return what is carried out."""

    def deeper(at: list[Number], values: list[Value]) -> list[Value]:
        if len(at) == len(sizes):
            return body(at, values)
        with fn.loop(0, sizes[len(at)], 1, values) as (position, carried):
            carried[:] = deeper([*at, position], list(carried))
        return list(carried)

    return deeper([], carry)


def stages(values: Mapping[int, Value]) -> list[Value]:
    """Return values by number as the list that expressions read; the gaps are never read."""
    unset = Value("poison", "void")
    return [values.get(k, unset) for k in range(1 + max(values, default=-1))]
