"""Non-maximum suppression as machine code: scores in a heap, each box held against those kept before it.

A box is held against a vector of kept ones at a time, and against no more once one overlaps it too much.
"""

from graphdoc.engine.device.llvm.builder import Function, Kernel, Number, Target, Value, floating, number
from graphdoc.engine.device.llvm.lanes import Lanes
from graphdoc.engine.expr import F32
from graphdoc.engine.kernels.suppression import Suppression
from graphdoc.engine.program import Step

_LEAST = -(1 << 63)
_NUMBERS = 5
"""Of a kept box: its low corner, its high corner, its area."""

_GROUP = 8
"""Vectors of kept boxes between one look at whether the box is still free and the next."""


def tactics_suppression(step: Step, target: Target) -> list[str]:
    """Return the one way there is."""
    return ["heap"]


def emit_suppression(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step of :class:`Suppression`; None for other dtypes than float32."""
    spec = step.spec
    assert isinstance(spec, Suppression)  # noqa: S101  # the table of emitters dispatches on the type
    if any(view.dtype != F32 for view in step.inputs) or step.inputs[0].shape[1] >= 1 << 31:
        return None
    return _Emitter(step, spec, target.lanes(F32)).kernel()


class _Emitter:
    """The kernel of one step.

    In the scratch memory stand: how many boxes wait, how many of this class are kept, how many in all,
    whether the box at hand is free, the heap with one word behind it that is never larger than another, and
    the kept boxes, number by number, a vector of boxes after the other; the last vector's other lanes are
    boxes of no size. A word is a score's order in its high half and what is left of the places in its low
    half.
    """

    def __init__(self, step: Step, spec: Suppression, lanes: int) -> None:
        self.step, self.spec = step, spec
        self.fn = fn = Function()
        self.lanes = Lanes(fn, lanes)
        boxes, scores = step.inputs
        self.batch, self.classes, self.n = scores.shape
        self.most = max(1, min(spec.limit, self.n))
        self.boxes, self.scores, self.rows, self.total = (fn.argument(k) for k in range(4))
        self.scratch = fn.argument(4)
        self.box_strides = [fn.dim(s) for s in boxes.strides]
        self.score_strides = [fn.dim(s) for s in scores.strides]
        self.row_strides = [fn.dim(s) for s in step.outputs[0].strides]
        self.count = fn.dim(self.n)
        self.limit = fn.dim(min(spec.limit, self.n))
        self.heap = fn.at(self.scratch, 8, "i64")
        self.kept = fn.at(self.heap, fn.dim(-(-(self.n + 1) // 8) * 8), "i64")

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        fn = self.fn
        self._set(2, number(0))
        fn.store(number(_LEAST), self._word(self.count))
        with fn.loop(0, fn.dim(self.batch)) as (entry, _), fn.loop(0, fn.dim(self.classes)) as (label, _):
            self._class(entry, label)
        fn.store(self._get(2), self.total)
        vectors = -(-self.most // self.lanes.count)
        scratch = 8 * (8 + -(-(self.n + 1) // 8) * 8) + 4 * _NUMBERS * self.lanes.count * vectors
        return fn.kernel(scratch)

    # ---- places --------------------------------------------------------------------------------------

    def _get(self, n: int) -> Value:
        return self.fn.load("i64", self.fn.at(self.scratch, n, "i64"))

    def _set(self, n: int, value: Value) -> None:
        self.fn.store(value, self.fn.at(self.scratch, n, "i64"))

    def _word(self, n: Number) -> Value:
        return self.fn.at(self.heap, n, "i64")

    # ---- one class -----------------------------------------------------------------------------------

    def _class(self, entry: Value, label: Value) -> None:
        fn = self.fn
        self._set(0, number(0))
        self._set(1, number(0))
        self._gather(entry, label)
        waiting = self._get(0)
        half = fn.idiv(waiting, 2)
        with fn.loop(0, half) as (n, _):
            place = fn.sub(fn.sub(half, 1), n)
            self._sink(place, fn.load("i64", self._word(place)))
        with fn.loop(0, waiting):
            more = fn.op(f"icmp slt {self._get(1)}, {number(self.limit).name}", "i1")
            with fn.when(more):
                self._next(entry, label)

    def _gather(self, entry: Value, label: Value) -> None:
        """Collect the words of the boxes that score enough."""
        fn, (by_entry, by_label, by_box) = self.fn, self.score_strides
        start = fn.add(fn.mul(entry, by_entry), fn.mul(label, by_label))
        with fn.loop(0, self.count) as (n, _):
            score = fn.load("float", fn.at(self.scores, fn.add(start, fn.mul(n, by_box)), "float"))
            enough = Value("true", "i1")
            if self.spec.least is not None:
                enough = fn.op(f"fcmp ogt {score}, {floating(self.spec.least, 'float').name}", "i1")
            with fn.when(enough):
                at = self._get(0)
                fn.store(self._key(score, n), self._word(at))
                self._set(0, number(fn.add(at, 1)))

    def _key(self, score: Value, place: Value) -> Value:
        """Return the word of a score; no number comes last, and −0 is 0."""
        fn = self.fn
        plain = fn.binary("fadd", score, floating(0.0, "float"))
        bits = fn.op(f"bitcast {plain} to i32", "i32")
        sign = fn.op(f"ashr {bits}, 31", "i32")
        turned = fn.binary("xor", bits, fn.op(f"and {sign}, {0x7FFFFFFF}", "i32"))
        none = fn.op(f"fcmp uno {score}, {score.name}", "i1")
        key = fn.op(f"select {none}, i32 {-(1 << 31)}, {turned}", "i32")
        high = fn.op(f"shl i64 {fn.op(f'sext {key} to i64', 'i64').name}, 32", "i64")
        return fn.binary("or", high, number(fn.sub(0xFFFFFFFF, place)))

    def _sink(self, place: Number, word: Value) -> None:
        """Put a word at a place of the heap and let it sink, the larger ones rising."""
        fn = self.fn
        waiting = self._get(0)
        none = Value("false", "i1")
        above, below = (fn.call("llvm.ctlz.i64", "i64", number(n), none) for n in (fn.add(place, 1), waiting))
        levels = fn.add(fn.sub(above, below), 1)  # how deep the heap is under the place
        with fn.loop(0, levels, carry=[number(place)]) as (_, carried):
            here = carried[0]
            left = number(fn.add(fn.mul(here, 2), 1))
            right = number(fn.add(left, 1))
            a, b = (fn.load("i64", self._word(self._inside(side, waiting))) for side in (left, right))
            more = fn.op(f"icmp sgt {b}, {a.name}", "i1")
            child = fn.call("llvm.smax.i64", "i64", a, b)
            above = fn.op(f"icmp sgt {child}, {word.name}", "i1")
            fn.store(fn.call("llvm.smax.i64", "i64", child, word), self._word(here))
            side = fn.op(f"select {more}, {right}, {left}", "i64")
            carried[:] = [fn.op(f"select {above}, {side}, {here}", "i64")]
        fn.store(word, self._word(carried[0]))

    def _inside(self, place: Value, waiting: Value) -> Value:
        """Return a place of the heap, or that of the least word where it is past the end."""
        inside = self.fn.op(f"icmp slt {place}, {waiting.name}", "i1")
        return self.fn.op(f"select {inside}, {place}, {number(self.count)}", "i64")

    def _next(self, entry: Value, label: Value) -> None:
        """Take the best box that waits, and keep it if none that is kept overlaps it too much."""
        fn = self.fn
        best = fn.load("i64", self._word(0))
        last = number(fn.sub(self._get(0), 1))
        self._set(0, last)
        self._sink(0, fn.load("i64", self._word(last)))
        box = number(fn.sub(0xFFFFFFFF, fn.op(f"and {best}, {0xFFFFFFFF}", "i64")))
        corners = self._corners(entry, box)
        area = self._area(corners)
        self._hold(corners, area)
        with fn.when(self._is_free()):
            self._keep(entry, label, box, [*corners, area])

    def _hold(self, corners: list[Value], area: Value) -> None:
        """Hold a box against the kept ones, and note whether it is free."""
        fn, lanes = self.fn, self.lanes
        mine, whole = [lanes.every(corner) for corner in corners], lanes.every(area)
        vectors = fn.idiv(fn.add(self._get(1), lanes.count - 1), lanes.count)
        self._set(3, number(1))
        with fn.loop(0, vectors, _GROUP) as (first, _), fn.when(self._is_free()):
            none = lanes.compare("olt", whole, whole)
            with fn.loop(first, fn.least(fn.add(first, _GROUP), vectors), carry=[none]) as (n, hit):
                places = [fn.at(self._kept(n), k * lanes.count, "float") for k in range(_NUMBERS)]
                other = [fn.load(whole.type, place, 4) for place in places]
                hit[:] = [fn.binary("or", hit[0], self._overlaps(mine, whole, other))]
            gone = fn.op(f"zext {lanes.any(hit[0])} to i64", "i64")
            self._set(3, number(fn.sub(1, gone)))

    def _is_free(self) -> Value:
        return self.fn.op(f"icmp ne {self._get(3)}, 0", "i1")

    def _kept(self, vector: Number) -> Value:
        """Return where a vector of kept boxes stands."""
        return self.fn.at(self.kept, self.fn.mul(vector, _NUMBERS * self.lanes.count), "float")

    def _keep(self, entry: Value, label: Value, box: Value, numbers: list[Value]) -> None:
        fn, count = self.fn, self.lanes.count
        at, total = self._get(1), self._get(2)
        lane = fn.mod(at, count)
        place = self._kept(fn.idiv(at, count))
        with fn.when(fn.op(f"icmp eq {number(lane)}, 0", "i1")):
            for k in range(_NUMBERS):
                fn.store(floating(0.0, self.lanes.kind("float")), fn.at(place, k * count, "float"), 4)
        for k, value in enumerate(numbers):
            fn.store(value, fn.at(place, fn.add(lane, k * count), "float"))
        row = fn.at(self.rows, fn.mul(total, self.row_strides[0]), "i64")
        for k, value in enumerate((entry, label, box)):
            fn.store(value, fn.at(row, fn.mul(k, self.row_strides[1]), "i64"))
        self._set(1, number(fn.add(at, 1)))
        self._set(2, number(fn.add(total, 1)))

    # ---- boxes ---------------------------------------------------------------------------------------

    def _corners(self, entry: Value, box: Value) -> list[Value]:
        """Return the low corner and the high one of a box."""
        fn, (by_entry, by_box, by_number) = self.fn, self.box_strides
        start = fn.add(fn.mul(entry, by_entry), fn.mul(box, by_box))
        places = [fn.at(self.boxes, fn.add(start, fn.mul(k, by_number)), "float") for k in range(4)]
        numbers = [fn.load("float", place) for place in places]
        first, second = numbers[:2], numbers[2:]
        if self.spec.centred:
            half = [fn.binary("fdiv", s, floating(2.0, "float")) for s in second]
            return [
                fn.binary(name, f, h) for name in ("fsub", "fadd") for f, h in zip(first, half, strict=True)
            ]
        return [
            fn.call(f"llvm.{name}.f32", "float", a, b)
            for name in ("minimum", "maximum")
            for a, b in zip(first, second, strict=True)
        ]

    def _area(self, corners: list[Value]) -> Value:
        fn = self.fn
        sides = [fn.binary("fsub", corners[k + 2], corners[k]) for k in range(2)]
        return fn.binary("fmul", sides[0], sides[1])

    def _overlaps(self, mine: list[Value], area: Value, other: list[Value]) -> Value:
        """Return in which lanes the intersection is more than so much of the union; 0 of empty boxes.

        Where a corner is no number neither are the areas, and the union is not above 0.
        """
        lanes = self.lanes
        sides = []
        for k in range(2):
            low, high = lanes.larger(mine[k], other[k]), lanes.smaller(mine[k + 2], other[k + 2])
            sides.append(lanes.larger(lanes.sub(high, low), lanes.number(0.0, low.type)))
        shared = lanes.mul(*sides)
        union = lanes.sub(lanes.add(other[4], area), shared)
        some = lanes.op("and", lanes.compare("ogt", shared, 0.0), lanes.compare("ogt", union, 0.0))
        ratio = lanes.select(some, lanes.div(shared, union), 0.0)
        return lanes.compare("ogt", ratio, self.spec.iou)
