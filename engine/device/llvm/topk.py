"""The first elements of rows as machine code: what may be among them goes into a heap, the rest is skipped.

An element and its place become one i64 that is larger the sooner the element comes: its order in the high
half, what is left of the places in the low half. The heap's root is the last of those kept so far.
"""

from math import prod

from graphdoc.engine.device.llvm.builder import (
    Function,
    Kernel,
    Number,
    Target,
    Value,
    floating,
    integer,
    number,
    parts,
    vector,
)
from graphdoc.engine.device.llvm.walk import Odometer, threads_for
from graphdoc.engine.expr import F32, I32
from graphdoc.engine.kernels.topk import TopK
from graphdoc.engine.program import Step, merged

_SHORT = 24
"""Elements up to which they are kept in order instead of in a heap."""

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def tactics_topk(step: Step, target: Target) -> list[str]:
    """Return the one way there is."""
    return ["heap"]


def emit_topk(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step of :class:`TopK`; None for other dtypes and rows that are too long."""
    spec, x = step.spec, step.inputs[0]
    assert isinstance(spec, TopK)  # noqa: S101  # the table of emitters dispatches on the type
    if x.dtype not in (F32, I32) or x.shape[-1] >= 1 << 31:
        return None
    return _Emitter(step, spec, target).kernel()


class _Emitter:
    """The kernel of one step. In the scratch memory stand the elements that are kept."""

    def __init__(self, step: Step, spec: TopK, target: Target) -> None:
        self.step, self.largest = step, spec.largest
        self.fn = fn = Function()
        x, values, _ = views = (*step.inputs, *step.outputs)
        self.element = "float" if x.dtype == F32 else "i32"
        self.k, self.size = values.shape[-1], x.shape[-1]
        self.levels = (self.k).bit_length()
        self.lanes = target.lanes(F32) if x.strides[-1] == 1 else 1
        self.bases = [fn.argument(n) for n in range(3)]
        self.heap = fn.argument(3)
        self.types = (self.element, self.element, "i64")
        self.along = [fn.dim(view.strides[-1]) for view in views]
        self.count, self.length, self.room = fn.dim(self.k), fn.dim(self.size), fn.dim(self._room)

    @property
    def _room(self) -> int:
        """Return how many entries the heap has, those past its end with what never moves up."""
        return self.k if self.k <= _SHORT else (1 << (self.levels + 1)) + 1

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        views = (*self.step.inputs, *self.step.outputs)
        rows = prod(views[1].shape[:-1])
        axes = merged(views[1].shape[:-1], [view.strides[:-1] for view in views])
        with Odometer(self.fn, axes or [(1, (0, 0, 0))], 3).loop() as (_, offsets):
            pairs = zip(self.bases, offsets, self.types, strict=True)
            self._row([self.fn.at(base, offset, kind) for base, offset, kind in pairs])
        cycles = rows * (self.size + 40 * self.k * max(1, self.levels))
        return self.fn.kernel(8 * self._room, threads_for(0, cycles, rows))

    # ---- one row -------------------------------------------------------------------------------------

    def _row(self, places: list[Value]) -> None:
        fn = self.fn
        with fn.loop(0, self.room) as (n, _):
            inside = fn.op(f"icmp slt {n}, {self.count.name}", "i1")
            first = fn.op(f"select {inside}, i64 {_LEAST}, i64 {_MOST}", "i64")
            fn.store(first, self._at(n))
        whole: Number = 0
        if self.lanes > 1:
            whole = fn.sub(self.length, fn.mod(self.length, self.lanes))
            with fn.loop(0, whole, self.lanes) as (start, _):
                self._block(places[0], start)
        with fn.loop(whole, self.length) as (place, _):
            self._offer(places[0], place)
        if self.k > _SHORT:
            self._drain(places)
            return
        with fn.loop(0, self.count) as (n, _):
            self._write(places, n, fn.load("i64", self._at(n)))

    def _at(self, n: Number) -> Value:
        return self.fn.at(self.heap, n, "i64")

    def _worst(self) -> Value:
        """Return the last of those kept."""
        last = self.k - 1 if self.k <= _SHORT else 0
        return self.fn.load("i64", self._at(last))

    def _block(self, row: Value, start: Value) -> None:
        """Offer a vector's elements where one of them may be kept."""
        fn, lanes = self.fn, self.lanes
        keys = self._keys(fn.load(vector(self.element, lanes), fn.at(row, start, self.element)))
        bound = fn.op(f"trunc i64 {fn.op(f'ashr {self._worst()}, 32', 'i64').name} to i32", "i32")
        better = fn.op(f"icmp sge {keys}, {fn.splat(bound, lanes).name}", f"<{lanes} x i1>")
        with fn.when(fn.call(f"llvm.vector.reduce.or.v{lanes}i1", "i1", better)), fn.loop(0, lanes) as (n, _):
            self._offer(row, fn.add(start, n))

    def _keys(self, x: Value) -> Value:
        """Return i32 whose order is that of the elements, larger where one comes sooner."""
        fn, lanes = self.fn, parts(x.type)[1]
        kind = vector("i32", lanes)
        keys = x
        if self.element == "float":
            plain = fn.binary("fadd", x, floating(0.0, x.type))  # −0 becomes 0
            bits = fn.op(f"bitcast {plain} to {kind}", kind)
            sign = fn.binary("ashr", bits, integer(31, kind))
            turned = fn.binary("xor", bits, fn.binary("and", sign, integer(0x7FFFFFFF, kind)))
            none = fn.op(f"fcmp uno {x}, {x.name}", vector("i1", lanes))
            keys = fn.op(f"select {none}, {integer(0x7FFFFFFF, kind)}, {turned}", kind)
        return keys if self.largest else fn.binary("xor", keys, integer(-1, kind))

    def _offer(self, row: Value, place: Number) -> None:
        """Keep an element if it comes before the last one that is kept."""
        fn = self.fn
        x = fn.load(self.element, fn.at(row, fn.mul(place, self.along[0]), self.element))
        high = fn.op(f"shl i64 {fn.op(f'sext {self._keys(x)} to i64', 'i64').name}, 32", "i64")
        low = number(fn.sub(0xFFFFFFFF, place))
        word = fn.binary("or", high, low)
        with fn.when(fn.op(f"icmp sgt {word}, {self._worst().name}", "i1")):
            (self._insert if self.k <= _SHORT else self._sift)(word)

    def _insert(self, word: Value) -> None:
        """Put a word among those in order; the last one goes."""
        fn = self.fn
        with fn.loop(0, self.count, carry=[word]) as (n, carried):
            kept = fn.load("i64", self._at(n))
            fn.store(fn.call("llvm.smax.i64", "i64", kept, carried[0]), self._at(n))
            carried[:] = [fn.call("llvm.smin.i64", "i64", kept, carried[0])]

    def _sift(self, word: Value) -> None:
        """Put a word in the root's place and let it sink."""
        fn = self.fn
        with fn.loop(0, self.levels, carry=[number(0)]) as (_, carried):
            here = carried[0]
            left = fn.add(fn.mul(here, 2), 1)
            a, b = fn.load("i64", self._at(left)), fn.load("i64", self._at(fn.add(left, 1)))
            less = fn.op(f"icmp slt {b}, {a.name}", "i1")
            child = fn.call("llvm.smin.i64", "i64", a, b)
            below = fn.op(f"icmp slt {child}, {word.name}", "i1")
            fn.store(fn.call("llvm.smin.i64", "i64", child, word), self._at(here))
            step = fn.add(left, fn.op(f"zext {less} to i64", "i64"))
            carried[:] = [fn.op(f"select {below}, {number(step)}, {here}", "i64")]
        fn.store(word, self._at(carried[0]))

    def _drain(self, places: list[Value]) -> None:
        """Take the last of the heap, time after time."""
        fn = self.fn
        with fn.loop(0, self.count) as (n, _):
            word = self._worst()
            self._sift(integer(_MOST, "i64"))
            self._write(places, fn.sub(fn.sub(self.count, 1), n), word)

    def _write(self, places: list[Value], n: Number, word: Value) -> None:
        """Write the n-th result."""
        fn = self.fn
        low = fn.op(f"and {word}, {0xFFFFFFFF}", "i64")
        place = number(fn.sub(0xFFFFFFFF, low))
        x = fn.load(self.element, fn.at(places[0], fn.mul(place, self.along[0]), self.element))
        fn.store(x, fn.at(places[1], fn.mul(n, self.along[1]), self.element))
        fn.store(place, fn.at(places[2], fn.mul(n, self.along[2]), "i64"))
